"""Attribute-based policies: XACML 3.0, its combining algorithms, and what they decide (paper 4, section 4.1.1).

`datatypes` and `functions` are the values that policies speak about, `expressions` and `policies` what policies are,
`requests` and `results` what is asked and answered, `evaluate` how the one follows from the other, word by word as the
standard has it. `xml_policies` and `xml_requests` read and write the standard's own form. Everything here is pure: what
a policy needs from outside comes in through `Sources`.
"""

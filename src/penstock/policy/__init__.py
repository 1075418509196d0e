"""Attribute-based policies: XACML 3.0, its combining algorithms, and what they decide (paper 4, section 4.1.1).

`language` are policies, requests and results as values, `syntax` reads and writes them as XML, JSON and text,
`combining` has the combining algorithms. `engine` evaluates, `analysis` answers questions about all requests,
`residual` evaluates partially. Everything is pure: what a policy needs from outside comes in through `PolicySources`.
"""

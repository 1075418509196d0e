"""The text form of policies that people write.

`tokens`, `names` and `expressions` are its parts, `policies` and `policy_writer` read and write, `layout` formats,
`lint` warns.
May import from `penstock.policy.syntax`: `builder`.
"""

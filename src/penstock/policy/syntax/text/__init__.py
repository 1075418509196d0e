"""The text form of policies that people write.

`tokens`, `names` and `expressions` are its parts, `policies` and `policy_writer` read and write, `layout` formats,
`lint` warns.
Imports nothing else of `penstock.policy.syntax`.
"""

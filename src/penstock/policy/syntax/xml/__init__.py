"""XACML's own XML.

`policies` reads and writes policies, `requests` requests and responses, `elements` is what both share.
May import from `penstock.policy.syntax`: `builder`.
"""

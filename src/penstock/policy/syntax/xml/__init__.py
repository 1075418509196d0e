"""XACML's own XML.

`policies` and `policy_writer` read and write policies, `requests` requests and responses, `elements` is what both
share.
May import from `penstock.policy.syntax`: `builder`.
"""

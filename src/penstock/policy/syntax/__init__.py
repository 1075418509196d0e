"""Policies, requests and responses as text.

`xml`, `json` and `text` are the three forms; `forms` reads a policy in any of them.
May import from `penstock.policy`: `combining`, `language`.
"""

"""Policies, requests and responses in JSON.

`policies` reads and writes policies, `requests` the JSON profile of requests and responses.
May import from `penstock.policy.syntax`: `builder`, `text`, `xml`.
"""

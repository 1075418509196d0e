"""`penstock policy` and `penstock pdp`: attribute-based policies, and decisions by them.

`commands` lists the verbs, `files` checks, formats, converts and tests policies, `analysis` analyses them,
`combining` combines decisions, `serve` runs the decision service.
May import from `penstock.apps.cli`: `certs`, `store`, `shared`.
"""

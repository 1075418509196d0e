"""`penstock type` and `penstock topic`: define, sign, show and verify event types and topics.

`types` and `topics` have the commands, `signatures` is what both share.
May import from `penstock.apps.cli`: `explain_policies`, `moderator`, `net`, `policy`, `sealed`, `sexp`, `certs`,
`store`, `shared`.
"""

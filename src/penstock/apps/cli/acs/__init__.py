"""`penstock acs`: the access control service of a domain.

`serve` runs the service, `commands` has the verbs that call it, `holder_output` shows holders as a table and as a tree.
May import from `penstock.apps.cli`: `certs`, `shared`.
"""

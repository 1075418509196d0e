"""`penstock policy` and `penstock pdp`: attribute-based policies, and decisions by them.

`commands` lists the verbs, decides requests, combines decisions and runs the decision service. `files` checks, formats,
converts and tests policies, `analysis` analyses them, `explanation` explains decisions. `sql` writes views for
other engines, `acl` access control lists of servers.
May import from `penstock.apps.cli`: `certs`, `shared`.
"""

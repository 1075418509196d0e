"""`penstock moderator`: conflicts between publishers' rules, and how they are settled.

`commands` lists the verbs. `queries`, `changes`, `book`, `compile` and `polls` have them. `sources` finds the rules,
`output` shows answers. `poll_network` runs polls over NATS, `poll_output` shows polls.
May import from `penstock.apps.cli`: `certs`, `shared`.
"""

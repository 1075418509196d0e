"""`penstock moderator`: conflicts between publishers' rules, and how they are settled.

`commands` lists the verbs. `queries`, `changes`, `event_types`, `consents`, `book`, `rule_files`, `compile`,
`polls` and `votes` have them. `sources` finds the rules, `execution` carries out or rehearses a change, `output`
shows answers. `poll_network` runs polls over NATS, `poll_output` shows polls.
May import from `penstock.apps.cli`: `certs`, `store`, `shared`.
"""

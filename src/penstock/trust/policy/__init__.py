"""Policy events: how an owner changes policy, signed and chained.

`events` and `stamps` are what is signed, `state` is their fold and its written form, `revocations` says which
certificates no longer count.
May import from `penstock.trust`: `event_types`, `profiles`, `capabilities`, `explain`, `discovery`, `closure`,
`credentials`, `reduction`, `certificates`, `signed`, `subjects`, `tags`, `validity`.
"""

"""`penstock net`: how a broker sees the network, and how an owner changes policy in it.

`commands` lists the verbs, `status` shows a broker's state, `policy`, `chain` and `stamps` have the verbs of
owners, `signatures` signs the next policy event.
May import from `penstock.apps.cli`: `certs`, `store`, `shared`.
"""

"""`penstock net`: how a broker sees the network, and how an owner changes policy in it.

`commands` lists the verbs, `status` shows a broker's state, `policy` has the verbs of owners, `chain` shows an owner's
chain of policy events and signs the next one.
May import from `penstock.apps.cli`: `certs`, `shared`.
"""

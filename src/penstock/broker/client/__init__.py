"""The client: how a program publishes and subscribes at its local broker.

`client` has `connect`, feeds and subscriptions. `connection` numbers requests, matches their responses and
reconnects.
May import from `penstock.broker`: `fabric`, `keys`, `core`, `blinding`, `local`, `routing`, `sealing`, `matching`,
`evolution`, `wire`.
"""

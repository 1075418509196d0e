"""The router: a state machine that carries events between brokers.

`router` is the entry point, `carrier` passes events on, `trees` are the dissemination trees. `filters`, `messages`,
`peers` and `outputs` are its parts. `membership` says who is in the network, `overlay` who may
carry which type.
May import from `penstock.broker`: `sealing`, `matching`, `evolution`, `wire`.
"""

"""Key groups of sealed types: who holds which key, and when it changes.

`manager`, `group`, `log` and `log_state` are a key manager and its replicated log, `member` is a broker in a group,
`rights` and `claims` decide who may hold a key. `sealing` protects keys in messages, `transport` carries them,
`managed_groups`, `node_keys` and `client_requests` connect all this to a node.
May import from `penstock.broker`: `core`, `blinding`, `local`, `routing`, `sealing`, `matching`, `evolution`,
`wire`.
"""

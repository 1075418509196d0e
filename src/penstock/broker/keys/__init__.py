"""Key groups of sealed types: who holds which key, and when it changes.

`manager` decides and proposes, `group` has the rule when an epoch must begin. `manager_outputs` has the actions that a
manager returns, `log` and `log_state` are the managers' replicated log. `member` is a broker in a group, `rights` and
`claims` decide who may hold a key. `sealing` protects keys in messages, `transport` carries them,
`managed_groups`, `node_keys` and `client_requests` connect all this to a node.
May import from `penstock.broker`: `core`, `blinding`, `local`, `routing`, `sealing`, `matching`, `evolution`,
`wire`.
"""

"""Key groups of sealed types: who holds which key, and when it changes.

`manager` decides who is in a group and proposes records, `group` has the rule when an epoch must begin, `log` is the
managers' replicated log and the state that follows from it. `member` is a broker in a group. `rights` decides who may
hold a key. `sealing` protects keys in messages and records. `node_keys` connects all this to a node, and
`client_requests` answers clients.
May import from `penstock.broker`: `core`, `blinding`, `local`, `routing`, `sealing`, `matching`, `evolution`,
`wire`.
"""

"""A running broker: links to clients and to other brokers, and everything that happens on them.

`node` starts and stops it, `clients` serves clients, `neighbours` talks to other brokers. `policies` applies
owners' policy events, and writes down what must survive a restart. `validity` follows the issuers of validity
statements, for certificates with on-line tests. `machine` has the clocks, the thread and the listener of a node.
May import from `penstock.broker`: `fabric`, `keys`, `core`, `blinding`, `local`, `routing`, `sealing`, `matching`,
`evolution`, `wire`.
"""

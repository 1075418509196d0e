"""The local broker and the broker network.

`client` is a program's side of a session, `node` a broker process's links and their work. `core` is what the parts
of a node share, `local` the sessions and their requests, `routing` the network of brokers, `matching` which
selectors match an event. `sealing` and `blinding` protect events on their way, `keys` manages the keys for that.
`evolution` applies owners' policy events, `fabric` is a network over topics instead of links, `wire` the links and
the bytes on them.
"""

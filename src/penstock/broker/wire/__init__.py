"""What crosses a connection: frames, TLS and NATS links, the handshake, and the messages themselves.

`channel`, `tls_transport`, `handshake`, `link` and `nats_link` make a link to an authenticated peer, `transports`
finds the way to it. `protocol` has the messages of clients, `entries` and `publications` those between brokers,
`plain_trees` reads both strictly.
Imports nothing else of `penstock.broker`.
"""

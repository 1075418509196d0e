"""A network of brokers over the topics of a fabric instead of links.

`network` publishes and receives events, `members` announces brokers and reads signed samples, `topics` reads and
writes topics over restarts of the fabric. `validity` carries validity statements.
May import from `penstock.broker`: `core`, `blinding`, `local`, `routing`, `sealing`, `matching`, `evolution`,
`wire`.
"""

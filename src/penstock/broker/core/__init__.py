"""The parts that a node is built on: identity, settings, clock, and the path of events between clients and router.

`event_path` is the path of an event from a client's message to its readers' frames, from top to bottom. `core`
carries out the outputs of the state machines, `exchange` connects the local broker to the router. `admission` bounds
the work for strangers, `reports` tells operators about links and refusals. `settings` has the settings of a node,
`clock` its time.
May import from `penstock.broker`: `blinding`, `local`, `routing`, `sealing`, `matching`, `evolution`, `wire`.
"""

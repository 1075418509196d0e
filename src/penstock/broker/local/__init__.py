"""The local broker: sessions, their requests, and what policy leaves of these.

`local_broker` is the entry point and keeps the active requests, `sessions` has the clients, `requests` what they ask
and get. `effective_requests` applies policy to requests, `decisions` asks `decide()` and remembers the answers.
`penstock.guard.enforce` hides attributes. `type_library` holds verified event types, `topics` maps topics to types.
May import from `penstock.broker`: `routing`, `sealing`, `matching`, `evolution`, `wire`.
"""

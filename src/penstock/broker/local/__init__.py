"""The local broker: sessions, their requests, and what policy leaves of these.

`local_broker` is the entry point, `sessions` the clients, `requests` what they ask and get. `effective_requests`
and `active_requests` apply policy to them, `decisions` asks `decide()` and remembers it. `type_library` holds
verified event types, `topics` maps topics to types.
May import from `penstock.broker`: `routing`, `sealing`, `matching`, `evolution`, `wire`.
"""

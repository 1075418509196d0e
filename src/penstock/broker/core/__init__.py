"""What the parts of a node share: identity, settings, clock, and the exchange between clients and router.

`core` carries out what the state machines ask for, `exchange` connects the local broker to the router. `admission`
bounds the work for strangers, `reports` tells operators about links and refusals.
May import from `penstock.broker`: `blinding`, `local`, `routing`, `sealing`, `matching`, `evolution`, `wire`.
"""

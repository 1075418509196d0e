"""Owners' policies at one broker: signed events, time-stamps, and when a revocation is complete.

`policy_keeper` applies policy events and signs time-stamps, `completeness` tells which brokers have enforced an event.
`statements` are the messages about policy, `gossip` exchanges them with neighbours. `validity` passes validity
statements along the dissemination trees of their issuers.
May import from `penstock.broker`: `wire`.
"""

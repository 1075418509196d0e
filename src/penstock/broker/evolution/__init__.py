"""Owners' policies at one broker: signed events, time-stamps, and when a revocation is complete.

`policy_keeper` applies policy events, `completeness` tells which brokers have enforced one, `stamp_issuer` signs
time-stamps. `statements` are the messages about policy, `gossip` exchanges them with neighbours.
May import from `penstock.broker`: `wire`.
"""

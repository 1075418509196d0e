"""Sealed events at a broker: blocks that travel unread, and filters on them.

`blocks` are sealed events between brokers, and the events that wait to be sealed. `filters` are sealed subscriptions.
`vault` seals and opens with the keys that are held. The cipher is in `crypto/sealer`.
May import from `penstock.broker`: `matching`, `evolution`, `wire`.
"""

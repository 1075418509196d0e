"""Sealed events at a broker: blocks that travel unread, and filters on them.

`blocks` are sealed events between brokers, `filters` sealed subscriptions, `vault` seals and opens with the keys
that are held, `block_builder` collects events into blocks. The cipher is in `crypto/sealer`.
May import from `penstock.broker`: `matching`, `evolution`, `wire`.
"""

"""The rule base: a fold of steps.

`base` is the entry point, `tables` its state, `records` the written form of steps.
May import from `penstock.moderator`: `detection`, `rules`.
"""

"""Finding conflicts.

`detector` finds them among many rules, `judge` compares two functions, `subscribers` compares publishers with
subscribers.
May import from `penstock.moderator`: `rules`.
"""

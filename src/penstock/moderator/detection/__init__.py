"""Finding conflicts.

`detector` is for many rules, `naive` the reference, `judge` compares two functions, `summaries` skips what surely
fits, `subscribers` compares publishers with subscribers.
May import from `penstock.moderator`: `rules`.
"""

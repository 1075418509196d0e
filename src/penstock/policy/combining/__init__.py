"""Combining algorithms: what several decisions are together.

`registry` has the table of all that are in the standard and finds an algorithm by its id; `algorithms` has the
standard's functions, `tuples` decision tuples.
May import from `penstock.policy`: `language`.
"""

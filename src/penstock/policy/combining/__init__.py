"""Combining algorithms: what several decisions are together.

`algorithms` has those of the standard, `tuples` decision tuples, `registry` finds one by its id.
May import from `penstock.policy`: `language`.
"""

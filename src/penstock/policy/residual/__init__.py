"""Partial evaluation: what is left of a policy if everything but the event is known.

`partial_evaluation` is the entry point, `conditions`, `formulas` and `selector` turn targets and conditions into
selectors.
May import from `penstock.policy`: `analysis`, `engine`, `syntax`, `combining`, `language`.
"""

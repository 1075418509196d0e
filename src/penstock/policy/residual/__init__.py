"""Partial evaluation: what remains of a policy if everything but the event is known.

`partial_evaluation` is the entry point, `formulas` turns conditions on the event into selectors.
May import from `penstock.policy`: `analysis`, `engine`, `syntax`, `combining`, `language`.
"""

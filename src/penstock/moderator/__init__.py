"""Conflicts between organisations' rules over one tree of event types (paper 1): who may publish and receive what.

`rules` are the values, `detection` finds conflicts, `base` is the rule base, `settlement` plans changes and fixes,
`polls` lets those affected vote, `files` reads and writes rule bases, `descriptions` explains them.
"""

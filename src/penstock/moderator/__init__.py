"""Conflicts between organisations' rules over one tree of event types (paper 1): who may publish what, to whom.

`rules` are what publishers and subscribers state, `vocabulary` says what they may speak about, `detect` finds where a
rule collides with those in force, and `allow` whether a subscriber and a publisher suit each other. `base` is what is
in force, a fold of `steps`; `requests` and `undo` plan them, and `scenario` runs whole stories. Everything here is
pure: what was asked before may be remembered, nothing is read or written.
"""

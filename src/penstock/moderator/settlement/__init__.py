"""Changes of a rule base, and how conflicts are settled.

`addition`, `removal`, `type_changes`, `lifetimes` and `undo` plan changes, `proposals` ranks the fixes of a
conflict, `consents` says who has to agree.
May import from `penstock.moderator`: `base`, `detection`, `rules`.
"""

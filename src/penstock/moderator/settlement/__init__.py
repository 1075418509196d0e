"""Changes of a rule base, and how conflicts are settled.

`addition`, `lifetimes`, `type_changes` and `undo` plan changes, `proposals` ranks the fixes of a conflict and has the
consents to them.
May import from `penstock.moderator`: `base`, `detection`, `rules`.
"""

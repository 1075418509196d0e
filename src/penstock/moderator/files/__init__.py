"""Rule bases and scenarios in files.

`rule_file` reads and writes YAML, `rule_bundle` signed S-expressions, `founding` the first statement of a rule
base, `scenarios` runs scenario files.
May import from `penstock.moderator`: `descriptions`, `polls`, `settlement`, `base`, `detection`, `rules`.
"""

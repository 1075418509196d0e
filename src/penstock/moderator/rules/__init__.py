"""Rules, conflicts and steps as values.

`rules` has rules, attribute lists and conflicts, `vocabulary` the types and attributes that rules can name, `steps` the
changes of a rule base, `rule_blocks` rules by id.
Imports nothing else of `penstock.moderator`.
"""

"""Rules, conflicts and steps as values.

`rules` and `lists` are what publishers state, `vocabulary` what they may speak about, `conflicts` what a detector
returns, `steps` what changes, `notation` the paper's notation, `rule_blocks` rules by id.
Imports nothing else of `penstock.moderator`.
"""

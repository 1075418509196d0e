"""`penstock store` and `penstock log`: where changes are kept, and what they are.

`stores` and `logs` have the commands, `options` names and opens a store for these and for the moderator's commands.
May import from `penstock.apps.cli`: `shared`.
"""

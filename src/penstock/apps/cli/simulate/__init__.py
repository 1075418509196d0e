"""`penstock simulate`: the real system in virtual time.

`commands` lists the verbs. `plans` tries domain plans and network plans before they are rolled out, and measures
service times.
May import from `penstock.apps.cli`: `shared`.
"""

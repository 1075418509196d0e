"""`penstock simulate`: the real system in virtual time.

`commands` lists the verbs. `scenarios` runs scenarios, and searches for seeds that violate something. `plans` tries
domain plans and network plans before they are rolled out, and measures service times.
May import from `penstock.apps.cli`: `shared`.
"""

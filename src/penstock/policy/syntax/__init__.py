"""Policies, requests and responses as text.

`xml`, `json` and `text` are the three forms; each parses policies into nodes, from which `builder` builds and checks
them. `cedar` compiles policies of another language to the same nodes. `forms` reads a policy in any form.
May import from `penstock.policy`: `combining`, `language`.
"""

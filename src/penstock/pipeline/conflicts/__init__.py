"""All conflicts in a rule base of any size.

`input` reads rules and types, `forms` compares functions, `detection` finds conflicts, `tables` writes them, `report`
opens what a run has found.
May import from `penstock.pipeline`: `audit`, `sealed`, `jetstream`, `tables`, `enforce`, `ingest`, `outputs`,
`frames`, `pages`.
"""

"""A policy on whole frames of events: admission and delivery.

`policy` loads it, `programs` says what must be evaluated, and `pushdown` what files can decide of it. `restrict` masks:
which attributes each reader sees, as columns. `admit` and `deliver` apply it, `layout` stores delivered rows, and
`manifest` says who reads which of them. `guard_results` reads what guards answered. May import from
`penstock.pipeline`: `ingest`, `outputs`, `frames`, `pages`.
"""

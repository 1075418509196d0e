"""Decisions by attribute-based policies on every row of a table.

`evaluate` is the entry point, `mapping` says which column is which attribute, `columns` reads columns of Arrow,
`vectors` decides them together.
May import from `penstock.pipeline`: `conflicts`, `audit`, `sealed`, `jetstream`, `enforce`, `ingest`, `outputs`,
`frames`.
"""

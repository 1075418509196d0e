"""A reader's rights as SQL for other engines. Nothing here imports Spark before it runs a statement on it.

`conditions` compiles selectors, `statements` makes views, row filters and column masks of them and compares existing
statements, `comparison` runs a view on data and compares it with `penstock.guard.Delivery`. May import from
`penstock.pipeline`: `enforce.policy`, `event_columns`.
"""

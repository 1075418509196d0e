"""Changes in ledgers, chained by hash.

`records` and `ledgers` are the values, `port` what an adapter must do, `memory`, `sqlite` and `postgres` the
adapters, `sql`, `schema` and `migrations` what the last two share. `folds` computes state, `backups` copies a
store, `urls` opens one.
May import from `penstock.store`: `files`, `crash_dumps`.
"""

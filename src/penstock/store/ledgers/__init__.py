"""Changes in ledgers, chained by hash.

`ledgers` chains changes by hash, appends and verifies them, and defines what an adapter must do. The adapters are
`memory`, `sql` (SQLite, and what all databases share) and `postgres`; `migrations` creates their tables. `folds`
computes state, `backups` copies a store, `urls` opens one.
May import from `penstock.store`: `files`, `crash_dumps`.
"""

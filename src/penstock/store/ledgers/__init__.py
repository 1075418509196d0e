"""Changes in ledgers, chained by hash.

`records` chains changes by hash, `ledgers` appends and verifies, `sql` stores rows. `port` is what an adapter must
do, `memory`, `sqlite` and `postgres` the adapters. `sql`, `schema` and `migrations` are what the last two share.
`folds` computes state, `backups` copies a store, `urls` opens one.
May import from `penstock.store`: `files`, `crash_dumps`.
"""

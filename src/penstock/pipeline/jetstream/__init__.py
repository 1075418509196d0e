"""NATS JetStream as a Python Data Source of Spark.

`source` registers it, `options` are its options, `reader` and `ranges` read, `writer` and `ledger` write exactly
once, `link` is the connection, `messages` turns messages into records.
May import from `penstock.pipeline`: `enforce`, `ingest`, `outputs`, `frames`.
"""

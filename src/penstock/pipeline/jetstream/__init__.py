"""NATS JetStream as a Python Data Source of Spark.

`source` registers it, `options` are its options, `reader` reads, `writer` writes exactly once, `link` is the
connection, `messages` turns messages into records. `sink` writes the batches of jobs, `scheme` registers addresses.
May import from `penstock.pipeline`: `tables`, `enforce`, `ingest`, `outputs`, `frames`, `pages`.
"""

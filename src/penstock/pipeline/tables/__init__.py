"""Tables as sources and sinks of jobs.

`addresses` says where rows come from and go, `columns` under which names. `files` are Parquet files and tables of
Spark's catalogue, `delta` are tables of Delta Lake, `iceberg` those of Apache Iceberg. `messages` makes messages of
rows.
May import from `penstock.pipeline`: `enforce`, `ingest`, `outputs`, `frames`.
"""

"""The pipeline's jobs, from one path to another, as a batch or as a stream.

`job` runs any job. `ingest`, `enforce`, `sealed`, `conflicts`, `evaluate` and `reports` are the jobs; `reports` also
writes HTML pages and reads refused records back. `schemes` lists the kinds of addresses,
`session_settings` configures Spark.
May import from `penstock.pipeline`: `evaluate`, `whatif`, `conflicts`, `audit`, `sealed`, `jetstream`, `tables`,
`enforce`, `ingest`, `outputs`, `frames`, `pages`.
"""

"""The pipeline's jobs, from one path to another, as a batch or as a stream.

`job` runs any job. `ingest`, `enforce`, `sealed`, `conflicts`, `evaluate` and `reports` are the jobs, `quarantine`
reads refused records back, `report_pages` writes HTML reports, `session_settings` configures Spark.
May import from `penstock.pipeline`: `evaluate`, `whatif`, `conflicts`, `audit`, `sealed`, `jetstream`, `enforce`,
`ingest`, `outputs`, `frames`.
"""

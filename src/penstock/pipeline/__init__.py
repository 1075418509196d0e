"""Spark: the same policy over logs and streams.

`jobs` are what `penstock pipeline` runs. `ingest` reads records, `enforce` admits and delivers events, `sealed` reads
and writes sealed logs, `jetstream` connects to NATS and `kafka` to Kafka. `conflicts`, `evaluate`, `audit`,
`component_audit` and `whatif` are analyses, and `comparison` is the result of the last. `views` are what a reader may
see of any DataFrame, and `view_source` the same of files, as a source.
`sql` writes a reader's rights for other engines, `small` runs jobs on small inputs without Spark. `tables` says where
rows come from and go besides folders of jobs.
`outputs` are the outputs of jobs, `pages` writes HTML, `frames` represents events and selectors in Spark, and
`shared_columns` events of many types. `commits` is what outputs say about themselves, `event_columns` names the columns
of events, `quarantine` shows records of one, and `file_system_errors` says what a store refuses.
"""

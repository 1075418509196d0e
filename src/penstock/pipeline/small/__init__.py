"""Jobs on small local inputs, without Spark: the same folders, commits, quarantine and counts.

`folders` reads and writes outputs, `records` turns records into events, `jobs` are ingest, admit, deliver and views,
`whatif` compares two policies. Events are admitted and delivered by `penstock.guard` itself. Either engine reads what
the other wrote.
May import from `penstock.pipeline`: `enforce.policy`, `enforce.manifest`, `ingest.mapping`, `ingest.texts`, `commits`,
`comparison`, `event_columns`.
"""

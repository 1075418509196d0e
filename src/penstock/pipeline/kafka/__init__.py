"""Kafka topics as sources and sinks of jobs.

`link` has options, clients and errors, `reader` reads topics as a Python Data Source of Spark, `sink` writes each batch
once, `scheme` registers addresses. `acl` writes a policy as access control lists.
May import from `penstock.pipeline`: `tables`, `enforce`, `ingest`, `outputs`, `frames`.
"""

"""Sealed logs: blocks of events in Parquet, a binary column for each attribute.

`log` is the format, `writer` seals, `reader` opens, `columns` converts blocks to Arrow, `signers` decides who may
sign, `messages` exchanges blocks with JetStream.
May import from `penstock.pipeline`: `jetstream`, `tables`, `enforce`, `ingest`, `outputs`, `frames`, `pages`.
"""

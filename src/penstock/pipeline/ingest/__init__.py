"""Records of others become typed events, or go to quarantine with a reason.

`ingest` is the entry point: it reads records, converts them, and sends what fails to quarantine. `records` has the
pieces of the input and turns texts into values, `formats` reads Parquet and CloudEvents, `csv_columns` reads CSV by
columns and `texts` one by one, `mapping` reads mapping files and their time formats, `event_frames` puts events and
refusals into one frame.
May import from `penstock.pipeline`: `outputs`, `frames`, `pages`.
"""

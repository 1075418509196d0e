"""Records of others become typed events, or go to quarantine with a reason.

`ingest` is the entry point: it reads records, converts them, and sends what fails to quarantine. `records` are the
pieces of the input, `formats` reads CSV, Parquet and CloudEvents, `mapping`, `time_formats` and `conversion` turn
texts into values, `event_frames` puts events and refusals into one frame.
May import from `penstock.pipeline`: `outputs`, `frames`.
"""

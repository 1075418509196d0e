"""Tables as sources and sinks of jobs.

`addresses` says where rows come from and go.
May import from `penstock.pipeline`: `outputs`, `frames`.
"""

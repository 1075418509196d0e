"""`penstock seal`, `penstock open` and `penstock proof`: sealed events in files.

`seal` seals the events of a file, `open` opens them, `proofs` has `penstock proof`. `options` has their common
options.
May import from `penstock.apps.cli`: `certs`, `store`, `shared`.
"""

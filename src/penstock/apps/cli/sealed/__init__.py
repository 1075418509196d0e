"""`penstock seal`, `penstock open` and `penstock proof`: sealed events in files.

One module for each command, and their common `options`.
May import from `penstock.apps.cli`: `certs`, `store`, `shared`.
"""

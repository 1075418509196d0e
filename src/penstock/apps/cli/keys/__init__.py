"""`penstock key` and `penstock keys`: keys in files, and the keys of sealed types at a broker.

`key_files` makes and shows keys in files, `broker_keys` shows, changes and fetches keys at a running broker.
May import from `penstock.apps.cli`: `moderator`, `net`, `policy`, `sealed`, `sexp`, `certs`, `shared`.
"""

"""`penstock key` and `penstock sealing`: your own signing keys, and the keys of sealed types.

`key_files` makes and shows signing keys in files, `key_rings` makes key-encryption keys and key rings, `broker_keys`
shows, changes and fetches keys at a running broker.
May import from `penstock.apps.cli`: `moderator`, `net`, `policy`, `sealed`, `sexp`, `certs`, `shared`.
"""

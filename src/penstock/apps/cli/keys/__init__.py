"""`penstock key` and `penstock keys`: keys in files, and the keys of sealed types at a broker.

`key_files` makes and shows keys in files, `broker_keys` asks a running broker about keys, `fetch` gets keys of old
epochs.
May import from `penstock.apps.cli`: `explain_policies`, `moderator`, `net`, `policy`, `sealed`, `sexp`, `certs`,
`store`, `shared`.
"""

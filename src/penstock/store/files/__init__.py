"""Files that Penstock reads and writes.

`files` has the safe primitives, `appended_lines` a log that is written quickly. `key_files`, `policy_files`,
`decision_file`, `sealed_files`, `contexts` and `client_files` are formats. `name_book` resolves written names to
principals, `strict_tables` reads TOML tables strictly, `named_files` reads the files that a configuration file names.
May import from `penstock.store`: `crash_dumps`.
"""

"""Files that Penstock reads and writes.

`files` has the safe primitives. `key_rings`, `key_folder`, `policy_files`, `decision_file`, `sealed_files`,
`contexts` and `client_files` are formats, `name_book` finds the principal that a word means, `strict_tables`,
`named_files` and `named_policies` read what configuration files name.
May import from `penstock.store`: `crash_dumps`.
"""

"""What commands share: the session, options, files, names, and how answers look.

`commands` declares a command and prints its answer, `session` and `groups` run it. `options`, `attributes`, `names`,
`files`, `credentials` and `events` read its input. `describe` and `terminal` show the answer, `broker_client` connects
to a broker.
Imports nothing else of `penstock.apps.cli`.
"""

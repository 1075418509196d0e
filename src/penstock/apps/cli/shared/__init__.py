"""What commands share: the session, options, files, names, and how answers look.

`commands` declares a command and prints its answer, `session` runs it. `options`, `decision_options`, `nats_options`,
`names`, `files`, `credentials`, `events` and `stores` read its input. `describe` and `terminal` show the answer,
`broker_client` connects to a broker, and `revocations` asks it which certificates are revoked. `component_process` runs
components of a domain.
`renames` has the old spellings of commands and options.
Imports nothing else of `penstock.apps.cli`.
"""

"""Persistent data: append-only ledgers, and files.

- `ledgers` keeps changes, chained by hash, in memory or in SQL.
- `files` reads and writes Penstock's files safely.
- `crash_dumps` keeps memory with keys out of crash dumps.
"""

from penstock.store.files.decision_file import DecisionFile as DecisionFile

"""The steps from one form of a database to the next, run by Alembic in the order of their numbers.

- `r0001_changes` creates the tables of ledgers and changes.
- `r0002_snapshots` creates the table of snapshots.
- `r0003_requests` creates the table of requests' outcomes.
"""

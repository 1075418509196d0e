"""The tables of record stores in SQL databases. How a database gets them, and from which form, is in `migrations`."""

from typing import Final

from sqlalchemy import BigInteger, Column, Index, LargeBinary, MetaData, Table, Text

METADATA: Final = MetaData()
VERSION_TABLE: Final = "penstock_version"

LEDGERS: Final = Table(
    "penstock_ledgers",
    METADATA,
    Column("ledger", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("at", BigInteger, nullable=False),
)
"""The head of each ledger: what writers compare and swap."""

CHANGES: Final = Table(
    "penstock_changes",
    METADATA,
    Column("ledger", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("who", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("before", LargeBinary),
    Column("after", LargeBinary),
    Column("hash", LargeBinary, nullable=False),
    Index("penstock_changes_at", "ledger", "at", "number"),
)
"""The changes, a row each; triggers refuse to alter one."""

SNAPSHOTS: Final = Table(
    "penstock_snapshots",
    METADATA,
    Column("ledger", Text, primary_key=True),
    Column("fold", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("digest", LargeBinary, nullable=False),
)
"""States of folds, which are only a cache."""

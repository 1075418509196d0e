"""Records in a file, by SQLite: no server, one writer at a time, any number of readers beside it.

The journal is a write-ahead log, so that readers and the writer do not wait for each other, and a change is on the disk
when it is acknowledged (`synchronous=FULL`). Whoever writes says so at the beginning of the transaction: one that
begins as a reader could not wait for its turn.
"""

import os
import sqlite3
from pathlib import Path

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from penstock.errors import FailedError, printable
from penstock.store.files.files import reason
from penstock.store.ledgers.sql import WRITING, SqlRecords
from penstock.store.limits import STORE_LIMITS, StoreLimits

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class SqliteRecords(SqlRecords):
    """See the module. A file that is made is for its owner alone.

    Raises `FailedError` (`store.missing`) where there is no file and none is to be made, and `file.unwritable`.
    """

    def __init__(self, path: Path, *, create: bool = False, limits: StoreLimits = STORE_LIMITS) -> None:
        url = f"sqlite:{path}"
        _find(path, url, create=create)
        engine = create_engine(
            URL.create("sqlite", database=str(path)),
            connect_args={"timeout": limits.store_wait / 1000, "check_same_thread": False},
            hide_parameters=True,
        )
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
        super().__init__(engine, url, limits=limits)

    def reason(self, error: DBAPIError) -> str:
        """Say why SQLite failed."""
        if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in _BUSY:
            return ""
        known = isinstance(error, OperationalError) or type(error.orig) is sqlite3.DatabaseError
        return printable(str(error.orig)) if known else type(error.orig).__name__


def _find(path: Path, url: str, *, create: bool) -> None:
    if path.exists():
        return
    if not create:
        raise FailedError(
            "store.missing", f"there is no file `{path}`", hint=f"`penstock store migrate {url}` makes one"
        )
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise FailedError("file.unwritable", f"`{path}` cannot be written: {reason(error)}") from error


def _prepare(connection: sqlite3.Connection, _entry: ConnectionPoolEntry) -> None:
    # Transactions are begun below; the driver would begin its own, later and as readers.
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "trusted_schema=OFF"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    writing = connection.get_execution_options().get(WRITING)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

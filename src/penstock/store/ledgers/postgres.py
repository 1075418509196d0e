"""Records in PostgreSQL, for stores that several machines share. Needs the extra `penstock[postgres]`.

`READ COMMITTED` is enough: one UPDATE replaces the head's row, and a second writer waits for it and then evaluates its
condition again. If the server acknowledges before the disk does, the connection turns that off.
"""

import psycopg
from sqlalchemy import URL, create_engine, event
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from penstock.store.ledgers.sql import SqlRecords
from penstock.store.limits import STORE_LIMITS, StoreLimits

#: connection timeout in seconds
_CONNECT = 10
_WAIT_FOR_THE_DISK = (
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
)


class PostgresRecords(SqlRecords):
    """Records in PostgreSQL. `shown` is the URL without the password."""

    def __init__(self, url: URL, shown: str, *, limits: StoreLimits = STORE_LIMITS) -> None:
        engine = create_engine(
            url.set(drivername="postgresql+psycopg"),
            connect_args={
                "connect_timeout": _CONNECT,
                "options": f"-c lock_timeout={limits.store_wait} -c timezone=UTC",
            },
            isolation_level="READ COMMITTED",
            pool_pre_ping=True,
            hide_parameters=True,
        )
        event.listen(engine, "connect", _prepare)
        super().__init__(engine, shown, limits=limits)

    def reason(self, error: DBAPIError) -> str:
        """Return why the server failed: its message if that is about itself, otherwise the class of the error."""
        problem = error.orig
        if isinstance(problem, (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)):
            return ""
        if isinstance(error, OperationalError) and str(problem).strip():
            return str(problem).strip().splitlines()[0]
        return type(problem).__name__


def _prepare(connection: psycopg.Connection, _entry: ConnectionPoolEntry) -> None:
    connection.execute(_WAIT_FOR_THE_DISK)
    connection.commit()

"""Records in an SQL database: tables and migrations, the statements that all databases share, and SQLite.

Concurrent writers are detected by the head: the row of `penstock_ledgers` is replaced only if it is still the
expected one, in the transaction that adds the changes. The database lets one writer do so; the others get a conflict.
Migrations cannot be undone: restore a backup instead.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Connection,
    Engine,
    Index,
    LargeBinary,
    MetaData,
    Table,
    Text,
    create_engine,
    delete,
    event,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry

from penstock.errors import FailedError, RefusedError, printable
from penstock.store.files.files import reason
from penstock.store.ledgers.ledgers import EMPTY, FoldSnapshot, LedgerHead, Row, conflict, head_of, head_ticks
from penstock.store.limits import STORE_LIMITS, StoreLimits

# ----------------------------------------------------------------------------------------------------------------------
# The tables. `migrations` creates them, and updates older forms.


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
"""The head of each ledger, which writers compare and swap."""

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
"""The changes, one per row; triggers refuse to alter them."""

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
"""States of folds: a cache."""

REQUESTS: Final = Table(
    "penstock_requests",
    METADATA,
    Column("ledger", Text, primary_key=True),
    Column("request", LargeBinary, primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("outcome", Text, nullable=False),
    Index("penstock_requests_at", "ledger", "at"),
)
"""The outcomes of recent requests, so that services that share a store answer each once."""


# ----------------------------------------------------------------------------------------------------------------------
# The form of a database, and migrations to the newest one. They cannot be undone: restore a backup instead.


_STEPS: Final = Path(__file__).parent / "migrations"
#: an arbitrary number that no other program locks
_LOCK: Final = 0x70656E73


def newest() -> str:
    """Return the form that this Penstock writes."""
    head = _script().get_current_head()
    return head or ""


def current(connection: Connection) -> str:
    """Return the form of a database; empty if it has none of Penstock's tables."""
    found = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_heads()
    return found[0] if found else ""


def verify_form(connection: Connection, url: str) -> None:
    """Check that a database has the form that this Penstock reads and writes.

    Raises `FailedError` (`store.missing`) and `RefusedError` (`store.old`, `store.newer`).
    """
    form = current(connection)
    if form == newest():
        return
    migrate_hint = f"`penstock store migrate {url}`"
    if not form:
        raise FailedError("store.missing", f"`{url}` does not contain a store", hint=f"{migrate_hint} creates one")
    verify_not_newer(form, url)
    raise RefusedError(
        "store.old",
        f"`{url}` has the form {form}, and this Penstock needs {newest()}",
        hint=f"back it up, then {migrate_hint}",
    )


def verify_not_newer(form: str, url: str) -> None:
    """Raise `RefusedError` (`store.newer`) if this Penstock does not know the form."""
    if form and form not in {script.revision for script in _script().walk_revisions()}:
        raise RefusedError(
            "store.newer",
            f"`{url}` has the form {form[:40]}, and this Penstock knows {newest()} at most",
            hint="use the Penstock that wrote it, or a newer one",
        )


def migrate(connection: Connection, url: str, to: str = "head") -> tuple[str, str]:
    """Migrate a database within the caller's transaction; return the form before and after.

    Raises `RefusedError` (`store.newer`).
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    before = current(connection)
    verify_not_newer(before, url)

    def steps(revision: Any, _context: Any) -> Any:
        return _script()._upgrade_revs(to, revision)  # noqa: SLF001  # what Alembic's own command calls

    with EnvironmentContext(_config(), _script(), fn=steps, destination_rev=to) as environment:
        environment.configure(connection=connection, version_table=VERSION_TABLE)
        environment.run_migrations()
    return before, current(connection)


@cache
def _script() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    config = Config()
    for option in ("script_location", "version_locations"):
        config.set_main_option(option, str(_STEPS).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    return config


#: the execution option of writers' transactions, for adapters that begin them differently
WRITING: Final = "penstock_writing"


class SqlRecords:
    """See `RecordStore`. The database must have the newest form."""

    def __init__(self, engine: Engine, url: str, *, limits: StoreLimits = STORE_LIMITS) -> None:
        self.url = url
        self._engine = engine
        self._limits = limits

    @property
    def version(self) -> str:
        """The form of the tables."""
        with self._reading() as connection:
            return current(connection)

    def verify_form(self) -> None:
        """Raise `FailedError` (`store.missing`) or `RefusedError` (`store.old`, `store.newer`)."""
        with self._reading() as connection:
            verify_form(connection, self.url)

    def migrate(self, to: str = "head", *, dry_run: bool = False) -> tuple[str, str]:
        """Migrate the database to the newest form, completely or not at all; return the form before and after.

        Raises `RefusedError` (`store.newer`).
        """
        if dry_run:
            before = self.version
            verify_not_newer(before, self.url)
            return before, newest()
        with self._writing() as connection:
            return migrate(connection, self.url, to)

    def heads(self) -> Mapping[str, LedgerHead]:
        """Return all heads."""
        with self._reading() as connection:
            return {row.ledger: head_of(row.number, row.hash, row.at) for row in connection.execute(select(LEDGERS))}

    def head(self, ledger: str) -> LedgerHead:
        """Return one head."""
        with self._reading() as connection:
            row = connection.execute(select(LEDGERS).where(LEDGERS.c.ledger == ledger)).one_or_none()
        return EMPTY if row is None else head_of(row.number, row.hash, row.at)

    def append(self, ledger: str, expected: LedgerHead, head: LedgerHead, rows: Iterable[Row]) -> None:
        """Add rows where the head is the expected one. Raises `RefusedError` (`store.conflict`)."""
        remaining = iter(rows)
        try:
            with self._writing() as connection:
                _swap(connection, ledger, expected, head)
                while page := [
                    {"ledger": ledger, **row._asdict()} for row in islice(remaining, self._limits.store_page)
                ]:
                    connection.execute(insert(CHANGES), page)
        except IntegrityError:
            # Another writer inserted the first change, or this one, meanwhile.
            raise conflict(ledger) from None

    def rows(self, ledger: str, first: int, last: int) -> list[Row]:
        """Return rows by number."""
        columns = (CHANGES.c[name] for name in Row._fields)
        wanted = select(*columns).where(CHANGES.c.ledger == ledger, CHANGES.c.number.between(first, last))
        with self._reading() as connection:
            return [Row(*row) for row in connection.execute(wanted.order_by(CHANGES.c.number))]

    def last_until(self, ledger: str, at: int) -> int:
        """Return the number of the last change until an instant."""
        numbers = select(CHANGES.c.number).where(CHANGES.c.ledger == ledger, CHANGES.c.at <= at)
        with self._reading() as connection:
            found = connection.execute(numbers.order_by(CHANGES.c.at.desc(), CHANGES.c.number.desc()).limit(1)).scalar()
        return found or 0

    def snapshot(self, ledger: str, fold: str) -> tuple[FoldSnapshot, bytes] | None:
        """Return a fold's snapshot and its digest."""
        table = SNAPSHOTS.c
        with self._reading() as connection:
            row = connection.execute(select(SNAPSHOTS).where(table.ledger == ledger, table.fold == fold)).one_or_none()
        return (
            None
            if row is None
            else (FoldSnapshot(ledger, fold, LedgerHead(row.number, row.hash), row.data), row.digest)
        )

    def keep_snapshot(self, snapshot: FoldSnapshot) -> None:
        """Store a snapshot, unless a more recent one is stored."""
        table = SNAPSHOTS.c
        place = (table.ledger == snapshot.ledger, table.fold == snapshot.fold)
        row = {
            "ledger": snapshot.ledger,
            "fold": snapshot.fold,
            "number": snapshot.head.number,
            "hash": snapshot.head.hash,
            "data": snapshot.data,
            "digest": snapshot.digest,
        }
        try:
            with self._writing() as connection:
                kept = connection.execute(select(table.number).where(*place)).scalar()
                if kept is not None and kept >= snapshot.head.number:
                    return
                connection.execute(delete(SNAPSHOTS).where(*place))
                connection.execute(insert(SNAPSHOTS), row)
        except IntegrityError:
            return  # another writer stores one at the same time, and it is only a cache

    def outcome(self, ledger: str, request: bytes) -> str | None:
        """Return the outcome of a request."""
        table = REQUESTS.c
        place = (table.ledger == ledger, table.request == request)
        with self._reading() as connection:
            return connection.execute(select(table.outcome).where(*place)).scalar()

    def settle(self, ledger: str, request: bytes, outcome: str, at: int, oldest: int) -> bool:
        """Store an outcome, unless one is stored."""
        table = REQUESTS.c
        row = {"ledger": ledger, "request": request, "at": at, "outcome": outcome}
        try:
            with self._writing() as connection:
                connection.execute(delete(REQUESTS).where(table.ledger == ledger, table.at < oldest))
                connection.execute(insert(REQUESTS), row)
        except IntegrityError:
            return False
        return True

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._failing(), self._engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._failing(), self._engine.connect() as plain:
            connection = plain.execution_options(**{WRITING: True})
            with connection.begin():
                yield connection

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Report that the database failed, without the data."""
        try:
            yield
        except IntegrityError:
            raise
        except PoolTimeoutError:
            raise self._busy() from None
        except DBAPIError as error:
            reason = self.reason(error)
            raise (self._busy() if reason == "" else self._failed(reason)) from None
        except SQLAlchemyError as error:
            raise self._failed(type(error).__name__) from None

    def reason(self, error: DBAPIError) -> str:
        """Return why a database failed, without the data; an empty string if others locked it for too long."""
        return type(error.orig).__name__

    def _busy(self) -> FailedError:
        return FailedError(
            "store.busy", f"others have locked `{self.url}` for too long", hint="try again; check who else writes to it"
        )

    def _failed(self, reason: str) -> FailedError:
        return FailedError("store.failed", f"`{self.url}`: {reason}", hint="check that the database runs and is whole")


def _swap(connection: Connection, ledger: str, expected: LedgerHead, head: LedgerHead) -> None:
    values = {"number": head.number, "hash": head.hash, "at": head_ticks(head)}
    if expected == EMPTY:
        connection.execute(insert(LEDGERS), {"ledger": ledger, **values})
        return
    table = LEDGERS.c
    place = (table.ledger == ledger, table.number == expected.number, table.hash == expected.hash)
    if connection.execute(update(LEDGERS).where(*place).values(values)).rowcount != 1:
        raise conflict(ledger)


_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class SqliteRecords(SqlRecords):
    """Records in an SQLite file: no server, one writer at a time, any number of concurrent readers.

    The journal is a write-ahead log, so that readers and the writer do not wait for each other, and a change is on the
    disk when it is acknowledged (`synchronous=FULL`). A writer says so at the beginning of its transaction, because a
    transaction that begins as a reader could not wait for its turn. A new file is readable by its owner only.

    Raises `FailedError`: `store.missing` if the file does not exist, and is not to be created; `file.unwritable`.
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
        """Return why SQLite failed; an empty string if others locked the file for too long."""
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
    # `_begin` begins transactions; the driver would begin its own, later and as readers.
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "trusted_schema=OFF"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    writing = connection.get_execution_options().get(WRITING)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

"""Records in an SQL database: the same statements for all; what differs is how one is connected to.

Concurrent writers are detected by the head: the row of `penstock_ledgers` is replaced only if it is still the
expected one, in the transaction that adds the changes. The database lets one of several do so; the others find it gone.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Final

from sqlalchemy import Connection, Engine, delete, insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from penstock.errors import FailedError
from penstock.store.ledgers import schema
from penstock.store.ledgers.port import FoldSnapshot, conflict
from penstock.store.ledgers.records import EMPTY, LedgerHead, Row, head_of, head_ticks
from penstock.store.ledgers.schema import CHANGES, LEDGERS, SNAPSHOTS
from penstock.store.limits import STORE_LIMITS, StoreLimits

#: for adapters that begin transactions of writers in another way
WRITING: Final = "penstock_writing"


class SqlRecords:
    """See `Records`. The database must have the newest form (`schema`)."""

    def __init__(self, engine: Engine, url: str, *, limits: StoreLimits = STORE_LIMITS) -> None:
        self.url = url
        self._engine = engine
        self._limits = limits

    @property
    def version(self) -> str:
        """The form of the tables."""
        with self._reading() as connection:
            return schema.current(connection)

    def verify_form(self) -> None:
        """Raise `FailedError` (`store.missing`) or `RefusedError` (`store.old`, `store.newer`)."""
        with self._reading() as connection:
            schema.verify_form(connection, self.url)

    def migrate(self, to: str = "head", *, dry_run: bool = False) -> tuple[str, str]:
        """Bring the database into the newest form, as a whole; return the form before and after.

        Raises `RefusedError` (`store.newer`).
        """
        if dry_run:
            before = self.version
            schema.verify_not_newer(before, self.url)
            return before, schema.newest()
        with self._writing() as connection:
            return schema.migrate(connection, self.url, to)

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
            # Another wrote the first change, or this one, between our question and our answer.
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
        """Keep a snapshot that is not behind the one that is kept."""
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
            return  # another keeps one at the same time, and it is only a cache

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
        """Return why a database failed, without the data; nothing if others locked it for too long."""
        return type(error.orig).__name__

    def _busy(self) -> FailedError:
        return FailedError(
            "store.busy", f"`{self.url}` is held by others for too long", hint="try again; see who else writes to it"
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

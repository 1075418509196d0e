"""Stores and their ledgers: changes are chained when they are written, and verified whenever they are read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

from penstock.errors import LimitError
from penstock.store.ledgers.port import FoldSnapshot, RecordStore, conflict
from penstock.store.ledgers.records import (
    EMPTY,
    Change,
    LedgerHead,
    NewChange,
    broken,
    chain,
    check_ledger_name,
    ticks,
    to_row,
    verify_row,
)
from penstock.store.limits import STORE_LIMITS, StoreLimits

Told = Callable[[int], None]
"""Receives the number of each change when it is done, for progress output."""


def quiet(_number: int) -> None:
    """Tell nobody."""


class Ledger:
    """One chain of changes in a store. It has no state of its own: every call reads the store."""

    def __init__(self, records: RecordStore, name: str, *, limits: StoreLimits = STORE_LIMITS) -> None:
        check_ledger_name(name, limits)
        self.name = name
        self._records = records
        self._limits = limits

    def head(self) -> LedgerHead:
        """Return how far it has come. Raises `FailedError` (`store.failed`, `store.busy`), as all that follows."""
        return self._records.head(self.name)

    def append(self, expected: LedgerHead, entries: Sequence[NewChange]) -> tuple[Change, ...]:
        """Add changes behind a head, all or none, and return them as they were kept; then they are safe on the disk.

        Raises `RefusedError` (`store.conflict`) where the ledger has come further, and `LimitError` (`store.limit`). A
        `FailedError` leaves open whether they were kept: the head tells.
        """
        # The time of the last change is asked for, since a head may come from somebody who did not write it down.
        head = self.head()
        if head != expected:
            raise conflict(self.name)
        changes = chain(self.name, head, entries, limits=self._limits)
        if changes:
            self._records.append(self.name, head, changes[-1].head, map(to_row, changes))
        return tuple(changes)

    def read(self, first: int = 1, last: int | None = None) -> Iterator[Change]:
        """Yield changes in their order, each verified; the last of all is held against the head.

        Raises `RefusedError` (`store.broken`) at the first change that is not as it was written.
        """
        head = self.head()
        end = head.number if last is None else min(last, head.number)
        before = self._at(first - 1) if first <= end else head
        while before.number < end:
            page = min(before.number + self._limits.store_page, end)
            rows = self._records.rows(self.name, before.number + 1, page)
            for row in rows:
                change = verify_row(self.name, before, row)
                if change.number == head.number and (change.hash, change.when) != (head.hash, head.when):
                    raise broken(self.name, change.number, "is not the one that the head names")
                yield change
                before = change.head
            if before.number < page:
                raise broken(self.name, before.number + 1, "is missing")

    def at(self, instant: datetime) -> LedgerHead:
        """Return the head as it was at an instant."""
        number = self._records.last_until(self.name, ticks(instant))
        return next((change.head for change in self.read(number, number)), EMPTY) if number else EMPTY

    def verify(self, known: LedgerHead = EMPTY, told: Told = quiet) -> LedgerHead:
        """Verify all changes, and that none comes after the head; return the head.

        A head that was written down elsewhere shows also what a whole new chain would hide. Raises `RefusedError`
        (`store.broken`) and names the first change that is broken.
        """
        head, behind = EMPTY, True
        while behind:
            for change in self.read(head.number + 1):
                head = change.head
                told(head.number)
                if head.number == known.number and head != known:
                    raise broken(self.name, head.number, "is another than the one that was noted")
            behind = bool(self._records.rows(self.name, head.number + 1, head.number + 1))
            # Others may be writing: then the head has moved as well.
            if behind and self.head().number <= head.number:
                raise broken(self.name, head.number + 1, "stands behind the head")
        if known.number > head.number:
            raise broken(self.name, head.number + 1, "is missing, though a later one was noted")
        return head

    def snapshot(self, fold: str) -> FoldSnapshot | None:
        """Return a fold's snapshot if it is intact and belongs to this chain; None otherwise."""
        kept = self._records.snapshot(self.name, fold)
        if kept is None or kept[0].digest != kept[1]:
            return None
        number = kept[0].head.number
        at_head = [row for row in self._records.rows(self.name, number, number) if row.hash == kept[0].head.hash]
        return kept[0] if at_head else None

    def keep_snapshot(self, fold: str, head: LedgerHead, data: bytes) -> None:
        """Keep the state of a fold at a head. Raises `LimitError` (`store.limit`)."""
        if len(data) > self._limits.store_snapshot_bytes:
            raise LimitError("store.limit", f"a snapshot of {len(data)} bytes")
        self._records.keep_snapshot(FoldSnapshot(self.name, fold, head, data))

    def _at(self, number: int) -> LedgerHead:
        """Return the head at a number, as its row says; the change after it shows whether that is so."""
        if number <= 0:
            return EMPTY
        rows = self._records.rows(self.name, number, number)
        if not rows:
            raise broken(self.name, number, "is missing")
        return LedgerHead(number, rows[0].hash)


class Store:
    """The ledgers of one place; a context manager that closes it."""

    def __init__(self, records: RecordStore, *, limits: StoreLimits = STORE_LIMITS) -> None:
        self.records = records
        self._limits = limits

    @property
    def url(self) -> str:
        """Return its URL without the password."""
        return self.records.url

    def heads(self) -> Mapping[str, LedgerHead]:
        """Return the heads of all ledgers, by name, as they were at one moment."""
        return dict(sorted(self.records.heads().items()))

    def ledger(self, name: str) -> Ledger:
        """Return a ledger, which begins with its first change. Raises `MalformedError` (`store.value`)."""
        return Ledger(self.records, name, limits=self._limits)

    def close(self) -> None:
        """Let go of files and connections."""
        self.records.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

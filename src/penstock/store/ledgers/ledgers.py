"""Ledgers: changes that are chained by hash when they are written, and verified whenever they are read.

A ledger is a chain of changes, numbered from 1. The hash of a change is the SHA-256 of its canonical bytes:

    (penstock-change <ledger> <number> <hash of the previous change> <who> <microseconds since 1970> <kind> <why>
     [(before <bytes>)] [(after <bytes>)])

The hash before the first change is 32 zero bytes. So the hash of the last change, the head, fixes all changes: to
alter, drop or move one gives another head. Times in a ledger never decrease: if the clock is behind the last change,
the new change gets the last change's time. `before` and `after` are encoded by the code that makes the change, with
one encoding per value; None means absent.

Adapters (`RecordStore`) store rows and do not interpret them. Only an adapter can let one of several writers win:

1. `append` stores all its rows and the new head, or nothing.
2. It does so only if the head is the expected one. Of two writers that expect the same head, one gets `store.conflict`.
3. After it has returned, the rows survive a crash of this process and of the server.

Everything is synchronous and can be called from several threads: the code that decides about changes is synchronous
and pure, and components on an event loop hand their calls to a thread.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from operator import index
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self

from penstock.codec.sexp import SExp, canonical
from penstock.errors import LimitError, MalformedError, RefusedError
from penstock.model.instants import in_utc
from penstock.model.principals import Principal
from penstock.store.limits import STORE_LIMITS, StoreLimits

BEGINNING: Final = bytes(32)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TICK: Final = timedelta(microseconds=1)
_NAME: Final = re.compile(r"[a-z][a-z0-9._/-]*", re.ASCII)
_KIND: Final = re.compile(r"[a-z][a-z0-9.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class LedgerHead:
    """The end of a ledger: the number, hash and time of its last change. The time is not compared."""

    number: int = 0
    hash: bytes = BEGINNING
    when: datetime | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"Head({self.number}, {self.hash.hex()[:12]})"


EMPTY: Final = LedgerHead()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewChange:
    """A change to store. `kind` is a short word, `why` is one line for people.

    Raises `MalformedError` (`store.value`, `value.zone`) and `LimitError` (`store.limit`).
    """

    who: Principal
    when: datetime
    kind: str
    why: str = ""
    # These contain rules and rights, which must not appear in logs.
    before: bytes | None = field(default=None, repr=False)
    after: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "when", in_utc(self.when))
        if not _KIND.fullmatch(self.kind):
            raise MalformedError("store.value", "the kind of a change must be a word of a-z, 0-9, `.` and `-`")
        if not self.why.isprintable():
            raise MalformedError("store.value", "the reason of a change must be one line of printable text")

    def check(self, limits: StoreLimits) -> None:
        """Raise `LimitError` (`store.limit`) if a part is too large to be stored."""
        sizes = (
            ("kind", len(self.kind), limits.store_kind_length),
            ("reason", len(self.why), limits.store_why_length),
            ("state before", len(self.before or b""), limits.store_value_bytes),
            ("state after", len(self.after or b""), limits.store_value_bytes),
        )
        for what, size, limit in sizes:
            if size > limit:
                raise LimitError("store.limit", f"the {what} of a change has {size} bytes; at most {limit} are allowed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(NewChange):
    """A change with its place in the chain. Its hash was computed from its bytes."""

    ledger: str
    number: int
    previous: bytes
    hash: bytes

    @property
    def head(self) -> LedgerHead:
        """The head of the ledger when this was its last change."""
        return LedgerHead(self.number, self.hash, self.when)


class Row(NamedTuple):
    """A change as an adapter stores it, not verified. `at` counts microseconds since 1970."""

    number: int
    at: int
    who: str
    kind: str
    why: str
    before: bytes | None
    after: bytes | None
    hash: bytes


def check_ledger_name(name: str, limits: StoreLimits = STORE_LIMITS) -> None:
    """Raise `MalformedError` (`store.value`) if a ledger cannot have this name."""
    if not _NAME.fullmatch(name) or len(name) > limits.store_name_length:
        raise MalformedError(
            "store.value",
            f"`{name[:80]}` is not a valid ledger name",
            hint=f"at most {limits.store_name_length} of a-z, 0-9 and `._/-`, a letter first",
        )


def chain(
    ledger: str, head: LedgerHead, entries: Sequence[NewChange], *, limits: StoreLimits = STORE_LIMITS
) -> list[Change]:
    """Return entries as the changes that follow a head. Raises `LimitError` (`store.limit`)."""
    if len(entries) > limits.store_batch:
        raise LimitError("store.limit", f"{len(entries)} changes in one call", hint=f"at most {limits.store_batch}")
    found: list[Change] = []
    for entry in entries:
        entry.check(limits)
        when = entry.when if head.when is None else max(entry.when, head.when)
        change = Change(
            who=entry.who,
            when=when,
            kind=entry.kind,
            why=entry.why,
            before=entry.before,
            after=entry.after,
            ledger=ledger,
            number=head.number + 1,
            previous=head.hash,
            hash=_digest(ledger, head, str(entry.who), ticks(when), entry),
        )
        found.append(change)
        head = change.head
    return found


def to_row(change: Change) -> Row:
    """Return a change as it is stored."""
    return Row(
        change.number,
        ticks(change.when),
        str(change.who),
        change.kind,
        change.why,
        change.before,
        change.after,
        change.hash,
    )


def verify_row(ledger: str, head: LedgerHead, row: Row) -> Change:
    """Return the change in a row if it follows the head. Raises `RefusedError` (`store.broken`)."""
    if row.number != head.number + 1:
        raise broken(ledger, head.number + 1, "is missing")
    try:
        change = Change(
            who=Principal.parse(row.who),
            when=from_ticks(row.at),
            kind=row.kind,
            why=row.why,
            before=row.before,
            after=row.after,
            ledger=ledger,
            number=row.number,
            previous=head.hash,
            hash=row.hash,
        )
        digest = _digest(ledger, head, row.who, index(row.at), change)
    except (MalformedError, TypeError, ValueError, OverflowError, AttributeError):
        # A column of a database can contain anything. `from None`: the cause would quote it.
        raise broken(ledger, row.number, "cannot be read") from None
    if digest != row.hash:
        raise broken(ledger, row.number, "was altered, or does not follow the previous one")
    if head.when is not None and change.when < head.when:
        raise broken(ledger, row.number, "is older than the previous one")
    return change


def broken(ledger: str, number: int, what: str) -> RefusedError:
    """Return the error for a change that was altered, or is missing."""
    return RefusedError(
        "store.broken",
        f"change {number} of `{ledger}` {what}",
        hint="restore a backup whose head you know; see `penstock store restore`",
        ledger=ledger,
        number=number,
    )


def ticks(instant: datetime) -> int:
    """Return the microseconds since 1970."""
    return (in_utc(instant) - _EPOCH) // _TICK


def from_ticks(count: int) -> datetime:
    """Return the instant that is `count` microseconds after 1970. Raises `OverflowError` and `TypeError`."""
    return _EPOCH + count * _TICK


def head_of(number: int, digest: bytes, at: int) -> LedgerHead:
    """Return a stored head, not verified. It has no time if the stored one is not valid."""
    try:
        return LedgerHead(number, digest, from_ticks(at))
    except (TypeError, OverflowError):
        return LedgerHead(number, digest)


def head_ticks(head: LedgerHead) -> int:
    """Return the time of a head as it is stored."""
    return 0 if head.when is None else ticks(head.when)


def _digest(ledger: str, head: LedgerHead, who: str, at: int, entry: NewChange) -> bytes:
    states: list[SExp] = []
    if entry.before is not None:
        states.append((b"before", entry.before))
    if entry.after is not None:
        states.append((b"after", entry.after))
    place = (ledger.encode(), b"%d" % (head.number + 1), head.hash)
    about = (who.encode(), b"%d" % at, entry.kind.encode(), entry.why.encode())
    return sha256(canonical((b"penstock-change", *place, *about, *states))).digest()


@dataclass(frozen=True, slots=True)
class FoldSnapshot:
    """The state of a fold at a head: a cache, which can be recomputed at any time."""

    ledger: str
    fold: str
    head: LedgerHead
    data: bytes = field(repr=False)

    @property
    def digest(self) -> bytes:
        """Return the digest that detects a damaged snapshot."""
        place = (self.ledger.encode(), self.fold.encode(), b"%d" % self.head.number, self.head.hash)
        return sha256(canonical((b"penstock-snapshot", *place, self.data))).digest()


class RecordStore(Protocol):
    """An adapter. Each method raises `FailedError` (`store.failed`, `store.busy`) if its database fails."""

    @property
    def url(self) -> str:
        """Return the URL of the records without the password."""
        ...

    @property
    def version(self) -> str:
        """The version of the database schema; empty if records end with the process."""
        ...

    def heads(self) -> Mapping[str, LedgerHead]:
        """Return the heads of all ledgers at one moment."""
        ...

    def head(self, ledger: str) -> LedgerHead:
        """Return the head of a ledger; `EMPTY` if it has no changes."""
        ...

    def append(self, ledger: str, expected: LedgerHead, head: LedgerHead, rows: Iterable[Row]) -> None:
        """Append rows and set the head, by the module's three rules. Raises `RefusedError` (`store.conflict`)."""
        ...

    def rows(self, ledger: str, first: int, last: int) -> list[Row]:
        """Return the existing rows with these numbers, in order."""
        ...

    def last_until(self, ledger: str, at: int) -> int:
        """Return the number of the last change that is not after an instant; 0 if there is none."""
        ...

    def snapshot(self, ledger: str, fold: str) -> tuple[FoldSnapshot, bytes] | None:
        """Return the stored snapshot of a fold, and the digest that was stored with it."""
        ...

    def keep_snapshot(self, snapshot: FoldSnapshot) -> None:
        """Replace the stored snapshot, unless it is newer."""
        ...

    def outcome(self, ledger: str, request: bytes) -> str | None:
        """Return the outcome of a request, if it is settled."""
        ...

    def settle(self, ledger: str, request: bytes, outcome: str, at: int, oldest: int) -> bool:
        """Store the outcome of a request, unless one is stored, and return whether it was stored.

        Outcomes from before `oldest` are dropped.
        """
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...


def conflict(ledger: str) -> RefusedError:
    """Return the error for a writer that another one has overtaken."""
    return RefusedError(
        "store.conflict",
        f"`{ledger}` has changed since it was read",
        hint="read it again, and decide again",
        ledger=ledger,
    )


Progress = Callable[[int], None]
"""Receives the number of each change when it is done, for progress output."""


def quiet(_number: int) -> None:
    """Report no progress."""


class Ledger:
    """One chain of changes in a store. It has no state of its own: every call reads the store."""

    def __init__(self, records: RecordStore, name: str, *, limits: StoreLimits = STORE_LIMITS) -> None:
        check_ledger_name(name, limits)
        self.name = name
        self._records = records
        self._limits = limits

    def head(self) -> LedgerHead:
        """Return the current head. Raises `FailedError` (`store.failed`, `store.busy`), as all methods do."""
        return self._records.head(self.name)

    def append(self, expected: LedgerHead, entries: Sequence[NewChange]) -> tuple[Change, ...]:
        """Append changes after a head, all or none; return them, chained, when they are safe on the disk.

        Raises `RefusedError` (`store.conflict`) if the ledger has another head, and `LimitError` (`store.limit`). After
        a `FailedError` it is unknown whether they were stored: compare the head.
        """
        # The time of the last change is read from the store, because the expected head may lack it.
        head = self.head()
        if head != expected:
            raise conflict(self.name)
        changes = chain(self.name, head, entries, limits=self._limits)
        if changes:
            self._records.append(self.name, head, changes[-1].head, map(to_row, changes))
        return tuple(changes)

    def read(self, first: int = 1, last: int | None = None) -> Iterator[Change]:
        """Yield changes in order, each verified; the last one is compared with the head.

        Raises `RefusedError` (`store.broken`) at the first change that was altered.
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

    def verify(self, known: LedgerHead = EMPTY, progress: Progress = quiet) -> LedgerHead:
        """Verify all changes, and that none comes after the head; return the head.

        With a head that was noted elsewhere (`known`), a replaced chain is detected too. Raises `RefusedError`
        (`store.broken`), and names the first broken change.
        """
        head, behind = EMPTY, True
        while behind:
            for change in self.read(head.number + 1):
                head = change.head
                progress(head.number)
                if head.number == known.number and head != known:
                    raise broken(self.name, head.number, "is not the one that was noted")
            behind = bool(self._records.rows(self.name, head.number + 1, head.number + 1))
            # If others are writing, the head has moved too.
            if behind and self.head().number <= head.number:
                raise broken(self.name, head.number + 1, "comes after the head")
        if known.number > head.number:
            raise broken(self.name, head.number + 1, "is missing, but a later one was noted")
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
        """Store the state of a fold at a head. Raises `LimitError` (`store.limit`)."""
        if len(data) > self._limits.store_snapshot_bytes:
            raise LimitError("store.limit", f"a snapshot of {len(data)} bytes")
        self._records.keep_snapshot(FoldSnapshot(self.name, fold, head, data))

    def outcome(self, request: bytes) -> str | None:
        """Return the outcome of a request, if it was settled here and is not forgotten."""
        return self._records.outcome(self.name, request)

    def settle(self, request: bytes, outcome: str, when: datetime, keep: timedelta) -> bool:
        """Store the outcome of a request beside the chain for some time; return False if it is settled already.

        Of several writers that settle the same request, one gets True.
        """
        return self._records.settle(self.name, request, outcome, ticks(when), ticks(when - keep))

    def _at(self, number: int) -> LedgerHead:
        """Return the head at a number from its row. Verifying the next change verifies it."""
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
        """Return the heads of all ledgers at one moment, by name."""
        return dict(sorted(self.records.heads().items()))

    def ledger(self, name: str) -> Ledger:
        """Return a ledger; it need not have any changes. Raises `MalformedError` (`store.value`)."""
        return Ledger(self.records, name, limits=self._limits)

    def close(self) -> None:
        """Close files and connections."""
        self.records.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

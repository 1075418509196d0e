"""Records of changes: who, when, why, before, after, and the place in a chain.

A ledger is a chain of changes, numbered from 1. The hash of a change is the SHA-256 of its canonical bytes:

    (penstock-change <ledger> <number> <hash of the one before> <who> <microseconds since 1970> <kind> <why>
     [(before <bytes>)] [(after <bytes>)])

and that of the change before the first is 32 zeros. So whoever knows the hash of the last change, the head, knows all
of them; to alter, drop or move one gives another head. Times in a ledger never fall: where a clock is behind the last
change, the new one gets the time of that. Before and after are bytes of whoever makes the change, in one form for one
value; None is what is not there.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from operator import index
from typing import Final, NamedTuple

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
    # Rules and rights stand in these, which no log may show.
    before: bytes | None = field(default=None, repr=False)
    after: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "when", in_utc(self.when))
        if not _KIND.fullmatch(self.kind):
            raise MalformedError("store.value", "the kind of a change is a word of a-z, 0-9, `.` and `-`")
        if not self.why.isprintable():
            raise MalformedError("store.value", "the reason of a change is one line of text that prints")

    def check(self, limits: StoreLimits) -> None:
        """Raise `LimitError` (`store.limit`) for what is too large to be kept."""
        sizes = (
            ("kind", len(self.kind), limits.store_kind_length),
            ("reason", len(self.why), limits.store_why_length),
            ("state before", len(self.before or b""), limits.store_value_bytes),
            ("state after", len(self.after or b""), limits.store_value_bytes),
        )
        for what, size, limit in sizes:
            if size > limit:
                raise LimitError("store.limit", f"the {what} of a change has {size} bytes, where {limit} are kept")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(NewChange):
    """A change in its place. Whoever holds one knows that its hash is that of its bytes."""

    ledger: str
    number: int
    previous: bytes
    hash: bytes

    @property
    def head(self) -> LedgerHead:
        """The head of the ledger when this was its last change."""
        return LedgerHead(self.number, self.hash, self.when)


class Row(NamedTuple):
    """A change as an adapter keeps it, of which nothing is verified. `at` counts microseconds since 1970."""

    number: int
    at: int
    who: str
    kind: str
    why: str
    before: bytes | None
    after: bytes | None
    hash: bytes


def check_ledger_name(name: str, limits: StoreLimits = STORE_LIMITS) -> None:
    """Raise `MalformedError` (`store.value`) for what cannot name a ledger."""
    if not _NAME.fullmatch(name) or len(name) > limits.store_name_length:
        raise MalformedError(
            "store.value",
            f"`{name[:80]}` names no ledger",
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
    """Return a change as it is kept."""
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
        # A database may hold anything in any column. `from None`: the cause would quote it.
        raise broken(ledger, row.number, "cannot be read") from None
    if digest != row.hash:
        raise broken(ledger, row.number, "is not what was written, or does not follow the one before")
    if head.when is not None and change.when < head.when:
        raise broken(ledger, row.number, "is older than the one before")
    return change


def broken(ledger: str, number: int, what: str) -> RefusedError:
    """Return the error for a change that is not as it was written."""
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
    """Return the instant so many microseconds after 1970. Raises `OverflowError` and `TypeError`."""
    return _EPOCH + count * _TICK


def head_of(number: int, digest: bytes, at: int) -> LedgerHead:
    """Return a head as it was kept, of which nothing is verified; one whose time is none has none."""
    try:
        return LedgerHead(number, digest, from_ticks(at))
    except (TypeError, OverflowError):
        return LedgerHead(number, digest)


def head_ticks(head: LedgerHead) -> int:
    """Return the time of a head as it is kept."""
    return 0 if head.when is None else ticks(head.when)


def _digest(ledger: str, head: LedgerHead, who: str, at: int, entry: NewChange) -> bytes:
    states: list[SExp] = []
    if entry.before is not None:
        states.append((b"before", entry.before))
    if entry.after is not None:
        states.append((b"after", entry.after))
    place = (ledger.encode(), b"%d" % (head.number + 1), head.hash)
    told = (who.encode(), b"%d" % at, entry.kind.encode(), entry.why.encode())
    return sha256(canonical((b"penstock-change", *place, *told, *states))).digest()

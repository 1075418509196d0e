"""The port of record stores: the rows that an adapter stores, and its only decision.

An adapter carries rows and believes nothing about them: chaining, verifying and folding are in `ledgers` and `folds`,
the same for all. What only the adapter can do is to let one of several writers win:

1. `append` puts all its rows and the new head there as a whole, or nothing of it.
2. It does so only where the head is the expected one. Of two that expect the same, one gets `store.conflict`.
3. When it has returned, the rows are there after a crash of this process, and of the server.

Everything is synchronous, and may be called from several threads: the code that decides about changes is synchronous
and pure, and components on an event loop hand their calls to a thread.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Protocol

from penstock.codec.sexp import canonical
from penstock.errors import RefusedError
from penstock.store.ledgers.records import LedgerHead, Row


@dataclass(frozen=True, slots=True)
class FoldSnapshot:
    """The state that a fold had at a head: a cache, which can be made again at any time."""

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
    """An adapter. Each method raises `FailedError` (`store.failed`, `store.busy`) where its database fails."""

    @property
    def url(self) -> str:
        """Return the URL of the records without the password."""
        ...

    @property
    def version(self) -> str:
        """The version of the form in which they are kept; empty where nothing outlives the process."""
        ...

    def heads(self) -> Mapping[str, LedgerHead]:
        """Return the heads of all ledgers, as they were at one moment."""
        ...

    def head(self, ledger: str) -> LedgerHead:
        """Return the head of a ledger; of one that nobody has written to, the beginning."""
        ...

    def append(self, ledger: str, expected: LedgerHead, head: LedgerHead, rows: Iterable[Row]) -> None:
        """Add rows that lead from one head to another, as the module says. Raises `RefusedError` (`store.conflict`)."""
        ...

    def rows(self, ledger: str, first: int, last: int) -> list[Row]:
        """Return those of the rows with these numbers that there are, in their order."""
        ...

    def last_until(self, ledger: str, at: int) -> int:
        """Return the number of the last change that is not after an instant, and 0 where all are."""
        ...

    def snapshot(self, ledger: str, fold: str) -> tuple[FoldSnapshot, bytes] | None:
        """Return the snapshot that was kept for a fold, and the digest that was kept with it."""
        ...

    def keep_snapshot(self, snapshot: FoldSnapshot) -> None:
        """Replace the stored snapshot, unless it is newer."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


def conflict(ledger: str) -> RefusedError:
    """Return the error for a writer who was not the first."""
    return RefusedError(
        "store.conflict",
        f"`{ledger}` has changed since it was read",
        hint="read it again, and decide again",
        ledger=ledger,
    )

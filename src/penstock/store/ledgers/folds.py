"""State as a fold of changes, with snapshots so that a long ledger loads quickly.

A snapshot is a cache. It names the head that it was computed from, and is ignored if that head is not in the chain or
if its bytes are damaged. Somebody who can write to the database could replace it: if that matters, snapshots are
authenticated (`Keeping`). `refold` uses no snapshot, and `FoldView.verify` compares.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Generic, Protocol, TypeVar

from penstock.errors import MalformedError, RefusedError
from penstock.store.ledgers.ledgers import EMPTY, Change, Ledger, LedgerHead, NewChange, broken
from penstock.store.limits import STORE_LIMITS, StoreLimits

S = TypeVar("S")


class Fold(Protocol[S]):
    """A fold that computes state from changes. A new form of `dump` needs a new `name`, so that old snapshots are
    ignored.
    """

    @property
    def name(self) -> str:
        """Return the name under which its snapshots are stored."""
        ...

    def empty(self) -> S:
        """Return the state before the first change."""
        ...

    def step(self, state: S, change: Change) -> S:
        """Return the state after a change; this can be the same object."""
        ...

    def dump(self, state: S) -> bytes:
        """Return the state as bytes: equal states give equal bytes."""
        ...

    def load(self, data: bytes) -> S:
        """Return the state that was dumped. Raises `MalformedError`."""
        ...


class Keeping(Protocol):
    """How snapshots are stored, so that a reader can decide whether to trust one."""

    @property
    def able(self) -> bool:
        """Whether a snapshot can be stored that readers will trust."""
        ...

    def slots(self, fold: str) -> Sequence[str]:
        """Return the names under which a fold's trusted snapshots are stored; the next one goes under the first."""
        ...

    def wrap(self, head: LedgerHead, data: bytes) -> bytes:
        """Return the bytes to store for a state."""
        ...

    def unwrap(self, head: LedgerHead, data: bytes) -> bytes:
        """Return the stored state. Raises `MalformedError` if it cannot be trusted."""
        ...


class AsItIs:
    """Snapshots that are not authenticated."""

    able = True

    def slots(self, fold: str) -> Sequence[str]:
        """Return the name of the fold."""
        return (fold,)

    def wrap(self, _head: LedgerHead, data: bytes) -> bytes:
        """Return the state."""
        return data

    def unwrap(self, _head: LedgerHead, data: bytes) -> bytes:
        """Return the state."""
        return data


AS_IT_IS: Final = AsItIs()


class FoldView(Generic[S]):
    """The state of a ledger as far as it was read: `state`, and the `head` that it was computed from.

    It stores a snapshot after a number of changes (`limits`). The constructor and all methods raise what `Ledger`
    raises. If the fold raises, the view cannot be used any more.
    """

    def __init__(
        self,
        ledger: Ledger,
        fold: Fold[S],
        *,
        keeping: Keeping = AS_IT_IS,
        every: int | None = None,
        limits: StoreLimits = STORE_LIMITS,
    ) -> None:
        self.ledger = ledger
        self.fold = fold
        self._keeping = keeping
        self._every = limits.store_snapshot_every if every is None else every
        self.state, self.head = _start(ledger, fold, keeping)
        self._kept = self.head.number
        self.refresh()

    def refresh(self) -> None:
        """Apply the changes since the last refresh."""
        now = self.ledger.head()
        if now.number < self.head.number or (now.number == self.head.number and now != self.head):
            raise self._another(self.head.number)
        for change in self.ledger.read(self.head.number + 1):
            self._take(change)
        self._keep_sometimes()

    def append(self, entries: Sequence[NewChange]) -> tuple[Change, ...]:
        """Append changes after this view's head, and apply them.

        Raises `RefusedError` (`store.conflict`) if somebody else has changed the ledger: refresh, and decide again.
        """
        changes = self.ledger.append(self.head, entries)
        for change in changes:
            self._take(change)
        self._keep_sometimes()
        return changes

    def keep(self) -> None:
        """Store a snapshot now."""
        snapshot = self._keeping.wrap(self.head, self.fold.dump(self.state))
        self.ledger.keep_snapshot(self._keeping.slots(self.fold.name)[0], self.head, snapshot)
        self._kept = self.head.number

    def verify(self) -> None:
        """Recompute the state from all changes, and compare. Raises `RefusedError` (`store.broken`)."""
        state = refold(self.ledger, self.fold, self.head)
        if self.fold.dump(state) != self.fold.dump(self.state):
            raise broken(self.ledger.name, self.head.number, "gives another state than a snapshot contains")

    def _take(self, change: Change) -> None:
        if change.previous != self.head.hash:
            raise self._another(change.number - 1)
        self.state = self.fold.step(self.state, change)
        self.head = change.head

    def _another(self, number: int) -> RefusedError:
        return broken(self.ledger.name, number, "is not the one that was read before")

    def _keep_sometimes(self) -> None:
        if self.head.number - self._kept >= self._every and self._keeping.able:
            self.keep()


def refold(ledger: Ledger, fold: Fold[S], head: LedgerHead | None = None) -> S:
    """Compute the state at a head, or now, without a snapshot. Raises `RefusedError` (`store.broken`)."""
    state = fold.empty()
    for change in ledger.read(1, None if head is None else head.number):
        state = fold.step(state, change)
    return state


def state_at(ledger: Ledger, fold: Fold[S], instant: datetime, keeping: Keeping = AS_IT_IS) -> tuple[S, LedgerHead]:
    """Return the state at an instant, and the head at that instant. Raises `RefusedError` (`store.broken`)."""
    until = ledger.at(instant)
    state, head = _start(ledger, fold, keeping, until.number)
    for change in ledger.read(head.number + 1, until.number):
        state = fold.step(state, change)
    return state, until


def _start(ledger: Ledger, fold: Fold[S], keeping: Keeping, until: int | None = None) -> tuple[S, LedgerHead]:
    """Return a state to start from: that of a snapshot that is not too recent, or the empty one."""
    kept = [snapshot for slot in keeping.slots(fold.name) if (snapshot := ledger.snapshot(slot)) is not None]
    for snapshot in sorted(kept, key=lambda each: each.head.number, reverse=True):
        if until is None or snapshot.head.number <= until:
            try:
                return fold.load(keeping.unwrap(snapshot.head, snapshot.data)), snapshot.head
            except MalformedError:
                continue
    return fold.empty(), EMPTY

"""Records that end with the process: for tests, simulations and rehearsals."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from threading import Lock

from penstock.store.ledgers.ledgers import EMPTY, FoldSnapshot, LedgerHead, RecordStore, Row, conflict


class MemoryRecords:
    """See `RecordStore`."""

    url = "memory:"
    version = ""

    def __init__(self) -> None:
        self._lock = Lock()
        self._heads: dict[str, LedgerHead] = {}
        self._rows: dict[str, list[Row]] = {}
        self._snapshots: dict[tuple[str, str], FoldSnapshot] = {}
        self._requests: dict[str, dict[bytes, tuple[int, str]]] = {}

    def heads(self) -> Mapping[str, LedgerHead]:
        """Return all heads."""
        with self._lock:
            return dict(self._heads)

    def head(self, ledger: str) -> LedgerHead:
        """Return one head."""
        with self._lock:
            return self._heads.get(ledger, EMPTY)

    def append(self, ledger: str, expected: LedgerHead, head: LedgerHead, rows: Iterable[Row]) -> None:
        """Add rows where the head is the expected one. Raises `RefusedError` (`store.conflict`)."""
        added = list(rows)
        with self._lock:
            if self._heads.get(ledger, EMPTY) != expected:
                raise conflict(ledger)
            self._rows.setdefault(ledger, []).extend(added)
            self._heads[ledger] = head

    def rows(self, ledger: str, first: int, last: int) -> list[Row]:
        """Return rows by number."""
        with self._lock:
            return self._rows.get(ledger, [])[max(first, 1) - 1 : max(last, 0)]

    def last_until(self, ledger: str, at: int) -> int:
        """Return the number of the last change until an instant."""
        with self._lock:
            return bisect_right(self._rows.get(ledger, []), at, key=lambda row: row.at)

    def snapshot(self, ledger: str, fold: str) -> tuple[FoldSnapshot, bytes] | None:
        """Return the snapshot of a fold."""
        found = self._snapshots.get((ledger, fold))
        return None if found is None else (found, found.digest)

    def keep_snapshot(self, snapshot: FoldSnapshot) -> None:
        """Store a snapshot, unless a more recent one is stored."""
        with self._lock:
            place = (snapshot.ledger, snapshot.fold)
            kept = self._snapshots.get(place)
            if kept is None or kept.head.number < snapshot.head.number:
                self._snapshots[place] = snapshot

    def outcome(self, ledger: str, request: bytes) -> str | None:
        """Return the outcome of a request."""
        found = self._requests.get(ledger, {}).get(request)
        return None if found is None else found[1]

    def settle(self, ledger: str, request: bytes, outcome: str, at: int, oldest: int) -> bool:
        """Store an outcome, unless one is stored."""
        with self._lock:
            kept = self._requests.setdefault(ledger, {})
            while kept and next(iter(kept.values()))[0] < oldest:
                del kept[next(iter(kept))]
            if request in kept:
                return False
            kept[request] = (at, outcome)
            return True

    def close(self) -> None:
        """Do nothing: nothing is open."""


# ----------------------------------------------------------------------------------------------------------------------
# Records for a rehearsal: they contain the stored records; additions end with the process, and are not stored.


class TriedRecords(MemoryRecords):
    """See `RecordStore`. Starts with the current records underneath; later changes there are not seen."""

    def __init__(self, underneath: RecordStore) -> None:
        super().__init__()
        self._underneath = underneath
        self._begun = dict(underneath.heads())
        self._heads.update(self._begun)
        self.url = underneath.url
        self.version = underneath.version

    def rows(self, ledger: str, first: int, last: int) -> list[Row]:
        """Return rows by number."""
        begun = self._begun.get(ledger, EMPTY).number
        kept = self._underneath.rows(ledger, first, min(last, begun)) if first <= begun else []
        return kept + super().rows(ledger, first - begun, last - begun)

    def last_until(self, ledger: str, at: int) -> int:
        """Return the number of the last change until an instant."""
        begun = self._begun.get(ledger, EMPTY).number
        kept = self._underneath.last_until(ledger, at) if begun else 0
        return kept if kept < begun else begun + super().last_until(ledger, at)

    def snapshot(self, ledger: str, fold: str) -> tuple[FoldSnapshot, bytes] | None:
        """Return the snapshot of a fold."""
        return super().snapshot(ledger, fold) or self._underneath.snapshot(ledger, fold)

    def close(self) -> None:
        """Release the records underneath."""
        self._underneath.close()

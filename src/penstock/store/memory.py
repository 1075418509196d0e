"""Records that end with the process: for tests, simulations, and to try something."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from threading import Lock

from penstock.store.port import Snapshot, conflict
from penstock.store.records import EMPTY, Head, Row


class MemoryRecords:
    """See `Records`."""

    url = "memory:"
    version = ""

    def __init__(self) -> None:
        self._lock = Lock()
        self._heads: dict[str, Head] = {}
        self._rows: dict[str, list[Row]] = {}
        self._snapshots: dict[tuple[str, str], Snapshot] = {}

    def heads(self) -> Mapping[str, Head]:
        """Return all heads."""
        with self._lock:
            return dict(self._heads)

    def head(self, ledger: str) -> Head:
        """Return one head."""
        with self._lock:
            return self._heads.get(ledger, EMPTY)

    def append(self, ledger: str, expected: Head, head: Head, rows: Iterable[Row]) -> None:
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

    def snapshot(self, ledger: str, fold: str) -> tuple[Snapshot, bytes] | None:
        """Return what is kept for a fold."""
        found = self._snapshots.get((ledger, fold))
        return None if found is None else (found, found.digest)

    def keep_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot that is not behind the one that is kept."""
        with self._lock:
            place = (snapshot.ledger, snapshot.fold)
            kept = self._snapshots.get(place)
            if kept is None or kept.head.number < snapshot.head.number:
                self._snapshots[place] = snapshot

    def close(self) -> None:
        """Keep nothing open."""

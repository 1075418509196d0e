"""A database in a process of its own, as other processes use it: it can be cut off, and answers can be lost."""

from collections.abc import Callable, Iterable, Mapping

from penstock.errors import FailedError
from penstock.simulate.simulation import Simulation
from penstock.store.ledgers.ledgers import FoldSnapshot, LedgerHead, Row, Store
from penstock.store.ledgers.memory import MemoryRecords

#: the process of the database
STORE = "store"


class StoreLink:
    """The connection of a process to the database."""

    def __init__(self, simulation: Simulation, process: str) -> None:
        self._simulation = simulation
        self._process = process
        self._random = simulation.random(f"store/{process}")

    def reach(self) -> None:
        """Raise `FailedError` (`store.failed`) if the database cannot be reached, or a message is lost."""
        network = self._simulation.network
        network.record(self._process, STORE, b"")
        lost = network.between(self._process, STORE).loss
        away = not self._simulation.runs(STORE) or self._simulation.process(STORE).paused
        if away or not network.reaches(self._process, STORE) or (lost and self._random.random() < lost):
            raise FailedError("store.failed", "the store does not answer")


class SimulatedRecords(MemoryRecords):
    """The connection of a process to the records of the database (`penstock.store.ledgers.ledgers.RecordStore`).

    `meanwhile` is what other processes do between what this one has read and its append.
    """

    def __init__(
        self, records: MemoryRecords, simulation: Simulation, process: str, meanwhile: Callable[[], None]
    ) -> None:
        super().__init__()
        self._meanwhile = meanwhile
        self._records = records
        self._reach = StoreLink(simulation, process).reach

    def heads(self) -> Mapping[str, LedgerHead]:
        """Return all heads."""
        self._reach()
        return self._records.heads()

    def head(self, ledger: str) -> LedgerHead:
        """Return one head."""
        self._reach()
        return self._records.head(ledger)

    def append(self, ledger: str, expected: LedgerHead, head: LedgerHead, rows: Iterable[Row]) -> None:
        """Add rows where the head is the expected one. If it raises, they may have been added nevertheless."""
        self._reach()
        self._meanwhile()
        self._records.append(ledger, expected, head, rows)
        self._reach()

    def rows(self, ledger: str, first: int, last: int) -> list[Row]:
        """Return rows by number."""
        self._reach()
        return self._records.rows(ledger, first, last)

    def last_until(self, ledger: str, at: int) -> int:
        """Return the number of the last change until an instant."""
        self._reach()
        return self._records.last_until(ledger, at)

    def snapshot(self, ledger: str, fold: str) -> tuple[FoldSnapshot, bytes] | None:
        """Return the snapshot of a fold."""
        self._reach()
        return self._records.snapshot(ledger, fold)

    def keep_snapshot(self, snapshot: FoldSnapshot) -> None:
        """Store a snapshot, unless a more recent one is stored."""
        self._reach()
        self._records.keep_snapshot(snapshot)


def opened(
    records: MemoryRecords, simulation: Simulation, process: str, meanwhile: Callable[[], None] = lambda: None
) -> Store:
    """Return the store as a process sees it."""
    return Store(SimulatedRecords(records, simulation, process, meanwhile))

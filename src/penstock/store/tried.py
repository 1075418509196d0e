"""Records for a rehearsal: what others have is there, what is added ends with the process, and they never see it."""

from penstock.store.memory import MemoryRecords
from penstock.store.port import Records, Snapshot
from penstock.store.records import EMPTY, Row


class TriedRecords(MemoryRecords):
    """See `Records`. They begin with what the records underneath have now; what comes there later is not seen."""

    def __init__(self, underneath: Records) -> None:
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

    def snapshot(self, ledger: str, fold: str) -> tuple[Snapshot, bytes] | None:
        """Return what is kept for a fold."""
        return super().snapshot(ledger, fold) or self._underneath.snapshot(ledger, fold)

    def close(self) -> None:
        """Let go of what is underneath."""
        self._underneath.close()

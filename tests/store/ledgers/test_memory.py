"""Records that end with the process."""

from collections.abc import Iterator

import pytest

from penstock.store.ledgers.ledgers import EMPTY, Store
from penstock.store.ledgers.memory import MemoryRecords, TriedRecords
from penstock.testing.store_suite import StoreSuite, entry


class TestMemory(StoreSuite):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        with Store(MemoryRecords()) as store:
            yield store


class TestTried(StoreSuite):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        with Store(TriedRecords(MemoryRecords())) as store:
            yield store


def test_what_is_there_is_gone_on_with_and_stays() -> None:
    kept = Store(MemoryRecords())
    ledger = kept.ledger("rules")
    ledger.append(EMPTY, [entry(number, minutes=number) for number in range(3)])
    begun = ledger.head()
    ledger.keep_snapshot("fold", begun, b"three")
    tried = Store(TriedRecords(kept.records))
    rehearsed = tried.ledger("rules")
    added = rehearsed.append(begun, [entry(number, minutes=number) for number in (3, 4)])
    # Others go on meanwhile.
    ledger.append(begun, [entry(9, minutes=9)])
    ledger.keep_snapshot("fold", ledger.head(), b"four")
    assert [*rehearsed.read()] == [*ledger.read(1, 3), *added]
    assert [*rehearsed.read(3, 4)] == [*ledger.read(3, 3), added[0]]
    assert rehearsed.verify() == rehearsed.head() == tried.heads()["rules"] == added[-1].head
    assert [rehearsed.at(change.when) for change in rehearsed.read()] == [each.head for each in rehearsed.read()]
    # A snapshot of what is not seen does not count.
    assert rehearsed.snapshot("fold") is None
    rehearsed.keep_snapshot("fold", added[-1].head, b"five")
    assert rehearsed.snapshot("fold").data == b"five"  # type: ignore[union-attr]  # it was just kept
    assert ledger.head().number == 4
    assert ledger.snapshot("fold").data == b"four"  # type: ignore[union-attr]  # so was this
    assert (tried.url, tried.records.version) == (kept.url, kept.records.version)

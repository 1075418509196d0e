"""The behaviour that every adapter of `penstock.store` shows. An adapter's test inherits it:

    class TestMine(StoreSuite):
        @pytest.fixture
        def store(self) -> Iterator[Store]:
            with Store(MyRecords()) as store:
                yield store

`store` is an empty one. What an adapter keeps beyond the process, its own tests show.
"""
# ruff: noqa: D102, S101  # a suite asserts, and the names of its tests say what

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from penstock.errors import MalformedError, PenstockError
from penstock.model.principals import Principal
from penstock.store.ledgers.backups import read_backup, restore_backup, write_backup
from penstock.store.ledgers.folds import FoldView, refold, state_at
from penstock.store.ledgers.ledgers import EMPTY, Change, Ledger, LedgerHead, NewChange, Store, chain, to_row
from penstock.store.ledgers.memory import MemoryRecords
from penstock.store.limits import StoreLimits

NOON: Final = datetime(2026, 5, 1, 12, tzinfo=UTC)
MINUTE: Final = timedelta(minutes=1)
ALICE: Final = Principal(b"\1" * 32)
QUORUM: Final = Principal(b"\2" * 32, "threshold")


def entry(number: int, *, minutes: float = 0.0, who: Principal = ALICE) -> NewChange:
    """Return a change to write."""
    return NewChange(who=who, when=NOON + minutes * MINUTE, kind="count", why="because", after=b"%d" % number)


def code_of(error: PenstockError | None) -> str:
    """Return the code of an error, if there is one."""
    return "" if error is None else error.code


class Sum:
    """A fold that adds numbers up, and counts the changes that it has seen."""

    name = "sum-1"

    def __init__(self) -> None:
        self.steps = 0

    def empty(self) -> int:
        return 0

    def step(self, state: int, change: Change) -> int:
        self.steps += 1
        return state + int(change.after or b"0")

    def dump(self, state: int) -> bytes:
        return b"%d" % state

    def load(self, data: bytes) -> int:
        if not data.isdigit():
            raise MalformedError("store.value", "no sum")
        return int(data)


class StoreSuite:
    """See the module."""

    def test_a_ledger_begins_empty(self, store: Store) -> None:
        ledger = store.ledger("rules")
        assert ledger.head() == EMPTY
        assert list(ledger.read()) == []
        assert ledger.at(NOON) == ledger.verify() == EMPTY
        assert store.heads() == {}

    def test_what_was_written_is_read_as_it_was(self, store: Store) -> None:
        ledger = store.ledger("rules")
        written = ledger.append(
            EMPTY,
            [
                NewChange(who=ALICE, when=NOON, kind="rule.add", why="für alle", before=None, after=bytes(range(256))),
                NewChange(who=QUORUM, when=NOON, kind="rule.remove", why="", before=b"", after=None),
            ],
        )
        assert tuple(ledger.read()) == written
        assert [change.number for change in written] == [1, 2]
        assert written[1].previous == written[0].hash
        assert [str(change.who).partition(":")[0] for change in ledger.read()] == ["ed25519", "threshold"]
        assert [(change.before, change.after) for change in ledger.read()][1] == (b"", None)
        assert ledger.head() == written[-1].head == store.heads()["rules"] == ledger.verify(written[0].head)
        assert tuple(ledger.read(2)) == written[1:]
        assert tuple(ledger.read(1, 1)) == written[:1]
        assert tuple(ledger.read(3)) == ()

    def test_ledgers_know_nothing_of_each_other(self, store: Store) -> None:
        one, two = store.ledger("a/one"), store.ledger("a/two")
        first = one.append(EMPTY, [entry(1)])
        second = two.append(EMPTY, [entry(1)])
        assert first[0].hash != second[0].hash
        assert list(store.heads()) == ["a/one", "a/two"]
        assert [*one.read()] == [*first]

    def test_who_comes_second_is_told(self, store: Store) -> None:
        ledger = store.ledger("rules")
        (first,) = ledger.append(EMPTY, [entry(1)])
        for expected in (EMPTY, LedgerHead(1, b"\7" * 32), LedgerHead(2, first.hash)):
            assert _refused(ledger, expected) == "store.conflict"
        assert [change.number for change in ledger.read()] == [1]

    def test_one_of_two_that_saw_the_same_wins(self, store: Store) -> None:
        # Beneath `Ledger.append`, which asks for the head first: this is what the adapter has to see by itself.
        (first,) = chain("rules", EMPTY, [entry(1)])
        (second,) = chain("rules", first.head, [entry(2)])
        assert not _conflicts(store, EMPTY, first)
        for expected in (EMPTY, LedgerHead(1, b"\7" * 32), LedgerHead(2, first.hash)):
            assert _conflicts(store, expected, second)
        assert not _conflicts(store, first.head, second)
        assert _conflicts(store, first.head, second)
        assert [*store.ledger("rules").read()] == [first, second]

    def test_of_many_at_once_each_change_is_there_once(self, store: Store) -> None:
        ledger = store.ledger("rules")

        def write(writer: int) -> None:
            for number in range(5):
                while _refused(ledger, ledger.head(), [entry(writer), entry(number)]):
                    pass

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(4)))
        found = [int(change.after or b"") for change in ledger.read()]
        pairs = list(zip(found[::2], found[1::2], strict=True))
        assert sorted(pairs) == [(writer, number) for writer in range(4) for number in range(5)]
        assert ledger.verify().number == 40

    def test_nothing_of_what_is_refused_is_kept(self, store: Store) -> None:
        ledger = store.ledger("rules")
        large = NewChange(who=ALICE, when=NOON, kind="x", after=bytes(StoreLimits().store_value_bytes + 1))
        for entries in ([entry(1), large], [entry(1)] * (StoreLimits().store_batch + 1)):
            assert _refused(ledger, EMPTY, entries) == "store.limit"
        assert ledger.append(EMPTY, []) == ()
        assert ledger.head() == EMPTY

    def test_times_never_fall(self, store: Store) -> None:
        ledger = store.ledger("rules")
        ledger.append(EMPTY, [entry(1, minutes=5), entry(2)])
        # A writer that does not know the head's time cannot go back behind it either.
        ledger.append(LedgerHead(2, ledger.head().hash), [entry(3, minutes=1)])
        assert [change.when - NOON for change in ledger.read()] == [5 * MINUTE] * 3
        assert ledger.verify().number == 3

    def test_a_ledger_as_it_was(self, store: Store) -> None:
        ledger = store.ledger("rules")
        ledger.append(EMPTY, [entry(number, minutes=number // 2) for number in range(6)])
        numbers = [ledger.at(NOON + minutes * MINUTE).number for minutes in (-1, 0, 0.5, 1, 2, 9)]
        assert numbers == [0, 2, 2, 4, 6, 6]
        assert state_at(ledger, Sum(), NOON + MINUTE) == (0 + 1 + 2 + 3, ledger.at(NOON + MINUTE))

    def test_pages_are_one_chain(self, store: Store) -> None:
        ledger = Ledger(store.records, "rules", limits=StoreLimits(store_page=3))
        written = ledger.append(EMPTY, [entry(number) for number in range(8)])
        assert tuple(ledger.read()) == written
        assert tuple(ledger.read(3, 7)) == written[2:7]

    def test_a_view_follows(self, store: Store) -> None:
        mine, other = (FoldView(store.ledger("rules"), Sum()) for _ in range(2))
        mine.append([entry(3), entry(4)])
        assert (mine.state, other.state) == (7, 0)
        assert code_of(_raised(lambda: other.append([entry(1)]))) == "store.conflict"
        other.refresh()
        other.append([entry(1)])
        mine.refresh()
        assert (mine.state, mine.head) == (other.state, other.head) == (8, store.ledger("rules").head())

    def test_a_snapshot_spares_the_changes_before_it(self, store: Store) -> None:
        limits = StoreLimits(store_snapshot_every=4)
        view = FoldView(store.ledger("rules"), Sum(), limits=limits)
        view.append([entry(1), entry(2)])
        assert view.ledger.snapshot("sum-1") is None
        view.append([entry(3), entry(4)])
        view.append([entry(5, minutes=3)])
        fold = Sum()
        again = FoldView(store.ledger("rules"), fold)
        assert (again.state, again.head, fold.steps) == (15, view.head, 1)
        again.verify()
        assert refold(view.ledger, Sum()) == 15
        # It is of no use for what was before it.
        assert state_at(view.ledger, Sum(), NOON - MINUTE) == (0, EMPTY)

    def test_a_snapshot_of_another_chain_is_passed_over(self, store: Store) -> None:
        ledger = store.ledger("rules")
        ledger.append(EMPTY, [entry(1), entry(2)])
        ledger.keep_snapshot("sum-1", LedgerHead(1, b"\7" * 32), b"100")
        assert FoldView(ledger, Sum()).state == 3
        ledger.keep_snapshot("sum-1", ledger.head(), b"3")
        ledger.keep_snapshot("sum-1", ledger.at(NOON - MINUTE), b"100")  # behind what is kept
        fold = Sum()
        assert (FoldView(ledger, fold).state, fold.steps) == (3, 0)

    def test_a_snapshot_that_lies_is_found(self, store: Store) -> None:
        ledger = store.ledger("rules")
        ledger.append(EMPTY, [entry(1)])
        ledger.keep_snapshot("sum-1", ledger.head(), b"100")
        view = FoldView(ledger, Sum())
        assert code_of(_raised(view.verify)) == "store.broken"

    def test_a_request_is_settled_once_and_forgotten_after_its_time(self, store: Store) -> None:
        ledger, other = store.ledger("rules"), store.ledger("others")
        assert ledger.outcome(b"one") is None
        assert ledger.settle(b"one", "applied", NOON, MINUTE)
        assert not ledger.settle(b"one", "refused", NOON, MINUTE)
        assert other.settle(b"one", "refused", NOON, MINUTE)
        assert (ledger.outcome(b"one"), other.outcome(b"one")) == ("applied", "refused")
        assert ledger.settle(b"two", "applied", NOON + MINUTE, MINUTE)
        assert ledger.outcome(b"one") == "applied"
        assert ledger.settle(b"three", "applied", NOON + 2 * MINUTE, MINUTE)
        assert (ledger.outcome(b"one"), other.outcome(b"one")) == (None, "refused")
        assert ledger.settle(b"one", "refused", NOON + 2 * MINUTE, MINUTE)
        # It is beside the chain.
        assert ledger.head() == EMPTY

    def test_a_backup_is_a_whole_store(self, store: Store, tmp_path: Path) -> None:
        store.ledger("one").append(EMPTY, [entry(number, minutes=number) for number in range(5)])
        store.ledger("two").append(EMPTY, [NewChange(who=QUORUM, when=NOON, kind="x", before=b"\0\n", why="ä")])
        file = tmp_path / "backup"
        heads = write_backup(store, file)
        assert read_backup(file) == heads == store.heads()
        with Store(MemoryRecords()) as other:
            restore_backup(file, other)
            for name in ("one", "two"):
                assert list(other.ledger(name).read()) == list(store.ledger(name).read())
            other.ledger("one").append(other.ledger("one").head(), [entry(9)])
            write_backup(other, file)
        assert code_of(_raised(lambda: restore_backup(file, store))) == "store.not-empty"

    def test_a_restore_begins_where_there_is_nothing(self, store: Store, tmp_path: Path) -> None:
        file = tmp_path / "backup"
        with Store(MemoryRecords()) as other:
            for name in ("one", "two"):
                other.ledger(name).append(EMPTY, [entry(number) for number in range(3)])
            heads = write_backup(other, file)
        # As a restore leaves it that was cut off between two ledgers: it is completed.
        store.ledger("one").append(EMPTY, [entry(number) for number in range(3)])
        assert restore_backup(file, store) == restore_backup(file, store) == store.heads() == heads
        for name in heads:
            assert store.ledger(name).verify() == heads[name]
            store.ledger(name).append(heads[name], [entry(9)])

    def test_a_damaged_backup_restores_nothing(self, store: Store, tmp_path: Path) -> None:
        file = tmp_path / "backup"
        with Store(MemoryRecords()) as other:
            other.ledger("one").append(EMPTY, [entry(number) for number in range(3)])
            write_backup(other, file)
        lines = file.read_bytes().splitlines(keepends=True)
        for damaged in (lines[:-1], [*lines[:3], *lines[4:]], [*lines, b"\n"], lines[1:], [], [*lines[:2], lines[5]]):
            file.write_bytes(b"".join(damaged))
            assert code_of(_raised(lambda: restore_backup(file, store))) in ("store.backup", "store.broken")
        assert store.heads() == {}


def _raised(call: Callable[[], object]) -> PenstockError | None:
    try:
        call()
    except PenstockError as error:
        return error
    return None


def _refused(ledger: Ledger, expected: LedgerHead, entries: Sequence[NewChange] = (entry(7),)) -> str:
    """Return the code that a writer is refused with, or nothing."""
    return code_of(_raised(lambda: ledger.append(expected, entries)))


def _conflicts(store: Store, expected: LedgerHead, change: Change) -> bool:
    problem = _raised(lambda: store.records.append("rules", expected, change.head, [to_row(change)]))
    assert problem is None or problem.code == "store.conflict"
    return problem is not None

"""Backups while others write, and files that are none."""

import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.codec.sexp import parse, transport
from penstock.errors import FailedError, PenstockError, RefusedError
from penstock.store.ledgers.backups import read_backup, restore_backup, write_backup
from penstock.store.ledgers.ledgers import EMPTY, Store
from penstock.store.ledgers.memory import MemoryRecords
from penstock.store.ledgers.urls import open_store
from penstock.store.limits import StoreLimits
from penstock.testing.store_suite import entry


def test_a_backup_holds_one_moment_while_others_write(tmp_path: Path) -> None:
    """Each batch is of one change in each ledger, the first of them first."""
    file, done = tmp_path / "backup", threading.Event()
    with open_store(f"sqlite:{tmp_path}/rules.db", create=True) as store:
        one, two = store.ledger("one"), store.ledger("two")
        one.append(EMPTY, [entry(0)])
        two.append(EMPTY, [entry(0)])

        def write() -> None:
            while not done.is_set():
                one.append(one.head(), [entry(1)])
                two.append(two.head(), [entry(1)])

        writer = threading.Thread(target=write)
        writer.start()
        seen: list[int] = []
        try:
            while len(set(seen)) < 3:
                heads = write_backup(store, file)
                assert heads["one"].number - heads["two"].number in (0, 1)
                assert read_backup(file) == heads
                seen.append(heads["one"].number)
        finally:
            done.set()
            writer.join()


def test_a_backup_is_for_its_owner_alone(tmp_path: Path) -> None:
    write_backup(Store(MemoryRecords()), tmp_path / "backup")
    assert stat.S_IMODE((tmp_path / "backup").stat().st_mode) == 0o600
    assert read_backup(tmp_path / "backup") == {}


def test_the_largest_change_can_be_backed_up(tmp_path: Path) -> None:
    store, other = Store(MemoryRecords()), Store(MemoryRecords())
    size = StoreLimits().store_value_bytes
    store.ledger("rules").append(EMPTY, [replace(entry(1), before=bytes(size), after=bytes(size))])
    write_backup(store, tmp_path / "backup")
    assert restore_backup(tmp_path / "backup", other) == store.heads()


def test_what_is_broken_is_not_backed_up(tmp_path: Path) -> None:
    records = MemoryRecords()
    store = Store(records)
    store.ledger("rules").append(EMPTY, [entry(1), entry(2)])
    write_backup(store, tmp_path / "backup")
    before = (tmp_path / "backup").read_bytes()
    records._rows["rules"][0] = records._rows["rules"][0]._replace(why="other")
    with pytest.raises(RefusedError) as problem:
        write_backup(store, tmp_path / "backup")
    assert problem.value.code == "store.broken"
    assert (tmp_path / "backup").read_bytes() == before


def test_no_file_is_no_backup(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(FailedError) as problem:
            read_backup(path)
        assert problem.value.code == "file.unreadable"


FORM = (b"penstock-backup", b"1")
LEDGER = (b"ledger", b"rules", b"1", bytes(32), b"0")
CHANGE = (b"change", b"1", b"0", b"who", b"kind", b"why", bytes(32))


@pytest.mark.parametrize(
    "lines",
    [
        [(b"penstock-backup", b"2")],
        [FORM, b"x"],
        [FORM, CHANGE],
        [FORM, LEDGER],
        [FORM, LEDGER, CHANGE],
        [FORM, (*LEDGER[:2], b"0", *LEDGER[3:])],
        [FORM, (*LEDGER[:2], b"-1", *LEDGER[3:])],
        [FORM, (*LEDGER[:2], b"9" * 30, *LEDGER[3:])],
        [FORM, (b"ledger", b"Not A Name", *LEDGER[2:])],
        [FORM, LEDGER, (*CHANGE, (b"before", b"1"), (b"before", b"2"))],
        [FORM, LEDGER, (*CHANGE, (b"other", b"1"))],
        [FORM, LEDGER, CHANGE[:-1]],
        [FORM, LEDGER, (b"change", b"one", *CHANGE[2:])],
        [FORM, LEDGER, (b"change", b"1", b"0", b"\xff", *CHANGE[4:])],
    ],
    ids=repr,
)
def test_hostile_files_are_refused_by_a_code(lines: list[object], tmp_path: Path) -> None:
    file = tmp_path / "backup"
    file.write_bytes(b"".join(transport(line) + b"\n" for line in lines))  # type: ignore[arg-type]  # drawn as lists, which are written alike
    with pytest.raises(PenstockError) as problem:
        read_backup(file)
    assert problem.value.code.startswith(("store.", "sexp."))
    assert str(file) in problem.value.message


@pytest.mark.parametrize("data", [b"", b"\n", b"hello\n", b"{", bytes(1000), b"(" * 100_000, b"{" + b"A" * (5 << 20)])
def test_garbage_is_no_backup(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    file.write_bytes(data)
    with pytest.raises(PenstockError) as problem:
        read_backup(file)
    assert problem.value.code.startswith(("store.", "sexp."))


def test_a_line_is_readable_by_itself(tmp_path: Path) -> None:
    store = Store(MemoryRecords())
    store.ledger("rules").append(EMPTY, [entry(7)])
    write_backup(store, tmp_path / "backup")
    lines = [parse(line) for line in (tmp_path / "backup").read_bytes().splitlines()]
    assert [line[0] for line in lines if isinstance(line, tuple)] == [b"penstock-backup", b"ledger", b"change", b"end"]

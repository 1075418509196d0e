"""Records in a file."""

import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.store.tampering import TAMPERED, Tampered

from penstock.errors import FailedError, RefusedError
from penstock.store.ledgers.ledgers import Store
from penstock.store.ledgers.records import EMPTY
from penstock.store.ledgers.urls import open_store
from penstock.store.limits import StoreLimits
from penstock.testing.store_suite import StoreSuite, entry


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rules.db"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return an empty store and one with four changes; a copy takes no time, and the disk does."""
    empty, filled = (tmp_path_factory.mktemp("made") / name for name in ("empty.db", "filled.db"))
    for path, changes in ((empty, 0), (filled, 4)):
        with open_store(f"sqlite:{path}", create=True) as store:
            store.ledger("rules").append(EMPTY, [entry(number) for number in range(changes)])
    return empty, filled


class TestSqlite(StoreSuite):
    @pytest.fixture
    def store(self, file: Path, made: tuple[Path, Path]) -> Iterator[Store]:
        shutil.copy(made[0], file)
        with open_store(f"sqlite:{file}") as store:
            yield store


@pytest.fixture
def filled(file: Path, made: tuple[Path, Path]) -> str:
    """Return the URL of a store with four changes."""
    shutil.copy(made[1], file)
    return f"sqlite:{file}"


def test_it_is_there_when_it_is_opened_again(filled: str) -> None:
    with open_store(filled) as store:
        assert store.ledger("rules").verify().number == 4


def test_a_file_is_for_its_owner_alone(made: tuple[Path, Path]) -> None:
    assert stat.S_IMODE(made[0].stat().st_mode) == 0o600


def test_a_file_that_is_not_there_is_not_made(file: Path) -> None:
    with pytest.raises(FailedError) as problem:
        open_store(f"sqlite:{file}")
    assert problem.value.code == "store.missing"
    assert not file.exists()


def test_changes_reach_the_disk_before_they_are_acknowledged(filled: str) -> None:
    with open_store(filled) as store, store.records._engine.connect() as connection:  # type: ignore[attr-defined]  # of this adapter
        settings = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")]
    assert settings == ["wal", 2]


def test_who_waits_too_long_is_told(file: Path, filled: str) -> None:
    with open_store(filled, limits=StoreLimits(store_wait=50)) as store:
        other = sqlite3.connect(file, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        ledger = store.ledger("rules")
        with pytest.raises(FailedError) as problem:
            ledger.append(ledger.head(), [entry(9)])
        assert problem.value.code == "store.busy"
        other.execute("ROLLBACK")
        other.close()
        ledger.append(ledger.head(), [entry(9)])


def test_who_reads_before_it_writes_waits_for_its_turn_too(file: Path, filled: str) -> None:
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    with open_store(filled) as store, ThreadPoolExecutor(1) as pool:
        ledger = store.ledger("rules")
        kept = pool.submit(ledger.keep_snapshot, "sum-1", ledger.head(), b"6")
        time.sleep(0.1)
        other.execute("UPDATE penstock_ledgers SET at = at")
        other.execute("COMMIT")
        other.close()
        kept.result()
        assert ledger.snapshot("sum-1") is not None


def test_a_file_that_is_no_database_is_said_to_be_none(file: Path) -> None:
    file.write_bytes(b"hello" * 1000)
    with pytest.raises(FailedError) as problem:
        open_store(f"sqlite:{file}", create=True)
    assert problem.value.code == "store.failed"
    assert "not a database" in problem.value.message


def test_a_change_cannot_be_altered_by_mistake(file: Path, filled: str) -> None:
    connection = sqlite3.connect(file)
    for statement in ("UPDATE penstock_changes SET why = 'x'", "DELETE FROM penstock_changes"):
        with pytest.raises(sqlite3.IntegrityError, match="kept as they are"):
            connection.execute(statement)
    connection.close()


@pytest.mark.parametrize("tampered", TAMPERED, ids=lambda one: one.what)
def test_tampering_shows(file: Path, filled: str, tampered: Tampered) -> None:
    tamper(file, tampered.statement)
    with open_store(filled) as store, pytest.raises(RefusedError) as problem:
        store.ledger("rules").verify()
    assert (problem.value.code, problem.value.fields["number"]) == ("store.broken", tampered.first)


@pytest.mark.parametrize("column", ["at", "who", "kind", "why", "before", "hash"])
def test_any_value_in_any_column_is_only_broken(file: Path, filled: str, column: str) -> None:
    with open_store(filled) as store:
        for value in ("'text'", "x'00'", "1.5", "9e18"):
            tamper(file, f"UPDATE penstock_changes SET {column} = {value} WHERE number = 2")  # noqa: S608  # words of this test
            with pytest.raises(RefusedError) as problem:
                store.ledger("rules").verify()
            assert (problem.value.code, problem.value.fields["number"]) == ("store.broken", 2)


def tamper(file: Path, statement: str) -> None:
    """Do what triggers would refuse."""
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA synchronous=OFF")
    for what in ("update", "delete"):
        connection.execute(f"DROP TRIGGER IF EXISTS penstock_changes_keep_{what}")
    connection.execute(statement)
    connection.commit()
    connection.close()

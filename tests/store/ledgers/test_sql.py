"""SQL stores: migrations of the schema, and SQLite."""

import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text
from tests.store.tampering import TAMPERED, Tampered

from penstock.errors import FailedError, RefusedError
from penstock.store.ledgers.folds import FoldView
from penstock.store.ledgers.ledgers import EMPTY, Store
from penstock.store.ledgers.sql import METADATA, VERSION_TABLE, SqlRecords, newest
from penstock.store.ledgers.urls import open_database, open_store
from penstock.store.limits import StoreLimits
from penstock.testing.postgres import PostgresServer
from penstock.testing.store_suite import StoreSuite, Sum, entry


class FormSuite:
    """What holds in each database."""

    def test_the_steps_lead_to_the_tables(self, url: str) -> None:
        open_store(url, create=True).close()
        with opened(url) as database, database._reading() as connection:
            options = {"version_table": VERSION_TABLE, "compare_type": True}
            assert compare_metadata(MigrationContext.configure(connection, opts=options), METADATA) == []

    def test_an_old_store_is_renewed_when_asked_to_and_keeps_its_changes(self, url: str) -> None:
        with opened(url) as database:
            assert database.migrate("0001") == ("", "0001")
            Store(database).ledger("rules").append(EMPTY, [entry(5)])
        for create in (False, True):
            with pytest.raises(RefusedError) as problem:
                open_store(url, create=create)
            assert problem.value.code == "store.old"
            assert "penstock store migrate" in problem.value.hint
        with opened(url) as database:
            assert database.migrate(dry_run=True) == ("0001", newest())
            assert database.migrate() == ("0001", newest())
            assert database.migrate() == (newest(), newest())
        with open_store(url) as store:
            view = FoldView(store.ledger("rules"), Sum())
            view.append([entry(1)])
            view.keep()
            assert FoldView(store.ledger("rules"), Sum()).state == 6

    def test_a_newer_store_is_refused(self, url: str) -> None:
        open_store(url, create=True).close()
        with opened(url) as database:
            with database._writing() as connection:
                connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))  # noqa: S608  # a name of ours
            for attempt in (partial(open_store, url), database.migrate, partial(database.migrate, dry_run=True)):
                with pytest.raises(RefusedError) as problem:
                    attempt()
                assert problem.value.code == "store.newer"

    def test_what_is_no_store_is_none_until_it_is_made(self, url: str) -> None:
        with opened(url):
            pass
        with pytest.raises(FailedError) as problem:
            open_store(url)
        assert problem.value.code == "store.missing"

    def test_many_who_make_it_at_once_make_one(self, url: str) -> None:
        def make(_number: int) -> str:
            with open_store(url, create=True) as store:
                return store.records.version

        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(make, range(4))) == {newest()}
        with open_store(url) as store:
            assert store.ledger("rules").append(EMPTY, [entry(1)])[0].number == 1


def opened(url: str) -> closing[SqlRecords]:
    return closing(open_database(url, create=True))


class TestSqliteForm(FormSuite):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:{tmp_path}/rules.db"


class TestPostgres(FormSuite):
    @pytest.fixture
    def url(self, postgres: PostgresServer) -> str:
        return postgres.url(postgres.new_database())


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

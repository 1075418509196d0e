"""The form of a database: the steps lead to the tables that are used, an old one is renewed, a newer one refused."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text

from penstock.errors import FailedError, RefusedError
from penstock.store.ledgers import schema
from penstock.store.ledgers.folds import FoldView
from penstock.store.ledgers.ledgers import Store
from penstock.store.ledgers.records import EMPTY
from penstock.store.ledgers.schema import METADATA, VERSION_TABLE
from penstock.store.ledgers.sql import SqlRecords
from penstock.store.ledgers.urls import open_database, open_store
from penstock.testing.postgres import PostgresServer
from penstock.testing.store_suite import Sum, entry


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
            assert database.migrate(dry_run=True) == ("0001", schema.newest())
            assert database.migrate() == ("0001", schema.newest())
            assert database.migrate() == (schema.newest(), schema.newest())
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
            assert set(pool.map(make, range(4))) == {schema.newest()}
        with open_store(url) as store:
            assert store.ledger("rules").append(EMPTY, [entry(1)])[0].number == 1


def opened(url: str) -> closing[SqlRecords]:
    return closing(open_database(url, create=True))


class TestSqlite(FormSuite):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:{tmp_path}/rules.db"


class TestPostgres(FormSuite):
    @pytest.fixture
    def url(self, postgres: PostgresServer) -> str:
        return postgres.url(postgres.new_database())

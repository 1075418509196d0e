"""Records in PostgreSQL."""

from collections.abc import Iterator

import psycopg
import pytest
from tests.store.tampering import TAMPERED, Tampered

from penstock.errors import FailedError, RefusedError
from penstock.store.ledgers.ledgers import EMPTY, Store
from penstock.store.ledgers.urls import open_store
from penstock.store.limits import StoreLimits
from penstock.testing.postgres import PostgresServer
from penstock.testing.store_suite import StoreSuite, entry


@pytest.fixture(scope="module")
def url(postgres: PostgresServer) -> str:
    """Return a database that the tests of this file empty for each other: to make one takes longer."""
    url = postgres.url(postgres.new_database())
    open_store(url, create=True).close()
    return url


@pytest.fixture
def connection(url: str) -> Iterator[psycopg.Connection]:
    """Return a connection to a store in which nothing is, and nothing is kept from tampering."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER TABLE penstock_changes DISABLE TRIGGER penstock_changes_keep")
        connection.execute("DELETE FROM penstock_changes")
        connection.execute("DELETE FROM penstock_ledgers")
        connection.execute("DELETE FROM penstock_snapshots")
        yield connection


class TestPostgres(StoreSuite):
    @pytest.fixture
    def store(self, url: str, connection: psycopg.Connection) -> Iterator[Store]:
        with open_store(url) as store:
            yield store


def fill(url: str) -> None:
    with open_store(url) as store:
        store.ledger("rules").append(EMPTY, [entry(number) for number in range(4)])


@pytest.mark.parametrize("tampered", TAMPERED, ids=lambda one: one.what)
def test_tampering_shows(url: str, connection: psycopg.Connection, tampered: Tampered) -> None:
    fill(url)
    connection.execute(tampered.statement)
    with open_store(url) as store, pytest.raises(RefusedError) as problem:
        store.ledger("rules").verify()
    assert (problem.value.code, problem.value.fields["number"]) == ("store.broken", tampered.first)


def test_a_change_cannot_be_altered_by_mistake(url: str, connection: psycopg.Connection) -> None:
    fill(url)
    connection.execute("ALTER TABLE penstock_changes ENABLE TRIGGER penstock_changes_keep")
    for statement in (
        "UPDATE penstock_changes SET why = 'x'",
        "DELETE FROM penstock_changes",
        "TRUNCATE penstock_changes",
    ):
        with pytest.raises(psycopg.errors.RaiseException, match="kept as they are"):
            connection.execute(statement)


def test_who_waits_too_long_is_told(url: str, connection: psycopg.Connection) -> None:
    fill(url)
    with open_store(url, limits=StoreLimits(store_wait=50)) as store:
        ledger = store.ledger("rules")
        with connection.transaction():
            connection.execute("SELECT * FROM penstock_ledgers FOR UPDATE")
            with pytest.raises(FailedError) as problem:
                ledger.append(ledger.head(), [entry(9)])
        assert problem.value.code == "store.busy"
        ledger.append(ledger.head(), [entry(9)])


def test_a_server_that_would_not_wait_for_its_disk_does(url: str, connection: psycopg.Connection) -> None:
    connection.execute("ALTER ROLE penstock SET synchronous_commit = off")
    try:
        with open_store(url) as store, store.records._engine.connect() as inner:  # type: ignore[attr-defined]  # of this adapter
            assert inner.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
    finally:
        connection.execute("ALTER ROLE penstock RESET synchronous_commit")


def test_a_password_is_never_shown(postgres: PostgresServer, url: str) -> None:
    with open_store(url) as store:
        shown = [store.url, repr(store), repr(store.records)]
    for wrong in (url.replace("penstock:", "nobody:"), url.replace("127.0.0.1", "127.0.0.2"), f"{url}x"):
        with pytest.raises(FailedError) as problem:
            open_store(wrong)
        assert problem.value.code == "store.failed"
        shown += [str(problem.value), repr(problem.value.as_dict()), repr(problem.value.__cause__)]
    assert not [text for text in shown if postgres.password in text]

"""The helper that starts a real PostgreSQL server; that it keeps its data over a crash is shown by tests of stores."""

import psycopg
import pytest

from penstock.errors import FailedError
from penstock.testing.postgres import PostgresServer, find_postgres


def test_a_server_answers_those_who_know_its_password(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.url()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres.url().replace(postgres.password, "wrong"))


def test_databases_are_apart(postgres: PostgresServer) -> None:
    assert postgres.new_database() != postgres.new_database()


def test_no_program_is_an_error_with_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_args, **_kwargs: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda *_args: None)
    with pytest.raises(FailedError) as failed:
        find_postgres()
    assert failed.value.code == "testing.no-postgres"

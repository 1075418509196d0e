"""Stores by their URLs."""

import sys

import pytest

from penstock.errors import FailedError, MalformedError
from penstock.store.ledgers.ledgers import EMPTY
from penstock.store.ledgers.urls import open_store, shown_url
from penstock.testing.store_suite import entry


def test_memory_ends_with_the_store() -> None:
    with open_store("memory:") as store:
        assert store.ledger("rules").append(EMPTY, [entry(1)])[0].number == 1
        assert store.url == "memory:"


@pytest.mark.parametrize(
    "url", ["", "sqlite:", "sqlite://x", "sqlite:a\0b", "rules.db", "mysql://u:secret@h/d", "postgresql://h:x/d"]
)
def test_what_names_no_store_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(MalformedError) as problem:
        open_store(url, create=True)
    assert problem.value.code == "store.url"
    assert "secret" not in f"{problem.value} {problem.value.hint}"


def test_a_shown_url_has_no_password() -> None:
    shown = shown_url("postgresql://ops:secret@db.example:5433/penstock?sslpassword=secret")
    assert shown == "postgresql://ops:***@db.example:5433/penstock"
    assert shown_url("postgres://db.example/penstock") == "postgresql://db.example/penstock"


def test_postgresql_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "penstock.store.ledgers.postgres", raising=False)
    with pytest.raises(FailedError) as problem:
        open_store("postgresql://db.example/penstock")
    assert problem.value.code == "store.extra"
    assert "penstock[postgres]" in problem.value.hint

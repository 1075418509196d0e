"""`penstock store` and `penstock log`."""

import sqlite3
from pathlib import Path

import pytest
from tests.apps.conftest import Shell

from penstock.store.ledgers.ledgers import EMPTY
from penstock.store.ledgers.urls import open_database, open_store
from penstock.testing.postgres import PostgresServer
from penstock.testing.store_suite import ALICE, entry

URL = "sqlite:rules.db"


@pytest.fixture
def filled(penstock: Shell) -> Shell:
    """A store with two ledgers."""
    with open_store(URL, create=True) as store:
        store.ledger("moderator").append(EMPTY, [entry(number, minutes=number) for number in range(4)])
        store.ledger("other").append(EMPTY, [entry(9)])
    return penstock


def tamper(statement: str) -> None:
    connection = sqlite3.connect("rules.db")
    connection.execute("DROP TRIGGER penstock_changes_keep_update")
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_a_store_is_made_and_shown(penstock: Shell) -> None:
    assert penstock("store", "show", URL).code == "store.missing"
    assert "would be a new store" in penstock.ok("store", "migrate", URL, "--dry-run").out
    assert not Path("rules.db").exists()
    assert penstock.ok("store", "migrate", URL, "-o", "json").json == {
        "store": URL,
        "before": "",
        "after": "0003",
        "written": True,
    }
    assert "already" in penstock.ok("store", "migrate", URL).out
    assert "no ledgers yet" in penstock.ok("store", "show", URL).out
    assert penstock.ok("log", "verify", URL, "-o", "json").json == {"ok": True, "store": URL, "ledgers": []}


def test_nothing_is_kept_in_memory(filled: Shell) -> None:
    filled.ok("store", "backup", URL, "b")
    Path("rules.yaml").write_text("scope: upward\nowner: plant\ntypes: {Line: }\n", encoding="utf-8")
    for more in ((), ("--dry-run",)):
        assert filled("store", "restore", "b", "memory:", *more).code == "store.memory"
        assert filled("store", "backup", "memory:", "c", *more).code == "store.memory"
        assert filled("store", "migrate", "memory:", *more).code == "store.memory"
        begun = filled("moderator", "init", "rules.yaml", "--store", "memory:", "--unsigned", "--as", "plant", *more)
        assert (begun.status, begun.code) == (2, "store.memory")
    assert not Path("c").exists()


def test_show_names_the_ledgers(filled: Shell) -> None:
    shown = filled.ok("store", "show", URL, "-o", "json").json
    assert [(one["ledger"], one["changes"]) for one in shown["ledgers"]] == [("moderator", 4), ("other", 1)]
    assert shown["form"] == "0003"
    assert shown["ledgers"][0]["last"].startswith("2026-05-01T12:03")
    assert "moderator" in filled.ok("store", "show", URL).out


def test_an_old_store_says_what_to_do(penstock: Shell) -> None:
    database = open_database(URL, create=True)
    database.migrate("0001")
    database.close()
    refused = penstock("log", "verify", URL)
    assert (refused.status, refused.code) == (1, "store.old")
    assert f"penstock store migrate {URL}" in refused.err
    assert "would be of the form 0003" in penstock.ok("store", "migrate", URL, "--dry-run").out
    assert "is of the form 0003" in penstock.ok("store", "migrate", URL).out
    penstock.ok("log", "verify", URL)


def test_verify_names_the_first_broken_change(filled: Shell) -> None:
    assert filled.ok("log", "verify", URL).out.count("✓") == 2
    tamper("UPDATE penstock_changes SET why = 'other' WHERE ledger = 'moderator' AND number > 1")
    ran = filled("log", "verify", URL)
    assert (ran.status, ran.code) == (1, "store.broken")
    assert "✗ change 2 of `moderator`" in ran.out
    assert "✓ 1 changes  other:1:" in ran.out
    found = filled("log", "verify", URL, "-o", "json").json
    assert not found["ok"]
    assert [(one["ok"], one.get("number")) for one in found["ledgers"]] == [(False, 2), (True, None)]


def test_verify_holds_a_ledger_against_a_head_that_was_noted(filled: Shell) -> None:
    noted = [one["head"] for one in filled.ok("log", "verify", URL, "-o", "json").json["ledgers"]]
    filled.ok("log", "verify", URL, "--head", noted[0], "--head", noted[1])
    Path("rules.db").rename("before.db")
    with open_store(URL, create=True) as store:
        store.ledger("moderator").append(EMPTY, [entry(number) for number in range(4)])
    # A whole new chain is good in itself.
    filled.ok("log", "verify", URL)
    ran = filled("log", "verify", URL, "--head", noted[0])
    assert (ran.status, ran.code) == (1, "store.broken")
    gone = filled("log", "verify", URL, "--head", noted[1])
    assert (gone.status, gone.code) == (1, "store.broken")
    wrong = filled("log", "verify", URL, "--head", "moderator:4")
    assert (wrong.status, wrong.code) == (2, "store.value")


def test_show_says_who_and_why(filled: Shell) -> None:
    shown = filled.ok("log", "show", URL, "moderator", "--from", "2", "--to", "3", "-o", "json").json
    assert [(one["number"], one["who"], one["why"]) for one in shown["changes"]] == [
        (2, str(ALICE), "because"),
        (3, str(ALICE), "because"),
    ]
    assert bytes.fromhex(shown["changes"][0]["after"]) == b"1"
    lines = filled.ok("log", "show", URL, "moderator").out.splitlines()
    assert len(lines) == 5
    assert filled("log", "show", URL, "Not A Ledger").code == "store.value"


def test_backup_and_restore(filled: Shell) -> None:
    assert "would write" in filled.ok("store", "backup", URL, "rules.backup", "--dry-run").out
    assert not Path("rules.backup").exists()
    filled.ok("store", "backup", URL, "rules.backup")
    assert filled("store", "backup", URL, "rules.backup").code == "file.exists"
    filled.ok("store", "backup", URL, "rules.backup", "--overwrite", "-o", "json")
    dry = filled.ok("store", "restore", "rules.backup", "sqlite:new.db", "--dry-run", "-o", "json").json
    assert not dry["written"]
    assert not Path("new.db").exists()
    done = filled.ok("store", "restore", "rules.backup", "sqlite:new.db", "-o", "json").json
    assert done["ledgers"] == dry["ledgers"] == filled.ok("store", "show", URL, "-o", "json").json["ledgers"]
    filled.ok("log", "verify", "sqlite:new.db")
    with open_store("sqlite:new.db") as store:
        store.ledger("other").append(store.ledger("other").head(), [entry(1)])
    for more in ((), ("--dry-run",)):
        assert filled("store", "restore", "rules.backup", "sqlite:new.db", *more).code == "store.not-empty"


def test_a_damaged_backup_makes_no_store(filled: Shell) -> None:
    filled.ok("store", "backup", URL, "rules.backup")
    Path("rules.backup").write_bytes(Path("rules.backup").read_bytes()[:-20])
    ran = filled("store", "restore", "rules.backup", "sqlite:new.db")
    assert ran.status == 2
    assert not Path("new.db").exists()


def test_a_store_moves_to_postgresql_and_back(filled: Shell, postgres: PostgresServer) -> None:
    url = postgres.url(postgres.new_database())
    assert filled("store", "show", url).code == "store.missing"
    filled.ok("store", "backup", URL, "one.backup")
    said = [
        filled.ok("store", "restore", "one.backup", url),
        filled.ok("store", "show", url),
        filled.ok("log", "verify", url, "-o", "json"),
        filled.ok("store", "migrate", url),
        filled.ok("store", "backup", url, "two.backup"),
        filled("store", "show", url.replace("127.0.0.1", "127.0.0.9")),
    ]
    assert Path("one.backup").read_bytes() == Path("two.backup").read_bytes()
    assert not [ran for ran in said if postgres.password in ran.out + ran.err]


def test_a_store_is_named_by_the_environment_too(filled: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_STORE", URL)
    assert "moderator" in filled.ok("store", "show").out

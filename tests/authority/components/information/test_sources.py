"""Sources of attributes: each value has a change time, and a source that fails answers nothing."""

import asyncio
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.authority.components.exchange.samples import AttributeQuery
from penstock.authority.components.information import sources as module
from penstock.authority.components.information.sources import (
    AttributeSource,
    EntityTable,
    FileAttributes,
    FoundAttribute,
    FunctionAttributes,
    HttpAttributes,
    SqlAttributes,
    change_time,
    parse_dn,
    plain_value,
    read_ldif,
)
from penstock.errors import FailedError, MalformedError, PenstockError
from penstock.policy.language.requests import ENVIRONMENT, RESOURCE, SUBJECT
from penstock.testing.fabric_suite import ManualClock, WrongClock

STAFF = EntityTable("subject", "user", {"rank": "grade", "groups": "member"})


def ask(source: AttributeSource, name: str, *names: str, kind: str = "user", of: str = SUBJECT) -> dict[str, Any]:
    async def read() -> Mapping[str, FoundAttribute]:
        return await source.read(AttributeQuery(of, kind, name, names or ("rank", "groups")))

    return {one: (found.value, found.changed) for one, found in asyncio.run(read()).items()}


def written(path: Path, text: str, at: float) -> Path:
    path.write_text(text, encoding="utf-8")
    os.utime(path, (at, at))
    return path


FILES = {
    "staff.csv": "id,grade,member\nalice,3,\nbob,,staff\n",
    "staff.json": json.dumps({"alice": {"grade": 3}, "bob": {"member": ["staff", "cards"]}}),
    "staff.toml": '[alice]\ngrade = 3\n[bob]\nmember = ["staff", "cards"]\n',
    "staff.ldif": """version: 1
# people
dn: ou=cards,o=bank
member: staff

dn: uid=Alice,ou=cards,o=bank
id: alice
grade: 3

dn: uid=bob,ou=cards,o=bank
id: bob
member;lang-en: sta
 ff
member:: Y2FyZHM=
""",
}
VALUES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "staff.csv": ({"rank": "3", "groups": None}, {"rank": None, "groups": "staff"}),
    "staff.json": ({"rank": 3, "groups": None}, {"rank": None, "groups": ["staff", "cards"]}),
    "staff.toml": ({"rank": 3, "groups": None}, {"rank": None, "groups": ["staff", "cards"]}),
    "staff.ldif": ({"rank": "3", "groups": "staff"}, {"rank": None, "groups": ["staff", "cards"]}),
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_every_kind(tmp_path: Path, name: str) -> None:
    source = FileAttributes(written(tmp_path / name, FILES[name], 100.0), STAFF, ManualClock())
    for entity, values in zip(("alice", "bob"), VALUES[name], strict=True):
        assert ask(source, entity) == {one: (value, 100.0) for one, value in values.items()}
    assert ask(source, "carol") == {}
    assert ask(source, "alice", kind="guest") == ask(source, "alice", of=RESOURCE) == ask(source, "alice", "age") == {}
    assert STAFF.provides == {"subject/rank", "subject/groups"}


def test_a_file_is_read_again_when_it_changed_and_each_field_has_its_own_time(tmp_path: Path) -> None:
    clock = ManualClock()
    path = written(tmp_path / "staff.json", '{"alice": {"grade": 3, "member": "a"}}', 100.0)
    source = FileAttributes(path, STAFF, clock)
    assert ask(source, "alice") == {"rank": (3, 100.0), "groups": ("a", 100.0)}
    written(path, '{"alice": {"grade": 3.0, "member": "a"}}', 200.0)
    assert ask(source, "alice")["rank"] == (3, 100.0), "it is not looked at all the time"
    asyncio.run(clock.advance(1.0))
    assert ask(source, "alice") == {"rank": (3.0, 200.0), "groups": ("a", 100.0)}
    asyncio.run(clock.advance(1.0))
    written(path, "{", 300.0)
    with pytest.raises(MalformedError, match=r"staff\.json.*not JSON \[component\.source\]"):
        ask(source, "alice")
    path.unlink()
    with pytest.raises(FailedError, match=r"component\.source"):
        ask(source, "alice")
    written(path, '{"bob": {}}', 400.0)
    assert ask(source, "alice") == {}


def test_a_file_is_read_again_after_the_clock_was_set_back(tmp_path: Path) -> None:
    clock = ManualClock()
    wrong = WrongClock(clock)
    path = written(tmp_path / "staff.json", '{"alice": {"grade": 3}}', 100.0)
    source = FileAttributes(path, STAFF, wrong)
    assert ask(source, "alice")["rank"] == (3, 100.0)
    wrong.wrong = -3_600.0
    written(path, '{"alice": {"grade": 1}}', 200.0)
    asyncio.run(clock.advance(1.0))
    assert ask(source, "alice")["rank"] == (1, 200.0)


def test_change_times_of_their_own(tmp_path: Path) -> None:
    table = EntityTable("subject", "user", {"rank": "grade"}, changed="modifyTimestamp")
    path = written(
        tmp_path / "staff.ldif",
        "dn: uid=a\nid: a\ngrade: 3\nmodifyTimestamp: 19700101000010Z\n\ndn: uid=b\nid: b\n",
        100.0,
    )
    source = FileAttributes(path, table, ManualClock())
    assert (ask(source, "a"), ask(source, "b")) == ({"rank": ("3", 10.0)}, {"rank": (None, 100.0)})


def test_only_entries_below_the_base_are_entities(tmp_path: Path) -> None:
    text = "dn: uid=a,ou=staff,o=bank\nid: a\ngrade: 1\n\ndn: uid=b,ou=guests,o=bank\nid: b\ngrade: 2\n"
    path = written(tmp_path / "staff.ldif", text, 100.0)
    source = FileAttributes(path, STAFF, ManualClock(), base="OU=staff, o=Bank")
    assert ask(source, "a", "rank") == {"rank": ("1", 100.0)}
    assert ask(source, "b", "rank") == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "id,grade\nalice,3\n"),
        ("a.csv", "id,grade,member\nalice,3,x,y\n"),
        ("a.csv", "id,grade,member\nalice,3,\nalice,4,\n"),
        ("a.csv", "id,grade,member\n\xff"),
        ("a.json", "[]"),
        ("a.json", '{"alice": 3}'),
        ("a.json", '{"alice": {"grade": {"a": 1}}}'),
        ("a.json", '{"alice": {"grade": NaN}}'),
        ("a.json", "[" * 100_000),
        ("a.toml", "alice = 3"),
        ("a.toml", "="),
        ("a.ldif", "uid: a"),
        ("a.ldif", "dn: uid"),
        ("a.ldif", "dn: uid=a\nid:: %%"),
        ("a.ldif", "dn: uid=a\njpeg:< file:///etc/passwd"),
        ("a.ldif", "dn: uid=a\nchangetype: delete"),
        ("a.ldif", "dn: uid=a\n\ndn: uid=A"),
        ("a.ldif", "dn: uid=a\nno value"),
    ],
)
def test_malformed_files_answer_nothing(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(PenstockError, match=r"component\.(source|value)"):
        ask(FileAttributes(path, STAFF, ManualClock()), "alice")


def test_the_environment_is_one_entity(tmp_path: Path) -> None:
    path = written(tmp_path / "now.toml", "[environment]\nload = 0.5\n", 7.0)
    source = FileAttributes(path, EntityTable("environment", "", {"load": "load"}), ManualClock())
    assert ask(source, "", "load", kind="", of=ENVIRONMENT) == {"load": (0.5, 7.0)}


@pytest.mark.parametrize(
    "wrong",
    [("user", "user", {"a": "a"}), ("subject", "", {"a": "a"}), ("environment", "x", {"a": "a"}), ("subject", "u", {})],
)
def test_tables_are_checked(wrong: tuple[str, str, dict[str, str]], tmp_path: Path) -> None:
    with pytest.raises(MalformedError, match=r"component\.source"):
        EntityTable(*wrong)
    with pytest.raises(MalformedError, match=r"component\.source"):
        FileAttributes(tmp_path / "a.xml", STAFF, ManualClock())


def test_names_of_trees() -> None:
    assert parse_dn(r"cn=Smith\, John ,ou=Staff") == (("cn", "smith, john"), ("ou", "staff"))
    assert parse_dn(" ") == ()
    assert read_ldif(b"dn: o=x\r\nA: 1\r\na;x-y: 2\r\n") == {(("o", "x"),): {"a": ["1", "2"]}}


@given(st.binary(max_size=60))
def test_ldif_is_read_or_refused(data: bytes) -> None:
    with suppress(MalformedError):
        read_ldif(b"dn: " + data)


# ----------------------------------------------------------------------------------------------------------------------
# SQL.


def test_sql_with_parameters_only(tmp_path: Path) -> None:
    path = tmp_path / "bank.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE account (number TEXT, owner TEXT, balance NUMERIC, changed TEXT)")
        database.execute("INSERT INTO account VALUES ('1', 'alice', 12.5, '1970-01-01T00:01:00Z')")
        database.execute("INSERT INTO account VALUES ('1', 'bob', 12.5, '1970-01-01T00:02:00Z')")
        database.execute("INSERT INTO account VALUES ('2', 'carol', 3, NULL)")
    table = EntityTable("resource", "account", {"owner": "owner", "balance": "balance"}, changed="changed")
    url, query = f"sqlite:{path}", "SELECT owner, balance, changed FROM account WHERE number = :id ORDER BY owner"
    source = SqlAttributes(url, query, table, ManualClock())

    def of(number: str) -> dict[str, Any]:
        return ask(source, number, "owner", "balance", kind="account", of=RESOURCE)

    assert of("1") == {"owner": (["alice", "bob"], 120.0), "balance": ([12.5, 12.5], 120.0)}
    assert of("2") == {"owner": ("carol", 0.0), "balance": (3, 0.0)}
    assert of("3") == of("1' OR '1' = '1") == {}
    typed = SqlAttributes(
        url,
        "SELECT owner, :type AS kind FROM account WHERE number = :id",
        EntityTable("resource", "account", {"kind": "kind"}),
        ManualClock(),
    )
    assert ask(typed, "2", "kind", kind="account", of=RESOURCE) == {"kind": ("account", 0.0)}
    writes = SqlAttributes(url, "DELETE FROM account WHERE number = :id RETURNING owner", table, ManualClock())
    for wrong in (writes, SqlAttributes(f"{url}.none", query, table, ManualClock())):
        with pytest.raises(FailedError, match=r"fact\.source"):
            ask(wrong, "1", "owner", kind="account", of=RESOURCE)
    assert of("2")["owner"] == ("carol", 0.0)
    for one in (source, typed, writes):
        asyncio.run(one.close())


def test_a_source_without_change_times_sees_changes_itself() -> None:
    clock, values = ManualClock(), {"grade": 1}

    async def known(query: AttributeQuery) -> Mapping[str, object] | None:
        return values if query.id == "alice" else None

    source = FunctionAttributes(known, STAFF, clock)
    assert ask(source, "alice", "rank") == {"rank": (1, 0.0)}
    asyncio.run(clock.advance(5.0))
    assert ask(source, "alice", "rank") == {"rank": (1, 0.0)}
    values["grade"] = 2
    assert ask(source, "alice", "rank") == {"rank": (2, clock.now())}
    assert ask(source, "bob", "rank") == {}
    plain = FunctionAttributes(lambda _query: {"grade": 4, "member": ()}, STAFF, clock)
    assert ask(plain, "alice") == {"rank": (4, 0.0), "groups": ([], 0.0)}


def test_what_was_seen_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SEEN", 1)
    source = FunctionAttributes(lambda query: {"grade": query.id}, STAFF, ManualClock())
    for name in ("a", "b", "a"):
        assert ask(source, name, "rank") == {"rank": (name, 0.0)}
    assert len(source._values) == 1


def test_a_source_that_hangs_is_busy_and_holds_up_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAITING", 1)
    go = threading.Event()

    def slow(_query: AttributeQuery) -> Mapping[str, object]:
        go.wait(30)
        return {}

    async def scenario() -> None:
        query = AttributeQuery(SUBJECT, "user", "alice", ("rank",))
        hanging = FunctionAttributes(slow, STAFF, ManualClock())
        first = asyncio.ensure_future(hanging.read(query))
        await asyncio.sleep(0)
        with pytest.raises(FailedError, match=r"component\.busy"):
            await hanging.read(query)
        other = FunctionAttributes(lambda _query: {"grade": 1}, STAFF, ManualClock())
        assert (await other.read(query))["rank"].value == 1
        go.set()
        await first
        await hanging.close()

    asyncio.run(scenario())


# ----------------------------------------------------------------------------------------------------------------------
# HTTP.


class _Directory(BaseHTTPRequestHandler):
    def do_GET(self) -> None:  # the name that the server calls
        name = unquote(self.path).removeprefix("/user/")
        status, body = {
            "alice": (200, b'{"grade": 3, "member": ["a"]}'),
            "a/b?c": (200, b'{"grade": 4}'),
            "list": (200, b"[]"),
            "junk": (200, b"\xff"),
            "failing": (500, b"{}"),
            "moved": (302, b""),
        }.get(name, (404, b""))
        self.send_response(status)
        if name == "alice":
            self.send_header("Last-Modified", "Thu, 01 Jan 1970 00:00:42 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def directory() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Directory) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/{{type}}/{{id}}"
        finally:
            server.shutdown()
            thread.join()


def test_attributes_of_an_endpoint() -> None:
    with directory() as url:
        source = HttpAttributes(url, STAFF, ManualClock())
        assert ask(source, "alice") == {"rank": (3, 42.0), "groups": (["a"], 42.0)}
        assert ask(source, "a/b?c", "rank") == {"rank": (4, 0.0)}
        assert ask(source, "nobody") == {}
        for name in ("list", "junk", "failing", "moved"):
            with pytest.raises(PenstockError, match=r"component\.source|fact\.source"):
                ask(source, name)
        asyncio.run(source.close())


# ----------------------------------------------------------------------------------------------------------------------
# Values.


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Decimal("3.0"), 3),
        (Decimal("3.5"), 3.5),
        (True, True),
        (date(2026, 1, 31), "2026-01-31"),
        (datetime(2026, 1, 31, 9, tzinfo=UTC), "2026-01-31T09:00:00+00:00"),
        ([1, None, "a"], [1, "a"]),
    ],
)
def test_values_become_plain(value: object, plain: object) -> None:
    assert repr(plain_value(value)) == repr(plain)


@pytest.mark.parametrize("value", [b"x", {"a": 1}, float("inf"), Decimal("NaN"), object()])
def test_other_values_are_refused_and_not_shown(value: object) -> None:
    with pytest.raises(MalformedError, match=r"component\.value"):
        plain_value(value)


def test_change_times() -> None:
    moment = datetime(2026, 1, 31, 9, tzinfo=UTC)
    for value in (moment, moment.replace(tzinfo=None), moment.timestamp(), "2026-01-31T09:00:00Z", "20260131090000Z"):
        assert change_time(value) == moment.timestamp()
    for wrong in ("yesterday", "20261331090000Z", -1, True, None, float("nan"), float("inf")):
        with pytest.raises(MalformedError, match=r"component\.value"):
            change_time(wrong)

"""Facts from SQL tables, HTTP endpoints and events: what they are, and when they become unknown."""

import asyncio
import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.authority import facts as module
from penstock.authority.facts import EventSource, FactFeed, FactRow, FactTable, HttpRows, SqlRows, TableSource
from penstock.errors import FailedError, PenstockError
from penstock.model.values import Scalar
from penstock.roles.engine import SetFact
from penstock.roles.language import FactDeclaration, ParameterKind, RoleParameter
from penstock.testing.fabric_suite import ManualClock, WrongClock, refused
from penstock.testing.postgres import PostgresServer

DUTY = FactDeclaration(
    "on_duty", (RoleParameter("badge", ParameterKind.INTEGER), RoleParameter("ward", ParameterKind.STRING))
)
LEVEL = FactDeclaration("alarm", kind=ParameterKind.INTEGER)


def duty(badge: int, ward: str, value: Scalar) -> SetFact:
    return SetFact("on_duty", value, (badge, ward))


def step(table: FactTable, now: float) -> list[SetFact]:
    changes = table.changes(now)
    table.applied(changes)
    return changes


# The table alone.


def test_a_table_has_only_what_changed() -> None:
    table = FactTable(DUTY, 30)
    table.replace([(1, "a"), (2, "b")], 0)
    assert step(table, 0) == [duty(1, "a", True), duty(2, "b", True)]
    table.replace([{"ward": "b", "badge": 2}, {"ward": "c", "badge": 3, "since": "x"}], 10)
    assert step(table, 10) == [duty(1, "a", False), duty(3, "c", True)]
    assert step(table, 39.9) == []
    assert table.next_due == 40
    assert {one.value for one in step(table, 40)} == {None}
    assert table.next_due is None


def test_what_the_ledger_still_holds_is_unknown_until_the_source_answers() -> None:
    table = FactTable(DUTY, 30, {(1, "a"): True})
    assert step(table, 0) == [duty(1, "a", None)]
    table = FactTable(DUTY, 30, {(1, "a"): True, (2, "b"): True})
    table.replace([(1, "a")], 0)
    assert step(table, 0) == [duty(2, "b", False)]


@pytest.mark.parametrize(
    "row", [(1,), (1, "a", "b"), (None, "a"), ("1", "a"), (1, 2), {"badge": 1}, (2**64, "a"), (1, "\ud800"), (1.5, "a")]
)
def test_a_row_that_does_not_fit_changes_nothing(row: FactRow) -> None:
    table = FactTable(DUTY, 30)
    table.replace([(1, "a")], 0)
    step(table, 0)
    with refused("fact.row"):
        table.replace([(2, "b"), row], 5)
    assert step(table, 5) == []
    assert table.next_due == 30


def test_values_of_databases_become_those_of_the_policy() -> None:
    def value_of(kind: ParameterKind, found: object) -> Scalar:
        table = FactTable(FactDeclaration("x", kind=kind), 30)
        table.replace([(found,)], 0)
        return next(one.value for one in step(table, 0))

    assert value_of(ParameterKind.BOOLEAN, 1) is True
    assert value_of(ParameterKind.INTEGER, Decimal(7)) == 7
    assert value_of(ParameterKind.FLOAT, Decimal("7.5")) == 7.5
    assert value_of(ParameterKind.FLOAT, 7) == 7.0
    assert str(value_of(ParameterKind.TIMESTAMP, "2026-01-31T09:00Z")) == "2026-01-31 09:00:00+00:00"
    for kind, wrong in [
        (ParameterKind.INTEGER, Decimal("7.5")),
        (ParameterKind.BOOLEAN, 2),
        (ParameterKind.FLOAT, float("nan")),
        (ParameterKind.PRINCIPAL, "nobody"),
        (ParameterKind.INTEGER, True),
    ]:
        with refused("fact.row"):
            value_of(kind, wrong)


def test_a_fact_with_one_value_has_one_row() -> None:
    table = FactTable(LEVEL, 30)
    with refused("fact.row"):
        table.replace([(1,), (2,)], 0)
    table.replace([(3,)], 0)
    assert step(table, 0) == [SetFact("alarm", 3)]
    table.replace([], 1)
    assert step(table, 1) == [SetFact("alarm", None)]


def test_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FACT_ROWS", 2)
    table = FactTable(DUTY, 30)
    with refused("fact.rows"):
        table.replace([(number, "a") for number in range(3)], 0)
    table.update((1, "a"), True, 0)
    table.update((2, "a"), True, 0)
    with refused("fact.rows"):
        table.update((3, "a"), True, 0)
    table.update((2, "a"), False, 0)


Reading = list[tuple[int, str]] | None
ROWS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab")), max_size=4)


@given(st.lists(st.tuples(st.floats(0, 25), st.none() | ROWS), max_size=12))
def test_the_ledger_ends_with_the_facts_of_the_last_answer(history: list[tuple[float, Reading]]) -> None:
    """Naive version: true is what the newest answer contains, if it is younger than `max_age`."""
    table, ledger, now, newest = FactTable(DUTY, 30), dict[Any, Scalar](), 0.0, (-100.0, list[tuple[int, str]]())
    for pause, rows in history:
        now += pause
        if rows is not None:
            table.replace(rows, now)
            newest = now, rows
        for change in step(table, now):
            assert ledger.get(change.arguments) is not change.value
            ledger[change.arguments] = change.value
        fresh = now < newest[0] + 30
        assert {key for key, value in ledger.items() if value} == (set(newest[1]) if fresh else set())
        assert fresh or all(value is None for value in ledger.values())


# The feed.


class Ledger:
    """What was applied, and the current facts."""

    def __init__(self) -> None:
        self.facts: dict[tuple[str, tuple[object, ...]], Scalar] = {}
        self.changes = 0
        self.fails = False
        self.notes: list[str] = []

    async def apply(self, changes: Sequence[SetFact]) -> None:
        if self.fails:
            raise FailedError("store.failed", "the ledger is away")
        self.changes += len(changes)
        self.facts.update({(one.fact, one.arguments): one.value for one in changes})

    def note(self, fact: str, error: PenstockError) -> None:
        self.notes.append(f"{fact}: {error.code}")

    @property
    def true(self) -> set[tuple[object, ...]]:
        return {arguments for (_fact, arguments), value in self.facts.items() if value is True}


class Table:
    """A source whose rows a test sets; an error is raised; None hangs."""

    def __init__(self, rows: list[FactRow] | PenstockError | None) -> None:
        self.rows = rows

    async def __call__(self) -> Iterable[FactRow]:
        if isinstance(self.rows, PenstockError):
            raise self.rows
        if self.rows is None:
            await asyncio.Event().wait()
        return self.rows or []


@pytest.mark.parametrize("step", [0.0, -3_600.0, 3_600.0])
def test_a_source_that_is_down_ends_its_facts_when_they_are_too_old(step: float) -> None:
    """Also if the clock is set meanwhile."""

    async def scenario() -> None:
        clock, ledger, table = ManualClock(), Ledger(), Table([(1, "a")])
        wrong = WrongClock(clock)
        feed = FactFeed(wrong, ledger.apply, note=ledger.note)
        feed.watch(TableSource(fact=DUTY, read=table, every=10, max_age=30))
        async with feed:
            await clock.advance(0)
            assert ledger.true == {(1, "a")}
            table.rows = FailedError("fact.source", "down")
            wrong.wrong = step
            await clock.advance(29)
            assert ledger.true == {(1, "a")}
            await clock.advance(1)
            assert ledger.true == set()
            assert ledger.facts["on_duty", (1, "a")] is None
            assert set(ledger.notes) == {"on_duty: fact.source"}
            table.rows = [(1, "a")]
            await clock.advance(10)
            assert ledger.true == {(1, "a")}

    asyncio.run(scenario())


def test_a_reading_that_hangs_does_not_keep_facts() -> None:
    async def scenario() -> None:
        clock, ledger, table = ManualClock(), Ledger(), Table([(1, "a")])
        feed = FactFeed(clock, ledger.apply, note=ledger.note)
        feed.watch(TableSource(fact=DUTY, read=table, every=0.02, max_age=0.05, timeout=0.05))
        async with feed:
            await clock.advance(0)
            assert ledger.true == {(1, "a")}
            table.rows = None
            await clock.advance(0.02)
            # The reading ends by the event loop's time, and the facts by the clock's.
            await clock.advance(0.03)
            while ledger.true:
                await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_changes_that_were_not_stored_are_offered_again() -> None:
    async def scenario() -> None:
        clock, ledger, table = ManualClock(), Ledger(), Table([(1, "a")])
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        ledger.fails = True
        feed = FactFeed(clock, ledger.apply)
        feed.watch(TableSource(fact=DUTY, read=table))
        async with feed:
            await clock.advance(1)
            assert not ledger.facts
            ledger.fails = False
            while not ledger.true:
                await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_events_are_facts_until_they_are_too_old() -> None:
    async def scenario() -> None:
        clock, ledger = ManualClock(), Ledger()
        feed = FactFeed(clock, ledger.apply, note=ledger.note)
        feed.watch(EventSource(fact=DUTY, arguments=("badge", "ward"), value="present", max_age=60))
        feed.watch(EventSource(fact=LEVEL, value="level", max_age=60))
        async with feed:
            feed.take("on_duty", {"badge": 1, "ward": "a", "present": True})
            feed.take("on_duty", {"badge": 2, "ward": "a", "present": True})
            feed.take("alarm", {"level": 3})
            await clock.advance(30)
            assert ledger.true == {(1, "a"), (2, "a")}
            feed.take("on_duty", {"badge": 1, "ward": "a", "present": False})
            feed.take("on_duty", {"badge": 2, "ward": "a", "present": True})
            # Hidden attributes arrive as None.
            feed.take("on_duty", {"badge": None, "ward": "a", "present": True})
            await clock.advance(31)
            assert ledger.true == {(2, "a")}
            assert ledger.facts["alarm", ()] is None
            assert ledger.notes == ["on_duty: fact.row"]
            await clock.advance(30)
            assert ledger.true == set()

    asyncio.run(scenario())


def test_sources_are_checked_before_they_are_read() -> None:
    feed = FactFeed(ManualClock(), Ledger().apply)
    feed.watch(TableSource(fact=DUTY, read=Table([])))
    with refused("fact.twice"):
        feed.watch(EventSource(fact=DUTY, arguments=("a", "b")))
    with refused("fact.times"):
        TableSource(fact=DUTY, read=Table([]), every=30, max_age=30)
    with refused("fact.row"):
        EventSource(fact=DUTY, arguments=("badge",))
    with refused("fact.row"):
        EventSource(fact=LEVEL)


# SQL.


def test_rows_of_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "staff.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE duty (badge INTEGER, ward TEXT)")
        database.execute("INSERT INTO duty VALUES (1, 'a')")
    rows = SqlRows(f"sqlite:{path}", "SELECT badge, ward FROM duty")
    assert asyncio.run(_read(rows)) == [(1, "a")]
    with refused("fact.source"):
        SqlRows(f"sqlite:{path}", "SELECT nothing FROM duty").read()
    with refused("fact.source"):
        SqlRows(f"sqlite:{path}", "DELETE FROM duty RETURNING badge").read()
    with refused("fact.source"):
        SqlRows(f"sqlite:{tmp_path}/none.db", "SELECT 1").read()
    assert not (tmp_path / "none.db").exists()
    assert rows.read() == [(1, "a")]
    path.unlink()


async def _read(rows: SqlRows | HttpRows) -> list[FactRow]:
    return list(await rows())


def test_rows_of_postgresql(postgres: PostgresServer) -> None:
    url = postgres.url(postgres.new_database())
    with psycopg.connect(url) as database:
        database.execute("CREATE TABLE duty (badge integer, ward text)")
        database.execute("INSERT INTO duty VALUES (1, 'a')")
    assert SqlRows(url, "SELECT badge, ward FROM duty").read() == [(1, "a")]
    with refused("fact.source"):
        SqlRows(url, "DELETE FROM duty RETURNING badge, ward").read()
    with refused("fact.source"):
        SqlRows(url, "SELECT pg_sleep(60)", timeout=0.2).read()


@pytest.mark.parametrize("url", ["mysql://h/d", "sqlite:///x.db", "nothing", "postgresql://u:p@h:port/d"])
def test_urls_of_databases_are_checked(url: str) -> None:
    with pytest.raises(PenstockError) as raised:
        SqlRows(url, "SELECT 1").read()
    assert raised.value.code == "fact.url"
    assert "p@h" not in str(raised.value)


# HTTP.


class Endpoint(ThreadingHTTPServer):
    """A server with one document, and how often it was sent."""

    body = json.dumps([[1, "a"], {"badge": 2, "ward": "b"}]).encode()
    status = 200
    sent = 0
    stalls: threading.Event | None = None


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_GET(self) -> None:  # the name that the server calls
        if self.server.stalls is not None:
            self.server.stalls.wait(30)
        tag = f'"{hash(self.server.body)}"'
        if self.headers.get("If-None-Match") == tag:
            self.send_response(304)
            self.end_headers()
            return
        self.send_response(self.server.status)
        self.send_header("ETag", tag)
        self.send_header("Location", "/other")
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)
        self.server.sent += 1

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def endpoint() -> Iterator[tuple[Endpoint, str]]:
    with Endpoint(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server, f"http://127.0.0.1:{server.server_port}/duty?ward=a"
        finally:
            server.shutdown()
            thread.join()


def test_rows_of_an_endpoint_are_sent_again_only_when_they_changed() -> None:
    with endpoint() as (server, url):
        rows = HttpRows(url)
        assert rows.read() == [[1, "a"], {"badge": 2, "ward": "b"}]
        assert rows.read() == rows.read()
        assert server.sent == 1
        server.body = b"[]"
        assert asyncio.run(_read(rows)) == []


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (500, b"[]", "fact.source"),
        (302, b"[]", "fact.source"),
        (204, b"", "fact.source"),
        (200, b"{}", "fact.row"),
        (200, b"[1]", "fact.row"),
        (200, b"\xff", "fact.row"),
        (200, b"[" * 100_000, "fact.row"),
        (200, b"[" + b" " * 200 + b"]", "fact.rows"),
    ],
)
def test_answers_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, code: str) -> None:
    if code == "fact.rows":
        monkeypatch.setattr(module, "FACT_BYTES", 100)
    with endpoint() as (server, url):
        server.status, server.body = status, body
        with refused(code):
            HttpRows(url).read()


def test_an_endpoint_that_stalls_is_not_asked_twice_at_a_time() -> None:
    async def scenario(rows: HttpRows, stalls: threading.Event) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(rows(), 0.05)
        with refused("fact.source"):
            await rows()
        stalls.set()

    with endpoint() as (server, url):
        server.stalls = threading.Event()
        asyncio.run(scenario(HttpRows(url), server.stalls))


def test_an_endpoint_that_is_away_is_an_error_without_secrets() -> None:
    with endpoint() as (_server, url):
        pass
    with pytest.raises(FailedError) as raised:
        HttpRows(url, headers={"Authorization": "Bearer hush"}, timeout=1).read()
    assert "hush" not in f"{raised.value!r}{raised.value.__cause__!r}"
    with pytest.raises(FailedError):
        HttpRows(url, headers={"X": "a\r\nY: b"}).read()


@pytest.mark.parametrize("url", ["ftp://h/", "file:///etc/passwd", "https://u:p@h/", "http:///x", "h/x"])
def test_urls_of_endpoints_are_checked(url: str) -> None:
    with refused("fact.url"):
        HttpRows(url)

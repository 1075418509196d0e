"""Facts of a role policy from outside: SQL tables, HTTP endpoints, and events.

    feed = FactFeed(clock, apply)                       # `apply` appends changes to the domain's ledger
    rows = SqlRows("sqlite:staff.db", "SELECT badge, ward FROM duty")
    feed.watch(TableSource(fact=on_duty, read=rows, every=10, max_age=30))
    feed.watch(EventSource(fact=present, arguments=("badge", "ward"), value="present", max_age=3_600))
    await feed.start()

A **table** or an **endpoint** is read again and again, whole. An **event** changes one fact.

| the source | its facts |
|---|---|
| answered less than `max_age` seconds ago | as in its last answer; a look-up that is not in it is false |
| did not | unknown, which is not true |
| answered with something that cannot be read | as if it had not answered |

When a process starts, facts that the ledger still contains are unknown if the first reading fails: nobody knows how old
they are. Changes are only those that differ from what the ledger contains, so that it grows with what changes.

`FactTable` decides this, without I/O; `FactFeed` reads the sources, each in a task of its own.
"""

import asyncio
import http.client
import json
import math
import sqlite3
import ssl
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from threading import Lock
from typing import Any, Final, Protocol, Self, TypeAlias
from urllib.parse import quote, urlsplit

from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from penstock.authority.limits import FACT_BYTES, FACT_ROWS
from penstock.errors import FailedError, LimitError, MalformedError, PenstockError
from penstock.fabric import Clock
from penstock.fabric.tasks import keep_running, waited_for
from penstock.model.instants import parse_instant
from penstock.model.values import Kind, Scalar, Value
from penstock.roles.engine import SetFact
from penstock.roles.language import FactDeclaration, ParameterKind

FactRow: TypeAlias = Sequence[object] | Mapping[str, object]
"""A row of a source: values in the order of the parameters, or by their names."""
ReadRows: TypeAlias = Callable[[], Awaitable[Iterable[FactRow]]]
"""Reads a whole table. Raises `PenstockError` if it cannot be read."""
ApplyFacts: TypeAlias = Callable[[Sequence[SetFact]], Awaitable[None]]
"""Stores changes of facts; an error means that they are offered again."""
FactNote: TypeAlias = Callable[[str, PenstockError], None]
"""Receives the name of a fact whose source could not be read, and the error."""

_HELP: Final = "see docs/reference/roles.md, Facts"
_LONGEST: Final = 86_400.0


class FactTable:
    """The facts of one source: what they should be, and what the ledger contains."""

    def __init__(
        self, declared: FactDeclaration, max_age: float, known: Mapping[tuple[Value, ...], Scalar] | None = None
    ) -> None:
        self.declared = declared
        self._max_age = max_age
        #: what the ledger contains
        self._told: dict[tuple[Value, ...], Scalar] = dict(known or {})
        #: what the source says, and until when it counts
        self._facts: dict[tuple[Value, ...], tuple[Scalar, float]] = {}
        #: until when a look-up that the last answer did not contain is false rather than unknown
        self._complete_until = -math.inf

    @property
    def next_due(self) -> float | None:
        """When a fact becomes unknown unless the source answers before; None if none does."""
        ends = [self._complete_until] if self._told and math.isfinite(self._complete_until) else []
        return min((*ends, *(end for _value, end in self._facts.values() if math.isfinite(end))), default=None)

    def replace(self, rows: Iterable[FactRow], now: float) -> None:
        """Take a whole answer. Raises `MalformedError` (`fact.row`) and `LimitError` (`fact.rows`); nothing changes."""
        end = now + self._max_age
        found: dict[tuple[Value, ...], tuple[Scalar, float]] = {}
        for number, row in enumerate(rows):
            if number >= FACT_ROWS:
                raise LimitError("fact.rows", f"a source of facts has more than {FACT_ROWS} rows")
            if self.declared.kind is None:
                found[self._arguments(row)] = True, end
            elif number:
                raise MalformedError("fact.row", f"fact `{self.declared.name}` has one value, and there are more rows")
            else:
                found[()] = self._only_value(row), end
        self._facts, self._complete_until = found, end

    def update(self, arguments: FactRow, value: object, now: float) -> None:
        """Take one fact. Raises `MalformedError` (`fact.row`) and `LimitError` (`fact.rows`); nothing changes."""
        if self.declared.kind is None:
            key, scalar = self._arguments(arguments), _converted(ParameterKind.BOOLEAN, value, self.declared.name)
        else:
            key, scalar = (), _converted(self.declared.kind, value, self.declared.name)
        if key not in self._facts and len(self._facts) >= FACT_ROWS:
            raise LimitError("fact.rows", f"a source of facts has more than {FACT_ROWS} rows")
        self._facts[key] = scalar, now + self._max_age

    def changes(self, now: float) -> list[SetFact]:
        """Return the changes that the ledger lacks, in a fixed order."""
        for key in [key for key, (_value, end) in self._facts.items() if end <= now]:
            del self._facts[key]
        absent: Scalar = False if now < self._complete_until and self.declared.kind is None else None
        wanted = {key: value for key, (value, _end) in self._facts.items()}
        differ = [
            (key, value)
            for key in {**self._told, **wanted}
            if not _same(value := wanted.get(key, absent), self._told.get(key))
        ]
        return [SetFact(self.declared.name, value, key) for key, value in sorted(differ, key=repr)]

    def applied(self, changes: Iterable[SetFact]) -> None:
        """Note that the ledger contains changes."""
        for one in changes:
            if one.value is None or one.value is False:
                self._told.pop(one.arguments, None)
            if one.value is not None:
                self._told[one.arguments] = one.value

    def _arguments(self, row: FactRow) -> tuple[Value, ...]:
        parameters, name = self.declared.parameters, self.declared.name
        if isinstance(row, Mapping):
            missing = [one.name for one in parameters if one.name not in row]
            if missing:
                raise MalformedError("fact.row", f"a row of fact `{name}` has no `{missing[0]}`", hint=_HELP)
            row = [row[one.name] for one in parameters]
        if len(row) != len(parameters):
            raise MalformedError("fact.row", f"fact `{name}` has {len(parameters)} parameters, a row has {len(row)}")
        found = tuple(_converted(one.kind, value, name) for one, value in zip(parameters, row, strict=True))
        if any(value is None for value in found):
            raise MalformedError("fact.row", f"an argument of fact `{name}` is null")
        return tuple(value for value in found if value is not None)

    def _only_value(self, row: FactRow) -> Scalar:
        values = list(row.values()) if isinstance(row, Mapping) else list(row)
        if len(values) != 1 or self.declared.kind is None:
            raise MalformedError("fact.row", f"fact `{self.declared.name}` has one value, a row has {len(values)}")
        return _converted(self.declared.kind, values[0], self.declared.name)


def _same(one: Scalar, other: Scalar) -> bool:
    return type(one) is type(other) and one == other


def _converted(kind: ParameterKind, value: object, fact: str) -> Scalar:
    """Return a value of a database or of JSON as one of a kind; None stays None."""
    if value is None:
        return None
    found: Any = value
    match kind.kind, value:
        case Kind.BOOLEAN, 0 | 1:
            found = bool(value)
        case Kind.FLOAT, int() | Decimal() if not isinstance(value, bool):
            found = float(value)
        case Kind.INTEGER, Decimal() if value == value.to_integral_value():
            found = int(value)
        case Kind.TIMESTAMP, str():
            found = parse_instant(value)
    try:
        return kind.checked(found)
    except (MalformedError, TypeError, ValueError, OverflowError) as error:
        # The value is not shown: it may be personal data.
        raise MalformedError("fact.row", f"a value of fact `{fact}` is not of kind {kind}", hint=_HELP) from error


# ----------------------------------------------------------------------------------------------------------------------
# Where tables are read.


class _OneThread(ABC):
    """Reads in a thread, one at a time: a reading that hangs is not joined by a second one."""

    def __init__(self) -> None:
        self._busy = Lock()

    async def __call__(self) -> Iterable[FactRow]:
        """Read the table. Raises `PenstockError`."""
        if not self._busy.acquire(blocking=False):
            raise FailedError("fact.source", "the last reading has not ended yet", hint="is the source very slow?")
        return await asyncio.to_thread(self._alone)

    def _alone(self) -> list[FactRow]:
        try:
            return self.read()
        finally:
            self._busy.release()

    @abstractmethod
    def read(self) -> list[FactRow]:
        """Read the table, and wait for it. Raises `PenstockError`."""


class SqlRows(_OneThread):
    """The rows that a query returns, from `sqlite:PATH` or `postgresql://user@host/database`."""

    def __init__(self, url: str, query: str, *, timeout: float = 10.0) -> None:
        super().__init__()
        self._query = text(query)
        self._engine = read_only_database(url, timeout)

    def read(self) -> list[FactRow]:
        """Run the query. Raises `FailedError` (`fact.source`)."""
        try:
            with self._engine.connect() as connection:
                rows = connection.execute(self._query).fetchmany(FACT_ROWS + 1)
        except (SQLAlchemyError, OSError) as error:
            # `from None`: the cause may contain the password.
            message = f"the database cannot be read: {type(error).__name__}"
            raise FailedError("fact.source", message, hint="check the URL and the query") from None
        return [tuple(row) for row in rows]


def read_only_database(url: str, timeout: float) -> Engine:
    """Return a database that is only read: a query changes nothing, and a missing file is an error.

    Raises `MalformedError` (`fact.url`), `FailedError` (`fact.extra`).
    """
    if url.startswith("sqlite:") and not url.startswith("sqlite://"):
        path = f"file:{quote(url.removeprefix('sqlite:'))}?mode=ro"
        return create_engine(
            "sqlite://", creator=lambda: sqlite3.connect(path, uri=True, timeout=timeout), poolclass=NullPool
        )
    hint = "write `sqlite:PATH` or `postgresql://user@host/database`"
    try:
        parsed = make_url(url.replace("postgres://", "postgresql://", 1))
    except (ArgumentError, ValueError):
        raise MalformedError("fact.url", "this is not the URL of a database", hint=hint) from None
    if parsed.drivername != "postgresql":
        raise MalformedError("fact.url", "this database is not supported", hint=hint)
    options = f"-c default_transaction_read_only=on -c statement_timeout={int(timeout * 1000)}"
    arguments = {"connect_timeout": max(2, math.ceil(timeout)), "options": options}
    try:
        return create_engine(parsed.set(drivername="postgresql+psycopg"), poolclass=NullPool, connect_args=arguments)
    except ModuleNotFoundError as error:
        message = f"this database needs `{error.name}`, which is not installed"
        raise FailedError("fact.extra", message, hint="pip install 'penstock[postgres]'") from error


@dataclass(frozen=True, slots=True)
class EndpointReply:
    """What an endpoint answered; its body is bounded."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


class HttpEndpoint:
    """A host that is asked for JSON. Redirects are not followed: an endpoint that moved has to be configured.

    Raises `MalformedError` (`fact.url`).
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
        context: ssl.SSLContext | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.password:
            hint = "write `https://host/path`; put a token into `headers`"
            raise MalformedError("fact.url", "this is not the URL of an endpoint", hint=hint)
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self.target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = {"Accept": "application/json", **(headers or {})}
        self._timeout = timeout
        self._context = context

    def get(self, target: str, headers: Mapping[str, str]) -> EndpointReply:
        """Ask, and wait for the answer. Raises `FailedError` (`fact.source`), `LimitError` (`fact.rows`)."""
        connection = (
            http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout, context=self._context or ssl.create_default_context()
            )
            if self._secure
            else http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        )
        try:
            connection.request("GET", target, headers={**self._headers, **headers})
            response = connection.getresponse()
            body = response.read(FACT_BYTES + 1)
        except (OSError, http.client.HTTPException, ValueError) as error:
            # `from None`: the cause may contain a header.
            message = f"the endpoint does not answer: {type(error).__name__}"
            raise FailedError("fact.source", message, hint="check the URL, and that the endpoint runs") from None
        finally:
            connection.close()
        if response.status == http.client.OK and len(body) > FACT_BYTES:
            raise LimitError("fact.rows", f"an endpoint's answer has more than {FACT_BYTES} bytes")
        return EndpointReply(response.status, response.headers, body)


class HttpRows(_OneThread):
    """The rows of a JSON document: an array of arrays or objects, for a fact with one value an array of one.

    An unchanged document (`304` after its `ETag`) is not sent again.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
        context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__()
        self._endpoint = HttpEndpoint(url, headers=headers, timeout=timeout, context=context)
        self._etag: str | None = None
        self._last: list[FactRow] = []

    def read(self) -> list[FactRow]:
        """Ask the endpoint. Raises `FailedError` (`fact.source`), `MalformedError` (`fact.row`), `LimitError`."""
        known = {"If-None-Match": self._etag} if self._etag else {}
        reply = self._endpoint.get(self._endpoint.target, known)
        if reply.status == http.client.NOT_MODIFIED and known:
            return self._last
        if reply.status != http.client.OK:
            raise unexpected_status(reply.status)
        self._last, self._etag = _json_rows(reply.body), reply.headers.get("ETag")
        return self._last


def unexpected_status(status: int) -> FailedError:
    """Return the error for an answer that is not the document."""
    return FailedError("fact.source", f"the endpoint answered with status {status}")


def _json_rows(body: bytes) -> list[FactRow]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedError("fact.row", "the endpoint's answer is not JSON", hint=_HELP) from error
    if not isinstance(found, list) or not all(isinstance(row, list | dict) for row in found):
        raise MalformedError("fact.row", "the endpoint's answer is not an array of arrays or objects", hint=_HELP)
    return found


# ----------------------------------------------------------------------------------------------------------------------
# Sources, and the feed that reads them.


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """A table that is read whole every so many seconds; a reading takes `timeout` seconds at most."""

    fact: FactDeclaration
    read: ReadRows
    every: float = 10.0
    max_age: float = 30.0
    timeout: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.every < self.max_age <= _LONGEST or not 0 < self.timeout <= self.max_age:
            raise MalformedError(
                "fact.times",
                f"the times of fact `{self.fact.name}` do not fit",
                hint="0 < every < max_age, 0 < timeout <= max_age, max_age at most a day",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSource:
    """Events of one type, each of which changes one fact.

    `arguments` are the attributes that are the fact's arguments. `value` is the attribute with the value; without it,
    each event makes its look-up true. An event counts for `max_age` seconds.
    """

    fact: FactDeclaration
    arguments: tuple[str, ...] = ()
    value: str | None = None
    max_age: float = 3_600.0

    def __post_init__(self) -> None:
        if self.max_age <= 0 or math.isnan(self.max_age):
            raise MalformedError("fact.times", f"`max_age` of fact `{self.fact.name}` must be above 0")
        if len(self.arguments) != len(self.fact.parameters):
            message = f"fact `{self.fact.name}` has {len(self.fact.parameters)} parameters, not {len(self.arguments)}"
            raise MalformedError("fact.row", message, hint="name one attribute for each parameter")
        if self.value is None and self.fact.kind is not None:
            raise MalformedError("fact.row", f"name the attribute with the value of fact `{self.fact.name}`")


class KnownFacts(Protocol):
    """Returns the facts of a name that the ledger contains, by their arguments."""

    def __call__(self, name: str, /) -> Mapping[tuple[Value, ...], Scalar]:
        """Return them."""
        ...


@dataclass(slots=True)
class FactFeed:
    """Keeps facts current from their sources. Two sources of one fact are refused: they would contradict each other."""

    clock: Clock
    apply: ApplyFacts
    known: KnownFacts = field(default=lambda _name: {})
    note: FactNote = field(default=lambda _fact, _error: None)
    _tables: dict[str, FactTable] = field(default_factory=dict)
    _sources: dict[str, TableSource | EventSource] = field(default_factory=dict)
    _wake: dict[str, asyncio.Event] = field(default_factory=dict)
    _tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    def watch(self, source: TableSource | EventSource) -> None:
        """Add a source, before the start. Raises `MalformedError` (`fact.twice`)."""
        name = source.fact.name
        if name in self._sources:
            raise MalformedError("fact.twice", f"fact `{name}` has two sources", hint="join them in one query")
        self._sources[name] = source
        self._tables[name] = FactTable(source.fact, source.max_age, self.known(name))
        self._wake[name] = asyncio.Event()

    async def start(self) -> None:
        """Begin to read."""
        for name, source in self._sources.items():
            work = self._read if isinstance(source, TableSource) else self._expire
            self._tasks.append(keep_running(f"facts of {name}", lambda name=name, work=work: work(name)))  # type: ignore[misc]  # bound now

    async def close(self) -> None:
        """Stop reading. Facts stay as they are."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def take(self, name: str, event: Mapping[str, Scalar]) -> None:
        """Take an event of a source: its attributes by name. Malformed ones are noted and passed over."""
        source = self._sources[name]
        if not isinstance(source, EventSource):
            raise TypeError(name)
        arguments = [event.get(one) for one in source.arguments]
        value = True if source.value is None else event.get(source.value)
        try:
            self._tables[name].update(arguments, value, self.clock.steady())
        except PenstockError as error:
            self.note(name, error)
        self._wake[name].set()

    async def _read(self, name: str) -> None:
        source, table = self._sources[name], self._tables[name]
        if not isinstance(source, TableSource):
            raise TypeError(name)
        while True:
            began = self.clock.steady()
            due = table.next_due
            try:
                # A fact becomes unknown when it is due, even while a reading hangs.
                async with asyncio.timeout(
                    source.timeout if due is None else min(source.timeout, max(0.0, due - began))
                ):
                    rows = await source.read()
                table.replace(rows, began)
            except TimeoutError:
                self.note(name, FailedError("fact.source", f"no answer within {source.timeout:g} s"))
            except PenstockError as error:
                self.note(name, error)
            await self._apply(table)
            due = table.next_due
            now = self.clock.steady()
            pause = began + source.every - now
            await self.clock.sleep(max(0.0, pause if due is None else min(pause, due - now)))

    async def _expire(self, name: str) -> None:
        table, wake = self._tables[name], self._wake[name]
        while True:
            await self._apply(table)
            due = table.next_due
            if due is None:
                await wake.wait()
            else:
                await self._either(wake, due - self.clock.steady())
            wake.clear()

    async def _either(self, wake: asyncio.Event, seconds: float) -> None:
        waits: list[asyncio.Future[Any]] = [waited_for(wake.wait()), waited_for(self.clock.sleep(max(0.0, seconds)))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _apply(self, table: FactTable) -> None:
        if changes := table.changes(self.clock.steady()):
            await self.apply(changes)
            table.applied(changes)

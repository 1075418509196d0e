"""Where an information point reads attributes: files, SQL, HTTP, trees as LDAP has them, and Python functions.

    FileAttributes(Path("staff.csv"), EntityTable("subject", "user", {"rank": "grade"}), clock)
    SqlAttributes("sqlite:bank.db", "SELECT owner, changed FROM account WHERE number = :id",
                  EntityTable("resource", "account", {"owner": "owner"}, changed="changed"), clock)

| the source | its answer |
|---|---|
| has the attribute of the entity | the value, and when it was last changed |
| has the entity without the attribute | null, which is an empty bag |
| does not have the entity | nothing: another information point may have it |
| cannot be read | nothing, and an error that the information point reports |

The change time is what the source says (a column, `Last-Modified`, `modifyTimestamp`, the time at which a file was
written). A source that does not say it gives 0, and the time at which it was seen with another value afterwards. So two
copies that differ contradict each other, rather than that the one that started later wins.

Everything that blocks runs in threads of the source, a few at a time: a source that hangs holds up nobody else.
"""

import asyncio
import base64
import binascii
import csv
import http.client
import inspect
import io
import json
import math
import tomllib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import quote

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from penstock.authority.components.exchange.samples import AttributeQuery, FieldValue
from penstock.authority.components.information.dependencies import CATEGORIES, Names, attribute_name
from penstock.authority.facts import HttpEndpoint, read_only_database, unexpected_status
from penstock.authority.limits import FACT_BYTES, FACT_ROWS
from penstock.errors import FailedError, LimitError, MalformedError
from penstock.fabric import Clock
from penstock.fabric.tasks import waited_for
from penstock.model.instants import parse_instant
from penstock.store.files.files import read_file, within

_HELP: Final = "see docs/reference/domain-plan.md, Sources"
#: readings of one source at a time, and readings that may wait for them
_THREADS: Final = 4
_WAITING: Final = 256
#: values whose changes a source remembers
_SEEN: Final = 100_000
#: how far an entry of a tree can be below the entries from which it inherits
_DEPTH: Final = 64
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class FoundAttribute:
    """The value of an attribute, and when it was last changed, in seconds since 1970; 0 if that is not known."""

    value: FieldValue
    changed: float


FoundAttributes: TypeAlias = Mapping[str, FoundAttribute]
"""Attributes of one entity by their ids."""


@dataclass(frozen=True)
class EntityTable:
    """Which entities a source has, and under which names it has their attributes.

    Raises `MalformedError` (`component.source`).
    """

    #: `subject`, `resource`, `action` or `environment`
    of: str
    #: the type of a subject or a resource; empty for the others
    type: str
    #: by attribute: the column, the member or the attribute of a tree
    attributes: Mapping[str, str]
    #: where the id of the entity is
    id: str = "id"
    #: where the change time is, in ISO 8601, as LDAP writes it, or in seconds since 1970
    changed: str | None = None

    def __post_init__(self) -> None:
        if self.of not in CATEGORIES or bool(self.type) is not (self.of in ("subject", "resource")):
            message = "a source has subjects or resources of a type, actions, or the environment"
            raise MalformedError("component.source", message, hint=_HELP)
        if not self.attributes:
            raise MalformedError("component.source", "a source provides no attributes", hint=_HELP)

    @property
    def provides(self) -> Names:
        """The names of the attributes."""
        found = (attribute_name(CATEGORIES[self.of], one) for one in self.attributes)
        return frozenset(one for one in found if one is not None)

    def wanted(self, query: AttributeQuery) -> Sequence[str]:
        """Return the attributes that are asked for and may be here."""
        if (query.category, query.type) != (CATEGORIES[self.of], self.type):
            return ()
        return [name for name in query.names if name in self.attributes]


class AttributeSource(ABC):
    """A source of attributes. See the module."""

    def __init__(self, table: EntityTable, clock: Clock) -> None:
        self.table = table
        self._clock = clock
        self._values: OrderedDict[tuple[str, str], FoundAttribute] = OrderedDict()

    async def read(self, query: AttributeQuery) -> FoundAttributes:
        """Return the attributes that are asked for, as far as they are here. Raises `PenstockError`."""
        wanted = self.table.wanted(query)
        return await self._read(query, wanted) if wanted else {}

    @abstractmethod
    async def _read(self, query: AttributeQuery, wanted: Sequence[str]) -> FoundAttributes:
        """Read attributes of an entity. Raises `PenstockError`."""

    async def close(self) -> None:  # noqa: B027  # not every source has something to close
        """Stop reading."""

    def _of_record(
        self, entity: str, record: Mapping[str, object], wanted: Iterable[str], otherwise: float | None = None
    ) -> FoundAttributes:
        """Return attributes of a record; `otherwise` is its change time unless it has one itself.

        Raises `MalformedError` (`component.value`).
        """
        said = None if self.table.changed is None else record.get(self.table.changed)
        changed = otherwise if said is None else change_time(said)
        found: dict[str, FoundAttribute] = {}
        for name in wanted:
            value = plain_value(record.get(self.table.attributes[name]))
            found[name] = self._seen(entity, name, value) if changed is None else FoundAttribute(value, changed)
        return found

    def _seen(self, entity: str, name: str, value: FieldValue) -> FoundAttribute:
        """Return a value of a source without change times."""
        key = (entity, name)
        before = self._values.get(key)
        if before is not None and same_value(before.value, value):
            found = before
        else:
            found = FoundAttribute(value, 0.0 if before is None else self._clock.now())
        self._values[key] = found
        self._values.move_to_end(key)
        if len(self._values) > _SEEN:
            self._values.popitem(last=False)
        return found


def plain_value(value: object) -> FieldValue:
    """Return a value of a source as an attribute has it. Raises `MalformedError` (`component.value`)."""
    match value:
        case None | str() | bool() | int():
            return value
        case float() if math.isfinite(value):
            return value
        case Decimal() if value.is_finite():
            return int(value) if value == value.to_integral_value() else float(value)
        case datetime() | date() | time_of_day():
            return value.isoformat()
        case list() | tuple():
            found = [plain_value(one) for one in value]
            return [one for one in found if one is not None and not isinstance(one, list)]
    # The value is not shown: it may be personal data.
    raise MalformedError("component.value", f"a value of kind {type(value).__name__} cannot be an attribute")


def same_value(one: FieldValue, other: FieldValue) -> bool:
    """Return whether two values are the same: `1`, `1.0` and `true` differ."""
    return json.dumps(one) == json.dumps(other)


def change_time(value: object) -> float:
    """Return seconds since 1970. Raises `MalformedError` (`component.value`)."""
    found: float | None = None
    if isinstance(value, datetime):
        found = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    elif isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        found = float(value)
    elif isinstance(value, str):
        try:
            compact = value.removesuffix("Z")
            if value != compact and compact.isascii() and compact.isdigit() and len(compact) == 14:
                found = datetime.strptime(compact, "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp()
            else:
                found = parse_instant(value).timestamp()
        except (MalformedError, ValueError, OverflowError):
            found = None
    if found is None or not 0 <= found < math.inf:
        raise MalformedError("component.value", "a change time is not a time", hint="write `2026-01-31T09:00:00Z`")
    return found


# ----------------------------------------------------------------------------------------------------------------------
# Sources that block.


class _InThreads:
    """Runs what blocks in a few threads."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix=name)
        self._running = 0

    async def run(self, work: Callable[[], R]) -> R:
        """Return the result. Raises `FailedError` (`component.busy`), and what the work raises."""
        if self._running >= _WAITING:
            raise FailedError("component.busy", f"{_WAITING} readings of a source of attributes wait already")
        self._running += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        future.add_done_callback(self._done)
        return await future

    def _done(self, _future: "asyncio.Future[Any]") -> None:
        self._running -= 1

    def close(self) -> None:
        """Wait for nothing: a reading that hangs ends by its own time-out."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class SqlAttributes(AttributeSource):
    """A query with the parameters `:id` and perhaps `:type`. Several rows are a bag. It cannot change anything.

    Raises `MalformedError` (`fact.url`), `FailedError` (`fact.extra`).
    """

    def __init__(self, url: str, query: str, table: EntityTable, clock: Clock, *, timeout: float = 2.0) -> None:
        super().__init__(table, clock)
        self._query = text(query)
        self._parameters = self._query.compile().params.keys() & {"id", "type"}
        self._engine = read_only_database(url, timeout)
        self._threads = _InThreads("penstock-sql")

    async def _read(self, query: AttributeQuery, wanted: Sequence[str]) -> FoundAttributes:
        record = await self._threads.run(lambda: self._record(query))
        return {} if record is None else self._of_record(query.id, record, wanted)

    def _record(self, query: AttributeQuery) -> Mapping[str, object] | None:
        given = {name: value for name, value in (("id", query.id), ("type", query.type)) if name in self._parameters}
        try:
            with self._engine.connect() as connection:
                result = connection.execute(self._query, given)
                columns, rows = [*result.keys()], result.fetchmany(FACT_ROWS + 1)
        except (SQLAlchemyError, OSError) as error:
            # `from None`: the cause may contain the password.
            message = f"the database cannot be read: {type(error).__name__}"
            raise FailedError("fact.source", message, hint="check the URL and the query") from None
        if len(rows) > FACT_ROWS:
            raise LimitError("fact.rows", f"a query for attributes returns more than {FACT_ROWS} rows")
        if not rows:
            return None
        if len(rows) == 1:
            return dict(zip(columns, rows[0], strict=True))
        whole: dict[str, object] = {name: [row[at] for row in rows] for at, name in enumerate(columns)}
        if self.table.changed is not None and self.table.changed in whole:
            times = [row[columns.index(self.table.changed)] for row in rows]
            whole[self.table.changed] = max((change_time(one) for one in times if one is not None), default=None)
        return whole

    async def close(self) -> None:
        """Stop reading."""
        self._threads.close()
        self._engine.dispose()


class HttpAttributes(AttributeSource):
    """An endpoint at `https://host/path/{id}` (and `{type}`), which returns a JSON object, or 404 for no entity.

    The change time is in a member, or in the header `Last-Modified`. Raises `MalformedError` (`fact.url`).
    """

    def __init__(
        self,
        url: str,
        table: EntityTable,
        clock: Clock,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 2.0,
    ) -> None:
        super().__init__(table, clock)
        self._endpoint = HttpEndpoint(url, headers=headers, timeout=timeout)
        self._threads = _InThreads("penstock-http")

    async def _read(self, query: AttributeQuery, wanted: Sequence[str]) -> FoundAttributes:
        target = self._endpoint.target
        for name, value in (("{id}", query.id), ("{type}", query.type)):
            target = target.replace(name, quote(value, safe=""))
        reply = await self._threads.run(lambda: self._endpoint.get(target, {}))
        if reply.status == http.client.NOT_FOUND:
            return {}
        if reply.status != http.client.OK:
            raise unexpected_status(reply.status)
        modified = reply.headers.get("Last-Modified")
        try:
            record = json.loads(reply.body)
            changed = None if modified is None else change_time(parsedate_to_datetime(modified))
        except (ValueError, TypeError, RecursionError):
            raise _unreadable("the endpoint's answer is not JSON, or its time is wrong") from None
        if not isinstance(record, dict):
            raise _unreadable("the endpoint's answer is not a JSON object")
        return self._of_record(query.id, record, wanted, changed)

    async def close(self) -> None:
        """Stop reading."""
        self._threads.close()


def _unreadable(message: str) -> MalformedError:
    return MalformedError("component.source", message, hint=_HELP)


# ----------------------------------------------------------------------------------------------------------------------
# Files. They are read whole, and again when they have changed.


@dataclass(slots=True)
class _Loaded:
    """A file as it was read: the attributes by entity, and by what a change of the file is seen."""

    stamp: tuple[int, int, int] = (0, 0, 0)
    entities: Mapping[str, FoundAttributes] = field(default_factory=dict)


class FileAttributes(AttributeSource):
    """A file of entities, by its suffix:

    - `.csv`: a row for each entity, with a head of names; an empty cell is null
    - `.json`, `.toml`: a table of each entity's attributes, by id
    - `.ldif`: a tree. Entries below `base` that have the attribute `id` are entities, and they inherit attributes that
      they lack from the entries above them.

    It is looked at every so many seconds at most. A value that was not changed keeps its change time when the file is
    read again. Raises `MalformedError` (`component.source`).
    """

    def __init__(self, path: Path, table: EntityTable, clock: Clock, *, base: str = "", every: float = 1.0) -> None:
        super().__init__(table, clock)
        if path.suffix not in _FORMATS:
            raise _unreadable(f"`{path.name}` must end with one of {', '.join(_FORMATS)}")
        self._path = path
        self._base = parse_dn(base)
        self._every = every
        self._threads = _InThreads("penstock-file")
        self._loaded = _Loaded()
        self._due = -math.inf
        self._loading: asyncio.Future[_Loaded] | None = None

    async def _read(self, query: AttributeQuery, wanted: Sequence[str]) -> FoundAttributes:
        now = self._clock.steady()
        if now >= self._due:
            if self._loading is None:
                self._loading = waited_for(self._threads.run(self._load))
            loading = self._loading
            try:
                self._loaded = await asyncio.shield(loading)
                self._due = now + self._every
            finally:
                if loading.done() and self._loading is loading:
                    self._loading = None
        entity = self._loaded.entities.get(query.id)
        return {} if entity is None else {name: entity[name] for name in wanted}

    def _load(self) -> _Loaded:
        """Return the file as it is now. Raises `PenstockError`."""
        before = self._loaded
        try:
            status = self._path.stat()
        except OSError as error:
            raise FailedError("component.source", f"`{self._path}` cannot be read: {error.strerror}") from None
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if stamp == before.stamp:
            return before
        written = max(0.0, status.st_mtime)
        with within(str(self._path)):
            data = read_file(str(self._path), FACT_BYTES)
            found: dict[str, FoundAttributes] = {}
            for entity, record in _FORMATS[self._path.suffix](data, self.table, self._base):
                if entity in found:
                    raise _unreadable("an entity is there twice")
                if len(found) >= FACT_ROWS:
                    raise LimitError("fact.rows", f"a file of attributes has more than {FACT_ROWS} entities")
                fresh = self._of_record(entity, record, self.table.attributes, written)
                known = before.entities.get(entity, {}) if self.table.changed is None else {}
                found[entity] = _kept(known, fresh)
        return _Loaded(stamp, found)

    async def close(self) -> None:
        """Stop reading."""
        self._threads.close()


def _kept(before: FoundAttributes, after: FoundAttributes) -> FoundAttributes:
    """Return attributes as they are now, with the earlier change time of those that are the same."""
    return {
        name: old if (old := before.get(name)) is not None and same_value(old.value, one.value) else one
        for name, one in after.items()
    }


_Records: TypeAlias = Iterator[tuple[str, Mapping[str, object]]]
Dn: TypeAlias = tuple[tuple[str, str], ...]
"""A distinguished name: attribute and value of each part, the entry itself first; in lower case."""


def _csv(data: bytes, table: EntityTable, _base: Dn) -> _Records:
    try:
        rows = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        missing = {table.id, *table.attributes.values()} - {*(rows.fieldnames or ())}
        if missing:
            raise _unreadable(f"there is no column `{min(missing)}`")
        for row in rows:
            if None in row:
                raise _unreadable("a row is longer than the head")
            yield row[table.id], {name: value or None for name, value in row.items()}
    except (UnicodeDecodeError, csv.Error):
        raise _unreadable("it is not CSV in UTF-8") from None


def _json(data: bytes, table: EntityTable, _base: Dn) -> _Records:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise _unreadable("it is not JSON") from None
    return _by_id(found, table)


def _toml(data: bytes, table: EntityTable, _base: Dn) -> _Records:
    try:
        found = tomllib.loads(data.decode())
    except (ValueError, RecursionError):
        raise _unreadable("it is not TOML") from None
    return _by_id(found, table)


def _by_id(found: object, table: EntityTable) -> _Records:
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise _unreadable("it is not a table of attributes by entity")
    if table.of == "environment":
        # The environment is one entity, whose id is empty.
        return iter([("", found.get("environment", {}))])
    return iter(found.items())


def _ldif(data: bytes, table: EntityTable, base: Dn) -> _Records:
    entries = read_ldif(data)
    for dn, own in entries.items():
        ids = own.get(table.id.lower())
        if not ids or dn[len(dn) - len(base) :] != base:
            continue
        record: dict[str, object] = {}
        for column in table.attributes.values():
            values = next(
                (
                    found[column.lower()]
                    for up in range(min(len(dn), _DEPTH))
                    if column.lower() in (found := entries.get(dn[up:], {}))
                ),
                None,
            )
            record[column] = values[0] if values is not None and len(values) == 1 else values
        if table.changed is not None:
            record[table.changed] = next(iter(own.get(table.changed.lower(), ())), None)
        for one in ids:
            yield one, record


_FORMATS: Final[Mapping[str, Callable[[bytes, EntityTable, Dn], _Records]]] = {
    ".csv": _csv, ".json": _json, ".toml": _toml, ".ldif": _ldif
}  # fmt: skip


def parse_dn(written: str) -> Dn:
    r"""Read a distinguished name, with escaped characters as `\,`.

    >>> parse_dn("uid=Alice,ou=staff")
    (('uid', 'alice'), ('ou', 'staff'))

    Raises `MalformedError` (`component.source`).
    """
    found: list[tuple[str, str]] = []
    for part in _split(written) if written.strip() else ():
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise _unreadable("a distinguished name is malformed")
        found.append((name.strip().lower(), value.strip().lower()))
    return tuple(found)


def _split(written: str) -> Iterator[str]:
    part, signs = "", iter(written)
    for sign in signs:
        if sign == "\\":
            part += next(signs, "")
        elif sign == ",":
            yield part
            part = ""
        else:
            part += sign
    yield part


def read_ldif(data: bytes) -> dict[Dn, dict[str, list[str]]]:
    """Read the entries of an LDIF file (RFC 2849): attributes by distinguished name; names are in lower case.

    Changes, and values that are taken from URLs, are refused. Raises `MalformedError` (`component.source`).
    """
    try:
        whole = data.decode().replace("\r\n", "\n").replace("\n ", "")
    except UnicodeDecodeError:
        raise _unreadable("it is not LDIF in UTF-8") from None
    entries: dict[Dn, dict[str, list[str]]] = {}
    entry: dict[str, list[str]] | None = None
    for line in [*whole.split("\n"), ""]:
        if not line.strip():
            entry = None
            continue
        if line.startswith("#"):
            continue
        name, value = _ldif_line(line)
        if entry is not None:
            if name == "changetype":
                raise _unreadable("it has changes rather than entries")
            entry.setdefault(name, []).append(value)
        elif name == "dn":
            dn = parse_dn(value)
            if dn in entries:
                raise _unreadable("an entry is there twice")
            entry = entries[dn] = {}
        elif name != "version":
            raise _unreadable("an entry does not begin with `dn`")
    return entries


def _ldif_line(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or value.startswith("<"):
        raise _unreadable("a line is not an attribute and a value")
    if value.startswith(":"):
        try:
            value = base64.b64decode(value[1:].strip(), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise _unreadable("a value is not base64 of a text") from None
    # Options such as languages are left out.
    return name.partition(";")[0].strip().lower(), value.strip()


# ----------------------------------------------------------------------------------------------------------------------
# Python.


AttributeFunction: TypeAlias = Callable[
    [AttributeQuery], Mapping[str, object] | Awaitable[Mapping[str, object] | None] | None
]
"""Returns what is known of an entity, by column; None if it is not known. Raises `PenstockError`."""


class FunctionAttributes(AttributeSource):
    """A Python function. A coroutine function runs in the event loop, and others, which may block, in threads."""

    def __init__(self, function: AttributeFunction, table: EntityTable, clock: Clock) -> None:
        super().__init__(table, clock)
        self._function = function
        self._threads = None if inspect.iscoroutinefunction(function) else _InThreads("penstock-attributes")

    async def _read(self, query: AttributeQuery, wanted: Sequence[str]) -> FoundAttributes:
        if self._threads is not None:
            found = await self._threads.run(lambda: self._function(query))
        else:
            found = self._function(query)
        record = await found if inspect.isawaitable(found) else found
        return {} if record is None else self._of_record(query.id, record, wanted)

    async def close(self) -> None:
        """Stop reading."""
        if self._threads is not None:
            self._threads.close()

"""Blocks of events as bytes: a header in the clear, and columns, sealed or encoded.

    block      fixed part, counts, route, signature, lengths of the columns, columns
    fixed      version, flags, algorithm, padding (1 byte each), columns (2), sender (32), incarnation (16),
               an epoch for each column (8 each)
    counts     number of the block (8), time in microseconds (8), rows (4)
    route      kind (1), length (4), names or labels
    signature  length (4), and nothing where the block is not signed

Fixed part and counts are authenticated with every column, and so are the names of the type, its ancestors and its
attributes: as a digest, because they need not be in the header. The route contains the names for brokers that carry the
block. It can contain labels instead, which reveal nothing without their key, and every hop can replace the labels:
nothing inside depends on them.

The first column holds ids and times; at event level it is the only one and holds everything. Numbers in headers are
big-endian. The same bytes are a message between brokers and a message of JetStream. A log keeps the parts apart
(`split`): a header, and a column for each attribute, so that readers without a key for a column need not read it.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import IntEnum
from functools import lru_cache
from itertools import chain, repeat
from operator import itemgetter
from struct import Struct
from struct import error as _StructError  # noqa: N812  # it is an exception
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias, cast

from penstock.codec.columns import (
    Column,
    are_common,
    decode_bundle,
    decode_column,
    decode_columns,
    decode_row,
    encode_bundle,
    encode_cells,
    encode_column,
    instant,
)
from penstock.codec.limits import CODEC_LIMITS, ROUTE_BLOCK_BYTES, CodecLimits
from penstock.errors import LimitError, MalformedError
from penstock.model.events import EventRows, TransitEvent
from penstock.model.limits import TYPE_ATTRIBUTES, TYPE_DEPTH
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Principal
from penstock.model.values import Scalar

# ----------------------------------------------------------------------------------------------------------------------
# The names of a block's type and attributes, and the route of a block, which contains names or labels.
#
#     names    type, ancestors, attributes, with blanks between; `#uid` for an attribute that the type itself defines
#     labels   how many ancestors (1 byte), then 16 bytes for the type, for each ancestor, and for each attribute
#
# Names have one written form. The columns of a block are bound to its digest.

LABEL_BYTES: Final = 16
ROUTE_HEAD: Final = Struct(">BI")
"""Kind and length of a route."""
_DIGEST: Final = b"penstock-names-1 "
#: longer names are not cached, because that would need much memory
_SHORT_NAMES: Final = 4_096
_REMEMBERED_NAMES: Final = 1_024


@dataclass(frozen=True, slots=True)
class BlockNames:
    """The names shared by the events of a block: the type, its ancestors, and attributes. Build it with `names`."""

    type: TypeKey
    ancestors: tuple[TypeKey, ...]
    attributes: tuple[str, ...]
    #: the written form, and its digest
    written: bytes = field(repr=False, compare=False)
    digest: bytes = field(repr=False, compare=False)
    #: an event of the type without values
    blank: TransitEvent = field(repr=False, compare=False)


@lru_cache(maxsize=_REMEMBERED_NAMES)
def names(event_type: TypeKey, ancestors: tuple[TypeKey, ...], attributes: tuple[str, ...]) -> BlockNames:
    """Return the names of a block, written down. Attributes are given by their ids.

    Raises `LimitError` (`block.limit`), and `MalformedError`: `block.malformed` where one stands twice, and what
    `AttributeId.parse` raises.
    """
    _check_names(ancestors, attributes)
    for attribute in attributes:
        # A text that is not an id could be read as two ids, or as one of another type.
        AttributeId.parse(attribute)
    own = str(event_type)
    written = [
        attribute.removeprefix(own) if attribute.startswith(f"{own}#") else attribute for attribute in attributes
    ]
    data = " ".join([own, *map(str, ancestors), *written]).encode()
    if len({event_type, *ancestors}) != 1 + len(ancestors) or len({*attributes}) != len(attributes):
        raise malformed("a name occurs twice in a block")
    blank = TransitEvent(event_type, ancestors, MappingProxyType({}))
    return BlockNames(event_type, ancestors, attributes, data, hashlib.sha256(_DIGEST + data).digest(), blank)


def read_names(data: bytes) -> BlockNames:
    """Read written names. Raises `MalformedError` and `LimitError`, codes as `names`, and those of names."""
    return _read_short_names(data) if len(data) <= _SHORT_NAMES else _read_names(data)


def _read_names(data: bytes) -> BlockNames:
    try:
        own, *others = data.decode("ascii").split(" ")
    except UnicodeDecodeError:
        raise malformed("the names are not ASCII") from None
    line = [other for other in others if "#" not in other]
    written = others[len(line) :]
    _check_names(line, written)
    attributes = tuple(str(AttributeId.parse(own + name if name.startswith("#") else name)) for name in written)
    found = names(_type_key(own), tuple(map(_type_key, line)), attributes)
    # One written form: an id is short where it can be, and ancestors come before attributes.
    if found.written != data:
        raise malformed("names that are not written in their one form")
    return found


_read_short_names = lru_cache(maxsize=_REMEMBERED_NAMES)(_read_names)


def _type_key(text: str) -> TypeKey:
    owner, slash, name = text.partition("/")
    if not slash:
        raise malformed("the name of a type without its owner")
    return TypeKey(Principal.parse(owner), name)


def _check_names(ancestors: Sequence[object], attributes: Sequence[object]) -> None:
    if len(ancestors) > TYPE_DEPTH or len(attributes) > TYPE_ATTRIBUTES:
        raise LimitError("block.limit", "a block has too many attributes, or its type too many ancestors")


class PlainNames(NamedTuple):
    """A route that says the names."""

    names: BlockNames


class Blinded(NamedTuple):
    """A route that says labels: of the type, of its ancestors, and of the attributes."""

    type: bytes
    ancestors: tuple[bytes, ...]
    attributes: tuple[bytes, ...]


Route: TypeAlias = PlainNames | Blinded


def write_route(route: Route) -> bytes:
    """Return a route as it is written in a block."""
    if isinstance(route, PlainNames):
        return ROUTE_HEAD.pack(0, len(route.names.written)) + route.names.written
    labels = b"".join((route.type, *route.ancestors, *route.attributes))
    return ROUTE_HEAD.pack(1, 1 + len(labels)) + bytes((len(route.ancestors),)) + labels


def read_route(data: bytes) -> Route:
    """Read a route. Raises `MalformedError` (`block.malformed` and codes of names) and `LimitError` (`block.limit`)."""
    return _read_short_route(data) if len(data) <= _SHORT_NAMES else _read_route(data)


def _read_route(data: bytes) -> Route:
    kind, length = ROUTE_HEAD.unpack_from(data)
    content = data[ROUTE_HEAD.size : ROUTE_HEAD.size + length]
    if kind == 0:
        return PlainNames(read_names(content))
    above = 1 + content[0] if content else 0
    labels = tuple(content[start : start + LABEL_BYTES] for start in range(1, length, LABEL_BYTES))
    if kind != 1 or not 1 <= above <= len(labels) or length % LABEL_BYTES != 1:
        raise malformed("a route that says neither names nor labels")
    _check_names(labels[1:above], labels[above:])
    return Blinded(labels[0], labels[1:above], labels[above:])


_read_short_route = lru_cache(maxsize=_REMEMBERED_NAMES)(_read_route)


def malformed(message: str) -> MalformedError:
    """Return the error for bytes that are not a block."""
    return MalformedError("block.malformed", message)


# ----------------------------------------------------------------------------------------------------------------------
# Convert events between rows and columns, for blocks.


def lay_out(events: Sequence[TransitEvent]) -> tuple[BlockNames, list[Column]]:
    """Return the names of events of one type, and a column for each attribute that any of them has.

    Raises `MalformedError` (`block.malformed`) where there is none, or they are of several types.
    """
    if not events:
        raise malformed("a block holds events of one type, and one of them at least")
    first = events[0]
    key, ancestors, attributes = first.key, first.ancestors, tuple(first.values)
    if len(events) == 1:
        return names(key, ancestors, attributes), [[value] for value in first.values.values()]
    # Events that came the same way share the same key object, which a list compares first.
    same = len(events)
    if [e.key for e in events].count(key) != same or [e.ancestors for e in events].count(ancestors) != same:
        raise malformed("a block holds events of one type, and one of them at least")
    rows = [event.values for event in events]
    if (columns := _turned(rows, attributes)) is None:
        attributes = tuple(dict.fromkeys(chain.from_iterable(rows)))
        columns = _gathered(rows, attributes)
    return names(key, ancestors, attributes), columns


def columns_of(events: Sequence[TransitEvent], attributes: tuple[str, ...]) -> list[Column]:
    """Return a column for each of some attributes."""
    rows = [event.values for event in events]
    # The very names that the events have: equal ones are sooner seen to be equal when they are the same.
    own = tuple(rows[0])
    columns = _turned(rows, own) if own == attributes else None
    return _gathered(rows, attributes) if columns is None else columns


def _turned(rows: Sequence[Mapping[str, Scalar]], attributes: tuple[str, ...]) -> list[Column] | None:
    """Return the columns of rows that have these attributes and no others, as is mostly so; `None` where it is not."""
    if {*map(len, rows)} != {len(attributes)}:
        return None
    if len(attributes) < 2:  # then a getter would not give rows
        return _gathered(rows, attributes) if {*map(tuple, rows)} == {attributes} else None
    try:
        return [[*column] for column in zip(*map(itemgetter(*attributes), rows), strict=True)]
    except KeyError:
        return None


def _gathered(rows: Sequence[Mapping[str, Scalar]], attributes: tuple[str, ...]) -> list[Column]:
    return [[row.get(name) for row in rows] for name in attributes]


def event_of(found: BlockNames, id_: str, time: datetime | None, row: Sequence[Scalar]) -> TransitEvent:
    """Return the event of a single row, which needs no turning."""
    values: dict[str, Scalar] = dict(zip(found.attributes, row, strict=True))
    if None in row:
        values = {name: value for name, value in values.items() if value is not None}
    return TransitEvent(found.type, found.ancestors, MappingProxyType(values), id_, time)


def events_of(
    found: BlockNames,
    ids: Sequence[str],
    times: Sequence[datetime | None],
    columns: Sequence[Column | None],
    *,
    nulls: bool,
) -> list[TransitEvent]:
    """Return the events of columns that are equally long, without the values of those that are `None`.

    `nulls` says whether any of the values is null.
    """
    attributes: Sequence[str] = found.attributes
    held = [column for column in columns if column is not None]
    if len(held) != len(columns):
        attributes = [name for name, column in zip(attributes, columns, strict=True) if column is not None]
    rows = rows_of(attributes, held, len(ids), nulls=nulls)
    events = [*map(_EVENT, repeat(TransitEvent, len(rows)))]
    values: tuple[Iterable[object], ...] = (
        repeat(found.type),
        repeat(found.ancestors),
        map(MappingProxyType, rows),
        ids,
        times,
    )
    # Set field by field, which takes half the time of building event by event. The events are not shared yet.
    for put, column in zip(_FIELDS, values, strict=True):
        deque(map(put, events, column), maxlen=0)
    return events


_EVENT: Final = TransitEvent.__new__
_FIELDS: Final = tuple(vars(TransitEvent)[one.name].__set__ for one in fields(TransitEvent))


def rows_of(
    attributes: Sequence[str], columns: Sequence[Column], count: int, *, nulls: bool
) -> list[dict[str, Scalar]]:
    """Return the values of so many rows by name, nulls left out. `nulls` says whether there are any."""
    if nulls:
        rows = zip(*columns, strict=True)
        return [{name: one for name, one in zip(attributes, row, strict=True) if one is not None} for row in rows]
    # Rows that have their size from the beginning are made more quickly than such that grow.
    template = dict[str, Scalar].fromkeys(attributes)
    found = [template.copy() for _ in range(count)]
    for name, column in zip(attributes, columns, strict=True):
        for row, value in zip(found, column, strict=True):
            row[name] = value
    return found


# ----------------------------------------------------------------------------------------------------------------------
# Blocks: the header, the route and the columns.


VERSION: Final = 1
INCARNATION_BYTES: Final = 16
FIRST: Final = ""
"""The name of the first column, where others have the id of their attribute."""

_FIXED: Final = Struct(">BBBBH32s16s")
_COUNTS: Final = Struct(">QqI")
#: counts, and the head of the route behind them
_MIDDLE: Final = Struct(">QqIBI")
_LENGTH: Final = Struct(">I")
_EPOCH_BYTES: Final = 8
_EVENT_LEVEL, _SIGNED = 1, 2
#: fixed parts that are remembered, and the longest of them
_REMEMBERED: Final = 1_024
_SHORT: Final = 1_024


class Level(IntEnum):
    """The unit that is sealed: each attribute, or the event as a whole (paper 5, sections 7.1 and 7.2)."""

    ATTRIBUTE = 0
    EVENT = 1


class Padding(IntEnum):
    """Padding that hides the lengths of columns: none, by powers of two, or by few sizes."""

    NONE = 0
    POWERS = 1
    SIZES = 2


_SIZES: Final = (64, 256, 1_024, 4_096, 16_384, 65_536)
_SMALLEST: Final = 16


def pad(padding: Padding, content: bytes) -> bytes:
    """Return content with padding that hides its length."""
    if padding is Padding.NONE:
        return content
    size = len(content) + 1
    if padding is Padding.POWERS:
        full = max(_SMALLEST, 1 << (size - 1).bit_length())
    else:
        full = next((known for known in _SIZES if size <= known), -(-size // _SIZES[-1]) * _SIZES[-1])
    return content + b"\x80" + bytes(full - size)


def unpad(padding: Padding, padded: bytes) -> bytes:
    """Return the content. Raises `MalformedError` (`block.column`)."""
    if padding is Padding.NONE:
        return padded
    content = padded.rstrip(b"\0")[:-1]
    if pad(padding, content) != padded:
        raise MalformedError("block.column", "a column is not padded as its block says")
    return content


@dataclass(frozen=True, slots=True)
class Block:
    """Events of one type in columns. A column that was not opened is `None`, and so are values that are null."""

    names: BlockNames
    ids: Sequence[str]
    times: Sequence[datetime | None]
    #: one for each attribute, each as long as `ids`
    columns: Sequence[Column | None] = field(repr=False)

    def __post_init__(self) -> None:
        rows = len(self.ids)
        if len(self.times) != rows or len(self.columns) != len(self.names.attributes) or not rows:
            raise malformed("a block has events, an id and a time for each, and a column for each attribute")
        if not {rows}.issuperset([len(column) for column in self.columns if column is not None]):
            raise malformed("the columns of a block differ in length")

    @classmethod
    def of(cls, events: Sequence[TransitEvent]) -> "Block":
        """Lay out events of one type by column.

        Raises `MalformedError` (`block.malformed`) where there is none, or they are of several types.
        """
        found, columns = lay_out(events)
        return cls(found, [event.id for event in events], [event.time for event in events], columns)

    def column(self, attribute: str) -> Column | None:
        """Return the column of an attribute, and `None` where it is closed or the block has none."""
        found = self.names.attributes
        return self.columns[found.index(attribute)] if attribute in found else None

    def events(self) -> list[TransitEvent]:
        """Return the events, without the values of closed columns."""
        if len(self.ids) == 1:
            row = [None if column is None else column[0] for column in self.columns]
            return [event_of(self.names, self.ids[0], self.times[0], row)]
        nulls = any(None in column for column in self.columns if column is not None)
        return events_of(self.names, self.ids, self.times, self.columns, nulls=nulls)


class Fixed(NamedTuple):
    """The part of the header that all blocks of one sender, type and epoch share."""

    level: Level
    signed: bool
    #: the number of an algorithm
    algorithm: int
    padding: Padding
    sender: bytes
    incarnation: bytes
    #: of each column
    epochs: tuple[int, ...]


def write_fixed(fixed: Fixed) -> bytes:
    """Return the fixed part of a header."""
    flags = fixed.level * _EVENT_LEVEL | fixed.signed * _SIGNED
    count = len(fixed.epochs)
    head = _FIXED.pack(VERSION, flags, fixed.algorithm, fixed.padding, count, fixed.sender, fixed.incarnation)
    return head + Struct(f">{count}Q").pack(*fixed.epochs)


def read_fixed(data: bytes) -> Fixed:
    """Read the fixed part of a header. Raises `MalformedError` (`block.malformed`)."""
    return _read_short(data) if len(data) <= _SHORT else _read_fixed(data)


def _read_fixed(data: bytes) -> Fixed:
    version, flags, algorithm, padding, count, sender, incarnation = _FIXED.unpack_from(data)
    if version != VERSION or flags > _EVENT_LEVEL | _SIGNED or padding not in Padding.__members__.values():
        raise malformed("a block of a version that is not known")
    level = Level(flags & _EVENT_LEVEL)
    if not count or (level is Level.EVENT and count != 1):
        raise malformed("a block with too few columns, or too many")
    epochs = Struct(f">{count}Q").unpack_from(data, _FIXED.size)
    return Fixed(level, bool(flags & _SIGNED), algorithm, Padding(padding), sender, incarnation, epochs)


_read_short = lru_cache(maxsize=_REMEMBERED)(_read_fixed)


class BlockHeader(NamedTuple):
    """The public part of a block. Trust it only if a column opens."""

    fixed: Fixed
    number: int
    time: datetime
    rows: int
    route: Route

    @property
    def sender(self) -> Principal:
        """The broker that says it has sealed the block."""
        return Principal(self.fixed.sender)

    @property
    def id(self) -> bytes:
        """Return the id of this block among its sender's: incarnation and number."""
        return self.fixed.incarnation + self.number.to_bytes(8, "big")


class Parts(NamedTuple):
    """A block cut into pieces that are not parsed. It is cheap, and sufficient for opening the block."""

    fixed: bytes
    #: fixed part and counts, to which every column is bound, besides the names
    bound: bytes
    number: int
    #: in microseconds since 1970
    time: int
    rows: int
    #: with kind and length, as in the block
    route: bytes
    signature: bytes
    #: `None` where a column is missing
    columns: Sequence[bytes | None]

    def header(self) -> BlockHeader:
        """Read the header. Raises `MalformedError` and `LimitError`."""
        return BlockHeader(read_fixed(self.fixed), self.number, instant(self.time), self.rows, read_route(self.route))

    def opening(self) -> bytes:
        """Return everything before the lengths of the columns."""
        return b"".join((self.bound, self.route, _LENGTH.pack(len(self.signature)), self.signature))


def write_bound(fixed: bytes, number: int, time: int, rows: int) -> bytes:
    """Return the bytes that columns are bound to: the fixed part, number, time in microseconds and rows."""
    return fixed + _COUNTS.pack(number, time, rows)


def read_bound(data: bytes) -> tuple[Fixed, int, int, int]:
    """Read the bytes that columns are bound to. Raises `MalformedError` (`block.malformed`)."""
    end = len(data) - _COUNTS.size
    if end < _FIXED.size or end != _FIXED.size + _EPOCH_BYTES * _columns(data):
        raise malformed("a header of another length")
    number, time, rows = _COUNTS.unpack_from(data, end)
    return read_fixed(data), number, time, rows


def write_block(bound: bytes, route: bytes, signature: bytes, columns: Sequence[bytes]) -> bytes:
    """Return a block."""
    lengths = _numbers(len(columns)).pack(*map(len, columns))
    return b"".join((bound, route, _LENGTH.pack(len(signature)), signature, lengths, *columns))


def read_block(data: bytes, *, limits: CodecLimits = CODEC_LIMITS) -> Parts:
    """Cut a block into its parts.

    Raises `MalformedError` (`block.malformed`) and `LimitError` (`block.limit`).
    """
    if len(data) > limits.block_bytes:
        raise LimitError("block.limit", f"a block of {len(data)} bytes, where at most {limits.block_bytes} are read")
    parts, columns, place = _opening(data)
    _check_counts(parts, limits)
    if not columns:
        columns[:] = _cut_columns(data, place)
    return parts


def _cut_columns(data: bytes, place: int) -> list[bytes]:
    count = _columns(data)
    first = place + _LENGTH.size * count
    if first > len(data):
        raise malformed("a block that ends in its header")
    columns: list[bytes] = []
    start = first
    for length in _numbers(count).unpack_from(data, place):
        columns.append(data[start : start + length])
        start += length
    if start != len(data):
        raise malformed("a block whose columns are longer or shorter than it says")
    return columns


_Opening: TypeAlias = tuple[Parts, list[bytes | None], int]
"""A block whose columns are filled in when they are wanted, and where they begin."""


def _opening(data: bytes) -> _Opening:
    latest = _LATEST[0] if _LATEST else None
    if latest is not None and latest[0] is data:
        return latest[1]
    columns: list[bytes | None] = []
    parts, place = _cut_opening(data, columns)
    found = parts, columns, place
    if len(data) <= ROUTE_BLOCK_BYTES:
        _LATEST.append((data, found))
    return found


#: the last result: a broker reads the header of a block, then opens the same bytes, and verifies the signature
_LATEST: Final[deque[tuple[bytes, _Opening]]] = deque(maxlen=1)


def _cut_opening(data: bytes, columns: Sequence[bytes | None]) -> tuple[Parts, int]:
    """Return everything before the lengths of the columns, and where it ends. The counts are not checked yet."""
    try:
        fixed = _FIXED.size + _EPOCH_BYTES * _columns(data)
        number, time, rows, _, length = _MIDDLE.unpack_from(data, fixed)
        counts = fixed + _COUNTS.size
        route = counts + ROUTE_HEAD.size + length
        signature = route + _LENGTH.size
        end = signature + _LENGTH.unpack_from(data, route)[0]
    except (IndexError, _StructError):
        raise malformed("a block that ends in its header") from None
    if end > len(data):
        raise malformed("a block that ends in its header")
    if data[0] != VERSION or bool(data[1] & _SIGNED) != (end > signature):
        raise malformed("a block of a version that is not known")
    found = data[:fixed], data[:counts], number, time, rows, data[counts:route], data[signature:end], columns
    return Parts(*found), end


def _check_counts(parts: Parts, limits: CodecLimits) -> None:
    if not 0 < parts.rows <= limits.block_rows or len(parts.route) - ROUTE_HEAD.size > limits.block_names:
        raise LimitError("block.limit", "a block has no rows or too many, or its names are too long")


def _columns(data: bytes) -> int:
    return data[4] << 8 | data[5]


@lru_cache(maxsize=_REMEMBERED)
def _numbers(count: int) -> Struct:
    return Struct(f">{count}I")


def says_labels(data: bytes) -> bool:
    """Return whether the route of a block is blinded. The answer is arbitrary for data that is not a block."""
    start = _route_start(data)
    return start < len(data) and data[start] == 1


def written_route(data: bytes) -> bytes:
    """Return the route of a block as it is written. Raises `MalformedError` (`block.malformed`)."""
    start = _route_start(data)
    if start + ROUTE_HEAD.size > len(data):
        raise malformed("a block that ends in its header")
    return data[start : start + ROUTE_HEAD.size + ROUTE_HEAD.unpack_from(data, start)[1]]


def with_route(data: bytes, route: bytes) -> bytes:
    """Return a block with another route, as `write_route` gives it. Raises `MalformedError` (`block.malformed`)."""
    start, before = _route_start(data), written_route(data)
    return b"".join((data[:start], route, data[start + len(before) :]))


def _route_start(data: bytes) -> int:
    start = _FIXED.size + _COUNTS.size
    return start + _EPOCH_BYTES * _columns(data) if len(data) > start else start


def read_header(data: bytes) -> BlockHeader:
    """Read the header, which needs no key, without the columns. Raises `MalformedError` and `LimitError`."""
    parts = _opening(data)[0]
    _check_counts(parts, CODEC_LIMITS)
    return parts.header()


def reroute(data: bytes, route: Route) -> bytes:
    """Return the same block with another route. Nothing is sealed again."""
    read_block(data)
    return with_route(data, write_route(route))


def split(data: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Return the header of a block, and its columns under the ids of their attributes; the first under `FIRST`.

    If the route is blinded, labels in hexadecimal replace the ids. Raises `MalformedError` and `LimitError`.
    """
    parts = read_block(data)
    columns = [column for column in parts.columns if column is not None]
    named = dict(zip(_column_names(parts), columns, strict=True))
    return parts.opening(), named


def join(header: bytes, columns: Mapping[str, bytes]) -> bytes:
    """Return the block that was split. Raises `MalformedError` (`block.malformed`) where a column is missing."""
    parts = read_parts(header, columns)
    found = [column for column in parts.columns if column is not None]
    if len(found) != len(parts.columns) or len(found) != len(columns):
        raise malformed("a block is joined of all its columns and no others")
    return write_block(parts.bound, parts.route, parts.signature, found)


def read_parts(header: bytes, columns: Mapping[str, bytes], *, limits: CodecLimits = CODEC_LIMITS) -> Parts:
    """Return a block of which some columns may be missing. Raises `MalformedError` and `LimitError`."""
    found: list[bytes | None] = []
    parts, end = _cut_opening(header, found)
    _check_counts(parts, limits)
    if end != len(header):
        raise malformed("a header with something behind it")
    found += [columns.get(name) for name in _column_names(parts)]
    return parts


def _column_names(parts: Parts) -> tuple[str, ...]:
    if read_fixed(parts.fixed).level is Level.EVENT:
        return (FIRST,)
    route = read_route(parts.route)
    found = (
        route.names.attributes if isinstance(route, PlainNames) else tuple(label.hex() for label in route.attributes)
    )
    if len(found) + 1 != _columns(parts.fixed) or len({*found}) != len(found):
        raise malformed("a block has a column for each attribute, and one more")
    return (FIRST, *found)


# ----------------------------------------------------------------------------------------------------------------------
# Blocks whose columns are bytes: the input of sealing, and the output of opening before values are read.
#
# Brokers go from events to values to bytes (`encode_block`, `decode_block`). A job may go from columns of Arrow to
# these bytes and back, without a value of Python in between.


class EncodedBlock(NamedTuple):
    """Columns as bytes. One that is closed is `None`."""

    names: BlockNames
    rows: int
    ids: bytes
    times: bytes
    columns: Sequence[bytes | None]


def encode_block(block: Block) -> EncodedBlock:
    """Encode the columns of a block. Raises `MalformedError` as `encode_column`."""
    rows = len(block.ids)
    if rows == 1 and None not in block.columns:
        values = [column[0] for column in block.columns if column is not None]
        ids, times, *cells = encode_cells([block.ids[0], block.times[0], *values])
        return EncodedBlock(block.names, 1, ids, times, cells)
    columns = [None if column is None else encode_column(column) for column in block.columns]
    return EncodedBlock(block.names, rows, encode_column(block.ids), encode_column(block.times), columns)


def decode_block(encoded: EncodedBlock) -> Block:
    """Read the columns of a block. Raises `MalformedError` (`block.column`)."""
    found, rows, ids, times, columns = encoded
    return Block(found, decode_column(ids, rows), decode_column(times, rows), decode_columns(columns, rows))


def encode_events(events: Sequence[TransitEvent]) -> EncodedBlock:
    """Encode events of one type. Raises as `Block.of` and `encode_block`."""
    latest = _LATEST_ENCODED[0] if _LATEST_ENCODED else None
    if latest is not None and latest[0] is events:
        return latest[1]
    encoded = _encode_events(events)
    if type(events) is EventRows or type(events) is tuple:
        _LATEST_ENCODED.append((events, encoded))
    return encoded


#: the last result: a broker seals events, and then sends the same columns in plaintext beside the sealed ones
_LATEST_ENCODED: Final[deque[tuple[Sequence[TransitEvent], EncodedBlock]]] = deque(maxlen=1)


def _encode_events(events: Sequence[TransitEvent]) -> EncodedBlock:
    if type(events) is EventRows:
        return _encode_rows(events)
    if len(events) != 1:
        found, columns = lay_out(events)
        return _encode(found, events, columns)
    # One row needs no columns.
    event = events[0]
    found = names(event.key, event.ancestors, tuple(event.values))
    ids, times, *cells = encode_cells([event.id, event.time, *event.values.values()])
    return EncodedBlock(found, 1, ids, times, cells)


def _encode_rows(events: EventRows) -> EncodedBlock:
    attributes, layout, rows = events.attributes, events.layout, events.rows
    found = names(events.key, events.ancestors, attributes)
    if len(rows) == 1:
        row = rows[0]
        if attributes is not layout:
            row = [*row[:2], *(value for value in row[2:] if value is not None)]
        ids, times, *cells = encode_cells(row)
        return EncodedBlock(found, 1, ids, times, cells)
    ids, times, *cells = map(encode_column, zip(*rows, strict=True))
    if attributes is not layout:
        held = frozenset(attributes)
        cells = [cell for name, cell in zip(layout, cells, strict=True) if name in held]
    return EncodedBlock(found, len(rows), ids, times, cells)


def encode_events_as(found: BlockNames, events: Sequence[TransitEvent]) -> EncodedBlock:
    """Encode events of a type with these names, or some of them; missing values are null.

    Raises `MalformedError` as `encode_column`.
    """
    return _encode(found, events, columns_of(events, found.attributes))


def _encode(found: BlockNames, events: Sequence[TransitEvent], columns: Sequence[Column]) -> EncodedBlock:
    ids, times = encode_column([event.id for event in events]), encode_column([event.time for event in events])
    return EncodedBlock(found, len(events), ids, times, [encode_column(column) for column in columns])


def decode_events(encoded: EncodedBlock) -> EventRows:
    """Read events as rows, without the values of closed columns. Raises `MalformedError` (`block.column`)."""
    found, rows, ids, times, cells = encoded
    layout = found.attributes
    if None in cells:
        layout = tuple(name for name, cell in zip(layout, cells, strict=True) if cell is not None)
        cells = [cell for cell in cells if cell is not None]
    columns = (ids, times, *cells)
    if rows == 1:
        return EventRows(found.type, found.ancestors, layout, [decode_row(columns)])
    values = cast("list[Column]", decode_columns(columns, rows))
    return EventRows(found.type, found.ancestors, layout, [*map(list, zip(*values, strict=True))])


def bundle(encoded: EncodedBlock, level: Level) -> list[bytes]:
    """Return the plaintext to seal, column by column.

    Raises `MalformedError` (`block.malformed`) if a column is closed or missing, or ids are not strings or times not
    timestamps.
    """
    found, _, ids, times, columns = encoded
    if None in columns or len(columns) != len(found.attributes):
        raise malformed("a column that was not opened cannot be sealed")
    _check_common(ids, times)
    open_ = cast("Sequence[bytes]", columns)
    return [encode_bundle((ids, times, *open_))] if level is Level.EVENT else [encode_bundle((ids, times)), *open_]


def unbundle(found: BlockNames, rows: int, level: Level, plain: Sequence[bytes | None]) -> EncodedBlock:
    """Return the columns of opened plaintext. Raises `MalformedError` (`block.malformed`, `block.column`)."""
    first = plain[0] or b""
    if level is Level.EVENT:
        ids, times, *columns = decode_bundle(first, 2 + len(found.attributes))
        _check_common(ids, times)
        return EncodedBlock(found, rows, ids, times, columns)
    ids, times = decode_bundle(first, 2)
    _check_common(ids, times)
    return EncodedBlock(found, rows, ids, times, plain[1:])


def _check_common(ids: bytes, times: bytes) -> None:
    if not are_common(ids, times):
        raise malformed("the ids of events are strings, and their times timestamps")

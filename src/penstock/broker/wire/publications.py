"""Events between brokers, many of one kind together.

A block of events has a header, which says of which type they are and which attributes they have, and columns: their
numbers, ids and times, and one for each attribute, all in one list. Header and columns travel as bytes. A header is
written and read once for all the blocks that have it; columns are checked as a whole rather than value by value, and go
on to the next broker as they came where all of them are wanted there.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from itertools import chain, groupby
from operator import attrgetter, lt
from types import MappingProxyType, NoneType
from typing import Any, ClassVar, Final, TypeAlias, cast

from penstock.broker.limits import ROUTE_SLOT_LENGTH, BrokerLimits
from penstock.broker.wire.plain_trees import (
    Tree,
    key_tree,
    malformed,
    principal_tree,
    read_attribute,
    read_key,
    read_principal,
    too_many,
)
from penstock.codec.blocks import rows_of
from penstock.codec.limits import ROUTE_BLOCK_BYTES, ROUTE_BLOCK_EVENTS, CodecLimits
from penstock.codec.wire import decode, encode
from penstock.errors import LimitError
from penstock.model.events import EventRows, TransitEvent, typed
from penstock.model.limits import TYPE_ATTRIBUTES, TYPE_DEPTH
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.values import INTEGER_MAX, Kind, Scalar, check_value

#: what a codec makes of the value of an attribute; its texts are Unicode and its instants in UTC
_KINDS: Final = frozenset((str, int, float, bool, datetime, NoneType))
_TIMES: Final = frozenset((datetime, NoneType))
_NUMBERS: Final = frozenset((int,))
_TEXTS: Final = frozenset((str,))
#: headers beyond this are read again each time, or remembering them would take much
_SHORT: Final = 4_096
_HEADERS: Final = 1_024

#: columns besides those of attributes
_FIXED: Final = 3

_Column: TypeAlias = list[Any]


@dataclass(frozen=True, slots=True)
class PublicationHeader:
    """What the events of a block have in common: the type, its ancestors, and the attributes that have values."""

    type: TypeKey
    ancestors: tuple[TypeKey, ...]
    attributes: tuple[str, ...]
    #: the header as it travels
    data: bytes = field(default=b"", repr=False, compare=False)

    @classmethod
    def of(cls, events: Sequence[TransitEvent]) -> "PublicationHeader":
        """Return the header of events of one type."""
        first = events[0]
        if len(events) == 1:
            return _header(first.key, first.ancestors, tuple(first.values))
        attributes = dict.fromkeys(chain.from_iterable(event.values for event in events))
        return _header(first.key, first.ancestors, tuple(attributes))

    @classmethod
    def read(cls, data: object) -> "PublicationHeader":
        """Read the bytes of a header. Raises `MalformedError`."""
        if type(data) is not bytes:
            malformed("the header of events")
        return _read_short(data) if len(data) <= _SHORT else _read_header(data)


@lru_cache(maxsize=_HEADERS)
def _header(key: TypeKey, ancestors: tuple[TypeKey, ...], attributes: tuple[str, ...]) -> PublicationHeader:
    data = encode([key_tree(key), [key_tree(ancestor) for ancestor in ancestors], list(map(str, attributes))])
    return PublicationHeader(key, ancestors, attributes, data)


def _read_header(data: bytes) -> PublicationHeader:
    match decode(data):
        case [key, list(ancestors), list(attributes)]:
            pass
        case _:
            malformed("the header of events")
    if len(ancestors) > TYPE_DEPTH:
        too_many("ancestors", TYPE_DEPTH)
    if len(attributes) > TYPE_ATTRIBUTES:
        too_many("attributes", TYPE_ATTRIBUTES)
    line = tuple(map(read_key, (key, *ancestors)))
    names = tuple(map(read_attribute, attributes))
    if len({*line}) != len(line) or len({*names}) != len(names):
        malformed("a duplicate ancestor, or a duplicate attribute")
    return PublicationHeader(line[0], line[1:], names, data)


_read_short = lru_cache(maxsize=_HEADERS)(_read_header)


@dataclass(slots=True)
class Publications:
    """Events in transit, of one type and one origin, which numbers them so that copies are recognised.

    Retained events name the slot whose latest event they may be. As `state` they are sent again to those who subscribed
    later. Nobody changes a block, and all share it; it is not frozen, since making it would take four times as long,
    several times for each event.
    """

    KIND: ClassVar = "publications"
    COUNTED: ClassVar = True
    origin: Principal
    incarnation: int
    #: strictly rising, one for each event
    numbers: tuple[int, ...]
    events: Sequence[TransitEvent]
    hops: int = 0
    retain: str = ""
    state: bool = False
    _header: PublicationHeader | None = field(default=None, repr=False, compare=False)
    _columns: bytes = field(default=b"", repr=False, compare=False)

    @property
    def type(self) -> TypeKey:
        """The type of all these events."""
        # Without a call of `typed`, because every step asks this.
        events = self.events
        return events.key if type(events) is EventRows else events[0].key

    @property
    def ancestors(self) -> tuple[TypeKey, ...]:
        """The ancestors of that type."""
        return typed(self.events).ancestors

    def pick(self, places: Sequence[int]) -> "Publications":
        """Return some of these events, given by rising places."""
        if len(places) == len(self.numbers):
            return self
        numbers = self.numbers
        return Publications(
            self.origin,
            self.incarnation,
            tuple([numbers[place] for place in places]),
            pick(self.events, places),
            self.hops,
            self.retain,
            self.state,
        )

    def onward(self) -> "Publications":
        """Return the same, one hop further."""
        return Publications(
            self.origin,
            self.incarnation,
            self.numbers,
            self.events,
            self.hops + 1,
            self.retain,
            self.state,
            self._header,
            self._columns,
        )

    def parts(self, limits: BrokerLimits) -> Iterator["Publications"]:
        """Yield the same events in blocks that may travel.

        Raises `LimitError` (`route.event-size`) when one event alone is too large.
        """
        count = len(self.numbers)
        if count <= limits.route_block_events and self._fits(limits):
            yield self
        elif count == 1:
            raise LimitError("route.event-size", f"an event takes more than {limits.route_block_bytes} bytes")
        else:
            for half in (range(count // 2), range(count // 2, count)):
                yield from self.pick(half).parts(limits)

    def to_tree(self) -> list[Tree]:
        """Return the body as a plain tree."""
        columns = self._write()
        origin = principal_tree(self.origin)
        return [origin, self.incarnation, self.hops, self.retain, self.state, self.header_data(), columns]

    def header_data(self) -> bytes:
        """Return the header as it travels."""
        self._write()
        return cast("PublicationHeader", self._header).data

    def _fits(self, limits: BrokerLimits) -> bool:
        data, header = self._write(), cast("PublicationHeader", self._header)
        cells = len(self.numbers) * (len(header.attributes) + _FIXED)
        return len(data) <= limits.route_block_bytes and cells <= limits.codec.wire_items

    def _write(self) -> bytes:
        if not self._columns:
            self._header, self._columns = _write_columns(self.numbers, self.events)
        return self._columns

    @classmethod
    def from_tree(cls, tree: object) -> "Publications":
        """Read events. Raises `MalformedError` and `LimitError` (`message.limit`)."""
        if type(tree) is not list or tuple(map(type, tree)) != cls._FORM:
            malformed("events")
        origin, incarnation, hops, retain, state, written, columns = tree
        if not (0 <= incarnation <= INTEGER_MAX and 0 <= hops <= INTEGER_MAX):
            malformed("the counts of events")
        check_slot(retain)
        header = PublicationHeader.read(written)
        numbers, events = _read_columns(header, columns)
        return cls(read_principal(origin), incarnation, numbers, events, hops, retain, state, header, columns)

    #: the types of the values in a tree
    _FORM: ClassVar = (bytes, int, int, str, bool, bytes, bytes)


def pick(events: Sequence[TransitEvent], places: Sequence[int]) -> Sequence[TransitEvent]:
    """Return the events at these places."""
    return events.pick(places) if type(events) is EventRows else tuple([events[place] for place in places])


def check_slot(name: str) -> None:
    """Check the name of a slot. Raises `MalformedError` and `LimitError` (`message.limit`)."""
    if len(name) > ROUTE_SLOT_LENGTH:
        too_many("characters in the name of a slot", ROUTE_SLOT_LENGTH)
    if not name.isascii():
        malformed("the name of a slot")


def blocks(
    origin: Principal, incarnation: int, first: int, events: Iterable[TransitEvent], retain: str = ""
) -> Iterator[Publications]:
    """Yield events as blocks of one type, in their order; they are numbered from `first`."""
    if type(events) is EventRows:
        yield Publications(origin, incarnation, tuple(range(first, first + len(events))), events, 0, retain)
        return
    for _, group in groupby(events, attrgetter("key", "ancestors")):
        run = tuple(group)
        yield Publications(origin, incarnation, tuple(range(first, first + len(run))), run, 0, retain)
        first += len(run)


def _write_columns(numbers: tuple[int, ...], events: Sequence[TransitEvent]) -> tuple[PublicationHeader, bytes]:
    header = PublicationHeader.of(events)
    cells: list[Scalar] = [*numbers]
    cells += [event.id for event in events]
    cells += [event.time for event in events]
    rows = [event.values for event in events]
    if len(rows) == 1:
        # The header has the attributes in the order in which its only event has them.
        cells += rows[0].values()
    else:
        for name in header.attributes:
            cells += [row.get(name) for row in rows]
    return header, encode(cells, limits=_WIDE)


#: how much goes into a block is decided when it has been written
_WIDE: Final = CodecLimits(frame_bytes=1 << 62, wire_items=1 << 30)


def _read_columns(header: PublicationHeader, data: bytes) -> tuple[tuple[int, ...], tuple[TransitEvent, ...]]:
    if len(data) > ROUTE_BLOCK_BYTES:
        too_many("bytes of events", ROUTE_BLOCK_BYTES)
    tree, width = decode(data), len(header.attributes) + _FIXED
    if type(tree) is not list or not tree or len(tree) % width:
        malformed("the columns of events")
    cells: _Column = tree
    count = len(cells) // width
    if count > ROUTE_BLOCK_EVENTS:
        too_many("events", ROUTE_BLOCK_EVENTS)
    numbers, ids = cells[:count], cells[count : 2 * count]
    times, values = cells[2 * count : _FIXED * count], cells[_FIXED * count :]
    _check_numbers(numbers)
    if not _TEXTS.issuperset(map(type, ids)) or not _TIMES.issuperset(map(type, times)):
        malformed("the ids and times of events")
    kinds = _check_values(values)
    rows = _rows(header.attributes, values, count, nulls=NoneType in kinds)
    key, ancestors = header.type, header.ancestors
    events = [TransitEvent(key, ancestors, MappingProxyType(rows[i]), ids[i], times[i]) for i in range(count)]
    return tuple(numbers), tuple(events)


def _check_numbers(numbers: _Column) -> None:
    if not _NUMBERS.issuperset(map(type, numbers)) or not 0 <= numbers[0] <= numbers[-1] <= INTEGER_MAX:
        malformed("the numbers of events")
    if len(numbers) > 1 and not all(map(lt, numbers, numbers[1:])):
        malformed("the numbers of events do not rise")


def _check_values(values: _Column) -> set[type]:
    """Check values of attributes, and return their kinds."""
    kinds = {*map(type, values)}
    if not kinds <= _KINDS:
        malformed("the value of an attribute")
    # A codec reads integers that are too great, though none that are too small.
    if int in kinds and (most := max([value for value in values if type(value) is int])) > INTEGER_MAX:
        check_value(Kind.INTEGER, most)
    return kinds


def _rows(names: tuple[str, ...], values: _Column, count: int, *, nulls: bool) -> list[dict[str, Scalar]]:
    """Return the values of each event, nulls left out."""
    if count > 1:
        columns = [values[start : start + count] for start in range(0, len(values), count)]
        return rows_of(names, columns, count, nulls=nulls)
    return [{n: v for n, v in zip(names, values, strict=True) if v is not None}]

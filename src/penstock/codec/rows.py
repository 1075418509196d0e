"""Convert events between rows and columns, for blocks."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from itertools import chain, repeat
from operator import itemgetter
from types import MappingProxyType
from typing import Final

from penstock.codec.block_names import BlockNames, malformed, names
from penstock.codec.cells import Column
from penstock.model.events import TransitEvent
from penstock.model.values import Scalar


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
    # Mostly they came by the same way, and the very same key stands in all: a list looks at that first.
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
    # Field by field, in half the time that it takes event by event: nobody has them yet.
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

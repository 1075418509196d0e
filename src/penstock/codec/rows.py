"""Events as rows, and their values as columns: what goes into a block, and what becomes of one that was opened."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain, repeat
from operator import eq
from types import MappingProxyType
from typing import Any

from penstock.codec.block_names import Names, malformed, names
from penstock.codec.cells import Column
from penstock.model.events import TransitEvent
from penstock.model.values import Scalar


def lay_out(events: Sequence[TransitEvent]) -> tuple[Names, list[Column]]:
    """Return the names of events of one type, and a column for each attribute that any of them has.

    Raises `MalformedError` (`block.malformed`) where there is none, or they are of several types.
    """
    if not events:
        raise malformed("a block holds events of one type, and one of them at least")
    first = events[0]
    key, ancestors, attributes = first.key, first.ancestors, tuple(first.values)
    if len(events) == 1:
        return names(key, ancestors, attributes), [[value] for value in first.values.values()]
    # Mostly they came by the same way, and the very same key stands in all of them.
    if any((event.key is not key and event.key != key) or event.ancestors != ancestors for event in events):
        raise malformed("a block holds events of one type, and one of them at least")
    rows = [event.values for event in events]
    if not _have_all(rows, attributes):
        attributes = tuple(dict.fromkeys(chain.from_iterable(rows)))
        return names(key, ancestors, attributes), _gathered(rows, attributes)
    return names(key, ancestors, attributes), _turned(rows)


def columns_of(events: Sequence[TransitEvent], attributes: tuple[str, ...]) -> list[Column]:
    """Return a column for each of some attributes."""
    rows = [event.values for event in events]
    # The very names that the events have: equal ones are sooner seen to be equal when they are the same.
    own = tuple(rows[0])
    return _turned(rows) if own == attributes and _have_all(rows, own) else _gathered(rows, attributes)


def _have_all(rows: Sequence[Mapping[str, Scalar]], attributes: tuple[str, ...]) -> bool:
    """Say whether all rows have these attributes in this order, and no others: what is mostly so."""
    return all(map(eq, map(tuple, rows), repeat(attributes)))


def _turned(rows: Sequence[Mapping[str, Scalar]]) -> list[Column]:
    return [[*column] for column in zip(*[row.values() for row in rows], strict=True)]


def _gathered(rows: Sequence[Mapping[str, Scalar]], attributes: tuple[str, ...]) -> list[Column]:
    return [[row.get(name) for row in rows] for name in attributes]


def event_of(found: Names, id_: str, time: datetime | None, columns: Sequence[Column | None]) -> TransitEvent:
    """Return the event of columns of a single value, which need no turning."""
    pairs = zip(found.attributes, columns, strict=True)
    values = {name: column[0] for name, column in pairs if column is not None and column[0] is not None}
    return TransitEvent(found.type, found.ancestors, MappingProxyType(values), id_, time)


def events_of(
    found: Names,
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
    rows: Iterable[Sequence[Any]] = zip(*held, strict=True) if held else [()] * len(ids)
    # Named row by row, without a step of Python for each.
    named: Iterable[Iterable[tuple[str, Any]]] = map(zip, repeat(attributes), rows)
    if nulls:
        named = [[(name, value) for name, value in row if value is not None] for row in named]
    values = map(MappingProxyType, map(dict, named))
    return [*map(TransitEvent, repeat(found.type), repeat(found.ancestors), values, ids, times)]

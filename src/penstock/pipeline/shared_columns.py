"""Columns that the attributes of many types share, so that plans do not grow with the types.

Transit events have a column for each attribute id. A thousand types have thousands of these, nearly all of them null in
every row, and expressions for each. Attributes of one kind that no event has together share a column here, and `@of` is
the number of the type that an event is of: what is asked of an attribute is then asked of all types in one expression.

Files keep a column for each attribute id. Types are divided into parts, each of which is read from, and stored in,
files of its own. Wide lists of columns are given to Spark as SQL: a column that Python makes is several calls of Java.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import count
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.model.names import AttributeId, TypeName
from penstock.model.principals import Principal
from penstock.model.types import Attribute, EventType
from penstock.model.values import AttributeSpec, Kind
from penstock.pipeline.event_columns import METADATA, TYPE
from penstock.pipeline.frames import SPARK_TYPES, attributes_of, in_quotes, quoted

OF: Final = "@of"
"""The column of the number of an event's type."""
MANY: Final = 12
"""More types than this share columns. For fewer, an expression for each of them costs less."""
PART_COLUMNS: Final = 400
"""Attributes of the types of a part: as many columns as Spark writes about as fast as a few."""
_NAMED: Final = "@named"
_NOBODY: Final = Principal(bytes(32))
"""The owner of the shared columns, which nobody has the key of."""


def are_many(types: Sequence[EventType]) -> bool:
    """Return whether so many types share columns."""
    return len(types) > MANY


def parts_of(types: Iterable[EventType]) -> Iterator[tuple[EventType, ...]]:
    """Divide types into parts, in the order of their names: files of a part then have a range of names of their own."""
    part: list[EventType] = []
    known: set[str] = set()
    for event_type in _sorted(types):
        if part and len(known | set(event_type.by_id)) > PART_COLUMNS:
            yield tuple(part)
            part, known = [], set()
        part.append(event_type)
        known |= set(event_type.by_id)
    if part:
        yield tuple(part)


def parts_in(types: Iterable[EventType], there: Collection[str] | None) -> list[tuple[EventType, ...]]:
    """Return the parts that have one of some types, given by name (default: all parts); the first if none has."""
    parts = list(parts_of(types))
    if there is None:
        return parts
    return [part for part in parts if any(str(one.name) in there for one in part)] or parts[:1]


def part_of(events: DataFrame, part: Sequence[EventType], *also: str) -> DataFrame:
    """Return the events whose types have names in the range of a part, with only its columns, and those `also` named.

    The range reaches the files, of which other parts are skipped.
    """
    names = [*also, TYPE, *METADATA, *(str(one.id) for one in attributes_of(part))]
    own = events.selectExpr(*map(in_quotes, names))
    return own.where(quoted(TYPE).between(str(part[0].name), str(part[-1].name)))


def _sorted(types: Iterable[EventType]) -> tuple[EventType, ...]:
    return tuple(sorted(types, key=lambda one: str(one.name)))


@dataclass(frozen=True)
class SharedColumns:
    """Which column each attribute of some types has. The number of a type is its place among them."""

    types: tuple[EventType, ...]
    columns: Mapping[str, AttributeId]
    kinds: Mapping[AttributeId, Kind]

    @classmethod
    def of(cls, types: Iterable[EventType], apart: Iterable[frozenset[str]] = ()) -> "SharedColumns":
        """Choose columns: attributes of one type, or in one set of `apart`, share none.

        Raises `MalformedError` (`pipeline.case`).
        """
        known = _sorted(types)
        beside: dict[str, set[str]] = {}
        for together in {*(frozenset[str](one.by_id) for one in known), *apart}:
            for name in together:
                beside.setdefault(name, set()).update(together)
        columns: dict[str, AttributeId] = {}
        kinds: dict[AttributeId, Kind] = {}
        for attribute in attributes_of(known):
            kind = attribute.spec.kind
            taken = {columns[other] for other in beside[attribute.id] if other in columns}
            free = (AttributeId(_NOBODY, "shared", f"{kind}-{number}") for number in count())
            column = columns[attribute.id] = next(one for one in free if one not in taken)
            kinds[column] = kind
        return cls(known, columns, kinds)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each type, by name."""
        return {str(one.name): number for number, one in enumerate(self.types)}

    def own(self, event_type: EventType) -> dict[str, AttributeId]:
        """Return the columns of the attributes of a type, by their ids; without those that the frame lacks."""
        return {
            str(a.id): column
            for a in event_type.attributes
            if (column := self.columns.get(a.id)) is not None and self.kinds[column] is a.spec.kind
        }

    def event_type(self, specs: Mapping[AttributeId, AttributeSpec] | None = None) -> EventType:
        """Return a type that has the columns for attributes, by their own names; `specs` of some of them."""
        known = specs or {}
        own = (Attribute(str(one), one, known.get(one, AttributeSpec(kind))) for one, kind in self.kinds.items())
        return EventType(TypeName(_NOBODY, "shared"), tuple(own))

    def gather(self, events: DataFrame, there: Collection[str] | None = None) -> DataFrame:
        """Return the transit events that are of these types, with their attributes in shared columns.

        What a row has under an attribute that its type lacks does not count. Types that are not `there`, by name, have
        no events (default: all have some).
        """
        rows = pa.table({_NAMED: list(self.numbers), OF: pa.array(self.numbers.values(), type=pa.int64())})
        numbers = F.broadcast(events.sparkSession.createDataFrame(rows))
        known = [one for one in self.types if there is None or str(one.name) in there] or self.types[:1]
        # Each part of them from its own columns: no row, and no expression, has those of all types.
        parts = [self._gather(part_of(events, part), numbers, part) for part in parts_of(known)]
        return reduce(DataFrame.union, parts)

    def _gather(self, events: DataFrame, numbers: DataFrame, part: Sequence[EventType]) -> DataFrame:
        found: dict[AttributeId, list[str]] = {}
        for attribute, own in self._having(self.types, part).items():
            case = f"WHEN {is_one_of(OF, own)} THEN {in_quotes(attribute)}"
            found.setdefault(self.columns[attribute], []).append(case)
        cases = [
            (f"CASE {' '.join(found[column])} END" if column in found else _null(kind)) + f" AS {in_quotes(column)}"
            for column, kind in self.kinds.items()
        ]
        numbered = events.join(numbers, quoted(TYPE) == quoted(_NAMED))
        return numbered.selectExpr(*map(in_quotes, (TYPE, OF, *METADATA)), *cases)

    def spread(self, number: str, numbered: Sequence[EventType], types: Iterable[EventType]) -> list[str]:
        """Return a column for each attribute of some types that has a shared one, as SQL.

        A row has the attributes of that one of the `numbered` types whose number is in the column `number`.
        """
        known = [one for one in attributes_of(types) if one.id in self.columns]
        having = self._having(numbered, types)
        return [
            (
                f"CASE WHEN {is_one_of(number, own)} THEN {in_quotes(self.columns[a.id])} END"
                if (own := having.get(a.id))
                else _null(self.kinds[self.columns[a.id]])
            )
            + f" AS {in_quotes(a.id)}"
            for a in known
        ]

    def parts(
        self, events: DataFrame, types: Iterable[EventType], there: Collection[str] | None = None
    ) -> list[DataFrame]:
        """Return events in shared columns as they are stored: in parts, each of which has only its own columns.

        Types that are not `there`, by name, have no part (default: all have).
        """
        found = []
        for part in parts_in(types, there):
            ends = (self.numbers[str(one.name)] for one in (part[0], part[-1]))
            own = events.where(quoted(OF).between(*ends))
            found.append(own.selectExpr(*map(in_quotes, (TYPE, *METADATA)), *self.spread(OF, self.types, part)))
        return found

    def _having(self, numbered: Sequence[EventType], wanted: Iterable[EventType]) -> dict[str, list[int]]:
        """Return the numbers of the types that have each attribute of some that are wanted."""
        names = {name for one in wanted for name in one.by_id}
        found: dict[str, list[int]] = {}
        for number, event_type in enumerate(numbered):
            if names.isdisjoint(event_type.by_id):
                continue
            for attribute in self.own(event_type):
                if attribute in names:
                    found.setdefault(attribute, []).append(number)
        return found


def _null(kind: Kind) -> str:
    return f"CAST(NULL AS {SPARK_TYPES[kind]})"


def is_one_of(column: str, numbers: Iterable[int]) -> str:
    """Return a condition in SQL: runs of numbers are compared by their ends."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    name = in_quotes(column)
    return " OR ".join(f"{name} = {a}" if a == b else f"{name} BETWEEN {a} AND {b}" for a, b in runs) or "false"

"""Opened events on their way from tasks to Spark.

What an event is called and whether a value is null would be a string, and a question to Arrow, for each row and column:
Spark's part of reading a log of long blocks is several times that of opening it. One number a row says all of it
instead, and Spark turns it into names and nulls where it makes its rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.errors import MalformedError
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.model.values import Kind
from penstock.pipeline.frames import ID, SOURCE, TIME, attributes_of, in_quotes, quoted, transit_schema
from penstock.pipeline.sealed_cells import OpenedGroup
from penstock.pipeline.sealed_columns import ARROW_TYPES
from penstock.pipeline.tagging import TYPE

_NUMBER: Final = "@names"
"""A number for who sent an event, its type, and which of its values are null, from the lowest bits on."""
_HALF: Final = 16
_LOWER: Final = (1 << _HALF) - 1
_NULLS: Final = 2 * _HALF
MARKED: Final = 31
"""So many columns have a bit that says whether they are null: what is left of a number of Spark without its sign."""


def events_schema(types: Iterable[EventType]) -> StructType:
    """Return the schema of events as jobs store them."""
    return StructType([StructField(TYPE, StringType()), *transit_schema(types)])


def numbered_schema(types: Sequence[EventType], senders: Sequence[str] | None) -> StructType:
    """Return the schema in which events leave tasks: a number stands for their type, known senders, and nulls.

    Whether a value is null, Spark asks Arrow for each one, and that is dear: what never is, is declared so.
    """
    if max(len(types), len(senders or ())) > _LOWER + 1:
        raise ValueError("more types or senders than a number tells apart")
    instead = (TYPE,) if senders is None else (TYPE, SOURCE)
    stored = events_schema(types)
    whole = {ID, *_marked(stored.names)}
    rest = [StructField(f.name, f.dataType, nullable=f.name not in whole) for f in stored if f.name not in instead]
    return StructType([StructField(_NUMBER, LongType(), nullable=False), *rest])


def unnumbered(found: DataFrame, types: Sequence[EventType], senders: Sequence[str] | None) -> DataFrame:
    """Return the events of a frame in that schema as jobs store them."""
    number, wanted = quoted(_NUMBER), events_schema(types).names
    shown = {TYPE: _named([str(t.name) for t in types], F.shiftright(number, _HALF).bitwiseAND(_LOWER)).alias(TYPE)}
    if senders is not None:
        shown[SOURCE] = _named(senders, number.bitwiseAND(_LOWER)).alias(SOURCE)
    for place, name in enumerate(_marked(wanted)):
        # With `F.when` some starts of Java were slower.
        bit = 1 << _NULLS + place
        shown[name] = F.expr(f"IF({in_quotes(_NUMBER)} & {bit}L = 0, {in_quotes(name)}, NULL)").alias(name)
    return found.select(*(shown.get(name, quoted(name)) for name in wanted))


def _marked(columns: Iterable[str]) -> list[str]:
    """Return those of the columns of events that have a bit, in the order of the bits."""
    return [name for name in columns if name not in (_NUMBER, TYPE, ID, SOURCE)][:MARKED]


def _named(names: Sequence[str], number: Column) -> Column:
    """Return the name of a number."""
    return F.get(F.array(*map(F.lit, names)).cast("array<string>"), number)


class Numbering:
    """Makes batches in that schema, but for nulls, where a task runs."""

    def __init__(self, types: Sequence[EventType], senders: Sequence[str] | None) -> None:
        self.kinds: Mapping[str, Kind] = {str(a.id): a.spec.kind for a in attributes_of(types)}
        self._senders = None if senders is None else {name: number for number, name in enumerate(senders)}
        fields = [(_NUMBER, pa.int64()), (ID, pa.string()), (TIME, ARROW_TYPES[Kind.TIMESTAMP])]
        if senders is None:
            fields.append((SOURCE, pa.string()))
        self._schema = pa.schema([*fields, *((name, ARROW_TYPES[kind]) for name, kind in self.kinds.items())])
        self._last: tuple[tuple[int, int, bytes], Sequence[Any]] = (0, 0, b""), ()

    def batch(self, opened: OpenedGroup, version: int) -> Any:
        """Return the events of a block as rows: `version` is the place of its type.

        Raises `MalformedError` (`block.malformed`) where the sender is none of those that are known.
        """
        rows = len(opened.ids)
        number, *source = self._common(rows, version, opened.sender)
        found = opened.columns
        own = [found[n] if n in found else pa.nulls(rows, ARROW_TYPES[kind]) for n, kind in self.kinds.items()]
        return pa.RecordBatch.from_arrays([number, opened.ids, opened.times, *source, *own], schema=self._schema)

    def _common(self, rows: int, version: int, sender: bytes) -> Sequence[Any]:
        """Return what the events of a block have in common, so many times: blocks of one log are mostly alike."""
        if self._last[0] != (rows, version, sender):
            name = str(Principal(sender))
            source = [] if self._senders is not None else [pa.repeat(name, rows)]
            number = version << _HALF | self._place(name)
            self._last = (rows, version, sender), (pa.repeat(pa.scalar(number, pa.int64()), rows), *source)
        return self._last[1]

    def _place(self, sender: str) -> int:
        place = 0 if self._senders is None else self._senders.get(sender)
        if place is None:
            raise MalformedError("block.malformed", "a block of a sender who was not there when the log was looked at")
        return place


def without_nulls(batch: Any) -> Any:
    """Return a batch in which the number of a row says which of its values are null, and columns with a bit have none.

    Not only by the schema: Java may refuse to read what is null.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    numbers = columns[_NUMBER].to_numpy()
    for place, name in enumerate(_marked(batch.schema.names)):
        column = columns[name]
        if column.null_count:
            numbers = numbers | column.is_null().to_numpy(zero_copy_only=False).astype(np.int64) << _NULLS + place
            buffers = [None, *column.buffers()[1:]]
            columns[name] = pa.Array.from_buffers(column.type, len(column), buffers, 0, column.offset)
    columns[_NUMBER] = pa.array(numbers)
    return pa.RecordBatch.from_arrays([*columns.values()], schema=batch.schema)

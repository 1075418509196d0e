"""Constants of a policy as data. In an expression they would be printed: in plans, in the UI, in logs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.model.values import Kind, Value
from penstock.pipeline.columns import Plain, Source, micros
from penstock.pipeline.frames import quoted
from penstock.pipeline.programs import Constants

_STORED: Final[Mapping[Kind, pa.DataType]] = {
    Kind.STRING: pa.string(),
    Kind.INTEGER: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.BOOLEAN: pa.bool_(),
    # As microseconds: Spark would shift a timestamp by the session's zone on its way.
    Kind.TIMESTAMP: pa.int64(),
}
"""The types in which constants stand in tables."""
_ROW: Final = "@row"


def restored(column: Column, kind: Kind) -> Source:
    """Return a column of a table of constants as the value that it stands for."""
    value = F.timestamp_micros(column) if kind is Kind.TIMESTAMP else column
    return Source(value, kind, Plain(value))


def plain(value: Value | None) -> object:
    """Return a constant as it is put into a table."""
    return micros(value) if isinstance(value, datetime) else value


def table(spark: SparkSession, kinds: Mapping[str, Kind], rows: Iterable[Sequence[Value | None]]) -> DataFrame:
    """Return a small table that is part of the plan: no job has to make it, and no plan prints it."""
    stored = list(zip(*([plain(value) for value in row] for row in rows), strict=True)) or [()] * len(kinds)
    columns = {
        name: pa.array(values, type=_STORED[kind]) for (name, kind), values in zip(kinds.items(), stored, strict=True)
    }
    fields = [pa.field(name, values.type, nullable=values.null_count > 0) for name, values in columns.items()]
    # A Spark Connect server logs the requests that it gets, and tables up to this size stand in them.
    spark.conf.set("spark.sql.session.localRelationCacheThreshold", "0")
    return spark.createDataFrame(pa.table(columns, schema=pa.schema(fields)))


@dataclass(slots=True)
class OneRow:
    """Constants that every event needs: one row, joined to all of them."""

    prefix: str
    _found: list[tuple[str, Kind, Value]] = field(default_factory=list)

    def source(self, value: Value, kind: Kind) -> Source:
        """Take a constant in, and return where it will stand."""
        name = f"{self.prefix}{len(self._found)}"
        self._found.append((name, kind, value))
        return restored(quoted(name), kind)

    def parameters(self, constants: Constants) -> dict[str, Source]:
        """Take the constants of a shape in, and return where its parameters will stand."""
        return {
            name: self.source(value, kind)
            for name, value, kind in zip(constants.names, constants.values, constants.kinds, strict=True)
        }

    def join(self, frame: DataFrame) -> DataFrame:
        """Return the frame with the constants beside every row."""
        if not self._found:
            return frame
        kinds = {name: kind for name, kind, _ in self._found}
        # A number that is 0 in every row, which Spark does not see: it would make a cross join of a join by a constant.
        zero = quoted(frame.columns[0]).isNull().cast("bigint").bitwiseAND(F.lit(0))
        return look_up(frame, zero, kinds, [0, *(value for _, _, value in self._found)])


def look_up(frame: DataFrame, key: Column, kinds: Mapping[str, Kind], row: Sequence[Value | None]) -> DataFrame:
    """Return the rows of a frame that have a key, an integer, with the columns of a table of one row beside them.

    The first value of the row is its key. Spark copies every row that leaves a cross join or `explode`, because those
    can make many of one; a join by a key that is unique copies none.
    """
    found = table(frame.sparkSession, {_ROW: Kind.INTEGER, **kinds}, [row])
    return frame.join(F.broadcast(found), key == quoted(_ROW)).drop(_ROW)


@dataclass(slots=True)
class Slots:
    """Columns that the parameters of several shapes share: a row of the table has the constants of one of them."""

    prefix: str
    _kinds: dict[str, Kind] = field(default_factory=dict)

    def take(self, kinds: Sequence[Kind]) -> dict[str, Source]:
        """Return where the parameters of a shape will stand."""
        names = self._named(kinds)
        self._kinds.update(zip(names, kinds, strict=True))
        return {f"@p{n}": restored(quoted(name), kind) for n, (name, kind) in enumerate(zip(names, kinds, strict=True))}

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """The columns."""
        return self._kinds

    def row(self, kinds: Sequence[Kind], values: Sequence[Value]) -> list[Value | None]:
        """Return the constants of a shape in the order of the columns."""
        found: dict[str, Value] = dict(zip(self._named(kinds), values, strict=True))
        return [found.get(name) for name in self._kinds]

    def _named(self, kinds: Sequence[Kind]) -> list[str]:
        seen: Counter[Kind] = Counter()
        names = []
        for kind in kinds:
            names.append(f"{self.prefix}{kind}{seen[kind]}")
            seen[kind] += 1
        return names

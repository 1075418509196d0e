"""Constants of a policy as data. In an expression they would be printed: in plans, in the UI, in logs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import ArrayType, DataType, LongType, StructField, StructType

from penstock.model.values import Kind, Value
from penstock.pipeline.columns import Source, micros
from penstock.pipeline.frames import quoted, spark_type


def stored(kind: Kind) -> DataType:
    """Return the type in which constants of a kind stand in a table: times are microseconds.

    Python's local timestamps cannot name every instant.
    """
    return LongType() if kind is Kind.TIMESTAMP else spark_type(kind)


def restored(column: Column, kind: Kind) -> Source:
    """Return a column of a table of constants as the value that it stands for."""
    return Source(F.timestamp_micros(column) if kind is Kind.TIMESTAMP else column, kind)


def plain(value: Value) -> object:
    """Return a constant as it is put into a table."""
    return micros(value) if isinstance(value, datetime) else value


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

    def join(self, frame: DataFrame) -> DataFrame:
        """Return the frame with the constants beside every row."""
        if not self._found:
            return frame
        schema = StructType([StructField(name, stored(kind)) for name, kind, _ in self._found])
        row = frame.sparkSession.createDataFrame([tuple(plain(value) for _, _, value in self._found)], schema=schema)
        return frame.crossJoin(F.broadcast(row))


def lookup(
    spark: SparkSession,
    rows: Mapping[Value, Sequence[tuple[object, ...]]],
    key: StructField,
    name: str,
    struct: StructType,
) -> DataFrame:
    """Return a broadcast table from a key to the structs found under it, in a column `name`."""
    schema = StructType([key, StructField(name, ArrayType(struct))])
    return F.broadcast(spark.createDataFrame([(plain(k), list(found)) for k, found in rows.items()], schema=schema))

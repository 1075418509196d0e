"""Events of the model as rows of a frame, and back."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from penstock.model import EventType, Scalar, TransitEvent
from penstock.pipeline import shared_columns
from penstock.pipeline.frames import ID, SOURCE, TIME, micros, quoted, transit_schema


def frame(spark: SparkSession, schema: StructType, rows: Sequence[Mapping[str, object]]) -> DataFrame:
    """Build a frame; timestamps go in as microseconds, because Python's cannot be converted at the edges."""
    raw = StructType(
        [StructField(f.name, LongType() if isinstance(f.dataType, TimestampType) else f.dataType) for f in schema]
    )

    def plain(value: object) -> object:
        return micros(value) if isinstance(value, datetime) else value

    made = spark.createDataFrame([tuple(plain(row.get(f.name)) for f in schema) for row in rows], schema=raw)
    columns = [
        (F.timestamp_micros(quoted(f.name)) if isinstance(f.dataType, TimestampType) else quoted(f.name)).alias(f.name)
        for f in schema
    ]
    return made.select(*columns)


def transit_frame(spark: SparkSession, types: Iterable[EventType], events: Sequence[TransitEvent]) -> DataFrame:
    schema = transit_schema(types)
    rows = [{ID: event.id, TIME: event.time, SOURCE: "", **event.values} for event in events]
    return frame(spark, schema, rows)


def collected(found: DataFrame) -> list[Row]:
    """Collect a frame with its timestamps as microseconds."""
    columns = [
        (F.unix_micros(quoted(f.name)) if isinstance(f.dataType, TimestampType) else quoted(f.name)).alias(f.name)
        for f in found.schema
    ]
    return found.select(*columns).collect()


@contextmanager
def sharing() -> Iterator[None]:
    """Let any number of types share columns."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shared_columns, "MANY", 0)
        yield


def same(value: Scalar, found: object) -> bool:
    """Compare a value of the model with one that was collected."""
    if isinstance(value, datetime):
        return found == micros(value)
    if isinstance(value, float) and value != value:  # noqa: PLR0124  # NaN is the value unequal to itself
        return isinstance(found, float) and found != found  # noqa: PLR0124  # the same
    return type(value) is type(found) and value == found

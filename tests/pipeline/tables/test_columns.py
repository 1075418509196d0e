"""The columns of events in tables."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType
from tests.pipeline.jobs_plant import FIRST, SECOND
from tests.pipeline.policy_kit import define
from tests.pipeline.rows import sharing
from tests.trust.kit import refused

from penstock.model import EventType, Kind
from penstock.pipeline import shared_columns
from penstock.pipeline.frames import transit_schema
from penstock.pipeline.tables.addresses import SinkRows
from penstock.pipeline.tables.columns import added_columns, partitioned, plain_rows
from penstock.pipeline.tables.messages import messages

ONE, TWO = EventType.of(FIRST), EventType.of(SECOND)


def rows(spark: SparkSession, *types: EventType) -> SinkRows:
    schema = StructType([StructField("@type", StringType()), *transit_schema(types)])
    made = [
        (
            str(one.name),
            f"e{n}",
            None,
            "s",
            *(f"{n}" if f.dataType == StringType() else None for f in schema.fields[4:]),
        )
        for n, one in enumerate(types)
    ]
    return SinkRows(spark.createDataFrame(made, schema), types)


def test_an_attribute_has_the_name_of_its_rows_own_version(spark: SparkSession) -> None:
    found = plain_rows(rows(spark, ONE, TWO))
    assert found.columns == [
        *("event_type", "event_id", "event_time", "event_source", "sensor", "region", "value", "probe")
    ]
    assert [(row["sensor"], row["region"], row["probe"]) for row in found.orderBy("event_id").collect()] == [
        ("0", "0", None),
        (None, "1", "1"),
    ]
    # With one version nothing has to be asked of a row.
    assert plain_rows(rows(spark, TWO)).columns[4:] == ["probe", "region", "value"]


def test_two_types_share_a_column_of_one_name(spark: SparkSession) -> None:
    other = EventType.of(define("other", {"region": Kind.STRING, "event_ID": Kind.STRING, "subscriber": Kind.BOOLEAN}))
    found = plain_rows(rows(spark, ONE, other))
    assert found.columns[4:] == ["sensor", "region", "value", "attribute_event_ID", "attribute_subscriber"]
    assert [row["region"] for row in found.orderBy("event_id").collect()] == ["0", "1"]


def test_rows_of_many_types_are_the_same(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    other = EventType.of(define("other", {"region": Kind.STRING, "odd": Kind.INTEGER}))
    some = rows(spark, ONE, TWO, other)
    expected = [plain_rows(some), messages(some), messages(some, binary=True)]
    monkeypatch.setattr(shared_columns, "PART_COLUMNS", 1)
    with sharing():
        found = [plain_rows(some), messages(some), messages(some, binary=True)]
        for one, same in zip(found, expected, strict=True):
            assert one.columns == same.columns
            assert sorted(map(str, one.collect())) == sorted(map(str, same.collect()))
    assert [len(one.collect()) for one in found] == [3, 3, 3]


def test_what_cannot_be_one_column_is_refused(spark: SparkSession) -> None:
    with refused("tables.kind"):
        plain_rows(rows(spark, ONE, EventType.of(define("other", {"value": Kind.STRING}))))
    with refused("tables.column"):
        plain_rows(rows(spark, ONE, EventType.of(define("other", {"Value": Kind.FLOAT}))))
    with refused("tables.column"):
        plain_rows(
            rows(spark, EventType.of(define("other", {"event_id": Kind.STRING, "attribute_event_id": Kind.STRING})))
        )


def test_rows_that_are_not_events_keep_their_columns(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "user string, `@decision` string")
    assert plain_rows(SinkRows(frame)).columns == ["user", "decision"]
    with refused("tables.column"):
        plain_rows(SinkRows(spark.createDataFrame([], "decision string, `@decision` string")))


def test_a_table_gets_further_columns_and_keeps_the_types_of_those_that_it_has() -> None:
    def schema(*fields: tuple[str, object]) -> StructType:
        return StructType([StructField(name, kind) for name, kind in fields])  # type: ignore[arg-type]  # of Spark

    known = schema(("a", LongType()), ("b", StringType()))
    assert added_columns(known, schema(("b", StringType()), ("c", DoubleType())), "t") == [
        StructField("c", DoubleType())
    ]
    with refused("tables.kind"):
        added_columns(known, schema(("a", StringType())), "t")
    with refused("tables.column"):
        added_columns(known, schema(("A", LongType())), "t")


@pytest.mark.parametrize("by", [("regoin",), ("value",)])
def test_what_is_not_partitioned_by(spark: SparkSession, by: tuple[str, ...]) -> None:
    with refused("tables.partition"):
        partitioned(plain_rows(rows(spark, ONE)), by)

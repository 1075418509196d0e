"""Sinks: a batch is in a table once, whatever is repeated, and other tools read it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import StructType
from tests.pipeline.jobs_plant import interpreted
from tests.trust.kit import refused

from penstock.pipeline.jobs.job import spark_errors
from penstock.pipeline.jobs.schemes import register_schemes
from penstock.pipeline.tables.addresses import RowSink, SinkOptions, SinkRows, parse_address, sink_at
from penstock.pipeline.tables.iceberg import IcebergPlace

#: a text that means something in a path, and in a URL
ODD = "no rth/%2F=x"


@pytest.fixture(autouse=True, scope="module")
def _quick(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    register_schemes()
    spark.sql(f"CREATE DATABASE sink_test LOCATION '{tmp_path_factory.mktemp('database')}'")
    with interpreted(spark):
        yield
    spark.sql("DROP DATABASE sink_test CASCADE")


def rows(spark: SparkSession, first: int, count: int, schema: str = "", value: Any = None) -> SinkRows:
    """Return rows: of every three one with an odd region, one with another, and one with none."""
    numbers = spark.range(first, first + count)
    region = F.when(F.col("id") % 3 == 0, ODD).when(F.col("id") % 3 == 1, "south")
    moment = F.timestamp_micros(F.col("id"))
    frame = numbers.select(F.concat(F.lit("e"), "id").alias("@id"), moment.alias("@time"), region.alias("region"))
    return SinkRows(frame.withColumn("more", F.lit(value).cast(schema)) if schema else frame)


def arrow_delta(path: Path) -> Any:
    return DeltaTable(str(path / "d")).to_pyarrow_dataset()


def arrow_iceberg(path: Path) -> Any:
    return IcebergPlace(str(path / "i" / "c.db"), "ns.rows").opened().scan().to_arrow()


#: how DuckDB finds each table: its extensions for Delta and Iceberg come from a server, so through Arrow
PLACES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "delta": ("delta:{}/d", arrow_delta),
    "iceberg": ("iceberg:{}/i/c.db#ns.rows", arrow_iceberg),
    "parquet": (
        "parquet:{}/p",
        lambda path: duckdb.read_parquet(f"{path}/p/**/*.parquet", hive_partitioning=True, union_by_name=True),
    ),
    "table": ("table:sink_test.rows", lambda _: None),
}


def found_by_duckdb(relation: Any) -> list[tuple[object, ...]]:
    """Return the rows as DuckDB reads them."""
    found = duckdb.sql("SELECT event_id, epoch_us(event_time), region, more FROM relation ORDER BY event_id")
    assert found is not None
    return found.fetchall()


@pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet", pytest.param("table", marks=pytest.mark.long)])
def test_a_batch_is_in_a_table_once_and_other_tools_find_it(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    address, opened = PLACES[kind]

    def sink() -> RowSink:
        return sink_at(parse_address(address.format(tmp_path)), SinkOptions(("region",)))

    one = sink()
    one.check()
    assert not one.holds(spark, "o")
    assert one.write(rows(spark, 0, 4), "o", 0) == 4
    # Another driver repeats it, and goes on with rows that have a further column.
    other = sink()
    assert other.holds(spark, "o")
    assert not other.holds(spark, "another")
    assert other.write(rows(spark, 0, 4), "o", 0) == 4
    assert other.write(rows(spark, 4, 2, "double", 1.5), "o", 1) == 2
    assert other.write(rows(spark, 9, 0, "double"), "o", 2) == 0
    with refused("tables.kind"):
        sink().write(rows(spark, 6, 1, "string", "x"), "o", 3)
    relation = opened(tmp_path)
    if relation is None:
        relation = spark.read.table("sink_test.rows").toArrow()
    regions = [ODD, "south", None]
    assert found_by_duckdb(relation) == [(f"e{n}", n, regions[n % 3], 1.5 if n > 3 else None) for n in range(6)]


@pytest.mark.parametrize("text", ["", "__HIVE_DEFAULT_PARTITION__"])
def test_a_text_that_no_folder_can_say_stops_the_batch(spark: SparkSession, tmp_path: Path, text: str) -> None:
    empty = SinkRows(spark.createDataFrame([("e1", text)], "`@id` string, region string"))
    sink = sink_at(parse_address(f"parquet:{tmp_path}/p"), SinkOptions(("region",)))
    with refused("tables.partition"), spark_errors():
        sink.write(empty, "o", 0)


def test_a_place_of_somebody_else_is_not_written_to(spark: SparkSession, tmp_path: Path) -> None:
    spark.createDataFrame([("e1",)], "x string").write.parquet(str(tmp_path / "p"))
    with refused("tables.foreign"):
        sink_at(parse_address(f"parquet:{tmp_path}/p"), SinkOptions()).write(rows(spark, 0, 1), "o", 0)


@pytest.mark.parametrize("text", ["iceberg:cat", "iceberg:cat#table", "iceberg:#ns.t", "table:a b", "table:a.b.c.d"])
def test_addresses_that_are_not_of_the_form(text: str) -> None:
    with refused("tables.address"):
        sink_at(parse_address(text), SinkOptions())


def test_a_catalogue_that_does_not_answer_is_named_without_what_it_said() -> None:
    with refused("tables.catalog"):
        sink_at(parse_address("iceberg:nowhere#ns.t"), SinkOptions()).check()


def test_two_drivers_cannot_both_add_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    sink = sink_at(parse_address(f"delta:{tmp_path}/d"), SinkOptions())
    sink.write(rows(spark, 0, 1), "o", 0)
    # Both have opened the table when it lacked the batch.
    stale = DeltaTable(str(tmp_path / "d"))
    sink.write(rows(spark, 1, 1), "o", 1)

    class Stale(type(sink)):  # type: ignore[misc]  # made here
        def _table(self, schema: StructType) -> Any:
            del schema
            return stale

    with refused("tables.commit"):
        Stale(sink.path).write(rows(spark, 1, 1), "o", 1)  # type: ignore[attr-defined]  # of Delta
    assert DeltaTable(str(tmp_path / "d")).to_pyarrow_table().num_rows == 2

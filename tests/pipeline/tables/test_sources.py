"""Tables as sources: what they have now, what arrives, and what is refused by name."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from tests.pipeline.jobs_plant import interpreted
from tests.pipeline.policy_kit import define
from tests.pipeline.tables.test_columns import ONE, TWO
from tests.pipeline.tables.test_columns import rows as event_rows
from tests.pipeline.tables.test_sinks import ODD, rows
from tests.trust.kit import refused

from penstock.model import EventType, Kind
from penstock.pipeline.frames import quoted
from penstock.pipeline.jobs.job import spark_errors
from penstock.pipeline.jobs.schemes import register_schemes
from penstock.pipeline.outputs import Streaming
from penstock.pipeline.tables.addresses import RowSource, SinkOptions, parse_address, sink_at, source_at
from penstock.pipeline.tables.columns import event_rows_of, plain_rows
from penstock.pipeline.tables.iceberg import IcebergPlace


@pytest.fixture(autouse=True, scope="module")
def _quick(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    register_schemes()
    spark.sql(f"CREATE DATABASE source_test LOCATION '{tmp_path_factory.mktemp('database')}'")
    with interpreted(spark):
        yield
    spark.sql("DROP DATABASE source_test CASCADE")


def write(spark: SparkSession, address: str, batches: int = 2) -> RowSource:
    """Write batches of two rows, and return the table as a source."""
    sink = sink_at(parse_address(address), SinkOptions(("region",)))
    for number in range(batches):
        sink.write(rows(spark, 2 * number, 2), "o", number)
    return source_at(parse_address(address))


def found(frame: DataFrame) -> list[tuple[str, str | None]]:
    return sorted((row["event_id"], row["region"]) for row in frame.select("event_id", "region").collect())


def streamed(
    spark: SparkSession, source: RowSource, folder: Path, files: int = 1
) -> list[list[tuple[str, str | None]]]:
    """Return what each batch of a stream has, until nothing is left."""
    batches: list[list[tuple[str, str | None]]] = []

    def process(frame: DataFrame, number: int) -> None:
        del number
        batches.append(found(source.arrived(frame)))

    writer = source.stream(spark, Streaming(files)).writeStream.foreachBatch(process)
    writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start().awaitTermination()
    return batches


ALL = [("e0", ODD), ("e1", "south"), ("e2", None), ("e3", ODD)]
CATALOG = "iceberg:{}/i/c.db#ns.rows"


@pytest.mark.parametrize("address", ["delta:{}/d", CATALOG, "parquet:{}/p", "table:source_test.rows"])
def test_a_table_has_its_rows(spark: SparkSession, tmp_path: Path, address: str) -> None:
    source = write(spark, address.format(tmp_path))
    assert not source.records
    rows = source.batch(spark)
    assert found(source.arrived(rows)) == ALL
    # Spark reads what a filter leaves.
    south = rows.where(F.col("region") == "south")
    assert found(south) == [("e1", "south")]
    # Of Delta and Parquet, not even the files of other regions.
    if address.startswith("delta:"):
        assert all("region=south" in file for file in south.inputFiles())
    if address.startswith("parquet:"):
        plan = south._jdf.queryExecution().executedPlan().toString()
        assert re.search(r"PartitionFilters: \[[^]]*region#\d+ = south", plan)


def test_a_delta_table_as_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    address = f"delta:{tmp_path}/d"
    source = write(spark, address)
    # The first version has only the columns.
    assert streamed(spark, source, tmp_path / "c") == [[], ALL[:2], ALL[2:]]
    DeltaTable(str(tmp_path / "d")).delete("event_id = 'e3'")
    next((tmp_path / "d" / "_delta_log").glob("*2.json")).unlink()
    for version, code in ((3, "tables.not-appended"), (2, "tables.log-gone")):
        with refused(code):
            source.arrived(spark.createDataFrame([(version,)], "`@version` bigint"))


@pytest.mark.long
def test_a_stream_of_a_delta_table_goes_on_and_stops(spark: SparkSession, tmp_path: Path) -> None:
    address = f"delta:{tmp_path}/d"
    source = write(spark, address)
    assert streamed(spark, source, tmp_path / "c", 9) == [ALL]
    # Rearranged rows are not new ones.
    DeltaTable(str(tmp_path / "d")).optimize.compact()
    assert streamed(spark, source, tmp_path / "c") in ([], [[]])
    assert found(source.batch(spark)) == ALL
    old = source_at(parse_address(f"{address}@v1"))
    assert found(old.batch(spark)) == ALL[:2]
    assert [one for one in streamed(spark, old, tmp_path / "d1", 9) if one] == [ALL[2:]]
    DeltaTable(str(tmp_path / "d")).delete("event_id = 'e3'")
    with refused("tables.not-appended", "pipeline.spark"), spark_errors():
        streamed(spark, source, tmp_path / "c")
    assert found(source.batch(spark)) == ALL[:3]


@pytest.mark.long
def test_an_iceberg_table_as_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    address = CATALOG.format(tmp_path)
    source = write(spark, address)
    # It begins with the whole snapshot, and goes on with what each later one added.
    assert streamed(spark, source, tmp_path / "c") == [ALL]
    sink = sink_at(parse_address(address), SinkOptions())
    for number in (2, 3):
        sink.write(rows(spark, 2 * number, 1), "o", number)
    assert [[one for one, _ in batch] for batch in streamed(spark, source, tmp_path / "c")] == [["e4"], ["e6"]]
    table = IcebergPlace(str(tmp_path / "i" / "c.db"), "ns.rows").opened()
    ids = [one.snapshot_id for one in table.snapshots()]

    def arrived(after: int | None, last: int) -> list[str]:
        span = spark.createDataFrame([(after, last)], "`@after` bigint, `@snapshot` bigint")
        return [one for one, _ in found(source.arrived(span))]

    # A batch that comes again has the same rows.
    assert arrived(None, ids[1]) == ["e0", "e1", "e2", "e3"]
    assert arrived(ids[1], ids[3]) == ["e4", "e6"]
    table.delete("event_id = 'e6'")
    with refused("tables.not-appended"):
        arrived(ids[3], table.refresh().current_snapshot().snapshot_id)
    table.maintenance.expire_snapshots().by_id(ids[2]).commit()
    with refused("tables.log-gone"):
        arrived(ids[1], ids[3])
    with refused("tables.log-gone"):
        arrived(None, ids[2])


def test_what_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    source = write(spark, CATALOG.format(tmp_path), 1)
    table = IcebergPlace(str(tmp_path / "i" / "c.db"), "ns.rows").opened()
    with table.update_schema() as update:
        update.rename_column("event_id", "id")
    with refused("tables.feature"):
        source.batch(spark)
    for address in ("delta:{}/no", "delta:{}/no@v3", "iceberg:{}/i/c.db#ns.no", "table:no_such_table"):
        with refused("tables.no-table"):
            source_at(parse_address(address.format(tmp_path))).batch(spark)
    with refused("tables.address"):
        sink_at(parse_address("delta:x@v3"), SinkOptions())


def test_events_go_to_a_table_and_come_back(spark: SparkSession) -> None:
    sent = event_rows(spark, ONE, TWO)
    table = plain_rows(sent).withColumn("event_time", F.timestamp_micros(F.lit(5)))
    back = event_rows_of(table, (ONE, TWO), "t")
    assert back.columns == sent.frame.columns
    ids = [quoted(name) for name in sent.frame.columns if name != "@time"]
    assert sorted(back.select(*ids).collect()) == sorted(sent.frame.select(*ids).collect())
    # A version that the table has no columns for is all right, for as long as no row is of it.
    other = EventType.of(define("other", {"more": Kind.STRING}))
    assert event_rows_of(table, (ONE, TWO, other), "t").count() == 2
    with refused("tables.events"), spark_errors():
        event_rows_of(table.withColumn("event_type", F.lit(str(other.name))), (ONE, other), "t").collect()
    with refused("tables.events"), spark_errors():
        event_rows_of(table.withColumn("event_id", F.lit(None).cast("string")), (ONE, TWO), "t").collect()
    with refused("tables.events"):
        event_rows_of(table.drop("event_source"), (ONE,), "t")
    with refused("tables.events"):
        event_rows_of(table.withColumn("subscriber", F.lit("x")), (ONE,), "t")
    with refused("tables.kind"):
        event_rows_of(table.withColumn("value", F.lit("x")), (ONE,), "t")

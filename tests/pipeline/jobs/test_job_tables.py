"""Main rows of jobs in tables: what was stopped anywhere goes on, and every row is there once."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it ships no types
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from tests.apps.conftest import Shell
from tests.pipeline.ingest_reference import PARQUET_MAPPING, define
from tests.pipeline.jobs.test_job import STREAM, KilledError, LateTaskError, Plant
from tests.pipeline.jobs_plant import FIRST, HIDDEN, POLICY, admitted, build, good, interpreted, write_events
from tests.trust.kit import NOW, refused

from penstock.pipeline.frames import quoted
from penstock.pipeline.ingest.mapping import read_mapping
from penstock.pipeline.jobs.enforce import DeliverJob
from penstock.pipeline.jobs.ingest import Ingest, table_records
from penstock.pipeline.jobs.job import run, start
from penstock.pipeline.jobs.reports import Audit, WhatIf
from penstock.pipeline.jobs.schemes import register_schemes
from penstock.pipeline.outputs import Output, Said, Streaming, arriving, commits, totals
from penstock.pipeline.tables.addresses import RowSink, SinkOptions, SinkRows, parse_address, sink_at, source_at
from penstock.pipeline.tables.delta import DeltaSink


@pytest.fixture(autouse=True, scope="module")
def _quick(spark: SparkSession) -> Iterator[None]:
    with interpreted(spark):
        yield


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    return Plant(tmp_path, build(tmp_path / "plant"))


@dataclass
class FakeSink:
    """A table in memory, by name of the output and batch; it can be killed before or behind its own commit.

    Or Python starts too late for it, once.
    """

    rows: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    killed: str = ""
    name: str = "fake:"

    def check(self) -> None:
        pass

    def holds(self, spark: SparkSession, output: str) -> bool:
        del spark
        return any(name == output for name, _ in self.rows)

    def write(self, rows: SinkRows, output: str, batch: int) -> int:
        if self.killed == "before":
            raise KilledError("test.killed", "before the table's commit")
        if (output, batch) not in self.rows:
            self.rows[output, batch] = [row[0] for row in rows.frame.select("`@id`").collect()]
        if self.killed == "behind":
            raise KilledError("test.killed", "behind the table's commit")
        if self.killed == "late":
            self.killed = ""
            raise LateTaskError
        return len(self.rows[output, batch])

    @property
    def ids(self) -> list[str]:
        return sorted(one for batch in self.rows.values() for one in batch)


def ids(path: str) -> list[str]:
    return sorted(row["event_id"] for row in DeltaTable(path).to_pyarrow_table(columns=["event_id"]).to_pylist())


@dataclass(frozen=True)
class Lines:
    """The least job there is: it copies lines, as the ids of events, and can say something else each time."""

    folder: str
    said: str = ""
    name: str = "lines"
    source: str = "lines"
    parts: tuple[str, ...] = ("copied",)
    files: str | None = None

    def planned(self, events: DataFrame) -> tuple[DataFrame, ...]:
        return (events,)

    def all(self, spark: SparkSession) -> DataFrame:
        return spark.read.text(self.folder)

    def arriving(self, spark: SparkSession, streaming: Streaming) -> DataFrame:
        return spark.readStream.options(**arriving(streaming)).text(self.folder)

    def arrived(self, batch: DataFrame) -> DataFrame:
        return batch

    def step(self, events: DataFrame, batch: int, output: Output) -> Said:
        said = F.concat("value", F.lit(self.said)).alias("@id")
        output.write(events.select(said), "copied", batch)
        return {"counts": {"read": events.count()}, "said": self.said}

    def rows(self, output: Output, batch: int, said: Said) -> SinkRows:
        del said
        return SinkRows(output.spark.read.parquet(output.part("copied", batch)))


def test_a_stream_whose_python_started_too_late_for_a_table_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.txt").write_text("a\nb\n")
    sink, out = FakeSink(killed="late"), str(tmp_path / "out")
    start(Lines(str(tmp_path / "in")), spark, out, STREAM, sinks=[sink]).wait()
    assert not sink.killed
    assert sink.ids == ["a", "b"]
    assert [said["to"] for said in commits(spark, out).values()] == [{"fake:": 2}]


@pytest.mark.parametrize(
    ("killed", "stream"), [("behind", False), pytest.param("before", True, marks=pytest.mark.long)]
)
def test_a_run_that_was_killed_at_a_table_goes_on(
    spark: SparkSession, tmp_path: Path, killed: str, stream: bool
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.txt").write_text("a\nb\n")
    sink, out = FakeSink(killed=killed), str(tmp_path / "out")

    def go(said: str, sinks: tuple[RowSink, ...] = (sink,), *, overwrite: bool = False) -> None:
        job = Lines(str(tmp_path / "in"), said)
        if stream:
            start(job, spark, out, STREAM, sinks=sinks, overwrite=overwrite).wait()
        else:
            run(job, spark, out, sinks=sinks, overwrite=overwrite)

    with refused("test.killed"):
        go("1")
    assert not commits(spark, out)
    # Not into other tables: they would lack what this one has.
    with refused("pipeline.exists"):
        go("2", ())
    sink.killed = ""
    # It would do something else by now; but the batch was decided, and may be in the table.
    go("3")
    assert sink.ids == ["a1", "b1"]
    ((number, said),) = commits(spark, out).items()
    assert (number, said["to"], said["said"]) == (0, {"fake:": 2}, "1")
    # What is complete is in the table, and would be there twice.
    with refused("tables.holds"):
        go("4", overwrite=True)


class Lossy(FakeSink):
    """A table that loses a row."""

    def write(self, rows: SinkRows, output: str, batch: int) -> int:
        return super().write(replace(rows, frame=rows.frame.limit(1)), output, batch)


def test_what_a_table_loses_is_told(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a\nb\n")
    with refused("pipeline.lost"):
        run(Lines(str(tmp_path / "in.txt")), spark, str(tmp_path / "out"), sinks=[Lossy()])
    assert not commits(spark, str(tmp_path / "out"))


@pytest.mark.long
def test_a_batch_that_a_table_has_is_not_admitted_again(spark: SparkSession, plant: Plant) -> None:
    write_events(plant.folder / "in" / "0.jsonl", range(7))
    run(plant.ingest(), spark, plant.path("ingested"))
    sink = FakeSink(killed="behind")
    with refused("test.killed"):
        run(plant.admit(), spark, plant.path("admitted"), sinks=[sink])
    # Nobody may publish any more; but the batch was decided when somebody could.
    (plant.folder / "plant" / "certs" / "publisher.cert").unlink()
    sink.killed = ""
    run(plant.admit(), spark, plant.path("admitted"), sinks=[sink])
    assert sink.ids == sorted(f"e{n}" for n in admitted(7))


def test_a_job_without_rows_has_none_for_a_table(spark: SparkSession, plant: Plant) -> None:
    write_events(plant.folder / "in" / "0.jsonl", range(1))
    with refused("tables.no-rows"):
        run(Audit(plant.path("in")), spark, plant.path("out"), sinks=[FakeSink()])


def test_deliver_writes_one_table_for_all_readers_or_for_one(spark: SparkSession, plant: Plant) -> None:
    count = 30
    write_events(plant.folder / "in" / "0.jsonl", range(count))
    run(plant.ingest(), spark, plant.path("admitted"), sinks=[DeltaSink(plant.path("events"))])
    assert ids(plant.path("events")) == sorted(f"e{n}" for n in good(count))
    shell = Shell(plant.folder)
    deliver = ["pipeline", "deliver", plant.path("admitted"), "--policy", str(plant.policy)]
    to = ["--to", f"delta:{plant.path('t')}", "--partition-by", "subscriber"]
    said = shell.ok(*deliver, "--out", plant.path("all"), *to)
    found = DeltaTable(plant.path("t")).to_pyarrow_table().to_pylist()
    # Nothing was admitted here, so the regions are as they were sent.
    for name in ("statistics", "engineer", "auditor"):
        rows = sorted(
            (row["event_id"], row["sensor"] if name != "engineer" else row["probe"], row["value"])
            for row in found
            if row["subscriber"] == name
        )
        sees = [n for n in good(count) if name != "engineer" or n > 20]
        assert rows == sorted((f"e{n}", f"s{n % 4}" if name == "engineer" else None, float(n)) for n in sees)
    assert f"{len(found)} rows to delta:{plant.path('t')}" in said.out
    # The same events, from the table that `ingest` wrote.
    deliver[2] = f"delta:{plant.path('events')}"
    shell.ok(*deliver, "--out", plant.path("one"), "--to", f"delta:{plant.path('o')}", "--reader", "engineer")
    one = DeltaTable(plant.path("o")).to_pyarrow_table()
    assert "subscriber" not in one.column_names
    assert sorted(one["event_id"].to_pylist()) == sorted(f"e{n}" for n in good(count) if n > 20)
    assert set(one["event_type"].to_pylist()) == {str(plant.types()[1].name)}


@pytest.mark.parametrize("address", ["delta:{}/t", pytest.param("parquet:{}/t", marks=pytest.mark.long)])
def test_ingest_reads_tables_by_a_mapping(spark: SparkSession, tmp_path: Path, address: str) -> None:
    rows = pa.table({"n": ["1", None, "3"], "t": ["2026-05-01T00:00:00Z"] * 3, "s": ["a", "a", "b c"]})
    if address.startswith("delta:"):
        write_deltalake(str(tmp_path / "t"), rows, partition_by=["s"])
    else:
        pq.write_to_dataset(rows, str(tmp_path / "t"), partition_cols=["s"])
    register_schemes()
    source = source_at(parse_address(address.format(tmp_path)))
    bound = read_mapping(PARQUET_MAPPING + 'sensor = "s"').bind(define()[0])
    job, out = Ingest(table_records(source, bound, ()), lambda: NOW), str(tmp_path / "out")
    run(job, spark, out)
    assert totals(spark, out) == {"read": 3, "events": 2, "quarantined": 1}
    (sensor,) = (quoted(a.id) for a in bound.event_type.attributes if a.name == "sensor")
    events = spark.read.parquet(f"{out}/events").select("`@id`", sensor)
    assert sorted(map(tuple, events.collect())) == [("1", "a"), ("3", "b c")]
    (aside,) = spark.read.parquet(f"{out}/quarantine").collect()
    assert aside["@reason"] == "ingest.id"
    assert json.loads(bytes(aside["@original"]))["s"] == "a"
    with refused("tables.mapping"):
        table_records(source, None, ())


@pytest.mark.long
def test_a_stream_of_a_delta_table_is_admitted_once(spark: SparkSession, plant: Plant) -> None:
    events, admits = f"delta:{plant.path('events')}", f"delta:{plant.path('admits')}"
    shell = Shell(plant.folder)
    for number in range(3):
        write_events(plant.folder / "in" / f"{number}.jsonl", range(number * 5, (number + 1) * 5))
        for job, source, to in (("ingest", plant.path("in"), events), ("admit", events, admits)):
            arguments = ["--policy", str(plant.policy), "--out", plant.path(f"{job}-out"), "--to", to]
            shell.ok("pipeline", job, source, *arguments, "--stream", "--drain", "--files", "2")
    assert ids(plant.path("admits")) == sorted(f"e{n}" for n in admitted(15))
    assert totals(spark, plant.path("admit-out"))["read"] == len(good(15))


def test_a_decision_log_in_a_table_is_audited(spark: SparkSession, tmp_path: Path) -> None:
    register_schemes()
    write_deltalake(str(tmp_path / "log"), pa.table({"value": ["{}", "{"], "host": ["a", "b"]}))
    job = Audit("", table=source_at(parse_address(f"delta:{tmp_path}/log")))
    assert (job.source, job.files) == (f"delta:{tmp_path}/log", str(tmp_path / "log"))
    assert sorted(tuple(row) for row in job.all(spark).collect()) == [("{",), ("{}",)]
    write_deltalake(str(tmp_path / "other"), pa.table({"value": [1]}))
    with refused("tables.kind"):
        Audit("", table=source_at(parse_address(f"delta:{tmp_path}/other"))).all(spark)


@pytest.mark.long
def test_policies_are_compared_on_a_table(spark: SparkSession, plant: Plant) -> None:
    write_events(plant.folder / "in" / "0.jsonl", range(9))
    register_schemes()
    sink = sink_at(parse_address(f"delta:{plant.path('events')}"), SinkOptions())
    run(plant.ingest(), spark, plant.path("ingested"), sinks=[sink])
    after = replace(plant.loaded(), subscribers=plant.loaded().subscribers[1:])
    stored = WhatIf(plant.path("ingested"), plant.types(), plant.loaded(), after)
    table = source_at(parse_address(f"delta:{plant.path('events')}"))
    found = replace(stored, table=table)
    assert found.compare(found.all(spark)) == stored.compare(stored.all(spark))


@pytest.mark.long
def test_a_reader_without_rights_gets_an_empty_table_and_an_unknown_one_is_refused(
    spark: SparkSession, plant: Plant
) -> None:
    write_events(plant.folder / "in" / "0.jsonl", range(2))
    run(plant.ingest(), spark, plant.path("admitted"))
    sink = FakeSink()
    job = plant.deliver()
    assert isinstance(job, DeliverJob)
    run(replace(job, reader="stranger"), spark, plant.path("a"), sinks=[sink])
    assert sink.ids == []
    assert list(sink.rows) != []
    with refused("pipeline.unknown-subscriber"):
        run(replace(job, reader="nobody"), spark, plant.path("b"), sinks=[sink])


def read_bytes(spark: SparkSession, after: int) -> tuple[int, int]:
    """Return how many bytes of input Spark says that stages behind one have read, and the last stage."""
    jvm, context = spark._jvm, spark.sparkContext
    assert jvm is not None
    assert context._gateway is not None
    context._jsc.sc().listenerBus().waitUntilEmpty()
    store, none = context._jsc.sc().statusStore(), context._gateway.new_array(jvm.double, 0)
    stages = store.stageList(None, False, False, none, jvm.java.util.ArrayList())
    found = {stages.apply(n).stageId(): stages.apply(n).inputBytes() for n in range(stages.size())}
    return sum(size for stage, size in found.items() if stage > after), max(found, default=-1)


def test_a_selective_reader_reads_few_bytes_unless_constants_are_hidden(spark: SparkSession, plant: Plant) -> None:
    plant.policy.write_text(POLICY.replace(f"value <> {HIDDEN}", "region = 'r7' AND value < 57"), encoding="utf-8")
    # Digests, because files must be as long as the texts in them.
    texts = [F.sha2((F.col("id") * 64 + n).cast("string"), 256) for n in range(36)]
    rows = spark.range(12_000, numPartitions=1).select(
        F.lit(str(FIRST.name)).alias("event_type"),
        F.lit(str(FIRST.name.owner)).alias("event_source"),
        F.col("id").cast("string").alias("event_id"),
        F.timestamp_seconds(F.lit(1_777_636_800) + F.col("id")).alias("event_time"),
        F.concat(*texts).alias("sensor"),
        F.format_string("r%d", F.col("id") % 60).alias("region"),
        (F.floor(F.col("id") / 60) + 21.0).alias("value"),
    )
    rows.write.partitionBy("region").parquet(plant.path("table"))
    whole = sum(file.stat().st_size for file in Path(plant.path("table")).rglob("*.parquet"))
    sizes: dict[str, int] = {}
    shell = Shell(plant.folder)
    for mode in ("public", "hidden"):
        _, last = read_bytes(spark, -1)
        out = ["--out", plant.path(mode), "--reader", "engineer", "--constants", mode]
        deliver = ["pipeline", "deliver", f"parquet:{plant.path('table')}", "--policy", str(plant.policy), *out]
        pruned = re.search(
            r"PartitionFilters: \[[^]]*= r7\)", str(shell.ok(*deliver, "--dry-run", "-o", "json").json["plans"])
        )
        assert (pruned is not None) is (mode == "public")
        shell.ok(*deliver)
        sizes[mode], _ = read_bytes(spark, last)
        assert totals(spark, plant.path(mode))["delivered"] == 36, "0.3 % of the table"
    assert 0 < sizes["public"] < min(0.05 * whole, sizes["hidden"])


def test_options_that_do_not_go_together(plant: Plant) -> None:
    shell = Shell(plant.folder)
    deliver = ["pipeline", "deliver", "x", "--policy", str(plant.policy), "--out", "y"]
    for more, code in (
        (["--partition-by", "region"], "tables.partition"),
        (["--to", "delta:d", "--layout", "subscriber"], "tables.layout"),
        (["--to", "delta:d", "--to", "delta:./d"], "tables.address"),
        (["--to", "detla:d"], "tables.scheme"),
        (["--to", "folder"], "tables.address"),
    ):
        assert shell(*deliver, *more).code == code

"""The pipeline on Spark against the same Spark job without access control, in one run.

Each figure is the median over interleaved rounds; rows go into a no-op sink unless a figure is about writing.
"""

import os
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from harness import Result, at_least, at_most, observed
from penstock.guard import Branch, Restriction
from penstock.model import (
    AttributeDefinition,
    AttributeId,
    AttributeSpec,
    EventType,
    Kind,
    Principal,
    TypeDefinition,
    TypeName,
)
from penstock.pipeline.enforce.admit import admit, publishers
from penstock.pipeline.enforce.deliver import PROGRAM, deliver
from penstock.pipeline.enforce.layout import write_views
from penstock.pipeline.enforce.manifest import ROWS as ROWS_FOLDER
from penstock.pipeline.enforce.policy import PipelinePolicy, Subscriber
from penstock.pipeline.enforce.restrict import deliver_one, environment_sources, mask
from penstock.pipeline.frames import ID, SOURCE, TIME, to_transit, transit_sources
from penstock.pipeline.ingest.event_frames import TYPE as TYPE_COLUMN
from penstock.pipeline.ingest.mapping import read_mapping
from penstock.pipeline.jobs.enforce import Admit, DeliverJob, RecordingPolicy
from penstock.pipeline.jobs.ingest import EVENTS, Envelopes, Ingest, MappedTables, RecordSource
from penstock.pipeline.jobs.job import run as run_job
from penstock.pipeline.outputs import BATCH, commit
from penstock.pipeline.views import view
from penstock.pipeline.whatif import compare, compare_publishers
from penstock.selector import parse
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from spark_parts import OWNER, BenchPolicy, Rules, medians, nothing, spark_session, trusted

ROWS = int(os.environ.get("PENSTOCK_BENCH_ROWS", "5000000"))
MASKED = 4 * ROWS
PLATES = 1_000_000
DENSE = "plate of few"
SIGHTING = EventType.of(
    TypeDefinition(
        TypeName(OWNER, "Sighting"),
        (
            AttributeDefinition("plate", "0", AttributeSpec(Kind.STRING)),
            AttributeDefinition("place", "1", AttributeSpec(Kind.INTEGER)),
            AttributeDefinition("speed", "2", AttributeSpec(Kind.FLOAT)),
            AttributeDefinition("toll", "3", AttributeSpec(Kind.INTEGER)),
            AttributeDefinition("seen", "4", AttributeSpec(Kind.TIMESTAMP)),
        ),
    )
)
IDS = {attribute.name: attribute.id for attribute in SIGHTING.attributes}
TYPE = trusted(SIGHTING)


def branch(where: str, shown: Sequence[AttributeId], action: Right = Right.SUBSCRIBE) -> Branch:
    return Branch(action=action, attributes=frozenset(shown), where=parse(where).rename(IDS))


def policy(restrictions: Sequence[Restriction], readers: int) -> PipelinePolicy:
    everything = Restriction((Branch(action=Right.PUBLISH),))
    principals = [Principal((number + 2).to_bytes(32, "big")) for number in range(readers)]
    rules = {p: restrictions[number % len(restrictions)] for number, p in enumerate(principals)} | {OWNER: everything}
    subscribers = tuple(Subscriber(f"reader-{number}", p, TYPE) for number, p in enumerate(principals))
    return BenchPolicy(Credentials(), subscribers, (Rules(rules),))


def write_events(spark: SparkSession, path: str, rows: int) -> None:
    n = F.col("id")
    columns: dict[str, Column] = {
        ID: n.cast("string"),
        TIME: F.timestamp_micros(F.lit(1_760_000_000_000_000) + n * 1000),
        SOURCE: F.lit(str(OWNER)),
        "plate": F.concat(F.lit("P"), F.pmod(F.hash(n), F.lit(PLATES)).cast("string")),
        DENSE: F.concat(F.lit("P"), F.pmod(F.hash(n), F.lit(20_000)).cast("string")),
        "place": F.pmod(F.hash(n + 1), F.lit(100)).cast("bigint"),
        "speed": F.pmod(F.hash(n + 2), F.lit(900)) / F.lit(10.0),
        "toll": F.pmod(F.hash(n + 3), F.lit(20)).cast("bigint"),
        "seen": F.timestamp_micros(F.lit(1_760_000_000_000_000) + n * 1000),
    }
    spark.range(0, rows, numPartitions=4).select(*(c.alias(name) for name, c in columns.items())).write.parquet(path)


def masking(events: Callable[[], DataFrame]) -> Result:
    """The masking itself against a plain read, over so many rows that what it takes to start counts for little."""
    restriction = Restriction(
        tuple(
            branch(f"place BETWEEN {5 * n} AND {5 * n + 4} AND speed > {n}", list(IDS.values())[: 1 + n % 5])
            for n in range(20)
        )
    )
    masked = mask(restriction, SIGHTING, transit_sources([SIGHTING]), BenchPolicy(Credentials()))

    read, view = events(), deliver_one(to_transit(events(), SIGHTING), masked, SIGHTING)
    plain, ours = medians(lambda: nothing(read), lambda: nothing(view))
    detail = f"plain read {plain:.2f} s, 20 branches masked {ours:.2f} s, {MASKED:,} rows"
    return at_least("pipeline-masking", plain / ours, 0.75, detail)


def many_plates(events: Callable[[], DataFrame]) -> list[Result]:
    """10,000 subscribers that each filter on another plate against one, and against 10.

    Of a million plates, as in a city, few events concern any of them; of 20,000 half of all events do, and what is
    measured is mostly what it takes to hand them out. Plates lie amid all others: one reader of the first plate in
    alphabetical order takes a quarter of the time.
    """

    def job(count: int, read: DataFrame) -> Callable[[], None]:
        shown = [IDS["plate"], IDS["speed"]]
        mine = policy([Restriction((branch(f"plate = 'P{5_000 + n}'", shown),)) for n in range(count)], count)
        rows = deliver(to_transit(read, SIGHTING), [SIGHTING], mine).by_subscriber()
        return lambda: nothing(rows)

    city, village = events(), events().withColumn("plate", F.col(DENSE))
    one, few, many, dense_few, dense = medians(
        job(1, city), job(10, city), job(10_000, city), job(10, village), job(10_000, village)
    )
    detail = f"1 reader {one:.2f} s, 10 readers {few:.2f} s, 10,000 readers {many:.2f} s"
    half = f"half of all events delivered: 10 readers {dense_few:.2f} s, 10,000 readers {dense:.2f} s"
    return [
        at_most("pipeline-10000-readers", many / one, 1.5, detail),
        at_most("pipeline-10000-plates", many / few, 1.5, detail),
        observed("pipeline-10000-plates-dense", dense / dense_few, half),
    ]


def selective(events: DataFrame, folder: Path) -> Result:
    """One reader of 3 % of a table that is sorted by place against the query that one would write by hand."""
    spark, path = events.sparkSession, str(folder / "by place")
    events.repartitionByRange(4 * FILES, "place").sortWithinPartitions("place").write.parquet(path)
    mine = policy([Restriction((branch("place BETWEEN 7 AND 9", [IDS["place"], IDS["speed"]]),))], 1)
    table = spark.read.parquet(path)
    ours = view(table, policy=mine, reader="reader-0")
    hand = table.where("place BETWEEN 7 AND 9").select(ID, TIME, SOURCE, "place", "speed")
    # Queries of a tenth of a second: what Java has not compiled yet would be half of the difference.
    base, seen = medians(lambda: nothing(hand), lambda: nothing(ours), warm=40, rounds=21)
    return at_most("pipeline-selective", seen / base, 1.2, f"by hand {base:.2f} s, as a view {seen:.2f} s")


def twenty(least: int, shown: int) -> list[Restriction]:
    """Restrictions to a region each, for events of some toll."""
    return [
        Restriction(
            (
                branch(
                    f"place BETWEEN {5 * n} AND {5 * n + 4} AND toll > {n % 7 + least}",
                    list(IDS.values())[: shown + n % 4],
                ),
            )
        )
        for n in range(20)
    ]


def write_ingested(events: DataFrame, folder: Path) -> str:
    """Write events as the job `ingest` leaves them."""
    path = str(folder / "ingested")
    transit = to_transit(events, SIGHTING).select(F.lit(str(SIGHTING.name)).alias(TYPE_COLUMN), "*")
    transit.write.parquet(f"{path}/{EVENTS}/{BATCH}=0")
    commit(events.sparkSession, path, 0, {})
    return path


def hundred(events: Callable[[], DataFrame], folder: Path) -> list[Result]:
    """Admit and deliver to 100 subscribers with 20 restrictions against re-reading and writing what was delivered.

    In one plan nothing is kept but the rows of readers. The jobs, which are what the commands run, keep the admitted
    events, refusals and records of decisions besides, and count all of them: they are held to copying what they keep,
    the admitted events, which the second reads again, and the rows. Copying the rows alone is shown beside it.
    """
    mine = policy(twenty(0, 2), 100)
    spark = events().sparkSession
    ingested = write_ingested(events(), folder)
    admitted, delivered, at_once = (str(folder / name) for name in ("admitted", "delivered", "at once"))

    def jobs() -> None:
        desk = RecordingPolicy.of(
            replace(mine, types=(TYPE,)),
            "urn:bench",
            clock=lambda: datetime.now(UTC),
            timer=time.perf_counter_ns,
            ids=lambda: uuid.uuid4().hex,
        )
        run_job(Admit(ingested, (SIGHTING,), desk), spark, admitted, overwrite=True)
        run_job(DeliverJob(admitted, (SIGHTING,), desk), spark, delivered, overwrite=True)

    def one_plan() -> None:
        transit = admit(events(), TYPE, mine).events
        write_views(deliver(transit, [SIGHTING], mine), at_once, revision=mine.revision)

    jobs()
    # The same layout, written in the same way: a file open for each program.
    spark.conf.set("spark.sql.maxConcurrentOutputFileWriters", "20")

    def copy_rows() -> None:
        rows = spark.read.parquet(f"{delivered}/{ROWS_FOLDER}").drop(BATCH)
        rows.write.mode("overwrite").partitionBy(PROGRAM).parquet(str(folder / "again"))

    def copy_all() -> None:
        kept = spark.read.parquet(f"{admitted}/{EVENTS}").drop(BATCH)
        kept.write.mode("overwrite").parquet(str(folder / "kept again"))
        copy_rows()

    base, both, full, plan = medians(copy_rows, copy_all, jobs, one_plan)
    rows = spark.read.parquet(f"{delivered}/{ROWS_FOLDER}").count()
    kept = f"admitted events and {rows:,} rows for 100 readers: copied in {both:.2f} s"
    copied = f"{rows:,} rows for 100 readers: copied in {base:.2f} s"
    return [
        at_least("pipeline-100-subscribers", base / plan, 0.6, f"{copied}, admitted and delivered in {plan:.2f} s"),
        at_least("pipeline-100-subscribers-jobs", both / full, 0.5, f"{kept}, by the jobs in {full:.2f} s"),
        observed("pipeline-100-subscribers-jobs-rows", base / full, f"{copied}, by the jobs in {full:.2f} s"),
    ]


def what_if(events: Callable[[], DataFrame]) -> list[Result]:
    """Two policies for 100 subscribers, all of whose 20 restrictions change, against delivering by one of them.

    And the same where the right of the publisher of all events changes as well, against admitting and delivering.
    """
    before, after = policy(twenty(0, 2), 100), policy(twenty(1, 1), 100)
    history = to_transit(events(), SIGHTING)
    typed = events()
    # The owner may publish what it likes; the change is to what somebody else may.
    other = Principal(b"\2" * 32)
    slow = Restriction((branch("speed < 45", list(IDS.values()), Right.PUBLISH),))
    given = publishers(TYPE, BenchPolicy(Credentials(), (), (Rules({other: slow, OWNER: slow}),)))
    old, new = publishers(TYPE, before), {str(OWNER): given[str(other)]}

    def once() -> None:
        nothing(deliver(history, [SIGHTING], before).rows)

    def readers() -> None:
        compare(history, before, after, types=[SIGHTING])

    def everybody() -> None:
        readers()
        compare_publishers(typed, SIGHTING, old, new, environment=environment_sources(UTC, {}))

    def once_admitted() -> None:
        nothing(admit(typed, TYPE, before).events)
        once()

    one, two, passed, both = medians(once, readers, once_admitted, everybody)
    of_all = f"one pass each of admitting and delivering {passed:.2f} s, what-if of publishers and readers {both:.2f} s"
    return [
        at_most("pipeline-what-if", two / one, 2.5, f"one pass {one:.2f} s, what-if of two policies {two:.2f} s"),
        at_most("pipeline-what-if-publishers", both / passed, 2.5, of_all),
    ]


FILES = 8
INSTANT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
MAPPING = """
type = "sighting.type"
format = "{format}"
[event]
id = "id"
time = "time"
source = "source"
[attributes]
plate = "plate"
place = "place"
speed = "speed"
toll = "toll"
seen = "seen"
"""
BY_LINE = """
[csv]
multiline = false
columns = ["id", "time", "source", "plate", "place", "speed", "toll", "seen"]
"""
TYPED = "plate string, place bigint, speed double, toll bigint, seen timestamp"
COLUMNS = f"id string, time timestamp, source string, {TYPED}"
ENVELOPE = f"specversion string, id string, source string, type string, time timestamp, data struct<{TYPED}>"


def write_records(events: DataFrame, folder: Path) -> None:
    """Write events as others would: CSV, Parquet and CloudEvents, one record in 10,000 of which is bad."""
    renamed = {ID: "id", TIME: "time", SOURCE: "source"}
    table = events.withColumnsRenamed(renamed).withColumn("id", F.when(F.hash("id") % 10_000 != 0, F.col("id")))
    table.repartition(FILES).write.parquet(str(folder / "parquet"))
    texts = table.withColumns({name: F.date_format(name, INSTANT) for name in ("time", "seen")})
    texts.repartition(FILES).write.option("header", True).csv(str(folder / "csv"))
    data = F.struct(*(name for name in texts.columns if name not in renamed.values()))
    envelope = [F.lit("1.0").alias("specversion"), F.lit(str(SIGHTING.name)).alias("type"), data.alias("data")]
    texts.select(F.to_json(F.struct(*renamed.values(), *envelope))).repartition(FILES).write.text(str(folder / "json"))


def ingesting(events: DataFrame, folder: Path) -> list[Result]:
    """The job `ingest`, which checks and counts everything and puts bad records aside, against a typed read and write.

    One record in 10,000 is bad: without any, the input is read once.
    """
    spark = events.sparkSession
    write_records(events, folder)
    files = {name: str(folder / name) for name in ("csv", "parquet", "json")}

    def job(records: RecordSource) -> Callable[[], None]:
        made = Ingest(records, lambda: datetime.now(UTC))
        return lambda: nothing_else(run_job(made, spark, str(folder / "out"), overwrite=True))

    def nothing_else(_: object) -> None:
        """Drop what a job says."""

    def plain(read: Callable[[], DataFrame]) -> Callable[[], None]:
        return lambda: read().write.mode("overwrite").parquet(str(folder / "plain"))

    def mapped(name: str, more: str = "") -> RecordSource:
        return MappedTables(files[name], read_mapping(MAPPING.format(format=name) + more).bind(TYPE))

    csv, csv_ours, csv_lines, parquet, parquet_ours = medians(
        plain(lambda: spark.read.schema(COLUMNS).option("header", True).csv(files["csv"])),
        job(mapped("csv")),
        job(mapped("csv", BY_LINE)),
        plain(lambda: spark.read.parquet(files["parquet"])),
        job(mapped("parquet")),
        warm=1,
        rounds=3,
    )
    # Observed only, and long: once is enough.
    json, json_ours = medians(
        plain(lambda: spark.read.schema(ENVELOPE).json(files["json"])),
        job(Envelopes(files["json"], (TYPE,))),
        warm=0,
        rounds=1,
    )

    def detail(base: float, ours: float) -> str:
        return f"{ROWS:,} rows: plain {base:.2f} s, ingest {ours:.2f} s ({ROWS / ours:,.0f} rows a second)"

    return [
        at_least("pipeline-ingest-csv", csv / csv_ours, 0.3, detail(csv, csv_ours)),
        at_least("pipeline-ingest-csv-lines", csv / csv_lines, 0.3, detail(csv, csv_lines)),
        at_least("pipeline-ingest-parquet", parquet / parquet_ours, 0.4, detail(parquet, parquet_ours)),
        observed("pipeline-ingest-envelopes", json / json_ours, detail(json, json_ours)),
    ]


def run() -> list[Result]:
    spark = spark_session("6g")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        some, many = str(folder / "events"), str(folder / "many events")
        write_events(spark, some, ROWS)
        write_events(spark, many, MASKED)

        def everything() -> DataFrame:
            return spark.read.parquet(some)

        def events() -> DataFrame:
            return everything().drop(DENSE)

        results = [
            masking(lambda: spark.read.parquet(many).drop(DENSE)),
            *many_plates(everything),
            *what_if(events),
            *hundred(events, folder),
            selective(events(), folder),
            *ingesting(events(), folder / "records"),
        ]
    spark.stop()
    return results

"""What grows with the shape of the data on Spark: many types, wide rows, and keys that nearly all events have.

Each figure compares two shapes of the same number of rows or cells, by turns in one run. 10,000 readers are in
`bench_pipeline`. ADR 87 says what was measured, and how.
"""

import json
import os
import tempfile
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from harness import Result, at_most, observed
from penstock.guard import Branch, Restriction
from penstock.model import AttributeDefinition, AttributeSpec, EventType, Kind, Principal, TypeDefinition, TypeName
from penstock.pipeline.enforce.deliver import deliver
from penstock.pipeline.enforce.policy import RecordingPolicy, Subscriber
from penstock.pipeline.frames import ID, SOURCE, TIME
from penstock.pipeline.jobs.enforce import Admit, DeliverJob
from penstock.pipeline.jobs.ingest import Envelopes, Ingest
from penstock.pipeline.jobs.job import run as run_job
from penstock.selector import parse
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from spark_parts import OWNER, BenchPolicy, Rules, medians, nothing, spark_session, trusted

ROWS = int(os.environ.get("PENSTOCK_BENCH_ROWS", "5000000"))
EVENTS, CELLS, KEYED = ROWS // 250, 10 * ROWS, ROWS
KINDS = (Kind.STRING, Kind.INTEGER, Kind.FLOAT, Kind.BOOLEAN, Kind.TIMESTAMP)
MOMENT = "2026-05-01T12:00:00Z"


def policy(readers: list[tuple[EventType, str]], types: tuple[EventType, ...]) -> BenchPolicy:
    """Return a policy by which each reader sees the events of a type that match a selector."""
    verified = {one: trusted(one) for one in types}
    rules = {OWNER: Restriction((Branch(action=Right.PUBLISH),))}
    subscribers = []
    for number, (event_type, where) in enumerate(readers):
        reader = Principal((number + 2).to_bytes(32, "big"))
        asked = parse(where).rename({a.name: a.id for a in event_type.attributes})
        rules[reader] = Restriction((Branch(action=Right.SUBSCRIBE, where=asked),))
        subscribers.append(Subscriber(f"reader-{number}", reader, verified[event_type]))
    return BenchPolicy(Credentials(), tuple(subscribers), (Rules(rules),), types=tuple(verified.values()))


def with_attributes(name: str, kinds: list[Kind]) -> EventType:
    own = (AttributeDefinition(f"a{n}", str(n), AttributeSpec(kind)) for n, kind in enumerate(kinds))
    return EventType.of(TypeDefinition(TypeName(OWNER, name), tuple(own)))


def write_envelopes(spark: SparkSession, path: str, types: tuple[EventType, ...]) -> None:
    """Write CloudEvents, each of the next type."""
    n = F.col("id")
    names = F.array(*(F.lit(str(one.name)) for one in types))
    data = [
        F.concat(F.lit("text "), n.cast("string")).alias("a0"),
        (n % 10).alias("a1"),
        (n / 7).alias("a2"),
        (n % 2 == 0).alias("a3"),
        F.lit(MOMENT).alias("a4"),
    ]
    envelope = F.struct(
        F.lit("1.0").alias("specversion"),
        n.cast("string").alias("id"),
        F.lit(str(OWNER)).alias("source"),
        F.get(names, (n % len(types)).cast("int")).alias("type"),
        F.lit(MOMENT).alias("time"),
        F.struct(*data).alias("data"),
    )
    spark.range(0, EVENTS, numPartitions=4).select(F.to_json(envelope)).write.text(path)


def many_types(spark: SparkSession, folder: Path) -> list[Result]:
    """Ingest, admit and deliver events of 1,000 types, each with a reader, against as many events of 10."""

    def job(count: int) -> Callable[[], None]:
        types = tuple(with_attributes(f"Type{number:04}", list(KINDS)) for number in range(count))
        mine = policy([(one, f"a1 > {number % 9}") for number, one in enumerate(types)], types)
        desk = RecordingPolicy.of(
            mine,
            "urn:bench",
            clock=lambda: datetime.now(UTC),
            timer=time.perf_counter_ns,
            ids=lambda: uuid.uuid4().hex,
        )
        sent, ingested, admitted, delivered = (
            str(folder / f"{part} {count}") for part in ("in", "one", "two", "three")
        )
        write_envelopes(spark, sent, types)
        records = Envelopes(sent, mine.types)

        def run() -> None:
            run_job(Ingest(records, lambda: datetime.now(UTC)), spark, ingested, overwrite=True)
            run_job(Admit(ingested, types, desk), spark, admitted, overwrite=True)
            said = run_job(DeliverJob(admitted, types, desk), spark, delivered, overwrite=True)
            assert json.loads(json.dumps(said))["counts"]["read"] == EVENTS

        return run

    # What grows with types is planning, of which Java learns enough from few of them; one run of 1,000 takes minutes.
    small, large = job(10), job(1_000)
    small()
    few, many = medians(small, large, warm=0, rounds=1)
    detail = f"{EVENTS:,} events through three jobs: 10 types {few:.1f} s, 1,000 types {many:.1f} s"
    return [at_most("scale-1000-types", many / few, 2.0, detail)]


def wide_rows(spark: SparkSession, folder: Path) -> list[Result]:
    """Deliver rows of 500 attributes to 10 readers against as many cells in rows of 10.

    Spark itself takes longer to read the wide rows. So both are divided by the time of reading them.
    """

    def jobs(attributes: int) -> tuple[Callable[[], None], Callable[[], None]]:
        event_type = with_attributes(f"Wide{attributes}", [Kind.INTEGER] * attributes)
        n, path = F.col("id"), str(folder / f"wide {attributes}")
        cells = [F.pmod(F.hash(n + a), F.lit(1000)).cast("bigint").alias(str(id_)) for a, id_ in ids_of(event_type)]
        frame = spark.range(0, CELLS // attributes, numPartitions=4).select(*event_columns(), *cells)
        frame.write.parquet(path)
        last = f"a{attributes - 1}"
        asked = [f"a0 BETWEEN {100 * k} AND {100 * k + 20} AND {last} > 5" for k in range(10)]
        mine = policy([(event_type, one) for one in asked], (event_type,))
        plain = spark.read.parquet(path)
        rows = deliver(plain, [event_type], mine).rows
        return lambda: nothing(plain), lambda: nothing(rows)

    read_few, few, read_many, many = medians(*jobs(10), *jobs(500), warm=2, rounds=3)
    detail = (
        f"{CELLS:,} cells to 10 readers: rows of 10 attributes {few:.2f} s, read alone {read_few:.2f} s;"
        f" of 500 {many:.2f} s, read alone {read_many:.2f} s"
    )
    return [
        at_most("scale-500-attributes", (many / read_many) / (few / read_few), 1.5, detail),
        observed("scale-500-attributes-cells", many / few, detail),
    ]


def ids_of(event_type: EventType) -> list[tuple[int, str]]:
    return [(number, str(attribute.id)) for number, attribute in enumerate(event_type.attributes)]


def event_columns() -> list[Column]:
    n = F.col("id")
    time_ = F.timestamp_micros(F.lit(1_760_000_000_000_000) + n)
    return [n.cast("string").alias(ID), time_.alias(TIME), F.lit(str(OWNER)).alias(SOURCE)]


def skewed_keys(spark: SparkSession, folder: Path) -> list[Result]:
    """10,000 readers, one key each, where 9 of 10 events have one of the keys against evenly spread keys.

    As many events are delivered in both cases: every event has the key of one reader.
    """
    event_type = with_attributes("Keyed", [Kind.INTEGER, Kind.STRING])
    mine = policy([(event_type, f"a0 = {n}") for n in range(10_000)], (event_type,))
    (_, key), (_, text) = ids_of(event_type)

    def job(name: str, share: int) -> Callable[[], DataFrame]:
        n, path = F.col("id"), str(folder / name)
        keyed = F.when(F.pmod(F.hash(n), F.lit(10)) < share, F.lit(7)).otherwise(F.pmod(F.hash(n + 1), F.lit(10_000)))
        columns = [keyed.cast("bigint").alias(key), n.cast("string").alias(text)]
        spark.range(0, KEYED, numPartitions=4).select(*event_columns(), *columns).write.parquet(path)
        rows = deliver(spark.read.parquet(path), [event_type], mine).by_subscriber()
        return lambda: rows

    even, skewed = job("even", 0), job("skewed", 9)
    base, ours = medians(lambda: nothing(even()), lambda: nothing(skewed()), warm=2, rounds=3)
    detail = f"{KEYED:,} events to 10,000 readers: even keys {base:.2f} s, 9 of 10 events with one key {ours:.2f} s"
    return [at_most("scale-skewed-key", ours / base, 1.3, detail)]


def run() -> list[Result]:
    spark = spark_session("6g")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results = [*skewed_keys(spark, folder), *wide_rows(spark, folder), *many_types(spark, folder)]
    spark.stop()
    return results

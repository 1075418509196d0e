"""The second half of the London example: the same sightings, in bulk, on Spark."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from rich.console import Console
from rich.table import Table

from penstock.model import Event, EventType, Principal
from penstock.pipeline.enforce.admit import admit
from penstock.pipeline.enforce.deliver import Delivered, deliver
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.pipeline.frames import ID, SOURCE, TIME, micros, quoted, typed_schema
from penstock.pipeline.ingest.records import ORIGINAL
from penstock.pipeline.jobs.session_settings import EVERYWHERE
from penstock.pipeline.sealed.log import KeyFiles, columns_of
from penstock.pipeline.sealed.messages import split_messages
from penstock.pipeline.sealed.reader import BlockReader, sealed_columns
from penstock.trust import VerifiedType

Sent = Sequence[tuple[Principal, Event]]
"""Events with the principal that published each."""

Live = Mapping[str, Mapping[str, Mapping[str, object]]]
"""What live delivery gave: by subscriber, by event, by attribute."""


def session() -> SparkSession:
    """Start Spark on this machine, quietly."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Half a minute of work does not earn back what Java's optimiser costs.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    builder = SparkSession.builder.master("local[2]").appName("penstock: London")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "ERROR",
        **EVERYWHERE,
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def frame_of(spark: SparkSession, event_type: EventType, sent: Sent) -> DataFrame:
    """Return events of one version as a frame of typed events."""
    names = list(event_type.by_name)
    rows = [(e.id, e.time, str(who), *(e.values[name] for name in names)) for who, e in sent if e.type == event_type]
    return spark.createDataFrame(rows, schema=typed_schema(event_type)).select(ID, TIME, SOURCE, *map(quoted, names))


def batch(
    spark: SparkSession, versions: Sequence[VerifiedType], sent: Sent, policy: PipelinePolicy
) -> tuple[DataFrame, Delivered]:
    """Admit and deliver all events in bulk. Return what was admitted, and what each reader gets of it."""
    types = [verified.event_type for verified in versions]
    parts = [admit(frame_of(spark, v.event_type, sent), v, policy).events for v in versions]
    # Both are read several times below, and computed once.
    transit = reduce(DataFrame.unionByName, parts).cache()
    delivered = deliver(transit, types, policy)
    return transit, replace(delivered, rows=delivered.rows.cache())


def unsealed(
    console: Console,
    spark: SparkSession,
    types: Sequence[EventType],
    blocks: Iterable[bytes],
    rings: Mapping[str, tuple[KeyFiles, int]],
) -> None:
    """Open what brokers have sealed with the keys of each reader, and print what each sees of it.

    With the keys of each comes how many sightings they must open, no more and no less.
    """
    log = split_messages(spark.createDataFrame([(block,) for block in blocks], [ORIGINAL]), columns_of(types)).cache()
    table = Table("whose keys", "sightings", *(f"different values of {a.name}" for a in types[0].attributes))
    for name, (ring, expected) in rings.items():
        events = BlockReader.of(ring, types, sealed_columns(log)).events(log)
        seen = events.select(F.count("*"), *(F.count_distinct(quoted(str(a.id))) for a in types[0].attributes)).first()
        assert seen is not None  # noqa: S101  # there is always a count
        if seen[0] != expected:
            raise SystemExit(f"the keys of {name} open {seen[0]} sightings, and not {expected}")
        table.add_row(name, *(f"{number:,}" if number else "none" for number in seen))
    console.print(table)


def differences(delivered: Delivered, live: Live) -> dict[str, tuple[int, int]]:
    """Return for each subscriber how many rows batch delivery gave, and in how many the two ways differ."""
    found = {}
    for name, expected in live.items():
        view = delivered.for_subscriber(name)
        times = {f.name for f in view.schema if f.dataType.typeName() == "timestamp"}
        columns = [(F.unix_micros(quoted(c)) if c in times else quoted(c)).alias(c) for c in view.columns]
        rows = {row[ID]: row for row in view.select(*columns).collect()}
        wrong = rows.keys() ^ expected.keys()
        for key in rows.keys() & expected.keys():
            plain = {n: micros(v) if isinstance(v, datetime) else v for n, v in expected[key].items()}
            if {n: rows[key][n] for n in plain} != plain:
                wrong.add(key)
        found[name] = (len(rows), len(wrong))
    return found


def show(console: Console, delivered: Delivered, live: Live) -> None:
    """Print what batch delivery gave, and stop when it is not what live delivery gave."""
    table = Table("subscriber", "rows from Spark", "rows that differ from live delivery")
    total = 0
    for name, (rows, wrong) in differences(delivered, live).items():
        table.add_row(name, f"{rows:,}", f"{wrong:,}")
        total += wrong
    console.print(table)
    if total:
        raise SystemExit("batch and live delivery differ")
    console.print("  The batch views equal what live delivery gave, row for row.")

"""Sealed logs on Spark against plain Parquet, in one run, by turns.

The same five attributes, ids and times; what is read goes into a no-op sink. Blocks of one event are held against a
function that hands batches of the same rows through Arrow, and does nothing with them.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from harness import Result, at_least, observed
from penstock.crypto.seal_keys import KeyRing
from penstock.crypto.wrapping import Secret, new_kek
from penstock.model import AttributeDefinition, AttributeSpec, EventType, Kind, Principal, TypeDefinition, TypeName
from penstock.model.types import Sealing
from penstock.pipeline.frames import ID, SOURCE, TIME
from penstock.pipeline.ingest.event_frames import TYPE
from penstock.pipeline.sealed.log import FILES, KeyFiles, map_arrow
from penstock.pipeline.sealed.reader import BlockReader, sealed_columns
from penstock.pipeline.sealed.writer import Writing
from penstock.store.files.key_files import create_kek, write_key_ring
from spark_parts import medians, nothing, spark_session

ROWS = int(os.environ.get("PENSTOCK_BENCH_ROWS", "5000000"))
#: blocks of one event are twenty times as large as what they hold
SINGLE = ROWS // 5
#: what is read is longer: planning and Java's compiler take as long for few rows as for many
READ = 4 * ROWS
STARTS = 5
LONG_BLOCK = 65_536
OWNER = Principal(b"\1" * 32)
KINDS = {
    "plate": Kind.STRING,
    "place": Kind.INTEGER,
    "speed": Kind.FLOAT,
    "toll": Kind.INTEGER,
    "seen": Kind.TIMESTAMP,
}
START = 1_760_000_000_000_000


def sighting(name: str, sealing: Sealing) -> EventType:
    attributes = tuple(
        AttributeDefinition(attribute, str(uid), AttributeSpec(kind))
        for uid, (attribute, kind) in enumerate(KINDS.items())
    )
    return EventType.of(TypeDefinition(TypeName(OWNER, name), attributes, sealing=sealing))


SIGHTING, WHOLE = sighting("Sighting", Sealing.ATTRIBUTE), sighting("Whole", Sealing.EVENT)


def key_files(folder: Path) -> KeyFiles:
    ring, kek = KeyRing(), new_kek(os.urandom)
    for event_type in (SIGHTING, WHOLE):
        for scope in (str(event_type.key), *(str(a.id) for a in event_type.attributes)):
            ring.put(scope, 1, Secret(os.urandom(32)))
    create_kek(folder / "kek", kek)
    write_key_ring(folder / "ring", ring, kek, os.urandom)
    return KeyFiles(str(folder / "ring"), str(folder / "kek"))


def events(spark: SparkSession, rows: int, event_type: EventType) -> DataFrame:
    n = F.col("id")
    plate, place, speed, toll, seen = (str(a.id) for a in event_type.attributes)
    return spark.range(0, rows, numPartitions=4).select(
        F.lit(str(event_type.name)).alias(TYPE),
        F.concat(F.lit("e"), n).alias(ID),
        F.timestamp_micros(F.lit(START) + n).alias(TIME),
        F.lit(str(OWNER)).alias(SOURCE),
        F.concat(F.lit("P"), (n * 7919 % 1_000_000).cast("string")).alias(plate),
        (n % 100).alias(place),
        (n % 200 / 3).alias(speed),
        (n % 13).alias(toll),
        F.timestamp_micros(F.lit(START) + n * 1000).alias(seen),
    )


def identity(frame: DataFrame) -> DataFrame:
    # Here, because workers do not know this module.
    def unchanged(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    return map_arrow(frame, unchanged, frame.schema)


class Bench:
    """A folder, with keys in it."""

    def __init__(self, spark: SparkSession, folder: Path, keys: KeyFiles) -> None:
        self.spark, self.folder, self.keys = spark, folder, keys

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def read(self, name: str) -> DataFrame:
        return self.spark.read.parquet(self.path(name))

    def seal(self, source: str, name: str, event_type: EventType, rows: int) -> None:
        writing = Writing(self.keys, (event_type,), OWNER, datetime(2026, 5, 1, tzinfo=UTC), rows)
        writing.blocks(self.read(source)).write.mode("overwrite").options(**FILES).parquet(self.path(name))

    def opened(self, name: str, event_type: EventType) -> DataFrame:
        blocks = self.read(name)
        return BlockReader.of(self.keys, (event_type,), sealed_columns(blocks), (str(OWNER),)).events(blocks)

    def written(self) -> list[Result]:
        """Blocks of 64k rows, copied."""
        events(self.spark, ROWS, SIGHTING).write.parquet(self.path("plain"))

        def copy() -> None:
            self.read("plain").write.mode("overwrite").parquet(self.path("again"))

        def write() -> None:
            self.seal("plain", "sealed", SIGHTING, LONG_BLOCK)

        plain, sealed = medians(copy, write)
        detail = f"{ROWS:,} rows copied: plain {plain:.2f} s, sealed {sealed:.2f} s"
        return [at_least("sealed-spark-write", plain / sealed, 0.6, detail)]

    def opened_all(self) -> list[Result]:
        """Blocks of 64k rows, opened, in several starts of Java: each compiles otherwise, and is faster or slower."""
        events(self.spark, READ, SIGHTING).write.parquet(self.path("long"))
        self.seal("long", "long-sealed", SIGHTING, LONG_BLOCK)
        assert self.opened("long-sealed", SIGHTING).count() == READ
        program = [sys.executable, __file__, str(self.folder), self.keys.ring, self.keys.kek]
        times = []
        for _ in range(STARTS):
            said = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True).stdout  # noqa: S603  # our own
            times.append(tuple(map(float, said.split())))
        ratios = [plain / sealed for plain, sealed in times]
        each = "; ".join(f"plain {plain:.2f} s, sealed {sealed:.2f} s" for plain, sealed in times)
        detail = f"{READ:,} rows, the median of {STARTS} starts of Java: {each}"
        return [at_least("sealed-spark-read", statistics.median(ratios), 0.7, detail)]

    def read_both(self) -> None:
        """Say how long it takes to read what is plain, and what is sealed."""
        print(
            *medians(lambda: nothing(self.read("long")), lambda: nothing(self.opened("long-sealed", SIGHTING))),
            flush=True,
        )

    def single(self) -> list[Result]:
        """Blocks of one event."""
        results = []
        for event_type, name in ((SIGHTING, "attribute"), (WHOLE, "event")):
            source, log = f"few-{name}", f"single-{name}"
            events(self.spark, SINGLE, event_type).write.parquet(self.path(source))
            self.seal(source, log, event_type, 1)
            plain, blocks, opened = medians(
                lambda source=source: nothing(identity(self.read(source))),  # type: ignore[misc]  # of this turn
                lambda log=log: nothing(identity(self.read(log))),  # type: ignore[misc]  # of this turn
                lambda log=log, t=event_type: nothing(self.opened(log, t)),  # type: ignore[misc]  # of this turn
            )
            detail = f"{SINGLE:,} blocks, {name} level: handed through {blocks:.2f} s, opened {opened:.2f} s"
            results.append(at_least(f"sealed-spark-single-{name}", blocks / opened, 0.3, detail))
            detail = f"the same events as plain rows handed through {plain:.2f} s"
            results.append(observed(f"sealed-spark-single-{name}-plain", plain / opened, detail))
        return results


def run() -> list[Result]:
    spark = spark_session("3g")
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(spark, Path(name), key_files(Path(name)))
        results = [*bench.opened_all(), *bench.written(), *bench.single()]
    spark.stop()
    return results


if __name__ == "__main__":
    folder, *files = sys.argv[1:]
    Bench(spark_session("3g"), Path(folder), KeyFiles(*files)).read_both()

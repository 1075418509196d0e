"""The quarantine, read back: what `ingest` found to be no event, `audit` no decision, and `conflicts` no rule.

A record in quarantine is whatever somebody sent. Only its beginning is fetched, and it is shown as text in which
everything that does not print is escaped.
"""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from penstock.errors import FailedError
from penstock.pipeline.audit import QUARANTINE as LINES
from penstock.pipeline.conflicts.input import QUARANTINE as ROWS
from penstock.pipeline.frames.frames import quoted
from penstock.pipeline.ingest.event_frames import REASON, WORDS
from penstock.pipeline.ingest.records import FILE, ORIGINAL, POSITION
from penstock.pipeline.jobs.ingest import QUARANTINE as PART
from penstock.pipeline.outputs.outputs import complete, job_of, read_part

_TEXT: Final = StringType()
_RECORDS: Final = StructType(
    [
        StructField(REASON, _TEXT),
        StructField(WORDS, _TEXT),
        StructField(FILE, _TEXT),
        StructField(POSITION, LongType()),
        StructField(ORIGINAL, BinaryType()),
    ]
)
_FETCHED: Final = 400
"""Bytes of a record that are looked at."""


@dataclass(frozen=True, slots=True)
class QuarantinedRecord:
    """A record in quarantine: why, where it stood, how long it is, and its beginning as text that is safe to show."""

    reason: str
    words: str | None
    file: str | None
    position: int | None
    size: int
    text: str


@dataclass(frozen=True, slots=True)
class QuarantineSummary:
    """What is in quarantine: how many records for each reason, the most frequent first, and some of each."""

    reasons: dict[str, int]
    samples: tuple[QuarantinedRecord, ...]


def open_quarantine(spark: SparkSession, path: str, samples: int = 3) -> QuarantineSummary:
    """Read the quarantine of an output, with at most so many samples of each reason.

    Raises `FailedError` (`pipeline.no-input`) where no job that has one wrote there, or no batch is complete.
    """
    records = _records(spark, path)
    counted = records.groupBy("reason").count().orderBy(F.desc("count"), "reason").collect()
    reasons = {str(row[0]): int(row[1]) for row in counted}
    place = Window.partitionBy("reason").orderBy("file", "position", "original")
    some = records.withColumn("place", F.row_number().over(place)).where(F.col("place") <= samples)
    found = some.select(
        "reason", "words", "file", "position", F.octet_length("original"), F.substring("original", 1, _FETCHED), "place"
    ).collect()
    order = list(reasons)
    rows = sorted(found, key=lambda row: (order.index(row[0]), row[6]))
    return QuarantineSummary(reasons, tuple(_sample(row) for row in rows))


def _sample(row: Row) -> QuarantinedRecord:
    reason, words, file, position, size, beginning, _ = row
    return QuarantinedRecord(reason, words, file, position, size, safe_text(bytes(beginning)))


def _records(spark: SparkSession, path: str) -> DataFrame:
    job = job_of(spark, path)
    if job == "ingest":
        part = read_part(spark, path, PART, complete(spark, path), _RECORDS)
        columns = [quoted(name).alias(name.removeprefix("@")) for name in _RECORDS.names]
    elif job == "conflicts":
        part = read_part(spark, path, PART, complete(spark, path), ROWS)
        columns = [
            F.col("reason"),
            F.col("words"),
            F.col("source").alias("file"),
            F.lit(None).cast("bigint").alias("position"),
            F.encode("original", "UTF-8").alias("original"),
        ]
    elif job == "audit":
        part = read_part(spark, path, PART, complete(spark, path), LINES)
        unknown: dict[str, Column] = {name: F.lit(None).cast("string") for name in ("words", "file")}
        columns = [
            F.col("reason"),
            *(column.alias(name) for name, column in unknown.items()),
            F.lit(None).cast("bigint").alias("position"),
            F.encode("line", "UTF-8").alias("original"),
        ]
    else:
        raise FailedError(
            "pipeline.no-input",
            f"`{path}` has no quarantine of records",
            hint="give the folder that `penstock pipeline ingest`, `conflicts` or `audit --out` wrote; what `seal` and "
            "`unseal` set aside is in its folder `quarantine`, as it is",
        )
    return part.select(*columns)


def safe_text(data: bytes) -> str:
    r"""Return bytes as text; bytes that are not UTF-8 or not printable are escaped.

    >>> safe_text(b'caf\xc3\xa9 \xff\x1b[2J\n')
    'café \\xff\\x1b[2J\\n'
    """
    text = data.decode("utf-8", errors="backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)

"""Blocks that stand in a log twice, or come again with a later batch of a stream.

What tells a block from all others is in its header: sender, incarnation and number, 56 octets. A header is believed
once the block has opened, not before: otherwise who writes a broken block under the name of a good one would have the
good one set aside. So blocks of one name are first brought together, and whoever opens them takes the first that opens.

Across batches the output of a job says what it has taken: `taken/` holds names and times of the blocks that have
opened. A copy has the time of its original, so that only batches are looked at that were of the same times.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import BinaryType, StructField, StructType

from penstock.model.principals import DIGEST_BYTES, Principal
from penstock.pipeline.commits import commits
from penstock.pipeline.frames import quoted
from penstock.pipeline.outputs import Output, read_part
from penstock.pipeline.sealed_log import BLOCK, HEADER, ROWS

TAKEN: Final = "taken"
"""The part of an output, and what a commit says of it: the first and the last time."""
REPLAYED: Final = "seal.replayed"
AGAIN: Final = "@again"
"""A column of blocks that may be copies: whether one of that name was taken before."""
_NAME, _TIME, _SENDER = "@name", "@sealed", "@sender"
#: who has more senders than this is not told who they are: a plan holds the names, and each of them takes time
_MOST_SENDERS: Final = 1_024
_NUMBERS: Final = ("blocks", "rows", "uncounted", "copies")
_SCHEMA: Final = StructType([StructField(_NAME, BinaryType()), StructField(_TIME, BinaryType())])


def _header(blocks: DataFrame) -> Column:
    """Return the column that begins with the header of a block."""
    return F.coalesce(*(quoted(name) for name in (HEADER, BLOCK) if name in blocks.columns))


def _named(blocks: DataFrame) -> list[Column]:
    """Return name and time of blocks, cut out of their headers: octets that can be ordered."""
    header = _header(blocks)
    # Version, flags, algorithm, padding: 4; columns: 2; sender and incarnation: 48; an epoch of each column: 8.
    columns = F.conv(F.hex(F.substring(header, 5, 2)), 16, 10).cast("int")
    counts = F.lit(55) + F.lit(8) * columns
    name = F.concat(F.substring(header, F.lit(7), F.lit(48)), F.substring(header, counts, F.lit(8)))
    return [name.alias(_NAME), F.substring(header, counts + 8, F.lit(8)).alias(_TIME)]


class Counted(NamedTuple):
    """What can be said of blocks without opening them."""

    blocks: int
    #: events that they say they have
    rows: int
    #: rows of the log that say no number
    uncounted: int
    #: blocks under the name of another one
    copies: int
    #: when they were sealed, as they say
    first: bytes
    last: bytes
    #: who has sealed them, as they say, unless that are too many to name
    senders: tuple[str, ...] | None


def count_blocks(blocks: DataFrame) -> Counted:
    """Count blocks, the events that they say they have, and those that have the name of another.

    Anybody can write headers that name others, so that never more senders are held than may be named.
    """
    by_sender = _by_sender(blocks)
    found = by_sender.limit(_MOST_SENDERS + 1).collect()
    if len(found) > _MOST_SENDERS:
        return _added_up(by_sender.agg(*_sums()).collect(), None)
    # What is cut off names nobody.
    whole = sorted(bytes(row[_SENDER]) for row in found if len(row[_SENDER] or b"") == DIGEST_BYTES)
    return _added_up(found, tuple(str(Principal(sender)) for sender in whole))


def _by_sender(blocks: DataFrame) -> DataFrame:
    rows, name, time = quoted(ROWS), quoted(_NAME), quoted(_TIME)
    by_name = blocks.select(rows, *_named(blocks)).groupBy(name)
    counted = by_name.agg(
        F.count("*").alias("blocks"),
        F.coalesce(F.sum(rows), F.lit(0)).alias("rows"),
        F.count_if(F.coalesce(rows, F.lit(0)) <= 0).alias("uncounted"),
        F.greatest(F.count(name) - 1, F.lit(0)).alias("copies"),
        F.min(time).alias("first"),
        F.max(time).alias("last"),
    )
    return counted.groupBy(F.substring(name, 1, DIGEST_BYTES).alias(_SENDER)).agg(*_sums())


def _sums() -> list[Column]:
    return [*(F.sum(name).alias(name) for name in _NUMBERS), F.min("first").alias("first"), F.max("last").alias("last")]


def _added_up(rows: list[Row], senders: tuple[str, ...] | None) -> Counted:
    blocks, events, uncounted, copies = (sum(row[name] for row in rows) for name in _NUMBERS)
    first = min((bytes(row["first"]) for row in rows if row["first"] is not None), default=b"")
    last = max((bytes(row["last"]) for row in rows if row["last"] is not None), default=b"")
    return Counted(blocks, events, uncounted, copies, first, last, senders)


@dataclass(frozen=True, slots=True)
class Parted:
    """Blocks: those that stand alone, and those that may be copies, those of one name together."""

    alone: DataFrame
    suspect: DataFrame | None = None
    #: what is kept until everything is written
    names: DataFrame | None = None

    def forget(self) -> None:
        """Let go of what was kept."""
        if self.names is not None:
            self.names.unpersist()


def part(blocks: DataFrame, copies: int, taken: DataFrame | None) -> Parted:
    """Part blocks of which so many are copies; `taken` are the names of those that have come before."""
    if not copies and taken is None:
        return Parted(blocks)
    name = quoted(_NAME)
    named = blocks.select("*", _named(blocks)[0])
    counted = named.where(name.isNotNull()).groupBy(name).agg((F.count("*") > 1).alias("@twice"))
    if taken is None:
        suspect = counted.where("`@twice`").select(name, F.lit(False).alias(AGAIN))
    else:
        before = taken.select(name).distinct().withColumn(AGAIN, F.lit(True))
        again = F.coalesce(quoted(AGAIN), F.lit(False)).alias(AGAIN)
        suspect = counted.join(before, _NAME, "left").where(f"`@twice` OR `{AGAIN}`").select(name, again)
    # They are few, and asked for more than once. Names are no secret.
    suspect = suspect.persist()
    if suspect.isEmpty():
        suspect.unpersist()
        return Parted(blocks)
    own = [quoted(column) for column in blocks.columns]
    alone = named.join(suspect, _NAME, "left_anti").select(*own)
    together = named.join(suspect, _NAME).repartition(name).select(*own, quoted(AGAIN))
    return Parted(alone, together, suspect)


def taken_before(spark: SparkSession, path: str, batch: int, found: Counted) -> DataFrame | None:
    """Return the names of blocks that earlier batches of an output have taken, as far as they can be these."""
    if not batch or not found.blocks:
        return None
    batches = [number for number, said in commits(spark, path).items() if number < batch and _overlap(said, found)]
    return read_part(spark, path, TAKEN, batches, _SCHEMA) if batches else None


def _overlap(said: Mapping[str, object], found: Counted) -> bool:
    match said.get(TAKEN):
        case [str(first), str(last)]:
            return first <= found.last.hex() and found.first.hex() <= last
    # A batch of before there was such a part took no note of what it took.
    return False


def write_taken(blocks: DataFrame, failed: DataFrame | None, output: Output, batch: int) -> None:
    """Write the names of blocks that have opened: all but those that failed, each as often as it did."""
    found = blocks.select(*_named(blocks))
    if failed is not None:
        found = found.exceptAll(failed.select(*_named(failed)))
    output.write(found, TAKEN, batch)


def said_taken(found: Counted) -> list[str]:
    """Return what a commit says of the times of its blocks."""
    return [found.first.hex(), found.last.hex()]

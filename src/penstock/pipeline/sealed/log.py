"""The sealed log: a block of events in each row, and a binary column for each attribute.

    @header   binary   the header of the block, with route and signature
    @rows     int      how many events it says it has
    @first    binary   ids and times; at event level everything
    and       binary   for each attribute, under its id: null where the block has none, or is sealed at event level

`penstock.codec.blocks.join` of a row is the block as brokers send it. A reader reads the columns that it holds keys
for, and those of the others stay on the disk.

    key files   a key ring under a key-encryption key, and a file that holds the latter

Those who hold keys are processes, not plans: what a plan knows is the two paths, and each task reads the files where it
runs. See ADR 20.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from penstock.codec.blocks import read_parts
from penstock.codec.sexp import parse
from penstock.crypto import SigningKey, read_key
from penstock.crypto.seal_keys import KeyRing, column_scope
from penstock.errors import MalformedError, PenstockError
from penstock.model.principals import DIGEST_BYTES, Principal
from penstock.model.types import EventType, Sealing
from penstock.pipeline.commits import CLOSED as CLOSED
from penstock.pipeline.commits import names_said as names_said
from penstock.pipeline.frames import attributes_of, quoted
from penstock.pipeline.outputs import Output, closed_log, commits, read_part
from penstock.store.crash_dumps import withhold_memory
from penstock.store.files.files import check_secret, read_file, within
from penstock.store.files.key_files import read_kek, read_key_ring

HEADER: Final = "@header"
ROWS: Final = "@rows"
FIRST: Final = "@first"
HEAD: Final = (HEADER, ROWS, FIRST)
BLOCK: Final = "@block"
"""A block that came as a message, and has no columns here."""
SEALED: Final = "sealed"
"""The part of an output that is a sealed log."""
ATTRIBUTES: Final = "attributes"
"""The key in a commit for the attributes that have a column."""


FILES: Final = {
    # No two sealed columns are equal: looking for it takes time and memory.
    "parquet.enable.dictionary": "false",
    # A row may be megabytes: how large they are is looked at from the first one on, not after a hundred, and a reader
    # holds few of them at a time.
    "parquet.block.size": str(16 << 20),
    "parquet.block.size.row.check.min": "1",
    "parquet.page.size.row.check.min": "1",
}
"""How a sealed log is written."""


@dataclass(frozen=True, slots=True)
class KeyFiles:
    """The paths of key files, on each machine that seals or opens."""

    ring: str
    kek: str

    def read(self) -> KeyRing:
        """Return the keys, which no crash dump of this process will hold. Raises as `read_kek` and `read_key_ring`."""
        withhold_memory()
        return read_key_ring(Path(self.ring), read_kek(Path(self.kek)))


def sealed_schema(attributes: Iterable[str]) -> StructType:
    """Return the schema of a sealed log with columns for some attributes."""
    head = [StructField(HEADER, BinaryType()), StructField(ROWS, IntegerType()), StructField(FIRST, BinaryType())]
    return StructType([*head, *(StructField(name, BinaryType()) for name in attributes)])


def sealed_arrow(attributes: Iterable[str]) -> Any:
    """Return the same schema in Arrow."""
    head = [(HEADER, pa.binary()), (ROWS, pa.int32()), (FIRST, pa.binary())]
    return pa.schema([*head, *((name, pa.binary()) for name in attributes)])


def read_log(spark: SparkSession, path: str, batches: list[int]) -> DataFrame:
    """Return the blocks of some batches of a sealed log."""
    said = commits(spark, path)
    found = [said.get(batch, {}).get(ATTRIBUTES) for batch in batches]
    columns = dict.fromkeys(str(name) for names in found if isinstance(names, list) for name in names)
    return read_part(spark, path, SEALED, batches, sealed_schema(columns))


@cache
def _settle_worker() -> None:
    """Exclude imported modules from garbage collection in Spark workers: each task ends with a collection."""
    gc.freeze()


def map_arrow(
    frame: DataFrame,
    function: Callable[[Iterator[Any]], Iterator[Any]],
    schema: StructType,
    columns: Iterable[str] | None = None,
) -> DataFrame:
    """Apply a function to the batches of a frame, or of some of its columns.

    Spark would not find columns whose names have a dot.
    """
    own = tuple(frame.columns if columns is None else columns)

    def named(batches: Iterable[Any]) -> Iterator[Any]:
        _settle_worker()
        return function(batch.rename_columns(own) for batch in batches)

    return frame.select(*(quoted(name).alias(f"c{place}") for place, name in enumerate(own))).mapInArrow(named, schema)


def columns_of(types: Iterable[EventType]) -> tuple[str, ...]:
    """Return the attributes that have a column when events of some types are sealed."""
    return tuple(str(a.id) for a in attributes_of(t for t in types if t.sealing is Sealing.ATTRIBUTE))


def readable(types: Iterable[EventType], ring: KeyRing, columns: Iterable[str]) -> tuple[str, ...]:
    """Return the columns of a log in which something may open with the keys of a ring."""
    held = {str(a.id) for t in types for a in t.attributes if ring.newest(column_scope(t.key, str(a.id))) is not None}
    return tuple(name for name in columns if name in held)


def closed(types: Iterable[EventType], ring: KeyRing, columns: Iterable[str]) -> tuple[str, ...]:
    """Return the attributes of a log of which a ring has no key at all, though it opens their events.

    Each is named with its type, as the last version calls it.
    """
    known = frozenset(columns)
    found = {
        column_scope(t.key, str(a.id)): f"{t.key.name} {a.name}"
        for t in types
        if t.sealing is Sealing.ATTRIBUTE and ring.newest(str(t.key)) is not None
        for a in t.attributes
        if str(a.id) in known
    }
    return tuple(name for scope, name in found.items() if ring.newest(scope) is None)


def read_signer(path: str) -> SigningKey:
    """Read a private key without a passphrase: tasks cannot ask anybody for one.

    Raises `FailedError` and `MalformedError` (`seal.signer` and what reading a key raises).
    """
    with within(path):
        found = read_key(parse(read_file(path)))
        if not isinstance(found, SigningKey):
            raise MalformedError(
                "seal.signer", "tasks cannot sign with this key", hint="give a private key in the clear"
            )
    check_secret(path)
    return found


# ----------------------------------------------------------------------------------------------------------------------
# Blocks that stand in a log twice, or come again with a later batch of a stream.
#
# What tells a block from all others is in its header: sender, incarnation and number, 56 bytes. A header is believed
# once the block has opened, not before: otherwise who writes a broken block under the name of a good one would have the
# good one set aside. So blocks of one name are first brought together, and whoever opens them takes the first that
# opens.
#
# Across batches the output of a job says what it has taken: `taken/` holds names and times of the blocks that have
# opened. A copy has the time of its original, so that only batches are looked at that were of the same times.


TAKEN: Final = "taken"
"""The part of an output, and its key in a commit: the first and the last time."""
REPLAYED: Final = "seal.replayed"
AGAIN: Final = "@again"
"""A column of blocks that may be copies: whether one of that name was taken before."""
_NAME, _TIME, _SENDER = "@name", "@sealed", "@sender"
#: who has more senders than this is not told who they are: a plan holds the names, and each of them takes time
_MOST_SENDERS: Final = 1_024
_NUMBERS: Final = ("blocks", "rows", "uncounted", "copies")
_SCHEMA: Final = StructType([StructField(_NAME, BinaryType()), StructField(_TIME, BinaryType())])


def check_copies(headers: Iterable[bytes | None]) -> None:
    """Check that no two blocks have one name, by their headers and without Spark. Raises as `closed_log`."""
    taken: set[bytes] = set()
    for data in headers:
        try:
            header = read_parts(data or b"", {}).header()
        except PenstockError:
            # Opening it reports the error.
            continue
        name = header.fixed.sender + header.id
        if name in taken:
            raise closed_log(REPLAYED)
        taken.add(name)


def _header(blocks: DataFrame) -> Column:
    """Return the column that begins with the header of a block."""
    return F.coalesce(*(quoted(name) for name in (HEADER, BLOCK) if name in blocks.columns))


def _named(blocks: DataFrame) -> list[Column]:
    """Return name and time of blocks, cut out of their headers: bytes that can be ordered."""
    header = _header(blocks)
    # Version, flags, algorithm, padding: 4; columns: 2; sender and incarnation: 48; an epoch of each column: 8.
    columns = F.conv(F.hex(F.substring(header, 5, 2)), 16, 10).cast("int")
    counts = F.lit(55) + F.lit(8) * columns
    name = F.concat(F.substring(header, F.lit(7), F.lit(48)), F.substring(header, counts, F.lit(8)))
    return [name.alias(_NAME), F.substring(header, counts + 8, F.lit(8)).alias(_TIME)]


class BlockCounts(NamedTuple):
    """Counts of blocks, without opening them."""

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


def count_blocks(blocks: DataFrame) -> BlockCounts:
    """Count blocks, the events that they say they have, and those that have the name of another.

    Anybody can write headers that name others, so that never more senders are held than may be named.
    """
    by_sender = _by_sender(blocks)
    found = by_sender.limit(_MOST_SENDERS + 1).collect()
    if len(found) > _MOST_SENDERS:
        return _added_up(by_sender.agg(*_sums()).collect(), None)
    # The cut part names nobody.
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


def _added_up(rows: list[Row], senders: tuple[str, ...] | None) -> BlockCounts:
    blocks, events, uncounted, copies = (sum(row[name] for row in rows) for name in _NUMBERS)
    first = min((bytes(row["first"]) for row in rows if row["first"] is not None), default=b"")
    last = max((bytes(row["last"]) for row in rows if row["last"] is not None), default=b"")
    return BlockCounts(blocks, events, uncounted, copies, first, last, senders)


@dataclass(frozen=True, slots=True)
class Parted:
    """Blocks: those that stand alone, and those that may be copies, those of one name together."""

    alone: DataFrame
    suspect: DataFrame | None = None
    #: cached frames, kept until everything is written
    names: DataFrame | None = None

    def forget(self) -> None:
        """Release cached data."""
        if self.names is not None:
            self.names.unpersist()


def part(blocks: DataFrame, copies: int, taken: DataFrame | None) -> Parted:
    """Separate blocks from their copies, of which the number is given; `taken` are the names of earlier blocks."""
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
    # They are few, and asked for more than once. Names are not secret.
    suspect = suspect.persist()
    if suspect.isEmpty():
        suspect.unpersist()
        return Parted(blocks)
    own = [quoted(column) for column in blocks.columns]
    alone = named.join(suspect, _NAME, "left_anti").select(*own)
    together = named.join(suspect, _NAME).repartition(name).select(*own, quoted(AGAIN))
    return Parted(alone, together, suspect)


def taken_before(spark: SparkSession, path: str, batch: int, found: BlockCounts) -> DataFrame | None:
    """Return the names of blocks that earlier batches of an output have taken, as far as they can be these."""
    if not batch or not found.blocks:
        return None
    batches = [number for number, said in commits(spark, path).items() if number < batch and _overlap(said, found)]
    return read_part(spark, path, TAKEN, batches, _SCHEMA) if batches else None


def _overlap(said: Mapping[str, object], found: BlockCounts) -> bool:
    match said.get(TAKEN):
        case [str(first), str(last)]:
            return first <= found.last.hex() and found.first.hex() <= last
    # A batch of an older version did not record its blocks.
    return False


def write_taken(blocks: DataFrame, failed: DataFrame | None, output: Output, batch: int) -> None:
    """Write the names of blocks that have opened: all but those that failed, each as often as it did."""
    found = blocks.select(*_named(blocks))
    if failed is not None:
        found = found.exceptAll(failed.select(*_named(failed)))
    output.write(found, TAKEN, batch)


def said_taken(found: BlockCounts) -> list[str]:
    """Return the times of its blocks from a commit."""
    return [found.first.hex(), found.last.hex()]

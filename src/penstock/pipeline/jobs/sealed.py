"""The jobs `seal`, `unseal` and `compact`: events become a sealed log, and a sealed log becomes events.

    seal      events            ->  sealed/  quarantine/  ready/
    unseal    a sealed log      ->  events/  sealed/  quarantine/  taken/
    compact   a sealed log      ->  sealed/

`sealed/` of `unseal` are the blocks that wait for a key or a type: its output is a sealed log again. A commit names the
attributes that the log has columns for. `taken/` has the names of the blocks that were opened (`sealed.log`).
"""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from penstock.errors import RefusedError
from penstock.model.types import EventType
from penstock.pipeline.commits import EVENTS
from penstock.pipeline.commits import QUARANTINED as QUARANTINE
from penstock.pipeline.frames import quoted
from penstock.pipeline.ingest.event_frames import REASON
from penstock.pipeline.jobs.enforce import OfEvents
from penstock.pipeline.jobs.ingest import event_rows
from penstock.pipeline.outputs import Output, Said, Streaming, check_sum, complete, follow, named, read_part
from penstock.pipeline.sealed.log import (
    AGAIN,
    ATTRIBUTES,
    CLOSED,
    FILES,
    HEAD,
    ROWS,
    SEALED,
    TAKEN,
    KeyFiles,
    closed,
    count_blocks,
    names_said,
    part,
    read_log,
    said_taken,
    sealed_schema,
    taken_before,
    write_taken,
)
from penstock.pipeline.sealed.reader import WAITING, BlockReader, sealed_columns
from penstock.pipeline.sealed.signers import SignerPolicy
from penstock.pipeline.sealed.writer import Compacting, Writing
from penstock.pipeline.tables.addresses import RowSource, SinkRows

READY: Final = "ready"
"""The part of an output that says under which id a batch is published, once it is sealed."""


class Sink(Protocol):
    """A further destination of sealed blocks, besides the log."""

    def publish(self, blocks: DataFrame, write_id: str) -> None:
        """Publish blocks, once for each id."""


@dataclass(frozen=True, slots=True)
class Seal(OfEvents):
    """The job `seal`. Events that cannot be sealed go to quarantine, as they are.

    What is sealed a second time is another block. So that a run which was killed publishes none twice, blocks are
    published from the log, and those of a batch are sealed once: when they are complete, `ready/` says so.
    """

    writing: Writing
    clock: Callable[[], datetime]
    sink: Sink | None = None
    name: str = "seal"
    parts: tuple[str, ...] = (SEALED, QUARANTINE, READY)

    def planned(self, events: DataFrame) -> tuple[DataFrame, ...]:
        """Return the frames that would be computed."""
        tagged = self.writing.tagged(events)
        return (self.writing.blocks(_good(tagged)), _bad(tagged))

    def step(self, events: DataFrame, batch: int, output: Output) -> Said:
        """Write blocks, and the events that cannot be sealed. Raises `FailedError` (`pipeline.lost`)."""
        writing = replace(self.writing, at=self.clock())
        ready = [] if self.sink is None else output.lines(READY, batch)
        tagged = writing.tagged(events)
        if not ready:
            _write(writing.blocks(_good(tagged)), output, SEALED, batch)
            output.write(_bad(tagged), QUARANTINE, batch)
        stored = read_part(output.spark, output.path, SEALED, [batch], sealed_schema(writing.columns))
        read, (blocks, sealed), bad = events.count(), _counted(stored), _set_aside(output, batch)
        if not ready and sealed + sum(bad.values()) < read:
            # Whether an event is too large for a block is known once it is sealed.
            output.write(_bad(tagged).unionByName(writing.too_large(_good(tagged))), QUARANTINE, batch)
            bad = _set_aside(output, batch)
        counts = {"read": read, "sealed": sealed, "quarantined": sum(bad.values())}
        check_sum(read, {name: counts[name] for name in ("sealed", "quarantined")})
        if self.sink is not None:
            ready = ready or [uuid.uuid4().hex]
            output.write_lines(ready, READY, batch)
            self.sink.publish(stored, ready[0])
        said: Said = {ATTRIBUTES: list(writing.columns)}
        return {"counts": {**counts, "blocks": blocks}, "reasons": bad, **said}

    def rows(self, output: Output, batch: int, said: Said) -> SinkRows:
        """Return the blocks, as rows of a sealed log."""
        return _block_rows(output, batch, said)


class Blocks(Protocol):
    """A source of sealed blocks."""

    @property
    def name(self) -> str:
        """A description of the input, which the output stores."""

    @property
    def files(self) -> str | None:
        """The path of the files, if the input is files."""

    def all(self, spark: SparkSession) -> DataFrame:
        """Return all blocks, as rows of a sealed log."""

    def arriving(self, spark: SparkSession, streaming: Streaming) -> DataFrame:
        """Return a stream of arriving input."""

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return the blocks that have arrived with a batch of that stream."""


@dataclass(frozen=True, slots=True)
class LogBlocks:
    """The blocks of a sealed log."""

    path: str

    @property
    def name(self) -> str:
        """The path."""
        return self.path

    @property
    def files(self) -> str:
        """Where the blocks stand."""
        return f"{self.path}/{SEALED}"

    def all(self, spark: SparkSession) -> DataFrame:
        """Return the blocks of all complete batches. Raises `FailedError` (`pipeline.no-input`)."""
        return read_log(spark, self.path, complete(spark, self.path))

    def arriving(self, spark: SparkSession, streaming: Streaming) -> DataFrame:
        """Return the commits of the log as they arrive. Raises `FailedError` (`pipeline.no-input`)."""
        return follow(spark, self.path, streaming)

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return the blocks of the batches that were committed."""
        return read_log(batch.sparkSession, self.path, named(batch))


@dataclass(frozen=True, slots=True)
class TableBlocks:
    """The blocks of a sealed log that stands in a table, with the columns that it has in the log."""

    table: RowSource

    @property
    def name(self) -> str:
        """The address."""
        return self.table.name

    @property
    def files(self) -> str | None:
        """The path of the files, if Spark can list them."""
        return self.table.files

    def all(self, spark: SparkSession) -> DataFrame:
        """Return all blocks. Raises as the table, and `RefusedError` (`tables.kind`)."""
        return self._blocks(self.table.batch(spark))

    def arriving(self, spark: SparkSession, streaming: Streaming) -> DataFrame:
        """Return a stream of the table's rows. Raises as the table."""
        return self.table.stream(spark, streaming)

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return the blocks that have arrived. Raises as `all`."""
        return self._blocks(self.table.arrived(batch))

    def _blocks(self, rows: DataFrame) -> DataFrame:
        """Return the columns of a log: those of other tools, such as partitions, are not columns of bytes.

        Its own have no `@` in tables that `seal` and `compact` write besides a log.
        """
        rows = rows.withColumnsRenamed({name.removeprefix("@"): name for name in HEAD})
        there = {one.name: one.dataType for one in rows.schema}
        columns = [name for name, kind in there.items() if name not in HEAD and kind == BinaryType()]
        schema = sealed_schema(columns)
        if any(there.get(one.name) != one.dataType for one in schema):
            raise RefusedError(
                "tables.kind",
                f"`{self.name}` has no columns {', '.join(HEAD)} as a sealed log has them",
                hint="give a table with the rows of the folder `sealed` that `penstock pipeline seal` wrote",
            )
        return rows.select(*(quoted(one.name) for one in schema))


@dataclass(frozen=True, slots=True)
class OfBlocks:
    """The common part of jobs that read sealed blocks."""

    blocks: Blocks

    @property
    def source(self) -> str:
        """The name of the input."""
        return self.blocks.name

    @property
    def files(self) -> str | None:
        """Where the blocks stand."""
        return self.blocks.files

    def all(self, spark: SparkSession) -> DataFrame:
        """Return all blocks."""
        return self.blocks.all(spark)

    def arriving(self, spark: SparkSession, streaming: Streaming) -> DataFrame:
        """Return a stream of arriving input."""
        return self.blocks.arriving(spark, streaming)

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return the blocks that have arrived."""
        return self.blocks.arrived(batch)


@dataclass(frozen=True, slots=True)
class Unseal(OfBlocks):
    """The job `unseal`."""

    types: tuple[EventType, ...]
    keys: KeyFiles
    #: the policy that decides whose signatures count; without one, none do
    judge: SignerPolicy | None = None
    #: whether blocks of all types must be signed
    verify: bool = False
    name: str = "unseal"
    parts: tuple[str, ...] = (EVENTS, SEALED, QUARANTINE, TAKEN)

    def _reading(self, blocks: DataFrame, senders: tuple[str, ...] | None = None) -> BlockReader:
        reading = BlockReader.of(self.keys, self.types, sealed_columns(blocks), senders)
        return reading.verified(blocks, self.judge, all_types=self.verify)

    def planned(self, events: DataFrame) -> tuple[DataFrame, ...]:
        """Return the frames that would be computed."""
        return (self._reading(events).events(events),)

    def step(self, events: DataFrame, batch: int, output: Output) -> Said:
        """Write the events of blocks that open, and the other blocks as they are. Raises `FailedError`.

        Its code is `pipeline.lost`, when the keys were changed meanwhile, say.
        """
        found, spark = count_blocks(events), output.spark
        reading = self._reading(events, found.senders)
        parted = part(events, found.copies, taken_before(spark, output.path, batch, found))
        opened = reading.events_of(parted)
        output.write(opened, EVENTS, batch)
        good = spark.read.schema(opened.schema).parquet(output.part(EVENTS, batch)).count()
        whole = found.rows == good and not found.uncounted
        # Blocks are opened once, unless some of them do not open.
        kept = _Kept() if whole else self._keep(reading.failures_of(parted), batch, output)
        counts = {"read": found.rows, "events": good, "sealed": kept.sealed, "quarantined": kept.quarantined}
        check_sum(found.rows, {name: counts[name] for name in ("events", "sealed", "quarantined")})
        if whole:
            none = spark.createDataFrame([], StructType([*events.schema, StructField(REASON, StringType())]))
            for name in (SEALED, QUARANTINE):
                _write(none, output, name, batch)
        write_taken(events, kept.blocks, output, batch)
        parted.forget()
        return {
            "counts": {**counts, "blocks": found.blocks},
            "reasons": dict(kept.reasons),
            ATTRIBUTES: [name for name in events.columns if name not in HEAD],
            CLOSED: list(closed(self.types, self.keys.read(), sealed_columns(events))),
            TAKEN: said_taken(found),
        }

    def rows(self, output: Output, batch: int, said: Said) -> SinkRows:  # noqa: ARG002  # as all jobs
        """Return the events of the blocks that opened."""
        return event_rows(output, batch, self.types)

    @staticmethod
    def _keep(failed: DataFrame, batch: int, output: Output) -> "_Kept":
        """Write the blocks that did not open, and say how many events they say they have."""
        # They are sealed, and go two ways.
        failed = failed.persist()
        waits = quoted(REASON).isin(*WAITING)
        _write(failed.where(waits), output, SEALED, batch)
        _write(failed.where(~waits), output, QUARANTINE, batch)
        failed.unpersist()
        parts = [
            output.spark.read.schema(failed.schema).parquet(output.part(name, batch)) for name in (SEALED, QUARANTINE)
        ]
        sealed, quarantined = (
            part.groupBy(quoted(REASON)).agg(F.count("*"), F.coalesce(F.sum(quoted(ROWS)), F.lit(0))).collect()
            for part in parts
        )
        return _Kept(
            sum(int(row[2]) for row in sealed),
            sum(int(row[2]) for row in quarantined),
            {str(row[0]): int(row[1]) for row in (*sealed, *quarantined)},
            reduce(DataFrame.union, parts),
        )


class _Kept(NamedTuple):
    """The part of a batch that was kept without being opened: events, blocks by reason, and the blocks."""

    sealed: int = 0
    quarantined: int = 0
    reasons: Mapping[str, int] = MappingProxyType({})
    blocks: DataFrame | None = None


@dataclass(frozen=True, slots=True)
class Compact(OfBlocks):
    """The job `compact`."""

    compacting: Compacting
    name: str = "compact"
    parts: tuple[str, ...] = (SEALED,)

    def planned(self, events: DataFrame) -> tuple[DataFrame, ...]:
        """Return the frames that would be computed."""
        return (self.compacting.blocks(events),)

    def step(self, events: DataFrame, batch: int, output: Output) -> Said:
        """Write the new blocks. Raises `FailedError` (`pipeline.lost`)."""
        found = count_blocks(events)
        before, rows = found.blocks, found.rows
        # Each task merges its own blocks, so there must not be more tasks than merged blocks.
        tasks = max(1, -(-rows // self.compacting.rows))
        # Copies are not merged: afterwards a reader could not recognise them.
        parted = part(events, found.copies, None)
        merged = self.compacting.blocks(parted.alone.coalesce(tasks))
        left = [] if parted.suspect is None else [parted.suspect.drop(AGAIN)]
        _write(reduce(DataFrame.unionByName, left, merged), output, SEALED, batch)
        parted.forget()
        after, kept = _counted(read_part(output.spark, output.path, SEALED, [batch], events.schema))
        check_sum(rows, {"sealed": kept})
        counts = {"read": rows, "sealed": kept, "blocks read": before, "blocks": after}
        attributes = [name for name in events.columns if name not in HEAD]
        return {"counts": counts, ATTRIBUTES: attributes}

    def rows(self, output: Output, batch: int, said: Said) -> SinkRows:
        """Return the merged blocks, as rows of a sealed log."""
        return _block_rows(output, batch, said)


def _block_rows(output: Output, batch: int, said: Said) -> SinkRows:
    columns = names_said([said], ATTRIBUTES)
    return SinkRows(read_part(output.spark, output.path, SEALED, [batch], sealed_schema(columns)))


def _good(tagged: DataFrame) -> DataFrame:
    return tagged.where(quoted(REASON).isNull()).drop(REASON)


def _bad(tagged: DataFrame) -> DataFrame:
    return tagged.where(quoted(REASON).isNotNull())


def _write(frame: DataFrame, output: Output, part: str, batch: int) -> None:
    frame.write.mode("overwrite").options(**FILES).parquet(output.part(part, batch))


def _counted(blocks: DataFrame) -> tuple[int, int]:
    """Return how many blocks there are, and how many events they say they have."""
    found = blocks.agg(F.count("*"), F.coalesce(F.sum(quoted(ROWS)), F.lit(0))).collect()[0]
    return int(found[0]), int(found[1])


def _set_aside(output: Output, batch: int) -> dict[str, int]:
    """Return how many events of a batch are in quarantine, by reason."""
    reasons = output.spark.read.schema(StructType([StructField(REASON, StringType())]))
    frame = reasons.parquet(output.part(QUARANTINE, batch))
    return {str(row[0]): int(row[1]) for row in frame.groupBy(quoted(REASON)).count().collect()}

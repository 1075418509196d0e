"""The jobs `seal`, `unseal` and `compact`: events become a sealed log, and a sealed log becomes events.

    seal      events            ->  sealed/  quarantine/
    unseal    a sealed log      ->  events/  sealed/  quarantine/
    compact   a sealed log      ->  sealed/

`sealed/` of `unseal` are the blocks that wait for a key or a type: its output is a sealed log again. A commit names the
attributes that the log has columns for.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import StringType, StructField, StructType

from penstock.model.types import EventType
from penstock.pipeline.frames import quoted
from penstock.pipeline.jobs import Output, Said, Streaming, check_sum, complete, follow, named, read_part
from penstock.pipeline.jobs_enforce import OfEvents
from penstock.pipeline.jobs_ingest import EVENTS, QUARANTINE
from penstock.pipeline.sealed_compacting import Compacting
from penstock.pipeline.sealed_log import (
    ATTRIBUTES,
    HEAD,
    ROWS,
    SEALED,
    SENDERS,
    KeyFiles,
    log_senders,
    read_log,
    sealed_schema,
)
from penstock.pipeline.sealed_reading import WAITING, Reading, sealed_columns
from penstock.pipeline.sealed_writing import Writing
from penstock.pipeline.tagging import REASON

_PLAIN: Final = {"parquet.enable.dictionary": "false"}
"""No two sealed columns are equal: looking for it takes time and memory."""


@dataclass(frozen=True, slots=True)
class Seal(OfEvents):
    """The job `seal`. Events that cannot be sealed go to quarantine, as they are."""

    writing: Writing
    clock: Callable[[], datetime]
    name: str = "seal"
    parts: tuple[str, ...] = (SEALED, QUARANTINE)

    def planned(self, events: DataFrame) -> tuple[DataFrame, ...]:
        """Return what would be computed."""
        tagged = self.writing.tagged(events)
        return (self.writing.blocks(_good(tagged)), _bad(tagged))

    def step(self, events: DataFrame, batch: int, output: Output) -> Said:
        """Write blocks, and what cannot be sealed. Raises `FailedError` (`pipeline.lost`)."""
        writing = replace(self.writing, at=self.clock())
        tagged = writing.tagged(events)
        _write(writing.blocks(_good(tagged)), output, SEALED, batch)
        output.write(_bad(tagged), QUARANTINE, batch)
        blocks, sealed = _counted(read_part(output.spark, output.path, SEALED, [batch], sealed_schema(writing.columns)))
        schema = StructType([StructField(REASON, StringType())])
        bad = _by_reason(output.spark.read.schema(schema).parquet(output.part(QUARANTINE, batch)))
        counts = {"read": events.count(), "sealed": sealed, "quarantined": sum(bad.values())}
        check_sum(counts["read"], {name: counts[name] for name in ("sealed", "quarantined")})
        said: Said = {ATTRIBUTES: list(writing.columns), SENDERS: [str(writing.sender)]}
        return {"counts": {**counts, "blocks": blocks}, "reasons": bad, **said}


class Blocks(Protocol):
    """Where sealed blocks come from."""

    @property
    def name(self) -> str:
        """What it is, in words that an output remembers."""

    @property
    def files(self) -> str | None:
        """Where the files stand, where they are files."""

    def senders(self, spark: SparkSession) -> tuple[str, ...]:
        """Return who has sealed them, as far as that is known."""

    def all(self, spark: SparkSession) -> DataFrame:
        """Return all blocks, as rows of a sealed log."""

    def arriving(self, spark: SparkSession, streaming: Streaming) -> DataFrame:
        """Return a stream of what arrives."""

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

    def senders(self, spark: SparkSession) -> tuple[str, ...]:
        """Return who has sealed blocks, as far as the commits say."""
        return log_senders(spark, self.path)

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
class OfBlocks:
    """What the jobs have in common that read sealed blocks."""

    blocks: Blocks

    @property
    def source(self) -> str:
        """What is read."""
        return self.blocks.name

    @property
    def files(self) -> str | None:
        """Where the blocks stand."""
        return self.blocks.files

    def all(self, spark: SparkSession) -> DataFrame:
        """Return all blocks."""
        return self.blocks.all(spark)

    def arriving(self, spark: SparkSession, streaming: Streaming) -> DataFrame:
        """Return a stream of what arrives."""
        return self.blocks.arriving(spark, streaming)

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return the blocks that have arrived."""
        return self.blocks.arrived(batch)


@dataclass(frozen=True, slots=True)
class Unseal(OfBlocks):
    """The job `unseal`."""

    types: tuple[EventType, ...]
    keys: KeyFiles
    name: str = "unseal"
    parts: tuple[str, ...] = (EVENTS, SEALED, QUARANTINE)

    def _reading(self, blocks: DataFrame) -> Reading:
        senders = self.blocks.senders(blocks.sparkSession)
        return Reading.of(self.keys, self.types, sealed_columns(blocks), senders)

    def planned(self, events: DataFrame) -> tuple[DataFrame, ...]:
        """Return what would be computed."""
        return (self._reading(events).events(events),)

    def step(self, events: DataFrame, batch: int, output: Output) -> Said:
        """Write the events of blocks that open, and the other blocks as they are. Raises `FailedError`.

        Its code is `pipeline.lost`, when the keys were changed meanwhile, say.
        """
        reading, spark = self._reading(events), output.spark
        opened = reading.events(events)
        output.write(opened, EVENTS, batch)
        good = spark.read.schema(opened.schema).parquet(output.part(EVENTS, batch)).count()
        blocks, rows = _counted(events)
        none = spark.createDataFrame([], StructType([*events.schema, StructField(REASON, StringType())]))
        # Blocks are opened once, unless some of them do not open.
        failed = reading.failures(events) if rows != good or _uncounted(events) else none
        waits = quoted(REASON).isin(*WAITING)
        _write(failed.where(waits), output, SEALED, batch)
        _write(failed.where(~waits), output, QUARANTINE, batch)
        kept = {part: spark.read.schema(failed.schema).parquet(output.part(part, batch)) for part in self.parts[1:]}
        counts = {"read": rows, "events": good}
        counts |= {"sealed": _counted(kept[SEALED])[1], "quarantined": _counted(kept[QUARANTINE])[1]}
        check_sum(rows, {part: counts[part] for part in ("events", "sealed", "quarantined")})
        reasons = {**_by_reason(kept[SEALED]), **_by_reason(kept[QUARANTINE])}
        return {
            "counts": {**counts, "blocks": blocks},
            "reasons": reasons,
            ATTRIBUTES: [name for name in events.columns if name not in HEAD],
            SENDERS: list(reading.senders),
        }


@dataclass(frozen=True, slots=True)
class Compact(OfBlocks):
    """The job `compact`."""

    compacting: Compacting
    name: str = "compact"
    parts: tuple[str, ...] = (SEALED,)

    def planned(self, events: DataFrame) -> tuple[DataFrame, ...]:
        """Return what would be computed."""
        return (self.compacting.blocks(events),)

    def step(self, events: DataFrame, batch: int, output: Output) -> Said:
        """Write the new blocks. Raises `FailedError` (`pipeline.lost`)."""
        before, rows = _counted(events)
        # Tasks put together what they have: there must not be more of them than there will be blocks.
        tasks = max(1, -(-rows // self.compacting.rows))
        _write(self.compacting.blocks(events.coalesce(tasks)), output, SEALED, batch)
        after, kept = _counted(read_part(output.spark, output.path, SEALED, [batch], events.schema))
        check_sum(rows, {"sealed": kept})
        counts = {"read": rows, "sealed": kept, "blocks read": before, "blocks": after}
        attributes = [name for name in events.columns if name not in HEAD]
        return {"counts": counts, ATTRIBUTES: attributes, SENDERS: list(self.blocks.senders(output.spark))}


def _good(tagged: DataFrame) -> DataFrame:
    return tagged.where(quoted(REASON).isNull()).drop(REASON)


def _bad(tagged: DataFrame) -> DataFrame:
    return tagged.where(quoted(REASON).isNotNull())


def _write(frame: DataFrame, output: Output, part: str, batch: int) -> None:
    frame.write.mode("overwrite").options(**_PLAIN).parquet(output.part(part, batch))


def _counted(blocks: DataFrame) -> tuple[int, int]:
    """Return how many blocks there are, and how many events they say they have."""
    found = blocks.agg(F.count("*"), F.coalesce(F.sum(quoted(ROWS)), F.lit(0))).collect()[0]
    return int(found[0]), int(found[1])


def _uncounted(blocks: DataFrame) -> bool:
    """Say whether there are rows that count no event, and so are no blocks."""
    return not blocks.where(F.coalesce(quoted(ROWS), F.lit(0)) <= 0).isEmpty()


def _by_reason(frame: DataFrame) -> dict[str, int]:
    return {str(row[0]): int(row[1]) for row in frame.groupBy(quoted(REASON)).count().collect()}

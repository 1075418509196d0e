"""The job `ingest`: records of files, or of a stream (`jetstream.messages`), become events or go to quarantine."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from penstock.errors import FailedError, MalformedError
from penstock.model.types import EventType
from penstock.pipeline.commits import EVENTS as EVENTS
from penstock.pipeline.commits import QUARANTINED as QUARANTINE
from penstock.pipeline.frames import EARLIEST, ID, SOURCE, TIME, quoted, transit_schema
from penstock.pipeline.ingest.event_frames import TYPE
from penstock.pipeline.ingest.formats import Seen
from penstock.pipeline.ingest.ingest import (
    Ingested,
    StoredRecords,
    files_lacking,
    ingest_envelopes,
    ingest_table,
    once,
    read_csv,
    read_lines,
    read_parquet,
    run_ingest,
    store_ingest,
)
from penstock.pipeline.ingest.mapping import BoundMapping, MappedFormat
from penstock.pipeline.ingest.records import FILE, ORIGINAL, POSITION, ROW
from penstock.pipeline.outputs import Output, Reader, Said, Streaming, arriving, commits, read_part, reading
from penstock.pipeline.tables.addresses import RowSource, SinkRows
from penstock.pipeline.tables.files import ParquetFolder
from penstock.trust.event_types import VerifiedType

LATEST: Final = "latest"
"""The key in a commit for the time of its latest event, in microseconds since 1970, if events are compared."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COMPARED: Final = StructType(
    [StructField(SOURCE, StringType()), StructField(ID, StringType()), StructField(TIME, TimestampType())]
)


class RecordSource(Protocol):
    """A source of records, and how to read it."""

    @property
    def name(self) -> str:
        """A description of the input, which the output stores."""

    @property
    def files(self) -> str | None:
        """The path of the files, if the input is files."""

    @property
    def event_types(self) -> tuple[EventType, ...]:
        """The versions that its events can be of."""

    def read(self, spark: SparkSession, streaming: Streaming | None) -> DataFrame:
        """Return the records: those that are there, or all to come."""

    def ingest(self, records: DataFrame, at: datetime) -> Ingested:
        """Return the events and the quarantine."""


def _files(spark: SparkSession, streaming: Streaming | None) -> Reader:
    return spark.read if streaming is None else spark.readStream.options(**arriving(streaming))


@dataclass(frozen=True, slots=True)
class Envelopes:
    """CloudEvents in files of JSON lines."""

    path: str
    types: tuple[VerifiedType, ...]

    @property
    def name(self) -> str:
        """The path."""
        return self.path

    @property
    def files(self) -> str:
        """The path."""
        return self.path

    @property
    def event_types(self) -> tuple[EventType, ...]:
        """The versions of the types."""
        return tuple(verified.event_type for verified in self.types)

    def read(self, spark: SparkSession, streaming: Streaming | None) -> DataFrame:
        """Return the lines."""
        return read_lines(_files(spark, streaming), self.path)

    def ingest(self, records: DataFrame, at: datetime) -> Ingested:
        """Return the events and the quarantine."""
        return ingest_envelopes(records, self.types, at)


@dataclass(frozen=True, slots=True)
class MappedTables:
    """Rows of CSV or Parquet files, by a mapping."""

    path: str
    bound: BoundMapping
    seen: Seen = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The path."""
        return self.path

    @property
    def files(self) -> str:
        """The path."""
        return self.path

    @property
    def event_types(self) -> tuple[EventType, ...]:
        """The version that the mapping names."""
        return (self.bound.event_type,)

    def read(self, spark: SparkSession, streaming: Streaming | None) -> DataFrame:
        """Return the rows."""
        mapping, reader = self.bound.mapping, _files(spark, streaming)
        if mapping.format is MappedFormat.CSV:
            return read_csv(reader, self.path, mapping.csv)
        # Of files that differ in their columns, those which lack some are put aside with all that they have.
        merge = {"mergeSchema": str(bool(self._lacking(spark))).lower()}
        if streaming is not None:
            # A stream of Parquet files needs a schema: that of the existing files.
            reader = reader.schema(reading(spark).options(**merge).parquet(self.path).schema)
        return read_parquet(reader.options(**merge), self.path)

    def ingest(self, records: DataFrame, at: datetime) -> Ingested:
        """Return the events and the quarantine. Raises `LimitError` (`ingest.files`)."""
        return ingest_table(records, self.bound, at, self._lacking(records.sparkSession))

    def _lacking(self, spark: SparkSession) -> tuple[str, ...]:
        """Return the Parquet files that lack a column."""
        if self.bound.mapping.format is MappedFormat.CSV:
            return ()
        return files_lacking(spark, self.path, self.bound.columns, self.seen)


@dataclass(frozen=True, slots=True)
class MappedRows:
    """Rows of a table, by a mapping of Parquet. In quarantine they have the name of the table, and no number."""

    table: RowSource
    bound: BoundMapping

    @property
    def name(self) -> str:
        """The address."""
        return self.table.name

    @property
    def files(self) -> str | None:
        """The path of the files, if Spark can list them."""
        return self.table.files

    @property
    def event_types(self) -> tuple[EventType, ...]:
        """The version that the mapping names."""
        return (self.bound.event_type,)

    def read(self, spark: SparkSession, streaming: Streaming | None) -> DataFrame:
        """Return the rows, or what names them in a stream. Raises as the table."""
        return self.table.batch(spark) if streaming is None else self.table.stream(spark, streaming)

    def ingest(self, records: DataFrame, at: datetime) -> Ingested:
        """Return the events and the quarantine. Raises as the table, and as `ingest_table`."""
        rows = self.table.arrived(records)
        row = F.struct(*map(quoted, rows.columns))
        made = rows.select(
            F.lit(self.name).alias(FILE),
            F.lit(None).cast("bigint").alias(POSITION),
            F.to_json(row, {"timeZone": "UTC", "ignoreNullFields": "false"}).cast("binary").alias(ORIGINAL),
            row.alias(ROW),
        )
        return ingest_table(made, self.bound, at)


@dataclass(frozen=True, slots=True)
class TableRecords:
    """CloudEvents that a source has as records, such as messages."""

    table: RowSource
    types: tuple[VerifiedType, ...]

    @property
    def name(self) -> str:
        """The address."""
        return self.table.name

    @property
    def files(self) -> str | None:
        """The path of the files, if Spark can list them."""
        return self.table.files

    @property
    def event_types(self) -> tuple[EventType, ...]:
        """The versions of the types."""
        return tuple(verified.event_type for verified in self.types)

    def read(self, spark: SparkSession, streaming: Streaming | None) -> DataFrame:
        """Return the records. Raises as the source."""
        return self.table.batch(spark) if streaming is None else self.table.stream(spark, streaming)

    def ingest(self, records: DataFrame, at: datetime) -> Ingested:
        """Return the events and the quarantine."""
        return ingest_envelopes(self.table.arrived(records), self.types, at)


def table_records(table: RowSource, bound: BoundMapping | None, types: tuple[VerifiedType, ...]) -> RecordSource:
    """Return the records of a table. Raises `MalformedError` (`tables.mapping`) if the mapping does not go with it."""
    if table.records and bound is None:
        return TableRecords(table, types)
    if table.records or bound is None or bound.mapping.format is MappedFormat.CSV:
        why = "has CloudEvents, which need no mapping" if table.records else "has columns, which a mapping must name"
        hint = "give --policy or --type-file" if table.records else 'give --mapping, with `format = "parquet"`'
        raise MalformedError("tables.mapping", f"`{table.name}` {why}", hint=hint)
    # Of Parquet files, each can be asked for its own columns.
    return MappedTables(table.path, bound) if isinstance(table, ParquetFolder) else MappedRows(table, bound)


@dataclass(frozen=True, slots=True)
class Ingest:
    """The job. The clock says when a record was ingested, which the quarantine notes."""

    records: RecordSource
    clock: Callable[[], datetime]
    #: compare events with each other, and in a stream with those of earlier batches within this time
    dedupe: timedelta | None = None
    name: str = "ingest"
    parts: tuple[str, ...] = (EVENTS, QUARANTINE)

    @property
    def source(self) -> str:
        """The name of the input."""
        return self.records.name

    @property
    def files(self) -> str | None:
        """The path of the files, if the input is files."""
        return self.records.files

    def planned(self, events: DataFrame) -> tuple[DataFrame, ...]:
        """Return the frames that would be computed."""
        return (self.records.ingest(events, self.clock()).tagged,)

    def all(self, spark: SparkSession) -> DataFrame:
        """Return all records."""
        return self.records.read(spark, None)

    def arriving(self, spark: SparkSession, streaming: Streaming) -> DataFrame:
        """Return the records of files, or messages, as they arrive. Raises `FailedError` (`pipeline.no-input`)."""
        if self.files is not None and Path(self.files).is_file():
            raise FailedError(
                "pipeline.no-input",
                f"`{self.files}` is one file, and a stream reads the files that arrive in a folder",
                hint="pass the folder, or read the file without --stream",
            )
        return self.records.read(spark, streaming)

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return the records as they are."""
        return batch

    def step(self, events: DataFrame, batch: int, output: Output) -> Said:
        """Write both parts, and count the stored rows. Raises `FailedError` (`ingest.lost`)."""
        ingested = self.records.ingest(events, self.clock())
        if self.dedupe is not None:
            ingested = once_in(ingested, batch, output, self.dedupe)

        def store(part: str) -> Callable[..., DataFrame]:
            def write(frame: DataFrame, *more: DataFrame) -> DataFrame:
                output.write(frame, part, batch, *more)
                return read_part(output.spark, output.path, part, [batch], frame.schema)

            return write

        keep, aside = store(EVENTS), store(QUARANTINE)
        if self.files is None or ingested.shared is not None:
            # Messages may be gone when they are read a second time, and events of many types are stored in parts.
            tally = run_ingest(ingested, lambda kept: StoredRecords(keep(*kept.parts()), aside(kept.bad)))
        else:
            tally = store_ingest(ingested, keep, aside)
        counts = {"read": tally.read, "events": tally.good, "quarantined": tally.bad}
        said: Said = {"counts": counts, "reasons": dict(tally.reasons)}
        if self.dedupe is not None:
            said[LATEST] = latest_event(output, batch)
        return said

    def rows(self, output: Output, batch: int, said: Said) -> SinkRows:  # noqa: ARG002  # as all jobs
        """Return the events."""
        return event_rows(output, batch, self.records.event_types)


def once_in(ingested: Ingested, batch: int, output: Output, within: timedelta) -> Ingested:
    """Compare events with each other and with those that an output has of earlier batches, within a time.

    What is compared is what is stored and complete: a batch that is written again finds the same as before.
    """
    before = {number: said for number, said in commits(output.spark, output.path).items() if number < batch}
    if not before:
        return once(ingested)
    # Batches without a time have no event, or are from before events were compared.
    latest = {number: time for number, said in before.items() if isinstance(time := said.get(LATEST), int)}
    earlier, since = list(before), EARLIEST
    if latest:
        span = within // timedelta(microseconds=1)
        since = max(max(latest.values()) - span, EARLIEST)
        # An event may come again with another time, so earlier ones are compared for as long again.
        earlier = [number for number in before if latest.get(number, since) >= since - span]
    stored = read_part(output.spark, output.path, EVENTS, earlier, _COMPARED)
    return once(ingested, stored, _EPOCH + timedelta(microseconds=since))


def latest_event(output: Output, batch: int) -> int | None:
    """Return the time of the latest event that an output has of a batch, for `LATEST` in its commit."""
    stored = read_part(output.spark, output.path, EVENTS, [batch], _COMPARED)
    (row,) = stored.agg(F.max(F.unix_micros(quoted(TIME)))).collect()
    return None if row[0] is None else int(row[0])


def event_rows(output: Output, batch: int, types: tuple[EventType, ...]) -> SinkRows:
    """Return the events of a batch of an output, for tables."""
    return SinkRows(read_part(output.spark, output.path, EVENTS, [batch], stored_schema(types)), types)


def stored_schema(types: Iterable[EventType]) -> StructType:
    """Return the columns of events as they are stored."""
    return StructType([StructField(TYPE, StringType()), *transit_schema(types)])

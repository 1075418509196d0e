"""Read Kafka topics: `penstock.kafka`, a Python Data Source for batches and streams, and the source of jobs.

    partition  integer    the partition
    offset     bigint     the offset in it; both name a record for as long as the topic lives
    time       timestamp  Kafka's time of the record
    key        binary
    value      binary
    event      binary     the CloudEvent in structured JSON

A record in structured mode is the event itself. In binary mode its headers `ce_NAME` are the attributes, and its value
is the data in JSON: the event is put together. Aborted records of transactions are not read. An offset of a stream
holds the next offset of each partition, so a batch that is read again has the same records.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from confluent_kafka import Message, TopicPartition
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import FailedError
from penstock.pipeline.ingest.records import FILE, ORIGINAL, POSITION
from penstock.pipeline.kafka.link import (
    LATEST,
    KafkaOptions,
    bounds,
    consumer,
    headers_of,
    parse_options,
    partitions_of,
    positions,
    records,
)
from penstock.pipeline.outputs import Streaming

NAME: Final = "penstock.kafka"
SCHEMA: Final = StructType(
    [
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("time", TimestampType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("event", BinaryType()),
    ]
)
_CHUNK: Final = 5_000
_STRUCTURED: Final = b"application/cloudevents"


def event_of(value: bytes, headers: Mapping[str, bytes]) -> bytes:
    """Return a record's event in structured JSON; the value as it is if the record is not in binary mode.

    What is not a CloudEvent is not repaired here: ingest puts it into quarantine.

    >>> event_of(b'{"a": 1}', {"ce_specversion": b"1.0", "ce_id": b"7"})
    b'{"specversion": "1.0", "id": "7", "data": {"a": 1}}'
    """
    if "ce_specversion" not in headers or headers.get("content-type", b"").lower().startswith(_STRUCTURED):
        return value
    try:
        json.loads(value)  # or the value could end the event and begin another
        attributes = {name[3:]: text.decode() for name, text in headers.items() if name.startswith("ce_")}
        value.decode()
    except (ValueError, RecursionError):
        return value
    if "data" in attributes:
        return value
    return json.dumps(attributes, ensure_ascii=False).encode()[:-1] + b', "data": ' + value + b"}"


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """Offsets of one partition, from the first to before the last."""

    partition: int
    first: int
    end: int


def to_arrow(messages: Sequence[Message]) -> pa.RecordBatch:
    """Return records as one batch."""
    texts = [message.value() or b"" for message in messages]
    columns: dict[str, list[Any]] = {
        "partition": [message.partition() for message in messages],
        "offset": [message.offset() for message in messages],
        "time": [message.timestamp()[1] * 1000 for message in messages],
        "key": [message.key() for message in messages],
        "value": texts,
        "event": [event_of(value, headers_of(message)) for value, message in zip(texts, messages, strict=True)],
    }
    schema = to_arrow_schema(SCHEMA, timezone="UTC")
    return pa.RecordBatch.from_arrays([pa.array(columns[one.name], type=one.type) for one in schema], schema=schema)


def read_range(options: KafkaOptions, span: OffsetRange) -> Iterator[pa.RecordBatch]:
    """Yield the committed records of a range. Raises as `failure`."""
    client = consumer(options, enable_partition_eof=True, auto_offset_reset="error")
    try:
        client.assign([TopicPartition(options.topic, span.partition, span.first)])
        found = records(client, options, span.end)
        while chunk := list(islice(found, _CHUNK)):
            yield to_arrow(chunk)
    finally:
        client.close()


def _ranges(options: KafkaOptions, first: Mapping[int, int], end: Mapping[int, int]) -> list[OffsetRange]:
    """Return what tasks read. Raises `FailedError` (`kafka.data-lost`) if some of it was deleted."""
    client = consumer(options)
    made = []
    try:
        for number, last in end.items():
            begin = first.get(number, 0)
            low, _ = bounds(client, options, number) if begin < last else (begin, last)
            if begin < low:
                if options.lost == "fail":
                    raise FailedError(
                        "kafka.data-lost",
                        f"`{options.name}` has no longer offsets {begin} to {min(low, last) - 1} of partition {number}",
                        hint="they expired or were deleted; use `lost=skip` to go on without them",
                    )
                begin = low
            if begin < last:
                made.append(OffsetRange(number, begin, last))
    finally:
        client.close()
    return made


def _options(given: Mapping[str, str]) -> KafkaOptions:
    wanted = ("config", "start", "end", "batch", "lost")
    return parse_options(
        given.get("servers", ""), given.get("topic", ""), {name: given[name] for name in wanted if given.get(name)}
    )


class KafkaDataSource(DataSource):
    """The source; docs/how-to/use-kafka.md has its options."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # it has one schema
        """Return the reader of a bounded range. Raises `MalformedError` (`kafka.bad-option`)."""
        return KafkaReader(_options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802  # Spark's name
        """Return the reader of a stream. Raises `MalformedError` (`kafka.bad-option`)."""
        return KafkaStreamReader(_options(self.options))


class KafkaReader(DataSourceReader):
    """Reads from option `start` to before option `end`, as they stand when the query is planned."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges that tasks read. Raises as `positions`, and `kafka.data-lost`."""
        first, end = span_of(self._options)
        return _ranges(self._options, first, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range."""
        return read_range(self._options, partition) if isinstance(partition, OffsetRange) else iter(())


def span_of(options: KafkaOptions) -> tuple[dict[int, int], dict[int, int]]:
    """Return the first offsets, and those after the last. Raises as `positions`."""
    client = consumer(options)
    try:
        return positions(client, options, options.start), positions(client, options, options.end)
    finally:
        client.close()


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a topic after the offsets that a checkpoint holds. Partitions that are added later are read from 0."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._target: dict[int, int] | None = None

    def _ends(self, where: str) -> dict[int, int]:
        client = consumer(self._options)
        try:
            return positions(client, self._options, where)
        finally:
            client.close()

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        """Return the offsets at which a new query begins."""
        return _offset(self._ends(self._options.start))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return the limit that option `batch` sets."""
        return ReadMaxRows(self._options.batch) if self._options.batch else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Store the current end of the topic."""
        self._target = self._ends(LATEST)

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        """Return the end of the topic, for the progress that Spark reports."""
        return _offset(self._ends(LATEST))

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802  # Spark's name
        """Return the end of the next batch. Raises `kafka.data-lost` for a topic that was created again."""
        first = {int(number): offset for number, offset in start.items()}
        ends = self._ends(LATEST) if self._target is None else self._target
        for number, offset in first.items():
            if ends.get(number, 0) < offset and self._target is None:
                raise FailedError(
                    "kafka.data-lost",
                    f"partition {number} of `{self._options.name}` ends before the offset {offset} that was read",
                    hint="the topic was deleted and created again: start with a new output",
                )
        if isinstance(limit, ReadMaxRows):
            # Each partition gets its share, and what one does not need is for those after it.
            left, made = limit.max_rows, {}
            for behind, (number, end) in enumerate(sorted(ends.items())):
                begin = first.get(number, 0)
                share = -(-left // (len(ends) - behind))
                made[number] = max(begin, min(end, begin + share))
                left = max(0, left - (made[number] - begin))
            ends = made
        return _offset({number: max(end, first.get(number, 0)) for number, end in ends.items()})

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the ranges that tasks read. Raises `kafka.data-lost`."""
        return _ranges(self._options, {int(n): o for n, o in start.items()}, {int(n): o for n, o in end.items()})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range."""
        return read_range(self._options, partition) if isinstance(partition, OffsetRange) else iter(())

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: how long records stay is the topic's own business, and a batch may be read again."""


def _offset(of_partitions: Mapping[int, int]) -> dict[str, int]:
    return {str(number): offset for number, offset in sorted(of_partitions.items())}


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """A Kafka topic whose records are CloudEvents, as a source of jobs."""

    options: KafkaOptions
    records: bool = True

    @property
    def name(self) -> str:
        """The topic, without the addresses of servers."""
        return self.options.name

    @property
    def files(self) -> None:
        """None: records stand in no files."""
        return

    def batch(self, spark: SparkSession) -> DataFrame:
        """Return the records that there are now. Raises as `span_of`."""
        first, end = span_of(self.options)
        pinned = replace(self.options, start=_said(first), end=_said(end))
        return self._frame(spark.read, spark, pinned)

    def stream(self, spark: SparkSession, streaming: Streaming) -> DataFrame:  # noqa: ARG002  # option `batch` bounds it
        """Return records as they arrive. Raises as `partitions_of`."""
        client = consumer(self.options)
        try:
            partitions_of(client, self.options)
        finally:
            client.close()
        return self._frame(spark.readStream, spark, self.options)

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return the batch itself."""
        return batch

    def _frame(self, reader: Any, spark: SparkSession, options: KafkaOptions) -> DataFrame:
        register_kafka(spark)
        records: DataFrame = reader.format(NAME).options(**options.as_options()).load()
        place = F.concat(F.lit(f"{self.name}/"), F.col("partition").cast(StringType()))
        return records.select(place.alias(FILE), F.col("offset").alias(POSITION), F.col("event").alias(ORIGINAL))


def _said(offsets: Mapping[int, int]) -> str:
    return ",".join(f"{number}:{offset}" for number, offset in sorted(offsets.items()))


def register_kafka(spark: SparkSession) -> None:
    """Make `penstock.kafka` known to a session, which may know it already."""
    try:
        spark.dataSource.register(KafkaDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise

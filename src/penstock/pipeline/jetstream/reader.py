"""The readers of `penstock.jetstream`: a bounded range of sequences, or a stream with sequences as offsets.

    offset    {"next": sequence that has not been read, "created": when the stream was made}

An offset says which stream it is of by the time that was made: a stream that was deleted and made again under the same
name begins again at 1, and its messages are not those that an old offset means.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType, TimestampType

from penstock.errors import FailedError
from penstock.pipeline.jetstream.link import JetStreamLink, StreamState, stream_state
from penstock.pipeline.jetstream.options import Options
from penstock.pipeline.jetstream.ranges import RangeReader, SequenceGap, StreamMessage

_FIELDS: Final = {
    "subject": StructField("subject", StringType()),
    "sequence": StructField("sequence", LongType()),
    "time": StructField("time", TimestampType()),
    "id": StructField("id", StringType()),
    "headers": StructField("headers", MapType(StringType(), StringType())),
    "payload": StructField("payload", BinaryType()),
}

_log = logging.getLogger(__name__)


def schema_of(columns: Sequence[str]) -> StructType:
    """Return the schema of a frame with these columns."""
    return StructType([_FIELDS[name] for name in columns])


@dataclass
class SequenceRange(InputPartition):
    """The sequences that one task reads, both ends included."""

    first: int
    last: int


def split_range(first: int, last: int, pieces: int) -> list[SequenceRange]:
    """Split a range of sequences into at most so many, of nearly equal size.

    >>> split_range(1, 5, 2)
    [SequenceRange(first=1, last=2), SequenceRange(first=3, last=5)]
    """
    count = last - first + 1
    pieces = min(pieces, count)
    edges = [first + count * i // pieces for i in range(pieces + 1)] if count > 0 else []
    return [SequenceRange(a, b - 1) for a, b in pairwise(edges)]


def event_id(headers: dict[str, str]) -> str | None:
    """Return the id of an event: of the CloudEvents header, or else the id that the publisher gave the message."""
    if not headers:
        return None
    lower = {name.lower(): value for name, value in headers.items()}
    return lower.get("ce-id") or lower.get("nats-msg-id")


def to_arrow(messages: Sequence[StreamMessage], schema: StructType) -> pa.RecordBatch:
    """Return some messages as one batch."""
    target = to_arrow_schema(schema, timezone="UTC")
    values: dict[str, Any] = {}
    for name in schema.fieldNames():
        if name == "subject":
            values[name] = [m.subject for m in messages]
        elif name == "sequence":
            values[name] = [m.sequence for m in messages]
        elif name == "time":
            values[name] = [m.time // 1000 for m in messages]
        elif name == "id":
            values[name] = [event_id(m.headers) for m in messages]
        elif name == "headers":
            values[name] = [list(m.headers.items()) for m in messages]
        else:
            values[name] = [m.payload for m in messages]
    arrays = [pa.array(values[field.name], type=field.type) for field in target]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def report_loss(options: Options, lost: Sequence[SequenceGap]) -> None:
    """Raise `FailedError` (`jetstream.data-lost`) for sequences that are gone, or log them where that was asked for."""
    if not lost:
        return
    count = sum(gap.size for gap in lost)
    message = (
        f"stream `{options.stream}` no longer holds {count} of the messages to read, "
        f"between the sequences {lost[0].first} and {lost[-1].last}"
    )
    if options.fail_on_data_loss:
        raise FailedError(
            "jetstream.data-lost",
            message,
            hint="they expired or were deleted; set `failOnDataLoss` to false to go on without them",
            stream=options.stream,
            count=count,
            first=lost[0].first,
            last=lost[-1].last,
        )
    _log.warning("%s [jetstream.data-lost]", message)


def read_range(options: Options, schema: StructType, span: SequenceRange) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range as Arrow batches.

    Raises `jetstream.data-lost` and what `RangeReader.chunks` raises.
    """
    with JetStreamLink(options) as link:
        bare = "payload" not in schema.fieldNames()
        reader = RangeReader(link, span.first, span.last, subjects=options.subjects, headers_only=bare)
        for chunk in reader.chunks():
            yield to_arrow(chunk, schema)
        report_loss(options, reader.lost)


def _state(options: Options) -> StreamState:
    with JetStreamLink(options) as link:
        return link.call(lambda client: stream_state(client, options))


def _position(text: str, state: StreamState) -> int:
    """Return the sequence that `earliest`, `latest` or a number means as a start."""
    if text == "earliest":
        return max(1, state.first)
    return state.next if text == "latest" else int(text)


class JetStreamReader(DataSourceReader):
    """Reads the sequences from option `start` to option `end`, both included, that the stream holds now."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges that tasks read. Raises `jetstream.data-lost` and as `stream_state`."""
        state = _state(self._options)
        first = _position(self._options.start, state)
        last = state.last if self._options.end == "latest" else min(state.last, _position(self._options.end, state))
        if first < state.first and state.last:
            report_loss(self._options, [SequenceGap(max(1, first), min(last, state.first - 1))])
            first = state.first
        return split_range(max(1, first), last, self._options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one range."""
        if not isinstance(partition, SequenceRange):
            return iter(())  # Spark reads one empty partition where there is none
        return read_range(self._options, self._schema, partition)


class JetStreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream from the sequence after the last one that a checkpoint holds."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._target: int | None = None  # with the trigger availableNow, the sequence after the last to read

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return where a new query begins."""
        state = _state(self._options)
        return {"next": _position(self._options.start, state), "created": state.created}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return the limit that option `maxMessagesPerBatch` sets."""
        return ReadMaxRows(self._options.max_messages) if self._options.max_messages else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Remember where the stream ends now."""
        self._target = _state(self._options).next

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return where the stream ends, for the progress that Spark reports."""
        state = _state(self._options)
        return {"next": state.next, "created": state.created}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return where the next batch ends: at most the limit of sequences after its start.

        Raises `jetstream.data-lost` when the stream is not the one that the offset is of.
        """
        state = _state(self._options)
        begin = self._check(start, state)
        end = state.next if self._target is None else min(state.next, self._target)
        if isinstance(limit, ReadMaxRows):
            # Sequences that expired count for nothing: a long gap must not take a thousand empty batches.
            end = min(end, max(begin, state.first) + limit.max_rows)
        return {"next": max(begin, end), "created": state.created}

    def _check(self, start: dict[str, Any], state: StreamState) -> int:
        """Return the sequence that an offset means in the stream as it is now."""
        begin = int(start["next"])
        if start.get("created") == state.created:
            return begin
        if self._options.fail_on_data_loss:
            raise FailedError(
                "jetstream.data-lost",
                f"stream `{self._options.stream}` was deleted and created again since the checkpoint",
                hint="start with a new checkpoint, or set `failOnDataLoss` to false to read the new stream from 1",
                stream=self._options.stream,
            )
        _log.warning("stream `%s` was created again: reading it from 1 [jetstream.data-lost]", self._options.stream)
        return 1

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the ranges that tasks read. Raises `jetstream.data-lost` and as `stream_state`."""
        state = _state(self._options)
        self._check(end, state)
        first = int(start["next"]) if start.get("created") == end.get("created") else 1
        last = int(end["next"]) - 1
        if first <= last and first < state.first:
            report_loss(self._options, [SequenceGap(first, min(last, state.first - 1))])
            first = state.first
        return split_range(first, last, self._options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one range."""
        if not isinstance(partition, SequenceRange):
            return iter(())
        return read_range(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: how long messages stay is the stream's own business, and a batch may be read again."""

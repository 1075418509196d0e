"""Reading a range of stream sequences, whole: the same range gives the same messages, or says what is gone.

A range is read by a consumer of its own that acknowledges nothing and starts at a sequence, so that reading leaves no
trace and can be repeated. Messages arrive in the order of their sequences; after an interruption the rest is read by a
new consumer. What did not arrive is looked up at the stream's leader:

    deleted or expired there                  lost: counted, and reported by the caller
    held, and the consumer had no filter      its replica lags behind the leader: read again, a bounded number of times
    held, and the server filtered subjects    of another subject

The server filters only where a stream has one replica: behind a filter a lagging replica looks like other subjects.
Where it has more, everything is read and filtered here.
"""

import asyncio
import json
import logging
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from nats.aio.client import Client
from nats.aio.msg import Msg
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType, TimestampType

from penstock.errors import FailedError, PenstockError
from penstock.fabric.nats_api import TRANSIENT, text, whole
from penstock.fabric.nats_feed import read_place
from penstock.pipeline.jetstream.link import (
    Interrupted,
    JetStreamLink,
    StreamState,
    deleted_sequences,
    request,
    stream_state,
    woken,
)
from penstock.pipeline.jetstream.options import Options

_IDLE: Final = 60 * 1_000_000_000  # nanoseconds after which the server deletes a consumer that is not used
_REREADS: Final = 5


class StreamMessage(NamedTuple):
    """A message as the stream holds it; `time` is in nanoseconds since 1970."""

    subject: str
    sequence: int
    time: int
    headers: dict[str, str]
    payload: bytes


class SequenceGap(NamedTuple):
    """Sequences from `first` to `last`, both included."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """Return how many sequences that are."""
        return self.last - self.first + 1


def matches(pattern: str, subject: str) -> bool:
    """Return whether a subject matches a pattern of NATS.

    >>> matches("a.*.c", "a.b.c"), matches("a.>", "a.b.c"), matches("a.>", "a"), matches("a.*", "a.b.c")
    (True, True, False, False)
    """
    wanted, given = pattern.split("."), subject.split(".")
    for position, part in enumerate(wanted):
        if part == ">":
            return len(given) > position
        if position >= len(given) or part not in ("*", given[position]):
            return False
    return len(wanted) == len(given)


class RangeReader:
    """Reads the messages from `first` to `last`, both included; iterate over `chunks()`, then look at `lost`."""

    def __init__(
        self, link: JetStreamLink, first: int, last: int, *, subjects: Sequence[str] = (), headers_only: bool = False
    ) -> None:
        self._link = link
        self._options = link.options
        self._first, self._last = first, last
        self._subjects = tuple(subjects)
        self._headers_only = headers_only
        self._filtering = False  # whether the server filters
        self._next = first
        self._end = last
        self._consumer: tuple[Client, str, str] | None = None  # the connection it is for, its name, our inbox
        self._pending = 0
        self._got: list[StreamMessage] = []
        self._status = ""
        self._wake = asyncio.Event()
        self.lost: list[SequenceGap] = []

    def chunks(self) -> Iterator[list[StreamMessage]]:
        """Yield the messages, some at a time.

        Raises `FailedError` (`jetstream.incomplete`) when messages that the stream holds do not arrive; otherwise as
        `JetStreamLink.call` and `request`. Fills `lost` with what the stream holds no longer.
        """
        todo = [SequenceGap(self._first, self._last)]
        for attempt in range(_REREADS + 1):
            absent: list[SequenceGap] = []
            for piece in todo:
                self._next, self._end, self._consumer = piece.first, piece.last, None
                while self._next <= self._end:
                    chunk, skipped = self._link.call(self._chunk)
                    absent += skipped
                    if chunk:
                        yield chunk
            todo = self._link.call(partial(self._held, absent=absent))
            if not todo:
                return
            time.sleep(0.05 * 2**attempt)
        raise FailedError(
            "jetstream.incomplete",
            f"stream `{self._options.stream}` holds {sum(g.size for g in todo)} messages from sequence "
            f"{todo[0].first} that do not arrive",
            hint="a replica lags behind; try again",
        )

    async def _chunk(self, client: Client) -> tuple[list[StreamMessage], list[SequenceGap]]:
        """Return the next messages, filtered, and the sequences between them that did not arrive."""
        if self._consumer is None or self._consumer[0] is not client:
            await self._open(client)
        messages = await self._fetch(client) if self._pending else []
        arrived = [m for m in messages if self._next <= m.sequence <= self._end]
        absent: list[SequenceGap] = []
        for message in arrived:
            if message.sequence > self._next:
                absent.append(SequenceGap(self._next, message.sequence - 1))
            self._next = message.sequence + 1
        beyond = bool(messages) and messages[-1].sequence > self._end
        if self._next <= self._end and (beyond or not self._pending):
            absent.append(SequenceGap(self._next, self._end))
            self._next = self._end + 1
        if self._next > self._end:
            await self._close(client)
        if self._subjects:
            arrived = [m for m in arrived if any(matches(pattern, m.subject) for pattern in self._subjects)]
        return arrived, absent

    async def _open(self, client: Client) -> None:
        """Make a consumer that starts at the next sequence to read."""
        config: dict[str, Any] = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._next,
            "ack_policy": "none",
            "replay_policy": "instant",
            "inactive_threshold": _IDLE,
            "mem_storage": True,
            "num_replicas": 1,
            "headers_only": self._headers_only,
        }
        if self._subjects:
            state = await stream_state(client, self._options)
            self._filtering = state.replicas <= 1
            if self._filtering and len(self._subjects) == 1:
                config["filter_subject"] = self._subjects[0]
            elif self._filtering:
                config["filter_subjects"] = list(self._subjects)
        stream = self._options.stream
        made = await request(
            client, self._options, f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config}
        )
        self._pending = whole(made, "num_pending", default=0)
        inbox = client.new_inbox()
        # No limit on waiting messages: a chunk is not larger than requested.
        await client.subscribe(inbox, cb=self._receive, pending_msgs_limit=0, pending_bytes_limit=0)
        self._consumer = client, text(made, "name"), inbox

    async def _close(self, client: Client) -> None:
        if self._consumer is not None:
            # A failure here must not lose messages that arrived; the server deletes the consumer by itself.
            with suppress(*TRANSIENT, Interrupted, PenstockError):
                await request(client, self._options, f"CONSUMER.DELETE.{self._options.stream}.{self._consumer[1]}")
            self._consumer = None

    async def _receive(self, message: Msg) -> None:
        if message.reply:
            place = read_place(message.reply)
            if place is None or self._consumer is None or place[:2] != (self._options.stream, self._consumer[1]):
                return  # not from our consumer: junk of somebody who knows the inbox
            headers: dict[str, str] = message.headers or {}
            self._pending = place.pending
            self._got.append(StreamMessage(message.subject, place.sequence, place.time, headers, message.data))
        elif status := (message.headers or {}).get("Status"):
            self._status = status
        else:
            return
        self._wake.set()

    async def _fetch(self, client: Client) -> list[StreamMessage]:
        """Ask for one chunk and take in all of it."""
        wanted = max(1, min(self._options.fetch_size, self._pending, self._end - self._next + 1))
        size = 0 if self._headers_only else self._options.fetch_bytes
        messages = await self._ask(client, wanted, size)
        if not messages and self._status == "409":  # the next message alone is larger than the limit
            messages = await self._ask(client, 1, 0)
        if not messages and self._status in ("404", "408"):
            self._pending = 0  # the pending messages have been deleted since
        elif not messages:
            raise Interrupted(f"status {self._status}")
        return messages

    async def _ask(self, client: Client, wanted: int, size: int) -> list[StreamMessage]:
        if self._consumer is None:
            raise Interrupted("no consumer")
        self._got, self._status = [], ""
        body: dict[str, object] = {"batch": wanted, "no_wait": True}
        if size:
            body["max_bytes"] = size
        subject = f"{self._options.api}.CONSUMER.MSG.NEXT.{self._options.stream}.{self._consumer[1]}"
        await client.publish(subject, json.dumps(body).encode(), reply=self._consumer[2])
        while len(self._got) < wanted and not self._status:
            try:
                await woken(client, self._wake, self._options.timeout)
            except Interrupted:
                self._consumer = None  # a late answer must not be taken for the next one's
                raise
        return self._got

    async def _held(self, client: Client, *, absent: list[SequenceGap]) -> list[SequenceGap]:
        """Add sequences that are gone from the stream to `lost`, and return those that should have arrived."""
        if not absent:
            return []
        state = await stream_state(client, self._options)
        deleted = await deleted_sequences(client, self._options) if state.deleted else []
        held: list[SequenceGap] = []
        for gap in absent:
            gone, kept = _split(gap, state.first, state.last, deleted)
            self.lost += gone
            held += kept
        return [] if self._filtering else held


def _split(
    gap: SequenceGap, first: int, last: int, deleted: Sequence[int]
) -> tuple[list[SequenceGap], list[SequenceGap]]:
    """Split a gap into sequences that are gone from the stream and sequences that it holds."""
    gone: list[SequenceGap] = []
    kept: list[SequenceGap] = []
    start, end = gap
    if start < first:
        gone.append(SequenceGap(start, min(end, first - 1)))
        start = first
    tail = SequenceGap(max(start, last + 1), end)
    end = min(end, last)
    for sequence in deleted[bisect_left(deleted, start) : bisect_right(deleted, end)]:
        if start < sequence:
            kept.append(SequenceGap(start, sequence - 1))
        if gone and gone[-1].last == sequence - 1:
            gone[-1] = SequenceGap(gone[-1].first, sequence)
        else:
            gone.append(SequenceGap(sequence, sequence))
        start = sequence + 1
    if start <= end:
        kept.append(SequenceGap(start, end))
    if tail.first <= tail.last:
        gone.append(tail)  # the stream ends before: it was made again
    return gone, kept


# ----------------------------------------------------------------------------------------------------------------------
# The readers of `penstock.jetstream`: a bounded range of sequences, or a stream with sequences as offsets.
#
#     offset    {"next": sequence that has not been read, "created": when the stream was created}
#
# The time of creation identifies the stream: a stream that was deleted and created again under the same name begins
# again at 1, and its messages are not those that an old offset means.


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
    """Split a range of sequences into at most this many, of nearly equal size.

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
    """Raise `FailedError` (`jetstream.data-lost`) for sequences that are gone, or log them if that was requested."""
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
    """Return the sequence at which `earliest`, `latest` or a number starts."""
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
            return iter(())  # Spark reads one empty partition if there are none
        return read_range(self._options, self._schema, partition)


class JetStreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream from the sequence after the last one that a checkpoint holds."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._target: int | None = None  # with the trigger availableNow, the sequence after the last to read

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the offset at which a new query begins."""
        state = _state(self._options)
        return {"next": _position(self._options.start, state), "created": state.created}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return the limit that option `maxMessagesPerBatch` sets."""
        return ReadMaxRows(self._options.max_messages) if self._options.max_messages else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Store the current end of the stream."""
        self._target = _state(self._options).next

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the end of the stream, for the progress that Spark reports."""
        state = _state(self._options)
        return {"next": state.next, "created": state.created}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the end of the next batch: at most the limit of sequences after its start.

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

"""Write to JetStream exactly once: the protocol, its ledger, and the writers of `penstock.jetstream`.

The message. A row's message id is `sink:batch:digest`: the sink is the streaming query's own id (or the write id of a
batch job), the digest is of the row's subject, id and key. It depends on nothing that changes from one attempt to the
next: not on the partition, the order, the payload's encoding or the time. It goes out as `Nats-Msg-Id`, so within the
stream's duplicate window W the server itself drops a second copy. Beyond W the server forgets; hence the ledger.

The ledger is a bucket of the same server, written by compare-and-set only:

    <stream>.<sink>.batch     the latest batch: its number, the run that tries it, whether that run is the first to,
                              whether it is committed, and its floor: the last sequence of the stream before anyone
                              published of it
    <stream>.<sink>.part.<n>  the latest attempt at partition n: batch, run, and a token of the attempt

    (1) Before its first message an attempt writes itself into both.  An older batch than the latest is refused
        (`jetstream.stale-batch`); a committed one is already stored, whole, and nothing is published.
    (2) An attempt is fresh if its run is the first to try the batch, and no attempt of that run at this partition
        went before. Nobody else can have published its rows: it need not look.
    (3) Any other attempt looks: it reads the ids (headers only) of all messages from the floor to the stream's end,
        and leaves out the rows that it finds. A gap there means that a copy may have been stored and be gone: the
        attempt fails (`jetstream.sink-gap`).
    (4) What (2) or (3) established holds for W/2. After that, before it sends more, an attempt looks again: a fresh
        one whether both records are still its own (if not, it goes on by (3)), any other at the messages since.
        An attempt whose batch is committed or outdated stops (`jetstream.superseded`).
    (5) A row is stored when the server acknowledged it; a lost connection makes an attempt look as in (3).
    (6) The driver marks the batch committed when all tasks are done, before Spark notes it in its checkpoint.

Why two attempts cannot both store a row. Let A send it at a and B later at b. If b − a < W the server drops B's. If
b − a ≥ W, B looked at some time v with b − W/2 ≤ v, so v > a. Where B looks at messages, it finds A's. Where B is fresh
and looks at the records: A is not an attempt that went before (2), so A wrote itself into the ledger after B, before a
and so before v; B sees that, and looks at messages. Races of any length are covered, and so are replays at any time.

What is assumed: the server keeps what it acknowledged, the bucket too; no process stands still for W/2 between looking
and sending, nor the network for W/2 with a message in it; the rows of a batch are the same in each attempt (Spark's
offset log and a source that can be replayed give that), and within one run in the same partition; two rows of a batch
that have the same subject, id and key are one message.
"""

import asyncio
import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeVar, get_type_hints

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from nats.aio.client import Client
from nats.aio.msg import Msg
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from penstock.errors import FailedError, LimitError, MalformedError, RefusedError
from penstock.fabric.nats_api import TRANSIENT, AnswerError, ApiError, payload, read_answer, text, whole
from penstock.pipeline.jetstream.link import (
    Interrupted,
    JetStreamLink,
    StreamState,
    compare_and_set,
    refusal,
    request,
    stream_state,
    woken,
)
from penstock.pipeline.jetstream.options import COLUMNS, Options
from penstock.pipeline.jetstream.reader import RangeReader

_NOT_FOUND: Final = 10037
_BUCKET_EXISTS: Final = 10058
_R = TypeVar("_R")


@dataclass(frozen=True)
class Attempt:
    """One try of one task: `sink` and `run` are names, `token` is this try's own."""

    sink: str
    batch: int
    run: str
    partition: int
    token: str

    @property
    def prefix(self) -> str:
        """Return how the ids of this batch's messages begin."""
        return f"{self.sink}:{self.batch}:"


@dataclass(frozen=True)
class BatchRecord:
    """The latest batch of a sink."""

    batch: int
    run: str
    first_run: bool
    committed: bool
    floor: int
    created: str  # when the stream was made that the floor is of


@dataclass(frozen=True)
class PartitionClaim:
    """The latest attempt at a partition."""

    batch: int
    run: str
    token: str


class LedgerBucket:
    """The ledger's bucket, by keys; every write compares first."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._stream = f"KV_{options.state_bucket}"

    def _subject(self, key: str) -> str:
        return f"$KV.{self._options.state_bucket}.{self._options.stream}.{key}"

    async def ensure(self, client: Client, replicas: int) -> None:
        """Make the bucket if there is none, with as many replicas as the stream has.

        Raises `RefusedError` (`jetstream.sink-retention`) for a bucket that forgets.
        """
        try:
            info = await request(client, self._options, f"STREAM.INFO.{self._stream}")
        except RefusedError as error:
            if error.code != "jetstream.no-stream":
                raise
        else:
            if whole(info, "config", "max_age", default=0):
                raise RefusedError(
                    "jetstream.sink-retention",
                    f"bucket `{self._options.state_bucket}` expires its values",
                    hint="give option `stateBucket` a bucket without a time to live",
                )
            return
        body = {
            "name": self._stream,
            "subjects": [f"$KV.{self._options.state_bucket}.>"],
            "max_msgs_per_subject": 1,
            "discard": "new",
            "storage": "file",
            "num_replicas": replicas,
            "max_consumers": -1,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_msg_size": -1,
            "deny_delete": True,
            "allow_rollup_hdrs": True,
            "allow_direct": False,  # only the leader's answer is current
            "description": "what penstock.jetstream has written",
        }
        try:
            await request(client, self._options, f"STREAM.CREATE.{self._stream}", body)
        except RefusedError as error:
            if error.fields.get("err_code") != _BUCKET_EXISTS:
                raise

    async def get(self, client: Client, key: str) -> tuple[dict[str, Any] | None, int]:
        """Return a value and its revision; (None, 0) where there is none."""
        body = {"last_by_subj": self._subject(key)}
        try:
            answer = await request(client, self._options, f"STREAM.MSG.GET.{self._stream}", body)
        except RefusedError as error:
            if error.fields.get("err_code") != _NOT_FOUND:
                raise
            return None, 0
        data, revision = payload(answer)
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise self._unreadable() from error
        if not isinstance(value, dict):
            raise self._unreadable()
        return value, revision

    def _unreadable(self) -> FailedError:
        return FailedError(
            "jetstream.state",
            f"a record in bucket `{self._options.state_bucket}` cannot be read",
            hint="only this sink may write to the bucket; with another `stateBucket` the sink begins again",
        )

    def _record(self, kind: type[_R], value: dict[str, Any]) -> _R:
        fields = get_type_hints(kind)
        if value.keys() != fields.keys() or any(type(value[name]) is not of for name, of in fields.items()):
            raise self._unreadable()
        return kind(**value)

    async def put(self, client: Client, key: str, value: BatchRecord | PartitionClaim, revision: int) -> bool:
        """Store a value if the key still has this revision; say whether it was stored."""
        data = json.dumps(asdict(value)).encode()
        return await compare_and_set(client, self._options, self._subject(key), data, revision, stream=self._stream)

    async def batch(self, client: Client, sink: str) -> tuple[BatchRecord | None, int]:
        """Return the record of a sink's latest batch."""
        value, revision = await self.get(client, f"{sink}.batch")
        return (None if value is None else self._record(BatchRecord, value)), revision

    async def claim(self, client: Client, sink: str, partition: int) -> tuple[PartitionClaim | None, int]:
        """Return the record of the latest attempt at a partition."""
        value, revision = await self.get(client, f"{sink}.part.{partition}")
        return (None if value is None else self._record(PartitionClaim, value)), revision


class PublishLedger:
    """One attempt's view of the ledger. `begin`, then `confirm` before each time it sends."""

    def __init__(self, link: JetStreamLink, attempt: Attempt) -> None:
        self._link = link
        self._options = link.options
        self.attempt = attempt
        self._records = LedgerBucket(link.options)
        self._fresh = False
        self._looked_to = 0  # the sequence up to which messages were looked at
        self._holds_until = 0.0
        self._window = 0.0
        self.committed = False
        self.stored: set[str] = set()

    def begin(self) -> None:
        """Write the attempt into the ledger (1). `committed` says that nothing is left to do.

        Raises `RefusedError`: `jetstream.stale-batch`, `jetstream.sink-retention`; and as `JetStreamLink.call`.
        """
        looked = time.monotonic()
        self._link.call(self._enter)
        if self._fresh:
            self._holds_until = looked + self._window / 2

    async def _enter(self, client: Client) -> None:
        mine = self.attempt
        state = await stream_state(client, self._options)
        check_retention(self._options, state)
        self._window = state.duplicate_window
        await self._records.ensure(client, state.replicas)
        record = await self._enter_batch(client)
        self.committed = record.committed
        if self.committed:
            return
        while True:
            claim, revision = await self._records.claim(client, mine.sink, mine.partition)
            # Ours too, from before a connection was lost: whether another went before that is not known any more.
            before = claim is not None and (claim.batch, claim.run) == (mine.batch, mine.run)
            if await self._records.put(
                client, f"{mine.sink}.part.{mine.partition}", PartitionClaim(mine.batch, mine.run, mine.token), revision
            ):
                break
        self._fresh = record.first_run and not before
        self._looked_to = record.floor

    async def _enter_batch(self, client: Client) -> BatchRecord:
        mine = self.attempt
        while True:
            record, revision = await self._records.batch(client, mine.sink)
            if record is not None and record.batch > mine.batch:
                raise RefusedError(
                    "jetstream.stale-batch",
                    f"the sink has batch {record.batch}, and this is batch {mine.batch}",
                    hint="a checkpoint was put back to an earlier state: use a new one, or a new `writeId`",
                    latest=record.batch,
                    batch=mine.batch,
                )
            if record is not None and record.batch == mine.batch and (record.committed or record.run == mine.run):
                return record
            state = await stream_state(client, self._options)
            if record is None or record.batch < mine.batch:
                # No attempt has entered this batch, so nothing of it is in the stream before this.
                mark = BatchRecord(mine.batch, mine.run, True, False, state.last, state.created)
            elif record.created == state.created or not self._options.fail_on_data_loss:
                mark = replace(record, run=mine.run, first_run=False)
            else:
                raise self._gap("is not the one that an earlier attempt wrote to")
            if await self._records.put(client, f"{mine.sink}.batch", mark, revision):
                return mark

    def doubt(self) -> None:
        """Note that messages of this attempt itself may have been stored without our knowing (5)."""
        self._fresh = False
        self._holds_until = 0.0

    def confirm(self) -> None:
        """Look again if the last look may be out of date (4).

        Raises `FailedError` (`jetstream.superseded`, `jetstream.sink-gap`); and as `JetStreamLink.call`.
        """
        looked = time.monotonic()
        if looked < self._holds_until:
            return
        if not self._link.call(self._still_alone):
            self._look()
        self._holds_until = looked + self._window / 2

    async def _still_alone(self, client: Client) -> bool:
        mine = self.attempt
        record, _ = await self._records.batch(client, mine.sink)
        if record is None or record.batch != mine.batch or record.committed:
            raise FailedError(
                "jetstream.superseded",
                f"batch {mine.batch} was finished by another attempt",
                hint="nothing is lost; this attempt came too late",
            )
        claim, _ = await self._records.claim(client, mine.sink, mine.partition)
        alone = record.run == mine.run and record.first_run and claim is not None and claim.token == mine.token
        self._fresh = self._fresh and alone
        return self._fresh

    def _look(self) -> None:
        """Read the ids of this batch's messages since the last look (3)."""
        last = self._link.call(lambda client: stream_state(client, self._options)).last
        if last <= self._looked_to:
            return
        reader = RangeReader(self._link, self._looked_to + 1, last, headers_only=True)
        prefix = self.attempt.prefix
        for chunk in reader.chunks():
            for message in chunk:
                stored = message.headers.get("Nats-Msg-Id", "")
                if stored.startswith(prefix):
                    self.stored.add(stored)
        if reader.lost and self._options.fail_on_data_loss:
            raise self._gap(f"no longer holds the sequences {reader.lost[0].first} to {reader.lost[-1].last}")
        self._looked_to = last

    def _gap(self, what: str) -> FailedError:
        return FailedError(
            "jetstream.sink-gap",
            f"stream `{self._options.stream}` {what}, so the missing rows of batch {self.attempt.batch} are unknown",
            hint="keep messages longer than a restart takes; `failOnDataLoss` false risks a loss or a second copy",
            batch=self.attempt.batch,
        )


def commit_batch(link: JetStreamLink, sink: str, batch: int) -> None:
    """Mark a batch as stored, whole (6). Raises `FailedError` (`jetstream.no-ledger`); and as `JetStreamLink.call`."""
    records = LedgerBucket(link.options)

    async def mark(client: Client) -> None:
        while True:
            record, revision = await records.batch(client, sink)
            if record is not None and (record.batch > batch or (record.batch == batch and record.committed)):
                return
            if record is None:
                raise FailedError("jetstream.no-ledger", f"the record of sink `{sink}` is gone")
            done = replace(record, batch=batch, first_run=False, committed=True)
            if await records.put(client, f"{sink}.batch", done, revision):
                return

    link.call(mark)


def check_retention(options: Options, state: StreamState) -> None:
    """Check that a stream keeps what is consumed. Raises `RefusedError` (`jetstream.sink-retention`)."""
    if state.retention != "limits":
        raise RefusedError(
            "jetstream.sink-retention",
            f"stream `{options.stream}` keeps messages by `{state.retention}`, not by limits",
            hint="messages that were consumed cannot be looked up; write to a stream with limits, and source from it",
        )


# ----------------------------------------------------------------------------------------------------------------------
# Publish the rows of one task attempt, each exactly once, by the protocol in the module docstring.


_ID: Final = "ce-id"
_CHUNK_BYTES: Final = 8 * 1024 * 1024


class Outgoing(NamedTuple):
    """A row to publish: its subject, its identity, and its content."""

    subject: str
    id: str
    key: str
    headers: Mapping[str, str]
    payload: bytes


@dataclass
class PublishCounts:
    """Results of an attempt's rows: rows = published + found + merged."""

    rows: int = 0
    published: int = 0
    found: int = 0  # an earlier attempt had stored them
    merged: int = 0  # another row of this attempt was the same message


def digest(row: Outgoing) -> str:
    """Return the identity of a row within its batch, independent of attempt and partition."""
    hashed = blake2b(digest_size=16)
    for part in (row.subject, row.id, row.key):
        encoded = part.encode()
        hashed.update(len(encoded).to_bytes(8, "big"))
        hashed.update(encoded)
    return hashed.hexdigest()


def publish_rows(options: Options, attempt: Attempt, rows: Iterable[Outgoing]) -> PublishCounts:
    """Store each row's message exactly once, and return the counts.

    Raises `MalformedError` (`jetstream.bad-row`, `jetstream.id-reused`), `LimitError` (`jetstream.too-large`),
    `RefusedError` (`jetstream.refused` and those of `PublishLedger.begin`), `FailedError` (those of
    `PublishLedger.confirm`, and
    `jetstream.unreachable`).
    """
    counts = PublishCounts()
    with JetStreamLink(options) as link:
        ledger = PublishLedger(link, attempt)
        publisher = _Publisher(link, ledger)
        bodies: dict[str, bytes] = {}
        source = iter(rows)
        for number, chunk in enumerate(_chunks(source, options.max_in_flight)):
            if not number:
                ledger.begin()
            if ledger.committed:
                counts.rows += len(chunk)
                counts.found += len(chunk)
                continue
            prepared = _distinct(attempt, chunk, bodies)
            counts.rows += len(chunk)
            counts.merged += len(chunk) - len(prepared)
            publisher.store(prepared, counts)
    return counts


def _chunks(rows: Iterator[Outgoing], size: int) -> Iterator[list[Outgoing]]:
    """Yield the rows in chunks that are sent in a time much shorter than the window."""
    chunk: list[Outgoing] = []
    byte_count = 0
    for row in rows:
        chunk.append(row)
        byte_count += len(row.payload)
        if len(chunk) >= size or byte_count >= _CHUNK_BYTES:
            yield chunk
            chunk, byte_count = [], 0
    if chunk:
        yield chunk


def _distinct(attempt: Attempt, rows: Sequence[Outgoing], bodies: dict[str, bytes]) -> dict[str, Outgoing]:
    """Return the rows by their message ids, without those that an earlier row of the attempt equals."""
    prepared: dict[str, Outgoing] = {}
    for row in rows:
        _check(row)
        name = attempt.prefix + digest(row)
        body = blake2b(row.payload, digest_size=8).digest()
        known = bodies.setdefault(name, body)
        if known != body:
            raise MalformedError(
                "jetstream.id-reused",
                f"two rows of one batch have subject `{row.subject}` and id `{row.id}`, and different payloads",
                hint="give them different ids, or tell them apart by a column `key`",
            )
        if known is body:
            prepared[name] = row
    return prepared


def _check(row: Outgoing) -> None:
    """Raise `MalformedError` (`jetstream.bad-row`) for a row that would not arrive as it was sent."""
    if not row.subject or any(c.isspace() or c in "*>" for c in row.subject) or "" in row.subject.split("."):
        raise MalformedError("jetstream.bad-row", f"`{row.subject}` is not a subject to publish to")
    for name, value in row.headers.items():
        printable = all(33 <= ord(c) <= 126 and c != ":" for c in name)
        if not name or not printable or "\r" in value or "\n" in value:
            raise MalformedError("jetstream.bad-row", f"header `{name}` of row `{row.id}` cannot be sent")
    if not row.id or not row.id.isprintable():
        raise MalformedError(
            "jetstream.bad-row", "a row's id is missing, or has characters that no header can have", hint="column `id`"
        )


class _Publisher:
    """Sends messages, many in flight, and waits until each is acknowledged."""

    def __init__(self, link: JetStreamLink, ledger: PublishLedger) -> None:
        self._link = link
        self._options = link.options
        self._ledger = ledger
        self._inbox: tuple[Client, str] | None = None
        self._prefix = ledger.attempt.prefix
        self._waiting: dict[str, None] = {}  # ids of messages that are not acknowledged, in order
        self._refused: Exception | None = None
        self._wake = asyncio.Event()

    def store(self, rows: dict[str, Outgoing], counts: PublishCounts) -> None:
        """Store some messages. Each retry first looks up what the previous one has stored."""
        left = dict(rows)
        for attempt in range(self._options.retries + 1):
            self._ledger.confirm()
            for name in [name for name in left if name in self._ledger.stored]:
                del left[name]
                counts.found += 1
            try:
                self._link.call(partial(self._send, left=left, counts=counts))
            except _Unsure as error:
                self._ledger.doubt()
                if attempt == self._options.retries:
                    raise FailedError(
                        "jetstream.unreachable",
                        f"{len(left)} messages to {self._options.servers} were not acknowledged",
                        hint="check the server, and options `timeout` and `retries`",
                    ) from error
            else:
                return

    async def _send(self, client: Client, *, left: dict[str, Outgoing], counts: PublishCounts) -> None:
        """Send the remaining messages, and remove the acknowledged ones.

        The link must not repeat this by itself, so failures are raised as `_Unsure`: first the ledger must look.
        """
        self._waiting, self._refused = dict.fromkeys(left), None
        try:
            await self._send_all(client, left)
        except (*TRANSIENT, Interrupted) as error:
            raise _Unsure from error
        finally:
            for name in [name for name in left if name not in self._waiting]:
                del left[name]
                counts.published += 1

    async def _send_all(self, client: Client, left: dict[str, Outgoing]) -> None:
        if self._inbox is None or self._inbox[0] is not client:
            self._inbox = client, client.new_inbox()
            await client.subscribe(
                f"{self._inbox[1]}.*", cb=self._acknowledged, pending_msgs_limit=0, pending_bytes_limit=0
            )
        limit = client.max_payload
        for name, row in left.items():
            headers = self._headers(name, row)
            if len(row.payload) + sum(len(k) + len(v) * 4 + 4 for k, v in headers.items()) + 16 > limit:
                raise LimitError("jetstream.too-large", f"row `{row.id}` is larger than the server's {limit} bytes")
            # The reply's last part is the digest: an answer that comes late can only speak for the same message.
            reply = f"{self._inbox[1]}.{name.rpartition(':')[2]}"
            await client.publish(row.subject, row.payload, reply=reply, headers=headers)
        while self._waiting and self._refused is None:
            await woken(client, self._wake, self._options.timeout)
        if self._refused is not None:
            raise self._refused

    def _headers(self, name: str, row: Outgoing) -> dict[str, str]:
        """Return the headers to send: the row's own, but of those that the server acts on only ours."""
        headers = {key: value for key, value in row.headers.items() if not key.lower().startswith("nats-")}
        if not any(key.lower() == _ID for key in headers):
            headers[_ID] = row.id
        return headers | {"Nats-Msg-Id": name, "Nats-Expected-Stream": self._options.stream}

    async def _acknowledged(self, message: Msg) -> None:
        name = self._prefix + message.subject.rpartition(".")[2]
        if (message.headers or {}).get("Status"):
            self._refused = RefusedError(
                "jetstream.refused",
                f"no stream takes a subject of the rows; `{self._options.stream}` should",
                hint="check the stream's subjects",
            )
        else:
            try:
                if text(read_answer(message.data), "stream") != self._options.stream:
                    return
            except ApiError as error:
                self._refused = refusal(self._options, error.answer)
            except AnswerError:
                return  # not of the server: its own answer is waited for
            else:
                self._waiting.pop(name, None)
        self._wake.set()


class _Unsure(Exception):  # noqa: N818  # not an error that leaves this room
    """Messages were sent, and it is not known whether they were stored."""


# ----------------------------------------------------------------------------------------------------------------------
# The writers of `penstock.jetstream` for Spark.


_WRITTEN: Final[dict[str, tuple[DataType, ...]]] = {
    "subject": (StringType(),),
    "id": (StringType(),),
    "key": (StringType(),),
    "headers": (MapType(StringType(), StringType()),),
    "payload": (BinaryType(), StringType()),
}
# Set by Spark for every job of a streaming query; the query's id lives as long as its checkpoint.
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_RUN: Final = "spark.jobGroup.id"


@dataclass
class Written(WriterCommitMessage):
    """The result of one task."""

    sink: str
    batch: int
    rows: int
    published: int
    found: int
    merged: int


def check_written(schema: StructType, options: Options) -> None:
    """Check that a frame has the columns of a message. Raises `MalformedError` (`jetstream.columns`)."""
    for field in schema.fields:
        if field.name in _WRITTEN and field.dataType.simpleString() not in [
            kind.simpleString() for kind in _WRITTEN[field.name]
        ]:
            raise _columns(f"column `{field.name}` is `{field.dataType.simpleString()}`")
        if field.name not in _WRITTEN and field.name not in COLUMNS:
            raise _columns(f"there is no place in a message for column `{field.name}`")
    for name in ("id", "payload", "subject"):
        if name not in schema.names and not (name == "subject" and len(options.subjects) == 1):
            raise _columns(f"column `{name}` is missing")


def _columns(what: str) -> MalformedError:
    return MalformedError(
        "jetstream.columns",
        what,
        hint="write `subject`, `id`, `payload` and, if you like, `headers` and `key`; option `subject` can replace "
        "the first",
    )


def outgoing(batches: Iterator[pa.RecordBatch], options: Options) -> Iterator[Outgoing]:
    """Yield the rows of some batches. Raises `MalformedError` (`jetstream.bad-row`) for a null that is not allowed."""
    fixed = options.subjects[0] if len(options.subjects) == 1 else None
    for batch in batches:
        values: dict[str, list[Any]] = {
            name: batch.column(name).to_pylist() for name in batch.schema.names if name in _WRITTEN
        }
        empty: list[Any] = [None] * batch.num_rows
        subjects = values["subject"] if "subject" in values else [fixed] * batch.num_rows
        keys, headers = values.get("key", empty), values.get("headers", empty)
        for subject, name, key, own, body in zip(subjects, values["id"], keys, headers, values["payload"], strict=True):
            if subject is None or name is None or body is None:
                raise MalformedError("jetstream.bad-row", f"row `{name}` has no subject, id or payload")
            data = body.encode() if isinstance(body, str) else body
            pairs = {k: v for k, v in own if v is not None} if own else {}
            yield Outgoing(subject, name, key or "", pairs, data)


class _Writing:
    """The common part of both writers: picklable, and without a connection."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._instance = uuid.uuid4().hex

    def _publish(self, batches: Iterator[pa.RecordBatch], sink: str, batch: int, run: str) -> Written:
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        attempt = Attempt(sink, batch, run, partition, uuid.uuid4().hex)
        counts = publish_rows(self._options, attempt, outgoing(batches, self._options))
        return Written(sink, batch, counts.rows, counts.published, counts.found, counts.merged)

    def _commit(self, messages: list[WriterCommitMessage | None]) -> None:
        done = [message for message in messages if isinstance(message, Written) and message.rows]
        if done:
            with JetStreamLink(self._options) as link:
                commit_batch(link, done[0].sink, done[0].batch)


class JetStreamWriter(_Writing, DataSourceArrowWriter):
    """Writes a frame once. With option `writeId`, once however often the job is run."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish the rows of one partition. Raises as `publish_rows`, and `jetstream.bad-row`."""
        name = self._options.write_id
        sink = blake2b(name.encode(), digest_size=16).hexdigest() if name else self._instance
        return self._publish(iterator, sink, 0, self._instance)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Mark the write as done. Raises as `commit_batch`."""
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Keep stored rows: the next run with the same `writeId` adds the missing ones."""


class JetStreamStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Writes each batch of a streaming query once."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish the rows of one partition of a batch. Raises as `publish_rows`, and `jetstream.no-query`."""
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY) if context is not None else None
        batch = context.getLocalProperty(_BATCH) if context is not None else None
        run = context.getLocalProperty(_RUN) if context is not None else None
        if query is None or batch is None:
            raise FailedError("jetstream.no-query", "Spark does not say which query and batch a task is of")
        return self._publish(iterator, query.replace("-", ""), int(batch), run or self._instance)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803  # Spark's
        """Mark the batch as stored, before Spark notes it in the checkpoint. Raises as `commit_batch`."""
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Keep stored rows: the batch is tried again, and adds the missing ones."""

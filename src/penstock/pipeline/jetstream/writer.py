"""The writers of `penstock.jetstream`. What makes them exactly-once is in `ledger`."""

import asyncio
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from nats.aio.client import Client
from nats.aio.msg import Msg
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from penstock.errors import FailedError, LimitError, MalformedError, RefusedError
from penstock.fabric.nats_api import TRANSIENT, AnswerError, ApiError, read_answer, text
from penstock.pipeline.jetstream.ledger import Attempt, PublishLedger, commit_batch
from penstock.pipeline.jetstream.link import Interrupted, JetStreamLink, refusal, woken
from penstock.pipeline.jetstream.options import COLUMNS, Options

# ----------------------------------------------------------------------------------------------------------------------
# Publishing the rows of one task attempt, each exactly once. The protocol is in `ledger`.


_ID: Final = "ce-id"
_CHUNK_OCTETS: Final = 8 * 1024 * 1024


class Outgoing(NamedTuple):
    """A row on its way: where to, what makes it itself, and what it carries."""

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
    """Return what identifies a row within its batch, whatever attempt and partition it is in."""
    hashed = blake2b(digest_size=16)
    for part in (row.subject, row.id, row.key):
        octets = part.encode()
        hashed.update(len(octets).to_bytes(8, "big"))
        hashed.update(octets)
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
    """Yield the rows in chunks, of so many or so large that they are sent in no time against the window."""
    chunk: list[Outgoing] = []
    octets = 0
    for row in rows:
        chunk.append(row)
        octets += len(row.payload)
        if len(chunk) >= size or octets >= _CHUNK_OCTETS:
            yield chunk
            chunk, octets = [], 0
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
    """Refuse what would not arrive as it was sent. Raises `MalformedError` (`jetstream.bad-row`)."""
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

        The link must not repeat this by itself, so what failed leaves as `_Unsure`: first the ledger has to look.
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
# The writers of `penstock.jetstream`. What makes them exactly-once is in `ledger`.


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
    """Check that a frame has what a message needs. Raises `MalformedError` (`jetstream.columns`)."""
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
    """Yield the rows of some batches. Raises `MalformedError` (`jetstream.bad-row`) for a null where none can be."""
    fixed = options.subjects[0] if len(options.subjects) == 1 else None
    for batch in batches:
        values: dict[str, list[Any]] = {
            name: batch.column(name).to_pylist() for name in batch.schema.names if name in _WRITTEN
        }
        empty: list[Any] = [None] * batch.num_rows
        subjects = values["subject"] if "subject" in values else [fixed] * batch.num_rows
        keys, headers = values.get("key", empty), values.get("headers", empty)
        for subject, name, key, own, payload in zip(
            subjects, values["id"], keys, headers, values["payload"], strict=True
        ):
            if subject is None or name is None or payload is None:
                raise MalformedError("jetstream.bad-row", f"row `{name}` has no subject, id or payload")
            data = payload.encode() if isinstance(payload, str) else payload
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
        """Leave what was stored: the next run with the same `writeId` adds what is missing."""


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
        """Leave what was stored: the batch is tried again, and adds what is missing."""

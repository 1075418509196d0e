"""The writers of `penstock.jetstream`. What makes them exactly-once is in `jetstream_ledger`."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from penstock.errors import FailedError, MalformedError
from penstock.pipeline.jetstream_ledger import Attempt, commit_batch
from penstock.pipeline.jetstream_link import Link
from penstock.pipeline.jetstream_options import COLUMNS, Options
from penstock.pipeline.jetstream_publish import Outgoing, publish_rows

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
    """What one task did."""

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
    """What both writers share: picklable, and without a connection."""

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
            with Link(self._options) as link:
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

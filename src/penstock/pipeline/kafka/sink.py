"""Write each batch of a job to a Kafka topic once, in transactions.

    (1) The rows of a batch are divided by a hash of their bytes among a fixed number of writers, so that a repeated
        batch has the same rows for each writer, however Spark divides them.
    (2) A writer has a transactional id of its output and number. Kafka admits the newest producer with an id only:
        earlier ones are fenced, and what they had begun is aborted.
    (3) The records and a mark (output, writer, batch, number of rows) are in one transaction. Marks are in the
        compacted topic `TOPIC.penstock`, so that they neither expire nor are read with the rows.
    (4) A writer first fences, then reads the marks to the end, and only then writes, unless its mark has the batch.
    (5) Before a batch, the driver notes among the marks how many writers the output has had at most, and fences all
        of them: with fewer writers than before, earlier ones could still commit rows that are divided otherwise now.

Why no row is there twice: of two attempts of a writer at a batch, the later one fences the earlier one before it reads
marks. So either the earlier one's mark is there, or its transaction never ends well. Why none is lost: the job
commits the batch after all transactions are committed. Readers must read committed records only
(`isolation.level=read_committed`).
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.errors import FailedError, RefusedError
from penstock.pipeline.kafka.link import KafkaOptions, consumer, failure, partitions_of, producer, records, settings
from penstock.pipeline.tables.addresses import SinkRows
from penstock.pipeline.tables.messages import messages

_SUFFIX: Final = ".penstock"
_PATIENCE: Final = 60.0
#: longer than any batch takes, and what servers accept by default at most
_TRANSACTION_MS: Final = 900_000
#: in place of a writer's number: the mark that says how many there were at most
_MOST: Final = -1
_DONE: Final = "writer int, rows bigint"


@dataclass(frozen=True, slots=True)
class BatchMark:
    """The last batch of a writer: its number, its rows, and among how many writers the batch was divided."""

    batch: int
    rows: int
    writers: int

    def as_bytes(self) -> bytes:
        """Return the value of a record."""
        return json.dumps({"batch": self.batch, "rows": self.rows, "writers": self.writers}).encode()


@dataclass(frozen=True, slots=True)
class KafkaSink:
    """A Kafka topic that the main rows of a job go to."""

    options: KafkaOptions

    @property
    def name(self) -> str:
        """The topic, without the addresses of servers."""
        return self.options.name

    def check(self) -> None:
        """Check that the topic is there, and make the one for marks. Raises as `failure`, and `kafka.no-topic`."""
        marks = f"{self.options.topic}{_SUFFIX}"
        # A consumer's question does not create the topic, even if the server creates topics by itself.
        client = consumer(self.options)
        try:
            partitions_of(client, self.options)
            self._make_marks(marks)
            partitions_of(client, replace(self.options, topic=marks))
        finally:
            client.close()

    def _make_marks(self, marks: str) -> None:
        admin = AdminClient(settings(self.options))
        try:
            made = admin.create_topics([NewTopic(marks, 1, -1, config={"cleanup.policy": "compact"})])
            made[marks].result(_PATIENCE)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise failure(self.options, error) from error

    def holds(self, spark: SparkSession, output: str) -> bool:  # noqa: ARG002  # as all sinks
        """Return whether the topic has a batch of an output. Raises as `read_marks`."""
        return bool(read_marks(self.options, output))

    def write(self, rows: SinkRows, output: str, batch: int) -> int:
        """Write a batch, unless the topic has it, and return how many of its rows the topic has.

        Raises as `failure`, `RefusedError` (`kafka.stale-batch`, `kafka.writers`), `FailedError` (`kafka.superseded`).
        """
        options = self.options
        # Not only committed ones: what earlier writers have begun would have to be waited for, until they are fenced.
        noted = _marks(options, output, "read_uncommitted").get(_MOST)
        before = 0 if noted is None else noted.writers
        if options.writers > before:
            _note_writers(options, output)
        for number in range(max(before, options.writers)):
            _fence(options, output, number)
        for mark in read_marks(options, output).values():
            if mark.batch > batch:
                raise RefusedError(
                    "kafka.stale-batch",
                    f"`{self.name}` has batch {mark.batch}, and this is batch {batch}",
                    hint="the output was put back to an earlier state: use a new one",
                )
            if mark.batch == batch and mark.writers != options.writers:
                raise RefusedError(
                    "kafka.writers",
                    f"`{self.name}` has a part of batch {batch}, written by {mark.writers} writers",
                    hint=f"use `writers={mark.writers}` until the batch is complete",
                )

        def write_part(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            done = list(_write_parts(options, output, batch, parts))
            yield pa.RecordBatch.from_pydict(
                {"writer": [one for one, _ in done], "rows": [count for _, count in done]},
                schema=pa.schema([("writer", pa.int32()), ("rows", pa.int64())]),
            )

        records = messages(rows, binary=options.mode == "binary")
        writer = F.pmod(F.xxhash64("key", "value", F.to_json("headers")), F.lit(options.writers)).cast("int")
        divided = records.withColumn("writer", writer).repartition(options.writers, "writer")
        done = divided.sortWithinPartitions("writer").mapInArrow(write_part, _DONE)
        return sum(row["rows"] for row in done.collect())


def _write_parts(
    options: KafkaOptions, output: str, batch: int, parts: Iterable[pa.RecordBatch]
) -> Iterator[tuple[int, int]]:
    """Write what one task has, each writer's rows in a transaction, and yield the writers and their rows."""
    rows = (row for part in parts for row in part.to_pylist())
    for number, mine in groupby(rows, key=lambda row: int(row["writer"])):
        client = _fence(options, output, number)
        mark = read_marks(options, output).get(number)
        if mark is not None and mark.batch >= batch:
            for _ in mine:  # the topic has them
                pass
            yield number, mark.rows
        else:
            key = f"{output}/{number}"
            yield number, _transact(client, options, key, batch, mine)


def _note_writers(options: KafkaOptions, output: str) -> None:
    """Write how many writers an output has at most, among the marks. Raises as `failure`."""
    client = producer(options, enable_idempotence=True)
    # Until the server reports, it has not taken it.
    reports = [KafkaError(KafkaError.REQUEST_TIMED_OUT)]

    def reported(error: KafkaError | None, _: object) -> None:
        reports[:] = [] if error is None else [error]

    mark = BatchMark(0, 0, options.writers).as_bytes()
    client.produce(f"{options.topic}{_SUFFIX}", key=f"{output}/{_MOST}", value=mark, on_delivery=reported)
    client.flush(_PATIENCE)
    if reports:
        raise failure(options, KafkaException(reports[0]))


def _fence(options: KafkaOptions, output: str, number: int) -> Producer:
    """Return the producer of a writer, and end all earlier ones. Raises as `failure`."""
    client = producer(
        options,
        transactional_id=f"penstock-{options.topic}-{output}-{number}",
        transaction_timeout_ms=_TRANSACTION_MS,
    )
    try:
        client.init_transactions(_PATIENCE)
    except KafkaException as error:
        raise failure(options, error) from error
    return client


def _transact(client: Producer, options: KafkaOptions, mark: str, batch: int, rows: Iterable[dict[str, Any]]) -> int:
    """Write rows and the mark of a batch in one transaction, and return how many rows. Raises as `failure`."""
    failed: list[KafkaError] = []

    def reported(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failed.append(error)

    def send(
        topic: str, key: bytes | str | None, value: bytes | str | None, headers: list[tuple[str, str | bytes | None]]
    ) -> None:
        while True:
            try:
                client.produce(topic, value=value, key=key, headers=headers, on_delivery=reported)
            except BufferError:
                client.poll(0.5)
            else:
                client.poll(0)
                return

    count = 0
    try:
        client.begin_transaction()
        for row in rows:
            headers: list[tuple[str, str | bytes | None]] = [
                (pair["name"], pair["value"]) for pair in row["headers"] if pair["value"] is not None
            ]
            send(options.topic, row["key"], row["value"], headers)
            count += 1
        send(f"{options.topic}{_SUFFIX}", mark, BatchMark(batch, count, options.writers).as_bytes(), [])
        client.flush(_PATIENCE)
        client.commit_transaction(_PATIENCE)
    except KafkaException as error:
        # A record that was refused says more than the transaction that ends for it.
        raise failure(options, KafkaException(failed[0]) if failed else error) from error
    return count


def read_marks(options: KafkaOptions, output: str) -> dict[int, BatchMark]:
    """Return the last batch of each writer of an output.

    Waits until transactions that have begun before are decided, of other outputs too. Raises as `failure`, and
    `FailedError` (`kafka.state`).
    """
    found = _marks(options, output, "read_committed")
    return {number: mark for number, mark in found.items() if number != _MOST}


def _marks(options: KafkaOptions, output: str, isolation: str) -> dict[int, BatchMark]:
    topic = f"{options.topic}{_SUFFIX}"
    stable = consumer(options, enable_partition_eof=True, auto_offset_reset="earliest", isolation_level=isolation)
    every = consumer(options, isolation_level="read_uncommitted")
    found: dict[int, BatchMark] = {}
    try:
        partition = TopicPartition(topic, 0)
        _, end = every.get_watermark_offsets(partition, timeout=_PATIENCE)
        stable.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        for message in records(stable, options, end) if end else ():
            _apply(found, message.key(), message.value(), output, options)
    except KafkaException as error:
        raise failure(options, error) from error
    finally:
        stable.close()
        every.close()
    return found


def _apply(found: dict[int, BatchMark], key: Any, value: Any, output: str, options: KafkaOptions) -> None:
    try:
        name, _, number = (key or b"").decode().rpartition("/")
        if name == output:
            said = json.loads(value or b"")
            found[int(number)] = BatchMark(int(said["batch"]), int(said["rows"]), int(said["writers"]))
    except (ValueError, TypeError, LookupError) as error:
        raise FailedError(
            "kafka.state",
            f"a mark of `{options.name}` cannot be read",
            hint=f"only jobs may write to `{options.topic}{_SUFFIX}`",
        ) from error

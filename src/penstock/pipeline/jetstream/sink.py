"""Write each batch of a job to a JetStream stream once, by the protocol of `writer`.

The sink of the ledger is the output's name, and a batch has its number in the output. So a batch that comes again,
however much later, finds in the ledger that it is committed, or looks in the stream for the messages that it has.
A row's identity is its content, numbered among equal rows: equal rows of a batch are as many messages. Equal rows are
in one task, so that they are numbered alike however Spark divides a batch.
"""

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final
from urllib.parse import quote

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark import TaskContext
from pyspark.sql import SparkSession

from penstock.errors import MalformedError, RefusedError
from penstock.pipeline.enforce.manifest import SUBSCRIBER
from penstock.pipeline.jetstream.link import JetStreamLink
from penstock.pipeline.jetstream.messages import check_stream
from penstock.pipeline.jetstream.options import Options
from penstock.pipeline.jetstream.writer import (
    Attempt,
    LedgerBucket,
    Outgoing,
    check_retention,
    commit_batch,
    publish_rows,
)
from penstock.pipeline.tables.addresses import SinkRows
from penstock.pipeline.tables.messages import TO_SUBSCRIBER, messages

_ANY: Final = "*"
#: what a header may have, by the CloudEvents binding of HTTP, which NATS uses
_IN_HEADERS: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_IN_SUBJECTS: Final = _IN_HEADERS.translate({ord(letter): None for letter in "*>"})


@dataclass(frozen=True, slots=True)
class JetStreamSink:
    """A JetStream stream that the main rows of a job go to.

    Its subject can have `*` as one part, in whose place stands the subscriber of a row.
    Raises `MalformedError` (`jetstream.bad-option`).
    """

    options: Options

    def __post_init__(self) -> None:
        parts = self.subject.split(".")
        names = [part for part in parts if part != _ANY]
        bad = any(not name or quote(name, safe=_IN_SUBJECTS) != name for name in names)
        if len(self.options.subjects) != 1 or bad or len(parts) > len(names) + 1 or not names:
            raise _bad_subject("give one subject, such as `views.all`, or `views.*` for one of each subscriber")

    @property
    def subject(self) -> str:
        """The subject of its messages."""
        return ",".join(self.options.subjects)

    @property
    def name(self) -> str:
        """The stream, without the address of its server."""
        return f"nats:{self.options.stream}"

    def check(self) -> None:
        """Check that the stream is there, and keeps messages. Raises as `check_stream` and `check_retention`."""
        check_retention(self.options, check_stream(self.options))

    def holds(self, spark: SparkSession, output: str) -> bool:  # noqa: ARG002  # as all sinks
        """Return whether the ledger has a batch of an output. Raises as `JetStreamLink.call`."""
        with JetStreamLink(self.options) as link:
            try:
                record, _ = link.call(lambda client: LedgerBucket(self.options).batch(client, output))
            except RefusedError as error:
                if error.code != "jetstream.no-stream":  # there is no bucket
                    raise
                return False
        return record is not None

    def write(self, rows: SinkRows, output: str, batch: int) -> int:
        """Publish a batch, unless the stream has it, and return how many of its rows the stream has.

        Raises as `publish_rows` and `commit_batch`, and `MalformedError` (`jetstream.bad-option`).
        """
        if _ANY in self.subject and SUBSCRIBER not in rows.frame.columns:
            raise _bad_subject("`*` stands for subscribers, and these rows have none: name the whole subject")
        options, subject, run = self.options, self.subject, uuid.uuid4().hex

        def write_part(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            partition = context.partitionId() if context is not None else 0
            attempt = Attempt(output, batch, run, partition, uuid.uuid4().hex)
            counts = publish_rows(options, attempt, _numbered(parts, subject))
            yield pa.RecordBatch.from_pydict({"rows": [counts.published + counts.found]})

        divided = messages(rows).repartition(options.partitions, "id", "key", "value")
        done = sum(int(row["rows"]) for row in divided.mapInArrow(write_part, "rows bigint").collect())
        if done:
            with JetStreamLink(options) as link:
                commit_batch(link, output, batch)
        return done


def _numbered(parts: Iterable[pa.RecordBatch], subject: str) -> Iterator[Outgoing]:
    """Yield the messages of rows, equal ones with different keys."""
    seen: Counter[bytes] = Counter()
    for row in (row for part in parts for row in part.to_pylist()):
        said: dict[str, str] = {pair["name"]: pair["value"] for pair in row["headers"] if pair["value"] is not None}
        payload = row["value"].encode()
        # `quote` leaves dots, which would make parts.
        reader = quote(said.get(TO_SUBSCRIBER, ""), safe=_IN_SUBJECTS).replace(".", "%2E")
        where = subject.replace(_ANY, reader)
        content = blake2b(repr((where, said, payload)).encode(), digest_size=16)
        number, seen[content.digest()] = seen[content.digest()], seen[content.digest()] + 1
        headers = {name: quote(value, safe=_IN_HEADERS) for name, value in said.items()}
        name = quote(row["id"], safe=_IN_HEADERS) if row["id"] else content.hexdigest()
        yield Outgoing(where, name, f"{content.hexdigest()}#{number}", headers, payload)


def _bad_subject(why: str) -> MalformedError:
    return MalformedError("jetstream.bad-option", f"option `subject`: {why}", option="subject")

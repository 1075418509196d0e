"""Messages of a JetStream stream, and the stream as a source of jobs. Both need the extra `penstock[nats]`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.model.types import EventType
from penstock.pipeline.frames import ID, envelope, quoted, shown_source
from penstock.pipeline.ingest.records import FILE, ORIGINAL, POSITION
from penstock.pipeline.jetstream.link import JetStreamLink, StreamState, stream_state
from penstock.pipeline.jetstream.options import Options, parse_options
from penstock.pipeline.jetstream.source import NAME, register_jetstream
from penstock.pipeline.outputs import Reader, Streaming

# ----------------------------------------------------------------------------------------------------------------------
# JetStream messages as records for ingest, and events as messages: what files are elsewhere.
#
#     @file      string   `nats:` and the name of the stream; never its address, and so never what an address may carry
#     @position  bigint   the sequence in the stream
#     @original  binary   the payload
#
# A message is one CloudEvent in structured JSON, as a line of a file is. Its headers are not read: who can put a
# message into a stream can give it any header. Stream and sequence name a message for as long as the stream lives, so a
# record in quarantine can be looked up, and a batch that is read again has the same records.


_COLUMNS: Final = "sequence,payload"


def read_jetstream(reader: Reader, options: Mapping[str, str]) -> DataFrame:
    """Return the messages of a stream as records: those there are now, or with `spark.readStream` all to come.

    `options` are those of docs/reference/jetstream.md, of which `columns` has no effect here; the session must know
    the source (`penstock.pipeline.jetstream.source.register`). Raises as `parse_options`, before Spark sees an option.
    """
    stream = parse_options(options).stream
    given = {key: value for key, value in options.items() if key.lower() != "columns"}
    messages = reader.format(NAME).options(**given, columns=_COLUMNS).load()
    return messages.select(
        F.lit(f"nats:{stream}").alias(FILE),
        F.col("sequence").alias(POSITION),
        F.col("payload").alias(ORIGINAL),
    )


def to_messages(events: DataFrame, event_type: EventType, subject: str) -> DataFrame:
    """Return typed events of one version, say a reader's view, as what `penstock.jetstream` writes to a subject.

    The payload is the envelope that ingest reads (`envelope`). Events of two sources may have the same id, so the
    source is the message's key.
    """
    return events.select(
        F.lit(subject).alias("subject"),
        quoted(ID).alias("id"),
        shown_source(event_type).alias("key"),
        envelope(event_type).alias("payload"),
    )


# ----------------------------------------------------------------------------------------------------------------------
# The stream as a source of jobs.


_PATIENCE: Final = 3.0
"""Seconds that a server has for its first answer. Once a job runs, `timeout` and `retries` count."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A JetStream stream that is read; `options` are those of docs/reference/jetstream.md."""

    options: Mapping[str, str]

    @property
    def name(self) -> str:
        """The stream, without the address of its server."""
        return f"nats:{parse_options(self.options).stream}"

    @property
    def files(self) -> None:
        """None: messages stand in no files."""
        return

    def messages(self, spark: SparkSession, *, stream: bool) -> DataFrame:
        """Return the messages that there are, or as they arrive.

        Raises as `check_stream`, unless Spark runs behind a Spark Connect server.
        """
        options = self.options
        # Of Spark Connect the session is another class, and it is the server that must reach the stream.
        if isinstance(spark, SparkSession):
            parsed = parse_options(options)
            state = check_stream(parsed)
            if not stream and parsed.end == "latest":
                # A job that reads them several times reads the same ones, whatever arrives meanwhile.
                options = {
                    **{key: value for key, value in options.items() if key.lower() != "end"},
                    "end": str(state.last),
                }
        register_jetstream(spark)
        return read_jetstream(spark.readStream if stream else spark.read, options)


@dataclass(frozen=True, slots=True)
class JetStreamSource(Stream):
    """A stream whose messages are CloudEvents, as a source of jobs."""

    records: bool = True

    def batch(self, spark: SparkSession) -> DataFrame:
        """Return the messages that there are now. Raises as `messages`."""
        return self.messages(spark, stream=False)

    def stream(self, spark: SparkSession, streaming: Streaming) -> DataFrame:  # noqa: ARG002  # `maxMessagesPerBatch`
        """Return messages as they arrive. Raises as `messages`."""
        return self.messages(spark, stream=True)

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return the batch itself."""
        return batch


def check_stream(options: Options) -> StreamState:
    """Check from the driver that the stream exists, so that a mistake is reported early, and return its content.

    Raises `FailedError` (`jetstream.unreachable`) and `RefusedError` (`jetstream.unauthorized`, `jetstream.tls`,
    `jetstream.no-stream`, `jetstream.refused`), which Spark would tell late, and in other words.
    """
    soon = replace(options, timeout=min(options.timeout, _PATIENCE), retries=0)
    with JetStreamLink(soon) as link:
        return link.call(lambda client: stream_state(client, soon))

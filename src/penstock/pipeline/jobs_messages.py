"""Messages of a JetStream stream, and those that the job `ingest` reads. Both need the extra `penstock[nats]`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.ingest import Ingested, ingest_envelopes
from penstock.pipeline.jetstream import register
from penstock.pipeline.jetstream_link import Link, StreamState, stream_state
from penstock.pipeline.jetstream_options import Options, parse_options
from penstock.pipeline.jetstream_records import read_jetstream
from penstock.pipeline.streaming import Streaming
from penstock.trust.event_types import VerifiedType

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
        register(spark)
        return read_jetstream(spark.readStream if stream else spark.read, options)


@dataclass(frozen=True, slots=True)
class Messages(Stream):
    """CloudEvents in a stream."""

    types: tuple[VerifiedType, ...]

    def read(self, spark: SparkSession, streaming: Streaming | None) -> DataFrame:
        """Return the messages. Raises as `messages`."""
        return self.messages(spark, stream=streaming is not None)

    def ingest(self, records: DataFrame, at: datetime) -> Ingested:
        """Return what becomes of them."""
        return ingest_envelopes(records, self.types, at)


def check_stream(options: Options) -> StreamState:
    """Ask once, from here, whether the stream is there, so that whoever starts a job soon knows; and what it holds.

    Raises `FailedError` (`jetstream.unreachable`) and `RefusedError` (`jetstream.unauthorized`, `jetstream.tls`,
    `jetstream.no-stream`, `jetstream.refused`), which Spark would tell late, and in other words.
    """
    soon = replace(options, timeout=min(options.timeout, _PATIENCE), retries=0)
    with Link(soon) as link:
        return link.call(lambda client: stream_state(client, soon))

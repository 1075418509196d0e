"""JetStream messages as records for ingest, and events as messages: what files are elsewhere.

    @file      string   `nats:` and the name of the stream; never its address, and so never what an address may carry
    @position  bigint   the sequence in the stream
    @original  binary   the payload

A message is one CloudEvent in structured JSON, as a line of a file is. Its headers are not read: who can put a message
into a stream can give it any header. Stream and sequence name a message for as long as the stream lives, so a record in
quarantine can be looked up, and a batch that is read again has the same records.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.model.types import EventType
from penstock.pipeline.frames import ID, SOURCE, TIME, quoted
from penstock.pipeline.jetstream import NAME
from penstock.pipeline.jetstream_options import parse_options
from penstock.pipeline.records import FILE, ORIGINAL, POSITION
from penstock.pipeline.strict_files import Reader

_COLUMNS: Final = "sequence,payload"
_JSON: Final = {"timeZone": "UTC", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


def read_jetstream(reader: Reader, options: Mapping[str, str]) -> DataFrame:
    """Return the messages of a stream as records: those there are now, or with `spark.readStream` all to come.

    `options` are those of docs/reference/jetstream.md, of which `columns` has no effect here; the session must know
    the source (`penstock.pipeline.jetstream.register`). Raises as `parse_options`, before Spark sees an option.
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

    The payload is the envelope that ingest reads; null attributes are absent. JSON has no number for NaN and the
    infinities: they go out as texts, which an ingest then refuses. Events of two sources may have the same id, so the
    source is the message's key.
    """
    data = F.struct(*(quoted(attribute.name).alias(attribute.name) for attribute in event_type.attributes))
    envelope = F.struct(
        F.lit("1.0").alias("specversion"),
        quoted(ID).alias("id"),
        quoted(SOURCE).alias("source"),
        F.lit(str(event_type.name)).alias("type"),
        quoted(TIME).alias("time"),
        data.alias("data"),
    )
    return events.select(
        F.lit(subject).alias("subject"),
        quoted(ID).alias("id"),
        quoted(SOURCE).alias("key"),
        F.to_json(envelope, _JSON).alias("payload"),
    )

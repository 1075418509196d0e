"""Sealed blocks as messages of JetStream, which are the blocks that brokers send, and as rows of a sealed log.

A message that is not a block, or has attributes without a column in the log, is in `@block` unchanged.
Blocks of blinded types say names in a log that `seal` writes, and labels once they are messages.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from penstock.codec.blocks import PlainNames, join, names, read_header, reroute
from penstock.crypto.blinding import blind_newest
from penstock.crypto.seal_keys import KeyRing
from penstock.errors import PenstockError
from penstock.model.names import TypeKey
from penstock.model.types import EventType
from penstock.pipeline.ingest.records import ORIGINAL
from penstock.pipeline.jetstream.messages import Stream, check_stream
from penstock.pipeline.jetstream.options import parse_options
from penstock.pipeline.jetstream.source import NAME, register_jetstream
from penstock.pipeline.outputs import Streaming
from penstock.pipeline.sealed.log import (
    BLOCK,
    FIRST,
    HEADER,
    ROWS,
    KeyFiles,
    columns_of,
    map_arrow,
    sealed_arrow,
    sealed_schema,
)
from penstock.pipeline.sealed.writer import LogRows

_MESSAGE: Final = StructType([StructField("id", StringType()), StructField("payload", BinaryType())])


def split_messages(records: DataFrame, columns: Iterable[str]) -> DataFrame:
    """Return the payloads of messages (`@original`) as rows of a log with columns for some attributes."""
    cut = _Cut(tuple(columns))
    schema = StructType([*sealed_schema(cut.columns), StructField(BLOCK, BinaryType())])
    return map_arrow(records, cut.rows, schema, [ORIGINAL])


def block_messages(blocks: DataFrame, blinded: "Blinding | None" = None) -> DataFrame:
    """Return blocks as messages for `penstock.jetstream`, under the names that brokers use."""
    return map_arrow(blocks, _Messages(blinded).of, _MESSAGE)


@dataclass(frozen=True, slots=True)
class Blinding:
    """Arguments of tasks about blinded types: the types, and the files of their label keys."""

    types: frozenset[TypeKey]
    keys: KeyFiles

    @classmethod
    def of(cls, types: Iterable[EventType], keys: KeyFiles) -> "Blinding | None":
        """Return the arguments, if some are blinded. Raises `RefusedError` (`seal.unknown-label`)."""
        found = frozenset(one.key for one in types if one.blinded)
        if not found:
            return None
        ring = keys.read()
        for key in found:
            blind_newest(ring, names(key, (), ()))
        return cls(found, keys)


@dataclass(frozen=True, slots=True)
class _Cut:
    """Cuts blocks into the columns of a log."""

    columns: tuple[str, ...]

    def rows(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield rows of a log."""
        log = LogRows(sealed_arrow(self.columns).append(pa.field(BLOCK, pa.binary())))
        for batch in batches:
            for data in batch.column(ORIGINAL).to_pylist():
                yield from log.add(self._row(data or b""))
        yield from log.rest()

    def _row(self, data: bytes) -> Mapping[str, Any]:
        try:
            row = LogRows.row(data)
        except PenstockError:
            return {BLOCK: data}
        known = row.keys() <= {HEADER, ROWS, FIRST, *self.columns}
        return row if known else {BLOCK: data, ROWS: row[ROWS]}


@dataclass(frozen=True, slots=True)
class _Messages:
    """Puts blocks together."""

    blinding: Blinding | None = None

    def of(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield messages."""
        ring = None if self.blinding is None else self.blinding.keys.read()
        for batch in batches:
            blocks = [self._routed(_joined(row), ring) for row in batch.to_pylist()]
            ids = [f"{header.sender}/{header.id.hex()}" for header in map(read_header, blocks)]
            yield pa.RecordBatch.from_arrays([pa.array(ids), pa.array(blocks, pa.binary())], ["id", "payload"])

    def _routed(self, block: bytes, ring: KeyRing | None) -> bytes:
        """Return a block as brokers send it: those that carry a blinded block do not learn its type."""
        if self.blinding is None or ring is None:
            return block
        route = read_header(block).route
        if not isinstance(route, PlainNames) or route.names.type not in self.blinding.types:
            return block
        return reroute(block, blind_newest(ring, route.names))


def _joined(row: Mapping[str, Any]) -> bytes:
    columns = {name: data for name, data in row.items() if data is not None and name not in (HEADER, ROWS, FIRST)}
    return join(row[HEADER], {"": row[FIRST], **columns})


@dataclass(frozen=True, slots=True)
class MessageSink:
    """A JetStream stream that blocks are published to; `options` are those of docs/reference/jetstream.md."""

    options: Mapping[str, str]
    blinding: Blinding | None = None

    def check(self) -> None:
        """Ask once whether the stream is there. Raises as `parse_options` and `check_stream`."""
        check_stream(parse_options(self.options))

    def publish(self, blocks: DataFrame, write_id: str) -> None:
        """Publish blocks; those that were published under the same id before are not published again."""
        register_jetstream(blocks.sparkSession)
        options = {**self.options, "writeId": write_id}
        block_messages(blocks, self.blinding).write.format(NAME).mode("append").options(**options).save()


@dataclass(frozen=True, slots=True)
class MessageBlocks(Stream):
    """The blocks in a stream."""

    types: tuple[EventType, ...]

    def all(self, spark: SparkSession) -> DataFrame:
        """Return the blocks that there are. Raises as `messages`."""
        return self.arrived(self.messages(spark, stream=False))

    def arriving(self, spark: SparkSession, streaming: Streaming) -> DataFrame:  # noqa: ARG002  # of files
        """Return the messages as they arrive. Raises as `messages`."""
        return self.messages(spark, stream=True)

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return the blocks in some messages."""
        return split_messages(batch, columns_of(self.types))

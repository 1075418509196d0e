"""Events become sealed blocks, of so many rows as are asked for.

Each attempt at a task makes a sealer of its own, in the process where it runs, so that no attempt repeats a nonce of
another. A task seals what its partition holds; the last block of each type may be shorter.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import StringType, StructField, StructType

from penstock.codec.blocks import FIRST as FIRST_NAME
from penstock.codec.blocks import (
    LABEL_BYTES,
    BlockNames,
    EncodedBlock,
    Fixed,
    Level,
    names,
    read_block,
    read_fixed,
    read_parts,
    split,
)
from penstock.codec.columns import KINDS, NULL, encode_cells, encode_column, instant, malformed_column
from penstock.codec.limits import ROUTE_BLOCK_BYTES, ROUTE_BLOCK_EVENTS
from penstock.crypto.aead import CipherAlgorithm
from penstock.crypto.limits import CRYPTO_LIMITS, CryptoLimits
from penstock.crypto.opener import Opener
from penstock.crypto.seal_keys import KeyRing, scopes
from penstock.crypto.sealer import Sealer, SealerSettings
from penstock.errors import LimitError, PenstockError, RefusedError
from penstock.model.principals import Principal
from penstock.model.types import EventType, Sealing
from penstock.model.values import Kind
from penstock.pipeline.frames import ID, TIME, quoted
from penstock.pipeline.ingest.event_frames import REASON, TYPE
from penstock.pipeline.sealed.columns import ARROW_TYPES, CODES, EARLIEST, LATEST, decode_array, encode_array
from penstock.pipeline.sealed.log import (
    FIRST,
    HEADER,
    ROWS,
    KeyFiles,
    columns_of,
    map_arrow,
    read_signer,
    sealed_arrow,
    sealed_schema,
)

BLOCK_ROWS: Final = 65_536
"""The default number of rows of a block."""
_SMALL: Final = 64
"""Blocks of fewer events are written value by value: Arrow takes longer to begin than that."""
_TOO_LARGE: Final = "block.limit"
_BATCH_BYTES: Final = 16 << 20
_BATCH_ROWS: Final = 4_096


@dataclass(frozen=True, slots=True)
class Writing:
    """Arguments of tasks: the files of their keys, the sender and time to seal with, and the events per block."""

    keys: KeyFiles
    types: tuple[EventType, ...]
    sender: Principal
    at: datetime
    rows: int = BLOCK_ROWS
    settings: SealerSettings = SealerSettings()  # noqa: RUF009  # it does not change
    #: the file of the sender's private key, if blocks are signed
    signer: str | None = None
    limits: CryptoLimits = CRYPTO_LIMITS

    def for_brokers(self) -> "Writing":
        """Return the same with blocks that are no larger than those that brokers take from each other."""
        labels = (LABEL_BYTES * (1 + len(t.ancestors) + len(t.attributes)) for t in self.types if t.blinded)
        # Labels may be longer than the names that they are put in place of.
        most = ROUTE_BLOCK_BYTES - max(labels, default=0)
        limits = replace(self.limits, block_bytes=most)
        return replace(self, rows=min(self.rows, ROUTE_BLOCK_EVENTS), limits=limits)

    @property
    def sealed_types(self) -> tuple[EventType, ...]:
        """The versions whose owners want them sealed."""
        return tuple(t for t in self.types if t.sealing is not Sealing.NONE)

    @property
    def columns(self) -> tuple[str, ...]:
        """The attributes that have a column of the log."""
        return columns_of(self.sealed_types)

    def tagged(self, events: DataFrame) -> DataFrame:
        """Return events with the code of why they cannot be sealed in `@reason`, which mostly is null."""
        return events.select("*", _problem(events, self.sealed_types).alias(REASON))

    def blocks(self, events: DataFrame) -> DataFrame:
        """Return the blocks of events, all of which can be sealed; but those that are too large for a block."""
        return map_arrow(events, self._sealed, sealed_schema(self.columns))

    def too_large(self, events: DataFrame) -> DataFrame:
        """Return those of the same events that are too large, with the code in `@reason`.

        It takes as long as sealing them: ask where blocks hold fewer events than there are.
        """
        return map_arrow(events, self._left, StructType([*events.schema, StructField(REASON, StringType())]))

    def _sealed(self, batches: Iterable[Any]) -> Iterator[Any]:
        writer = _Writer(self)
        log = LogRows(sealed_arrow(self.columns))
        for event_type, table in _gathered(batches, self.sealed_types, self.rows):
            for row in writer.seal(event_type, table):
                yield from log.add(row)
        yield from log.rest()

    def _left(self, batches: Iterable[Any]) -> Iterator[Any]:
        writer = _Writer(self)
        for event_type, table in _gathered(batches, self.sealed_types, self.rows):
            if places := writer.too_large(event_type, table):
                reasons = pa.array([_TOO_LARGE] * len(places), pa.string())
                yield from table.take(pa.array(places, pa.int64())).append_column(REASON, reasons).to_batches()


def _problem(events: DataFrame, types: Iterable[EventType]) -> Column:
    kinds = {str(a.id): a.spec.kind for t in types for a in t.attributes}
    known = [str(t.name) for t in types]
    texts = [ID, *(name for name, kind in kinds.items() if kind is Kind.STRING)]
    moments = [TIME, *(name for name, kind in kinds.items() if kind is Kind.TIMESTAMP)]
    torn = [~F.is_valid_utf8(quoted(name)) for name in texts if name in events.columns]
    far = [~F.unix_micros(quoted(name)).between(EARLIEST, LATEST) for name in moments if name in events.columns]
    return (
        F.when(~F.coalesce(quoted(TYPE).isin(*known), F.lit(False)), F.lit("seal.level"))
        .when(quoted(ID).isNull(), F.lit("block.malformed"))
        .when(_any(torn), F.lit("value.text"))
        .when(_any(far), F.lit("value.range"))
    )


def _any(conditions: list[Column]) -> Column:
    return F.exists(F.array(*conditions), lambda found: F.coalesce(found, F.lit(False)))


def _gathered(batches: Iterable[Any], types: Iterable[EventType], rows: int) -> Iterator[tuple[EventType, Any]]:
    """Gather events by type, and yield whole blocks; at the end, yield the remaining events."""
    by_name = {str(t.name): t for t in types}
    waiting: dict[str, list[Any]] = {}
    for batch in batches:
        found = batch.column(TYPE)
        for name in pc.unique(found).to_pylist():
            parts = waiting.setdefault(name, [])
            parts.append(batch.filter(pc.equal(found, name)))
            if sum(part.num_rows for part in parts) >= rows:
                table = pa.Table.from_batches(parts)
                whole = table.num_rows - table.num_rows % rows
                yield by_name[name], table.slice(0, whole)
                waiting[name] = table.slice(whole).to_batches()
    for name, parts in waiting.items():
        if parts:
            yield by_name[name], pa.Table.from_batches(parts)


class _Writer:
    """Seals the events of one task."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self._keys = writing.keys.read()
        self._sealer = self._new_sealer()

    def _new_sealer(self) -> Sealer:
        writing = self._writing
        signing = None if writing.signer is None else read_signer(writing.signer)
        return Sealer(
            self._keys, writing.sender, os.urandom, settings=writing.settings, signing=signing, limits=writing.limits
        )

    def seal(self, event_type: EventType, table: Any) -> Iterator[Mapping[str, Any]]:
        """Seal a table, in blocks of as many rows as are asked for, and yield rows of a log."""
        for found in self._sealed(event_type, table):
            if not isinstance(found, int):
                yield found

    def too_large(self, event_type: EventType, table: Any) -> list[int]:
        """Return the places of events that have no room in a block, and so are not sealed."""
        return [found for found in self._sealed(event_type, table) if isinstance(found, int)]

    def _sealed(self, event_type: EventType, table: Any) -> Iterator[Mapping[str, Any] | int]:
        """Yield rows of a log, and the places of events that are too large for one."""
        level = Level.EVENT if event_type.sealing is Sealing.EVENT else Level.ATTRIBUTE
        own = names(event_type.key, event_type.ancestors, tuple(str(a.id) for a in event_type.attributes))
        kinds = {ID: Kind.STRING, TIME: Kind.TIMESTAMP, **{str(a.id): a.spec.kind for a in event_type.attributes}}
        arrays = [(_array(table, name).cast(ARROW_TYPES[kind]), kind) for name, kind in kinds.items()]
        for found in self._cut(own, arrays, level):
            yield found if isinstance(found, int) else _row(own, level, found)

    def _cut(self, own: BlockNames, arrays: Sequence[tuple[Any, Kind]], level: Level) -> Iterator[bytes | int]:
        rows = self._writing.rows
        columns = [(array.to_pylist() if rows < _SMALL else array, kind) for array, kind in arrays]
        if rows == 1:
            # A column of one value is the same bytes as the value by itself.
            cells = zip(*(encode_cells(column) for column, _ in columns), strict=True)
            for place, (ids, times, *rest) in enumerate(cells):
                try:
                    yield self._seal(EncodedBlock(own, 1, ids, times, rest), level)
                except LimitError:
                    yield place
            return
        count = len(columns[0][0])
        for start in range(0, count, rows):
            yield from self._blocks(own, columns, level, range(start, min(start + rows, count)))

    def _blocks(
        self, own: BlockNames, columns: Sequence[tuple[Any, Kind]], level: Level, places: range
    ) -> Iterator[bytes | int]:
        """Seal some rows of columns as one block, or as several if it would be too large."""
        parts = ((column[places.start : places.stop], kind) for column, kind in columns)
        ids, times, *rest = (
            encode_column(part) if isinstance(part, list) else encode_array(part, kind) for part, kind in parts
        )
        half = len(places) // 2
        try:
            yield self._seal(EncodedBlock(own, len(places), ids, times, rest), level)
        except LimitError:
            if not half:
                yield places.start
                return
            yield from self._blocks(own, columns, level, places[:half])
            yield from self._blocks(own, columns, level, places[half:])

    def _seal(self, encoded: EncodedBlock, level: Level) -> bytes:
        try:
            return self._sealer.seal_encoded(encoded, self._writing.at, level)
        except RefusedError as error:
            if error.code != "seal.exhausted":
                raise
        self._sealer = self._new_sealer()
        return self._sealer.seal_encoded(encoded, self._writing.at, level)


def _row(own: BlockNames, level: Level, data: bytes) -> dict[str, Any]:
    """Return a block with these names as a row. It was just assembled, so it is split without being parsed."""
    parts = read_block(data)
    columns = zip((FIRST, *(own.attributes if level is Level.ATTRIBUTE else ())), parts.columns, strict=True)
    return {HEADER: parts.opening(), ROWS: parts.rows, **dict(columns)}


def _array(table: Any, name: str) -> Any:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


class LogRows:
    """Rows of a sealed log on their way to Spark, some at a time."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._rows: list[Mapping[str, Any]] = []
        self._size = 0

    @staticmethod
    def row(data: bytes) -> dict[str, Any]:
        """Return a block as a row. Raises what `split` raises."""
        header, columns = split(data)
        return {HEADER: header, ROWS: read_parts(header, {}).rows, FIRST: columns.pop(""), **columns}

    def add(self, row: Mapping[str, Any]) -> Iterator[Any]:
        """Take a row."""
        self._rows.append(row)
        self._size += sum(len(data) for data in row.values() if isinstance(data, bytes))
        if self._size >= _BATCH_BYTES or len(self._rows) >= _BATCH_ROWS:
            yield from self.rest()

    def rest(self) -> Iterator[Any]:
        """Return the remaining events."""
        if self._rows:
            yield pa.RecordBatch.from_pylist(self._rows, schema=self._schema)
        self._rows, self._size = [], 0


# ----------------------------------------------------------------------------------------------------------------------
# Small blocks become large ones, and say the same.
#
# Blocks are put together that have everything in common but incarnation, number and time: sender, type, attributes,
# level, algorithm, padding, and the epochs of all columns. They are resealed under the keys of those same epochs, so
# that nobody can read afterwards who could not before, in the name of the same sender.
#
# What is left as it is: blocks that are long enough, blocks that are signed, since nobody else can sign them, and
# blocks of which a column does not open here, or is none. See ADR 20.


_KINDS: Final = {code: kind for kind, code in CODES.items()}


@dataclass(frozen=True, slots=True)
class Compacting:
    """Arguments of tasks: the files of their keys, and the number of events of a block."""

    keys: KeyFiles
    rows: int = BLOCK_ROWS

    def blocks(self, blocks: DataFrame) -> DataFrame:
        """Return blocks with the same events, in fewer of them."""
        return map_arrow(blocks, self._compacted, blocks.schema)

    def _compacted(self, batches: Iterable[Any]) -> Iterator[Any]:
        merger, log = _Merger(self), None
        for batch in batches:
            if log is None:
                log = LogRows(batch.schema)
            for row in batch.to_pylist():
                for found in merger.add(row):
                    yield from log.add(found)
        for found in merger.rest():
            if log is not None:
                yield from log.add(found)
        if log is not None:
            yield from log.rest()


class _Key(NamedTuple):
    """The key of blocks that can be merged."""

    fixed: Fixed
    route: bytes


class _Opened(NamedTuple):
    """A block that was opened, and read."""

    #: of the log, if it stays as it is
    row: dict[str, Any]
    key: _Key
    names: BlockNames
    rows: int
    time: int
    #: of ids, of times, and of each attribute; the kind is `None` where all values are null
    columns: list[tuple[Kind | None, Any]]


@dataclass(slots=True)
class _Waiting:
    """Blocks that wait to become one."""

    kinds: list[Kind | None]
    blocks: list[_Opened] = field(default_factory=list)
    rows: int = 0

    def fits(self, block: _Opened, most: int) -> bool:
        """Return whether a block can be merged with these."""
        pairs = zip(self.kinds, (kind for kind, _ in block.columns), strict=True)
        return self.rows + block.rows <= most and all(None in pair or pair[0] is pair[1] for pair in pairs)

    def add(self, block: _Opened) -> None:
        """Take a block."""
        self.kinds = [old or new for old, (new, _) in zip(self.kinds, block.columns, strict=True)]
        self.blocks.append(block)
        self.rows += block.rows


class _Merger:
    """Puts the blocks of one task together."""

    def __init__(self, compacting: Compacting) -> None:
        self._most = compacting.rows
        self._keys = compacting.keys.read()
        self._opener = Opener(self._keys)
        self._waiting: dict[_Key, _Waiting] = {}

    def add(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Take a row of a log, and yield rows that are ready."""
        opened = self._opened(row)
        if opened is None:
            yield row
            return
        waiting = self._waiting.get(opened.key)
        if waiting is not None and not waiting.fits(opened, self._most):
            yield from self._flush(opened.key)
            waiting = None
        if waiting is None:
            waiting = self._waiting[opened.key] = _Waiting([None] * len(opened.columns))
        waiting.add(opened)

    def _opened(self, row: dict[str, Any]) -> _Opened | None:
        columns = {name: data for name, data in row.items() if data is not None and name not in (HEADER, ROWS)}
        columns[FIRST_NAME] = columns.pop(FIRST, b"")
        try:
            parts = read_parts(row[HEADER] or b"", columns)
            if parts.signature or parts.rows >= self._most or parts.rows != row[ROWS]:
                return None
            names, rows, ids, times, rest = self._opener.open_encoded(row[HEADER], columns)
            if None in rest:
                return None
            found = [_decoded(column or b"", rows) for column in (ids, times, *rest)]
        except PenstockError:
            # Unsealing the log reports the error.
            return None
        key = _Key(read_fixed(parts.fixed)._replace(incarnation=b""), parts.route)
        return _Opened(row, key, names, rows, parts.time, found)

    def rest(self) -> Iterator[dict[str, Any]]:
        """Yield the remaining blocks."""
        for key in list(self._waiting):
            yield from self._flush(key)

    def _flush(self, key: _Key) -> Iterator[dict[str, Any]]:
        found = self._waiting.pop(key)
        yield from self._merged(found.blocks, found.kinds)

    def _merged(self, blocks: list[_Opened], kinds: list[Kind | None]) -> Iterator[dict[str, Any]]:
        """Yield blocks merged into one, or into several if it would be too large."""
        if len(blocks) == 1:
            yield blocks[0].row
            return
        try:
            yield LogRows.row(self._sealed(blocks, kinds))
        except LimitError:
            half = len(blocks) // 2
            yield from self._merged(blocks[:half], kinds)
            yield from self._merged(blocks[half:], kinds)

    def _sealed(self, blocks: list[_Opened], kinds: list[Kind | None]) -> bytes:
        ids, times, *columns = (
            NULL if kind is None else encode_array(_joined([block.columns[place][1] for block in blocks], kind), kind)
            for place, kind in enumerate(kinds)
        )
        first = blocks[0]
        encoded = EncodedBlock(first.names, sum(block.rows for block in blocks), ids, times, columns)
        sealer = _sealer(self._keys, first.key.fixed, encoded)
        return sealer.seal_encoded(encoded, instant(max(block.time for block in blocks)), first.key.fixed.level)


def _decoded(data: bytes, rows: int) -> tuple[Kind | None, Any]:
    """Read a column of any kind. Raises `MalformedError` (`block.column`): only columns are sealed."""
    if data == NULL:
        return None, pa.nulls(rows)
    kind = _KINDS.get(data[0] & KINDS) if data else None
    if kind is None:
        raise malformed_column()
    return kind, decode_array(data, rows, kind)


def _joined(parts: list[Any], kind: Kind) -> Any:
    return pa.concat_arrays([part.cast(ARROW_TYPES[kind]) for part in parts])


def _sealer(keys: KeyRing, fixed: Fixed, encoded: EncodedBlock) -> Sealer:
    """Return a sealer that has the keys of the epochs of a block, and no newer ones."""
    own = KeyRing()
    for (scope, _), epoch in zip(scopes(encoded.names, fixed.level), fixed.epochs, strict=True):
        key = keys.key(scope, epoch)
        if key is not None:
            own.put(scope, epoch, key)
    settings = SealerSettings(CipherAlgorithm(fixed.algorithm), fixed.padding)
    return Sealer(own, Principal(fixed.sender), os.urandom, settings=settings)

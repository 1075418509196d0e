"""Small blocks become large ones, and say the same.

Blocks are put together that have everything in common but incarnation, number and time: sender, type, attributes,
level, algorithm, padding, and the epochs of all columns. They are sealed anew under the keys of those same epochs, so
that nobody can read afterwards who could not before, in the name of the same sender, whose word it was and is.

What is left as it is: blocks that are long enough, blocks that are signed, since nobody else can sign them, and blocks
of which a column does not open here, or is none. See ADR 20.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import DataFrame

from penstock.codec.block_names import Names
from penstock.codec.blocks import FIRST as FIRST_NAME
from penstock.codec.blocks import Fixed, read_fixed, read_parts
from penstock.codec.cells import NULL, instant, malformed
from penstock.codec.columns import KINDS
from penstock.codec.encoded_blocks import EncodedBlock
from penstock.crypto.aead import Algorithm
from penstock.crypto.opener import Opener
from penstock.crypto.seal_keys import KeyRing, scopes
from penstock.crypto.sealer import Sealer, Settings
from penstock.errors import LimitError, PenstockError
from penstock.model.principals import Principal
from penstock.model.values import Kind
from penstock.pipeline.sealed_columns import ARROW_TYPES, CODES, decode_array, encode_array
from penstock.pipeline.sealed_log import FIRST, HEADER, ROWS, KeyFiles, map_arrow
from penstock.pipeline.sealed_writing import BLOCK_ROWS, LogRows

_KINDS: Final = {code: kind for kind, code in CODES.items()}


@dataclass(frozen=True, slots=True)
class Compacting:
    """What tasks are told: where their keys are, and how many events a block should have."""

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
    """What blocks must have in common to become one."""

    fixed: Fixed
    route: bytes


class _Opened(NamedTuple):
    """A block that was opened, and read."""

    #: of the log, if it stays as it is
    row: dict[str, Any]
    key: _Key
    names: Names
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
        """Say whether a block can be one with these."""
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
            # Whoever unseals the log will be told.
            return None
        key = _Key(read_fixed(parts.fixed)._replace(incarnation=b""), parts.route)
        return _Opened(row, key, names, rows, parts.time, found)

    def rest(self) -> Iterator[dict[str, Any]]:
        """Yield what is left."""
        for key in list(self._waiting):
            yield from self._flush(key)

    def _flush(self, key: _Key) -> Iterator[dict[str, Any]]:
        found = self._waiting.pop(key)
        yield from self._merged(found.blocks, found.kinds)

    def _merged(self, blocks: list[_Opened], kinds: list[Kind | None]) -> Iterator[dict[str, Any]]:
        """Yield blocks as one, or as several where it would be too large."""
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


def _decoded(octets: bytes, rows: int) -> tuple[Kind | None, Any]:
    """Read a column of whatever kind. Raises `MalformedError` (`block.column`): nothing is sealed that is no column."""
    if octets == NULL:
        return None, pa.nulls(rows)
    kind = _KINDS.get(octets[0] & KINDS) if octets else None
    if kind is None:
        raise malformed()
    return kind, decode_array(octets, rows, kind)


def _joined(parts: list[Any], kind: Kind) -> Any:
    return pa.concat_arrays([part.cast(ARROW_TYPES[kind]) for part in parts])


def _sealer(keys: KeyRing, fixed: Fixed, encoded: EncodedBlock) -> Sealer:
    """Return a sealer that has the keys of the epochs of a block, and no newer ones."""
    own = KeyRing()
    for (scope, _), epoch in zip(scopes(encoded.names, fixed.level), fixed.epochs, strict=True):
        key = keys.key(scope, epoch)
        if key is not None:
            own.put(scope, epoch, key)
    settings = Settings(Algorithm(fixed.algorithm), fixed.padding)
    return Sealer(own, Principal(fixed.sender), os.urandom, settings=settings)

"""Small blocks become large ones, and say the same.

Blocks are put together that have everything in common but incarnation, number and time: sender, type, attributes,
level, algorithm, padding, and the epochs of all columns. They are sealed anew under the keys of those same epochs, so
that nobody can read afterwards who could not before, in the name of the same sender, whose word it was and is.

What is left as it is: blocks that are long enough, blocks that are signed, since nobody else can sign them, and blocks
of which a column does not open here. See ADR 20.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import DataFrame

from penstock.codec.blocks import FIRST as FIRST_NAME
from penstock.codec.blocks import Fixed, Parts, read_fixed, read_parts
from penstock.codec.cells import instant
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


@dataclass(slots=True)
class _Open:
    """Blocks that were opened and wait to become one."""

    encoded: EncodedBlock
    #: of ids, of times, and of each attribute; `None` while all values are null
    kinds: list[Kind | None]
    columns: list[list[Any]]
    rows: int = 0
    time: int = 0
    #: the rows of the log, if it stays at one
    originals: list[dict[str, Any]] = field(default_factory=list)


class _Merger:
    """Puts the blocks of one task together."""

    def __init__(self, compacting: Compacting) -> None:
        self._most = compacting.rows
        self._keys = compacting.keys.read()
        self._opener = Opener(self._keys)
        self._waiting: dict[_Key, _Open] = {}

    def add(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Take a row of a log, and yield rows that are ready."""
        opened = self._opened(row)
        if opened is None:
            yield row
            return
        parts, encoded = opened
        fixed = read_fixed(parts.fixed)._replace(incarnation=b"")
        yield from self._gather(_Key(fixed, parts.route), row, parts, encoded)

    def _opened(self, row: dict[str, Any]) -> tuple[Parts, EncodedBlock] | None:
        columns = {name: data for name, data in row.items() if data is not None and name not in (HEADER, ROWS)}
        columns[FIRST_NAME] = columns.pop(FIRST, b"")
        try:
            parts = read_parts(row[HEADER] or b"", columns)
            if parts.signature or parts.rows >= self._most or parts.rows != row[ROWS]:
                return None
            encoded = self._opener.open_encoded(row[HEADER], columns)
        except PenstockError:
            # Whoever unseals the log will be told.
            return None
        return None if None in encoded.columns else (parts, encoded)

    def _gather(self, key: _Key, row: dict[str, Any], parts: Parts, encoded: EncodedBlock) -> Iterator[dict[str, Any]]:
        octets = [encoded.ids, encoded.times, *(column or b"" for column in encoded.columns)]
        kinds = [_KINDS.get(column[0] & KINDS) for column in octets]
        waiting = self._waiting.get(key)
        if waiting is not None and (waiting.rows + encoded.rows > self._most or not _alike(waiting.kinds, kinds)):
            yield from self._flush(key)
            waiting = None
        if waiting is None:
            waiting = self._waiting[key] = _Open(encoded, kinds, [[] for _ in octets])
        waiting.kinds = [old or new for old, new in zip(waiting.kinds, kinds, strict=True)]
        for parts_of, column, kind in zip(waiting.columns, octets, kinds, strict=True):
            parts_of.append(pa.nulls(encoded.rows) if kind is None else decode_array(column, encoded.rows, kind))
        waiting.rows += encoded.rows
        waiting.time = max(waiting.time, parts.time)
        waiting.originals.append(row)

    def rest(self) -> Iterator[dict[str, Any]]:
        """Yield what is left."""
        for key in list(self._waiting):
            yield from self._flush(key)

    def _flush(self, key: _Key) -> Iterator[dict[str, Any]]:
        found = self._waiting.pop(key)
        if len(found.originals) == 1:
            yield from found.originals
            return
        try:
            yield LogRows.row(self._sealed(key, found))
        except LimitError:
            # Few events, and large ones.
            yield from found.originals

    def _sealed(self, key: _Key, found: _Open) -> bytes:
        ids, times, *columns = (
            b"\0" if kind is None else encode_array(_joined(parts, kind), kind)
            for parts, kind in zip(found.columns, found.kinds, strict=True)
        )
        encoded = EncodedBlock(found.encoded.names, found.rows, ids, times, columns)
        sealer = _sealer(self._keys, key.fixed, encoded)
        return sealer.seal_encoded(encoded, instant(found.time), key.fixed.level)


def _alike(old: list[Kind | None], new: list[Kind | None]) -> bool:
    return all(one is None or other is None or one is other for one, other in zip(old, new, strict=True))


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

"""Blocks whose columns are bytes: the input of sealing, and the output of opening before values are read.

Brokers go from events to values to bytes (`encode_block`, `decode_block`). A job may go from columns of Arrow to these
bytes and back, without a value of Python in between.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

from penstock.codec.block_names import BlockNames, malformed, names
from penstock.codec.blocks import Block, Level
from penstock.codec.cells import Column, decode_row, encode_cells
from penstock.codec.columns import (
    are_common,
    decode_bundle,
    decode_column,
    decode_columns,
    encode_bundle,
    encode_column,
    hold_nulls,
)
from penstock.codec.rows import columns_of, event_of, events_of, lay_out
from penstock.model.events import TransitEvent


class EncodedBlock(NamedTuple):
    """Columns as bytes. One that is closed is `None`."""

    names: BlockNames
    rows: int
    ids: bytes
    times: bytes
    columns: Sequence[bytes | None]


def encode_block(block: Block) -> EncodedBlock:
    """Write the columns of a block. Raises `MalformedError`: what `encode_column` raises."""
    rows = len(block.ids)
    if rows == 1 and None not in block.columns:
        values = [column[0] for column in block.columns if column is not None]
        ids, times, *cells = encode_cells([block.ids[0], block.times[0], *values])
        return EncodedBlock(block.names, 1, ids, times, cells)
    columns = [None if column is None else encode_column(column) for column in block.columns]
    return EncodedBlock(block.names, rows, encode_column(block.ids), encode_column(block.times), columns)


def decode_block(encoded: EncodedBlock) -> Block:
    """Read the columns of a block. Raises `MalformedError` (`block.column`)."""
    found, rows, ids, times, octets = encoded
    return Block(found, decode_column(ids, rows), decode_column(times, rows), decode_columns(octets, rows))


def encode_events(events: Sequence[TransitEvent]) -> EncodedBlock:
    """Write events of one type. Raises what `Block.of` and `encode_block` raise."""
    latest = _LATEST[0] if _LATEST else None
    if latest is not None and latest[0] is events:
        return latest[1]
    encoded = _encode_events(events)
    if type(events) is tuple:
        _LATEST.append((events, encoded))
    return encoded


#: what was written last: a broker seals events, and then sends the same columns in plaintext beside the sealed ones
_LATEST: Final[deque[tuple[tuple[TransitEvent, ...], EncodedBlock]]] = deque(maxlen=1)


def _encode_events(events: Sequence[TransitEvent]) -> EncodedBlock:
    if len(events) != 1:
        found, columns = lay_out(events)
        return _encode(found, events, columns)
    # One row needs no columns.
    event = events[0]
    found = names(event.key, event.ancestors, tuple(event.values))
    ids, times, *cells = encode_cells([event.id, event.time, *event.values.values()])
    return EncodedBlock(found, 1, ids, times, cells)


def encode_events_as(found: BlockNames, events: Sequence[TransitEvent]) -> EncodedBlock:
    """Encode events of a type with these names, or some of them; missing values are null.

    Raises `MalformedError`: what `encode_column` raises.
    """
    return _encode(found, events, columns_of(events, found.attributes))


def _encode(found: BlockNames, events: Sequence[TransitEvent], columns: Sequence[Column]) -> EncodedBlock:
    ids, times = encode_column([event.id for event in events]), encode_column([event.time for event in events])
    return EncodedBlock(found, len(events), ids, times, [encode_column(column) for column in columns])


def decode_events(encoded: EncodedBlock) -> list[TransitEvent]:
    """Read events, without the values of closed columns. Raises `MalformedError` (`block.column`)."""
    found, rows, ids, times, cells = encoded
    if rows != 1:
        columns, nulls = decode_columns(cells, rows), hold_nulls(cells)
        return events_of(found, decode_column(ids, rows), decode_column(times, rows), columns, nulls=nulls)
    id_, time, *values = decode_row((ids, times, *cells))
    return [event_of(found, id_, time, values)]


def bundle(encoded: EncodedBlock, level: Level) -> list[bytes]:
    """Return the plaintext to seal, column by column.

    Raises `MalformedError` (`block.malformed`) if a column is closed or missing, or ids are not strings or times not
    timestamps.
    """
    found, _, ids, times, columns = encoded
    if None in columns or len(columns) != len(found.attributes):
        raise malformed("a column that was not opened cannot be sealed")
    _check_common(ids, times)
    open_ = cast("Sequence[bytes]", columns)
    return [encode_bundle((ids, times, *open_))] if level is Level.EVENT else [encode_bundle((ids, times)), *open_]


def unbundle(found: BlockNames, rows: int, level: Level, plain: Sequence[bytes | None]) -> EncodedBlock:
    """Return the columns of opened plaintext. Raises `MalformedError` (`block.malformed`, `block.column`)."""
    first = plain[0] or b""
    if level is Level.EVENT:
        ids, times, *columns = decode_bundle(first, 2 + len(found.attributes))
        _check_common(ids, times)
        return EncodedBlock(found, rows, ids, times, columns)
    ids, times = decode_bundle(first, 2)
    _check_common(ids, times)
    return EncodedBlock(found, rows, ids, times, plain[1:])


def _check_common(ids: bytes, times: bytes) -> None:
    if not are_common(ids, times):
        raise malformed("the ids of events are strings, and their times timestamps")

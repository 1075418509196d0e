"""Many blocks of one event each, opened together.

What blocks of one sender and type have in common is found once, and only the calls of the cipher are made one by one:
nonces, associated data and values are cut from whole columns, and put together to whole columns.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from numpy.typing import NDArray

from penstock.codec.block_names import Names
from penstock.codec.blocks import Level, Padding, read_parts, unpad
from penstock.codec.cells import INTEGER, LARGEST, WIDTH_SHIFT, malformed
from penstock.crypto.aead import NONCE_BYTES
from penstock.crypto.many_blocks import open_column
from penstock.crypto.opener import Opener, Way
from penstock.model.values import Kind
from penstock.pipeline.sealed_columns import (
    ARROW_TYPES,
    CODES,
    EARLIEST,
    LATEST,
    NAN,
    SIGNED,
    WORD,
    Octets,
    other_kind,
    places,
    strings,
)

_NUMBER: Final = 8
#: number and time, in which the headers of one sender and type differ
_OWN: Final = 16
_LENGTH: Final = 4
Places = NDArray[np.int64]


class Cells(NamedTuple):
    """Values of one attribute, each by itself: where they begin, and how long they are."""

    octets: Octets
    starts: Places
    lengths: Places

    @classmethod
    def of(cls, values: Sequence[bytes]) -> "Cells":
        """Put values together."""
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        return cls(np.frombuffer(b"".join(values), np.uint8), np.cumsum(lengths) - lengths, lengths)

    def bundled(self, count: int) -> list["Cells"]:
        """Cut bundles of so many values (`encode_bundle`). Raises `MalformedError` (`block.column`)."""
        head = _LENGTH * (count - 1)
        if (self.lengths < head).any():
            raise malformed()
        cut = [self._number(_LENGTH * place) for place in range(count - 1)]
        last = self.lengths - head - sum(cut)
        if (last < 0).any():
            raise malformed()
        found, start = [], self.starts + head
        for lengths in (*cut, last):
            found.append(Cells(self.octets, start, lengths))
            start = start + lengths
        return found

    def _number(self, offset: int) -> Places:
        return self.numbers(self.starts + offset, np.dtype("<u4")).astype(np.int64)

    def numbers(self, starts: Places, dtype: "np.dtype[Any]") -> NDArray[Any]:
        """Return a number at each of some places."""
        found: NDArray[Any] = self.octets[starts[:, None] + np.arange(dtype.itemsize)].view(dtype)[:, 0]
        return found

    def texts(self, starts: Places, lengths: Places) -> Any:
        """Return an array of the texts at some places. Raises `pa.ArrowInvalid`."""
        ends = np.concatenate(([0], np.cumsum(lengths)))
        within = np.repeat(starts - ends[:-1], lengths) + np.arange(ends[-1])
        return strings(ends, self.octets[within])


def decode_cells(cells: Cells, kind: Kind) -> Any:
    """Read values of one kind. Raises `MalformedError` (`block.column`, `value.kind`)."""
    octets, starts, lengths = cells
    if (lengths < 1).any():
        raise malformed()
    codes = octets[starts]
    null = codes == 0
    if (lengths[null] != 1).any():
        raise malformed()
    if kind is Kind.STRING:
        if not (null | (codes == CODES[kind])).all():
            raise other_kind()
        return _with_nulls(_texts(cells), null)
    values = np.zeros(len(starts), np.float64 if kind is Kind.FLOAT else np.int64)
    for code, dtype in _forms(kind):
        own = codes == code
        if (lengths[own] != 1 + dtype.itemsize).any():
            raise malformed()
        values[own] = _checked(cells.numbers(starts[own] + 1, dtype), kind, code >> WIDTH_SHIFT)
        null = null | own
    if not null.all():
        raise other_kind()
    array = pa.array(values, mask=codes == 0)
    return array if array.type == ARROW_TYPES[kind] else array.cast(ARROW_TYPES[kind])


def _texts(cells: Cells) -> Any:
    try:
        return cells.texts(cells.starts + 1, cells.lengths - 1)
    except pa.ArrowInvalid:
        raise malformed() from None


def _with_nulls(found: Any, null: NDArray[np.bool_]) -> Any:
    if not null.any():
        return found
    bitmap = pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(found.type, len(found), [bitmap, *found.buffers()[1:]])


def _forms(kind: Kind) -> Iterator[tuple[int, "np.dtype[Any]"]]:
    """Yield the first octets that a value may have, and what the rest is."""
    if kind is Kind.INTEGER:
        yield from ((INTEGER | width << WIDTH_SHIFT, dtype) for width, dtype in enumerate(SIGNED))
    else:
        code = np.dtype("<f8") if kind is Kind.FLOAT else np.dtype("u1") if kind is Kind.BOOLEAN else SIGNED[3]
        yield CODES[kind], code


def _checked(values: NDArray[Any], kind: Kind, width: int) -> NDArray[Any]:
    match kind:
        case Kind.INTEGER:
            wrong = bool(width) and (np.maximum(values, ~values) <= LARGEST[width - 1]).any()
        case Kind.FLOAT:
            wrong = (values.view(WORD)[np.isnan(values)] != NAN).any()
        case Kind.BOOLEAN:
            wrong = (values > 1).any()
        case _:
            wrong = len(values) > 0 and (values.min() < EARLIEST or values.max() > LATEST)
    if wrong:
        raise malformed()
    return values


class Group(NamedTuple):
    """Blocks of one event each, that have everything in common but number and time."""

    rows: Places
    headers: NDArray[np.uint8]


def groups(headers: Any, rows: Places) -> Iterator[Group]:
    """Sort some of the headers of a column by what they have in common."""
    ends, octets = places(headers)
    lengths = np.diff(ends)[rows]
    for length in np.unique(lengths):
        own = rows[lengths == length]
        whole = 0 < len(own) * length == len(octets)
        table = octets.reshape(-1, length) if whole else octets[ends[own][:, None] + np.arange(length)]
        # Where counts begin depends on how many columns there are; a wrong guess is found when nothing opens.
        start = _fixed(bytes(table[0])) if length > 6 else length
        if _same(table[:, :start]) and _same(table[:, start + _OWN :]):
            yield Group(own, table)
            continue
        common = table.copy()
        common[:, start : start + _OWN] = 0
        _, which = np.unique(np.ascontiguousarray(common).view(f"V{length}")[:, 0], return_inverse=True)
        for number in range(int(which.max()) + 1):
            yield Group(own[which == number], table[which == number])


def _same(table: NDArray[np.uint8]) -> bool:
    """Say whether all rows are equal."""
    return bool((table == table[0]).all())


def _fixed(header: bytes) -> int:
    return 54 + 8 * int.from_bytes(header[4:6], "big")


class OpenedGroup(NamedTuple):
    """What was opened: arrays of ids and times, and of each attribute for which there is a key."""

    names: Names
    sender: bytes
    ids: Any
    times: Any
    columns: Mapping[str, Any]


def open_group(
    opener: Opener, group: Group, columns: Mapping[str, Any], wanted: Collection[str], kinds: Mapping[str, Kind]
) -> OpenedGroup:
    """Open blocks of one event each: `columns` are the binary columns of a batch, the first one under no name.

    Raises `PenstockError` where one of them does not open: then who wants to know which opens them one by one.
    """
    template = bytes(group.headers[0])
    way, parts = opener.way(template), read_parts(template, {})
    if parts.rows != 1:
        raise malformed()
    names, level = way.names, way.fixed.level
    start = len(parts.fixed)
    nonces = np.zeros((len(group.rows), NONCE_BYTES), np.uint8)
    nonces[:, -_NUMBER:] = group.headers[:, start : start + _NUMBER]
    digest = np.frombuffer(names.digest, np.uint8)
    bound = np.hstack((group.headers[:, : len(parts.bound)], np.broadcast_to(digest, (len(group.rows), len(digest)))))
    numbers = _slices(nonces)

    def opened(place: int, name: str) -> Cells:
        sealed = _sealed(columns.get(name), group.rows)
        return Cells.of(_unpadded(way, open_column(way, place, numbers, sealed, _slices(bound, way.places[place]))))

    first = opened(0, "").bundled(2 if level is Level.ATTRIBUTE else 2 + len(names.attributes))
    if level is Level.ATTRIBUTE:
        found = {
            name: opened(place, name)
            for place, name in enumerate(names.attributes, 1)
            if name in wanted and way.decrypt[place] is not None
        }
    else:
        found = {name: cells for name, cells in zip(names.attributes, first[2:], strict=True) if name in wanted}
    ids = decode_cells(first[0], Kind.STRING)
    if ids.null_count:
        raise malformed()
    arrays = {name: decode_cells(cells, kinds[name]) for name, cells in found.items()}
    return OpenedGroup(names, way.fixed.sender, ids, decode_cells(first[1], Kind.TIMESTAMP), arrays)


def _unpadded(way: Way, values: list[bytes]) -> list[bytes]:
    padding = way.fixed.padding
    return values if padding is Padding.NONE else [unpad(padding, value) for value in values]


def _slices(table: NDArray[np.uint8], last: bytes = b"") -> list[bytes]:
    """Return the rows of a table, each with the same behind it."""
    if last:
        table = np.hstack((table, np.broadcast_to(np.frombuffer(last, np.uint8), (len(table), len(last)))))
    rows: list[bytes] = np.ascontiguousarray(table).view(f"V{table.shape[1]}")[:, 0].tolist()
    return rows


def _sealed(column: Any, rows: Places) -> list[bytes]:
    if column is None:
        raise malformed()
    chosen = column if len(rows) == len(column) else column.take(pa.array(rows))
    if chosen.null_count:
        raise malformed()
    values: list[bytes] = chosen.to_numpy(zero_copy_only=False).tolist()
    return values

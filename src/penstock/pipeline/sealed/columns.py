"""Columns of sealed blocks (`penstock.codec.columns`) as arrays of Arrow, without a value of Python in between.

Bytes are the same, one for one, as those that brokers write and read value by value; what is in no such form is
refused here too. Strings of Arrow must be UTF-8: Spark's need not be.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # it ships no types
from numpy.typing import NDArray

from penstock.codec.blocks import BlockNames, Level, Padding, read_parts, unpad
from penstock.codec.columns import (
    BOOLEAN,
    FLOAT,
    INTEGER,
    KINDS,
    LARGEST,
    LONGEST,
    NULL,
    NULLS,
    SEPARATED,
    SEPARATED_ROWS,
    STRING,
    TIMESTAMP,
    WIDTH_SHIFT,
    magnitude,
    malformed_column,
    microseconds,
    narrowest,
)
from penstock.crypto.aead import NONCE_BYTES
from penstock.crypto.opener import Opener, OpeningContext, open_column
from penstock.errors import MalformedError
from penstock.model.values import Kind

ByteArray: TypeAlias = NDArray[np.uint8]

ARROW_TYPES: Final[Mapping[Kind, Any]] = {
    Kind.STRING: pa.string(),
    Kind.INTEGER: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.TIMESTAMP: pa.timestamp("us", "UTC"),
}
"""The Arrow type of a column of each kind."""
CODES: Final[Mapping[Kind, int]] = {
    Kind.STRING: STRING,
    Kind.INTEGER: INTEGER,
    Kind.FLOAT: FLOAT,
    Kind.BOOLEAN: BOOLEAN,
    Kind.TIMESTAMP: TIMESTAMP,
}
SIGNED: Final = tuple(np.dtype(name) for name in ("<i1", "<i2", "<i4", "<i8"))
_UNSIGNED: Final = tuple(np.dtype(name) for name in ("<u1", "<u2", "<u4"))
_DOUBLE: Final = np.dtype("<f8")
WORD: Final = np.dtype("<u8")
NAN: Final = np.array([np.nan], _DOUBLE).view(WORD)[0]
EARLIEST: Final = microseconds(datetime(1, 1, 1, tzinfo=UTC))
LATEST: Final = microseconds(datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC))
"""The instants that a timestamp can be, in microseconds since 1970. Arrow has more."""
_BEYOND_ASCII: Final = 0x80
#: the largest offset of a string in Arrow
_MOST_BYTES: Final = (1 << 31) - 1
_ZEROS: Final[Mapping[Kind, Any]] = {Kind.STRING: "", Kind.FLOAT: 0.0, Kind.BOOLEAN: False}


def encode_array(array: Any, kind: Kind) -> bytes:
    """Return the bytes of a column: an array of the type of its kind.

    Raises `MalformedError` (`value.text`, `value.range`) for strings and timestamps that are none.
    """
    rows, code = len(array), CODES[kind]
    if array.null_count == rows:
        return NULL
    if kind is Kind.TIMESTAMP:
        array = array.cast(pa.int64())
    nulls = b""
    if array.null_count:
        code |= NULLS
        nulls = np.packbits(_values(pc.is_valid(array)), bitorder="little").tobytes()
        array = pc.fill_null(array, _ZEROS.get(kind, 0))
    width, parts = _write(array, kind)
    return b"".join((bytes((code | width << WIDTH_SHIFT,)), nulls, *parts))


def _write(array: Any, kind: Kind) -> tuple[int, list[bytes]]:
    if kind is Kind.STRING:
        return _write_strings(array)
    values = _values(array)
    if kind is Kind.BOOLEAN:
        return 0, [(values if len(values) == 1 else np.packbits(values, bitorder="little")).tobytes()]
    if kind is Kind.FLOAT:
        bits = values.astype(_DOUBLE).view(WORD)
        return 0, [np.where(np.isnan(values), NAN, bits).tobytes()]
    low, high = int(values.min()), int(values.max())
    if kind is Kind.TIMESTAMP:
        if low < EARLIEST or high > LATEST:
            raise MalformedError("value.range", "a timestamp before the year 1 or after 9999")
        return 0, [values.astype(SIGNED[3]).tobytes()]
    width = narrowest(magnitude(low, high), LARGEST)
    return width, [values.astype(SIGNED[width]).tobytes()]


def _write_strings(array: Any) -> tuple[int, list[bytes]]:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raise MalformedError("value.text", "a string is not UTF-8") from None
    ends, data = places(array)
    rows = len(array)
    if rows == 1:
        return 0, [data.tobytes()]
    if rows <= SEPARATED_ROWS and not (data == 0).any():
        return SEPARATED, [np.insert(data, ends[1:-1], 0).tobytes()]
    lengths = np.diff(ends[:-1])
    width = narrowest(int(lengths.max()), LONGEST)
    return width, [lengths.astype(_UNSIGNED[width]).tobytes(), data.tobytes()]


def places(array: Any) -> tuple[NDArray[np.int64], ByteArray]:
    """Return the offsets of strings or binaries, from 0, and their bytes."""
    _, offsets, data = array.buffers()
    size = np.int64 if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type) else np.int32
    ends = np.frombuffer(offsets, size)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    raw = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
    return ends - ends[0], raw


def decode_array(data: bytes, rows: int, kind: Kind) -> Any:
    """Read a column of this many values. Raises `MalformedError`: `block.column`, and `value.kind` for another kind."""
    if data == NULL:
        return pa.nulls(rows, ARROW_TYPES[kind])
    form = data[0] if data else 0
    if form & KINDS != CODES[kind]:
        raise malformed_column() if not data else other_kind()
    place, valid = 1, None
    if form & NULLS:
        place += (rows + 7) // 8
        valid = _bits(np.frombuffer(data, np.uint8)[1:place], rows)
        if valid.all() or not valid.any():
            raise malformed_column()
    try:
        found = _read(data, place, rows, kind, form >> WIDTH_SHIFT)
    except (ValueError, OverflowError, IndexError, pa.ArrowInvalid):
        raise malformed_column() from None
    return found if valid is None else _with_nulls(found, kind, valid)


def _read(data: bytes, place: int, rows: int, kind: Kind, width: int) -> Any:
    if kind is Kind.STRING:
        return _read_strings(np.frombuffer(data, np.uint8)[place:], rows, width)
    if kind is Kind.INTEGER:
        narrow = _aligned(data, place, SIGNED[width])
        if len(narrow) != rows or width != narrowest(magnitude(int(narrow.min()), int(narrow.max())), LARGEST):
            raise malformed_column()
        return pa.array(narrow.astype(np.int64, copy=False))
    if width:
        raise malformed_column()
    if kind is Kind.BOOLEAN:
        return pa.array(_booleans(np.frombuffer(data, np.uint8)[place:], rows))
    if kind is Kind.FLOAT:
        floats = np.frombuffer(data, _DOUBLE, offset=place)
        if len(floats) != rows or (floats.view(WORD)[np.isnan(floats)] != NAN).any():
            raise malformed_column()
        return pa.array(floats)
    moments = _aligned(data, place, SIGNED[3])
    if len(moments) != rows or moments.min() < EARLIEST or moments.max() > LATEST:
        raise malformed_column()
    return pa.array(moments).view(ARROW_TYPES[kind])


def _aligned(data: bytes, place: int, size: np.dtype[Any]) -> NDArray[Any]:
    """Return numbers from an unaligned buffer, copied to an aligned one. Raises `ValueError`."""
    return np.frombuffer(data, size, offset=place).copy()


def _booleans(raw: ByteArray, rows: int) -> NDArray[np.bool_]:
    if rows > 1:
        return _bits(raw, rows)
    if len(raw) != 1 or raw[0] > 1:
        raise malformed_column()
    return raw.astype(np.bool_)


def _bits(raw: ByteArray, rows: int) -> NDArray[np.bool_]:
    bits = np.unpackbits(raw, bitorder="little")
    if len(raw) != (rows + 7) // 8 or bits[rows:].any():
        raise malformed_column()
    return bits[:rows].astype(np.bool_)


def _read_strings(raw: ByteArray, rows: int, width: int) -> Any:
    if rows == 1:
        if width:
            raise malformed_column()
        return strings(np.array([0, len(raw)]), raw)
    if width == SEPARATED:
        between = np.flatnonzero(raw == 0)
        if len(between) != rows - 1 or rows > SEPARATED_ROWS:
            raise malformed_column()
        ends = np.concatenate(([0], between - np.arange(rows - 1), [len(raw) - rows + 1]))
        return strings(ends, raw[raw != 0])
    body = (rows - 1) << width
    lengths = raw[:body].view(_UNSIGNED[width])
    text = raw[body:]
    separable = rows <= SEPARATED_ROWS and not (text == 0).any()
    if len(lengths) != rows - 1 or separable or width != narrowest(int(lengths.max()), LONGEST):
        raise malformed_column()
    ends = np.empty(rows + 1, np.int32)
    ends[0] = 0
    np.cumsum(lengths, dtype=np.int32, out=ends[1:-1])
    ends[-1] = len(text)
    return strings(ends, text)


def strings(ends: NDArray[np.signedinteger[Any]], raw: ByteArray) -> Any:
    """Return an array of strings from their offsets and bytes.

    Raises `pa.ArrowInvalid` for ends that do not rise to that of the bytes, and for bytes that are not UTF-8.
    """
    # Lengths are the sender's, and their sum may have passed all numbers. Nobody behind this looks again: see
    # `jobs.session_settings`.
    if ends[-1] != len(raw) or len(raw) > _MOST_BYTES or (ends[1:] < ends[:-1]).any():
        raise pa.ArrowInvalid("strings that end before they begin")
    buffers = [None, pa.py_buffer(ends.astype(np.int32, copy=False)), pa.py_buffer(np.ascontiguousarray(raw))]
    found = pa.Array.from_buffers(pa.string(), len(ends) - 1, buffers)
    # Text that is ASCII is UTF-8 wherever it is cut, and looking at each string takes longer than all the rest.
    found.validate(full=len(raw) > 0 and int(raw.max()) >= _BEYOND_ASCII)
    return found


def _with_nulls(found: Any, kind: Kind, valid: NDArray[np.bool_]) -> Any:
    # The zero of each kind; a float's other zero is not a slot.
    absent = found.filter(pa.array(~valid))
    if kind is Kind.STRING:
        clean = not pc.any(pc.not_equal(pc.binary_length(absent), 0)).as_py()
    elif kind is Kind.FLOAT:
        clean = not _values(absent).view(WORD).any()
    else:
        clean = not _values(absent.cast(pa.int64())).any()
    if not clean:
        raise malformed_column()
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(found.type, len(found), [bitmap, *found.buffers()[1:]])


def _values(array: Any) -> NDArray[Any]:
    found: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found


def other_kind() -> MalformedError:
    """Return the error for a column of another kind."""
    return MalformedError(
        "value.kind", "a column of a block holds another kind than its type says", hint="give the version that it is of"
    )


# ----------------------------------------------------------------------------------------------------------------------
# Many blocks of one event each, opened together.
#
# What blocks of one sender and type have in common is found once, and only the calls of the cipher are made one by one:
# nonces, associated data and values are cut from whole columns, and put together to whole columns.


_NUMBER: Final = 8
#: number and time, in which the headers of one sender and type differ
_OWN: Final = 16
_LENGTH: Final = 4
Places = NDArray[np.int64]


class Cells(NamedTuple):
    """Separate values of one attribute: their offsets and lengths."""

    raw: ByteArray
    starts: Places
    lengths: Places

    @classmethod
    def of(cls, values: Sequence[bytes]) -> "Cells":
        """Put values together."""
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        return cls(np.frombuffer(b"".join(values), np.uint8), np.cumsum(lengths) - lengths, lengths)

    def bundled(self, count: int) -> list["Cells"]:
        """Cut bundles of this many values (`encode_bundle`). Raises `MalformedError` (`block.column`)."""
        head = _LENGTH * (count - 1)
        if (self.lengths < head).any():
            raise malformed_column()
        cut = [self._number(_LENGTH * place) for place in range(count - 1)]
        last = self.lengths - head - sum(cut)
        if (last < 0).any():
            raise malformed_column()
        found, start = [], self.starts + head
        for lengths in (*cut, last):
            found.append(Cells(self.raw, start, lengths))
            start = start + lengths
        return found

    def _number(self, offset: int) -> Places:
        return self.numbers(self.starts + offset, np.dtype("<u4")).astype(np.int64)

    def numbers(self, starts: Places, dtype: "np.dtype[Any]") -> NDArray[Any]:
        """Return a number at each of some places."""
        found: NDArray[Any] = self.raw[starts[:, None] + np.arange(dtype.itemsize)].view(dtype)[:, 0]
        return found

    def texts(self, starts: Places, lengths: Places) -> Any:
        """Return an array of the texts at some places. Raises `pa.ArrowInvalid`."""
        ends = np.concatenate(([0], np.cumsum(lengths)))
        within = np.repeat(starts - ends[:-1], lengths) + np.arange(ends[-1])
        return strings(ends, self.raw[within])


def decode_cells(cells: Cells, kind: Kind) -> Any:
    """Read values of one kind. Raises `MalformedError` (`block.column`, `value.kind`)."""
    raw, starts, lengths = cells
    if (lengths < 1).any():
        raise malformed_column()
    codes = raw[starts]
    null = codes == 0
    if (lengths[null] != 1).any():
        raise malformed_column()
    if kind is Kind.STRING:
        if not (null | (codes == CODES[kind])).all():
            raise other_kind()
        return _cells_with_nulls(_texts(cells), null)
    values = np.zeros(len(starts), np.float64 if kind is Kind.FLOAT else np.int64)
    for code, dtype in _forms(kind):
        own = codes == code
        if (lengths[own] != 1 + dtype.itemsize).any():
            raise malformed_column()
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
        raise malformed_column() from None


def _cells_with_nulls(found: Any, null: NDArray[np.bool_]) -> Any:
    if not null.any():
        return found
    bitmap = pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(found.type, len(found), [bitmap, *found.buffers()[1:]])


def _forms(kind: Kind) -> Iterator[tuple[int, "np.dtype[Any]"]]:
    """Yield the possible first bytes of a value, and the form of the rest."""
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
        raise malformed_column()
    return values


class Group(NamedTuple):
    """Blocks of one event each, that have everything in common but number and time."""

    rows: Places
    headers: NDArray[np.uint8]


def groups(headers: Any, rows: Places) -> Iterator[Group]:
    """Group some of the headers of a column by their common part."""
    ends, raw = places(headers)
    lengths = np.diff(ends)[rows]
    for length in np.unique(lengths):
        own = rows[lengths == length]
        whole = 0 < len(own) * length == len(raw)
        table = raw.reshape(-1, length) if whole else raw[ends[own][:, None] + np.arange(length)]
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
    """Return whether all rows are equal."""
    return bool((table == table[0]).all())


def _fixed(header: bytes) -> int:
    return 54 + 8 * int.from_bytes(header[4:6], "big")


class OpenedGroup(NamedTuple):
    """Opened blocks: arrays of ids and times, and of each attribute for which there is a key."""

    names: BlockNames
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
        raise malformed_column()
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
        raise malformed_column()
    arrays = {name: decode_cells(cells, kinds[name]) for name, cells in found.items()}
    return OpenedGroup(names, way.fixed.sender, ids, decode_cells(first[1], Kind.TIMESTAMP), arrays)


def _unpadded(way: OpeningContext, values: list[bytes]) -> list[bytes]:
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
        raise malformed_column()
    chosen = column if len(rows) == len(column) else column.take(pa.array(rows))
    if chosen.null_count:
        raise malformed_column()
    values: list[bytes] = chosen.to_numpy(zero_copy_only=False).tolist()
    return values

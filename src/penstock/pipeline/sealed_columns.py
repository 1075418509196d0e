"""Columns of sealed blocks (`penstock.codec.columns`) as arrays of Arrow, without a value of Python in between.

Octets are the same, one for one, as those that brokers write and read value by value; what is in no such form is
refused here too. Strings of Arrow must be UTF-8: Spark's need not be.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # it ships no types
from numpy.typing import NDArray

from penstock.codec.cells import (
    BOOLEAN,
    FLOAT,
    INTEGER,
    LARGEST,
    NULL,
    STRING,
    TIMESTAMP,
    WIDTH_SHIFT,
    magnitude,
    malformed,
    microseconds,
    narrowest,
)
from penstock.codec.columns import KINDS, LONGEST, NULLS, SEPARATED, SEPARATED_ROWS
from penstock.errors import MalformedError
from penstock.model.values import Kind

Octets: TypeAlias = NDArray[np.uint8]

ARROW_TYPES: Final[Mapping[Kind, Any]] = {
    Kind.STRING: pa.string(),
    Kind.INTEGER: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.TIMESTAMP: pa.timestamp("us", "UTC"),
}
"""What a column of a kind is in Arrow."""
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
#: what an end of a string can be in Arrow
_MOST_OCTETS: Final = (1 << 31) - 1
_ZEROS: Final[Mapping[Kind, Any]] = {Kind.STRING: "", Kind.FLOAT: 0.0, Kind.BOOLEAN: False}


def encode_array(array: Any, kind: Kind) -> bytes:
    """Return the octets of a column: an array of the type of its kind.

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


def places(array: Any) -> tuple[NDArray[np.int64], Octets]:
    """Return where strings or binaries begin and end, from 0, and their octets."""
    _, offsets, data = array.buffers()
    size = np.int64 if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type) else np.int32
    ends = np.frombuffer(offsets, size)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    octets = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
    return ends - ends[0], octets


def decode_array(data: bytes, rows: int, kind: Kind) -> Any:
    """Read a column of so many values. Raises `MalformedError`: `block.column`, and `value.kind` for another kind."""
    if data == NULL:
        return pa.nulls(rows, ARROW_TYPES[kind])
    form = data[0] if data else 0
    if form & KINDS != CODES[kind]:
        raise malformed() if not data else other_kind()
    place, valid = 1, None
    if form & NULLS:
        place += (rows + 7) // 8
        valid = _bits(np.frombuffer(data, np.uint8)[1:place], rows)
        if valid.all() or not valid.any():
            raise malformed()
    try:
        found = _read(data, place, rows, kind, form >> WIDTH_SHIFT)
    except (ValueError, OverflowError, IndexError, pa.ArrowInvalid):
        raise malformed() from None
    return found if valid is None else _with_nulls(found, kind, valid)


def _read(data: bytes, place: int, rows: int, kind: Kind, width: int) -> Any:
    if kind is Kind.STRING:
        return _read_strings(np.frombuffer(data, np.uint8)[place:], rows, width)
    if kind is Kind.INTEGER:
        narrow = _aligned(data, place, SIGNED[width])
        if len(narrow) != rows or width != narrowest(magnitude(int(narrow.min()), int(narrow.max())), LARGEST):
            raise malformed()
        return pa.array(narrow.astype(np.int64, copy=False))
    if width:
        raise malformed()
    if kind is Kind.BOOLEAN:
        return pa.array(_booleans(np.frombuffer(data, np.uint8)[place:], rows))
    if kind is Kind.FLOAT:
        floats = np.frombuffer(data, _DOUBLE, offset=place)
        if len(floats) != rows or (floats.view(WORD)[np.isnan(floats)] != NAN).any():
            raise malformed()
        return pa.array(floats)
    moments = _aligned(data, place, SIGNED[3])
    if len(moments) != rows or moments.min() < EARLIEST or moments.max() > LATEST:
        raise malformed()
    return pa.array(moments).view(ARROW_TYPES[kind])


def _aligned(data: bytes, place: int, size: np.dtype[Any]) -> NDArray[Any]:
    """Return numbers that begin at any place, copied to where they are read quickly. Raises `ValueError`."""
    return np.frombuffer(data, size, offset=place).copy()


def _booleans(octets: Octets, rows: int) -> NDArray[np.bool_]:
    if rows > 1:
        return _bits(octets, rows)
    if len(octets) != 1 or octets[0] > 1:
        raise malformed()
    return octets.astype(np.bool_)


def _bits(octets: Octets, rows: int) -> NDArray[np.bool_]:
    bits = np.unpackbits(octets, bitorder="little")
    if len(octets) != (rows + 7) // 8 or bits[rows:].any():
        raise malformed()
    return bits[:rows].astype(np.bool_)


def _read_strings(octets: Octets, rows: int, width: int) -> Any:
    if rows == 1:
        if width:
            raise malformed()
        return strings(np.array([0, len(octets)]), octets)
    if width == SEPARATED:
        between = np.flatnonzero(octets == 0)
        if len(between) != rows - 1 or rows > SEPARATED_ROWS:
            raise malformed()
        ends = np.concatenate(([0], between - np.arange(rows - 1), [len(octets) - rows + 1]))
        return strings(ends, octets[octets != 0])
    body = (rows - 1) << width
    lengths = octets[:body].view(_UNSIGNED[width])
    text = octets[body:]
    separable = rows <= SEPARATED_ROWS and not (text == 0).any()
    if len(lengths) != rows - 1 or separable or width != narrowest(int(lengths.max()), LONGEST):
        raise malformed()
    ends = np.empty(rows + 1, np.int32)
    ends[0] = 0
    np.cumsum(lengths, dtype=np.int32, out=ends[1:-1])
    ends[-1] = len(text)
    return strings(ends, text)


def strings(ends: NDArray[np.signedinteger[Any]], octets: Octets) -> Any:
    """Return an array of strings, of which it is said where they end, one after the other.

    Raises `pa.ArrowInvalid` for ends that do not rise to that of the octets, and for what is no UTF-8.
    """
    # Lengths are the sender's, and their sum may have passed all numbers. Nobody behind this looks again: see
    # `session_settings`.
    if ends[-1] != len(octets) or len(octets) > _MOST_OCTETS or (ends[1:] < ends[:-1]).any():
        raise pa.ArrowInvalid("strings that end before they begin")
    buffers = [None, pa.py_buffer(ends.astype(np.int32, copy=False)), pa.py_buffer(np.ascontiguousarray(octets))]
    found = pa.Array.from_buffers(pa.string(), len(ends) - 1, buffers)
    # Text that is ASCII is UTF-8 wherever it is cut, and looking at each string takes longer than all the rest.
    found.validate(full=len(octets) > 0 and int(octets.max()) >= _BEYOND_ASCII)
    return found


def _with_nulls(found: Any, kind: Kind, valid: NDArray[np.bool_]) -> Any:
    # The zero of each kind; a float's other zero is no slot.
    absent = found.filter(pa.array(~valid))
    if kind is Kind.STRING:
        clean = not pc.any(pc.not_equal(pc.binary_length(absent), 0)).as_py()
    elif kind is Kind.FLOAT:
        clean = not _values(absent).view(WORD).any()
    else:
        clean = not _values(absent.cast(pa.int64())).any()
    if not clean:
        raise malformed()
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

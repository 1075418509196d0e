"""Columns of values as bytes: typed, compact, and in one form only.

    column    kind and form (1 byte), bitmap (where some values are null), values
    null      all values are null; nothing follows
    string    all texts in UTF-8 with a NUL between; in long columns, and where a text has a NUL, the lengths in bytes
              of all but the last, in 1, 2 or 4 bytes each, then all texts
    integer   signed numbers of 1, 2, 4 or 8 bytes: of as few as the largest needs
    float     IEEE 754, 8 bytes; there is one NaN
    boolean   a bitmap
    timestamp microseconds since 1970, 8 bytes

Numbers are little-endian and bitmaps begin with the lowest bit, as in Arrow; a null has a slot of zeros, so that places
can be computed. Hence a column of a text is one byte longer than the text, and many values are read and written at
once. What is not in the one form that `encode_column` gives is refused: equal values must be equal bytes, because they
are hashed and signed.
"""

import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from itertools import accumulate, pairwise, repeat
from math import nan
from operator import ne, sub
from struct import Struct
from types import NoneType
from typing import Any, Final, TypeAlias, cast

from penstock.errors import MalformedError
from penstock.model.values import Kind, Scalar, Value, canonical, check_value, kind_of

# ----------------------------------------------------------------------------------------------------------------------
# Values by themselves as bytes: a kind in the first one, then the value. A cell is a column of one row.
#
#     null 0 | string 1, UTF-8 | integer 2, signed, as few of 1, 2, 4 or 8 bytes as it needs
#     float 3, IEEE 754, one NaN | boolean 4, 0 or 1 | timestamp 5, microseconds since 1970 in 8 bytes
#
# The code of an integer's width, 0 to 3, is in the fourth bit and above of the first byte. Numbers are little-endian. A
# value has one form, and any other form is refused.

Column: TypeAlias = list[Any]
"""Values of one attribute, all of one kind or null."""

STRING, INTEGER, FLOAT, BOOLEAN, TIMESTAMP = 1, 2, 3, 4, 5
WIDTH_SHIFT: Final = 4
LARGEST: Final = tuple((1 << bits) - 1 for bits in (7, 15, 31, 63))
"""The largest signed number of each width."""
NULL: Final = b"\0"
"""The null; and the column of nothing but nulls."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
_DOUBLE: Final = Struct("<Bd")
_INSTANT: Final = Struct("<Bq")
_NAN: Final = Struct("<d").pack(nan)
_FALSE, _TRUE = bytes((BOOLEAN, 0)), bytes((BOOLEAN, 1))


def microseconds(instant: datetime) -> int:
    """Return the microseconds since 1970. Raises `MalformedError` (`value.zone`, `value.range`)."""
    if instant.tzinfo is not UTC:
        instant = cast("datetime", canonical(instant))
    return (instant - EPOCH) // MICROSECOND


def instant(number: int) -> datetime:
    """Return the instant so many microseconds after 1970. Raises `MalformedError` (`block.column`)."""
    try:
        return EPOCH + number * MICROSECOND
    except OverflowError:
        raise malformed_column() from None


def encode_cell(value: Scalar) -> bytes:
    """Return the bytes of a column of one value. Raises `MalformedError` as `check_value`."""
    write = _CELL_WRITERS.get(type(value))
    if write is None:
        return encode_cell(one_kind([value])[0])
    try:
        return write(value)
    except (UnicodeEncodeError, OverflowError):
        raise wrong_value([value]) from None


def encode_cells(values: Sequence[Scalar]) -> list[bytes]:
    """Return the bytes of each value as a separate column. Raises `MalformedError` as `check_value`."""
    try:
        # Most values are texts, which need no call.
        return [b"\1" + value.encode() if type(value) is str else _CELL_WRITERS[type(value)](value) for value in values]
    except (KeyError, UnicodeEncodeError, OverflowError):
        return [encode_cell(value) for value in values]


def decode_cell(data: bytes) -> Scalar:
    """Read a column of one value. Raises `MalformedError` (`block.column`)."""
    try:
        return _CELL_READERS[data[0]](data)
    except (IndexError, KeyError, ValueError, OverflowError):
        raise malformed_column() from None


def decode_row(cells: Iterable[bytes | None]) -> list[Any]:
    """Read columns of one value; of one that is closed it is null. Raises `MalformedError` (`block.column`)."""
    try:
        return [
            None if cell is None else cell[1:].decode() if cell[0] == STRING else _CELL_READERS[cell[0]](cell)
            for cell in cells
        ]
    except (IndexError, KeyError, ValueError, OverflowError):
        raise malformed_column() from None


def decode_cells(cells: Sequence[bytes | None]) -> list[Column | None]:
    """Read columns of one value; one that is closed is `None`. Raises `MalformedError` (`block.column`)."""
    values = zip(cells, decode_row(cells), strict=True)
    return [None if cell is None else [value] for cell, value in values]


def _write_integer(value: int) -> bytes:
    width = narrowest(magnitude(value, value), LARGEST)
    return bytes((INTEGER | width << WIDTH_SHIFT,)) + value.to_bytes(1 << width, "little", signed=True)


def _read_integer(width: int, data: bytes) -> int:
    value = int.from_bytes(data[1:], "little", signed=True)
    if len(data) != 1 + (1 << width) or width != narrowest(magnitude(value, value), LARGEST):
        raise malformed_column()
    return value


def _read_float(data: bytes) -> float:
    if len(data) != _DOUBLE.size:
        raise malformed_column()
    value: float = _DOUBLE.unpack(data)[1]
    if value != value and data[1:] != _NAN:  # noqa: PLR0124  # NaN is unequal to itself
        raise malformed_column()
    return value


def _read_boolean(data: bytes) -> bool:
    if data not in (_FALSE, _TRUE):
        raise malformed_column()
    return data == _TRUE


def _read_timestamp(data: bytes) -> datetime:
    if len(data) != _INSTANT.size:
        raise malformed_column()
    return instant(_INSTANT.unpack(data)[1])


def _read_null(data: bytes) -> None:
    if data != NULL:
        raise malformed_column()


_CELL_WRITERS: Final[Mapping[type, Callable[[Any], bytes]]] = {
    str: lambda value: b"\1" + value.encode(),
    int: _write_integer,
    float: lambda value: _DOUBLE.pack(FLOAT, value if value == value else nan),  # noqa: PLR0124  # not so NaN
    bool: lambda value: _TRUE if value else _FALSE,
    datetime: lambda value: _INSTANT.pack(TIMESTAMP, microseconds(value)),
    NoneType: lambda _: NULL,
}
_CELL_READERS: Final[Mapping[int, Callable[[bytes], Scalar]]] = {
    0: _read_null,
    STRING: lambda data: data[1:].decode(),
    **{INTEGER | width << WIDTH_SHIFT: partial(_read_integer, width) for width in range(len(LARGEST))},
    FLOAT: _read_float,
    BOOLEAN: _read_boolean,
    TIMESTAMP: _read_timestamp,
}


def magnitude(low: int, high: int) -> int:
    """Return the number that is as wide as both, and not negative."""
    return max(high, ~low)


def narrowest(largest: int, bounds: tuple[int, ...]) -> int:
    """Return the code of the narrowest width for a number. Raises `OverflowError`."""
    for width, bound in enumerate(bounds):
        if largest <= bound:
            return width
    raise OverflowError


def one_kind(values: Sequence[Scalar]) -> list[Scalar]:
    """Return values as instances of the very types of their kind. Raises `MalformedError` (`value.kind`)."""
    plain: list[Scalar] = []
    kind: Kind | None = None
    for value in values:
        if value is not None:
            kind = kind or kind_of(value)
            check_value(kind, value)
        plain.append(_plain(value))
    return plain


def _plain(value: Scalar) -> Scalar:
    # An enumeration or a NumPy float is an instance of a subclass, and may print or compare differently.
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, datetime):
        moment = cast("datetime", canonical(value))
        return EPOCH + (moment - EPOCH)
    if isinstance(value, str):
        return str.__str__(value)
    return int(value) if isinstance(value, int) else float(value)


def wrong_value(values: Sequence[Scalar]) -> MalformedError:
    """Return the error for values that cannot be written."""
    try:
        one_kind(values)
    except MalformedError as error:
        return error
    return malformed_column()


def malformed_column() -> MalformedError:
    """Return the error for bytes that are in no such form."""
    return MalformedError("block.column", "bytes that are not a column of values in canonical form")


# ----------------------------------------------------------------------------------------------------------------------
# Columns of values.


KINDS: Final = 0x07
NULLS: Final = 0x08
_FORMS: Final = 0x3F

#: types of arrays for numbers of 1, 2, 4 and 8 bytes
_SIGNED: Final = "bhiq"
_UNSIGNED: Final = "BHI"
#: the code of the width of strings with a NUL between, and the rows of the longest such column: in longer ones places
#: are computed, in shorter ones a text is cut at each NUL
SEPARATED: Final = 3
SEPARATED_ROWS: Final = 1_024
#: the first byte of such a column without nulls
_TEXTS: Final = STRING | SEPARATED << WIDTH_SHIFT
_TEXTS_HEAD: Final = bytes((_TEXTS,))
#: bytes of the length of a column in a bundle
_ONE_LENGTH: Final = 4
LONGEST: Final = tuple((1 << bits) - 1 for bits in (8, 16, 32))
_A_SECOND: Final = timedelta(seconds=1)
_SWAPPED: Final = sys.byteorder == "big"


def encode_column(values: Sequence[Scalar]) -> bytes:
    """Return the bytes of a column.

    Raises `MalformedError`: `value.kind` where kinds are mixed, and as `check_value`.
    """
    if len(values) == 1:
        return encode_cell(values[0])
    if values and type(values[0]) is str and (texts := _encode_texts(values)):
        return texts
    kinds = {*map(type, values)}
    nulls = NoneType in kinds
    kinds.discard(NoneType)
    if not kinds:
        return NULL
    kind = kinds.pop()
    if kinds or kind not in _WRITERS:
        return encode_column(one_kind(values))
    write, code, zero = _WRITERS[kind]
    try:
        if not nulls:
            width, body = write(values)
            return bytes((code | width << WIDTH_SHIFT,)) + body
        width, body = write([zero if value is None else value for value in values])
    except (UnicodeEncodeError, OverflowError):
        raise wrong_value(values) from None
    bitmap = _pack_bits([value is not None for value in values])
    return bytes((code | NULLS | width << WIDTH_SHIFT,)) + bitmap + body


def _encode_texts(values: Sequence[Any]) -> bytes:
    """Return the bytes of a column of texts, as most are, in a few calls; and nothing where they are anything else."""
    try:
        # To search all of them for a NUL is faster than to count the separators.
        if len(values) <= SEPARATED_ROWS and "\0" not in "".join(values):
            return _TEXTS_HEAD + "\0".join(values).encode()
    except (TypeError, UnicodeEncodeError):
        # Some are null, or no texts at all.
        pass
    return b""


def decode_columns(columns: Sequence[bytes | None], rows: int) -> list[Column | None]:
    """Read columns of so many values; one that is closed is `None`. Raises `MalformedError` (`block.column`)."""
    if rows == 1:
        return decode_cells(columns)
    if rows > SEPARATED_ROWS:
        return [None if column is None else decode_column(column, rows) for column in columns]
    try:
        # Most values are texts, which need no calls.
        found = [
            None
            if column is None
            else column[1:].decode().split("\0")
            if column[0] == _TEXTS
            else decode_column(column, rows)
            for column in columns
        ]
    except (IndexError, UnicodeDecodeError):
        raise malformed_column() from None
    if not {rows}.issuperset([len(column) for column in found if column is not None]):
        raise malformed_column()
    return found


def decode_column(data: bytes, rows: int) -> Column:
    """Read a column of so many values, one or more. Raises `MalformedError` (`block.column`)."""
    if rows == 1:
        return [decode_cell(data)]
    if data == NULL:
        return [None] * rows
    form = data[0] if data else 0
    read = _READERS.get(form & KINDS)
    if read is None or form > _FORMS:
        raise malformed_column()
    width = form >> WIDTH_SHIFT
    try:
        if not form & NULLS:
            return read(data[1:], rows, width)
        body = 1 + (rows + 7) // 8
        present = _unpack_bits(data[1:body], rows)
        return _with_nulls(read(data[body:], rows, width), present)
    except (ValueError, OverflowError):
        raise malformed_column() from None


def are_common(ids: bytes, times: bytes) -> bool:
    """Return whether columns are such as every block has: strings without a null, and timestamps and nulls."""
    if not ids or not times:
        return False
    return ids[0] & _STRICTLY == STRING and times[0] & KINDS in _OF_TIMES


#: the kind, and whether there are nulls; and the kinds of times, of which all may be null
_STRICTLY: Final = KINDS | NULLS
_OF_TIMES: Final = frozenset((0, TIMESTAMP))


def encode_bundle(parts: Sequence[bytes]) -> bytes:
    """Return several columns as one: the lengths of all but the last, 4 bytes each, and the columns."""
    if len(parts) == 2:  # ids and times
        return b"".join((len(parts[0]).to_bytes(_ONE_LENGTH, "little"), *parts))
    lengths = [*map(len, parts)]
    lengths.pop()
    return b"".join((_lengths(len(lengths)).pack(*lengths), *parts))


def decode_bundle(data: bytes, count: int) -> list[bytes]:
    """Read so many columns. Raises `MalformedError` (`block.column`)."""
    if count == 2:  # ids and times
        end = _ONE_LENGTH + int.from_bytes(data[:_ONE_LENGTH], "little")
        if end > len(data):
            raise malformed_column()
        return [data[_ONE_LENGTH:end], data[end:]]
    struct = _lengths(count - 1)
    if len(data) < struct.size:
        raise malformed_column()
    ends = [*accumulate(struct.unpack_from(data), initial=struct.size), len(data)]
    if ends[-2] > ends[-1]:
        raise malformed_column()
    return [data[start:end] for start, end in pairwise(ends)]


@lru_cache(maxsize=1_024)
def _lengths(count: int) -> Struct:
    return Struct(f"<{count}I")


# Writers return the code of the width, and the bytes; readers get them. None of these sees a null.


def _write_strings(values: Sequence[str]) -> tuple[int, bytes]:
    text = "".join(values)
    if len(values) <= SEPARATED_ROWS and "\0" not in text:
        return SEPARATED, "\0".join(values).encode()
    data = text.encode()
    lengths = [*map(len, values)] if len(data) == len(text) else [len(value.encode()) for value in values]
    lengths.pop()
    width = narrowest(max(lengths), LONGEST)
    return width, _pack(_UNSIGNED[width], lengths) + data


def _read_strings(data: bytes, rows: int, width: int) -> Column:
    if width == SEPARATED:
        values = data.decode().split("\0")
        if len(values) != rows or rows > SEPARATED_ROWS:
            raise malformed_column()
        return values
    body = (rows - 1) << width
    lengths = _unpack(_UNSIGNED[width], data[:body])
    text = data[body:]
    separable = rows <= SEPARATED_ROWS and b"\0" not in text
    if len(lengths) != rows - 1 or separable or width != narrowest(max(lengths), LONGEST):
        raise malformed_column()
    ends = [*accumulate(lengths, initial=0), len(text)]
    if ends[-2] > ends[-1]:
        raise malformed_column()
    if text.isascii():
        # Cutting one text into many is quicker than making a text of each piece.
        whole = text.decode("ascii")
        return [whole[start:end] for start, end in pairwise(ends)]
    return [text[start:end].decode() for start, end in pairwise(ends)]


def _write_integers(values: Sequence[int]) -> tuple[int, bytes]:
    width = narrowest(magnitude(min(values), max(values)), LARGEST)
    return width, _pack(_SIGNED[width], values)


def _read_integers(data: bytes, rows: int, width: int) -> Column:
    values = _unpack(_SIGNED[width], data)
    if len(values) != rows or width != narrowest(magnitude(min(values), max(values)), LARGEST):
        raise malformed_column()
    return values


def _write_floats(values: Sequence[float]) -> tuple[int, bytes]:
    if any(map(ne, values, values)):
        values = [nan if value != value else value for value in values]  # noqa: PLR0124  # NaN is unequal to itself
    return 0, _pack("d", values)


def _read_floats(data: bytes, rows: int, width: int) -> Column:
    values = _unpack("d", data)
    if width or len(values) != rows or (any(map(ne, values, values)) and _write_floats(values)[1] != data):
        raise malformed_column()
    return values


def _write_booleans(values: Sequence[bool]) -> tuple[int, bytes]:
    return 0, _pack_bits(values)


def _read_booleans(data: bytes, rows: int, width: int) -> Column:
    if width:
        raise malformed_column()
    return _unpack_bits(data, rows)


def _write_timestamps(values: Sequence[datetime]) -> tuple[int, bytes]:
    if [value for value in values if value.tzinfo is not UTC]:
        values = [cast("datetime", canonical(value)) for value in values]
    first, since = microseconds(values[0]), [*map(sub, values, repeat(values[0]))]
    if since[-1] < _A_SECOND and since == sorted(since):
        # Mostly they follow each other, and the first one within a second: the microseconds are all that differs.
        return 0, _pack("q", [first + one.microseconds for one in since])
    return 0, _pack("q", [first + one // MICROSECOND for one in since])


def _read_timestamps(data: bytes, rows: int, width: int) -> Column:
    numbers = _unpack("q", data)
    if width or len(numbers) != rows:
        raise malformed_column()
    first = numbers[0]
    base = EPOCH + MICROSECOND * first
    # The differences are mostly small, and small numbers are multiplied quickly.
    return [base + MICROSECOND * (number - first) for number in numbers]


_WRITERS: Final[Mapping[type, tuple[Callable[[Any], tuple[int, bytes]], int, Value]]] = {
    str: (_write_strings, STRING, ""),
    int: (_write_integers, INTEGER, 0),
    float: (_write_floats, FLOAT, 0.0),
    bool: (_write_booleans, BOOLEAN, False),
    datetime: (_write_timestamps, TIMESTAMP, EPOCH),
}
_READERS: Final[Mapping[int, Callable[[bytes, int, int], Column]]] = {
    STRING: _read_strings,
    INTEGER: _read_integers,
    FLOAT: _read_floats,
    BOOLEAN: _read_booleans,
    TIMESTAMP: _read_timestamps,
}


def _pack(code: str, values: Iterable[int | float]) -> bytes:
    numbers = array(code, values)
    if _SWAPPED:  # pragma: no cover  # where machines are little-endian
        numbers.byteswap()
    return numbers.tobytes()


def _unpack(code: str, data: bytes) -> Column:
    numbers = array(code, data)
    if _SWAPPED:  # pragma: no cover  # where machines are little-endian
        numbers.byteswap()
    return numbers.tolist()


def _pack_bits(values: Sequence[bool]) -> bytes:
    # A number in base two has the last value first. Python reads and writes such numbers in linear time.
    digits = "".join(["1" if value else "0" for value in reversed(values)])
    return int(digits, 2).to_bytes((len(values) + 7) // 8, "little")


def _unpack_bits(data: bytes, rows: int) -> list[bool]:
    number = int.from_bytes(data, "little")
    if len(data) != (rows + 7) // 8 or number >> rows:
        raise malformed_column()
    return [digit == "1" for digit in reversed(f"{number:0{rows}b}")]


def _with_nulls(values: Column, present: list[bool]) -> Column:
    absent = [value for value, there in zip(values, present, strict=True) if not there]
    # The zero of each kind. A bitmap of all or nothing has a shorter form, and a float's other zero is not a slot.
    if not absent or len(absent) == len(values) or encode_column(absent) != _zeros(absent):
        raise malformed_column()
    return [value if there else None for value, there in zip(values, present, strict=True)]


def _zeros(like: Column) -> bytes:
    return encode_column([_WRITERS[type(like[0])][2]] * len(like))

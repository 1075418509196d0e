"""Columns of values as octets: typed, compact, and in one form only.

    column    kind and form (1 octet), bitmap (where some values are null), values
    null      all values are null; nothing follows
    string    all texts in UTF-8 with a NUL between; in long columns, and where a text has a NUL, the lengths in octets
              of all but the last, in 1, 2 or 4 octets each, then all texts
    integer   signed numbers of 1, 2, 4 or 8 octets: of as few as the largest needs
    float     IEEE 754, 8 octets; there is one NaN
    boolean   a bitmap
    timestamp microseconds since 1970, 8 octets

Numbers are little-endian and bitmaps begin with the lowest bit, as in Arrow; a null has a slot of zeros, so that places
can be computed. Hence a column of a text is one octet longer than the text, and many values are read and written at
once. What is not in the one form that `encode_column` gives is refused: equal values must be equal octets, because they
are hashed and signed.
"""

import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from itertools import accumulate, pairwise, repeat
from math import nan
from operator import floordiv, ne, sub
from struct import Struct
from types import NoneType
from typing import Any, Final, TypeAlias, cast

from penstock.errors import MalformedError
from penstock.model.values import Kind, Scalar, Value, canonical, check_value, kind_of

Column: TypeAlias = list[Any]
"""Values of one attribute, all of one kind or null."""

_STRING, _INTEGER, _FLOAT, _BOOLEAN, _TIMESTAMP = 1, 2, 3, 4, 5
_KINDS: Final = 0x07
_NULLS: Final = 0x08
_WIDTH_SHIFT: Final = 4
_FORMS: Final = 0x3F

NULL: Final = b"\0"
"""The column of nothing but nulls."""
#: types of arrays for numbers of 1, 2, 4 and 8 octets
_SIGNED: Final = "bhiq"
_UNSIGNED: Final = "BHI"
_LARGEST: Final = tuple((1 << bits) - 1 for bits in (7, 15, 31, 63))
#: the code of the width of strings with a NUL between, and the rows of the longest such column: in longer ones places
#: are computed, in shorter ones a text is cut at each NUL
_SEPARATED: Final = 3
_SEPARATED_ROWS: Final = 1_024
_LONGEST: Final = tuple((1 << bits) - 1 for bits in (8, 16, 32))
_SWAPPED: Final = sys.byteorder == "big"
_DOUBLE: Final = Struct("<Bd")
_INSTANT: Final = Struct("<Bq")
_NAN: Final = Struct("<d").pack(nan)
_FALSE, _TRUE = bytes((_BOOLEAN, 0)), bytes((_BOOLEAN, 1))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def microseconds(instant: datetime) -> int:
    """Return the microseconds since 1970. Raises `MalformedError` (`value.zone`, `value.range`)."""
    if instant.tzinfo is not UTC:
        instant = cast("datetime", canonical(instant))
    since = instant - _EPOCH
    # Written out: dividing by a microsecond takes twice as long.
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def instant(number: int) -> datetime:
    """Return the instant so many microseconds after 1970. Raises `MalformedError` (`block.column`)."""
    try:
        return _EPOCH + number * _MICROSECOND
    except OverflowError:
        raise _malformed() from None


def encode_column(values: Sequence[Scalar]) -> bytes:
    """Return the octets of a column.

    Raises `MalformedError`: `value.kind` where kinds are mixed, and what `check_value` raises.
    """
    if len(values) == 1:
        return encode_cell(values[0])
    kinds = {*map(type, values)}
    nulls = NoneType in kinds
    kinds.discard(NoneType)
    if not kinds:
        return NULL
    kind = kinds.pop()
    if kinds or kind not in _WRITERS:
        return encode_column(_one_kind(values))
    write, code, zero = _WRITERS[kind]
    try:
        if not nulls:
            width, body = write(values)
            return bytes((code | width << _WIDTH_SHIFT,)) + body
        width, body = write([zero if value is None else value for value in values])
    except (UnicodeEncodeError, OverflowError):
        raise _wrong_value(values) from None
    bitmap = _pack_bits([value is not None for value in values])
    return bytes((code | _NULLS | width << _WIDTH_SHIFT,)) + bitmap + body


def encode_cell(value: Scalar) -> bytes:
    """Return the octets of a column of one value. Raises `MalformedError`: what `check_value` raises."""
    write = _CELL_WRITERS.get(type(value))
    if write is None:
        return encode_cell(_one_kind([value])[0])
    try:
        return write(value)
    except (UnicodeEncodeError, OverflowError):
        raise _wrong_value([value]) from None


def decode_column(data: bytes, rows: int) -> Column:
    """Read a column of so many values, one or more. Raises `MalformedError` (`block.column`)."""
    if rows == 1:
        return [decode_cell(data)]
    if data == NULL:
        return [None] * rows
    form = data[0] if data else 0
    read = _READERS.get(form & _KINDS)
    if read is None or form > _FORMS:
        raise _malformed()
    width = form >> _WIDTH_SHIFT
    try:
        if not form & _NULLS:
            return read(data[1:], rows, width)
        body = 1 + (rows + 7) // 8
        present = _unpack_bits(data[1:body], rows)
        return _with_nulls(read(data[body:], rows, width), present)
    except (ValueError, OverflowError):
        raise _malformed() from None


def decode_cell(data: bytes) -> Scalar:
    """Read a column of one value. Raises `MalformedError` (`block.column`)."""
    try:
        return _CELL_READERS[data[0]](data)
    except (IndexError, KeyError, ValueError, OverflowError):
        raise _malformed() from None


def holds_strings(octets: bytes) -> bool:
    """Say whether a column holds strings, and no null."""
    return octets[:1] != b"" and octets[0] & (_KINDS | _NULLS) == _STRING


def holds_timestamps(octets: bytes) -> bool:
    """Say whether a column holds timestamps and nulls."""
    return octets[:1] != b"" and octets[0] & _KINDS in (0, _TIMESTAMP)


def encode_bundle(parts: Sequence[bytes]) -> bytes:
    """Return several columns as one: the lengths of all but the last, 4 octets each, and the columns."""
    lengths = [*map(len, parts)]
    lengths.pop()
    return b"".join((_lengths(len(lengths)).pack(*lengths), *parts))


def decode_bundle(data: bytes, count: int) -> list[bytes]:
    """Read so many columns. Raises `MalformedError` (`block.column`)."""
    struct = _lengths(count - 1)
    if len(data) < struct.size:
        raise _malformed()
    ends = [*accumulate(struct.unpack_from(data), initial=struct.size), len(data)]
    if ends[-2] > ends[-1]:
        raise _malformed()
    return [data[start:end] for start, end in pairwise(ends)]


@lru_cache(maxsize=1_024)
def _lengths(count: int) -> Struct:
    return Struct(f"<{count}I")


# Writers return the code of the width, and the octets; readers get them. None of these sees a null.


def _write_strings(values: Sequence[str]) -> tuple[int, bytes]:
    if len(values) <= _SEPARATED_ROWS:
        text = "\0".join(values)
        if text.count("\0") == len(values) - 1:
            return _SEPARATED, text.encode()
    text = "".join(values)
    data = text.encode()
    lengths = [*map(len, values)] if len(data) == len(text) else [len(value.encode()) for value in values]
    lengths.pop()
    width = _narrowest(max(lengths), _LONGEST)
    return width, _pack(_UNSIGNED[width], lengths) + data


def _read_strings(data: bytes, rows: int, width: int) -> Column:
    if width == _SEPARATED:
        values = data.decode().split("\0")
        if len(values) != rows or rows > _SEPARATED_ROWS:
            raise _malformed()
        return values
    body = (rows - 1) << width
    lengths = _unpack(_UNSIGNED[width], data[:body])
    text = data[body:]
    separable = rows <= _SEPARATED_ROWS and b"\0" not in text
    if len(lengths) != rows - 1 or separable or width != _narrowest(max(lengths), _LONGEST):
        raise _malformed()
    ends = [*accumulate(lengths, initial=0), len(text)]
    if ends[-2] > ends[-1]:
        raise _malformed()
    if text.isascii():
        # Cutting one text into many is quicker than making a text of each piece.
        whole = text.decode("ascii")
        return [whole[start:end] for start, end in pairwise(ends)]
    return [text[start:end].decode() for start, end in pairwise(ends)]


def _write_integers(values: Sequence[int]) -> tuple[int, bytes]:
    width = _narrowest(_magnitude(min(values), max(values)), _LARGEST)
    return width, _pack(_SIGNED[width], values)


def _read_integers(data: bytes, rows: int, width: int) -> Column:
    values = _unpack(_SIGNED[width], data)
    if len(values) != rows or width != _narrowest(_magnitude(min(values), max(values)), _LARGEST):
        raise _malformed()
    return values


def _write_floats(values: Sequence[float]) -> tuple[int, bytes]:
    if any(map(ne, values, values)):
        values = [nan if value != value else value for value in values]  # noqa: PLR0124  # NaN is unequal to itself
    return 0, _pack("d", values)


def _read_floats(data: bytes, rows: int, width: int) -> Column:
    values = _unpack("d", data)
    if width or len(values) != rows or (any(map(ne, values, values)) and _write_floats(values)[1] != data):
        raise _malformed()
    return values


def _write_booleans(values: Sequence[bool]) -> tuple[int, bytes]:
    return 0, _pack_bits(values)


def _read_booleans(data: bytes, rows: int, width: int) -> Column:
    if width:
        raise _malformed()
    return _unpack_bits(data, rows)


def _write_timestamps(values: Sequence[datetime]) -> tuple[int, bytes]:
    if [value for value in values if value.tzinfo is not UTC]:
        values = [cast("datetime", canonical(value)) for value in values]
    return 0, _pack("q", map(floordiv, map(sub, values, repeat(_EPOCH)), repeat(_MICROSECOND)))


def _read_timestamps(data: bytes, rows: int, width: int) -> Column:
    numbers = _unpack("q", data)
    if width or len(numbers) != rows:
        raise _malformed()
    return list(map(_EPOCH.__add__, map(_MICROSECOND.__mul__, numbers)))


_WRITERS: Final[Mapping[type, tuple[Callable[[Any], tuple[int, bytes]], int, Value]]] = {
    str: (_write_strings, _STRING, ""),
    int: (_write_integers, _INTEGER, 0),
    float: (_write_floats, _FLOAT, 0.0),
    bool: (_write_booleans, _BOOLEAN, False),
    datetime: (_write_timestamps, _TIMESTAMP, _EPOCH),
}
_READERS: Final[Mapping[int, Callable[[bytes, int, int], Column]]] = {
    _STRING: _read_strings,
    _INTEGER: _read_integers,
    _FLOAT: _read_floats,
    _BOOLEAN: _read_booleans,
    _TIMESTAMP: _read_timestamps,
}


# The same for columns of one value, which are the most frequent ones by far.


def _write_integer(value: int) -> bytes:
    width = _narrowest(_magnitude(value, value), _LARGEST)
    return bytes((_INTEGER | width << _WIDTH_SHIFT,)) + value.to_bytes(1 << width, "little", signed=True)


def _read_integer(width: int, data: bytes) -> int:
    value = int.from_bytes(data[1:], "little", signed=True)
    if len(data) != 1 + (1 << width) or width != _narrowest(_magnitude(value, value), _LARGEST):
        raise _malformed()
    return value


def _read_float(data: bytes) -> float:
    if len(data) != _DOUBLE.size:
        raise _malformed()
    value: float = _DOUBLE.unpack(data)[1]
    if value != value and data[1:] != _NAN:  # noqa: PLR0124  # NaN is unequal to itself
        raise _malformed()
    return value


def _read_boolean(data: bytes) -> bool:
    if data not in (_FALSE, _TRUE):
        raise _malformed()
    return data == _TRUE


def _read_timestamp(data: bytes) -> datetime:
    if len(data) != _INSTANT.size:
        raise _malformed()
    return instant(_INSTANT.unpack(data)[1])


def _read_null(data: bytes) -> None:
    if data != NULL:
        raise _malformed()


_CELL_WRITERS: Final[Mapping[type, Callable[[Any], bytes]]] = {
    str: lambda value: b"\1" + value.encode(),
    int: _write_integer,
    float: lambda value: _DOUBLE.pack(_FLOAT, value if value == value else nan),  # noqa: PLR0124  # not so NaN
    bool: lambda value: _TRUE if value else _FALSE,
    datetime: lambda value: _INSTANT.pack(_TIMESTAMP, microseconds(value)),
    NoneType: lambda _: NULL,
}
_CELL_READERS: Final[Mapping[int, Callable[[bytes], Scalar]]] = {
    0: _read_null,
    _STRING: lambda data: data[1:].decode(),
    **{_INTEGER | width << _WIDTH_SHIFT: partial(_read_integer, width) for width in range(len(_SIGNED))},
    _FLOAT: _read_float,
    _BOOLEAN: _read_boolean,
    _TIMESTAMP: _read_timestamp,
}


def _magnitude(low: int, high: int) -> int:
    return max(high, ~low)


def _narrowest(largest: int, bounds: tuple[int, ...]) -> int:
    for width, bound in enumerate(bounds):
        if largest <= bound:
            return width
    raise OverflowError


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
        raise _malformed()
    return [digit == "1" for digit in reversed(f"{number:0{rows}b}")]


def _with_nulls(values: Column, present: list[bool]) -> Column:
    absent = [value for value, there in zip(values, present, strict=True) if not there]
    # The zero of each kind. A bitmap of all or nothing has a shorter form, and a float's other zero is no slot.
    if not absent or len(absent) == len(values) or encode_column(absent) != _zeros(absent):
        raise _malformed()
    return [value if there else None for value, there in zip(values, present, strict=True)]


def _zeros(like: Column) -> bytes:
    return encode_column([_WRITERS[type(like[0])][2]] * len(like))


def _one_kind(values: Sequence[Scalar]) -> list[Scalar]:
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
        return _EPOCH + (moment - _EPOCH)
    if isinstance(value, str):
        return str.__str__(value)
    return int(value) if isinstance(value, int) else float(value)


def _wrong_value(values: Sequence[Scalar]) -> MalformedError:
    """Find out what is wrong with values that cannot be written."""
    try:
        _one_kind(values)
    except MalformedError as error:
        return error
    return _malformed()


def _malformed() -> MalformedError:
    return MalformedError("block.column", "octets that are no column of values in its one form")

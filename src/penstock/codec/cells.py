"""Values by themselves as bytes: a kind in the first one, then the value. A cell is a column of one row.

    null 0 | string 1, UTF-8 | integer 2, signed, as few of 1, 2, 4 or 8 bytes as it needs | float 3, IEEE 754, one NaN
    boolean 4, 0 or 1 | timestamp 5, microseconds since 1970 in 8 bytes

The code of an integer's width, 0 to 3, stands in the fourth bit and above of the first byte. Numbers are
little-endian. A value has one form, and what is in no such form is refused.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from math import nan
from struct import Struct
from types import NoneType
from typing import Any, Final, TypeAlias, cast

from penstock.errors import MalformedError
from penstock.model.values import Kind, Scalar, canonical, check_value, kind_of

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
        raise malformed() from None


def encode_cell(value: Scalar) -> bytes:
    """Return the bytes of a column of one value. Raises `MalformedError`: what `check_value` raises."""
    write = _CELL_WRITERS.get(type(value))
    if write is None:
        return encode_cell(one_kind([value])[0])
    try:
        return write(value)
    except (UnicodeEncodeError, OverflowError):
        raise wrong_value([value]) from None


def encode_cells(values: Sequence[Scalar]) -> list[bytes]:
    """Return the bytes of each value by itself. Raises `MalformedError`: what `check_value` raises."""
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
        raise malformed() from None


def decode_row(cells: Iterable[bytes | None]) -> list[Any]:
    """Read columns of one value; of one that is closed it is null. Raises `MalformedError` (`block.column`)."""
    try:
        return [
            None if cell is None else cell[1:].decode() if cell[0] == STRING else _CELL_READERS[cell[0]](cell)
            for cell in cells
        ]
    except (IndexError, KeyError, ValueError, OverflowError):
        raise malformed() from None


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
        raise malformed()
    return value


def _read_float(data: bytes) -> float:
    if len(data) != _DOUBLE.size:
        raise malformed()
    value: float = _DOUBLE.unpack(data)[1]
    if value != value and data[1:] != _NAN:  # noqa: PLR0124  # NaN is unequal to itself
        raise malformed()
    return value


def _read_boolean(data: bytes) -> bool:
    if data not in (_FALSE, _TRUE):
        raise malformed()
    return data == _TRUE


def _read_timestamp(data: bytes) -> datetime:
    if len(data) != _INSTANT.size:
        raise malformed()
    return instant(_INSTANT.unpack(data)[1])


def _read_null(data: bytes) -> None:
    if data != NULL:
        raise malformed()


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
    return malformed()


def malformed() -> MalformedError:
    """Return the error for bytes that are in no such form."""
    return MalformedError("block.column", "bytes that are not a column of values in canonical form")

"""Columns of requests: how a column of Arrow becomes the values of an attribute, and into which classes they fall.

A class is a number. Values of one class are alike to a policy (`penstock.policy.engine.vectors.constants_of`), 0 is
that of requests without the attribute, and what cannot be read is of none (`BROKEN`). Where all that matters is how a
value compares with constants, classes are found for a whole column; otherwise each distinct value is read
once.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor, isnan, nan
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # it ships no types
from numpy.typing import NDArray

from penstock.errors import MalformedError
from penstock.policy.engine.vectors import ORDERED
from penstock.policy.language.datatypes import (
    BASE64,
    BOOLEAN,
    DATE,
    DATE_TIME,
    DOUBLE,
    HEX,
    INTEGER,
    STRING,
    DataType,
    Value,
    read_value,
)
from penstock.policy.language.times import DAY, Date, DateTime, days_of

Classes: TypeAlias = NDArray[np.int64]

MISSING: Final = 0
BROKEN: Final = -1
_EPOCH: Final = days_of(1970, 1, 1)
_MICROS: Final = 1_000_000
_LARGEST: Final = (1 << 63) - 1
_NUMBERS: Final = {True: np.dtype(np.float64), False: np.dtype(np.int64)}


class Column(Protocol):
    """The values of one attribute."""

    @property
    def width(self) -> int | None:
        """How many classes there are, where that is known before."""

    def classes(self, array: Any) -> Classes:
        """Return the classes of the rows of an array."""

    def bag(self, array: Any, row: int) -> tuple[Value, ...]:
        """Return the values in a row that can be read."""

    def groups(self, constants: Iterable[Value]) -> Classes:
        """Return a number for each class, where there are so many: that of those that only other constants part."""

    def clear(self) -> None:
        """Forget classes that were found on the way."""


def column(found: Any, of: DataType, constants: frozenset[Value] | None, separator: str | None = None) -> Column:
    """Return how a column of a type of Arrow is read as an attribute.

    With a separator, texts hold several values. Raises `MalformedError` (`evaluate.column`).
    """
    if separator is not None and _is_text(found):
        return _Bags(_single(pa.string(), of, constants), separator)
    if separator is None and (pa.types.is_list(found) or pa.types.is_large_list(found)):
        return _Bags(_single(found.value_type, of, constants))
    return _single(found, of, constants)


def _single(found: Any, of: DataType, constants: frozenset[Value] | None) -> Column:
    reading = _reading(found, of)
    if constants is not None and of is STRING:
        return _Named(constants, reading)
    if constants is not None and of in ORDERED and not _is_text(found):
        return _Placed(of, constants, reading)
    return _Distinct(of, constants, reading)


def _is_text(found: Any) -> bool:
    return bool(pa.types.is_string(found) or pa.types.is_large_string(found))


# --- values ----------------------------------------------------------------------------------------------------------

_Reading: TypeAlias = Callable[[Any], Value]


def _reading(found: Any, of: DataType) -> _Reading:
    """Return how a scalar of Arrow is read. What cannot be read raises `MalformedError`."""
    types = pa.types
    if _is_text(found):
        return lambda scalar: read_value(_text(scalar), of)
    if of is INTEGER and types.is_integer(found):
        return lambda scalar: scalar.as_py()
    if of is BOOLEAN and types.is_boolean(found):
        return lambda scalar: scalar.as_py()
    if of is DOUBLE and (types.is_floating(found) or types.is_integer(found)):
        return lambda scalar: _double(scalar.as_py())
    if of is DATE and types.is_date32(found):
        return lambda scalar: Date(_EPOCH + scalar.value, Decimal(0))
    if of is DATE_TIME and types.is_timestamp(found) and found.unit == "us":
        zone = None if found.tz is None else 0
        return lambda scalar: _moment(scalar.value, zone)
    if of in (HEX, BASE64) and (types.is_binary(found) or types.is_large_binary(found)):
        return lambda scalar: scalar.as_py()
    raise MalformedError(
        "evaluate.column",
        f"a column of {found} holds no values of type {of}",
        hint="correct the type in the mapping, or convert the column before it is read",
    )


def _text(scalar: Any) -> str:
    try:
        return str(scalar.as_py())
    except UnicodeDecodeError:
        # Spark's strings need not be any.
        raise MalformedError("evaluate.column", "a text is not UTF-8") from None


def _double(number: float) -> float:
    # There is one NaN object.
    return nan if isnan(number) else float(number)


def _moment(micros: int, zone: int | None) -> DateTime:
    days, rest = divmod(micros, DAY * _MICROS)
    return DateTime(_EPOCH + days, Decimal(rest) / _MICROS, zone)


# --- columns ---------------------------------------------------------------------------------------------------------


class _One:
    """A column of which each row has one value, or none."""

    def __init__(self, reading: _Reading) -> None:
        self._reading = reading

    def bag(self, array: Any, row: int) -> tuple[Value, ...]:
        scalar = array[row]
        return (self._reading(scalar),) if scalar.is_valid else ()

    def clear(self) -> None:
        """Forget nothing: classes are those of the constants."""


class _Named(_One):
    """Strings that are equal to constants, or to none of them."""

    def __init__(self, constants: frozenset[Value], reading: _Reading) -> None:
        super().__init__(reading)
        named = sorted(filter(_is_encoded, constants))
        self._constants = pa.array(named, pa.string())
        self._places = {one: place + 2 for place, one in enumerate(named)}
        self.width: int | None = len(self._constants) + 2

    def classes(self, array: Any) -> Classes:
        found = pc.fill_null(pc.index_in(array, self._constants.cast(array.type)), -1)
        classes: Classes = found.to_numpy(zero_copy_only=False).astype(np.int64) + 2
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            classes[[scalar.is_valid and not _is_encoded(scalar.as_buffer()) for scalar in array]] = BROKEN
        return _without(classes, array)

    def groups(self, constants: Iterable[Value]) -> Classes:
        found = np.minimum(np.arange(len(self._places) + 2), 1)
        own = [self._places[one] for one in constants if one in self._places]
        found[own] = own
        return found


def _is_encoded(text: Any) -> bool:
    """Say whether a text can stand in UTF-8, or bytes are some."""
    try:
        text.encode() if isinstance(text, str) else bytes(text).decode()
    except UnicodeError:
        return False
    return True


class _Placed(_One):
    """Numbers and moments by where they lie among constants: equal to one, or between two."""

    def __init__(self, of: DataType, constants: frozenset[Value], reading: _Reading) -> None:
        super().__init__(reading)
        self._of = of
        self._double = of is DOUBLE
        places = sorted({place for one in constants if (place := _place(one, of)) is not None})
        # Columns but those of doubles are counted in whole numbers, and constants may lie between two of them.
        self._above = np.array(places if self._double else [*map(ceil, places)], _NUMBERS[self._double])
        self._below = np.array(places if self._double else [*map(floor, places)], _NUMBERS[self._double])
        #: the class of what is equal to a constant; that of what lies above it is the next
        self._equal = {place: 2 * number + 2 for number, place in enumerate(places)}
        self._none = 2 * len(places) + 2
        self.width: int | None = self._none + 1

    def classes(self, array: Any) -> Classes:
        values = pc.fill_null(array.cast(pa.float64(), safe=False) if self._double else _whole(array), 0)
        numbers = values.to_numpy(zero_copy_only=False)
        reached = np.searchsorted(self._above, numbers, "right")
        classes: Classes = reached + np.searchsorted(self._below, numbers, "left") + 1
        if self._double:
            classes[np.isnan(numbers)] = self._none
        return _without(classes, array)

    def groups(self, constants: Iterable[Value]) -> Classes:
        begins = np.zeros(self._none + 1, np.int64)
        begins[[1, self._none]] = 1
        for one in constants:
            place = _place(one, self._of)
            if place is not None:
                begins[[self._equal[place], self._equal[place] + 1]] = 1
        groups: Classes = np.cumsum(begins)
        return groups


def _whole(array: Any) -> Any:
    narrow = pa.types.is_date32(array.type)
    return array.cast(pa.int32()).cast(pa.int64()) if narrow else array.cast(pa.int64())


def _place(constant: Value, of: DataType) -> Fraction | float | None:
    """Return where a constant lies, in the unit of a column; none where no value of a column can be."""
    if of is DOUBLE:
        return None if isnan(constant) else float(constant)
    if of is INTEGER:
        found = Fraction(constant)
    else:
        since = Fraction(constant.order) - _EPOCH * DAY
        found = since / DAY if of is DATE else since * _MICROS
    return found if -_LARGEST - 1 <= found <= _LARGEST else None


class _Distinct(_One):
    """Any values, each of which is read once."""

    width: int | None = None

    def __init__(self, of: DataType, constants: frozenset[Value] | None, reading: _Reading) -> None:
        super().__init__(reading)
        self._of = of
        self._sorted = (
            sorted(constants) if constants is not None and of in ORDERED and not _has_nan(constants) else None
        )
        self._equal = constants if constants is not None and of not in ORDERED else None
        self._numbers: dict[Hashable, int] = {}

    def clear(self) -> None:
        self._numbers = {}

    def groups(self, _constants: Iterable[Value]) -> Classes:
        return np.arange(len(self._numbers) + 1)

    def classes(self, array: Any) -> Classes:
        found = array.dictionary_encode()
        numbers = np.array([MISSING, *map(self._class, found.dictionary)], np.int64)
        places = pc.fill_null(found.indices, -1).to_numpy(zero_copy_only=False)
        classes: Classes = numbers[places.astype(np.int64) + 1]
        return classes

    def _class(self, scalar: Any) -> int:
        try:
            alike = self._alike(self._reading(scalar))
        except MalformedError:
            return BROKEN
        return self._numbers.setdefault(alike, len(self._numbers) + 1)

    def _alike(self, value: Value) -> Hashable:
        if self._sorted is not None and value == value:  # noqa: PLR0124  # NaN lies nowhere
            return bisect_right(self._sorted, value) + bisect_left(self._sorted, value)
        if self._equal is not None:
            return value if value in self._equal else None
        return self._of.write(value)


def _has_nan(constants: frozenset[Value]) -> bool:
    return any(one != one for one in constants)  # noqa: PLR0124  # NaN alone differs from itself


class _Bags:
    """Arrays: a value for each element that is not null. An empty one is as good as none."""

    width: int | None = None

    def __init__(self, single: Column, separator: str | None = None) -> None:
        self._single = single
        self._separator = separator
        self._numbers: dict[bytes, int] = {b"": MISSING}

    def clear(self) -> None:
        self._numbers = {b"": MISSING}
        self._single.clear()

    def groups(self, _constants: Iterable[Value]) -> Classes:
        return np.arange(len(self._numbers))

    def _parted(self, array: Any) -> Any:
        """Return texts as arrays of what stands between separators; what is empty there is no value."""
        if self._separator is None:
            return array
        parts = pc.split_pattern(array.cast(pa.string()), self._separator)
        texts = pc.utf8_trim_whitespace(parts.values)
        return pa.ListArray.from_arrays(parts.offsets, pc.if_else(pc.equal(texts, ""), None, texts))

    def classes(self, array: Any) -> Classes:
        array = self._parted(array)
        elements = array.flatten()
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        inner = self._single.classes(elements)
        rows = np.repeat(np.arange(len(lengths)), lengths)[inner != MISSING]
        inner = inner[inner != MISSING]
        octets, width = inner.tobytes(), inner.itemsize
        ends = np.searchsorted(rows, np.arange(len(lengths) + 1)) * width
        numbers, places = self._numbers, ends.tolist()
        bags = [octets[begin:end] for begin, end in pairwise(places)]
        classes: Classes = np.array([numbers.setdefault(bag, len(numbers)) for bag in bags], np.int64)
        classes[rows[inner == BROKEN]] = BROKEN
        return classes

    def bag(self, array: Any, row: int) -> tuple[Value, ...]:
        scalar = self._parted(array.slice(row, 1))[0]
        if not scalar.is_valid:
            return ()
        elements = scalar.values
        return tuple(value for place in range(len(elements)) for value in self._single.bag(elements, place))


def _without(classes: Classes, array: Any) -> Classes:
    """Set the class of rows that have no value."""
    if array.null_count:
        classes[pc.is_null(array).to_numpy(zero_copy_only=False)] = MISSING
    return classes

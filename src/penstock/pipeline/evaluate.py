"""Decide every row of a table of requests by attribute-based policies.

    row   the columns of the request   @decision  @status  @obligations  @advice  @policies

Rows are decided in Python, whole columns together. Policies are sent to the tasks as a file beside the job: inside the
function that tasks run they would be part of requests to a Spark Connect server, which logs these.
"""

import hashlib
import io
import json
import pickle
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise
from math import ceil, floor, isnan, nan
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # it ships no types
from numpy.typing import NDArray
from pyspark import SparkFiles
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from penstock.errors import MalformedError, did_you_mean
from penstock.pipeline.limits import PIPELINE_LIMITS, PipelineLimits
from penstock.pipeline.sealed.log import map_arrow
from penstock.policy.engine.lookup import Repository, check_policies
from penstock.policy.engine.vectors import ORDERED, Vectors
from penstock.policy.language.datatypes import (
    BASE64,
    BOOLEAN,
    DATE,
    DATE_TIME,
    DOUBLE,
    HEX,
    INTEGER,
    STRING,
    XPATH,
    DataType,
    Function,
    Value,
    data_type,
    read_value,
)
from penstock.policy.language.policies import PolicyLiteral, Root, function_of
from penstock.policy.language.requests import Key, key_of
from penstock.policy.language.results import (
    OK,
    SYNTAX_ERROR,
    DecisionStatus,
    Obligation,
    PolicyOutcome,
    Response,
    Result,
    XacmlDecision,
)
from penstock.policy.language.times import DAY, Date, DateTime, days_of
from penstock.policy.syntax.json.requests import write_response
from penstock.policy.syntax.text.tokens import CATEGORY
from penstock.policy.syntax.xml.policies import write_policy
from penstock.store.files.strict_tables import Strict

# ----------------------------------------------------------------------------------------------------------------------
# Mapping files: which column is which attribute of a request. docs/how-to/evaluate-a-table.md describes the keys.
#
# Columns that are not named are kept, and not read.


_FILE: Final = Strict.of("mapping.", "see docs/how-to/evaluate-a-table.md", zone="zone")


@dataclass(frozen=True, slots=True)
class RequestColumn:
    """A column that holds an attribute: a value in each row, or with `many` a bag, as an array or with a separator."""

    name: str
    key: Key
    many: bool = False
    separator: str | None = None


def read_request_mapping(data: str | bytes) -> tuple[RequestColumn, ...]:
    """Read a mapping file.

    Raises `MalformedError`: `mapping.syntax`, `mapping.unknown-key`, `mapping.missing`, `mapping.value`,
    `mapping.column` where two columns are one attribute, `xacml.type`.
    """
    table = _FILE.parse(data)
    _FILE.known("the mapping", table, {"columns"})
    columns = _FILE.table("columns", _FILE.needed("the mapping", table, "columns"))
    found = tuple(_column(name, _FILE.table(f"columns.{name}", value)) for name, value in columns.items())
    _FILE.some("columns", found)
    check_columns(found)
    return found


def _column(name: str, table: Mapping[str, object]) -> RequestColumn:
    where = f"columns.{name}"
    _FILE.known(where, table, {"category", "id", "type", "many", "separator"})
    category = _FILE.text(f"{where}.category", _FILE.needed(where, table, "category"))
    separator = None
    if "separator" in table:
        separator = _FILE.text(f"{where}.separator", table["separator"])
    many = _FILE.flag(f"{where}.many", table.get("many", separator is not None))
    if separator is not None and not many:
        raise _FILE.wrong(f"{where}.many", "true, where there is a separator")
    named = _FILE.text(f"{where}.id", table.get("id", name))
    key = key_of(CATEGORY.get(category, category), named, _type(where, table))
    return RequestColumn(name, key, many, separator)


def _type(where: str, table: Mapping[str, object]) -> DataType:
    found = data_type(_FILE.text(f"{where}.type", table.get("type", STRING.name)))
    if found is XPATH:
        raise _FILE.wrong(f"{where}.type", "a type of values: there is no content that a path could look into")
    return found


def check_columns(columns: tuple[RequestColumn, ...]) -> None:
    """Check that no attribute stands in two columns. Raises `MalformedError` (`mapping.column`)."""
    seen: dict[Key, str] = {}
    for one in columns:
        if one.key in seen:
            raise MalformedError(
                "mapping.column",
                f"columns `{seen[one.key][:80]}` and `{one.name[:80]}` are one attribute",
                hint="put its values into one column that holds arrays",
            )
        seen[one.key] = one.name


# ----------------------------------------------------------------------------------------------------------------------
# Columns of requests: how a column of Arrow becomes the values of an attribute, and into which classes they fall.
#
# A class is a number. A policy treats all values of a class alike (`penstock.policy.engine.vectors.constants_of`).
# Class 0 is that of requests without the attribute, and values that cannot be read have none (`BROKEN`). If a policy
# only compares the attribute with constants, classes are found for a whole column; otherwise each distinct value is
# read once.


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
        """The number of classes, if it is known in advance."""

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
    """Return whether a text can be encoded in UTF-8, or bytes be decoded."""
    try:
        text.encode() if isinstance(text, str) else bytes(text).decode()
    except UnicodeError:
        return False
    return True


class _Placed(_One):
    """Classes of numbers and times by their place among constants: equal to one, or between two."""

    def __init__(self, of: DataType, constants: frozenset[Value], reading: _Reading) -> None:
        super().__init__(reading)
        self._of = of
        self._double = of is DOUBLE
        places = sorted({place for one in constants if (place := _place(one, of)) is not None})
        # Columns but those of doubles are counted in whole numbers, and constants may lie between two of them.
        self._above = np.array(places if self._double else [*map(ceil, places)], _NUMBERS[self._double])
        self._below = np.array(places if self._double else [*map(floor, places)], _NUMBERS[self._double])
        #: the class of values equal to a constant; values above it have the next class
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
    """Return the place of a constant in the unit of a column; None if the column cannot have such a value."""
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
        """Return texts as arrays of the parts between separators; empty parts are not values."""
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
        data, width = inner.tobytes(), inner.itemsize
        ends = np.searchsorted(rows, np.arange(len(lengths) + 1)) * width
        numbers, places = self._numbers, ends.tolist()
        bags = [data[begin:end] for begin, end in pairwise(places)]
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


# ----------------------------------------------------------------------------------------------------------------------
# Responses as columns: the decision, its status, obligations, advice and policies.


DECISION: Final = "@decision"
STATUS: Final = "@status"
OBLIGATIONS: Final = "@obligations"
ADVICE: Final = "@advice"
POLICIES: Final = "@policies"


class RequestDecision(NamedTuple):
    """The answer to a request. Obligations, advice and the applied policies are JSON.

    Where there is nothing to say, it is null: most rows get a decision and no more, and texts cost more than all else.
    """

    decision: str
    #: why there is no decision: the last part of the standard's code
    status: str | None = None
    obligations: str | None = None
    advice: str | None = None
    #: the ids of the policies that were applicable, the inner ones first
    policies: str | None = None


COLUMNS: Final = (DECISION, STATUS, OBLIGATIONS, ADVICE, POLICIES)
"""The columns of answers, in the order of their parts."""
SCHEMA: Final = StructType([StructField(name, StringType()) for name in COLUMNS])


def answer_of(outcome: PolicyOutcome) -> RequestDecision:
    """Return the response for a known result."""
    applicable = [one.id for one in outcome.applicable]
    return RequestDecision(
        outcome.decision.plain,
        None if outcome.status.code == OK else outcome.status.code.rpartition(":")[2],
        _duties(outcome.obligations),
        _duties(outcome.advice),
        _text_column(applicable) if applicable else None,
    )


def _duties(told: Sequence[Obligation]) -> str | None:
    """Write obligations or advice as the JSON profile does."""
    if not told:
        return None
    written: Any = write_response(Response([Result(XacmlDecision.PERMIT, obligations=tuple(told))]))
    return _text_column(written["Response"][0]["Obligations"])


def _text_column(found: object) -> str:
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


class DecisionTable:
    """Everything that was said so far, by numbers, as arrays of which rows are taken."""

    def __init__(self, first: Sequence[RequestDecision]) -> None:
        self._arrays = _arrays(first)

    def __len__(self) -> int:
        return len(self._arrays[0])

    def add(self, answers: Sequence[RequestDecision]) -> None:
        """Append answers; their numbers go on."""
        if answers:
            pairs = zip(self._arrays, _arrays(answers), strict=True)
            self._arrays = [pa.concat_arrays([before, more]) for before, more in pairs]

    def columns(self, numbers: Any) -> list[Any]:
        """Return the columns of rows whose answers have these numbers."""
        places = pa.array(numbers)
        return [array.take(places) for array in self._arrays]


def _arrays(answers: Sequence[RequestDecision]) -> list[Any]:
    return [pa.array([one[place] for one in answers], pa.string()) for place in range(len(COLUMNS))]


# ----------------------------------------------------------------------------------------------------------------------
# Requests in columns of Arrow, decided together: the steps of `penstock.policy.engine.vectors` for whole columns.
#
# Each step is computed once and stored in a table, by state and class; later rows look it up.


Numbers: TypeAlias = NDArray[np.signedinteger[Any]]
"""States, classes and answers, by their numbers."""

UNREADABLE: Final = PolicyOutcome(
    XacmlDecision.INDETERMINATE_DP, DecisionStatus(SYNTAX_ERROR, "a column has a value that is not of its data type")
)
"""What is said of a row that cannot be read, whatever the policy says."""
_UNKNOWN: Final = -1
_MATTERS: Final = -2
#: columns of more classes have no table for all of them
_MOST_CLASSES: Final = 4_096


class Decider:
    """Decides rows, and remembers how: by columns for the attributes that the policy looks at, in that order.

    `answers` has everything that was said so far, by its numbers.
    """

    def __init__(self, vectors: Vectors, columns: Sequence[Column], limits: PipelineLimits = PIPELINE_LIMITS) -> None:
        self._vectors = vectors
        self._columns = columns
        self._most = limits.policy_remembered
        self._forget()

    @property
    def keys(self) -> Sequence[Key]:
        """The attributes that are looked at, in their order."""
        return self._vectors.keys

    def _forget(self) -> None:
        self._vectors.clear()
        for column in self._columns:
            column.clear()
        self._steps: list[_Steps] = [_Steps(self._vectors, place, column) for place, column in enumerate(self._columns)]
        self._ends = np.full(0, _UNKNOWN, np.int32)
        self._numbers: dict[RequestDecision, int] = {answer_of(UNREADABLE): 0}
        self.answers = DecisionTable([*self._numbers])

    @property
    def size(self) -> int:
        """Return the size of the cache."""
        return self._vectors.size + sum(steps.size for steps in self._steps)

    def decide(self, arrays: Sequence[Any], rows: int) -> Numbers:
        """Return the numbers of the answers to rows, whose attributes are in arrays in the order of `keys`."""
        if self.size > self._most:
            self._forget()
        states = np.zeros(rows, np.int32)
        broken = np.zeros(rows, np.bool_)
        for steps, array in zip(self._steps, arrays, strict=True):
            states = steps.after(states, array, broken)
        found = self._ended(states)
        found[broken] = 0
        return found

    def _ended(self, states: Numbers) -> Numbers:
        self._ends = _longer(self._ends, int(states.max(initial=-1)) + 1)
        found = self._ends[states]
        new: list[RequestDecision] = []
        for state in np.unique(states[found == _UNKNOWN]).tolist():
            answer = answer_of(self._vectors.outcome(state))
            if answer not in self._numbers:
                self._numbers[answer] = len(self._numbers)
                new.append(answer)
            self._ends[state] = self._numbers[answer]
        self.answers.add(new)
        return self._ends[states]


class _Steps:
    """The steps that one attribute makes."""

    def __init__(self, vectors: Vectors, place: int, column: Column) -> None:
        self._vectors = vectors
        self._place = place
        self._column = column
        width = column.width
        self._width = width if width is not None and width <= _MOST_CLASSES else None
        #: by state and class, where there are few classes
        self._table: Numbers = np.full((0, self._width or 0), _UNKNOWN, np.int32)
        #: by state: where the attribute does not matter, the next one
        self._through: Numbers = np.full(0, _UNKNOWN, np.int32)
        self._pairs: dict[tuple[int, int], int] = {}

    @property
    def size(self) -> int:
        """Return the size of the cache."""
        return self._table.size + len(self._pairs)

    def after(self, states: Numbers, array: Any, broken: NDArray[np.bool_]) -> Numbers:
        """Return the states after the attribute, and note the rows in which it cannot be read."""
        classes = self._column.classes(array)
        unread = classes == BROKEN
        if unread.any():
            broken |= unread
            classes = np.where(unread, MISSING, classes)
        most = int(states.max(initial=-1)) + 1
        if self._width is None:
            return self._by_pairs(states, classes, array, most)
        self._table = _longer(self._table, most)
        found = self._table[states, classes]
        rows = np.flatnonzero(found == _UNKNOWN)
        if len(rows):
            self._make(states, classes, array, rows)
            found[rows] = self._table[states[rows], classes[rows]]
        return found

    def _make(self, states: Numbers, classes: Numbers, array: Any, rows: Numbers) -> None:
        """Make the steps of some rows, each with all classes that do not differ in its state."""
        groups, grouped = np.empty(0, np.int64), None
        for row in rows[_firsts(states[rows], classes[rows])].tolist():
            state, of = int(states[row]), int(classes[row])
            if self._table[state, of] != _UNKNOWN:
                continue
            if state != grouped:
                groups, grouped = self._groups(state), state
            self._table[state, groups == groups[of]] = self._step(state, of, array, row)

    def _groups(self, state: int) -> Numbers:
        if self._vectors.ignores(self._place, state):
            return np.zeros(self._table.shape[1], np.int64)
        return self._column.groups(self._vectors.constants(self._place, state) or ())

    def _by_pairs(self, states: Numbers, classes: Numbers, array: Any, most: int) -> Numbers:
        self._through = _longer(self._through, most)
        for state in np.unique(states[self._through[states] == _UNKNOWN]).tolist():
            ignored = self._vectors.ignores(self._place, state)
            self._through[state] = self._vectors.step(self._place, state, MISSING, ()) if ignored else _MATTERS
        found = self._through[states]
        rows = np.flatnonzero(found == _MATTERS)
        if len(rows):
            keys = _paired(states[rows], classes[rows])
            _, firsts, places = np.unique(keys, return_index=True, return_inverse=True)
            following = [self._pair(states, classes, array, row) for row in rows[firsts].tolist()]
            found[rows] = np.array(following, np.int32)[places]
        return found

    def _pair(self, states: Numbers, classes: Numbers, array: Any, row: int) -> int:
        pair = int(states[row]), int(classes[row])
        following = self._pairs.get(pair)
        if following is None:
            following = self._pairs[pair] = self._step(*pair, array, row)
        return following

    def _step(self, state: int, of: int, array: Any, row: int) -> int:
        bag = () if of == MISSING else self._column.bag(array, row)
        return self._vectors.step(self._place, state, of, bag)


def _paired(states: Numbers, classes: Numbers) -> Numbers:
    paired: Numbers = states.astype(np.int64) * (int(classes.max()) + 1) + classes
    return paired


def _firsts(states: Numbers, classes: Numbers) -> Numbers:
    """Return the first row of each pair of a state and a class."""
    firsts: Numbers = np.unique(_paired(states, classes), return_index=True)[1]
    return firsts


def _longer(table: Numbers, length: int) -> Numbers:
    """Return a table with rows for at least this many states."""
    if length <= len(table):
        return table
    more = np.full((max(length, 2 * len(table)) - len(table), *table.shape[1:]), _UNKNOWN, np.int32)
    return np.concatenate([table, more])


# ----------------------------------------------------------------------------------------------------------------------
# The entry point.


#: policies that a process of Python keeps ready
_READY: Final = 2


@dataclass(frozen=True)
class TablePolicies:
    """A policy that decides, and those that it may refer to. Raises as `check_policies`."""

    root: Root
    referred: tuple[Root, ...] = ()

    def __post_init__(self) -> None:
        check_policies([self.root], self.referred)

    @cached_property
    def revision(self) -> str:
        """Return a digest of the policies."""
        digest = hashlib.sha256()
        for one in (self.root, *self.referred):
            digest.update(hashlib.sha256(write_policy(one)).digest())
        # Spark would read some of them as numbers in a path.
        return f"rev-{digest.hexdigest()[:16]}"

    @cached_property
    def _written(self) -> bytes:
        buffer = io.BytesIO()
        _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump((self.root, self.referred))
        return buffer.getvalue()

    def send(self, spark: SparkSession) -> str:
        """Send them to wherever tasks run, as a file, and return its name."""
        name = f"penstock-{hashlib.sha256(self._written).hexdigest()}"
        file = Path(_folder().name) / name
        if not file.exists():
            file.write_bytes(self._written)
        spark.addArtifacts(str(file), file=True)
        return name


@lru_cache(maxsize=1)
def _folder() -> "tempfile.TemporaryDirectory[str]":
    """Return a folder of this process alone, from which executors fetch files when they need them."""
    return tempfile.TemporaryDirectory(prefix="penstock-")


class _Pickler(pickle.Pickler):
    """Writes policies: functions are named, and not described."""

    def reducer_override(self, thing: object) -> Any:
        if isinstance(thing, Function):
            return function_of, (thing.id,)
        if isinstance(thing, PolicyLiteral) and thing.value != thing.value:  # NaN
            return _no_number, (thing.gives,)
        if isinstance(thing, MappingProxyType):
            # The class itself has no name by which it could be found.
            return _unchanging, (dict(thing),)
        return NotImplemented


def _no_number(of: DataType) -> PolicyLiteral:
    """Return NaN: there is one object, which bags find by identity."""
    return PolicyLiteral(nan, of)


def _unchanging(found: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(found)


@dataclass(frozen=True, slots=True)
class _Task:
    """Arguments of a task: the file of policies, which column is which attribute, and the time."""

    file: str
    columns: tuple[RequestColumn, ...]
    now: datetime
    #: the types of the columns
    types: tuple[Any, ...]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        decider = _decider(self)
        names = {one.key: one.name for one in self.columns}
        for batch in batches:
            numbers = decider.decide([batch.column(names[key]) for key in decider.keys], batch.num_rows)
            found = decider.answers.columns(numbers)
            yield pa.RecordBatch.from_arrays([*batch.columns, *found], names=[*batch.schema.names, *COLUMNS])


@lru_cache(maxsize=_READY)
def _decider(task: _Task) -> Decider:
    """Read the policies, once for all tasks that a process runs."""
    root, referred = pickle.loads(Path(SparkFiles.get(task.file)).read_bytes())  # noqa: S301  # whoever sends it sends the code, too
    vectors = Vectors(root, Repository(referred), task.now, [one.key for one in task.columns])
    given = {one.key: (one, found) for one, found in zip(task.columns, task.types, strict=True)}
    columns = [
        column(given[key][1], key.of, vectors.constants(place), given[key][0].separator)
        for place, key in enumerate(vectors.keys)
    ]
    return Decider(vectors, columns)


def evaluate(
    requests: DataFrame, policies: TablePolicies, columns: Sequence[RequestColumn], now: datetime
) -> DataFrame:
    """Return rows with the decisions of policies about them, at some time.

    A row whose values cannot be read as what they should be is Indeterminate. Raises `MalformedError`
    (`evaluate.column`, `mapping.column`).
    """
    check_columns(tuple(columns))
    types = tuple(_column_type(requests, one) for one in columns)
    taken = sorted({*COLUMNS} & {*requests.columns})
    if taken:
        raise MalformedError(
            "evaluate.column", f"there is a column `{taken[0]}` already", hint="rename it: answers will stand there"
        )
    task = _Task(policies.send(requests.sparkSession), tuple(columns), now, types)
    return map_arrow(requests, task, StructType([*requests.schema, *SCHEMA]))


def _column_type(requests: DataFrame, wanted: RequestColumn) -> Any:
    """Return the type of a column in Arrow, if values of an attribute can stand there."""
    if wanted.name not in requests.columns:
        raise MalformedError(
            "evaluate.column",
            f"there is no column `{wanted.name[:80]}`",
            hint=did_you_mean(wanted.name, requests.columns, f"there are: {', '.join(requests.columns)[:400]}"),
        )
    found = to_arrow_type(requests.schema[wanted.name].dataType)
    if wanted.many is not (pa.types.is_list(found) or wanted.separator is not None):
        raise MalformedError(
            "evaluate.column",
            f"column `{wanted.name[:80]}` {'holds no arrays' if wanted.many else 'holds arrays'}",
            hint="set `many` if a row has several values, and only then",
        )
    column(found, wanted.key.of, None, wanted.separator)
    return found

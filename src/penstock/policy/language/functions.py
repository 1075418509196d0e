"""The functions of XACML 3.0 (appendix A.3), except higher-order ones.

A function is one row of a table: the kinds of its arguments and of its result, and a Python function. Ids of earlier
versions of the standard are listed too.
"""

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from penstock.errors import EvaluationError, MalformedError
from penstock.policy.language.datatypes import (
    ADDRESS,
    BASE64,
    BOOLEAN,
    DATE,
    DATE_TIME,
    DAY_TIME,
    DIRECTORY,
    DOUBLE,
    HEX,
    HOST,
    INTEGER,
    MAILBOX,
    STRING,
    TIME,
    TYPES,
    URI,
    XPATH,
    YEAR_MONTH,
    Bag,
    DataType,
    DirectoryName,
    Function,
    Kind,
    Value,
    check_mailbox_pattern,
    failed,
    mailbox_matches,
    read_value,
    write_scientific,
)
from penstock.policy.language.patterns import read_pattern
from penstock.policy.language.times import DayTimeDuration, Time, XmlDateTime, canonical, into_days
from penstock.policy.limits import POLICY_DAYS, POLICY_INTEGER_BITS, POLICY_TEXT

T = TypeVar("T")

V1: Final = "urn:oasis:names:tc:xacml:1.0:function:"
V2: Final = "urn:oasis:names:tc:xacml:2.0:function:"
V3: Final = "urn:oasis:names:tc:xacml:3.0:function:"
#: types of later versions, whose bag functions have the same version
_BAGS_SINCE: Final = {ADDRESS: V2, HOST: V2, DAY_TIME: V3, YEAR_MONTH: V3, XPATH: V3}
_ORDERED: Final = (STRING, INTEGER, DOUBLE, TIME, DATE, DATE_TIME)
_EQUAL: Final = (STRING, BOOLEAN, INTEGER, DOUBLE, DATE, TIME, DATE_TIME, URI, DIRECTORY, MAILBOX, HEX, BASE64)
_DURATIONS: Final = (DAY_TIME, YEAR_MONTH)
_COMPARED: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "greater-than": operator.gt,
    "greater-than-or-equal": operator.ge,
    "less-than": operator.lt,
    "less-than-or-equal": operator.le,
}
#: types whose conversion to a string uses XML Schema's canonical form
_CANONICAL: Final[Mapping[DataType, Callable[[Value], str]]] = {
    DOUBLE: write_scientific,
    **{one: lambda moment: str(canonical(moment)) for one in (TIME, DATE, DATE_TIME)},
}
_AS_TEXT: Final = (
    BOOLEAN, INTEGER, DOUBLE, TIME, DATE, DATE_TIME, URI, DAY_TIME, YEAR_MONTH, DIRECTORY, MAILBOX, ADDRESS, HOST,
)  # fmt: skip


def _table() -> Iterator[Function]:
    yield from _equality()
    yield from _arithmetic()
    yield from _logic()
    yield from _texts()
    yield from _moments()
    for of_type in TYPES:
        yield from _bags(of_type)
    yield from _patterns()
    yield from _within()


# --- equality and order ----------------------------------------------------------------------------------------------


def _equality() -> Iterator[Function]:
    for one in _EQUAL:
        yield Function(f"{V1}{one}-equal", (one, one), BOOLEAN, _same if one is DOUBLE else operator.eq)
    for one in _DURATIONS:
        for version in (V1, V3):
            yield Function(f"{version}{one}-equal", (one, one), BOOLEAN, operator.eq)
    yield Function(f"{V3}string-equal-ignore-case", (STRING, STRING), BOOLEAN, lambda a, b: a.lower() == b.lower())
    for one in _ORDERED:
        for name, call in _COMPARED.items():
            yield Function(f"{V1}{one}-{name}", (one, one), BOOLEAN, call)


def _same(one: float, other: float) -> bool:
    """Return whether numbers are equal; NaN is equal to itself, as in XML Schema."""
    return one == other or (math.isnan(one) and math.isnan(other))


# --- numbers and truth -----------------------------------------------------------------------------------------------


def _bounded(number: int) -> int:
    if abs(number) >> POLICY_INTEGER_BITS:
        raise failed("an integer became too large")
    return number


def _divide(dividend: int, divisor: int) -> int:
    if not divisor:
        raise failed("division by zero")
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) is (divisor < 0) else -quotient


def _remainder(dividend: int, divisor: int) -> int:
    return dividend - divisor * _divide(dividend, divisor)


def _one_nan(number: float) -> float:
    """Return a number; NaN is always the same object, so that bags find it by identity."""
    return math.nan if math.isnan(number) else number


def _divide_doubles(dividend: float, divisor: float) -> float:
    if not divisor:
        raise failed("division by zero")
    return _one_nan(dividend / divisor)


def _whole(number: float) -> int:
    if not math.isfinite(number):
        raise failed("a number is not an integer")
    return int(number)


def _to_double(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        raise failed("an integer is too large") from None


def _round(number: float) -> float:
    return float(round(number)) if math.isfinite(number) else number


def _floor(number: float) -> float:
    return float(math.floor(number)) if math.isfinite(number) else number


def _folded(call: Callable[[T, T], T]) -> Callable[..., T]:
    def fold(first: T, *rest: T) -> T:
        for other in rest:
            first = call(first, other)
        return first

    return fold


def _arithmetic() -> Iterator[Function]:
    whole: Mapping[str, Callable[[int, int], int]] = {
        "add": lambda a, b: _bounded(a + b),
        "multiply": lambda a, b: _bounded(a * b),
    }
    for name, call in whole.items():
        yield Function(f"{V1}integer-{name}", (INTEGER,), INTEGER, _folded(call), 2)
    doubles: Mapping[str, Callable[[float, float], float]] = {
        "add": lambda a, b: _one_nan(a + b),
        "multiply": lambda a, b: _one_nan(a * b),
    }
    for name, with_doubles in doubles.items():
        yield Function(f"{V1}double-{name}", (DOUBLE,), DOUBLE, _folded(with_doubles), 2)
    yield Function(f"{V1}integer-subtract", (INTEGER, INTEGER), INTEGER, lambda a, b: _bounded(a - b))
    yield Function(f"{V1}double-subtract", (DOUBLE, DOUBLE), DOUBLE, lambda a, b: _one_nan(a - b))
    yield Function(f"{V1}integer-divide", (INTEGER, INTEGER), INTEGER, _divide)
    yield Function(f"{V1}double-divide", (DOUBLE, DOUBLE), DOUBLE, _divide_doubles)
    yield Function(f"{V1}integer-mod", (INTEGER, INTEGER), INTEGER, _remainder)
    yield Function(f"{V1}integer-abs", (INTEGER,), INTEGER, abs)
    yield Function(f"{V1}double-abs", (DOUBLE,), DOUBLE, lambda number: _one_nan(abs(number)))
    yield Function(f"{V1}round", (DOUBLE,), DOUBLE, _round)
    yield Function(f"{V1}floor", (DOUBLE,), DOUBLE, _floor)
    yield Function(f"{V1}double-to-integer", (DOUBLE,), INTEGER, _whole)
    yield Function(f"{V1}integer-to-double", (INTEGER,), DOUBLE, _to_double)


def _logic() -> Iterator[Function]:
    # `or`, `and` and `n-of` evaluate no more arguments than necessary: see `evaluate`.
    yield Function(f"{V1}or", (BOOLEAN,), BOOLEAN, lambda *values: any(values), 0)
    yield Function(f"{V1}and", (BOOLEAN,), BOOLEAN, lambda *values: all(values), 0)
    yield Function(f"{V1}n-of", (INTEGER, BOOLEAN), BOOLEAN, lambda most, *values: sum(values) >= most, 0)
    yield Function(f"{V1}not", (BOOLEAN,), BOOLEAN, operator.not_)


# --- texts -----------------------------------------------------------------------------------------------------------


def _parse(of_type: DataType) -> Callable[[str], Value]:
    def parse(text: str) -> Value:
        try:
            return read_value(text, of_type)
        except MalformedError as error:
            # A.3.9 defines a syntax error for this function only.
            raise EvaluationError(error.code, error.message) from None

    return parse


def _substring(text: str, begin: int, end: int) -> str:
    stop = len(text) if end == -1 else end
    if not 0 <= begin <= stop <= len(text):
        raise failed("the text is shorter than that")
    return text[begin:stop]


def _joined(*texts: str) -> str:
    if sum(map(len, texts)) > POLICY_TEXT:
        raise failed("a text became too long")
    return "".join(texts)


def _texts() -> Iterator[Function]:
    yield Function(f"{V1}string-normalize-space", (STRING,), STRING, lambda text: text.strip(" \t\r\n"))
    yield Function(f"{V1}string-normalize-to-lower-case", (STRING,), STRING, str.lower)
    yield Function(f"{V2}string-concatenate", (STRING,), STRING, _joined, 2)
    yield Function(f"{V2}uri-string-concatenate", (URI, STRING), URI, _joined, 1)
    for one in _AS_TEXT:
        yield Function(f"{V3}{one}-from-string", (STRING,), one, _parse(one))
        yield Function(f"{V3}string-from-{one}", (one,), STRING, _CANONICAL.get(one, one.write))
    for one in (STRING, URI):
        yield Function(f"{V3}{one}-starts-with", (STRING, one), BOOLEAN, lambda part, text: text.startswith(part))
        yield Function(f"{V3}{one}-ends-with", (STRING, one), BOOLEAN, lambda part, text: text.endswith(part))
        yield Function(f"{V3}{one}-contains", (STRING, one), BOOLEAN, lambda part, text: part in text)
        yield Function(f"{V3}{one}-substring", (one, INTEGER, INTEGER), STRING, _substring)


# --- dates and times -------------------------------------------------------------------------------------------------


def _in_range(time: Time, first: Time, last: Time) -> bool:
    """Return whether a time lies between two others; the second can be on the next day (A.3.9)."""
    # Without a zone, they have the zone of the first argument.
    zones = [time.zone if one.zone is None else one.zone for one in (time, first, last)]
    at, begin, end = (one.seconds - (zone or 0) * 60 for one, zone in zip((time, first, last), zones, strict=True))
    return into_days(at - begin)[1] <= into_days(end - begin)[1]


def _moments() -> Iterator[Function]:
    def later(moment: XmlDateTime, duration: DayTimeDuration) -> XmlDateTime:
        return _representable(moment.later(duration.seconds))

    def earlier(moment: XmlDateTime, duration: DayTimeDuration) -> XmlDateTime:
        return _representable(moment.later(-duration.seconds))

    for version in (V1, V3):
        yield Function(f"{version}dateTime-add-dayTimeDuration", (DATE_TIME, DAY_TIME), DATE_TIME, later)
        yield Function(f"{version}dateTime-subtract-dayTimeDuration", (DATE_TIME, DAY_TIME), DATE_TIME, earlier)
        for one in (DATE_TIME, DATE):
            yield Function(
                f"{version}{one}-add-yearMonthDuration", (one, YEAR_MONTH), one,
                lambda moment, duration: _representable(moment.months_later(duration.months)),
            )  # fmt: skip
            yield Function(
                f"{version}{one}-subtract-yearMonthDuration", (one, YEAR_MONTH), one,
                lambda moment, duration: _representable(moment.months_later(-duration.months)),
            )  # fmt: skip
    yield Function(f"{V2}time-in-range", (TIME, TIME, TIME), BOOLEAN, _in_range)


def _representable(moment: XmlDateTime) -> XmlDateTime:
    if abs(moment.days) > POLICY_DAYS:
        raise failed("a date is too far away")
    return moment


# --- bags and sets ---------------------------------------------------------------------------------------------------


def _one(values: Sequence[Value]) -> Value:
    if len(values) != 1:
        raise failed(f"a bag must have one value, but has {len(values)}")
    return values[0]


def _distinct(*bags: Sequence[Value]) -> tuple[Value, ...]:
    return tuple(dict.fromkeys(value for bag in bags for value in bag))


def _common(bags: tuple[Sequence[Value], ...]) -> tuple[Value, ...]:
    first, *others = bags[0], *map(frozenset, bags[1:])
    return tuple(value for value in _distinct(first) if all(value in other for other in others))


def _within_bag(some: Sequence[Value], others: Sequence[Value]) -> bool:
    known = frozenset(others)
    return all(one in known for one in some)


def _bags(one: DataType) -> Iterator[Function]:
    since = _BAGS_SINCE.get(one, V1)
    bag = Bag(one)
    versions = (since,) if one not in _DURATIONS else (V1, V3)
    for version in versions:
        yield Function(f"{version}{one}-one-and-only", (bag,), one, _one)
        yield Function(f"{version}{one}-bag-size", (bag,), INTEGER, len)
        yield Function(f"{version}{one}-bag", (one,), bag, lambda *values: values, 0)
        if one is XPATH:
            continue
        yield Function(f"{version}{one}-is-in", (one, bag), BOOLEAN, lambda value, values: value in values)
        yield Function(f"{version}{one}-intersection", (bag,), bag, lambda *bags: _common(bags), 2)
        yield Function(
            f"{version}{one}-at-least-one-member-of", (bag, bag), BOOLEAN, lambda a, b: not frozenset(a).isdisjoint(b)
        )
        yield Function(f"{version}{one}-union", (bag,), bag, _distinct, 2)
        yield Function(f"{version}{one}-subset", (bag, bag), BOOLEAN, _within_bag)
        yield Function(
            f"{version}{one}-set-equals", (bag, bag), BOOLEAN,
            lambda a, b: _within_bag(a, b) and _within_bag(b, a),
        )  # fmt: skip


# --- patterns --------------------------------------------------------------------------------------------------------


def _matches(one: DataType) -> Callable[[str, Value], bool]:
    def matches(pattern: str, value: Value) -> bool:
        return read_pattern(pattern).found_in(one.write(value))

    return matches


def _names(matches: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Return a match function of names; a pattern that cannot match anything is an error."""

    def match(pattern: Value, name: Value) -> bool:
        try:
            return matches(pattern, name)
        except MalformedError as error:
            raise failed(error.message) from None

    return match


def _patterns() -> Iterator[Function]:
    for one, version in ((STRING, V1), (URI, V2), (ADDRESS, V2), (HOST, V2), (MAILBOX, V2), (DIRECTORY, V2)):
        yield Function(f"{version}{one}-regexp-match", (STRING, one), BOOLEAN, _matches(one))
    yield Function(
        f"{V1}x500Name-match",
        (DIRECTORY, DIRECTORY),
        BOOLEAN,
        _names(DirectoryName.ends),
        check=DirectoryName.check_parts,
    )
    yield Function(
        f"{V1}rfc822Name-match", (STRING, MAILBOX), BOOLEAN, _names(mailbox_matches), check=check_mailbox_pattern
    )


# --- what looks into the request -------------------------------------------------------------------------------------


def _path(name: str) -> Callable[..., Value]:
    return lambda context, *paths: context.paths(name, paths)


def _within() -> Iterator[Function]:
    for name, takes, gives in (
        ("xpath-node-count", (XPATH,), INTEGER),
        ("xpath-node-equal", (XPATH, XPATH), BOOLEAN),
        ("xpath-node-match", (XPATH, XPATH), BOOLEAN),
    ):
        yield Function(f"{V3}{name}", takes, gives, _path(name), within=True)
    yield Function(
        f"{V3}access-permitted", (URI, STRING), BOOLEAN, lambda context, *content: context.permitted(*content),
        within=True,
    )  # fmt: skip


FUNCTIONS: Final[Mapping[str, Function]] = {one.id: one for one in _table()}
WITHIN: Final[Mapping[str, Function]] = {one.name: one for one in FUNCTIONS.values() if one.within}
"""Functions that look into the request, by name."""


def kinds_text(kinds: Sequence[Kind]) -> str:
    """Return kinds in words."""
    return ", ".join(map(str, kinds)) or "nothing"

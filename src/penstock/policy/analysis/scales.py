"""Values in their order, as few as a question needs: how analysis writes them as small numbers, and reads them back.

Policies of the fragment compare values and do nothing else with them. Then only their order counts, and which are equal
to one that a policy names: a type has its named values, and in each gap between two of them as many others as there are
attributes of the type, or all if there are fewer. Requests that differ by any values differ by these.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.policy.language.datatypes import (
    BOOLEAN,
    DATE,
    DATE_TIME,
    DOUBLE,
    INTEGER,
    STRING,
    TIME,
    URI,
    DataType,
    Value,
)
from penstock.policy.language.expressions import Apply, ApplyEach, ApplyPath, Designator, Expression, PolicyLiteral
from penstock.policy.language.policies import Duties, PolicyReference, PolicySet, Root, Target
from penstock.policy.language.times import DAY, Date, DateTime, Time, days_of, into_days

if TYPE_CHECKING:
    from penstock.policy.language.requests import Key


Between: TypeAlias = Callable[[Value | None, Value | None, int], Sequence[Value]]
"""Some values between two, in order; so many, or all if there are fewer. Without a bound there is none on that side."""

_FURTHEST: Final = 14 * 60
_START: Final = days_of(2026, 1, 1) * DAY
#: what is put behind a text to find the next ones; the last one finds all that there are
_FILLERS: Final = ("a", "0", "!", "\0")


class Scale:
    """The values of one type that a question needs, by their places; NaN comes last, and has no order."""

    def __init__(self, of_type: DataType, named: Iterable[Value], attributes: int) -> None:
        ends, between = _TYPES[of_type]
        known = sorted({value for value in (*named, *ends) if value == value})  # noqa: PLR0124  # NaN is not
        bounds = [None, *known, None]
        self.values: list[Value] = []
        for low, high in pairwise(bounds):
            self.values += between(low, high, attributes)
            if high is not None:
                self.values.append(high)
        self._places = {value: place for place, value in enumerate(self.values)}
        #: the place of NaN, where the type has that
        self.unordered = len(self.values) if of_type is DOUBLE else None
        if of_type is DOUBLE:
            self.values.append(math.nan)

    def place(self, value: Value) -> int:
        """Return the place of a value that was named."""
        if self.unordered is not None and math.isnan(value):
            return self.unordered
        return self._places[value]


def known_type(of_type: DataType) -> bool:
    """Say whether values of a type are understood."""
    return of_type in _TYPES


def _no_others(_low: Value | None, _high: Value | None, _count: int) -> Sequence[Value]:
    return ()


def _texts(low: str | None, high: str | None, count: int) -> Sequence[str]:
    # The empty text is the first, and always named.
    if low is None:
        return ()
    several = [[low + filler * times for times in range(1, count + 1)] for filler in _FILLERS]
    for found in several:
        if high is None or not found or found[-1] < high:
            return found
    return [text for text in several[-1] if high is None or text < high]


def _integers(low: int | None, high: int | None, count: int) -> Sequence[int]:
    if low is None:
        return range(count) if high is None else range(high - count, high)
    return range(low + 1, low + 1 + count if high is None else min(high, low + 1 + count))


def _doubles(low: float | None, high: float | None, count: int) -> Sequence[float]:
    # The infinite ones are always named.
    if low is None or high is None:
        return ()
    steps = range(1, count + 1)
    if math.isinf(low):
        found = [(0.0 if math.isinf(high) else high) - step for step in reversed(steps)]
    elif math.isinf(high):
        found = [low + step for step in steps]
    else:
        found = [low + (high - low) * step / (count + 1) for step in steps]
    if all(one < other for one, other in pairwise([low, *found, high])):
        return found
    return _next_doubles(low, high, count)


def _next_doubles(low: float, high: float, count: int) -> Sequence[float]:
    found: list[float] = []
    while len(found) < count and (following := math.nextafter(found[-1] if found else low, math.inf)) < high:
        found.append(following)
    return found


def _moments(low: DateTime | None, high: DateTime | None, count: int) -> Sequence[DateTime]:
    orders = _orders(None if low is None else low.order, None if high is None else high.order, count)
    return [DateTime(*into_days(order), 0) for order in orders]


def _times(low: Time | None, high: Time | None, count: int) -> Sequence[Time]:
    # The first time, in the zone that is furthest ahead, is always named.
    if low is None:
        return ()
    # Times of the day in UTC where there are some: those are what people write.
    beyond = Decimal(DAY if low.order < DAY - 1 else DAY + _FURTHEST * 60)
    return [_time(order) for order in _orders(low.order, beyond if high is None else high.order, count)]


def _orders(low: Decimal | None, high: Decimal | None, count: int) -> Sequence[Decimal]:
    steps = range(1, count + 1)
    if low is None:
        start = Decimal(_START) if high is None else high
        return [start - step * DAY for step in reversed(steps)]
    if high is None:
        return [low + step * DAY for step in steps]
    found = {low + (high - low) * step / (count + 1) for step in steps}
    return sorted(order for order in found if low < order < high)


def _time(order: Decimal) -> Time:
    zone = _FURTHEST if order < 0 else -_FURTHEST if order >= DAY else 0
    return Time(0, order + zone * 60, zone)


def _dates(low: Date | None, high: Date | None, count: int) -> Sequence[Date]:
    if low is None or high is None or high.order - low.order > count * DAY:
        steps = range(1, count + 1)
        if low is None:
            start = Decimal(_START) if high is None else high.order
            return [_date(start - step * DAY) for step in reversed(steps)]
        return [_date(low.order + step * DAY) for step in steps]
    # Zones are whole minutes, and more than a day apart.
    minutes = range(int(low.order) + 60, int(high.order), 60)
    return [_date(Decimal(order)) for order in minutes[:count]]


def _date(order: Decimal) -> Date:
    days, rest = into_days(order)
    ahead = -int(rest) // 60
    return Date(days, Decimal(0), ahead) if -ahead <= _FURTHEST else Date(days + 1, Decimal(0), ahead + DAY // 60)


_TYPES: Final[dict[DataType, tuple[tuple[Value, ...], Between]]] = {
    STRING: (("",), _texts),
    URI: (("",), _texts),
    BOOLEAN: ((False, True), _no_others),
    INTEGER: ((), _integers),
    DOUBLE: ((-math.inf, math.inf), _doubles),
    DATE_TIME: ((), _moments),
    DATE: ((), _dates),
    TIME: ((_time(Decimal(-_FURTHEST * 60)),), _times),
}


# ----------------------------------------------------------------------------------------------------------------------
# The values and attributes that policies name, of which the scales of an analysis are made.


class NamedValues:
    """The values and attributes that policies name."""

    def __init__(self) -> None:
        self.values: dict[DataType, set[Value]] = {BOOLEAN: set()}
        self.keys: set[Key] = set()

    def root(self, root: Root) -> None:
        """Add what a policy or a policy set names."""
        self._target(root.target)
        self._duties(root.duties)
        if isinstance(root, PolicySet):
            for member in root.members:
                if not isinstance(member, PolicyReference):
                    self.root(member)
            return
        for expression in root.variables.values():
            self._expression(expression)
        for rule in root.rules:
            self._target(rule.target)
            self._duties(rule.duties)
            if rule.condition is not None:
                self._expression(rule.condition)

    def _target(self, target: Target) -> None:
        for match in (match for any_of in target for all_of in any_of for match in all_of):
            self._value(match.value, match.of)
            self._expression(match.attribute)

    def _duties(self, duties: Duties) -> None:
        for duty in (*duties.obligations, *duties.advice):
            for assignment in duty.assignments:
                self._expression(assignment.expression)

    def _expression(self, expression: Expression) -> None:
        match expression:
            case PolicyLiteral(value, of_type):
                self._value(value, of_type)
            case Designator():
                self.keys.add(expression.key)
            case ApplyEach(_, _, arguments) | ApplyPath(_, arguments):
                for argument in arguments:
                    self._expression(argument)
            case Apply(function, arguments):
                if function.name.endswith(("-bag", "-bag-size")):
                    # what a bag may have for its size
                    self.values.setdefault(INTEGER, set()).update((0, 1, 2, len(arguments)))
                for argument in arguments:
                    self._expression(argument)

    def _value(self, value: Value, of_type: DataType) -> None:
        if known_type(of_type):
            self.values.setdefault(of_type, set()).add(value)

"""Sets of values of one attribute, as unions of half-open spans.

Every kind is ordered, and each of its values has a next one (integers and timestamps by one step, strings by a NUL
at the end, floats by the next double), so that `=`, `<>`, `<=`, lists and ranges all become spans `[low, high)`, and
intersection, union and difference stay exact. An upper end of None means that there is none.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from penstock.model.values import INTEGER_MAX, INTEGER_MIN, AttributeSpec, Enumerated, Kind, Ranged, Scalar, Value
from penstock.selector.ast import ComparisonOperator

# Within one set all ends are of one kind, which the type checker cannot see.
Span: TypeAlias = tuple[Any, Any]
Spans: TypeAlias = tuple[Span, ...]

_STEP: Final = timedelta(microseconds=1)
_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)
_LOWEST: Final[dict[Kind, Value]] = {
    Kind.STRING: "",
    Kind.INTEGER: INTEGER_MIN,
    Kind.FLOAT: -math.inf,
    Kind.BOOLEAN: False,
    Kind.TIMESTAMP: _FIRST,
}
#: What a person would choose as an example.
_EXAMPLES: Final[dict[Kind, Value]] = {
    Kind.STRING: "",
    Kind.INTEGER: 0,
    Kind.FLOAT: 0.0,
    Kind.BOOLEAN: False,
    Kind.TIMESTAMP: datetime(2000, 1, 1, tzinfo=UTC),
}


@dataclass(frozen=True, slots=True)
class ValueSet:
    """A set of values, with null and NaN as members of their own."""

    kind: Kind
    spans: Spans
    null: bool = False
    nan: bool = False

    @property
    def empty(self) -> bool:
        """Return whether the set is empty."""
        return not (self.spans or self.null or self.nan)

    def __and__(self, other: "ValueSet") -> "ValueSet":
        spans = intersect(self.spans, other.spans)
        return ValueSet(self.kind, spans, self.null and other.null, self.nan and other.nan)

    def __or__(self, other: "ValueSet") -> "ValueSet":
        return ValueSet(self.kind, unite(self.spans + other.spans), self.null or other.null, self.nan or other.nan)

    def __sub__(self, other: "ValueSet") -> "ValueSet":
        spans = intersect(self.spans, complement(self.kind, other.spans))
        return ValueSet(self.kind, spans, self.null and not other.null, self.nan and not other.nan)

    def holds(self, other: "ValueSet") -> bool:
        """Return whether all of another set is in this one, as `(other - self).empty` does, which takes longer."""
        if other is self:
            return True
        if other.kind is not self.kind or (other.null and not self.null) or (other.nan and not self.nan):
            return False
        if len(self.spans) == len(other.spans) == 1:
            # Nearly always.
            (start, end), (low, high) = self.spans[0], other.spans[0]
            return bool(start <= low and (end is None or (high is not None and high <= end)))
        at = 0
        for low, high in other.spans:
            # Spans are in order and do not touch: one that holds this one is the first that does not end before it.
            while at < len(self.spans) and self.spans[at][1] is not None and self.spans[at][1] <= low:
                at += 1
            if at == len(self.spans):
                return False
            start, end = self.spans[at]
            if low < start or (end is not None and (high is None or high > end)):
                return False
        return True

    def example(self) -> Scalar:
        """Return a member, a value rather than null or NaN if there is one. The set must not be empty."""
        if not self.spans:
            return None if self.null else math.nan
        plain = _EXAMPLES[self.kind]
        if intersect(self.spans, points(self.kind, [plain])):
            return plain
        low, high = self.spans[0]
        if low == _LOWEST[self.kind] and high is not None and not isinstance(low, str):
            # The other end comes from a selector and is a better example than the smallest integer.
            low = _previous(high)
        elif isinstance(low, float) and math.isfinite(low):
            # The next whole number reads better than the next double.
            whole = float(math.floor(low) + 1)
            low = whole if high is None or whole < high else low
        value: Scalar = low
        return value


def universe(spec: AttributeSpec) -> ValueSet:
    """Return every value that the attribute may have."""
    match spec.domain:
        case None:
            return ValueSet(spec.kind, ((_LOWEST[spec.kind], None),), null=True, nan=spec.kind is Kind.FLOAT)
        case Enumerated(values):
            return ValueSet(spec.kind, points(spec.kind, values), null=True)
        case Ranged(low, high):
            spans = intersect(
                select(spec.kind, ComparisonOperator.GE, low), select(spec.kind, ComparisonOperator.LE, high)
            )
            return ValueSet(spec.kind, spans, null=True)


def select(kind: Kind, operator: ComparisonOperator, value: Value) -> Spans:
    """Return the values of a kind that compare so with `value`, which may be a number of the other kind."""
    lowest = _LOWEST[kind]
    match operator:
        case ComparisonOperator.GE:
            return _span(at_least(kind, value), None)
        case ComparisonOperator.GT:
            return _span(above(kind, value), None)
        case ComparisonOperator.LT:
            return _span(lowest, at_least(kind, value))
        case ComparisonOperator.LE:
            return _span(lowest, above(kind, value))
        case ComparisonOperator.EQ:
            return _span(at_least(kind, value), above(kind, value))
        case ComparisonOperator.NE:
            return _span(lowest, at_least(kind, value)) + _span(above(kind, value), None)


def points(kind: Kind, values: Iterable[Value]) -> Spans:
    """Return the set of some values."""
    return unite(tuple(span for value in values for span in select(kind, ComparisonOperator.EQ, value)))


def prefixed(prefix: str) -> Spans:
    """Return the strings that start with `prefix`."""
    stem = prefix.rstrip(chr(0x10FFFF))
    if not stem:
        return _span(prefix, None)
    last = ord(stem[-1]) + 1
    # Surrogates are not characters; the next one after them is U+E000.
    return _span(prefix, stem[:-1] + chr(0xE000 if last == 0xD800 else last))


def intersect(first: Spans, second: Spans) -> Spans:
    """Return the values that are in both."""
    found: list[Span] = []
    i = j = 0
    while i < len(first) and j < len(second):
        (low, high), (other_low, other_high) = first[i], second[j]
        start = max(low, other_low)
        end = _lower_end(high, other_high)
        if end is None or start < end:
            found.append((start, end))
        # The span that ends first meets nothing further.
        if high is not None and (other_high is None or high <= other_high):
            i += 1
        else:
            j += 1
    return tuple(found)


def unite(spans: Spans) -> Spans:
    """Return spans sorted and merged."""
    merged: list[Span] = []
    for low, high in sorted(spans, key=lambda span: span[0]):
        if merged and (merged[-1][1] is None or low <= merged[-1][1]):
            if merged[-1][1] is not None and (high is None or high > merged[-1][1]):
                merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(kind: Kind, spans: Spans) -> Spans:
    """Return the values of a kind that are in none of the spans."""
    gaps: list[Span] = []
    start: Any = _LOWEST[kind]
    for low, high in spans:
        if start < low:
            gaps.append((start, low))
        if high is None:
            return tuple(gaps)
        start = high
    gaps.append((start, None))
    return tuple(gaps)


def at_least(kind: Kind, value: Any) -> Any:  # a value of the kind, or None
    """Return the smallest value of a kind that is not below `value`; None if there is none."""
    match kind:
        case Kind.INTEGER:
            if value <= INTEGER_MIN:
                return INTEGER_MIN
            return None if value > INTEGER_MAX else math.ceil(value)
        case Kind.FLOAT:
            # Python compares integers with floats exactly.
            nearest = float(value)
            return nearest if nearest >= value else math.nextafter(nearest, math.inf)
        case Kind.TIMESTAMP:
            return value.astimezone(UTC)
        case _:
            return value


def above(kind: Kind, value: Any) -> Any:  # a value of the kind, or None
    """Return the smallest value of a kind that is above `value`; None if there is none."""
    match kind:
        case Kind.STRING:
            return value + "\0"
        case Kind.INTEGER:
            if value < INTEGER_MIN:
                return INTEGER_MIN
            return None if value >= INTEGER_MAX else math.floor(value) + 1
        case Kind.FLOAT:
            nearest = float(value)
            if nearest == math.inf:
                return None
            return nearest if nearest > value else math.nextafter(nearest, math.inf)
        case Kind.BOOLEAN:
            return None if value else True
        case Kind.TIMESTAMP:
            moment = value.astimezone(UTC)
            return None if moment == _LAST else moment + _STEP


def _previous(value: Any) -> Any:  # a value of the same kind
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return value - 1
    if isinstance(value, float):
        return math.nextafter(value, -math.inf)
    return value - _STEP


def _span(low: Any, high: Any) -> Spans:  # values of one kind, or None
    return () if low is None or (high is not None and not low < high) else ((low, high),)


def _lower_end(first: Any, second: Any) -> Any:  # values of one kind, or None
    if first is None:
        return second
    return first if second is None or first <= second else second

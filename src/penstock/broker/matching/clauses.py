"""Selectors as clauses: the allowed values of each attribute, and the conditions that must be evaluated.

A selector is TRUE if one of its clauses is met. A clause is met if every attribute that it constrains has an allowed
value, and every condition in `opaque` (two attributes in one predicate, arithmetic, most patterns) is TRUE. This is
exact in the four-valued logic of the language: AND is TRUE if all its operands are, OR if one is, and NOT if its
operand is FALSE, which has clauses of its own; NULL and errors are neither.

Values are compared as in the language, whatever kind a schema declares, so a row that does not fit its schema has the
same result as in `evaluate`. An OR with too many clauses stays whole, in `opaque`.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import NoneType
from typing import Any, Final, TypeAlias

from penstock.broker.limits import BrokerLimits
from penstock.errors import EvaluationError
from penstock.model.values import AttributeSpec, Kind, Scalar, Schema, Value, kind_of
from penstock.selector import Selector
from penstock.selector.algebra import Sides, TooHardError
from penstock.selector.ast import (
    And,
    AttributeReference,
    Compare,
    ComparisonOperator,
    Condition,
    IsNull,
    Like,
    Not,
    Or,
    flatten,
    literal,
    render,
)
from penstock.selector.evaluate import read
from penstock.selector.like import parse_pattern
from penstock.selector.sets import Span, Spans, ValueSet, above, at_least, intersect, prefixed, unite, universe

End: TypeAlias = tuple[Any, ...]
"""A place on the line of values: `(0, v, 0)` is just before `v`, `(0, v, 1)` just after it."""

LOWEST: Final[End] = (-1,)
TOP: Final[End] = (1,)

Fact: TypeAlias = tuple[type, End]
"""The value of an attribute in an event: its family and its place.

A family is `str`, `float` (all numbers), `bool`, `datetime`, `NoneType` for null, or `EvaluationError` for what cannot
be read. As the family of a constraint, `object` means any value at all.
"""

NULL: Final[Fact] = (NoneType, (0,))
_ERROR: Final[Fact] = (EvaluationError, (0,))
_EVERYTHING: Final[Spans] = ((LOWEST, TOP),)
#: Beyond so many spans a binary search is quicker than looking at each.
_FEW: Final = 4


def fact(value: object) -> Fact:
    """Return the fact for a value of an event."""
    kind = type(value)
    if kind is str or kind is bool:
        return kind, (0, value, 0)
    try:
        known = read(value)
    except EvaluationError:
        return _ERROR
    if known is None:
        return NULL
    for family in (bool, str, datetime):
        if isinstance(known, family):
            return family, (0, known, 0)
    return float, (0, known, 0)


@dataclass(frozen=True, slots=True)
class Allowed:
    """The allowed values of one attribute: spans of one family, sorted and disjoint."""

    family: type
    spans: Spans = _EVERYTHING

    def admits(self, known: Fact) -> bool:
        """Return whether a fact is allowed."""
        family, place = known
        if family is not self.family:
            return self.family is object and family is not NoneType and family is not EvaluationError
        spans = self.spans
        if len(spans) > _FEW:
            index = bisect_right(spans, place, key=_low) - 1
            return index >= 0 and place < spans[index][1]
        return any(low <= place < high for low, high in spans)

    def meet(self, other: "Allowed") -> "Allowed | None":
        """Return the values that both allow, or None if there are none."""
        if self.family is object:
            return None if other.family is NoneType else other
        if other.family is object:
            return other.meet(self)
        spans = intersect(self.spans, other.spans) if self.family is other.family else ()
        return Allowed(self.family, spans) if spans else None

    def within(self, other: "Allowed") -> bool:
        """Return whether the other allows all these values."""
        if other.family is object:
            return self.family is not NoneType
        return self.family is other.family and intersect(self.spans, other.spans) == self.spans

    @property
    def points(self) -> bool:
        """Whether each span is a single value."""
        return all(is_point(span) for span in self.spans)


PRESENT: Final = Allowed(object)
ABSENT: Final = Allowed(NoneType)


def is_point(span: tuple[End, End]) -> bool:
    """Return whether a span is a single value."""
    low, high = span
    return len(low) == len(high) == 3 and low[1] == high[1]  # the length of an end that is not an extreme


def _low(span: tuple[End, End]) -> End:
    return span[0]


@dataclass(frozen=True, slots=True)
class Clause:
    """A conjunction: constraints by attribute, and further conditions that must be TRUE."""

    constraints: Mapping[str, Allowed] = field(default_factory=dict)
    opaque: tuple[Condition, ...] = ()

    def meet(self, other: "Clause") -> "Clause | None":
        """Return the conjunction of both clauses, or None if it is never met."""
        constraints = dict(self.constraints)
        for name, allowed in other.constraints.items():
            common = constraints[name].meet(allowed) if name in constraints else allowed
            if common is None:
                return None
            constraints[name] = common
        return Clause(constraints, tuple(dict.fromkeys(self.opaque + other.opaque)))

    def within(self, other: "Clause") -> bool:
        """Return whether `other` is obviously met wherever this clause is.

        Between clauses without opaque conditions this is exact, unless the schema has domains.
        """
        return all(
            name in self.constraints and self.constraints[name].within(allowed)
            for name, allowed in other.constraints.items()
        ) and set(other.opaque) <= set(self.opaque)


def clauses(selector: Selector, limits: BrokerLimits) -> tuple[Clause, ...]:
    """Return the clauses of a selector: none if it is never TRUE, at most `limits.matching_clauses`."""
    return tuple(_Reader(limits.matching_clauses).read(selector.root, wanted=True))


class _Reader(Sides[Clause]):
    def __init__(self, bound: int) -> None:
        self.bound = bound

    def read(self, node: Condition, *, wanted: bool) -> list[Clause]:
        """Return the clauses on which a condition is TRUE, or with `wanted=False` those on which it is FALSE."""
        try:
            return self.parts(node, wanted=wanted)
        except TooHardError:
            return [Clause(opaque=(node if wanted else Not(node),))]

    def everything(self) -> Clause:
        return Clause()

    def null(self, name: str, *, wanted: bool) -> list[Clause]:
        return self.one(name, ABSENT if wanted else PRESENT)

    def one(self, name: str, allowed: Allowed) -> list[Clause]:
        return [Clause({name: allowed})] if allowed.spans else []

    def junction(self, operands: Iterable[Condition], *, wanted: bool, every: bool) -> list[Clause]:
        if not every:
            return self.join(clause for operand in operands for clause in self.read(operand, wanted=wanted))
        found = [Clause()]
        for operand in operands:
            parts = self.read(operand, wanted=wanted)
            if len(found) * len(parts) > self.bound:
                parts = [Clause(opaque=(operand if wanted else Not(operand),))]
            found = [clause for one in found for other in parts if (clause := one.meet(other)) is not None]
        return found

    def join(self, parts: Iterable[Clause]) -> list[Clause]:
        found: list[Clause] = []
        alone: dict[tuple[str, type], list[tuple[End, End]]] = {}
        for clause in parts:
            if len(clause.constraints) == 1 and not clause.opaque:
                # x = 1 OR x = 2 is one clause, not two.
                ((name, allowed),) = clause.constraints.items()
                alone.setdefault((name, allowed.family), []).extend(allowed.spans)
            else:
                found.append(clause)
        found += (Clause({name: Allowed(family, unite(tuple(spans)))}) for (name, family), spans in alone.items())
        if len(found) > self.bound:
            raise TooHardError
        return found

    def compared(self, name: str, operator: ComparisonOperator, value: Value) -> list[Clause]:
        if isinstance(value, bool) and operator not in (ComparisonOperator.EQ, ComparisonOperator.NE):
            raise TooHardError
        family, place = fact(value)
        return self.one(name, Allowed(family, _spans(operator, place)))

    def among(self, name: str, values: Sequence[Value], *, wanted: bool) -> list[Clause]:
        facts = [fact(value) for value in values]
        families = {family for family, _ in facts}
        if len(families) > 1:
            raise TooHardError
        spans = unite(tuple(span for _, place in facts for span in _spans(ComparisonOperator.EQ, place)))
        return self._in_spans(name, families.pop() if families else NoneType, spans, wanted=wanted)

    def prefixed(self, name: str, prefix: str, *, wanted: bool) -> list[Clause]:
        return self._in_spans(name, str, _prefix(prefix), wanted=wanted)

    def pattern(self, name: str, node: Like, *, wanted: bool) -> list[Clause]:
        head = _head(node) if wanted else ""
        if not head:
            raise TooHardError
        return [Clause({name: Allowed(str, _prefix(head))}, (node,))]

    def _in_spans(self, name: str, family: type, spans: Spans, *, wanted: bool) -> list[Clause]:
        return self.one(name, Allowed(family, spans if wanted else _outside(spans)))


def _spans(operator: ComparisonOperator, before: End) -> Spans:
    """Return the places that compare so with one that is just before a value."""
    after = (*before[:-1], 1)
    match operator:
        case ComparisonOperator.EQ:
            return ((before, after),)
        case ComparisonOperator.NE:
            return (LOWEST, before), (after, TOP)
        case ComparisonOperator.LT:
            return ((LOWEST, before),)
        case ComparisonOperator.LE:
            return ((LOWEST, after),)
        case ComparisonOperator.GT:
            return ((after, TOP),)
        case ComparisonOperator.GE:
            return ((before, TOP),)


def _outside(spans: Spans) -> Spans:
    ends = [LOWEST, *(end for span in spans for end in span), TOP]
    return tuple((low, high) for low, high in zip(ends[::2], ends[1::2], strict=True) if low < high)


def _prefix(prefix: str) -> Spans:
    ((low, high),) = prefixed(prefix)
    return (((0, low, 0), TOP if high is None else (0, high, 0)),)


def _head(node: Like) -> str:
    """Return the characters that every match of a pattern begins with."""
    first = parse_pattern(node.pattern, node.escape).segments[0]
    return "".join(character or "" for character in first[: first.index(None) if None in first else None])


# ----------------------------------------------------------------------------------------------------------------------
# Clauses as sets of values under a schema, to compare interests.
#
# A schema declares an attribute's values, so `speed > 30` and `speed >= 31` are the same for integers, and a set is
# never larger than the attribute's domain. A condition that only evaluation can decide, and a constraint on an
# attribute that the schema lacks, are not part of the sets: they can only make the box smaller.


@dataclass(frozen=True, slots=True)
class Box:
    """Sets of values by attribute; an attribute that is not listed may have any. `exact` if nothing was left out."""

    values: Mapping[str, ValueSet]
    exact: bool = True

    def within(self, other: "Box") -> bool:
        """Return whether every row of this box is in the other, which must be exact."""
        return other.exact and all(
            name in self.values and theirs.holds(self.values[name]) for name, theirs in other.values.items()
        )

    def contains(self, row: Mapping[str, Scalar]) -> bool:
        """Return whether a row lies in all the sets; an attribute that it lacks is null."""
        return all(_contains(values, row.get(name)) for name, values in self.values.items())

    def example(self) -> dict[str, Scalar]:
        """Return a row that lies in all the sets."""
        return {name: values.example() for name, values in self.values.items()}


def _contains(values: ValueSet, value: Any) -> bool:  # a scalar
    if value is None:
        return values.null
    return kind_of(value) is values.kind and any(
        low <= value and (high is None or value < high) for low, high in values.spans
    )


def box(clause: Clause, schema: Schema) -> Box | None:
    """Return the rows on which a clause may be met, or None if no row of the schema is."""
    values: dict[str, ValueSet] = {}
    for name, allowed in clause.constraints.items():
        if name in schema:
            values[name] = _values(allowed, schema[name])
            if values[name].empty:
                return None
    return Box(values, exact=not clause.opaque and len(values) == len(clause.constraints))


def _values(allowed: Allowed, spec: AttributeSpec) -> ValueSet:
    every = universe(spec)
    if allowed.family is NoneType:
        return ValueSet(spec.kind, (), null=True)
    if allowed.family is object:
        return ValueSet(spec.kind, every.spans)
    spans = ((_place(spec.kind, low), _place(spec.kind, high)) for low, high in allowed.spans)
    # No value of the kind lies at or above a lower end of None, and none in a span that its steps leave empty.
    kept = tuple((low, high) for low, high in spans if low is not None and (high is None or low < high))
    return every & ValueSet(spec.kind, kept)


def _place(kind: Kind, end: End) -> Any:  # a value of the kind, or None for the top
    if end == LOWEST:
        return _lowest(kind)
    if end == TOP:
        return None
    _, value, after = end
    return above(kind, value) if after else at_least(kind, value)


def _lowest(kind: Kind) -> Any:  # a value of the kind
    return universe(AttributeSpec(kind)).spans[0][0]


def write(sets: Mapping[str, ValueSet], schema: Schema) -> Selector | None:
    """Return a selector that is TRUE on the rows of an exact box; None if a bound of it has no literal."""
    parts = [_condition(AttributeReference(name), values, schema[name]) for name, values in sorted(sets.items())]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    root = flatten(And, known, 0) if known else literal(value=True)
    return Selector(render(root), root, frozenset(sets))


def _condition(attribute: AttributeReference, values: ValueSet, spec: AttributeSpec) -> Condition | None:
    if values.null:
        return IsNull(attribute)
    if values.spans == universe(spec).spans:
        return Not(IsNull(attribute))
    if any(isinstance(end, float) and end == math.inf for span in values.spans for end in span):
        return None
    return flatten(Or, [_bounds(attribute, span, spec.kind) for span in values.spans], 0)


def _bounds(attribute: AttributeReference, span: Span, kind: Kind) -> Condition:
    low, high = span
    if above(kind, low) == high:
        return Compare(ComparisonOperator.EQ, attribute, literal(low))
    bounds: list[Condition] = []
    if low != _lowest(kind):
        bounds.append(Compare(ComparisonOperator.GE, attribute, literal(low)))
    if high is not None:
        bounds.append(Compare(ComparisonOperator.LT, attribute, literal(high)))
    return flatten(And, bounds, 0)

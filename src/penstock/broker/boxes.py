"""Clauses as sets of values under a schema: what one interest has in common with another.

A schema says what an attribute may hold, so that `speed > 30` and `speed >= 31` are the same for integers, and a set
is never larger than the attribute's domain. A condition that only evaluation can decide, and a constraint on an
attribute that the schema lacks, stay beside the sets: they can only make the box smaller.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any

from penstock.broker.clauses import LOWEST, TOP, Allowed, Clause, End
from penstock.model.values import AttributeSpec, Kind, Scalar, Schema, kind_of
from penstock.selector import Selector
from penstock.selector.ast import And, Attribute, Compare, Comparison, Condition, IsNull, Not, Or, flatten, literal
from penstock.selector.sets import Span, ValueSet, above, at_least, universe
from penstock.selector.text import render


@dataclass(frozen=True, slots=True)
class Box:
    """Values by attribute; an attribute that is not listed may have any. `exact` unless something stays beside."""

    values: Mapping[str, ValueSet]
    exact: bool = True

    def within(self, other: "Box") -> bool:
        """Say whether every row of this box is one of the other, which must be exact."""
        return other.exact and all(
            name in self.values and _inside(self.values[name], theirs) for name, theirs in other.values.items()
        )

    def contains(self, row: Mapping[str, Scalar]) -> bool:
        """Say whether a row lies in all the sets; an attribute that it lacks is null."""
        return all(_contains(values, row.get(name)) for name, values in self.values.items())

    def example(self) -> dict[str, Scalar]:
        """Return a row that lies in all the sets."""
        return {name: values.example() for name, values in self.values.items()}


def _inside(mine: ValueSet, theirs: ValueSet) -> bool:
    if mine.kind is not theirs.kind:
        return False
    if len(mine.spans) == len(theirs.spans) == 1 and not (mine.null or mine.nan):
        # Nearly always; a difference of sets takes ten times as long.
        (low, high), (least, most) = mine.spans[0], theirs.spans[0]
        return bool(least <= low and (most is None or (high is not None and high <= most)))
    return (mine - theirs).empty


def _contains(values: ValueSet, value: Any) -> bool:  # a scalar
    if value is None:
        return values.null
    return kind_of(value) is values.kind and any(
        low <= value and (high is None or value < high) for low, high in values.spans
    )


def box(clause: Clause, schema: Schema) -> Box | None:
    """Return the rows on which a clause may hold, or None when there are none that fit the schema."""
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
    parts = [_condition(Attribute(name), values, schema[name]) for name, values in sorted(sets.items())]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    root = flatten(And, known, 0) if known else literal(value=True)
    return Selector(render(root), root, frozenset(sets))


def _condition(attribute: Attribute, values: ValueSet, spec: AttributeSpec) -> Condition | None:
    if values.null:
        return IsNull(attribute)
    if values.spans == universe(spec).spans:
        return Not(IsNull(attribute))
    if any(isinstance(end, float) and end == math.inf for span in values.spans for end in span):
        return None
    return flatten(Or, [_bounds(attribute, span, spec.kind) for span in values.spans], 0)


def _bounds(attribute: Attribute, span: Span, kind: Kind) -> Condition:
    low, high = span
    if above(kind, low) == high:
        return Compare(Comparison.EQ, attribute, literal(low))
    bounds: list[Condition] = []
    if low != _lowest(kind):
        bounds.append(Compare(Comparison.GE, attribute, literal(low)))
    if high is not None:
        bounds.append(Compare(Comparison.LT, attribute, literal(high)))
    return flatten(And, bounds, 0)

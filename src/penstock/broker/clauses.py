"""Selectors as clauses: what an attribute may be, one by one, and what has to be evaluated.

A selector is TRUE where one of its clauses holds. A clause holds where every attribute that it constrains has an
allowed value, and every condition in `opaque` (two attributes in one predicate, arithmetic, most patterns) is TRUE.
This is exact in the four-valued logic of the language: AND is TRUE where all its operands are, OR where one is, and
NOT asks where its operand is FALSE, which is answered the same way; NULL and errors are neither.

Values are compared as the language does it, whatever the kind that a schema declares, so that a row that fits no
schema is treated as `evaluate` treats it. An OR with too many clauses stays whole, in `opaque`.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import NoneType
from typing import Any, Final, TypeAlias

from penstock.errors import EvaluationError
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.values import Scalar
from penstock.selector import Selector
from penstock.selector.ast import (
    Attribute,
    Compare,
    Comparison,
    Condition,
    In,
    Like,
    Literal,
    Not,
    Term,
    walk,
)
from penstock.selector.evaluate import evaluate_term
from penstock.selector.like import compile_pattern, parse_pattern
from penstock.selector.polarity import Sides
from penstock.selector.scalar import compare, read
from penstock.selector.sets import Spans, intersect, prefixed, unite

End: TypeAlias = tuple[Any, ...]
"""A place on the line of values: `(0, v, 0)` is just before `v`, `(0, v, 1)` just after it."""

LOWEST: Final[End] = (-1,)
TOP: Final[End] = (1,)

Fact: TypeAlias = tuple[type, End]
"""What an event says of an attribute: its family and its place.

A family is `str`, `float` (all numbers), `bool`, `datetime`, `NoneType` for null, or `EvaluationError` for what cannot
be read. As the family of a constraint, `object` means any value at all.
"""

NULL: Final[Fact] = (NoneType, (0,))
_ERROR: Final[Fact] = (EvaluationError, (0,))
_EVERYTHING: Final[Spans] = ((LOWEST, TOP),)
#: Beyond so many spans a binary search is quicker than looking at each.
_FEW: Final = 4


def fact(value: object) -> Fact:
    """Return what a value of an event means to clauses."""
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
    """The values of one attribute on which a clause can hold: spans of one family, sorted and apart."""

    family: type
    spans: Spans = _EVERYTHING

    def admits(self, known: Fact) -> bool:
        """Say whether a fact is allowed."""
        family, place = known
        if family is not self.family:
            return self.family is object and family is not NoneType and family is not EvaluationError
        spans = self.spans
        if len(spans) > _FEW:
            index = bisect_right(spans, place, key=_low) - 1
            return index >= 0 and place < spans[index][1]
        return any(low <= place < high for low, high in spans)

    def meet(self, other: "Allowed") -> "Allowed | None":
        """Return what both allow, or None when that is nothing."""
        if self.family is object:
            return None if other.family is NoneType else other
        if other.family is object:
            return other.meet(self)
        spans = intersect(self.spans, other.spans) if self.family is other.family else ()
        return Allowed(self.family, spans) if spans else None

    def within(self, other: "Allowed") -> bool:
        """Say whether everything that is allowed here is allowed there."""
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
    """Say whether a span is a single value."""
    low, high = span
    return len(low) == len(high) == 3 and low[1] == high[1]  # the length of an end that is no extreme


def _low(span: tuple[End, End]) -> End:
    return span[0]


@dataclass(frozen=True, slots=True)
class Clause:
    """A conjunction: constraints by attribute, and conditions that must be TRUE besides."""

    constraints: Mapping[str, Allowed] = field(default_factory=dict)
    opaque: tuple[Condition, ...] = ()

    def meet(self, other: "Clause") -> "Clause | None":
        """Return where both hold, or None when that is nowhere."""
        constraints = dict(self.constraints)
        for name, allowed in other.constraints.items():
            common = constraints[name].meet(allowed) if name in constraints else allowed
            if common is None:
                return None
            constraints[name] = common
        return Clause(constraints, tuple(dict.fromkeys(self.opaque + other.opaque)))

    def within(self, other: "Clause") -> bool:
        """Say whether it is plain to see that `other` holds wherever this does.

        Between clauses without opaque conditions this is exact, unless the schema has domains.
        """
        return all(
            name in self.constraints and self.constraints[name].within(allowed)
            for name, allowed in other.constraints.items()
        ) and set(other.opaque) <= set(self.opaque)


def clauses(selector: Selector, limits: Limits = DEFAULT_LIMITS) -> tuple[Clause, ...]:
    """Return the clauses of a selector: none where it is never TRUE, at most `limits.matching_clauses`."""
    return tuple(_Reader(limits.matching_clauses).read(selector.root, wanted=True))


class _OpaqueError(Exception):
    """A condition is not about one attribute and constants."""


class _Reader(Sides[Clause]):
    def __init__(self, bound: int) -> None:
        self.bound = bound

    def read(self, node: Condition, *, wanted: bool) -> list[Clause]:
        """Return the clauses on which a condition is TRUE, or with `wanted=False` those on which it is FALSE."""
        try:
            return self.parts(node, wanted=wanted)
        except _OpaqueError:
            return [Clause(opaque=(node if wanted else Not(node),))]

    def everything(self) -> Clause:
        return Clause()

    def truth(self, name: str, *, wanted: bool) -> list[Clause]:
        return self.one(name, Allowed(bool, _spans(Comparison.EQ, wanted)))

    def null(self, value: Term, *, wanted: bool) -> list[Clause]:
        if not isinstance(value, Attribute):
            raise _OpaqueError
        return self.one(value.name, ABSENT if wanted else PRESENT)

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
        alone: dict[tuple[str, type], Spans] = {}
        for clause in parts:
            if len(clause.constraints) == 1 and not clause.opaque:
                # x = 1 OR x = 2 is one clause, not two.
                ((name, allowed),) = clause.constraints.items()
                alone[name, allowed.family] = unite(alone.get((name, allowed.family), ()) + allowed.spans)
            else:
                found.append(clause)
        found += (Clause({name: Allowed(family, spans)}) for (name, family), spans in alone.items())
        if len(found) > self.bound:
            raise _OpaqueError
        return found

    def comparison(self, node: Compare, *, wanted: bool) -> list[Clause]:
        operator, left, right = node.operator, node.left, node.right
        if isinstance(right, Attribute) and not isinstance(left, Attribute):
            operator, left, right = operator.flipped, right, left
        constant = _constant(right)
        if not isinstance(left, Attribute):
            return [Clause()] if _holds(operator, _constant(left), constant) is wanted else []
        if constant is None:
            return []
        if isinstance(constant, bool) and operator not in (Comparison.EQ, Comparison.NE):
            raise _OpaqueError
        spans = _spans(operator if wanted else operator.negated, constant)
        return self.one(left.name, Allowed(fact(constant)[0], spans))

    def membership(self, node: In, *, wanted: bool) -> list[Clause]:
        if not isinstance(node.value, Attribute):
            raise _OpaqueError
        items = [_constant(item) for item in node.items]
        values = [item for item in items if item is not None]
        families = {fact(value)[0] for value in values}
        if not wanted and len(values) < len(items):
            # With a null or an error among the items, NOT IN is never TRUE.
            return []
        if len(families) > 1:
            raise _OpaqueError
        spans = unite(tuple(span for value in values for span in _spans(Comparison.EQ, value)))
        family = families.pop() if families else NoneType
        return self.one(node.value.name, Allowed(family, spans if wanted else _outside(spans)))

    def like(self, node: Like, *, wanted: bool) -> list[Clause]:
        if not isinstance(node.value, Attribute):
            raise _OpaqueError
        name = node.value.name
        shape, argument = compile_pattern(node.pattern, node.escape)
        if isinstance(argument, str) and shape in ("equal", "prefix"):
            spans = _spans(Comparison.EQ, argument) if shape == "equal" else _prefix(argument)
            return self.one(name, Allowed(str, spans if wanted else _outside(spans)))
        head = _head(node) if wanted else ""
        if not head:
            raise _OpaqueError
        return [Clause({name: Allowed(str, _prefix(head))}, (node,))]


def _spans(operator: Comparison, value: Scalar) -> Spans:
    _, (_, known, _) = fact(value)
    before, after = (0, known, 0), (0, known, 1)
    match operator:
        case Comparison.EQ:
            return ((before, after),)
        case Comparison.NE:
            return (LOWEST, before), (after, TOP)
        case Comparison.LT:
            return ((LOWEST, before),)
        case Comparison.LE:
            return ((LOWEST, after),)
        case Comparison.GT:
            return ((after, TOP),)
        case Comparison.GE:
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


def _constant(term: Term) -> Scalar:
    """Return the value of a term without attributes; null also for one in error, since neither is TRUE nor FALSE."""
    if isinstance(term, Literal):
        return term.value
    if any(isinstance(node, Attribute) for node in walk(term)):
        raise _OpaqueError
    try:
        return evaluate_term(term, {})
    except EvaluationError:
        return None


def _holds(operator: Comparison, left: Scalar, right: Scalar) -> bool | None:
    try:
        return compare(operator, left, right)
    except EvaluationError:
        return None

"""Answer questions about simple selectors by set algebra.

The rows on which a selector is TRUE, and those on which it is FALSE, are each written as a union of boxes: a box
says for every attribute which values are in. Predicates over one attribute and constants have boxes, AND intersects
the TRUE ones and unites the FALSE ones, OR the other way round, NOT exchanges them; this is exact also for nulls
and errors, since a row that is neither TRUE nor FALSE lies in neither union. What has no boxes (two attributes in
one predicate, arithmetic, patterns other than a prefix), or too many of them, is left to the solver.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from penstock.errors import EvaluationError, MalformedError
from penstock.model.values import Scalar, Schema, Value
from penstock.selector.ast import (
    And,
    AttributeReference,
    Between,
    Compare,
    ComparisonOperator,
    Condition,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Term,
    walk,
)
from penstock.selector.evaluate import compare, evaluate, evaluate_term
from penstock.selector.like import compile_pattern
from penstock.selector.selector import Selector
from penstock.selector.sets import Spans, ValueSet, complement, intersect, points, prefixed, select, universe

# ----------------------------------------------------------------------------------------------------------------------
# The question of the analysis: is there a row on which some selectors are TRUE and others are not?


@dataclass(frozen=True, slots=True)
class RowQuestion:
    """A search for a row that fits `schema`, on which all of `holding` are TRUE and none of `failing` is."""

    schema: Schema
    holding: tuple[Selector, ...]
    failing: tuple[Selector, ...] = ()

    @property
    def attributes(self) -> frozenset[str]:
        """The attributes that the answer depends on."""
        return frozenset().union(*(selector.attributes for selector in self.holding + self.failing))

    def shown_by(self, row: Mapping[str, Scalar]) -> bool:
        """Return whether `row` answers the question, by evaluating the selectors on it."""
        try:
            for name, value in row.items():
                self.schema[name].check(value)
            if not all(evaluate(selector, row) is True for selector in self.holding):
                return False
        except (MalformedError, EvaluationError):
            return False
        return not any(_is_true(selector, row) for selector in self.failing)


def _is_true(selector: Selector, row: Mapping[str, Scalar]) -> bool:
    try:
        return evaluate(selector, row) is True
    except EvaluationError:
        return False


# ----------------------------------------------------------------------------------------------------------------------
# Conditions taken apart, on the side where they are TRUE or on the side where they are FALSE.


Part = TypeVar("Part")


class TooHardError(Exception):
    """A condition is not about one attribute and constants, or has too many parts."""


class Sides(ABC, Generic[Part]):
    """Reads a condition as a union of parts: NOT changes sides, and on the other side AND is OR.

    This is the only place where predicates become sets of values. What a set is, and how many parts there may be, is up
    to who asks: analysis has sets under a schema, matching has those that fit any. Raises `TooHardError`.
    """

    def read(self, node: Condition, *, wanted: bool) -> list[Part]:
        """Return the parts on which a condition is TRUE, or with `wanted=False` those on which it is FALSE."""
        return self.parts(node, wanted=wanted)

    def parts(self, node: Condition, *, wanted: bool) -> list[Part]:
        """Return what `read` returns, unless that has more to do."""
        match node:
            case Literal(value):
                return self.always(holds=value is wanted)
            case AttributeReference(name):
                return self.compared(name, ComparisonOperator.EQ, wanted)
            case Not(operand):
                return self.read(operand, wanted=not wanted)
            case And(operands):
                return self.junction(operands, wanted=wanted, every=wanted)
            case Or(operands):
                return self.junction(operands, wanted=wanted, every=not wanted)
            case Between(value, low, high):
                bounds = (Compare(ComparisonOperator.GE, value, low), Compare(ComparisonOperator.LE, value, high))
                return self.junction(bounds, wanted=wanted, every=wanted)
            case Compare(operator, left, right):
                return self._comparison(operator, left, right, wanted=wanted)
            case In():
                return self._membership(node, wanted=wanted)
            case Like():
                return self._like(node, wanted=wanted)
            case IsNull(AttributeReference(name)):
                return self.null(name, wanted=wanted)
            case IsNull(value):
                defined, constant = _constant(value)
                return self.always(holds=defined and (constant is None) is wanted)

    def always(self, *, holds: bool) -> list[Part]:
        """Return everything, or nothing."""
        return [self.everything()] if holds else []

    def _comparison(self, operator: ComparisonOperator, left: Term, right: Term, *, wanted: bool) -> list[Part]:
        if isinstance(right, AttributeReference) and not isinstance(left, AttributeReference):
            operator, left, right = operator.flipped, right, left
        defined, constant = _constant(right)
        if not isinstance(left, AttributeReference):
            also_defined, other = _constant(left)
            return self.always(holds=defined and also_defined and _compare(operator, other, constant) is wanted)
        if not defined or constant is None:
            return []
        return self.compared(left.name, operator if wanted else operator.negated, constant)

    def _membership(self, node: In, *, wanted: bool) -> list[Part]:
        if not isinstance(node.value, AttributeReference):
            _constant(node.value)
            equalities = [Compare(ComparisonOperator.EQ, node.value, item) for item in node.items]
            return self.junction(equalities, wanted=wanted, every=not wanted)
        items = [_constant(item) for item in node.items]
        values: list[Value] = [value for defined, value in items if defined and value is not None]
        if not wanted and len(values) < len(items):
            # With a null or an error among the items, NOT IN is never TRUE.
            return []
        return self.among(node.value.name, values, wanted=wanted)

    def _like(self, node: Like, *, wanted: bool) -> list[Part]:
        if not isinstance(node.value, AttributeReference):
            raise TooHardError
        shape, argument = compile_pattern(node.pattern, node.escape)
        if isinstance(argument, str) and shape == "equal":
            return self.among(node.value.name, [argument], wanted=wanted)
        if isinstance(argument, str) and shape == "prefix":
            return self.prefixed(node.value.name, argument, wanted=wanted)
        return self.pattern(node.value.name, node, wanted=wanted)

    @abstractmethod
    def everything(self) -> Part:
        """Return the part that excludes nothing."""

    @abstractmethod
    def junction(self, operands: Iterable[Condition], *, wanted: bool, every: bool) -> list[Part]:
        """Return where every, or some, of the operands is on the wanted side."""

    @abstractmethod
    def compared(self, name: str, operator: ComparisonOperator, value: Value) -> list[Part]:
        """Return where an attribute compares so with a value."""

    @abstractmethod
    def among(self, name: str, values: Sequence[Value], *, wanted: bool) -> list[Part]:
        """Return where an attribute has, or has not, one of some values; null is neither."""

    @abstractmethod
    def prefixed(self, name: str, prefix: str, *, wanted: bool) -> list[Part]:
        """Return where an attribute is a text that begins so, or one that does not."""

    @abstractmethod
    def pattern(self, name: str, node: Like, *, wanted: bool) -> list[Part]:
        """Return where an attribute fits any other pattern, or does not."""

    @abstractmethod
    def null(self, name: str, *, wanted: bool) -> list[Part]:
        """Return where an attribute is null, or is not."""


def _constant(term: Term) -> tuple[bool, Scalar]:
    """Return whether a term without attributes has a value, and that value.

    Raises `TooHardError` where there are attributes.
    """
    if isinstance(term, Literal):
        return True, term.value
    if any(isinstance(node, AttributeReference) for node in walk(term)):
        raise TooHardError
    try:
        return True, evaluate_term(term, {})
    except EvaluationError:
        return False, None


def _compare(operator: ComparisonOperator, left: Scalar, right: Scalar) -> bool | None:
    try:
        return compare(operator, left, right)
    except EvaluationError:
        return None


# ----------------------------------------------------------------------------------------------------------------------
# Answer questions about simple selectors by set algebra.


Box: TypeAlias = Mapping[str, ValueSet]
"""The values that are in, attribute by attribute; an attribute that is not listed may have any."""

#: Boxes that one selector may have, and pieces that a difference may fall into, before the solver is asked.
_BOXES: Final = 64
_PIECES: Final = 256


def meet(first: Box, second: Box) -> Box | None:
    """Return what both boxes allow, or None if that is nothing."""
    if not first:
        return second
    box = dict(first)
    for name, values in second.items():
        common = box[name] & values if name in box else values
        if common.empty:
            return None
        box[name] = common
    return box


def search(question: RowQuestion) -> dict[str, Scalar] | None:
    """Return a row that answers the question, or None if there is none.

    Raises `TooHardError`.
    """
    algebra = _Algebra(question.schema)
    pieces: list[Box] = [{}]
    for selector in question.holding:
        pieces = algebra.meet(pieces, algebra.read(selector.root, wanted=True))
    for selector in question.failing:
        pieces = algebra.subtract(pieces, algebra.read(selector.root, wanted=True))
    if not pieces:
        return None
    return {name: algebra.values(pieces[0], name).example() for name in sorted(question.attributes)}


def single_box(selector: Selector, schema: Schema) -> Box | None:
    """Return the box of rows on which the selector is TRUE; None if they are not a single box, or it is unknown.

    >>> from penstock.model.values import AttributeSpec, Kind
    >>> from penstock.selector.selector import parse
    >>> schema = {"a": AttributeSpec(Kind.INTEGER), "b": AttributeSpec(Kind.INTEGER)}
    >>> single_box(parse("a > 1 AND b = 2"), schema)["a"].spans, single_box(parse("a > 1 OR b = 2"), schema)
    (((2, None),), None)
    """
    try:
        boxes = _Algebra(schema).read(selector.root, wanted=True)
    except TooHardError:
        return None
    return boxes[0] if len(boxes) == 1 else None


class _Algebra(Sides[Box]):
    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.universes: dict[str, ValueSet] = {}

    def universe(self, name: str) -> ValueSet:
        if name not in self.universes:
            self.universes[name] = universe(self.schema[name])
        return self.universes[name]

    def values(self, box: Box, name: str) -> ValueSet:
        return box[name] if name in box else self.universe(name)

    # --- unions of boxes ----------------------------------------------------------------------------------------

    def meet(self, first: list[Box], second: list[Box]) -> list[Box]:
        if len(first) * len(second) > _BOXES:
            raise TooHardError
        return [box for one in first for other in second if (box := meet(one, other)) is not None]

    def join(self, parts: Iterable[list[Box]]) -> list[Box]:
        boxes: list[Box] = []
        by_attribute: dict[str, ValueSet] = {}
        for box in (box for part in parts for box in part):
            if len(box) == 1:
                # x = 1 OR x = 2 is one set, not two boxes.
                ((name, values),) = box.items()
                by_attribute[name] = by_attribute[name] | values if name in by_attribute else values
            else:
                boxes.append(box)
        boxes += ({name: values} for name, values in by_attribute.items())
        if len(boxes) > _BOXES:
            raise TooHardError
        return boxes

    def subtract(self, boxes: list[Box], removed: list[Box]) -> list[Box]:
        for hole in removed:
            boxes = [piece for box in boxes for piece in self._subtract(box, hole)]
            if len(boxes) > _PIECES:
                raise TooHardError
        return boxes

    def _subtract(self, box: Box, hole: Box) -> Iterable[Box]:
        rest = box
        for name, values in hole.items():
            mine = self.values(rest, name)
            outside = mine - values
            if not outside.empty:
                yield {**rest, name: outside}
            inside = mine & values
            if inside.empty:
                return
            rest = {**rest, name: inside}

    # --- conditions ---------------------------------------------------------------------------------------------

    def everything(self) -> Box:
        return {}

    def null(self, name: str, *, wanted: bool) -> list[Box]:
        known = self.universe(name)
        return [{name: ValueSet(known.kind, (), null=True)}] if wanted else self.box(name, known.spans)

    def junction(self, operands: Iterable[Condition], *, wanted: bool, every: bool) -> list[Box]:
        if not every:
            return self.join(self.read(operand, wanted=wanted) for operand in operands)
        found: list[Box] = [{}]
        for operand in operands:
            found = self.meet(found, self.read(operand, wanted=wanted))
        return found

    def box(self, name: str, spans: Spans) -> list[Box]:
        known = self.universe(name)
        values = ValueSet(known.kind, intersect(known.spans, spans))
        return [] if values.empty else [{name: values}]

    def compared(self, name: str, operator: ComparisonOperator, value: Value) -> list[Box]:
        return self.box(name, select(self.universe(name).kind, operator, value))

    def among(self, name: str, values: Sequence[Value], *, wanted: bool) -> list[Box]:
        return self._in_spans(name, points(self.universe(name).kind, values), wanted=wanted)

    def prefixed(self, name: str, prefix: str, *, wanted: bool) -> list[Box]:
        return self._in_spans(name, prefixed(prefix), wanted=wanted)

    def pattern(self, _name: str, _node: Like, *, wanted: bool) -> list[Box]:  # noqa: ARG002  # no pattern has boxes
        raise TooHardError

    def _in_spans(self, name: str, spans: Spans, *, wanted: bool) -> list[Box]:
        return self.box(name, spans if wanted else complement(self.universe(name).kind, spans))

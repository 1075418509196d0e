"""Formulas for z3: conditions as pairs (TRUE, FALSE), terms as triples (null, error, value)."""

import operator as python
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import z3

from penstock.model.values import INTEGER_MAX, INTEGER_MIN, Kind, Scalar, Schema
from penstock.selector.ast import (
    And,
    Arithmetic,
    Attribute,
    Between,
    Compare,
    Comparison,
    Concat,
    Condition,
    In,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Operator,
    Or,
    Term,
)
from penstock.selector.like import Pattern, Segment, parse_pattern
from penstock.selector.represent import Formula, Representation, UnsettledError
from penstock.selector.sets import above, at_least

#: patterns of one value that are compared with each other; their pairs are many
_RELATED_PATTERNS: Final = 64


@dataclass(frozen=True, slots=True)
class Encoded:
    """A term. `kind` is None where it is always null, and then there is no value."""

    kind: Kind | None
    null: Formula
    error: Formula
    value: Formula = None
    #: the constant, where the term is one
    constant: Scalar = None


class Encoder:
    """Encodes selectors over one schema; `constraints` say what the attributes may be."""

    def __init__(self, schema: Schema, values: Representation) -> None:
        self.schema = schema
        self.values = values
        self.attributes: dict[str, Encoded] = {}
        self.constraints: list[Formula] = []
        self._patterns: dict[int, list[tuple[Pattern, Formula]]] = {}
        self.false = z3.BoolVal(False, values.context)
        self.true = z3.BoolVal(True, values.context)

    # --- conditions ---------------------------------------------------------------------------------------------

    def condition(self, node: Condition) -> tuple[Formula, Formula]:
        """Return when a condition is TRUE and when it is FALSE.

        Raises `UnsettledError` for what cannot be encoded.
        """
        match node:
            case Attribute() | Literal():
                term = self.term(node)
                return self._test(term.value, term)
            case Not(operand):
                true, false = self.condition(operand)
                return false, true
            case And(operands):
                pairs = [self.condition(operand) for operand in operands]
                return self._all(*(true for true, _ in pairs)), self._any(*(false for _, false in pairs))
            case Or(operands):
                pairs = [self.condition(operand) for operand in operands]
                return self._any(*(true for true, _ in pairs)), self._all(*(false for _, false in pairs))
            case Between(value, low, high):
                return self.condition(And((Compare(Comparison.GE, value, low), Compare(Comparison.LE, value, high))))
            case In(value, items):
                return self.condition(Or(tuple(Compare(Comparison.EQ, value, item) for item in items)))
            case IsNull(value):
                term = self.term(value)
                sound = z3.Not(term.error)
                return self._all(sound, term.null), self._all(sound, z3.Not(term.null))
            case Like(value, pattern, escape):
                term = self.term(value)
                return self._test(None if term.kind is None else self._like(term.value, pattern, escape), term)
            case Compare(operator, left, right):
                return self._comparison(operator, self.term(left), self.term(right))

    def _test(self, test: Formula, *terms: Encoded) -> tuple[Formula, Formula]:
        """Return when a test of some terms is TRUE and FALSE: never if one is null or in error."""
        if any(term.kind is None for term in terms):
            return self.false, self.false
        valued = z3.Not(self._any(*(flag for term in terms for flag in (term.null, term.error))))
        return self._all(valued, test), self._all(valued, z3.Not(test))

    def _comparison(self, operator: Comparison, left: Encoded, right: Encoded) -> tuple[Formula, Formula]:
        if left.kind is None or right.kind is None:
            test = None
        elif left.kind is right.kind:
            test = self._relate(
                operator, left.value, right.value, doubles=left.kind is Kind.FLOAT and self.values.exact
            )
        elif left.kind is Kind.FLOAT:
            test = self._mixed(operator.flipped, right, left)
        else:
            test = self._mixed(operator, left, right)
        return self._test(test, left, right)

    def _relate(self, operator: Comparison, left: Formula, right: Formula, *, doubles: bool = False) -> Formula:
        match operator:
            case Comparison.EQ:
                # fp.eq and not identity: the two zeros are equal.
                return z3.fpEQ(left, right, self.values.context) if doubles else left == right
            case Comparison.NE:
                return z3.Not(self._relate(Comparison.EQ, left, right, doubles=doubles))
            case Comparison.LT:
                return left < right
            case Comparison.LE:
                return left <= right
            case Comparison.GT:
                return right < left
            case Comparison.GE:
                return right <= left

    def _mixed(self, operator: Comparison, integer: Encoded, real: Encoded) -> Formula:
        """Compare an integer with a float, exactly."""
        if not self.values.exact:
            return self._relate(operator, z3.ToReal(integer.value), real.value)
        if isinstance(real.constant, float):
            return self._relate(operator, z3.ToReal(integer.value), self.values.rational(real.constant))
        if not isinstance(integer.constant, int):
            raise UnsettledError
        # The doubles around the integer: x > n is x >= the first one above n.
        first = self.values.double(at_least(Kind.FLOAT, integer.constant))
        beyond = self.values.double(above(Kind.FLOAT, integer.constant))
        match operator.flipped:
            case Comparison.EQ:
                return z3.And(real.value >= first, real.value < beyond)
            case Comparison.NE:
                return z3.Not(z3.And(real.value >= first, real.value < beyond))
            case Comparison.LT:
                return real.value < first
            case Comparison.LE:
                return real.value < beyond
            case Comparison.GT:
                return real.value >= beyond
            case Comparison.GE:
                return real.value >= first

    def _like(self, value: Formula, pattern: str, escape: str | None) -> Formula:
        sort = z3.ReSort(z3.StringSort(self.values.context))
        parts: list[Formula] = []
        parsed = parse_pattern(pattern, escape)
        for index, segment in enumerate(parsed.segments):
            if index:
                parts.append(z3.Full(sort))
            parts += self._pieces(segment, sort)
        if not parts:
            return value == self.values.string("")
        # Named, since z3 settles what names say before it looks into patterns.
        fits = z3.Bool(f"fits{len(self.constraints)}", self.values.context)
        self.constraints.append(fits == z3.InRe(value, parts[0] if len(parts) == 1 else z3.Concat(*parts)))
        self._relate_patterns(value, parsed, fits)
        return fits

    def _relate_patterns(self, value: Formula, pattern: Pattern, fits: Formula) -> None:
        """Tell z3 which patterns of one value imply each other: left to itself, it may search without end."""
        others = self._patterns.setdefault(value.get_id(), [])
        if len(others) == _RELATED_PATTERNS:
            return
        for other, other_fits in others:
            if pattern.covers(other):
                self.constraints.append(z3.Implies(other_fits, fits))
            if other.covers(pattern):
                self.constraints.append(z3.Implies(fits, other_fits))
        others.append((pattern, fits))

    def _pieces(self, segment: Segment, sort: Formula) -> list[Formula]:
        pieces: list[Formula] = []
        run = ""
        for character in (*segment, None):
            if character is not None:
                run += character
                continue
            if run:
                pieces.append(z3.Re(self.values.string(run), self.values.context))
            pieces.append(z3.AllChar(sort, self.values.context))
            run = ""
        # The last one is the None that closed the loop.
        return pieces[:-1]

    # --- terms --------------------------------------------------------------------------------------------------

    def term(self, node: Term) -> Encoded:
        """Encode a term.

        Raises `UnsettledError` for what cannot be encoded.
        """
        match node:
            case Attribute(name):
                if name not in self.attributes:
                    self.attributes[name] = self._attribute(name)
                return self.attributes[name]
            case Literal(value, kind):
                if value is None or kind is None:
                    return Encoded(None, self.true, self.false)
                return Encoded(kind, self.false, self.false, self.values.constant(value), value)
            case Negate(operand):
                return self._negate(self.term(operand))
            case Concat(left, right):
                first, second = self.term(left), self.term(right)
                return self._operation(Kind.STRING, first, second, lambda: (z3.Concat(first.value, second.value), None))
            case Arithmetic(operator, left, right):
                return self._arithmetic(operator, self.term(left), self.term(right))

    def _attribute(self, name: str) -> Encoded:
        spec = self.schema[name]
        context = self.values.context
        # Numbered, since names are the user's and z3's symbols are its own.
        number = len(self.attributes)
        value = self.values.variable(f"value{number}", spec.kind)
        null = z3.Bool(f"null{number}", context)
        error = self.false
        if spec.kind is Kind.FLOAT:
            if spec.domain is None:
                error = z3.fpIsNaN(value, context) if self.values.exact else z3.Bool(f"nan{number}", context)
            elif self.values.exact:
                self.constraints.append(z3.Not(z3.fpIsNaN(value, context)))
        self.constraints += self.values.bounds(value, spec)
        return Encoded(spec.kind, null, self._all(z3.Not(null), error), value)

    def _operation(
        self, kind: Kind, left: Encoded, right: Encoded, compute: Callable[[], tuple[Formula, Formula]]
    ) -> Encoded:
        """Encode an operator: `compute` returns its value and when that is an error by itself."""
        error = self._any(left.error, right.error)
        if left.kind is None or right.kind is None:
            return Encoded(None, self.true, error)
        value, failure = compute()
        null = self._any(left.null, right.null)
        own = self.false if failure is None else self._all(z3.Not(null), failure)
        return Encoded(kind, null, self._any(error, own), value)

    def _negate(self, operand: Encoded) -> Encoded:
        if operand.kind is None:
            return operand
        overflow = operand.value == INTEGER_MIN if operand.kind is Kind.INTEGER else self.false
        error = self._any(operand.error, self._all(z3.Not(operand.null), overflow))
        doubles = operand.kind is Kind.FLOAT and self.values.exact
        value = z3.fpNeg(operand.value, self.values.context) if doubles else -operand.value
        return Encoded(operand.kind, operand.null, error, value)

    def _arithmetic(self, operator: Operator, left: Encoded, right: Encoded) -> Encoded:
        if left.kind is right.kind is Kind.INTEGER:
            return self._operation(Kind.INTEGER, left, right, lambda: self._integers(operator, left.value, right.value))
        return self._operation(
            Kind.FLOAT, left, right, lambda: self._doubles(operator, self._to_double(left), self._to_double(right))
        )

    def _integers(self, operator: Operator, left: Formula, right: Formula) -> tuple[Formula, Formula]:
        value = _INTEGERS[operator](left, right)
        overflow = z3.Or(value < INTEGER_MIN, value > INTEGER_MAX)
        return value, z3.Or(right == 0, overflow) if operator is Operator.DIVIDE else overflow

    def _doubles(self, operator: Operator, left: Formula, right: Formula) -> tuple[Formula, Formula]:
        context = self.values.context
        value = _DOUBLES[operator](z3.RNE(context), left, right, context)
        overflow = z3.And(
            z3.fpIsInf(value, context), z3.Not(z3.fpIsInf(left, context)), z3.Not(z3.fpIsInf(right, context))
        )
        error = z3.Or(z3.fpIsNaN(value, context), overflow)
        return value, z3.Or(error, z3.fpIsZero(right, context)) if operator is Operator.DIVIDE else error

    def _to_double(self, term: Encoded) -> Formula:
        if term.kind is Kind.FLOAT:
            return term.value
        if isinstance(term.constant, int):
            return self.values.double(float(term.constant))
        context = self.values.context
        return z3.fpSignedToFP(z3.RNE(context), z3.Int2BV(term.value, 64), self.values.double_sort, context)

    # --- connectives, leaving out what is settled ----------------------------------------------------------------

    def _any(self, *parts: Formula) -> Formula:
        undecided = [part for part in parts if not z3.is_false(part)]
        return self.false if not undecided else undecided[0] if len(undecided) == 1 else z3.Or(*undecided)

    def _all(self, *parts: Formula) -> Formula:
        undecided = [part for part in parts if not z3.is_true(part)]
        return self.true if not undecided else undecided[0] if len(undecided) == 1 else z3.And(*undecided)


def _divide(left: Formula, right: Formula) -> Formula:
    # Towards zero; z3's own division rounds so that the remainder is not negative.
    size = _absolute(left) / _absolute(right)
    return z3.If((left < 0) == (right < 0), size, -size)


def _absolute(value: Formula) -> Formula:
    return z3.If(value < 0, -value, value)


_INTEGERS: Final[dict[Operator, Callable[[Formula, Formula], Formula]]] = {
    Operator.ADD: python.add,
    Operator.SUBTRACT: python.sub,
    Operator.MULTIPLY: python.mul,
    Operator.DIVIDE: _divide,
}
_DOUBLES: Final[dict[Operator, Callable[[Formula, Formula, Formula, z3.Context], Formula]]] = {
    Operator.ADD: z3.fpAdd,
    Operator.SUBTRACT: z3.fpSub,
    Operator.MULTIPLY: z3.fpMul,
    Operator.DIVIDE: z3.fpDiv,
}

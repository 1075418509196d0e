"""Answer questions about any selectors with z3, within a limit of time and effort.

An attribute is a null flag and a value; a term adds whether it is in error; a condition is the pair of formulas that
say when it is TRUE and when FALSE. A row that is neither is null or in error, which no question needs to tell apart.

Integers and timestamps are mathematical integers with their bounds and explicit overflow. Floats are real numbers as
long as nothing is computed with them, with infinity as a number beyond the largest double: no row is lost, so "none
exists" holds, and a row that is found is evaluated. If it does not survive, or floats are computed with, a few rows
are tried and then floats are IEEE doubles. Strings are z3's, over the alphabet of alphabet.py.

This module imports z3, which takes a while; analysis.py imports it on first use. Each question has a z3 context of
its own, so that answers do not depend on earlier ones and threads do not meet.
"""

import ctypes
import itertools
import math
import operator as python
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, Final, TypeAlias

import z3

from penstock.errors import MalformedError
from penstock.model.values import (
    INTEGER_MAX,
    INTEGER_MIN,
    AttributeSpec,
    Enumerated,
    Kind,
    Ranged,
    Scalar,
    Schema,
    Value,
)
from penstock.selector.algebra import RowQuestion
from penstock.selector.ast import (
    And,
    Arithmetic,
    AttributeReference,
    Between,
    Compare,
    ComparisonOperator,
    Concat,
    Condition,
    In,
    IsNull,
    Like,
    Literal,
    Negate,
    Node,
    Not,
    Operator,
    Or,
    Term,
    walk,
)
from penstock.selector.like import LikePattern, Segment, parse_pattern
from penstock.selector.limits import SelectorLimits
from penstock.selector.selector import Selector
from penstock.selector.sets import above, at_least, universe

# ----------------------------------------------------------------------------------------------------------------------
# A smaller alphabet for the solver's strings, in which a question has the same answer.
#
# z3 knows fewer characters than Unicode has, and counts surrogates among them. Only the order of characters and
# equality with those that the question names can matter, so the named ones are numbered in order, and each gap between
# two of them keeps as many characters as the question has comparisons (a comparison is settled by one pair of
# characters, so no more can be distinguished), or all if there are fewer. Strings that answer the question in one
# alphabet then exist in the other.


#: z3's characters are 0 to this.
_LAST_CODE: Final = 0x2FFFF
_LAST: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class _Gap:
    """Codes from `code` on represent characters from `rank` on; ranks count characters without the surrogates."""

    code: int
    rank: int


class Alphabet:
    """A numbering of characters: `encode` text of the question, `decode` text of the solver.

    Raises `OverflowError` when the question names too many characters.
    """

    def __init__(self, named: Iterable[str], comparisons: int) -> None:
        ranks = sorted({_rank(character) for character in named})
        self._codes: dict[int, int] = {}
        self._gaps: list[_Gap] = []
        keep = comparisons + 2
        code = start = 0
        for rank in ranks:
            size = min(rank - start, keep)
            self._gaps.append(_Gap(code, _example(start, rank - start, size)))
            code += size
            self._codes[rank] = code
            self._gaps.append(_Gap(code, rank))
            code += 1
            start = rank + 1
        rest = _rank(chr(_LAST)) + 1 - start
        if code + min(rest, keep) > _LAST_CODE + 1:
            raise OverflowError("the selectors name too many characters for the solver")
        size = min(rest, _LAST_CODE + 1 - code)
        self._gaps.append(_Gap(code, _example(start, rest, size)))
        #: the number of codes, and whether z3 has more that must be ruled out
        self.size = code + size
        self.bounded = self.size <= _LAST_CODE

    def encode(self, text: str) -> list[int]:
        """Return the codes of a text of the question."""
        return [self._codes[_rank(character)] for character in text]

    def decode(self, codes: Iterable[int]) -> str:
        """Return a text with the same order relative to those of the question."""
        return "".join(self._character(code) for code in codes)

    def _character(self, code: int) -> str:
        # Of several entries with one code the last counts: the others are empty gaps.
        gap = self._gaps[bisect_right(self._gaps, code, key=lambda entry: entry.code) - 1]
        rank = gap.rank + code - gap.code
        return chr(rank if rank < _SURROGATES.start else rank + len(_SURROGATES))


def _rank(character: str) -> int:
    point = ord(character)
    return point if point < _SURROGATES.start else point - len(_SURROGATES)


def _example(start: int, available: int, size: int) -> int:
    """Choose where in a gap the kept characters lie: printable ones read better in a witness."""
    for friendly in (ord("a"), ord("A"), ord(" ")):
        if start <= friendly and friendly + size <= start + available:
            return friendly
    return start


# ----------------------------------------------------------------------------------------------------------------------
# How values of each kind are written in z3, and read back from its models.


Formula: TypeAlias = Any
"""A z3 expression; z3 ships no types."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LAST_INSTANT: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
#: Stands for the infinite floats where floats are real numbers: beyond every double and every integer.
_INFINITY: Final = 1 << 1024


class UnsettledError(Exception):
    """The solver cannot say."""


class Representation:
    """Values in one z3 context; with `exact`, floats are IEEE doubles, and real numbers otherwise."""

    def __init__(self, alphabet: Alphabet, *, exact: bool) -> None:
        self.context = z3.Context()
        self.alphabet = alphabet
        self.exact = exact
        self.double_sort = z3.Float64(self.context)

    def constant(self, value: Value) -> Formula:
        """Write a value."""
        match value:
            case bool():
                return z3.BoolVal(value, self.context)
            case str():
                return self.string(value)
            case datetime():
                return z3.IntVal((value.astimezone(UTC) - _EPOCH) // _MICROSECOND, self.context)
            case float() if self.exact:
                return self.double(value)
            case float():
                return self.rational(value)
            case int():
                return z3.IntVal(value, self.context)

    def string(self, text: str) -> Formula:
        """Write a string by its codes: z3's own constructor would read escapes in it."""
        codes = self.alphabet.encode(text)
        array = (ctypes.c_uint * len(codes))(*codes)
        return z3.SeqRef(z3.Z3_mk_u32string(self.context.ref(), len(codes), array), self.context)

    def double(self, value: float) -> Formula:
        """Write a double, bit by bit."""
        (bits,) = struct.unpack("<Q", struct.pack("<d", value))
        return z3.simplify(z3.fpBVToFP(z3.BitVecVal(bits, 64, self.context), self.double_sort, self.context))

    def rational(self, value: float) -> Formula:
        """Write a float as the real number that it is."""
        if math.isinf(value):
            return z3.RealVal(_INFINITY if value > 0 else -_INFINITY, self.context)
        return z3.RealVal(Fraction(value), self.context)

    def variable(self, name: str, kind: Kind) -> Formula:
        """Return an unknown value."""
        match kind:
            case Kind.STRING:
                return z3.String(name, self.context)
            case Kind.BOOLEAN:
                return z3.Bool(name, self.context)
            case Kind.FLOAT if self.exact:
                return z3.FP(name, self.double_sort)
            case Kind.FLOAT:
                return z3.Real(name, self.context)
            case Kind.INTEGER | Kind.TIMESTAMP:
                return z3.Int(name, self.context)

    def bounds(self, value: Formula, spec: AttributeSpec) -> list[Formula]:
        """Return the constraints on every value of the attribute."""
        match spec.domain:
            case Enumerated(members):
                return [z3.Or([value == self.constant(member) for member in members] or [False])]
            case Ranged(low, high):
                return [self.constant(low) <= value, value <= self.constant(high)]
            case None:
                return self.natural_bounds(value, spec.kind)

    def natural_bounds(self, value: Formula, kind: Kind) -> list[Formula]:
        """Return the limits of a kind itself."""
        match kind:
            case Kind.INTEGER:
                return [value >= INTEGER_MIN, value <= INTEGER_MAX]
            case Kind.TIMESTAMP:
                return [value >= _FIRST, value <= _LAST_INSTANT]
            case Kind.FLOAT if not self.exact:
                return [self.rational(-math.inf) <= value, value <= self.rational(math.inf)]
            case Kind.STRING if self.alphabet.bounded:
                codes = z3.Range(self._character(0), self._character(self.alphabet.size - 1), self.context)
                return [z3.InRe(value, z3.Star(codes))]
            case _:
                return []

    def _character(self, code: int) -> Formula:
        array = (ctypes.c_uint * 1)(code)
        return z3.SeqRef(z3.Z3_mk_u32string(self.context.ref(), 1, array), self.context)

    def read(self, kind: Kind, found: Formula) -> Value:
        """Read a value from a model.

        Raises `UnsettledError` where the model has no plain value.
        """
        match kind:
            case Kind.BOOLEAN:
                return bool(z3.is_true(found))
            case Kind.INTEGER if z3.is_int_value(found):
                return int(found.as_long())
            case Kind.TIMESTAMP if z3.is_int_value(found):
                return _EPOCH + int(found.as_long()) * _MICROSECOND
            case Kind.STRING if z3.is_string_value(found):
                return self._read_string(found)
            case Kind.FLOAT if self.exact:
                bits = z3.simplify(z3.fpToIEEEBV(found, self.context))
                value: float = struct.unpack("<d", struct.pack("<Q", bits.as_long()))[0]
                return value
            case Kind.FLOAT if z3.is_rational_value(found):
                return _nearest(found.as_fraction())
            case _:
                raise UnsettledError

    def _read_string(self, found: Formula) -> str:
        length = z3.Z3_get_string_length(self.context.ref(), found.as_ast())
        array = (ctypes.c_uint * length)()
        z3.Z3_get_string_contents(self.context.ref(), found.as_ast(), length, array)
        return self.alphabet.decode(array)


def _nearest(fraction: Fraction) -> float:
    try:
        return float(fraction)
    except OverflowError:
        return math.inf if fraction > 0 else -math.inf


# ----------------------------------------------------------------------------------------------------------------------
# Formulas for z3: conditions as pairs (TRUE, FALSE), terms as triples (null, error, value).


#: patterns of one value that are compared with each other; their pairs are many
_RELATED_PATTERNS: Final = 64


@dataclass(frozen=True, slots=True)
class Encoded:
    """A term. `kind` is None if it is always null, and then there is no value."""

    kind: Kind | None
    null: Formula
    error: Formula
    value: Formula = None
    #: the constant, where the term is one
    constant: Scalar = None


class SelectorEncoder:
    """Encodes selectors over one schema; `constraints` say what the attributes may be."""

    def __init__(self, schema: Schema, values: Representation) -> None:
        self.schema = schema
        self.values = values
        self.attributes: dict[str, Encoded] = {}
        self.constraints: list[Formula] = []
        self._patterns: dict[int, list[tuple[LikePattern, Formula]]] = {}
        self.false = z3.BoolVal(False, values.context)
        self.true = z3.BoolVal(True, values.context)

    # --- conditions ---------------------------------------------------------------------------------------------

    def condition(self, node: Condition) -> tuple[Formula, Formula]:
        """Return when a condition is TRUE and when it is FALSE.

        Raises `UnsettledError` for what cannot be encoded.
        """
        match node:
            case AttributeReference() | Literal():
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
                return self.condition(
                    And((Compare(ComparisonOperator.GE, value, low), Compare(ComparisonOperator.LE, value, high)))
                )
            case In(value, items):
                return self.condition(Or(tuple(Compare(ComparisonOperator.EQ, value, item) for item in items)))
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

    def _comparison(self, operator: ComparisonOperator, left: Encoded, right: Encoded) -> tuple[Formula, Formula]:
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

    def _relate(self, operator: ComparisonOperator, left: Formula, right: Formula, *, doubles: bool = False) -> Formula:
        match operator:
            case ComparisonOperator.EQ:
                # fp.eq and not identity: the two zeros are equal.
                return z3.fpEQ(left, right, self.values.context) if doubles else left == right
            case ComparisonOperator.NE:
                return z3.Not(self._relate(ComparisonOperator.EQ, left, right, doubles=doubles))
            case ComparisonOperator.LT:
                return left < right
            case ComparisonOperator.LE:
                return left <= right
            case ComparisonOperator.GT:
                return right < left
            case ComparisonOperator.GE:
                return right <= left

    def _mixed(self, operator: ComparisonOperator, integer: Encoded, real: Encoded) -> Formula:
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
            case ComparisonOperator.EQ:
                return z3.And(real.value >= first, real.value < beyond)
            case ComparisonOperator.NE:
                return z3.Not(z3.And(real.value >= first, real.value < beyond))
            case ComparisonOperator.LT:
                return real.value < first
            case ComparisonOperator.LE:
                return real.value < beyond
            case ComparisonOperator.GT:
                return real.value >= beyond
            case ComparisonOperator.GE:
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

    def _relate_patterns(self, value: Formula, pattern: LikePattern, fits: Formula) -> None:
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
            case AttributeReference(name):
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


# ----------------------------------------------------------------------------------------------------------------------
# Find a row by trying a few: values that the selectors themselves mention, and those next to them.
#
# z3 is slow at computing with doubles, and large products can defeat it, while the row that shows the answer is
# often near at hand. A row that is found is certain; finding none says nothing.


_ROWS: Final = 1_000
_VALUES: Final = 16
#: a large prime
_STRIDE: Final = 2_147_483_647
_SECOND: Final = timedelta(seconds=1)


def try_rows(question: RowQuestion) -> dict[str, Scalar] | None:
    """Return a row that answers the question, or None if none of those tried does."""
    names = sorted(question.attributes)
    mentioned = _mentioned(question)
    choices = [_choices(question.schema[name], mentioned) for name in names]
    for values in _combinations(choices):
        row = dict(zip(names, values, strict=True))
        if question.shown_by(row):
            return row
    return None


def _combinations(choices: list[list[Scalar]]) -> Iterator[tuple[Scalar, ...]]:
    if math.prod(len(values) for values in choices) <= _ROWS:
        yield from itertools.product(*choices)
        return
    # Too many to try all: read the digits of a number that jumps about, so that every list is used early.
    total = math.prod(len(values) for values in choices)
    for step in range(_ROWS):
        number = step * _STRIDE % total
        row: list[Scalar] = []
        for values in choices:
            number, digit = divmod(number, len(values))
            row.append(values[digit])
        yield tuple(row)


def _mentioned(question: RowQuestion) -> list[Value]:
    found: dict[tuple[Kind, Value], Value] = {}
    for selector in question.holding + question.failing:
        for node in walk(selector.root):
            if isinstance(node, Literal) and node.value is not None and node.kind is not None:
                found[node.kind, node.value] = node.value
            elif isinstance(node, Like):
                found[Kind.STRING, node.pattern] = node.pattern
    return list(found.values())


def _choices(spec: AttributeSpec, mentioned: list[Value]) -> list[Scalar]:
    """Return values for one attribute, likely ones first."""
    candidates: list[Scalar] = [universe(spec).example()]
    match spec.domain:
        case Enumerated(values):
            candidates += sorted(values)
        case Ranged(low, high):
            candidates += [low, high]
        case None:
            pass
    for value in mentioned:
        candidates += _near(spec.kind, value)
    kept = [value for value in dict.fromkeys(candidates) if _fits(spec, value)]
    return [*kept[:_VALUES], None]


def _near(kind: Kind, value: Value) -> list[Scalar]:
    match value:
        case bool():
            return [value, not value] if kind is Kind.BOOLEAN else []
        case str():
            return [value, value + "a"] if kind is Kind.STRING else []
        case datetime():
            return _around(value) if kind is Kind.TIMESTAMP else []
        case _ if kind is Kind.INTEGER:
            whole = math.floor(value)
            return [whole, whole + 1, whole - 1, 1]
        case _ if kind is Kind.FLOAT:
            return [float(value), value + 1.0, value - 1.0, value - 0.5, 1.0]
        case _:
            return []


def _around(moment: datetime) -> list[Scalar]:
    try:
        return [moment, moment + _SECOND, moment - _SECOND]
    except OverflowError:
        # At an end of the calendar.
        return [moment]


def _fits(spec: AttributeSpec, value: Scalar) -> bool:
    try:
        spec.check(value)
    except MalformedError:
        return False
    return True


# ----------------------------------------------------------------------------------------------------------------------
# Answer questions about any selectors with z3, within a limit of time and effort.


def search(question: RowQuestion, limits: SelectorLimits) -> dict[str, Scalar] | None:
    """Return a row that answers the question, or None if there is none. The row has been evaluated.

    Raises `UnsettledError` when z3 gives up, cannot express the question, or its row does not survive.
    """
    if not any(_computes_floats(selector.root, question.schema) for selector in _selectors(question)):
        try:
            row = _search(question, limits, exact=False)
        except UnsettledError:
            row = try_rows(question)
            if row is None:
                raise
        if row is None or question.shown_by(row):
            return row
    # Doubles are slow to reason about; a row may be near at hand.
    row = try_rows(question)
    if row is not None:
        return row
    row = _search(question, limits, exact=True)
    if row is None or question.shown_by(row):
        return row
    raise UnsettledError


def _search(question: RowQuestion, limits: SelectorLimits, *, exact: bool) -> dict[str, Scalar] | None:
    try:
        values = Representation(_alphabet(question), exact=exact)
        encoder = SelectorEncoder(question.schema, values)
        formulas = [encoder.condition(selector.root)[0] for selector in question.holding]
        formulas += [z3.Not(encoder.condition(selector.root)[0]) for selector in question.failing]
        solver = z3.Solver(ctx=values.context)
        solver.set("timeout", limits.solver_time)
        solver.set("rlimit", limits.solver_effort)
        solver.add(*encoder.constraints, *formulas)
        verdict = solver.check()
        if verdict == z3.unsat:
            return None
        if verdict != z3.sat:
            raise UnsettledError
        return _row(encoder, solver.model())
    except (z3.Z3Exception, OverflowError, ctypes.ArgumentError) as error:
        raise UnsettledError from error


def _row(encoder: SelectorEncoder, model: z3.ModelRef) -> dict[str, Scalar]:
    row: dict[str, Scalar] = {}
    for name in sorted(encoder.attributes):
        term = encoder.attributes[name]
        if term.kind is None or z3.is_true(model.eval(term.null, model_completion=True)):
            row[name] = None
        elif z3.is_true(model.eval(term.error, model_completion=True)):
            row[name] = math.nan
        else:
            row[name] = encoder.values.read(term.kind, model.eval(term.value, model_completion=True))
    return row


def _alphabet(question: RowQuestion) -> Alphabet:
    """Number the characters that the question names."""
    named: set[str] = set()
    nodes = 0
    for selector in _selectors(question):
        for node in walk(selector.root):
            nodes += 1
            if isinstance(node, Like):
                segments = parse_pattern(node.pattern, node.escape).segments
                named.update(*(character for segment in segments for character in segment if character))
            elif isinstance(node, Literal) and isinstance(node.value, str):
                named.update(node.value)
    for name in question.attributes:
        domain = question.schema[name].domain
        if isinstance(domain, Enumerated):
            named.update(*(value for value in domain.values if isinstance(value, str)))
    # There are at most as many comparisons as nodes.
    return Alphabet(named, comparisons=nodes)


def _computes_floats(root: Node, schema: Schema) -> bool:
    return any(isinstance(node, Arithmetic) and _is_float(node, schema) for node in walk(root))


def _is_float(term: Term, schema: Schema) -> bool:
    return any(
        (isinstance(node, AttributeReference) and schema[node.name].kind is Kind.FLOAT)
        or (isinstance(node, Literal) and node.kind is Kind.FLOAT)
        for node in walk(term)
    )


def _selectors(question: RowQuestion) -> tuple[Selector, ...]:
    return question.holding + question.failing

"""Push-down: the part of a reader's program that files can decide, as an ordinary filter right above the scan.

`necessary` returns a condition that every event satisfies which the program shows: comparisons of one attribute, or of
the time, with constants. Other events may satisfy it too: what is shown is decided exactly above it.
Spark turns such a filter into partition pruning and into ranges for the statistics of Parquet.

What no filter may tell apart is kept on both sides: dictionaries of Parquet files distinguish 0.0 from -0.0, which
selectors do not. NaN has no value for selectors, so it does not matter on which side it falls.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from pyspark.sql import Column

from penstock.guard.restriction import Branch, Restriction
from penstock.model.values import INTEGER_MAX, INTEGER_MIN, Kind, Scalar, Value
from penstock.pipeline.enforce.programs import Kinds, Program
from penstock.pipeline.frames import (
    TIME,
    PatternForm,
    all_of,
    any_of,
    compare_columns,
    form_of,
    literal,
    matched,
    quoted,
)
from penstock.selector import ALWAYS
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
)

NEVER: Final = Literal(False, Kind.BOOLEAN)
"""The condition of a program that shows nothing."""
_EXACT: Final = 2**53
_TINY: Final = math.ulp(0.0)
_LEAVES: Final = 256
"""Comparisons of a filter, at most: a longer one costs more than it saves."""
_EXACTLY: Final = 8
"""Comparisons of a filter for several programs that are not joined to bounds."""
_PROGRAMS: Final = 1_000
"""Programs that are looked at: more of them will hardly leave a file out."""

Named: TypeAlias = Callable[[str], str | None]
"""Returns the column of a name in a condition; None if nothing about it can be pushed."""


def necessary(program: Program, kinds: Kinds) -> Condition | None:
    """Return what every event satisfies that a program shows; None if nothing can be said.

    `kinds` has the columns that a filter can use: attribute ids, and `@time`.
    """
    found = _of_program(program, kinds)
    return None if found is None or _leaves(found) > _LEAVES else found


def _of_program(program: Program, kinds: Kinds) -> Condition | None:
    found = _any([_branch(branch, kinds) for branch in program.restriction.branches])
    return _all([found, _Pushing(kinds, _own(program, kinds), masked=True).over(program.selector.root, wanted=True)])


def necessary_for(programs: Sequence[Program], kinds: Kinds) -> Condition | None:
    """Return what every event satisfies that at least one of some programs shows; None if nothing can be said.

    Of many comparisons only the bounds of each attribute are left: a list of values, or the smallest and the largest.
    """
    if len(programs) > _PROGRAMS:
        return None
    found = _any([_of_program(program, kinds) for program in programs])
    return found if found is None or _leaves(found) <= _EXACTLY else _bounding(_bounds(found))


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The values that an attribute may have: some, or those between two; None for no bound."""

    kind: Kind
    values: frozenset[Value] | None = None
    low: Value | None = None
    high: Value | None = None


def _bounds(node: Condition) -> dict[str, _Bounds]:
    """Return bounds of attributes that every event satisfies for which a condition is true."""
    match node:
        case Compare(operator, AttributeReference(name), Literal(value, kind)) if value is not None and kind:
            match operator:
                case ComparisonOperator.EQ:
                    return {name: _Bounds(kind, frozenset({value}), value, value)}
                case ComparisonOperator.GE | ComparisonOperator.GT:
                    return {name: _Bounds(kind, low=value)}
                case ComparisonOperator.LE | ComparisonOperator.LT:
                    return {name: _Bounds(kind, high=value)}
        case And(operands):
            found: dict[str, _Bounds] = {}
            for operand in operands:
                for name, one in _bounds(operand).items():
                    before = found.get(name, one)
                    # Each of them is necessary, so any is right; of two ends the first is taken.
                    found[name] = _Bounds(
                        one.kind,
                        one.values if before.values is None else before.values,
                        one.low if before.low is None else before.low,
                        one.high if before.high is None else before.high,
                    )
            return found
        case Or(operands):
            parts = [_bounds(operand) for operand in operands]
            return {name: _either([part[name] for part in parts]) for name in parts[0] if all(name in p for p in parts)}
    return {}


def _either(bounds: Sequence[_Bounds]) -> _Bounds:
    """Return bounds for what one of several allows."""
    values = [one.values for one in bounds if one.values is not None]
    lows, highs = (
        [end for end in ends if end is not None] for ends in zip(*((b.low, b.high) for b in bounds), strict=True)
    )
    return _Bounds(
        bounds[0].kind,
        frozenset().union(*values) if len(values) == len(bounds) else None,
        min(lows, key=_ordered) if len(lows) == len(bounds) else None,
        max(highs, key=_ordered) if len(highs) == len(bounds) else None,
    )


def _ordered(value: Value) -> Any:
    """Return a value as one that can be compared with others of its kind."""
    return value


def _bounding(bounds: Mapping[str, _Bounds]) -> Condition | None:
    parts: list[Condition | None] = []
    for name, one in sorted(bounds.items()):
        known = AttributeReference(name)
        if one.values is not None and len(one.values) <= _LEAVES:
            equal = [
                Compare(ComparisonOperator.EQ, known, Literal(v, one.kind)) for v in sorted(one.values, key=_ordered)
            ]
            parts.append(_any(equal))
            continue
        ends = (ComparisonOperator.GE, one.low), (ComparisonOperator.LE, one.high)
        parts += [Compare(sign, known, Literal(end, one.kind)) for sign, end in ends if end is not None]
    return _all(parts)


def without_decided(program: Program, kinds: Kinds) -> Program:
    """Return a program without the selector of its only right, if `necessary` says exactly what that asks for."""
    branches = program.restriction.branches
    if len(branches) != 1 or not _is_decided(branches[0].holds_where().root, kinds):
        return program
    return replace(program, restriction=Restriction((replace(branches[0], where=ALWAYS, forced=()),)))


def _is_decided(node: Condition, kinds: Kinds) -> bool:
    """Return whether a filter tells exactly where a condition is true. Of real numbers it tells less."""

    def same(value: Term, *constants: Term) -> bool:
        kind = kinds.get(value.name) if isinstance(value, AttributeReference) else None
        exact = kind is not None and kind is not Kind.FLOAT
        return exact and all(isinstance(one, Literal) and one.kind is kind for one in constants)

    match node:
        case Literal(True):
            return True
        case Compare(_, left, right):
            return same(left, right) or same(right, left)
        case Between(value, low, high):
            return same(value, low, high)
        case In(value, items):
            return same(value, *items)
        case And(operands):
            return all(_is_decided(operand, kinds) for operand in operands)
    return False


def _branch(branch: Branch, kinds: Kinds) -> Condition | None:
    validity, time = branch.when.validity, AttributeReference(TIME)
    dates = [(ComparisonOperator.GE, validity.starts), (ComparisonOperator.LE, validity.ends)]
    parts: list[Condition | None] = [
        Compare(operator, time, Literal(moment, Kind.TIMESTAMP))
        for operator, moment in dates
        if moment is not None and TIME in kinds
    ]
    parts.append(_Pushing(kinds, {"time": TIME}.get).over(branch.when.condition.root, wanted=True))
    parts.append(_Pushing(kinds, lambda name: name).over(branch.holds_where().root, wanted=True))
    return _all(parts)


def _own(program: Program, kinds: Kinds) -> Named:
    """Return the columns of what the reader's own filter names, as far as it sees their values."""
    own = {name: a.id for name, a in program.event_type.by_name.items() if kinds.get(a.id) is a.spec.kind}
    return own.get


class _Pushing:
    """Weakens conditions to what a filter can decide. With `masked`, they are asked about values that may be hidden."""

    def __init__(self, kinds: Kinds, named: Named, *, masked: bool = False) -> None:
        self._kinds = kinds
        self._named = named
        self._masked = masked

    def over(self, node: Condition, *, wanted: bool) -> Condition | None:
        """Return what holds wherever a condition is TRUE, or with `wanted=False` wherever it is FALSE."""
        match node:
            case Literal(value):
                return None if value is wanted else NEVER
            case AttributeReference():
                return self._compare(ComparisonOperator.EQ, node, Literal(wanted, Kind.BOOLEAN))
            case Not(operand):
                return self.over(operand, wanted=not wanted)
            case And(operands) | Or(operands):
                join = _all if isinstance(node, And) is wanted else _any
                return join([self.over(operand, wanted=wanted) for operand in operands])
            case Compare(operator, left, right):
                return self._compare(operator if wanted else operator.negated, left, right)
            case Between(value, low, high):
                ends = Compare(ComparisonOperator.GE, value, low), Compare(ComparisonOperator.LE, value, high)
                return self.over(And(ends), wanted=wanted)
            case In(value, items):
                return self.over(Or(tuple(Compare(ComparisonOperator.EQ, value, i) for i in items)), wanted=wanted)
            case Like(value, pattern, escape):
                return self._like(value, pattern, escape) if wanted else None
            case IsNull(value):
                known = self._column(value)
                if known is None or (wanted and self._masked):
                    return None
                return IsNull(known) if wanted else Not(IsNull(known))

    def _column(self, term: Term) -> AttributeReference | None:
        name = self._named(term.name) if isinstance(term, AttributeReference) else None
        return AttributeReference(name) if name is not None and name in self._kinds else None

    def _compare(self, operator: ComparisonOperator, left: Term, right: Term) -> Condition | None:
        if isinstance(left, Literal):
            operator, left, right = operator.flipped, right, left
        known = self._column(left)
        if known is None or not isinstance(right, Literal):
            return None
        if right.value is None:
            return NEVER
        kind, value = self._kinds[known.name], right.value
        if kind is Kind.INTEGER and type(value) is float:
            return _whole(operator, known, value)
        if kind is Kind.FLOAT and type(value) in (int, float):
            return _real(operator, known, value)
        return Compare(operator, known, right) if right.kind is kind else None

    def _like(self, value: Term, pattern: str, escape: str | None) -> Condition | None:
        known = self._column(value)
        if known is None or self._kinds[known.name] is not Kind.STRING:
            return None
        form, text = form_of(pattern, escape)
        if form is PatternForm.IS:
            return Compare(ComparisonOperator.EQ, known, Literal(text, Kind.STRING))
        if form is not PatternForm.LIKE:
            return Like(known, pattern, escape)
        # In Spark's own form; up to its first wildcard it is a text.
        start = ""
        signs = iter(text)
        for sign in signs:
            if sign in "%_":
                break
            start += next(signs) if sign == "\\" else sign
        marked = "".join(f"\\{sign}" if sign in "%_\\" else sign for sign in start)
        return Like(known, f"{marked}%", "\\") if start else None


def _whole(operator: ComparisonOperator, known: AttributeReference, value: float) -> Condition | None:
    """Compare a whole number with a real one, as with the next whole one."""
    if not math.isfinite(value) or not INTEGER_MIN < value < INTEGER_MAX:
        return None
    if not value.is_integer():
        if operator is ComparisonOperator.EQ:
            return NEVER
        if operator is ComparisonOperator.NE:
            return Not(IsNull(known))
        low = operator in (ComparisonOperator.LT, ComparisonOperator.LE)
        operator = ComparisonOperator.LE if low else ComparisonOperator.GE
        value = math.floor(value) if low else math.ceil(value)
    return Compare(operator, known, Literal(int(value), Kind.INTEGER))


def _real(operator: ComparisonOperator, known: AttributeReference, value: Scalar) -> Condition | None:
    if not isinstance(value, int | float) or not abs(value) <= (_EXACT if isinstance(value, int) else math.inf):
        return None
    number = float(value)
    if not math.isfinite(number):
        return None
    if number == 0:
        below, above = Literal(-_TINY, Kind.FLOAT), Literal(_TINY, Kind.FLOAT)
        match operator:
            case ComparisonOperator.EQ:
                ends = (ComparisonOperator.GE, below), (ComparisonOperator.LE, above)
                return And(tuple(Compare(sign, known, end) for sign, end in ends))
            case ComparisonOperator.GE:
                return Compare(operator, known, below)
            case ComparisonOperator.LE:
                return Compare(operator, known, above)
    return Compare(operator, known, Literal(number, Kind.FLOAT))


def _all(parts: Iterable[Condition | None]) -> Condition | None:
    """Return what all say; what says nothing restricts nothing."""
    known = [part for part in parts if part is not None]
    if NEVER in known:
        return NEVER
    return And(tuple(known)) if len(known) > 1 else known[0] if known else None


def _any(parts: Iterable[Condition | None]) -> Condition | None:
    """Return what one of several says; if one of them says nothing, neither do all."""
    known: list[Condition] = []
    for part in parts:
        if part is None:
            return None
        if part != NEVER:
            known.append(part)
    return Or(tuple(known)) if len(known) > 1 else known[0] if known else NEVER


def _leaves(node: Condition) -> int:
    match node:
        case And(operands) | Or(operands):
            return sum(map(_leaves, operands))
    return 1


def filter_column(node: Condition) -> Column:
    """Return what `necessary` found as a filter that Spark can push down, over the columns of transit events."""
    match node:
        case And(operands):
            return all_of(map(filter_column, operands))
        case Or(operands):
            alike = _same_attribute(operands)
            if alike is not None:
                return alike
            return any_of(map(filter_column, operands))
        case Compare(operator, AttributeReference(name), Literal(value, kind)) if kind is not None:
            return compare_columns(operator, quoted(name), literal(value, kind))
        case Like(AttributeReference(name), pattern, escape):
            form, text = form_of(pattern, escape)
            return matched(quoted(name), form, literal(text, Kind.STRING))
        case IsNull(AttributeReference(name)):
            return quoted(name).isNull()
        case Not(IsNull(AttributeReference(name))):
            return quoted(name).isNotNull()
        case Literal():
            return literal(False, Kind.BOOLEAN)
    raise AssertionError(node)


def _same_attribute(operands: tuple[Condition, ...]) -> Column | None:
    """Return several equations of one attribute as a list of values."""
    values, names = [], set()
    for one in operands:
        match one:
            case Compare(ComparisonOperator.EQ, AttributeReference(name), Literal(value, kind)) if kind is not None:
                names.add(name)
                values.append(literal(value, kind))
            case _:
                return None
    return quoted(names.pop()).isin(*values) if len(names) == 1 else None

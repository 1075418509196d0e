"""Comparisons of policies as atoms, and formulas of atoms as selectors.

A selector that is made here is TRUE where its formula holds, and only there. No value of an event is met that it has no
word for but one: where a number that it asks about is NaN, which is an error in the selector language, it is never
TRUE, whatever the policy would say.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from penstock.errors import LimitError, MalformedError
from penstock.model.values import INTEGER_MAX, INTEGER_MIN, Kind, check_value
from penstock.policy.language.datatypes import BOOLEAN, DATE_TIME, DOUBLE, INTEGER, STRING, DataType, Value
from penstock.policy.language.times import DAY, days_of
from penstock.policy.residual.formulas import ConditionAtom, Formula, FormulaNode, Graph, Present, Variable, too_large
from penstock.selector import ALWAYS, NEVER, Selector, built
from penstock.selector.ast import (
    And,
    AttributeReference,
    Compare,
    ComparisonOperator,
    Condition,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    flatten,
    literal,
)

EQ, LT, LE, GT, GE = (
    ComparisonOperator.EQ,
    ComparisonOperator.LT,
    ComparisonOperator.LE,
    ComparisonOperator.GT,
    ComparisonOperator.GE,
)
_LARGEST: Final = 1.7976931348623157e308
_EPOCH: Final = days_of(1970, 1, 1) * DAY
_START: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST: Final = (datetime.min.replace(tzinfo=UTC) - _START) // _MICROSECOND
_LAST: Final = (datetime.max.replace(tzinfo=UTC) - _START) // _MICROSECOND


class UnsaidError(Exception):
    """The selector language has no words for what the message names."""


# --- comparisons -----------------------------------------------------------------------------------------------------


def compared(
    graph: Graph, variable: Variable, operator: ComparisonOperator, value: Value, of_type: DataType
) -> Formula:
    """Return that an attribute has a value which compares so with a constant. Raises `UnsaidError`."""
    return _COMPARED[of_type](graph, variable, operator, value)


def compared_with(
    graph: Graph, one: Variable, operator: ComparisonOperator, other: Variable, of_type: DataType
) -> Formula:
    """Return that two attributes have values which compare so. Raises `UnsaidError`."""
    if one == other and of_type is not DOUBLE:
        return graph.present(one) if operator in (EQ, LE, GE) else False
    if one.of_moment is not other.of_moment:
        # What is pushed towards publishers knows nothing of the moment, and conditions on that nothing of the event.
        raise UnsaidError("a comparison of the event with the moment")
    variables = (one,) if one == other else (one, other)
    return graph.atom(
        ConditionAtom(Compare(operator, AttributeReference(one.name), AttributeReference(other.name)), variables)
    )


def like(graph: Graph, variable: Variable, *, before: bool, part: str, behind: bool) -> Formula:
    """Return that a text has a part at its beginning, at its end, or anywhere. Raises `UnsaidError`."""
    _check(Kind.STRING, part)
    if not part:
        return graph.present(variable)
    escaped = "".join(f"\\{letter}" if letter in "%_\\" else letter for letter in part)
    pattern = f"{'%' if before else ''}{escaped}{'%' if behind else ''}"
    escape = "\\" if escaped != part else None
    return graph.atom(ConditionAtom(Like(AttributeReference(variable.name), pattern, escape), (variable,)))


def _atom(graph: Graph, variable: Variable, operator: ComparisonOperator, value: str | float | datetime) -> Formula:
    return graph.atom(ConditionAtom(Compare(operator, AttributeReference(variable.name), literal(value)), (variable,)))


def _texts(graph: Graph, variable: Variable, operator: ComparisonOperator, value: str) -> Formula:
    _check(Kind.STRING, value)
    return _atom(graph, variable, operator, value)


def _booleans(graph: Graph, variable: Variable, _operator: ComparisonOperator, value: bool) -> Formula:
    true = graph.atom(ConditionAtom(AttributeReference(variable.name), (variable,)))
    return true if value else graph.every([graph.present(variable), ~true])


def _integers(graph: Graph, variable: Variable, operator: ComparisonOperator, value: int) -> Formula:
    if INTEGER_MIN <= value <= INTEGER_MAX:
        return _atom(graph, variable, operator, value)
    return _beyond(graph, variable, operator, above=value > 0)


def _beyond(graph: Graph, variable: Variable, operator: ComparisonOperator, *, above: bool) -> Formula:
    """Return what comes of a constant that lies beyond all values that there are."""
    return graph.present(variable) if operator in ((LT, LE) if above else (GT, GE)) else False


def _doubles(graph: Graph, variable: Variable, operator: ComparisonOperator, value: float) -> Formula:
    if math.isnan(value):
        if operator is EQ:
            raise UnsaidError("equality with NaN")
        return False
    if math.isinf(value):
        return _infinite(graph, variable, operator if value > 0 else operator.flipped, 1 if value > 0 else -1)
    return _atom(graph, variable, operator, value)


def _infinite(graph: Graph, variable: Variable, operator: ComparisonOperator, sign: int) -> Formula:
    """Return what comes of an infinite constant, for which there is no literal."""

    def atom(side: ComparisonOperator) -> Formula:
        return _atom(graph, variable, side if sign > 0 else side.flipped, sign * _LARGEST)

    match operator:
        case ComparisonOperator.EQ | ComparisonOperator.GE:
            return atom(GT)
        case ComparisonOperator.LT:
            return atom(LE)
        case ComparisonOperator.LE:
            # That it is there would not do: it may be no number.
            return graph.some([atom(LE), atom(GT)])
    return False


def _moments(graph: Graph, variable: Variable, operator: ComparisonOperator, value: Value) -> Formula:
    exact = (value.order - _EPOCH) * 1_000_000
    whole = math.floor(exact)
    if exact != whole:
        if operator is EQ:
            return False
        operator, whole = (LE, whole) if operator in (LT, LE) else (GE, whole + 1)
    if not _FIRST <= whole <= _LAST:
        return _beyond(graph, variable, operator, above=whole > 0)
    return _atom(graph, variable, operator, _START + whole * _MICROSECOND)


_COMPARED: Final[Mapping[DataType, Callable[[Graph, Variable, ComparisonOperator, Value], Formula]]] = {
    STRING: _texts,
    BOOLEAN: _booleans,
    INTEGER: _integers,
    DOUBLE: _doubles,
    DATE_TIME: _moments,
}


def _check(kind: Kind, value: Value) -> None:
    try:
        check_value(kind, value)
    except MalformedError:
        raise UnsaidError("a value that no event can have") from None


# --- selectors -------------------------------------------------------------------------------------------------------


def selector_of(formula: Formula) -> Selector:
    """Return a selector that is TRUE where a formula holds. Raises `RefusedError` (`policy.residual-limit`)."""
    if isinstance(formula, bool):
        return ALWAYS if formula else NEVER
    try:
        return built(_condition(formula, frozenset()))
    except (LimitError, RecursionError):
        raise too_large() from None


def _condition(node: FormulaNode, there: frozenset[Variable]) -> Condition:
    """Write a formula, where it is known that some attributes have values."""
    match node.of:
        case Present(variable):
            missing = IsNull(AttributeReference(variable.name))
            return Not(missing) if node.positive else missing
        case ConditionAtom() as atom:
            return atom.condition if node.positive else _failing(atom, there)
        case _:
            return _conjunction(node.parts, there) if node.positive else _disjunction(node.parts, there)


def _failing(atom: ConditionAtom, there: frozenset[Variable]) -> Condition:
    missing: list[Condition] = [
        IsNull(AttributeReference(one.name)) for one in atom.variables if not one.certain and one not in there
    ]
    match atom.condition:
        case Compare(operator, left, right):
            fails: Condition = Compare(operator.negated, left, right)
        case condition:
            fails = Not(condition)
    return flatten(Or, [*missing, fails], 0)


def _conjunction(parts: Iterable[FormulaNode], there: frozenset[Variable]) -> Condition:
    """Write a conjunction. Where a comparison is TRUE, or its opposite is, values are there, which need not be said."""
    parts = [*parts]
    there |= {variable for part in parts if part.positive and part.atom is not None for variable in part.atom.variables}
    comparisons = [part.atom for part in parts if isinstance(part.atom, ConditionAtom)]
    asked = {variable for atom in comparisons if there.issuperset(atom.variables) for variable in atom.variables}
    written = [
        _condition(part, there)
        for part in parts
        if not (part.positive and isinstance(part.of, Present) and part.of.variable in asked)
    ]
    return flatten(And, _gathered(written, ComparisonOperator.NE), 0)


def _disjunction(parts: Iterable[FormulaNode], there: frozenset[Variable]) -> Condition:
    """Write the opposite of a conjunction. Where one says that a value is missing, the others need not say so."""
    parts = [*parts]
    there |= {part.of.variable for part in parts if part.positive and isinstance(part.of, Present)}
    written = [_condition(~part, there) for part in parts]
    return flatten(Or, _gathered(_once(written), ComparisonOperator.EQ), 0)


def _once(conditions: Iterable[Condition]) -> list[Condition]:
    flat = flatten(Or, [*conditions], 0)
    return [*dict.fromkeys(flat.operands)] if isinstance(flat, Or) else [flat]


def _gathered(conditions: Iterable[Condition], operator: ComparisonOperator) -> list[Condition]:
    """Say in one condition to which constants an attribute is equal, or to none of which."""
    found: list[Condition] = []
    places: dict[AttributeReference, int] = {}
    values: dict[AttributeReference, list[Literal]] = {}
    for condition in conditions:
        match condition:
            case Compare(found_operator, AttributeReference() as attribute, Literal() as value) if (
                found_operator is operator
            ):
                if attribute not in places:
                    places[attribute] = len(found)
                    found.append(condition)
                values.setdefault(attribute, []).append(value)
            case _:
                found.append(condition)
    for attribute, constants in values.items():
        if len(constants) > 1:
            within = In(attribute, tuple(constants))
            found[places[attribute]] = within if operator is EQ else Not(within)
    return found

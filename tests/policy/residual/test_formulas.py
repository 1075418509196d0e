"""A formula that was made short matches the same events, whatever their values are; and so does its selector."""

import math
import operator
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.errors import EvaluationError
from penstock.model.values import Kind, Scalar
from penstock.policy.language.datatypes import DOUBLE, INTEGER, STRING
from penstock.policy.residual.formulas import (
    Assumptions,
    ConditionAtom,
    Formula,
    FormulaNode,
    Graph,
    Present,
    Variable,
    compared,
    compared_with,
    like,
    selector_of,
    simplified,
)
from penstock.selector import evaluate, parse
from penstock.selector.ast import AttributeReference, Compare, ComparisonOperator, Like, Literal
from penstock.selector.like import parse_pattern

TYPES = {Kind.INTEGER: INTEGER, Kind.FLOAT: DOUBLE, Kind.STRING: STRING}
VARIABLES = [
    Variable("n", Kind.INTEGER),
    Variable("m", Kind.INTEGER),
    Variable("w", Kind.FLOAT),
    Variable("s", Kind.STRING),
]
VALUES: dict[Kind, list[Scalar]] = {
    Kind.INTEGER: [None, 0, 1, 2, 3],
    Kind.FLOAT: [None, 0.0, 1.5, math.inf, -math.inf, math.nan],
    Kind.STRING: [None, "", "a", "ab", "b"],
}
CONSTANTS: dict[Kind, list[int | float | str]] = {
    Kind.INTEGER: [0, 1, 2],
    Kind.FLOAT: [0.0, 1.5, math.inf, -math.inf],
    Kind.STRING: ["", "a", "b"],
}
SIGNS: dict[ComparisonOperator, Callable[[Any, Any], bool]] = {
    ComparisonOperator.EQ: operator.eq,
    ComparisonOperator.NE: operator.ne,
    ComparisonOperator.LT: operator.lt,
    ComparisonOperator.LE: operator.le,
    ComparisonOperator.GT: operator.gt,
    ComparisonOperator.GE: operator.ge,
}
ORDERS = [
    ComparisonOperator.EQ,
    ComparisonOperator.EQ,
    ComparisonOperator.LT,
    ComparisonOperator.LE,
    ComparisonOperator.GT,
    ComparisonOperator.GE,
]


class Formulas:
    """Makes formulas at random."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311  # the same for a seed
        self.graph = Graph()

    def atom(self) -> Formula:
        graph, random = self.graph, self.random
        variable, order = random.choice(VARIABLES), random.choice(ORDERS)
        match random.randrange(6):
            case 0:
                return graph.present(variable)
            case 1:
                return compared_with(graph, VARIABLES[0], order, VARIABLES[1], INTEGER)
            case 2:
                return like(graph, VARIABLES[3], before=random.random() < 0.5, part="a", behind=True)
        return compared(graph, variable, order, random.choice(CONSTANTS[variable.kind]), TYPES[variable.kind])

    def formula(self, depth: int = 3) -> Formula:
        if not depth or self.random.randrange(5) == 0:
            found = self.atom()
        else:
            parts = [self.formula(depth - 1) for _ in range(self.random.randrange(1, 5))]
            found = self.graph.every(parts) if self.random.random() < 0.5 else self.graph.some(parts)
        negative = self.random.random() < 0.3
        return found if not negative else not found if isinstance(found, bool) else ~found

    def event(self) -> dict[str, Scalar]:
        return {one.name: self.random.choice(VALUES[one.kind]) for one in VARIABLES}


def holds(formula: Formula, event: Mapping[str, Scalar]) -> bool:
    """Say whether a formula holds, by what its atoms mean in policies."""
    if isinstance(formula, bool):
        return formula
    return _positive(formula, event) is formula.positive


def _positive(node: FormulaNode, event: Mapping[str, Scalar]) -> bool:
    match node.of:
        case Present(variable):
            return event[variable.name] is not None
        case ConditionAtom(condition, variables):
            return all(event[one.name] is not None for one in variables) and _true(condition, event)
    return all(holds(part, event) for part in node.parts)


def _true(condition: object, event: Mapping[str, Scalar]) -> bool:
    match condition:
        case Like(AttributeReference(name), pattern, escape):
            text = event[name]
            return isinstance(text, str) and parse_pattern(pattern, escape).matches(text)
        case Compare(sign, AttributeReference(name), Literal(value)):
            return SIGNS[sign](event[name], value)
        case Compare(sign, AttributeReference(name), AttributeReference(other)):
            return SIGNS[sign](event[name], event[other])
    raise AssertionError(condition)


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 1 << 40))
def test_it_holds_of_the_same_events(seed: int) -> None:
    made = Formulas(seed)
    formula = made.formula()
    short = simplified(formula, Assumptions())
    selector = selector_of(short)
    for _ in range(20):
        event = made.event()
        expected = holds(formula, event)
        assert holds(short, event) is expected, event
        try:
            found = evaluate(selector, event) is True
        except EvaluationError:
            found = False
        # What is not a number is met by refusing, and by nothing else.
        assert found is expected or (expected and isinstance(event["w"], float) and math.isnan(event["w"])), event


def test_what_is_known_beside_counts() -> None:
    graph = Graph()
    number = VARIABLES[0]
    more, much, one = (
        compared(graph, number, order, value, INTEGER)
        for order, value in ((ComparisonOperator.GT, 1), (ComparisonOperator.GT, 5), (ComparisonOperator.EQ, 1))
    )
    assert simplified(graph.every([more, much]), Assumptions()) is much
    assert simplified(graph.some([more, much]), Assumptions()) is more
    assert simplified(graph.every([much, one]), Assumptions()) is False
    assert simplified(graph.every([much, graph.present(number)]), Assumptions()) is much
    assert selector_of(graph.every([graph.present(number), _not(one)])) == parse("n <> 1")
    assert selector_of(_not(one)) == parse("n IS NULL OR n <> 1")


def _not(formula: Formula) -> Formula:
    return not formula if isinstance(formula, bool) else ~formula

"""What functions say of two values, of which one at least is known only when an event comes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from penstock.policy.datatypes import DataType, Value
from penstock.policy.functions import V1, V3
from penstock.policy.residual_formulas import Formula, Graph, Variable
from penstock.policy.residual_selector import UnsaidError, compared, compared_with, like
from penstock.policy.signatures import Function
from penstock.selector.ast import Comparison

_OPERATORS: Final = {
    "equal": Comparison.EQ,
    "greater-than": Comparison.GT,
    "greater-than-or-equal": Comparison.GE,
    "less-than": Comparison.LT,
    "less-than-or-equal": Comparison.LE,
}
#: whether something may stand before the part of a text, and behind it
_PARTS: Final = {
    f"{V3}string-starts-with": (False, True),
    f"{V3}string-ends-with": (True, False),
    f"{V3}string-contains": (True, True),
}


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is known."""

    value: Value


Operand: TypeAlias = Constant | Variable
Predicate: TypeAlias = Callable[[Operand, Operand], Formula]
"""When something holds of two values. It raises `UnsaidError`."""


def equality(graph: Graph, of_type: DataType) -> Predicate:
    """Return when two values are equal as bags have it, where what is no number is equal to itself."""

    def equal(one: Operand, other: Operand) -> Formula:
        if isinstance(one, Constant) and isinstance(other, Constant):
            return bool(one.value is other.value or one.value == other.value)
        return _ordered(graph, of_type, Comparison.EQ, one, other)

    return equal


def predicate(graph: Graph, function: Function) -> Predicate:
    """Return what a function says of two values. Raises `UnsaidError`."""
    said = _said(graph, function)

    def holds(one: Operand, other: Operand) -> Formula:
        if isinstance(one, Constant) and isinstance(other, Constant):
            return bool(function.call(one.value, other.value))
        return said(one, other)

    return holds


def _said(graph: Graph, function: Function) -> Predicate:
    if function.id in _PARTS:
        return partial(_part, graph, _PARTS[function.id])
    of_type = function.takes[0]
    if isinstance(of_type, DataType) and function.takes == (of_type, of_type):
        operator = _OPERATORS.get(function.id.removeprefix(f"{V1}{of_type}-"))
        if operator is not None:
            return partial(_ordered, graph, of_type, operator)
    raise UnsaidError(f"function `{function.name}`")


def _ordered(graph: Graph, of_type: DataType, operator: Comparison, one: Operand, other: Operand) -> Formula:
    match one, other:
        case Variable(), Variable():
            return compared_with(graph, one, operator, other, of_type)
        case Variable(), Constant(value):
            return compared(graph, one, operator, value, of_type)
        case Constant(value), Variable():
            return compared(graph, other, operator.flipped, value, of_type)
    raise UnsaidError("a comparison of two values that are known")


def _part(graph: Graph, around: tuple[bool, bool], part: Operand, text: Operand) -> Formula:
    match part, text:
        case Constant(value), Variable():
            return like(graph, text, before=around[0], part=value, behind=around[1])
    raise UnsaidError("a part of a text that is not known")

"""The reference interpreter: the meaning of a selector, written to be read. `compile_selector` agrees with it.

A condition is TRUE, FALSE, NULL or an error. The order of operands never matters: FALSE AND error is FALSE, TRUE
OR error is TRUE, and otherwise an error wins over NULL. An operator with an operand in error is in error.
"""

from collections.abc import Iterable, Mapping

from penstock.errors import EvaluationError
from penstock.model.values import Scalar
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
    Or,
    Term,
)
from penstock.selector.like import parse_pattern
from penstock.selector.scalar import calculate, compare, concat, negate, operands, read
from penstock.selector.selector import Selector


def evaluate(selector: Selector, row: Mapping[str, Scalar]) -> bool | None:
    """Return the truth value of a selector on a row; an attribute that the row lacks is null.

    >>> from penstock.selector import parse
    >>> evaluate(parse("price > 24 AND stock IN ('NOK', 'ERIC')"), {"price": 25, "stock": "NOK"})
    True

    Raises `EvaluationError`: `selector.overflow`, `selector.division`, `selector.nan`, `selector.operands`.
    """
    return _truth(selector.root, row)


def _truth(node: Condition, row: Mapping[str, Scalar]) -> bool | None:
    match node:
        case Attribute() | Literal():
            value = evaluate_term(node, row)
            if value is None or isinstance(value, bool):
                return value
            raise operands("only a boolean attribute is a condition")
        case Compare(operator, left, right):
            return compare(operator, evaluate_term(left, row), evaluate_term(right, row))
        case Between(value, low, high):
            bounds = (Compare(Comparison.GE, value, low), Compare(Comparison.LE, value, high))
            return _decide(bounds, row, decisive=False)
        case In(value, items):
            return _decide([Compare(Comparison.EQ, value, item) for item in items], row, decisive=True)
        case Like(value, pattern, escape):
            text = evaluate_term(value, row)
            if text is None:
                return None
            if not isinstance(text, str):
                raise operands("LIKE matches strings only")
            return parse_pattern(pattern, escape).matches(text)
        case IsNull(value):
            return evaluate_term(value, row) is None
        case Not(operand):
            truth = _truth(operand, row)
            return None if truth is None else not truth
        case And(parts):
            return _decide(parts, row, decisive=False)
        case Or(parts):
            return _decide(parts, row, decisive=True)


def _decide(parts: Iterable[Condition], row: Mapping[str, Scalar], *, decisive: bool) -> bool | None:
    """Join conditions: by AND if FALSE is decisive, by OR if TRUE is."""
    failed: EvaluationError | None = None
    unknown = False
    for part in parts:
        try:
            truth = _truth(part, row)
        except EvaluationError as error:
            failed = failed or error
            continue
        if truth is decisive:
            return decisive
        unknown = unknown or truth is None
    if failed is not None:
        raise failed
    return None if unknown else not decisive


def evaluate_term(node: Term, row: Mapping[str, Scalar]) -> Scalar:
    """Return the value of a term on a row.

    Raises what `evaluate` raises.
    """
    match node:
        case Attribute(name):
            return read(row.get(name))
        case Literal(value):
            return value
        case Negate(operand):
            return negate(evaluate_term(operand, row))
        case Arithmetic(operator, left, right):
            return calculate(operator, evaluate_term(left, row), evaluate_term(right, row))
        case Concat(left, right):
            return concat(evaluate_term(left, row), evaluate_term(right, row))

"""The reference interpreter: the meaning of a selector, written to be read. `compile_selector` agrees with it.

A condition is TRUE, FALSE, NULL or an error. The order of operands never matters: FALSE AND error is FALSE, TRUE
OR error is TRUE, and otherwise an error wins over NULL. An operator with an operand in error is in error.
"""

import math
import operator as python
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from penstock.errors import EvaluationError, MalformedError
from penstock.model.values import INTEGER_MAX, INTEGER_MIN, Kind, Scalar, Value, kind_of
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
    Not,
    Operator,
    Or,
    Term,
)
from penstock.selector.like import parse_pattern
from penstock.selector.selector import Selector

# ----------------------------------------------------------------------------------------------------------------------
# The operators on values: the exact meaning of numbers, nulls and errors, one function each.
#
# A null operand makes the result null, before anything else is looked at. Integers are signed 64-bit and floats
# IEEE 754 doubles; what does not fit, a division by zero and a NaN are errors, never values.


def read(value: object) -> Scalar:
    """Take a value from a row: a plain value of one of the five kinds, timestamps in UTC.

    Raises `EvaluationError`: `selector.nan`, `selector.operands` (no attribute value, an integer beyond 64 bits, a
    timestamp without a zone), `selector.overflow` (a timestamp outside the years 1 to 9999 in UTC).
    """
    # The exact types first: subclasses are rare.
    kind = type(value)
    if value is None or kind is str or kind is bool:
        return value  # type: ignore[return-value]  # just tested
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not INTEGER_MIN <= value <= INTEGER_MAX:
            raise operands("an integer of the row does not fit into 64 bits")
        return int(value)
    if isinstance(value, float):
        if value != value:  # noqa: PLR0124  # NaN is the value unequal to itself
            raise EvaluationError("selector.nan", "an attribute is NaN", hint="send null where there is no number")
        return float(value)
    if isinstance(value, datetime):
        return in_utc(value)
    if isinstance(value, str):
        return str.__str__(value)
    raise operands(f"a {kind.__name__} of the row is not an attribute value")


def in_utc(moment: datetime) -> datetime:
    """Convert to UTC, since Python compares two timestamps of one other zone by their wall clocks.

    Raises `EvaluationError`: `selector.operands`, `selector.overflow`.
    """
    if moment.tzinfo is UTC:
        return moment
    if moment.utcoffset() is None:
        raise operands("a timestamp of the row has no time zone")
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise EvaluationError(
            "selector.overflow", "a timestamp lies outside the years 1 to 9999", hint="use a time in UTC"
        ) from error


def compare(operator: ComparisonOperator, left: Scalar, right: Scalar) -> bool | None:
    """Compare two values that `read` or an operator returned; an integer and a float are compared exactly.

    Raises `EvaluationError` (`selector.operands`) for kinds that do not go together.
    """
    if left is None or right is None:
        return None
    first, second = _kind(left), _kind(right)
    if first is not second and not (first in _NUMBERS and second in _NUMBERS):
        raise operands(f"{first.phrase} cannot be compared with {second.phrase}")
    if first is Kind.BOOLEAN and operator not in (ComparisonOperator.EQ, ComparisonOperator.NE):
        raise operands("a boolean has no order")
    return _COMPARE[operator](left, right)


def calculate(operator: Operator, left: Scalar, right: Scalar) -> Scalar:
    """Compute with two numbers; with one float both become floats.

    Raises `EvaluationError`: `selector.operands`, `selector.overflow`, `selector.division`, `selector.nan`.
    """
    if left is None or right is None:
        return None
    first, second = _number(left), _number(right)
    if operator is Operator.DIVIDE and second == 0:
        raise EvaluationError("selector.division", "division by zero", hint="test the divisor first, joined with AND")
    if isinstance(first, int) and isinstance(second, int):
        return _fit(_divide(first, second) if operator is Operator.DIVIDE else _INTEGER[operator](first, second))
    return _float(operator, float(first), float(second))


def negate(value: Scalar) -> Scalar:
    """Change the sign of a number.

    Raises `EvaluationError`: `selector.operands`, `selector.overflow`.
    """
    if value is None:
        return None
    number = _number(value)
    return _fit(-number) if isinstance(number, int) else -number


def concat(left: Scalar, right: Scalar) -> Scalar:
    """Join two strings.

    Raises `EvaluationError` (`selector.operands`).
    """
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        return left + right
    raise operands("|| joins strings only")


def operands(message: str) -> EvaluationError:
    """Return the error for a row that does not fit the selector."""
    return EvaluationError("selector.operands", message, hint="check the selector against the type of the row")


def _kind(value: Value) -> Kind:
    try:
        return kind_of(value)
    except MalformedError as error:  # pragma: no cover  # read() lets nothing else in
        raise operands(error.message) from error


def _number(value: Value) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise operands(f"{_kind(value).phrase} is not a number")
    return value


def _fit(number: int) -> int:
    if INTEGER_MIN <= number <= INTEGER_MAX:
        return number
    raise EvaluationError(
        "selector.overflow", "an integer result does not fit into 64 bits", hint="compute with floats instead"
    )


def _divide(first: int, second: int) -> int:
    # Towards zero, as SQL and C do; Python's // rounds down.
    quotient = abs(first) // abs(second)
    return quotient if (first < 0) == (second < 0) else -quotient


def _float(operator: Operator, first: float, second: float) -> float:
    try:
        result = _FLOAT[operator](first, second)
    except OverflowError:  # pragma: no cover  # + - * / of doubles give an infinity instead
        result = math.inf
    if math.isnan(result):
        raise EvaluationError("selector.nan", "an operation has no number as its result", hint="test for infinities")
    if math.isinf(result) and not math.isinf(first) and not math.isinf(second):
        raise EvaluationError("selector.overflow", "a float result is too large", hint="scale the operands")
    return result


_NUMBERS: Final = frozenset([Kind.INTEGER, Kind.FLOAT])
_COMPARE: Final[dict[ComparisonOperator, Callable[..., bool]]] = {
    ComparisonOperator.EQ: python.eq,
    ComparisonOperator.NE: python.ne,
    ComparisonOperator.LT: python.lt,
    ComparisonOperator.LE: python.le,
    ComparisonOperator.GT: python.gt,
    ComparisonOperator.GE: python.ge,
}
_INTEGER: Final[dict[Operator, Callable[[int, int], int]]] = {
    Operator.ADD: python.add,
    Operator.SUBTRACT: python.sub,
    Operator.MULTIPLY: python.mul,
}
_FLOAT: Final[dict[Operator, Callable[[float, float], float]]] = {
    Operator.ADD: python.add,
    Operator.SUBTRACT: python.sub,
    Operator.MULTIPLY: python.mul,
    Operator.DIVIDE: python.truediv,
}


# ----------------------------------------------------------------------------------------------------------------------
# The reference interpreter: the meaning of a selector, written to be read. `compile_selector` agrees with it.


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
        case AttributeReference() | Literal():
            value = evaluate_term(node, row)
            if value is None or isinstance(value, bool):
                return value
            raise operands("only a boolean attribute is a condition")
        case Compare(operator, left, right):
            return compare(operator, evaluate_term(left, row), evaluate_term(right, row))
        case Between(value, low, high):
            bounds = (Compare(ComparisonOperator.GE, value, low), Compare(ComparisonOperator.LE, value, high))
            return _decide(bounds, row, decisive=False)
        case In(value, items):
            return _decide([Compare(ComparisonOperator.EQ, value, item) for item in items], row, decisive=True)
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

    Raises as `evaluate`.
    """
    match node:
        case AttributeReference(name):
            return read(row.get(name))
        case Literal(value):
            return value
        case Negate(operand):
            return negate(evaluate_term(operand, row))
        case Arithmetic(operator, left, right):
            return calculate(operator, evaluate_term(left, row), evaluate_term(right, row))
        case Concat(left, right):
            return concat(evaluate_term(left, row), evaluate_term(right, row))

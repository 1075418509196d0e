"""The operators on values: the exact meaning of numbers, nulls and errors, one function each.

A null operand makes the result null, before anything else is looked at. Integers are signed 64-bit and floats
IEEE 754 doubles; what does not fit, a division by zero and a NaN are errors, never values.
"""

import math
import operator as python
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from penstock.errors import EvaluationError, MalformedError
from penstock.model.values import INTEGER_MAX, INTEGER_MIN, Kind, Scalar, Value, kind_of
from penstock.selector.ast import Comparison, Operator


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
    raise operands(f"a {kind.__name__} of the row is no attribute value")


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


def compare(operator: Comparison, left: Scalar, right: Scalar) -> bool | None:
    """Compare two values that `read` or an operator returned; an integer and a float are compared exactly.

    Raises `EvaluationError` (`selector.operands`) for kinds that do not go together.
    """
    if left is None or right is None:
        return None
    first, second = _kind(left), _kind(right)
    if first is not second and not (first in _NUMBERS and second in _NUMBERS):
        raise operands(f"{first.phrase} cannot be compared with {second.phrase}")
    if first is Kind.BOOLEAN and operator not in (Comparison.EQ, Comparison.NE):
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
        raise operands(f"{_kind(value).phrase} is no number")
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
_COMPARE: Final[dict[Comparison, Callable[..., bool]]] = {
    Comparison.EQ: python.eq,
    Comparison.NE: python.ne,
    Comparison.LT: python.lt,
    Comparison.LE: python.le,
    Comparison.GT: python.gt,
    Comparison.GE: python.ge,
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

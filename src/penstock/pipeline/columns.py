"""Selectors as Spark columns: the same meaning as `evaluate`, in native expressions only.

A condition becomes two columns that are never null: where it is TRUE and where it is FALSE. Where neither holds it is
NULL or an error, and nothing in the language tells those two apart except IS NULL, for which every term carries a
column of its own that says where it is null. So nothing here can raise, whatever the rows hold: overflow, division by
zero and NaN simply make a term have no value.

Nothing depends on the session: not on ANSI mode (only functions that return null instead of raising are used), not on
the session's time zone (timestamps are compared as instants), not on its default collation.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.model.values import INTEGER_MIN, Kind, Scalar
from penstock.pipeline.patterns import Form, ParameterLike, form_of, matched
from penstock.selector import Selector
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

SPARK_TYPES: Final[Mapping[Kind, str]] = {
    Kind.STRING: "string",
    Kind.INTEGER: "bigint",
    Kind.FLOAT: "double",
    Kind.BOOLEAN: "boolean",
    Kind.TIMESTAMP: "timestamp",
}
"""The type of a column that holds attributes of a kind."""

_FILLERS: Final[Mapping[Kind, Scalar]] = {
    Kind.STRING: "",
    Kind.INTEGER: 0,
    Kind.FLOAT: 0.0,
    Kind.BOOLEAN: False,
    Kind.TIMESTAMP: datetime.fromtimestamp(0, tz=UTC),
}
EARLIEST: Final = -62_135_596_800_000_000
LATEST: Final = 253_402_300_799_999_999
"""The instants that Python can name, in microseconds: the years 1 to 9999."""
_TWO_TO_63: Final = 2.0**63
_MAX: Final = math.inf


@dataclass(frozen=True, slots=True)
class Plain:
    """A value that is never null to Spark, and the conditions under which it counts: then comparing it is short code.

    What is compared where they do not hold is thrown away.
    """

    column: Column
    where: tuple[Column, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """Where an attribute's values stand, and of which kind they are; also in plain form where that is known."""

    column: Column
    kind: Kind
    plain: Plain | None = None


@dataclass(frozen=True, slots=True)
class Truth:
    """A condition: where it is TRUE and where it is FALSE. Neither column is ever null."""

    true: Column
    false: Column


@dataclass(frozen=True, slots=True)
class Value:
    """A term: its value, null where it has none, and where it is null rather than in error."""

    column: Column
    kind: Kind | None
    null: Column
    plain: Plain | None = None


def hoist(frame: DataFrame, sources: Mapping[str, Source]) -> tuple[DataFrame, dict[str, Source]]:
    """Return a frame with the plain forms of some attributes beside them, so that each is made once a row."""
    added: dict[str, Column] = {}
    found: dict[str, Source] = {}
    for number, (name, source) in enumerate(sources.items()):
        there, clean = f"@there{number}", f"@clean{number}"
        counts = source.column.isNotNull()
        # Reading a NaN is an error: it has no value.
        added[there] = counts & ~F.isnan(source.column) if source.kind is Kind.FLOAT else counts
        added[clean] = F.coalesce(source.column, literal(_FILLERS[source.kind], source.kind))
        plain = Plain(F.col(f"`{clean}`"), (F.col(f"`{there}`"),))
        found[name] = Source(source.column, source.kind, plain)
    return frame.withColumns(added) if added else frame, found


def condition(selector: Selector, sources: Mapping[str, Source]) -> Truth:
    """Compile a selector. An attribute without a source is always null.

    The selector has been checked against the kinds of the sources.
    """
    return compile_condition(selector.root, sources)


def compile_condition(node: Condition, sources: Mapping[str, Source]) -> Truth:
    """Compile the tree of a selector, as `condition` does; a parameter is an attribute with a column of its own."""
    return _truth(node, sources)


def literal(value: Scalar, kind: Kind) -> Column:
    """Return a constant of a kind, independent of the session's settings."""
    if value is None:
        return F.lit(None).cast(SPARK_TYPES[kind])
    if isinstance(value, datetime):
        return F.timestamp_micros(F.lit(micros(value)))
    return F.lit(value).cast(SPARK_TYPES[kind])


def micros(moment: datetime) -> int:
    """Return microseconds since 1970, exactly."""
    return (moment - datetime.fromtimestamp(0, tz=moment.tzinfo)) // timedelta(microseconds=1)


def _truth(node: Condition, sources: Mapping[str, Source]) -> Truth:
    match node:
        case Attribute() | Literal():
            tested = _value(node, sources)
            return _decided(tested.plain.column, tested) if tested.plain else _known(tested.column)
        case Compare(operator, left, right):
            return _compare(operator, _value(left, sources), _value(right, sources))
        case Between(value, low, high):
            tested = _value(value, sources)
            return _and(
                _compare(Comparison.GE, tested, _value(low, sources)),
                _compare(Comparison.LE, tested, _value(high, sources)),
            )
        case In(value, items):
            return _in(_value(value, sources), items, sources)
        case ParameterLike(value, parameter, form=form):
            return _matched(_value(value, sources), form, sources[parameter].column)
        case Like(value, pattern, escape):
            form, text = form_of(pattern, escape)
            return _matched(_value(value, sources), form, F.lit(text))
        case IsNull(value):
            tested = _value(value, sources)
            return Truth(tested.null, tested.column.isNotNull())
        case Not(operand):
            inner = _truth(operand, sources)
            return Truth(inner.false, inner.true)
        case And(operands):
            return _and(*(_truth(operand, sources) for operand in operands))
        case Or(operands):
            return _or(*(_truth(operand, sources) for operand in operands))


def _known(column: Column) -> Truth:
    return Truth(F.coalesce(column, F.lit(False)), F.coalesce(~column, F.lit(False)))


def _matched(tested: Value, form: Form, text: Column) -> Truth:
    if tested.plain is not None:
        return _decided(matched(tested.plain.column, form, text), tested)
    return _known(matched(tested.column, form, text))


def _decided(column: Column, *values: Value) -> Truth:
    """Return the truth of something that is never null, where all that it is made of counts."""
    where = tuple(condition for value in values if value.plain for condition in value.plain.where)
    return Truth(_all((*where, column)), _all((*where, ~column)))


def _and(*parts: Truth) -> Truth:
    return Truth(_all(part.true for part in parts), _any(part.false for part in parts))


def _or(*parts: Truth) -> Truth:
    return Truth(_any(part.true for part in parts), _all(part.false for part in parts))


def _all(columns: Iterable[Column]) -> Column:
    return reduce(lambda one, other: one & other, columns)


def _any(columns: Iterable[Column]) -> Column:
    return reduce(lambda one, other: one | other, columns)


def _in(tested: Value, items: tuple[Term, ...], sources: Mapping[str, Source]) -> Truth:
    plain = [item for item in items if isinstance(item, Literal) and item.kind is tested.kind]
    if len(plain) == len(items) and tested.kind is not None:
        return _known(tested.column.isin(*(literal(item.value, tested.kind) for item in plain)))
    return _or(*(_compare(Comparison.EQ, tested, _value(item, sources)) for item in items))


_COMPARE: Final[Mapping[Comparison, Callable[[Column, Column], Column]]] = {
    Comparison.EQ: lambda a, b: a == b,
    Comparison.NE: lambda a, b: a != b,
    Comparison.LT: lambda a, b: a < b,
    Comparison.LE: lambda a, b: a <= b,
    Comparison.GT: lambda a, b: a > b,
    Comparison.GE: lambda a, b: a >= b,
}


def _compare(operator: Comparison, left: Value, right: Value) -> Truth:
    if left.kind is None or right.kind is None:
        return Truth(F.lit(False), F.lit(False))
    if left.kind is right.kind and left.plain is not None and right.plain is not None:
        return _decided(_COMPARE[operator](left.plain.column, right.plain.column), left, right)
    if left.kind is right.kind:
        return _known(_COMPARE[operator](left.column, right.column))
    # An integer and a float: exact, where a cast of the integer would round.
    if left.kind is Kind.INTEGER:
        return _known(_compare_exactly(operator, left.column, right.column))
    return _known(_compare_exactly(operator.flipped, right.column, left.column))


def _compare_exactly(operator: Comparison, integer: Column, number: Column) -> Column:
    compare = _COMPARE[operator]
    zero = F.lit(0)
    whole = number.try_cast("bigint")
    rest = number - whole.cast("double")
    sign = (
        F.when(number >= F.lit(_TWO_TO_63), F.lit(-1))
        .when(number < F.lit(-_TWO_TO_63), F.lit(1))
        .when(integer < whole, F.lit(-1))
        .when(integer > whole, F.lit(1))
        .when(rest > 0, F.lit(-1))
        .when(rest < 0, F.lit(1))
        .otherwise(zero)
    )
    return F.when(integer.isNotNull() & number.isNotNull(), compare(sign, zero))


def _value(node: Term, sources: Mapping[str, Source]) -> Value:
    match node:
        case Attribute(name):
            source = sources.get(name)
            if source is None:
                return Value(F.lit(None), None, F.lit(True))
            column = source.column
            if source.kind is Kind.FLOAT:
                # Reading a NaN is an error: the term has no value, and is not null either.
                return Value(F.when(~F.isnan(column), column), source.kind, column.isNull(), source.plain)
            return Value(column, source.kind, column.isNull(), source.plain)
        case Literal(value, kind):
            if kind is None:
                return Value(F.lit(None), None, F.lit(True))
            constant = literal(value, kind)
            return Value(constant, kind, F.lit(False), Plain(constant))
        case Negate(operand):
            inner = _value(operand, sources)
            if inner.kind is Kind.FLOAT:
                return Value(-inner.column, inner.kind, inner.null)
            if inner.kind is None:
                return inner
            zero = literal(0, Kind.INTEGER)
            return Value(F.try_subtract(zero, inner.column), inner.kind, inner.null)
        case Concat(left, right):
            first, second = _value(left, sources), _value(right, sources)
            return Value(
                F.concat(_typed(first, Kind.STRING), _typed(second, Kind.STRING)), Kind.STRING, _null(first, second)
            )
        case Arithmetic(operator, left, right):
            return _calculate(operator, _value(left, sources), _value(right, sources))


def _typed(value: Value, kind: Kind) -> Column:
    return value.column.cast(SPARK_TYPES[kind]) if value.kind is None else value.column


def _null(*parts: Value) -> Column:
    """Return where an operator is null: some operand is, and none is in error."""
    sound = _all(part.null | part.column.isNotNull() for part in parts)
    return sound & _any(part.null for part in parts)


def _calculate(operator: Operator, left: Value, right: Value) -> Value:
    null = _null(left, right)
    kinds = {left.kind, right.kind} - {None}
    if Kind.FLOAT in kinds:
        first, second = left.column.cast("double"), right.column.cast("double")
        return Value(_floats(operator, first, second), Kind.FLOAT, null)
    if not kinds:
        return Value(F.lit(None), None, null)
    return Value(_integers(operator, _typed(left, Kind.INTEGER), _typed(right, Kind.INTEGER)), Kind.INTEGER, null)


def _integers(operator: Operator, first: Column, second: Column) -> Column:
    if operator is Operator.ADD:
        return F.try_add(first, second)
    if operator is Operator.SUBTRACT:
        return F.try_subtract(first, second)
    if operator is Operator.MULTIPLY:
        return F.try_multiply(first, second)
    # The two divisors that have no quotient are taken away before Spark sees them.
    minimum = literal(INTEGER_MIN, Kind.INTEGER)
    safe = F.when((second != 0) & ~((second == -1) & (first == minimum)), second)
    return F.call_function("div", first, safe)


_FLOATS: Final[Mapping[Operator, Callable[[Column, Column], Column]]] = {
    Operator.ADD: lambda a, b: a + b,
    Operator.SUBTRACT: lambda a, b: a - b,
    Operator.MULTIPLY: lambda a, b: a * b,
    Operator.DIVIDE: F.try_divide,
}


def _floats(operator: Operator, first: Column, second: Column) -> Column:
    result = _FLOATS[operator](first, second)
    overflow = (F.abs(result) == _MAX) & (F.abs(first) < _MAX) & (F.abs(second) < _MAX)
    return F.when(~F.isnan(result) & ~overflow, result)

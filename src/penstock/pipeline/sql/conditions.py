"""Selectors as SQL: the same meaning as `evaluate`, for engines whose own meaning differs in the details.

A condition becomes an expression that is TRUE exactly where the condition is TRUE, and FALSE or NULL elsewhere. NOT is
pushed down to comparisons, which have a second form for where they are FALSE. So nothing asks whether an expression is
FALSE or NULL, and a term in error can be NULL, as in `penstock.pipeline.frames`: after overflow, division by zero or
NaN a term has no value. Only IS NULL distinguishes these: every term also says where it is null.

Nothing depends on a session: not on ANSI mode, the time zone, the default collation, or how texts are escaped.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from typing import Final, TypeAlias

from sqlglot import exp

from penstock.errors import RefusedError
from penstock.model.values import INTEGER_MAX, INTEGER_MIN, Kind, Scalar, Value, kind_of
from penstock.pipeline.event_columns import EARLIEST, LATEST, micros
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

Sql: TypeAlias = exp.Expr


class SqlDialect(StrEnum):
    """An engine whose SQL is written."""

    SPARK = "spark"
    DATABRICKS = "databricks"
    POSTGRES = "postgres"
    DUCKDB = "duckdb"

    @property
    def is_spark(self) -> bool:
        """Whether it is Spark, here or at Databricks."""
        return self in (SqlDialect.SPARK, SqlDialect.DATABRICKS)

    @property
    def written(self) -> str:
        """The name by which sqlglot writes it. Of Spark it knows versions that lack TRY_CAST, and Databricks has it."""
        return "databricks" if self.is_spark else self.value


@dataclass(frozen=True, slots=True)
class SqlSource:
    """Where the values of an attribute stand, and their kind."""

    expression: Sql
    kind: Kind


@dataclass(frozen=True, slots=True)
class _Term:
    """A term: its value, NULL if it has none, and where it is null rather than in error. Without a kind it is null."""

    value: Sql
    kind: Kind | None
    null: Sql


_TYPES: Final[Mapping[Kind, str]] = {
    Kind.STRING: "TEXT",
    Kind.INTEGER: "BIGINT",
    Kind.FLOAT: "DOUBLE",
    Kind.BOOLEAN: "BOOLEAN",
    Kind.TIMESTAMP: "TIMESTAMPTZ",
}
_COMPARE: Final[Mapping[ComparisonOperator, type[exp.Binary]]] = {
    ComparisonOperator.EQ: exp.EQ,
    ComparisonOperator.NE: exp.NEQ,
    ComparisonOperator.LT: exp.LT,
    ComparisonOperator.LE: exp.LTE,
    ComparisonOperator.GT: exp.GT,
    ComparisonOperator.GE: exp.GTE,
}
_ARITHMETIC: Final[Mapping[Operator, type[exp.Binary]]] = {
    Operator.ADD: exp.Add,
    Operator.SUBTRACT: exp.Sub,
    Operator.MULTIPLY: exp.Mul,
    Operator.DIVIDE: exp.Div,
}
_TRY: Final = {Operator.ADD: "TRY_ADD", Operator.SUBTRACT: "TRY_SUBTRACT", Operator.MULTIPLY: "TRY_MULTIPLY"}
_EXACT: Final = 2**53
"""Up to here every whole number is a real one."""
_TWO_TO_63: Final = 2.0**63
_ESCAPE: Final = "!"
"""Not a backslash: whether that needs an escape of its own depends on a session's settings."""
_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)
"""The instants that an event can have."""
_DAY, _HOUR, _MINUTE = 86_400_000_000, 3_600_000_000, 60_000_000


def all_of(parts: Iterable[Sql]) -> Sql:
    """Return where all of some conditions hold."""
    found = [part for part in parts if part != exp.true()]
    return exp.and_(*found) if found else exp.true()


def any_of(parts: Iterable[Sql]) -> Sql:
    """Return where any of some conditions holds."""
    found = [part for part in parts if part != exp.false()]
    if exp.true() in found:
        return exp.true()
    return exp.or_(*found) if found else exp.false()


def inexpressible(dialect: SqlDialect, what: str, hint: str) -> RefusedError:
    """Return the error for something that a dialect cannot say."""
    return RefusedError("sql.inexpressible", f"{dialect} cannot express {what}", hint=hint, dialect=str(dialect))


def when(condition: Sql, value: Sql) -> Sql:
    """Return a value where a condition holds, and elsewhere NULL."""
    return exp.Case(ifs=[exp.If(this=condition.copy(), true=value.copy())])


def null_of(kind: Kind) -> Sql:
    """Return the NULL of a kind."""
    return exp.cast(exp.null(), _TYPES[kind])


def _call(name: str, *arguments: Sql) -> Sql:
    return exp.Anonymous(this=name, expressions=[argument.copy() for argument in arguments])


def _binary(kind: type[exp.Binary], left: Sql, right: Sql) -> Sql:
    return kind(this=_inside(left), expression=_inside(right))


def _inside(part: Sql) -> Sql:
    """Return an expression as an operand: sqlglot adds no parentheses of its own."""
    loose = isinstance(part, exp.Binary | exp.Unary) and not isinstance(part, exp.Paren | exp.Collate)
    return exp.paren(part) if loose else part.copy()


def _number(value: int) -> Sql:
    return exp.cast(exp.Literal.number(str(value)), "BIGINT")


def _is_null(part: Sql) -> Sql:
    return exp.Is(this=_inside(part), expression=exp.null())


def _is_there(part: Sql) -> Sql:
    return exp.not_(_is_null(part))


class SqlCompiler:
    """Compiles selectors for one dialect."""

    def __init__(self, dialect: SqlDialect) -> None:
        self.dialect = dialect

    def condition(self, node: Condition, sources: Mapping[str, SqlSource], *, holds: bool = True) -> Sql:
        """Return an expression that is TRUE where a condition is TRUE, or where it is FALSE if not `holds`.

        An attribute without a source is always null. Raises `RefusedError` (`sql.inexpressible`).
        """
        match node:
            case AttributeReference() | Literal():
                tested = self._term(node, sources)
                if isinstance(node, Literal):
                    return exp.true() if node.value is holds else exp.false()
                if tested.kind is None:
                    return exp.false()
                return tested.value.copy() if holds else exp.not_(_inside(tested.value))
            case Compare(operator, left, right):
                return self._compare(operator if holds else operator.negated, left, right, sources)
            case Between(value, low, high):
                bounds = And((Compare(ComparisonOperator.GE, value, low), Compare(ComparisonOperator.LE, value, high)))
                return self.condition(bounds, sources, holds=holds)
            case In(value, items):
                return self._in(value, items, sources, holds=holds)
            case Like(value, pattern, escape):
                return self._like(self._term(value, sources), pattern, escape, holds=holds)
            case IsNull(value):
                tested = self._term(value, sources)
                return tested.null.copy() if holds else _is_there(tested.value)
            case Not(operand):
                return self.condition(operand, sources, holds=not holds)
            case And(operands) | Or(operands):
                parts = [self.condition(operand, sources, holds=holds) for operand in operands]
                return all_of(parts) if isinstance(node, And) is holds else any_of(parts)

    def literal(self, value: Value, kind: Kind) -> Sql:
        """Return a constant. Raises `RefusedError` (`sql.inexpressible`)."""
        if isinstance(value, bool):
            return exp.true() if value else exp.false()
        if isinstance(value, datetime):
            if self.dialect is SqlDialect.POSTGRES:
                text = value.astimezone(UTC).replace(tzinfo=None).isoformat(" ")
                return exp.cast(exp.Literal.string(f"{text}+00"), "TIMESTAMPTZ")
            made = "TIMESTAMP_MICROS" if self.dialect.is_spark else "MAKE_TIMESTAMPTZ"
            return _call(made, _number(micros(value)))
        if kind is Kind.FLOAT:
            text = repr(float(value)).replace("inf", "Infinity")
            return exp.cast(exp.Literal.string(text), "DOUBLE")
        return self.text(value) if isinstance(value, str) else _number(int(value))

    def text(self, text: str) -> Sql:
        """Return a text, whatever characters it has. Raises `RefusedError` (`sql.inexpressible`)."""
        # Spark replaces `${NAME}` in statements by a setting or a variable of the environment.
        if text.isprintable() and not {"'", "\\", "$"} & {*text}:
            return exp.Literal.string(text)
        if self.dialect is SqlDialect.POSTGRES and "\0" in text:
            raise inexpressible(self.dialect, "a text with a NUL character", "use another character in the policy")
        encoded = exp.Literal.string(text.encode().hex())
        if self.dialect is SqlDialect.POSTGRES:
            return _call(
                "CONVERT_FROM", _call("DECODE", encoded, exp.Literal.string("hex")), exp.Literal.string("UTF8")
            )
        coding = [exp.Literal.string("UTF-8")] if self.dialect.is_spark else []
        return _call("DECODE", _call("UNHEX", encoded), *coding)

    def is_nan(self, value: Sql) -> Sql:
        """Return where a float is NaN."""
        if self.dialect is SqlDialect.POSTGRES:
            return _binary(exp.EQ, value, exp.cast(exp.Literal.string("NaN"), "DOUBLE"))
        return _call("ISNAN", value)

    def is_dated(self, moment: Sql) -> Sql:
        """Return where a timestamp lies in the years 1 to 9999; `infinity` does not."""
        low, high = (self.literal(end, Kind.TIMESTAMP) for end in (_FIRST, _LAST))
        return exp.Between(this=moment.copy(), low=low, high=high)

    def environment(self, time: Sql | None, zone: tzinfo, facts: Mapping[str, Value]) -> dict[str, SqlSource]:
        """Return the environment of each event: that of its time, and facts. What is not there is null."""
        found = {
            name: SqlSource(self.literal(fact, kind), kind) for name, fact in facts.items() for kind in [kind_of(fact)]
        }
        if time is None:
            return found
        instant = self._wall_clock(time, zone)
        # By arithmetic, as in Spark: the first of January 1970 was a Thursday.
        day = self._quotient(_binary(exp.Sub, instant, _modulo(instant, _DAY)), _DAY)
        weekday = _binary(exp.Add, _modulo(_binary(exp.Add, day, _number(3)), 7), _number(1))
        return {
            **found,
            "time": SqlSource(time, Kind.TIMESTAMP),
            "hour": SqlSource(self._quotient(_modulo(instant, _DAY), _HOUR), Kind.INTEGER),
            "minute": SqlSource(self._quotient(_modulo(instant, _HOUR), _MINUTE), Kind.INTEGER),
            "weekday": SqlSource(weekday, Kind.INTEGER),
        }

    def _wall_clock(self, time: Sql, zone: tzinfo) -> Sql:
        """Return the microseconds from 1970 to what a clock on the wall shows; NULL outside the years 1 to 9999."""
        local = time
        if zone is not UTC:
            name = self.text(str(zone))
            local = _call("FROM_UTC_TIMESTAMP", time, name) if self.dialect.is_spark else _call("TIMEZONE", name, time)
        if self.dialect is SqlDialect.POSTGRES:
            seconds = exp.Extract(this=exp.var("EPOCH"), expression=local.copy())
            # PostgreSQL would stop at `infinity`, wherever else rows with it are left out.
            instant: Sql = when(
                self.is_dated(time), exp.cast(_binary(exp.Mul, seconds, exp.Literal.number("1000000")), "BIGINT")
            )
        else:
            instant = _call("UNIX_MICROS" if self.dialect.is_spark else "EPOCH_US", local)
        if zone is UTC:
            return instant
        return when(exp.Between(this=instant, low=_number(EARLIEST), high=_number(LATEST)), instant)

    def _quotient(self, number: Sql, divisor: int) -> Sql:
        """Return a quotient of integers towards zero."""
        if self.dialect is SqlDialect.POSTGRES:
            return exp.Div(this=_inside(number), expression=_number(divisor), typed=True)
        return _binary(exp.IntDiv, number, _number(divisor))

    # --- Comparisons -------------------------------------------------------------------------------------------------

    def _compare(self, operator: ComparisonOperator, left: Term, right: Term, sources: Mapping[str, SqlSource]) -> Sql:
        first, second = self._term(left, sources, beside=right), self._term(right, sources, beside=left)
        if first.kind is None or second.kind is None:
            return exp.false()
        if first.kind is second.kind:
            return _binary(_COMPARE[operator], first.value, second.value)
        # An integer and a float: exact, where a cast of the integer would round.
        if first.kind is Kind.INTEGER:
            return self._compare_exactly(operator, first.value, second.value)
        return self._compare_exactly(operator.flipped, second.value, first.value)

    def _compare_exactly(self, operator: ComparisonOperator, integer: Sql, number: Sql) -> Sql:
        bound = self.literal(_TWO_TO_63, Kind.FLOAT)
        below = self.literal(-_TWO_TO_63, Kind.FLOAT)
        zero = self.literal(0.0, Kind.FLOAT)
        if self.dialect.is_spark:
            whole: Sql = exp.TryCast(this=number.copy(), to=exp.DataType.build("BIGINT"))
        elif self.dialect is SqlDialect.DUCKDB:
            # A cast alone would round.
            whole = exp.TryCast(this=_call("TRUNC", number), to=exp.DataType.build("BIGINT"))
        else:
            # Evaluated only behind the bounds.
            whole = exp.cast(_call("TRUNC", number), "BIGINT")
        rest = _binary(exp.Sub, number, exp.cast(whole.copy(), "DOUBLE"))
        less, more = exp.Literal.number("-1"), exp.Literal.number("1")
        arms = [
            (exp.or_(_is_null(integer), _is_null(number)), exp.null()),
            (_binary(exp.GTE, number, bound), less),
            (_binary(exp.LT, number, below), more),
            (_binary(exp.LT, integer, whole), less),
            (_binary(exp.GT, integer, whole), more),
            (_binary(exp.GT, rest, zero), less),
            (_binary(exp.LT, rest, zero), more),
        ]
        ifs = [exp.If(this=condition, true=value.copy()) for condition, value in arms]
        sign = exp.Case(ifs=ifs, default=exp.Literal.number("0"))
        return _binary(_COMPARE[operator], sign, exp.Literal.number("0"))

    def _in(self, value: Term, items: tuple[Term, ...], sources: Mapping[str, SqlSource], *, holds: bool) -> Sql:
        tested = self._term(value, sources)
        same = [item for item in items if isinstance(item, Literal) and item.kind is tested.kind]
        if len(same) == len(items) and tested.kind in (Kind.STRING, Kind.INTEGER):
            constants = [self._term(item, sources).value for item in same]
            found = exp.In(this=_inside(tested.value), expressions=constants)
            return found if holds else exp.not_(found)
        each = tuple(Compare(ComparisonOperator.EQ, value, item) for item in items)
        return self.condition(Or(each), sources, holds=holds)

    def _like(self, tested: _Term, pattern: str, escape: str | None, *, holds: bool) -> Sql:
        if tested.kind is None:
            return exp.false()
        segments = parse_pattern(pattern, escape).segments
        if len(segments) == 1 and None not in segments[0]:
            text = self.text("".join(character for character in segments[0] if character))
            return _binary(exp.EQ if holds else exp.NEQ, tested.value, text)
        wanted = "%".join("".join(map(_escaped, segment)) for segment in segments)
        like = exp.Like(this=_inside(tested.value), expression=self.text(wanted))
        found = exp.Escape(this=like, expression=exp.Literal.string(_ESCAPE))
        return found if holds else exp.not_(exp.paren(found))

    # --- Terms -------------------------------------------------------------------------------------------------------

    def _term(self, node: Term, sources: Mapping[str, SqlSource], *, beside: Term | None = None) -> _Term:
        match node:
            case AttributeReference(name):
                source = sources.get(name)
                if source is None:
                    return _Term(exp.null(), None, exp.true())
                return _Term(self.read(source), source.kind, _is_null(source.expression))
            case Literal(value, kind):
                if value is None or kind is None:
                    return _Term(exp.null(), None, exp.true())
                aligned, of = _aligned(value, kind, beside, sources)
                return _Term(self.literal(aligned, of), of, exp.false())
            case Negate(operand):
                inner = self._term(operand, sources)
                if inner.kind is Kind.FLOAT:
                    return _Term(exp.Neg(this=_inside(inner.value)), inner.kind, inner.null)
                if inner.kind is None:
                    return inner
                zero = _Term(_number(0), Kind.INTEGER, exp.false())
                return _Term(self._integers(Operator.SUBTRACT, zero.value, inner.value), inner.kind, inner.null)
            case Concat(left, right):
                first, second = self._term(left, sources), self._term(right, sources)
                joined = _binary(exp.DPipe, _typed(first, Kind.STRING), _typed(second, Kind.STRING))
                return _Term(joined, Kind.STRING, _null(first, second))
            case Arithmetic(operator, left, right):
                return self._calculate(operator, self._term(left, sources), self._term(right, sources))

    def read(self, source: SqlSource) -> Sql:
        """Return the value of an attribute: reading NaN is an error, and texts are compared byte by byte."""
        value = source.expression
        if source.kind is Kind.FLOAT:
            return when(exp.not_(_inside(self.is_nan(value))), value)
        if source.kind is not Kind.STRING:
            return value.copy()
        if self.dialect.is_spark:
            return _call("COLLATE", value, exp.Literal.string("UTF8_BINARY"))
        return exp.Collate(this=_inside(value), expression=exp.to_identifier("C", quoted=True))

    def _calculate(self, operator: Operator, left: _Term, right: _Term) -> _Term:
        null = _null(left, right)
        kinds = {left.kind, right.kind} - {None}
        if Kind.FLOAT in kinds:
            first, second = (exp.cast(part.value.copy(), "DOUBLE") for part in (left, right))
            return _Term(self._floats(operator, first, second), Kind.FLOAT, null)
        if not kinds:
            return _Term(exp.null(), None, null)
        first, second = (exp.cast(part.value.copy(), "BIGINT") for part in (left, right))
        return _Term(self._integers(operator, first, second), Kind.INTEGER, null)

    def _integers(self, operator: Operator, first: Sql, second: Sql) -> Sql:
        if operator is Operator.DIVIDE:
            # The two divisors that have no quotient are taken away.
            edge = exp.and_(
                _binary(exp.EQ, second, _number(-1)), _binary(exp.EQ, first, _number(INTEGER_MIN)), copy=False
            )
            safe = when(exp.and_(_binary(exp.NEQ, second, _number(0)), exp.not_(exp.paren(edge))), second)
            if self.dialect is SqlDialect.POSTGRES:
                return exp.Div(this=_inside(first), expression=safe, typed=True)
            return _binary(exp.IntDiv, first, safe)
        if self.dialect.is_spark:
            return _call(_TRY[operator], first, second)
        wide = "INT128" if self.dialect is SqlDialect.DUCKDB else "DECIMAL"
        result = _binary(_ARITHMETIC[operator], exp.cast(first.copy(), wide), exp.cast(second.copy(), wide))
        if self.dialect is SqlDialect.DUCKDB:
            return exp.TryCast(this=result, to=exp.DataType.build("BIGINT"))
        inside = exp.Between(
            this=_inside(result), low=exp.Literal.number(str(INTEGER_MIN)), high=exp.Literal.number(str(INTEGER_MAX))
        )
        return when(inside, exp.cast(result.copy(), "BIGINT"))

    def _floats(self, operator: Operator, first: Sql, second: Sql) -> Sql:
        if self.dialect is SqlDialect.POSTGRES:
            hint = "PostgreSQL stops with an error where a result is too large: compare with constants, or use integers"
            raise inexpressible(self.dialect, f"`{operator}` of floats", hint)
        largest = self.literal(math.inf, Kind.FLOAT)
        if operator is Operator.DIVIDE:
            second = when(_binary(exp.NEQ, second, self.literal(0.0, Kind.FLOAT)), second)
        result = _binary(_ARITHMETIC[operator], first, second)
        overflow = all_of(
            [
                _binary(exp.EQ, _call("ABS", result), largest),
                _binary(exp.LT, _call("ABS", first), largest),
                _binary(exp.LT, _call("ABS", second), largest),
            ]
        )
        return when(exp.and_(exp.not_(self.is_nan(result)), exp.not_(exp.paren(overflow))), result)


def _aligned(value: Scalar, kind: Kind, beside: Term | None, sources: Mapping[str, SqlSource]) -> tuple[Value, Kind]:
    """Return a number as the kind of the attribute that it is compared with, where that is the same number."""
    found = sources.get(beside.name) if isinstance(beside, AttributeReference) else None
    wanted = None if found is None else found.kind
    if wanted is Kind.FLOAT and type(value) is int and abs(value) <= _EXACT:
        return float(value), Kind.FLOAT
    if wanted is Kind.INTEGER and type(value) is float and value.is_integer() and abs(value) <= _EXACT:
        return int(value), Kind.INTEGER
    return value, kind  # type: ignore[return-value]  # not null, as the caller has seen


def _typed(term: _Term, kind: Kind) -> Sql:
    return null_of(kind) if term.kind is None else term.value


def _null(*parts: _Term) -> Sql:
    """Return where an operator is null: some operand is, and none is in error."""
    sound = all_of(any_of([part.null, _is_there(part.value)]) for part in parts)
    return all_of([sound, any_of(part.null for part in parts)])


def _modulo(number: Sql, divisor: int) -> Sql:
    """Return a remainder that is never negative."""
    rest = _binary(exp.Mod, number, _number(divisor))
    return _binary(exp.Mod, _binary(exp.Add, rest, _number(divisor)), _number(divisor))


def _escaped(character: str | None) -> str:
    if character is None:
        return "_"
    return f"{_ESCAPE}{character}" if character in f"%_{_ESCAPE}" else character

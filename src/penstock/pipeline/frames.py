"""Events and selectors in Spark.

    typed events    @id  @time  @source  and a column for each attribute of one version, by name
    transit events  @id  @time  @source  and a column for each attribute id: no version, as between brokers

`@id` and `@source` (the publisher's principal) are strings, `@time` is a timestamp. No attribute can have such a name.

Spark, and most programs that read Parquet, treat `a` and `A` as one column. Types in which these are two attributes are
refused (`pipeline.case`), whatever the session's settings are: other programs must be able to read the files.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from operator import and_, or_
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.model.types import Attribute, EventType
from penstock.model.values import INTEGER_MIN, Kind, Scalar
from penstock.pipeline.event_columns import EARLIEST as EARLIEST
from penstock.pipeline.event_columns import ID as ID
from penstock.pipeline.event_columns import LATEST as LATEST
from penstock.pipeline.event_columns import METADATA as METADATA
from penstock.pipeline.event_columns import SOURCE as SOURCE
from penstock.pipeline.event_columns import TIME as TIME
from penstock.pipeline.event_columns import attributes_of as attributes_of
from penstock.pipeline.event_columns import micros as micros
from penstock.selector import Selector
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

# ----------------------------------------------------------------------------------------------------------------------
# Selectors as Spark columns: the same meaning as `evaluate`, in native expressions only.
#
# A condition becomes two columns that are never null: where it is TRUE and where it is FALSE. Elsewhere it is NULL or
# an error. The language distinguishes these two only in IS NULL, for which every term has another column that says
# where it is null. So nothing here can raise, whatever the rows contain: after overflow, division by zero or NaN a term
# has no value.
#
# Nothing depends on the session: not on ANSI mode (only functions that return null instead of raising are used), not on
# the session's time zone (timestamps are compared as instants), not on its default collation.


# ----------------------------------------------------------------------------------------------------------------------
# LIKE on Spark: the forms that nearly all patterns have need no regular expression; a text may be a parameter.


class PatternForm(StrEnum):
    """What a pattern asks of a text."""

    IS = "is"
    STARTS = "starts"
    ENDS = "ends"
    CONTAINS = "contains"
    LIKE = "like"


@dataclass(frozen=True, slots=True)
class ParameterLike(Like):
    """A LIKE of which only the form is known: its `pattern` is the name of the parameter that holds the text."""

    form: PatternForm = PatternForm.LIKE


def form_of(pattern: str, escape: str | None) -> tuple[PatternForm, str]:
    """Return the form of a pattern, and the text that goes with it; for `LIKE` it is a pattern in Spark's own form."""
    segments = parse_pattern(pattern, escape).segments
    if not any(None in segment for segment in segments):
        texts = ["".join(character for character in segment if character) for segment in segments]
        match texts:
            case [whole]:
                return PatternForm.IS, whole
            case [first, ""]:
                return PatternForm.STARTS, first
            case ["", last]:
                return PatternForm.ENDS, last
            case ["", inner, ""]:
                return PatternForm.CONTAINS, inner
    return PatternForm.LIKE, "%".join("".join(_escaped(character) for character in segment) for segment in segments)


def matched(column: Column, form: PatternForm, text: Column) -> Column:
    """Return where a text has a form."""
    match form:
        case PatternForm.IS:
            return column == text
        case PatternForm.STARTS:
            return column.startswith(text)
        case PatternForm.ENDS:
            return column.endswith(text)
        case PatternForm.CONTAINS:
            return column.contains(text)
        case PatternForm.LIKE:
            return F.like(column, text)


def _escaped(character: str | None) -> str:
    if character is None:
        return "_"
    return f"\\{character}" if character in "%_\\" else character


# ----------------------------------------------------------------------------------------------------------------------
# Selectors as Spark columns: the same meaning as `evaluate`, in native expressions only.


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
_TWO_TO_63: Final = 2.0**63
_MAX: Final = math.inf


@dataclass(frozen=True, slots=True)
class PlainColumn:
    """A value that is never null to Spark, and the conditions under which it counts: then comparing it is short code.

    What is compared where they do not hold is thrown away.
    """

    column: Column
    where: tuple[Column, ...] = ()


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """Where an attribute's values stand, and of which kind they are; also in plain form where that is known."""

    column: Column
    kind: Kind
    plain: PlainColumn | None = None


@dataclass(frozen=True, slots=True)
class TruthColumns:
    """A condition: where it is TRUE and where it is FALSE. Neither column is ever null."""

    true: Column
    false: Column


@dataclass(frozen=True, slots=True)
class Value:
    """A term: its value, null if it has none, and where it is null rather than in error."""

    column: Column
    kind: Kind | None
    null: Column
    plain: PlainColumn | None = None


def hoist(frame: DataFrame, sources: Mapping[str, ColumnSource]) -> tuple[DataFrame, dict[str, ColumnSource]]:
    """Return a frame with the plain forms of some attributes beside them, so that each is made once a row."""
    added: dict[str, Column] = {}
    found: dict[str, ColumnSource] = {}
    for number, (name, source) in enumerate(sources.items()):
        there, clean = f"@there{number}", f"@clean{number}"
        counts = source.column.isNotNull()
        # Reading a NaN is an error: it has no value.
        added[there] = counts & ~F.isnan(source.column) if source.kind is Kind.FLOAT else counts
        added[clean] = F.coalesce(source.column, literal(_FILLERS[source.kind], source.kind))
        plain = PlainColumn(F.col(f"`{clean}`"), (F.col(f"`{there}`"),))
        found[name] = ColumnSource(source.column, source.kind, plain)
    return frame.withColumns(added) if added else frame, found


def condition(selector: Selector, sources: Mapping[str, ColumnSource]) -> TruthColumns:
    """Compile a selector. An attribute without a source is always null.

    The selector has been checked against the kinds of the sources.
    """
    return compile_condition(selector.root, sources)


def compile_condition(node: Condition, sources: Mapping[str, ColumnSource]) -> TruthColumns:
    """Compile the tree of a selector, as `condition` does; a parameter is an attribute with a column of its own."""
    return _truth(node, sources)


def literal(value: Scalar, kind: Kind) -> Column:
    """Return a constant of a kind, independent of the session's settings."""
    if value is None:
        return F.lit(None).cast(SPARK_TYPES[kind])
    if isinstance(value, datetime):
        return F.timestamp_micros(F.lit(micros(value)))
    return F.lit(value).cast(SPARK_TYPES[kind])


def hide_tables(spark: SparkSession) -> None:
    """Keep small tables out of requests to a Spark Connect server, which logs them."""
    spark.conf.set("spark.sql.session.localRelationCacheThreshold", "0")


def unprinted(spark: SparkSession, values: Sequence[object], kind: pa.DataType) -> Column:
    """Return an array of constants that are neither printed in plans nor part of compiled code: a subquery.

    For another literal, or another number as a subquery, Spark would compile a stage again.
    """
    hide_tables(spark)
    return spark.createDataFrame(pa.table({"values": pa.array([values], pa.list_(kind))})).scalar()


def _truth(node: Condition, sources: Mapping[str, ColumnSource]) -> TruthColumns:
    match node:
        case AttributeReference() | Literal():
            tested = _value(node, sources)
            return _decided(tested.plain.column, tested) if tested.plain else _known(tested.column)
        case Compare(operator, left, right):
            return _compare(operator, _value(left, sources), _value(right, sources))
        case Between(value, low, high):
            tested = _value(value, sources)
            return _and(
                _compare(ComparisonOperator.GE, tested, _value(low, sources)),
                _compare(ComparisonOperator.LE, tested, _value(high, sources)),
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
            return TruthColumns(tested.null, tested.column.isNotNull())
        case Not(operand):
            inner = _truth(operand, sources)
            return TruthColumns(inner.false, inner.true)
        case And(operands):
            return _and(*(_truth(operand, sources) for operand in operands))
        case Or(operands):
            return _or(*(_truth(operand, sources) for operand in operands))


def _known(column: Column) -> TruthColumns:
    return TruthColumns(F.coalesce(column, F.lit(False)), F.coalesce(~column, F.lit(False)))


def _matched(tested: Value, form: PatternForm, text: Column) -> TruthColumns:
    if tested.plain is not None:
        return _decided(matched(tested.plain.column, form, text), tested)
    return _known(matched(tested.column, form, text))


def _decided(column: Column, *values: Value) -> TruthColumns:
    """Return the truth of something that is never null, where all that it is made of counts."""
    where = tuple(condition for value in values if value.plain for condition in value.plain.where)
    return TruthColumns(all_of((*where, column)), all_of((*where, ~column)))


def _and(*parts: TruthColumns) -> TruthColumns:
    return TruthColumns(all_of(part.true for part in parts), any_of(part.false for part in parts))


def _or(*parts: TruthColumns) -> TruthColumns:
    return TruthColumns(any_of(part.true for part in parts), all_of(part.false for part in parts))


def all_of(columns: Iterable[Column]) -> Column:
    """Return a column that is true where all of some boolean columns are; true for no columns."""
    found = list(columns)
    return balanced(and_, found) if found else F.lit(True)


def any_of(columns: Iterable[Column]) -> Column:
    """Return a column that is true where any of some boolean columns is; false for no columns."""
    found = list(columns)
    return balanced(or_, found) if found else F.lit(False)


def balanced(join: Callable[[Column, Column], Column], columns: Sequence[Column]) -> Column:
    """Join columns by halves. Of hundreds, each within the next, Spark could not plan the expression."""
    if len(columns) == 1:
        return columns[0]
    half = len(columns) // 2
    return join(balanced(join, columns[:half]), balanced(join, columns[half:]))


def choice(key: Column, cases: Mapping[int, Column], otherwise: Column) -> Column:
    """Return the column of the case whose number a key has. Cases stand side by side, and not each in the next."""
    found: Column | None = None
    for number, column in cases.items():
        chosen = key == F.lit(number)
        found = F.when(chosen, column) if found is None else found.when(chosen, column)
    return otherwise if found is None else found.otherwise(otherwise)


def _in(tested: Value, items: tuple[Term, ...], sources: Mapping[str, ColumnSource]) -> TruthColumns:
    plain = [item for item in items if isinstance(item, Literal) and item.kind is tested.kind]
    if len(plain) == len(items) and tested.kind is not None:
        return _known(tested.column.isin(*(literal(item.value, tested.kind) for item in plain)))
    return _or(*(_compare(ComparisonOperator.EQ, tested, _value(item, sources)) for item in items))


_COMPARE: Final[Mapping[ComparisonOperator, Callable[[Column, Column], Column]]] = {
    ComparisonOperator.EQ: lambda a, b: a == b,
    ComparisonOperator.NE: lambda a, b: a != b,
    ComparisonOperator.LT: lambda a, b: a < b,
    ComparisonOperator.LE: lambda a, b: a <= b,
    ComparisonOperator.GT: lambda a, b: a > b,
    ComparisonOperator.GE: lambda a, b: a >= b,
}


def compare_columns(operator: ComparisonOperator, left: Column, right: Column) -> Column:
    """Compare two columns of one kind, as Spark does."""
    return _COMPARE[operator](left, right)


def _compare(operator: ComparisonOperator, left: Value, right: Value) -> TruthColumns:
    if left.kind is None or right.kind is None:
        return TruthColumns(F.lit(False), F.lit(False))
    if left.kind is right.kind and left.plain is not None and right.plain is not None:
        return _decided(_COMPARE[operator](left.plain.column, right.plain.column), left, right)
    if left.kind is right.kind:
        return _known(_COMPARE[operator](left.column, right.column))
    # An integer and a float: exact, where a cast of the integer would round.
    if left.kind is Kind.INTEGER:
        return _known(_compare_exactly(operator, left.column, right.column))
    return _known(_compare_exactly(operator.flipped, right.column, left.column))


def _compare_exactly(operator: ComparisonOperator, integer: Column, number: Column) -> Column:
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


def _value(node: Term, sources: Mapping[str, ColumnSource]) -> Value:
    match node:
        case AttributeReference(name):
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
            return Value(constant, kind, F.lit(False), PlainColumn(constant))
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
    sound = all_of(part.null | part.column.isNotNull() for part in parts)
    return sound & any_of(part.null for part in parts)


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


# ----------------------------------------------------------------------------------------------------------------------
# The schema of events.

_TYPES: Final[dict[Kind, DataType]] = {
    Kind.STRING: StringType(),
    Kind.INTEGER: LongType(),
    Kind.FLOAT: DoubleType(),
    Kind.BOOLEAN: BooleanType(),
    Kind.TIMESTAMP: TimestampType(),
}


def spark_type(kind: Kind) -> DataType:
    """Return the type of a column that holds attributes of a kind."""
    return _TYPES[kind]


def quoted(name: str) -> Column:
    """Return a column by name, whatever characters the name has."""
    return F.col(in_quotes(name))


def in_quotes(name: str) -> str:
    """Return a name as SQL has it, so that nothing in it is taken for more than a name."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def metadata() -> list[Column]:
    """Return the columns that every frame of events has."""
    return [quoted(name) for name in METADATA]


def _metadata_fields() -> list[StructField]:
    return [StructField(ID, StringType()), StructField(TIME, TimestampType()), StructField(SOURCE, StringType())]


def typed_schema(event_type: EventType) -> StructType:
    """Return the schema of a frame of typed events. Raises `MalformedError` (`pipeline.case`)."""
    own = [StructField(a.name, _TYPES[a.spec.kind]) for a in attributes_of([event_type])]
    return StructType([*_metadata_fields(), *own])


def transit_schema(types: Iterable[EventType]) -> StructType:
    """Return the schema of a frame of transit events that some types, or versions of one, can stand in."""
    ids = [StructField(a.id, _TYPES[a.spec.kind]) for a in attributes_of(types)]
    return StructType([*_metadata_fields(), *ids])


def to_transit(events: DataFrame, event_type: EventType, types: Iterable[EventType] | None = None) -> DataFrame:
    """Turn typed events into transit events.

    With `types` the result has a column for every attribute of those, null if this version lacks it, so that frames
    of several versions can be joined with `unionByName`.
    """
    own = event_type.by_id
    wanted = attributes_of([event_type] if types is None else types)
    columns = [(quoted(own[a.id].name) if a.id in own else literal(None, a.spec.kind)).alias(str(a.id)) for a in wanted]
    return events.select(*metadata(), *columns)


def transit_sources(types: Iterable[EventType]) -> dict[str, ColumnSource]:
    """Return where the attributes of some types stand in a frame of transit events."""
    return {str(a.id): ColumnSource(quoted(a.id), a.spec.kind) for a in attributes_of(types)}


# ----------------------------------------------------------------------------------------------------------------------
# Events as CloudEvents in JSON, as ingest reads them.


JSON_FORM: Final = {"timeZone": "UTC", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


def shown_source(event_type: EventType) -> Column:
    """Return the source of events; the type's owner if the reader may not see it, because an envelope needs one."""
    return F.coalesce(quoted(SOURCE), F.lit(str(event_type.name.owner)))


def envelope(event_type: EventType, column: Callable[[Attribute], str] = lambda attribute: attribute.name) -> Column:
    """Return events of one version as CloudEvents; `column` says in which column an attribute is.

    Null attributes are absent. JSON has no number for NaN and the infinities: they go out as texts, which an ingest
    then refuses.
    """
    whole = F.struct(
        F.lit("1.0").alias("specversion"),
        quoted(ID).alias("id"),
        shown_source(event_type).alias("source"),
        F.lit(str(event_type.name)).alias("type"),
        quoted(TIME).alias("time"),
        _data(event_type, column).alias("data"),
    )
    return F.to_json(whole, JSON_FORM)


def envelope_data(event_type: EventType, column: Callable[[Attribute], str]) -> Column:
    """Return the `data` of events of one version, as `envelope` does."""
    return F.to_json(_data(event_type, column), JSON_FORM)


def _data(event_type: EventType, column: Callable[[Attribute], str]) -> Column:
    return F.struct(*(quoted(column(attribute)).alias(attribute.name) for attribute in event_type.attributes))

"""Rows of CSV and Parquet files as typed events, by a mapping."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import MalformedError
from penstock.model.values import AttributeSpec, Kind
from penstock.pipeline.columns import literal
from penstock.pipeline.convert import Converted, Problem, constant, from_column, from_text, given
from penstock.pipeline.frames import quoted
from penstock.pipeline.mapping import BoundMapping, FromColumn, Origin, TableFormat
from penstock.pipeline.records import COLUMNS, FIELDS, FILE, ORIGINAL, PLACE, ROW, csv_problems, is_empty
from penstock.pipeline.tagging import Checked, Version

_TEXT: Final = AttributeSpec(Kind.STRING)
_MOMENT: Final = AttributeSpec(Kind.TIMESTAMP)
_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)
_REAL: Final = (FloatType, DoubleType, DecimalType)


@dataclass(frozen=True, slots=True)
class _Cell:
    """A column that a mapping reads: where it stands, and of which type."""

    column: Column
    type: DataType


@dataclass(frozen=True, slots=True)
class _Table:
    """Records whose columns were found, and what is wrong with them as rows of a table."""

    frame: DataFrame
    cells: Mapping[str, _Cell]
    problems: Sequence[Problem]


def check_table(records: DataFrame, bound: BoundMapping, lacking: Sequence[str] = ()) -> Checked:
    """Check records against a mapping; `lacking` are Parquet files that lack one of its columns.

    Raises `MalformedError` (`mapping.column`) for a Parquet column that is absent, or of a type that cannot be an
    attribute of its kind.
    """
    mapping = bound.mapping
    table = _csv(records, bound) if mapping.format is TableFormat.CSV else _parquet(records, bound, lacking)
    values = {
        name: _converted(f"attribute `{name}`", bound.event_type.by_name[name].spec, origin, table.cells)
        for name, origin in mapping.attributes.items()
    }
    return Checked(
        table.frame,
        type=F.lit(str(bound.event_type.name)),
        id=_converted("the id", _TEXT, mapping.id, table.cells).value,
        time=_converted("the time", _MOMENT, mapping.time, table.cells),
        source=_converted("the source", _TEXT, mapping.source, table.cells).value,
        problems=table.problems,
        versions=[Version(bound.event_type, values)],
    )


def _csv(records: DataFrame, bound: BoundMapping) -> _Table:
    columns, fields = quoted(COLUMNS), quoted(FIELDS)
    declared = bound.mapping.csv.columns
    cells = {name: _Cell(quoted(f"@{number}"), StringType()) for number, name in enumerate(bound.columns)}
    texts = [F.get(fields, _index(name, declared)).alias(f"@{number}") for number, name in enumerate(bound.columns)]
    if declared is None:
        right = reduce(lambda one, other: one & other, (_once(name) for name in bound.columns))
    else:
        right = F.lit(set(bound.columns) <= set(declared)) & (columns == F.array(*map(F.lit, declared)))
    no_text, *others = csv_problems()
    problems = [
        no_text,
        Problem(is_empty(quoted(ORIGINAL)), "ingest.empty", "an empty line"),
        Problem(~F.coalesce(right, F.lit(False)), "ingest.header", "the header is not the one that the mapping needs"),
        *others,
    ]
    return _Table(records.select(*map(quoted, PLACE), columns, fields, *texts), cells, problems)


def _once(name: str) -> Column:
    return F.size(F.filter(quoted(COLUMNS), lambda column: column == F.lit(name))) == 1


def _index(name: str, declared: tuple[str, ...] | None) -> Column:
    if declared is not None:
        return F.lit(declared.index(name) if name in declared else -1)
    return (F.array_position(quoted(COLUMNS), F.lit(name)) - F.lit(1)).cast("int")


def _parquet(records: DataFrame, bound: BoundMapping, lacking: Sequence[str]) -> _Table:
    row = records.schema[ROW].dataType
    there = {f.name: f.dataType for f in row.fields} if isinstance(row, StructType) else {}
    cells: dict[str, _Cell] = {}
    for name in bound.columns:
        if name not in there:
            raise MalformedError(
                "mapping.column",
                f"there is no column `{name[:80]}`",
                hint=f"there are: {', '.join(sorted(there))[:400]}",
                column=name[:80],
            )
        cells[name] = _Cell(quoted(ROW).getField(name), there[name])
    texts = [cell.column for cell in cells.values() if isinstance(cell.type, StringType)]
    problems = [Problem(~F.is_valid_utf8(text), "ingest.utf8", "not UTF-8") for text in texts]
    if lacking:
        header = Problem(quoted(FILE).isin(*lacking), "ingest.header", "the file lacks a column that the mapping needs")
        problems.insert(0, header)
    return _Table(records, cells, problems)


def _converted(what: str, spec: AttributeSpec, origin: Origin, cells: Mapping[str, _Cell]) -> Converted:
    if not isinstance(origin, FromColumn):
        return constant(literal(origin.value, spec.kind))
    cell = cells[origin.column]
    column, reading, found, kind = cell.column, origin.reading, cell.type, spec.kind
    if isinstance(found, StringType):
        return from_text(what, spec, given(column, reading), reading)
    value: Column | None = None
    if kind is Kind.BOOLEAN and isinstance(found, BooleanType):
        value = column
    elif kind is Kind.INTEGER and isinstance(found, _WHOLE):
        value = column.cast("bigint")
    elif kind is Kind.FLOAT and isinstance(found, (*_WHOLE, *_REAL)):
        value = column.cast("double")
    elif kind is Kind.TIMESTAMP and isinstance(found, TimestampType):
        value = column
    elif kind is Kind.TIMESTAMP and isinstance(found, TimestampNTZType) and reading.zone is not None:
        # With its zone: a cast alone would take the session's.
        value = F.concat(column.cast("string"), F.lit(f" {reading.zone}")).try_cast("timestamp")
    if value is not None:
        return from_column(what, spec, column, value)
    raise MalformedError(
        "mapping.column",
        f"{what} is a {kind}, and column `{origin.column[:80]}` holds {found.simpleString()[:80]}",
        hint="give its `zone`" if isinstance(found, TimestampNTZType) else "convert it before it is read",
        column=origin.column[:80],
    )

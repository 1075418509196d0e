"""Run a reader's view on data, and compare it with what `penstock.guard.Delivery` shows of the same rows."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.csv as pa_csv  # type: ignore[import-untyped]  # it ships no types
import pyarrow.json as pa_json  # type: ignore[import-untyped]  # it ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it ships no types

from penstock.errors import FailedError, MalformedError
from penstock.guard import Delivery, Rules, environment
from penstock.model.events import TransitEvent
from penstock.model.values import Kind, Scalar
from penstock.pipeline.enforce.policy import PipelinePolicy, Program
from penstock.pipeline.event_columns import ID, SOURCE, TIME, micros
from penstock.pipeline.sql.statements import CHECKED as CHECKED
from penstock.pipeline.sql.statements import TableColumns

ARROW_TYPES: Final[Mapping[Kind, pa.DataType]] = {
    Kind.STRING: pa.string(),
    Kind.INTEGER: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.TIMESTAMP: pa.timestamp("us", "UTC"),
}
"""The types of columns that hold attributes."""

ViewRow: TypeAlias = tuple[Scalar, ...]
Run: TypeAlias = Callable[[str, pa.Table], list[ViewRow]]
"""Runs a query on a table that is called `CHECKED`, and returns its rows."""


@dataclass(frozen=True, slots=True)
class ViewComparison:
    """The numbers of rows in the view and by delivery, and the ids of events that only one of them has, or has so."""

    rows: int
    delivered: int
    only_view: tuple[str, ...]
    only_delivery: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether both have the same rows."""
        return not self.only_view and not self.only_delivery


def table_schema(program: Program, table: TableColumns) -> pa.Schema:
    """Return the types that the columns of a table must have."""
    kinds = {ID: Kind.STRING, TIME: Kind.TIMESTAMP, SOURCE: Kind.STRING}
    kinds |= {a.name: a.spec.kind for a in program.event_type.attributes}
    return pa.schema([(column, ARROW_TYPES[kinds[what]]) for what, column in table.columns.items()])


def read_data(file: str, schema: pa.Schema) -> pa.Table:
    """Read rows from a Parquet file, a CSV file with a header, or JSON lines.

    Raises `MalformedError` (`sql.data`) for a file that is not a table with these columns, and `OSError`.
    """
    try:
        with Path(file).open("rb") as data:
            if file.endswith(".csv"):
                options = pa_csv.ConvertOptions(column_types=schema, strings_can_be_null=True)
                found = pa_csv.read_csv(data, convert_options=options)
            elif file.endswith((".json", ".jsonl")):
                found = pa_json.read_json(data, parse_options=pa_json.ParseOptions(explicit_schema=schema))
            else:
                found = pq.read_table(data, coerce_int96_timestamp_unit="us")
        return found.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, KeyError) as error:
        words = str(error).splitlines()[0][:200]
        raise MalformedError("sql.data", f"`{file}` is not such a table: {words}", hint="see --column") from error


def delivered_rows(program: Program, policy: PipelinePolicy, table: TableColumns, data: pa.Table) -> list[ViewRow]:
    """Return what delivery shows of each row that is an event, as the view would have it."""
    event_type = program.event_type
    deliver = Delivery(program.restriction, event_type, program.selector, Rules(environment=policy.environment))
    kept = [table.columns[name] for name in program.metadata if name in table.columns]
    domains = {str(a.id): a.spec.domain for a in event_type.attributes if a.spec.domain is not None}
    found: list[ViewRow] = []
    for row in data.to_pylist():
        values = {str(a.id): row[table.columns[a.name]] for a in event_type.attributes if a.name in table.columns}
        time = row.get(table.columns.get(TIME, ""))
        there = {name: value for name, value in values.items() if value is not None}
        if not all(domains[name].contains(value) for name, value in there.items() if name in domains):
            continue
        event = TransitEvent(event_type.key, event_type.ancestors, there, str(row.get(table.columns.get(ID, ""))), time)
        seen = deliver(event, {} if time is None else environment(time, facts=policy.facts, zone=policy.zone))
        if seen is not None:
            found.append((*(row[column] for column in kept), *(seen.values[a.name] for a in event_type.attributes)))
    return found


def compared(view: Sequence[ViewRow], delivery: Sequence[ViewRow]) -> ViewComparison:
    """Compare the rows of a view with those of delivery, in any order."""
    first, second = (Counter(tuple(map(_plain, row)) for row in rows) for rows in (view, delivery))

    def ids(rows: Counter[tuple[object, ...]]) -> tuple[str, ...]:
        return tuple(str(row[0]) for row in rows.elements())

    return ViewComparison(len(view), len(delivery), ids(first - second), ids(second - first))


def _plain(value: object) -> object:
    """Return a value in a form that equals itself, and is of one type."""
    if isinstance(value, datetime):
        return "timestamp", micros(value.astimezone(UTC))
    return type(value).__name__, repr(value) if isinstance(value, float) else value


# ----------------------------------------------------------------------------------------------------------------------
# Engines.


def run_on_duckdb(query: str, data: pa.Table) -> list[ViewRow]:
    """Run a query in this process. Raises `FailedError` (`sql.engine`)."""
    duckdb = _needed("duckdb", "duckdb")
    with duckdb.connect() as connection:
        connection.register(CHECKED, data)
        return _rows(connection.sql(query).to_arrow_table())


def run_on_spark(query: str, data: pa.Table) -> list[ViewRow]:
    """Run a query on this process's Spark session, or on one of this machine. Raises `FailedError` (`sql.engine`)."""
    sql = _needed("pyspark.sql", "spark")
    session = sql.SparkSession.getActiveSession()
    spark = session or sql.SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        spark.createDataFrame(data).createOrReplaceTempView(CHECKED)
        return _rows(spark.sql(query).toArrow())
    finally:
        spark.catalog.dropTempView(CHECKED)
        if session is None:
            spark.stop()


def run_on_postgres(url: str) -> Run:
    """Return what runs a query on a PostgreSQL server, in a temporary table. Raises `FailedError` (`sql.engine`)."""
    psycopg = _needed("psycopg", "postgres")

    def run(query: str, data: pa.Table) -> list[ViewRow]:
        types = ", ".join(f'"{field.name}" {_POSTGRES[str(field.type)]}' for field in data.schema)
        marks = ", ".join(["%s"] * data.num_columns)
        with psycopg.connect(url) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TEMP TABLE {CHECKED} ({types}) ON COMMIT DROP")
            rows = [tuple(row.values()) for row in data.to_pylist()]
            cursor.executemany(f"INSERT INTO {CHECKED} VALUES ({marks})", rows)  # noqa: S608  # names of our own
            return [tuple(row) for row in cursor.execute(query).fetchall()]

    return run


_POSTGRES: Final = {
    "string": "text",
    "int64": "bigint",
    "double": "double precision",
    "bool": "boolean",
    "timestamp[us, tz=UTC]": "timestamptz",
}


def _rows(found: pa.Table) -> list[ViewRow]:
    columns = [found.column(number).to_pylist() for number in range(found.num_columns)]
    return list(zip(*columns, strict=True)) if columns else []


def _needed(module: str, extra: str) -> Any:
    from importlib import import_module  # noqa: PLC0415  # engines are extras

    try:
        return import_module(module)
    except ImportError as error:
        hint = f"pip install 'penstock[{extra}]'"
        raise FailedError("sql.engine", f"`{module}` is not installed", hint=hint) from error

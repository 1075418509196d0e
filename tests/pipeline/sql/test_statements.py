"""A view in SQL shows what `Delivery` shows, row by row and value by value, on real engines."""

import math
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from zoneinfo import ZoneInfo

import psycopg
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pytest
import sqlglot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.budget import examples
from tests.guard.strategies import NOON, events, families, restrictions, selectors

from penstock.errors import MalformedError, RefusedError
from penstock.guard import Branch, Restriction, When
from penstock.model import AttributeDefinition, AttributeSpec, EventType, Kind, Principal, TypeDefinition, TypeName
from penstock.model.values import Enumerated, Ranged, Scalar
from penstock.pipeline.enforce.policy import PipelinePolicy, Program
from penstock.pipeline.event_columns import ID, SOURCE, TIME
from penstock.pipeline.sql.comparison import (
    CHECKED,
    Run,
    compared,
    delivered_rows,
    run_on_duckdb,
    run_on_postgres,
    run_on_spark,
    table_schema,
)
from penstock.pipeline.sql.conditions import SqlDialect
from penstock.pipeline.sql.statements import (
    ReaderSql,
    Signature,
    TableColumns,
    canonical,
    drift,
    filter_statement,
    view_statement,
)
from penstock.selector import ALWAYS, Selector, parse
from penstock.testing.postgres import PostgresServer
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.validity import Validity

TIMES = [
    NOON,
    NOON + timedelta(hours=7),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    datetime(1, 1, 2, 23, 59, 59, 999_999, UTC),
    datetime(9999, 12, 30, 23, 59, 59, 999_999, UTC),
]
READING = EventType.of(
    TypeDefinition(
        TypeName(Principal(bytes(32)), "org.plant.Reading"),
        (
            AttributeDefinition("text", "0", AttributeSpec(Kind.STRING)),
            AttributeDefinition("count", "1", AttributeSpec(Kind.INTEGER)),
            AttributeDefinition("value", "2", AttributeSpec(Kind.FLOAT)),
            AttributeDefinition("on", "3", AttributeSpec(Kind.BOOLEAN)),
            AttributeDefinition("seen", "4", AttributeSpec(Kind.TIMESTAMP)),
        ),
    )
)
IDS = {a.name: str(a.id) for a in READING.attributes}


def policy(**other: object) -> PipelinePolicy:
    """Return a policy that gives no right: restrictions come from elsewhere."""
    return replace(PipelinePolicy(Credentials()), **other)  # type: ignore[arg-type]  # fields of it


def check(run: Run, dialect: SqlDialect, program: Program, by: PipelinePolicy, rows: list[dict[str, Scalar]]) -> None:
    table = TableColumns.of(program, CHECKED)
    data = pa.Table.from_pylist(rows, schema=table_schema(program, table))
    query = ReaderSql.of(program, by, table, dialect).query().sql(dialect.written)
    found = compared(run(query, data), delivered_rows(program, by, table, data))
    assert found.same, (query, found)


def row(number: int, time: datetime, values: dict[str, Scalar]) -> dict[str, Scalar]:
    return {ID: str(number), TIME: time, SOURCE: "x", **values}


def program_of(restriction: Restriction, reader: EventType, selector: Selector = ALWAYS) -> Program:
    return Program(0, restriction.for_type(reader, Right.SUBSCRIBE), reader, selector, ("reader",))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Program, list[dict[str, Scalar]]]:
    family = draw(families())
    reader = draw(st.sampled_from(family.types))
    found = draw(restrictions(family, Right.SUBSCRIBE))
    plain = Restriction(tuple(replace(branch, guards=frozenset()) for branch in found.branches))
    program = program_of(plain, reader, draw(st.just(ALWAYS) | selectors(reader.schema)))
    sent = [
        row(number, draw(st.sampled_from(TIMES)), dict(draw(events(reader)).values))
        for number in range(draw(st.integers(1, 12)))
    ]
    return program, sent


def shown(*names: str) -> frozenset[str]:
    return frozenset(READING.by_name[name].id for name in names)


def branch(where: str = "TRUE", *names: str, **other: object) -> Branch:
    attributes = shown(*names) if names else None
    return Branch(action=Right.SUBSCRIBE, attributes=attributes, where=parse(where).rename(IDS), **other)  # type: ignore[arg-type]  # fields of it


MASKED = program_of(
    Restriction((branch("count > 1", "text", "value"), branch("text = 'it''s'"))),
    READING,
    parse("NOT on OR value <> 1"),
)
"""A program with everything: attributes that some branches show, and a filter of the reader's own."""
DATES = Validity(b"2026-05-01_12:00:00", b"2026-05-01_12:00:00")
TIMED = [
    When(condition=parse("hour BETWEEN 13 AND 20 OR minute = 58 OR weekday = 5 AND region = 'it''s'")),
    When(validity=DATES),
]
ROWS = [
    row(n, TIMES[n % len(TIMES)], {"text": text, "count": n, "value": float(n % 3), "on": on, "seen": NOON})
    for n, (text, on) in enumerate(
        [("a", True), ("it's", False), ("it's", None), ("A", True), ("b", False), (None, None)]
    )
]


NARROW = EventType.of(
    TypeDefinition(
        TypeName(Principal(bytes(32)), "org.plant.Narrow"),
        (
            AttributeDefinition("place", "0", AttributeSpec(Kind.STRING, Enumerated(frozenset({"North", "it's"})))),
            AttributeDefinition("value", "1", AttributeSpec(Kind.FLOAT, Ranged(-1.0, 2.5))),
        ),
    )
)
OUTSIDE = [
    row(n, NOON, {"place": place, "value": value})
    for n, (place, value) in enumerate(product(("North", "it's", "north", None), (-1.0, 2.5, 2.6, math.nan, None)))
]
"""Rows of which a part has a value that its attribute cannot have."""


def check_all(run: Run, dialect: SqlDialect) -> None:
    """Check a view with masks and a filter, rights that depend on the time in several zones, and rows of no event."""
    check(run, dialect, MASKED, policy(), ROWS)
    check(run, dialect, program_of(Restriction((Branch(action=Right.SUBSCRIBE),)), NARROW), policy(), OUTSIDE)
    for when in TIMED:
        program = program_of(Restriction((branch(when=when),)), READING)
        for zone in (UTC, ZoneInfo("Europe/London"), ZoneInfo("Asia/Kathmandu")):
            check(run, dialect, program, policy(zone=zone, facts={"region": "it's"}), ROWS)


@settings(deadline=None, max_examples=examples(20), suppress_health_check=list(HealthCheck))
@given(cases())
def test_views_show_what_delivery_shows(case: tuple[Program, list[dict[str, Scalar]]]) -> None:
    check(run_on_duckdb, SqlDialect.DUCKDB, case[0], policy(), case[1])


def test_duckdb() -> None:
    check_all(run_on_duckdb, SqlDialect.DUCKDB)


def test_spark(spark: SparkSession) -> None:
    assert spark is not None
    check(run_on_spark, SqlDialect.SPARK, MASKED, policy(), ROWS)
    timed = program_of(Restriction((branch(when=TIMED[0]),)), READING)
    check(run_on_spark, SqlDialect.SPARK, timed, policy(zone=ZoneInfo("Asia/Kathmandu"), facts={"region": ""}), ROWS)


@pytest.mark.long
@settings(deadline=None, max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(cases())
def test_spark_at_random(spark: SparkSession, case: tuple[Program, list[dict[str, Scalar]]]) -> None:
    assert spark is not None
    check(run_on_spark, SqlDialect.SPARK, case[0], policy(), case[1])


def test_postgres(postgres: PostgresServer) -> None:
    check_all(run_on_postgres(postgres.url(postgres.new_database())), SqlDialect.POSTGRES)


def test_rows_that_are_not_events_are_left_out() -> None:
    """What the oracle of the others leaves out."""
    program = program_of(Restriction((Branch(action=Right.SUBSCRIBE),)), NARROW)
    table = TableColumns.of(program, CHECKED)
    data = pa.Table.from_pylist(OUTSIDE, schema=table_schema(program, table))
    expected = {n for n, one in enumerate(OUTSIDE) if one["place"] != "north" and one["value"] in (-1.0, 2.5, None)}
    assert {int(str(found[0])) for found in delivered_rows(program, policy(), table, data)} == expected


def test_postgres_leaves_out_what_is_not_an_instant_and_hides_other_columns(postgres: PostgresServer) -> None:
    timed = program_of(Restriction((branch(when=TIMED[0]),)), READING)
    by = policy(zone=ZoneInfo("Asia/Kathmandu"), facts={"region": "it's"})
    reader = ReaderSql.of(timed, by, TableColumns.of(timed, "readings"), SqlDialect.POSTGRES)
    columns = '"@id" text, "@time" timestamptz, "@source" text, text text, count bigint, value double precision'
    with psycopg.connect(postgres.url(postgres.new_database())) as connection:
        connection.execute(f'CREATE TABLE readings ({columns}, "on" boolean, seen timestamptz, secret text)')
        for number, (time, seen) in enumerate(product(("2026-05-01 12:00+00", "infinity"), (None, NOON, "-infinity"))):
            insert = "INSERT INTO readings VALUES (%s, %s, 'x', 'a', 1, 1.0, TRUE, %s, 'x')"
            connection.execute(insert, (str(number), time, seen))
        found = connection.execute(reader.query().sql("postgres")).fetchall()
        assert [one[0] for one in found] == ["0", "1"]
        connection.execute("CREATE ROLE somebody; GRANT SELECT ON readings TO PUBLIC, somebody")
        connection.execute(filter_statement(reader, "for_somebody", Signature("somebody", "1")))
        connection.execute("SET ROLE somebody")
        assert connection.execute('SELECT "@id" FROM readings').fetchall() == [("0",), ("1",)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT secret FROM readings")


@pytest.mark.long
def test_postgres_at_random(postgres: PostgresServer) -> None:
    run = run_on_postgres(postgres.url(postgres.new_database()))

    @settings(deadline=None, max_examples=examples(100), suppress_health_check=list(HealthCheck))
    @given(cases())
    def at_random(case: tuple[Program, list[dict[str, Scalar]]]) -> None:
        # Some conditions compute with floats.
        with suppress(RefusedError):
            check(run, SqlDialect.POSTGRES, case[0], policy(), case[1])

    at_random()


SIGNED = Signature("it's me\n", "policy:abc")


def statement(dialect: SqlDialect, program: Program = MASKED, *, filters: bool = False, revision: str = "") -> str:
    made = ReaderSql.of(program, policy(), TableColumns.of(program, "plant.readings"), dialect)
    signature = replace(SIGNED, revision=revision) if revision else SIGNED
    if filters:
        return filter_statement(made, "for_reader", signature, only_these=True)
    return view_statement(made, "for_reader", signature)


@pytest.mark.parametrize("dialect", SqlDialect)
def test_statements_say_the_revision_and_whether_they_are_still_right(dialect: SqlDialect) -> None:
    first = statement(dialect)
    assert first.startswith("-- penstock policy sql: reader it%27s me%0A, policy revision policy:abc\n")
    # Written by another hand, and by a later revision that gives the same.
    other = first.replace("\n  ", "\n      ").replace("SELECT", "select")
    found = drift(other, statement(dialect, revision="policy:def"), dialect)
    assert (found.same, found.revision, found.expected, found.outdated) == (True, "policy:abc", "policy:def", True)
    wider = replace(MASKED, selector=ALWAYS)
    assert not drift(first, statement(dialect, wider), dialect).same
    assert not drift("", first, dialect).same
    with pytest.raises(MalformedError) as problem:
        drift("SELECT (", first, dialect)
    assert problem.value.code == "sql.syntax"


def test_databricks_has_row_filters_and_masks() -> None:
    """The text is only parsed: there is no Databricks here."""
    written = statement(SqlDialect.DATABRICKS, filters=True)
    functions = [one for one in sqlglot.parse(written, read="databricks") if isinstance(one, sqlglot.exp.Create)]
    assert [one.this.this.sql() for one in functions] == [
        "for_reader_rows",
        *(f"for_reader_mask_{n}" for n in ("count", "on", "seen")),
    ]
    assert "SET ROW FILTER for_reader_rows ON (`@time`, `text`, `count`, `value`, `on`, `seen`)" in written
    assert "ALTER COLUMN `on` SET MASK for_reader_mask_on USING COLUMNS (`text`)" in written
    assert drift(written, written, SqlDialect.DATABRICKS).same


def test_databricks_cannot_hide_columns_that_are_not_named() -> None:
    made = ReaderSql.of(MASKED, policy(), TableColumns.of(MASKED, "plant.readings"), SqlDialect.DATABRICKS)
    with pytest.raises(RefusedError) as problem:
        filter_statement(made, "for_reader", SIGNED)
    assert problem.value.code == "sql.inexpressible"


def test_postgres_has_policies_for_whole_rows() -> None:
    rows = program_of(Restriction((branch("count > 1"), branch("on"))), READING, parse("value > 2"))
    written = statement(SqlDialect.POSTGRES, rows, filters=True)
    assert "CREATE POLICY for_reader ON plant.readings FOR SELECT TO" in written
    assert drift(written, written, SqlDialect.POSTGRES).same


@pytest.mark.parametrize("dialect", [SqlDialect.SPARK, SqlDialect.DUCKDB, SqlDialect.POSTGRES])
def test_what_a_dialect_cannot_express_is_refused(dialect: SqlDialect) -> None:
    with pytest.raises(RefusedError) as problem:
        statement(dialect, filters=True)
    assert problem.value.code == "sql.inexpressible"


def test_guards_and_times_that_a_table_does_not_have_are_refused() -> None:
    guarded = program_of(Restriction((branch(guards=frozenset({"on-duty"})),)), READING)
    timed = program_of(Restriction((branch(when=When(validity=DATES)),)), READING)
    for program, code in ((guarded, "sql.guard"), (timed, "sql.time")):
        table = TableColumns.of(program, other={TIME: ""})
        with pytest.raises(RefusedError) as problem:
            ReaderSql.of(program, policy(), table, SqlDialect.DUCKDB)
        assert problem.value.code == code
    with pytest.raises(MalformedError) as unknown:
        TableColumns.of(MASKED, other={"tetx": "a"})
    assert unknown.value.code == "sql.column"


def test_other_columns_and_columns_that_are_missing() -> None:
    table = TableColumns.of(MASKED, CHECKED, {"text": "Label of it", "value": "", SOURCE: ""})
    data = pa.Table.from_pylist(
        [{**one, "Label of it": one["text"]} for one in ROWS], schema=table_schema(MASKED, table)
    )
    query = ReaderSql.of(MASKED, policy(), table, SqlDialect.DUCKDB).query().sql("duckdb")
    found = run_on_duckdb(query, data)
    assert compared(found, delivered_rows(MASKED, policy(), table, data)).same
    assert found
    assert canonical(query, SqlDialect.DUCKDB)


def test_a_column_of_the_table_does_not_decide_in_the_place_of_a_condition() -> None:
    table = TableColumns.of(MASKED, CHECKED)
    schema = table_schema(MASKED, table)
    data = pa.Table.from_pylist([row(1, NOON, {"text": "none", "on": False})], schema=schema)
    for number in range(2):
        data = data.append_column(f"@holds{number}", pa.array([True]))
    query = ReaderSql.of(MASKED, policy(), table, SqlDialect.DUCKDB).query().sql("duckdb")
    found = run_on_duckdb(query, data)
    assert compared(found, delivered_rows(MASKED, policy(), table, data.select(schema.names))).same
    given = replace(table, columns={**table.columns, "text": "@holds0"})
    assert '"@@holds0"' in ReaderSql.of(MASKED, policy(), given, SqlDialect.DUCKDB).query().sql("duckdb")


def test_masks_do_not_replace_the_row_filter_or_each_other() -> None:
    attributes = tuple(AttributeDefinition(n, str(k), AttributeSpec(Kind.STRING)) for k, n in enumerate(("rows", "b")))
    reading = EventType.of(TypeDefinition(TypeName(Principal(bytes(32)), "org.plant.Reading"), attributes))
    program = program_of(Restriction((Branch(action=Right.SUBSCRIBE, attributes=frozenset()),)), reading)
    written = statement(SqlDialect.DATABRICKS, program, filters=True)
    assert written.count("FUNCTION for_reader_rows(") == 1
    table = TableColumns.of(program, "readings", {"b": "ROWS"})
    reader = ReaderSql.of(program, policy(), table, SqlDialect.DATABRICKS)
    with pytest.raises(RefusedError) as refused:
        filter_statement(reader, "x", Signature("reader", "1"))
    assert refused.value.code == "sql.inexpressible"


@pytest.mark.parametrize("name", ["readings_firm -- x", "readings_firm/* x */", "readings_firm (x)", "readings_firm'"])
@pytest.mark.parametrize("dialect", SqlDialect)
def test_a_name_that_would_be_that_of_another_view_is_refused(dialect: SqlDialect, name: str) -> None:
    made = ReaderSql.of(MASKED, policy(), TableColumns.of(MASKED, "plant.readings"), dialect)
    with pytest.raises(MalformedError) as refused:
        view_statement(made, name, SIGNED)
    assert refused.value.code == "sql.name"


def test_spark_does_not_replace_a_part_of_a_text() -> None:
    secret = program_of(Restriction((branch("text = '${env:HOME}'"),)), READING)
    for dialect in (SqlDialect.SPARK, SqlDialect.DATABRICKS):
        assert "$" not in statement(dialect, secret)


def test_filters_hide_who_published_where_a_right_says_so() -> None:
    program = program_of(Restriction((branch(source=False),)), READING)
    for dialect in SqlDialect:
        assert SOURCE not in statement(dialect, program)
    check(run_on_duckdb, SqlDialect.DUCKDB, program, policy(), ROWS)
    written = statement(SqlDialect.DATABRICKS, program, filters=True)
    assert "ALTER COLUMN `@source` SET MASK for_reader_source" in written
    with pytest.raises(RefusedError) as problem:
        statement(SqlDialect.POSTGRES, program, filters=True)
    assert problem.value.code == "sql.inexpressible"

"""Selectors in SQL mean what `evaluate` says, on real engines, at the values at which engines differ."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pytest
from pyspark.sql import SparkSession
from sqlglot import exp
from tests.guard.strategies import NOON
from tests.pipeline.jobs_plant import interpreted

from penstock.errors import EvaluationError, RefusedError
from penstock.model import AttributeSpec, Kind
from penstock.model.values import INTEGER_MAX, INTEGER_MIN, Scalar
from penstock.pipeline.sql.comparison import (
    ARROW_TYPES,
    CHECKED,
    Run,
    ViewRow,
    run_on_duckdb,
    run_on_postgres,
    run_on_spark,
)
from penstock.pipeline.sql.conditions import SqlCompiler, SqlDialect, SqlSource
from penstock.selector import evaluate, parse
from penstock.testing.postgres import PostgresServer

KINDS = dict(zip(("text", "count", "value", "on", "seen"), Kind, strict=True))
VALUES: dict[str, list[Scalar]] = {
    "text": [
        None,
        "",
        "a",
        "A",
        "b",
        "ab",
        "a%",
        "a_b",
        "a\\b",
        "it's",
        "é",
        "e\u0301",
        "\U0001f697",
        "a\nb",
        "Z",
        "~",
    ],
    "count": [None, 0, 1, -1, 2, 7, -7, INTEGER_MAX, INTEGER_MIN, 2**53, 2**53 + 1],
    "value": [
        None,
        0.0,
        -0.0,
        0.5,
        2.5,
        float(2**53),
        1e308,
        1e-320,
        float("inf"),
        -float("inf"),
        float("nan"),
        2.0**63,
    ],
    "on": [None, True, False],
    "seen": [
        None,
        NOON,
        NOON + timedelta(microseconds=1),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
        datetime.min.replace(tzinfo=UTC),
    ],
}
"""Values at which engines differ."""
FLOATS = ["value * 10 > 0", "value / 0 IS NULL", "value - value = 0 OR value = 0.5", "(value + 1) / value >= 2"]
"""Conditions that compute with floats, which PostgreSQL cannot."""
CONDITIONS = [
    *("text = 'a'", "text <> 'A'", "text < 'b'", "text >= 'a' AND text < 'é'", "text IN ('a', 'it''s')"),
    *("text LIKE 'a%'", "text LIKE '_'", "NOT text LIKE '%b'", "text LIKE 'a!%' ESCAPE '!'", "text LIKE '%\\%'"),
    *("text || 'x' = 'ax'", "text || text IS NULL", "text NOT IN ('a', 'b')", "text = 'a\\b'", "text LIKE 'it''s'"),
    *(
        "count + 1 > 0",
        "NOT count + 1 > 0",
        "count * 2 IS NULL",
        "count - 1 IS NOT NULL",
        "-count > 0",
        "count / 2 = -3",
    ),
    *("count / 0 IS NULL", "count / -1 IS NOT NULL", f"count = {float(2**53)}", "count < 2.5", "NOT count >= 2.5"),
    *("count > value", "count = value", "count <> value", "NOT count <= value", "count BETWEEN value AND 7"),
    *(
        "value = 0",
        "value > 2",
        "NOT value > 2",
        "value IS NULL",
        "value IS NOT NULL",
        "value <> 0.5",
        "value IN (0, 2.5)",
    ),
    *("-value < 0", "on", "NOT on", "on = TRUE OR text IS NULL", "NOT (on AND value > 1)", "on IS NULL OR on <> FALSE"),
    *(
        "seen = TIMESTAMP '2026-05-01 12:00:00'",
        "seen > TIMESTAMP '1970-01-01 00:00:00'",
        "NULL = 1",
        "NOT (NULL = 1)",
    ),
    *(
        "text = 'a' OR count + 1 > 0",
        "NOT (text = 'a' AND count + 1 > 0)",
        "count IN (1, 2, value)",
        "TRUE",
        "NOT FALSE",
    ),
]


def rows() -> list[dict[str, Scalar]]:
    """Return rows in which every value of every attribute stands beside several of the others."""
    size = max(map(len, VALUES.values()))
    return [
        {name: some[(n * step + n // size) % len(some)] for step, (name, some) in enumerate(VALUES.items(), start=1)}
        for n in range(6 * size)
    ]


@cache
def truths(text: str) -> list[bool | None]:
    """Return what a condition is on each row; in error it is neither."""
    found: list[bool | None] = []
    selector = parse(text)
    for row in rows():
        try:
            found.append(evaluate(selector, row))
        except EvaluationError:
            found.append(None)
    return found


def check(run: Run, dialect: SqlDialect, conditions: list[str]) -> None:
    """Ask one query for all conditions where they are TRUE, and where they are FALSE."""
    given = rows()
    data = pa.Table.from_pylist(given, schema=pa.schema([(name, ARROW_TYPES[kind]) for name, kind in KINDS.items()]))
    data = data.add_column(0, "n", [list(range(len(given)))])
    compiler = SqlCompiler(dialect)
    sources = {name: SqlSource(exp.column(name, quoted=True), kind) for name, kind in KINDS.items()}
    asked = [(text, holds) for text in conditions for holds in (True, False)]
    for text in conditions:
        parse(text).check({name: AttributeSpec(kind) for name, kind in KINDS.items()})
    columns = [
        exp.alias_(compiler.condition(parse(text).root, sources, holds=holds), f"c{number}")
        for number, (text, holds) in enumerate(asked)
    ]
    query = exp.select(exp.column("n", quoted=True), *columns).from_(CHECKED).sql(dialect.written)
    found = run(query, data)
    assert len(found) == len(given)
    for number, *answers in found:
        assert isinstance(number, int)
        for (text, holds), answer in zip(asked, answers, strict=True):
            assert (answer is True) is (truths(text)[number] is holds), (text, holds, given[number], answer)


def in_other_sessions(query: str, data: pa.Table) -> list[ViewRow]:
    """Run a query where everything is set that could change its meaning."""
    with duckdb.connect() as connection:
        for setting in ("TimeZone = 'Asia/Tokyo'", "default_collation = 'NOCASE'", "ieee_floating_point_ops = false"):
            connection.execute(f"SET {setting}")
        connection.register(CHECKED, data)
        found = connection.sql(query).to_arrow_table()
        return list(zip(*(found.column(n).to_pylist() for n in range(found.num_columns)), strict=True))


@pytest.mark.parametrize("run", [run_on_duckdb, in_other_sessions])
def test_duckdb(run: Run) -> None:
    check(run, SqlDialect.DUCKDB, [*CONDITIONS, *FLOATS])


@pytest.fixture
def foreign_session(spark: SparkSession) -> Iterator[None]:
    settings = {"spark.sql.session.timeZone": "Asia/Tokyo", "spark.sql.ansi.enabled": "false"}
    before = {name: spark.conf.get(name) or "" for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name, old in before.items():
        spark.conf.set(name, old)


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_spark(spark: SparkSession, part: int) -> None:
    with interpreted(spark):
        check(run_on_spark, SqlDialect.SPARK, [*CONDITIONS, *FLOATS][part::3])


@pytest.mark.usefixtures("foreign_session")
def test_spark_in_a_session_with_other_settings() -> None:
    check(run_on_spark, SqlDialect.SPARK, ["count + 1 > 0", "seen = TIMESTAMP '2026-05-01 12:00:00'", "value / 0 > 1"])


def test_postgres(postgres: PostgresServer) -> None:
    check(run_on_postgres(postgres.url(postgres.new_database())), SqlDialect.POSTGRES, CONDITIONS)


@pytest.mark.parametrize("text", FLOATS)
def test_postgres_does_not_compute_with_floats(text: str) -> None:
    with pytest.raises(RefusedError) as problem:
        check(run_on_duckdb, SqlDialect.POSTGRES, [text])
    assert problem.value.code == "sql.inexpressible"

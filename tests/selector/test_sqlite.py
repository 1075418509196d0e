"""Evaluation against SQLite, on the part of the language on which the two mean the same.

SQLite differs, and the tests keep clear of it there, on: overflow (it turns to floats), division by zero (NULL), NaN
(NULL), timestamps (it has none), booleans other than as conditions (they are numbers), strings with NUL characters,
the order of mixed kinds, and unary minus of a string. LIKE has to regard case. Integers stay small enough, and
floats are sums of halves, so that no operation rounds or overflows.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.selector.strategies import Grammar, conditions

from penstock.errors import EvaluationError
from penstock.model.values import AttributeSpec, Kind, Scalar, Schema
from penstock.selector import evaluate, parse

COMMON_SCHEMA: Schema = {
    "s": AttributeSpec(Kind.STRING),
    "license-plate": AttributeSpec(Kind.STRING),
    "i": AttributeSpec(Kind.INTEGER),
    "j": AttributeSpec(Kind.INTEGER),
    "f": AttributeSpec(Kind.FLOAT),
    "b": AttributeSpec(Kind.BOOLEAN),
}
TEXTS = st.sampled_from(["", "a", "A", "ab", "b%", "_", "é", "\U0001f600", "aab"]) | st.text("ab%_é", max_size=4)
VALUES: dict[Kind, st.SearchStrategy[Scalar]] = {
    Kind.STRING: TEXTS,
    Kind.INTEGER: st.integers(-20, 20),
    Kind.FLOAT: st.integers(-20, 20).map(lambda number: number / 2),
    Kind.BOOLEAN: st.booleans(),
}
COMMON = Grammar(COMMON_SCHEMA, VALUES, kinds=(Kind.STRING, Kind.INTEGER, Kind.FLOAT, Kind.BOOLEAN))
COLUMNS = ", ".join(f'? AS "{name}"' for name in COMMON_SCHEMA)


@pytest.fixture(scope="module")
def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("PRAGMA case_sensitive_like = ON")
        yield connection


def by_sqlite(database: sqlite3.Connection, text: str, row: dict[str, Scalar]) -> bool | None:
    query = f"SELECT ({text}) FROM (SELECT {COLUMNS})"  # noqa: S608  # the text is what is compared
    (found,) = database.execute(query, [row[name] for name in COMMON_SCHEMA]).fetchone()
    return None if found is None else bool(found)


@settings(deadline=None, max_examples=examples(300), suppress_health_check=list(HealthCheck))
@given(
    text=conditions(COMMON),
    row=st.fixed_dictionaries({name: st.none() | VALUES[spec.kind] for name, spec in COMMON_SCHEMA.items()}),
)
def test_agrees_with_sqlite(database: sqlite3.Connection, text: str, row: dict[str, Scalar]) -> None:
    selector = parse(text)
    try:
        ours = evaluate(selector, row)
    except EvaluationError as error:
        # Division by zero is the one error left in the common part.
        assert error.code == "selector.division"  # noqa: PT017  # the code decides, not the kind of error
        return
    if "/ " in text and may_divide_by_zero(text, row):
        return
    assert by_sqlite(database, text, row) is ours
    # What we write back means the same to SQLite too.
    assert by_sqlite(database, selector.text, row) is ours


def may_divide_by_zero(text: str, row: dict[str, Scalar]) -> bool:
    """Say whether a zero may be divided by: an error that another operand decided over is NULL in SQLite."""
    return "0" in text or any(value == 0 for value in row.values()) or " - " in text or " + " in text


@pytest.mark.parametrize(
    "text",
    [
        "i / 4 = 1",
        "-i / 4 = -1",
        "f * 2 = 7.0",
        "s LIKE 'A!_%' ESCAPE '!'",
        "s LIKE 'a%'",
        "i NOT IN (1, NULL)",
        "NOT b",
    ],
)
def test_examples(database: sqlite3.Connection, text: str) -> None:
    row: dict[str, Scalar] = {"s": "A_x", "license-plate": None, "i": 7, "j": 0, "f": 3.5, "b": False}
    assert by_sqlite(database, text, row) is evaluate(parse(text), row)

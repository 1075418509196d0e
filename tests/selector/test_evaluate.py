"""The meaning of each construct: nulls, errors, numbers, strings, booleans and timestamps."""

from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum, StrEnum
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from penstock.errors import EvaluationError, MalformedError
from penstock.model.values import AttributeSpec, Schema, check_value, kind_of
from penstock.selector import compile_selector, evaluate, parse

NAN, INF = float("nan"), float("inf")
MAX, MIN = 2**63 - 1, -(2**63)
NAIVE = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)
BERLIN = ZoneInfo("Europe/Berlin")


class Level(IntEnum):
    LOW = 1


class Colour(StrEnum):
    RED = "red"


TRUTH: list[tuple[str, dict[str, Any], bool | None]] = [
    # comparisons
    ("a = 1", {"a": 1}, True),
    ("a = 1", {"a": 2}, False),
    ("a = 1", {"a": None}, None),
    ("a = 1", {}, None),
    ("a <> 1", {"a": 2}, True),
    ("a < 'b'", {"a": "a"}, True),
    ("a < 'a'", {"a": "Z"}, True),
    ("a > '\uffff'", {"a": "\U00010000"}, True),
    ("a = NULL", {"a": 1}, None),
    ("NULL = NULL", {}, None),
    ("a = 1.0", {"a": 1}, True),
    ("a = 9007199254740993", {"a": 2.0**53}, False),
    ("a < 9007199254740993", {"a": 2.0**53}, True),
    ("a > 1", {"a": INF}, True),
    ("a < 1", {"a": -INF}, True),
    ("a = b", {"a": INF, "b": INF}, True),
    ("a = 0", {"a": -0.0}, True),
    ("a = 1", {"a": Level.LOW}, True),
    ("a = 'red'", {"a": Colour.RED}, True),
    # booleans
    ("a", {"a": True}, True),
    ("a", {"a": None}, None),
    ("NOT a", {"a": False}, True),
    ("a = TRUE", {"a": True}, True),
    ("a <> b", {"a": True, "b": False}, True),
    ("NULL", {}, None),
    # three-valued logic
    ("a AND b", {"a": None, "b": False}, False),
    ("a AND b", {"a": None, "b": True}, None),
    ("a OR b", {"a": None, "b": True}, True),
    ("a OR b", {"a": None, "b": False}, None),
    ("NOT a", {"a": None}, None),
    # BETWEEN, IN, LIKE, IS NULL
    ("a BETWEEN 1 AND 3", {"a": 3}, True),
    ("a BETWEEN 3 AND 1", {"a": 2}, False),
    ("a BETWEEN 1 AND NULL", {"a": 0}, False),
    ("a BETWEEN 1 AND NULL", {"a": 2}, None),
    ("a NOT BETWEEN 1 AND NULL", {"a": 0}, True),
    ("a IN (1, 2)", {"a": 2.0}, True),
    ("a IN (1, NULL)", {"a": 1}, True),
    ("a IN (1, NULL)", {"a": 2}, None),
    ("a NOT IN (1, NULL)", {"a": 2}, None),
    ("a NOT IN (1, NULL)", {"a": 1}, False),
    ("a IN (b, 2)", {"a": 1, "b": 1}, True),
    ("a LIKE 'x%'", {"a": "xy"}, True),
    ("a LIKE 'X%'", {"a": "xy"}, False),
    ("a LIKE 'x%'", {"a": None}, None),
    ("NULL LIKE 'x'", {}, None),
    ("a IS NULL", {"a": None}, True),
    ("a IS NULL", {}, True),
    ("a IS NOT NULL", {"a": 0}, True),
    ("a + 1 IS NULL", {"a": None}, True),
    # arithmetic
    ("a / 2 = 3", {"a": 7}, True),
    ("a / 2 = -3", {"a": -7}, True),
    ("a / -2 = -3", {"a": 7}, True),
    ("a / 2.0 = 3.5", {"a": 7}, True),
    ("a / 0 IS NULL", {"a": None}, True),
    ("a - 1 = 9223372036854775806", {"a": MAX}, True),
    ("-a = 1", {"a": -1}, True),
    ("-(-9223372036854775807) = a", {"a": MAX}, True),
    ("a + 1.5 = 2.5", {"a": 1}, True),
    ("a + 1 > b", {"a": INF, "b": INF}, False),
    ("a * 2 = b", {"a": INF, "b": INF}, True),
    ("9007199254740993 + a = 9007199254740992", {"a": 0.0}, True),
    ("a || b = 'xy'", {"a": "x", "b": "y"}, True),
    ("a || 'x' IS NULL", {"a": None}, True),
    # errors that another operand decides over
    ("b AND 1 / a = 1", {"a": 0, "b": False}, False),
    ("1 / a = 1 AND b", {"a": 0, "b": False}, False),
    ("1 / a = 1 OR b", {"a": 0, "b": True}, True),
    ("a = 1 AND f > 0", {"a": 2, "f": NAN}, False),
    ("5 IN (1 / a, 5)", {"a": 0}, True),
    ("a BETWEEN 5 AND 1 / b", {"a": 1, "b": 0}, False),
    ("a NOT BETWEEN 5 AND 1 / b", {"a": 1, "b": 0}, True),
    # timestamps
    ("t = TIMESTAMP '2026-01-31 09:00:00'", {"t": datetime(2026, 1, 31, 9, tzinfo=UTC)}, True),
    (
        "t = TIMESTAMP '2026-01-31 09:00:00'",
        {"t": datetime(2026, 1, 31, 10, tzinfo=timezone(timedelta(hours=1)))},
        True,
    ),
    # The hour that a clock shows twice: the same wall time, an hour apart.
    (
        "t < u",
        {"t": datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN), "u": datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)},
        True,
    ),
]

ERRORS: list[tuple[str, dict[str, Any], str]] = [
    ("a + 1 > 0", {"a": MAX}, "selector.overflow"),
    ("a - 1 > 0", {"a": MIN}, "selector.overflow"),
    ("a * 2 > 0", {"a": MAX}, "selector.overflow"),
    ("-a > 0", {"a": MIN}, "selector.overflow"),
    ("a / -1 > 0", {"a": MIN}, "selector.overflow"),
    ("a * 10.0 > 0", {"a": 1e308}, "selector.overflow"),
    ("a * b > 0", {"a": 1e308, "b": -10}, "selector.overflow"),
    ("a / b > 0", {"a": 1e308, "b": 0.1}, "selector.overflow"),
    ("a / 0 > 0", {"a": 1}, "selector.division"),
    ("a / 0.0 > 0", {"a": 1.0}, "selector.division"),
    ("a / b IS NULL", {"a": 1, "b": 0}, "selector.division"),
    ("a > 0", {"a": NAN}, "selector.nan"),
    ("a IS NULL", {"a": NAN}, "selector.nan"),
    ("a <> a", {"a": NAN}, "selector.nan"),
    ("a NOT IN (1, NULL)", {"a": NAN}, "selector.nan"),
    ("a = NULL", {"a": NAN}, "selector.nan"),
    ("a - b > 0", {"a": INF, "b": INF}, "selector.nan"),
    ("a * 0.0 = 0", {"a": INF}, "selector.nan"),
    ("a > 0", {"a": "x"}, "selector.operands"),
    ("a > 0", {"a": True}, "selector.operands"),
    ("a = 1", {"a": True}, "selector.operands"),
    ("a < b", {"a": True, "b": False}, "selector.operands"),
    ("a + 1 > 0", {"a": True}, "selector.operands"),
    ("-a > 0", {"a": "x"}, "selector.operands"),
    ("a", {"a": 1}, "selector.operands"),
    ("a LIKE 'x'", {"a": 1}, "selector.operands"),
    ("a || 'x' = 'x'", {"a": 1}, "selector.operands"),
    ("a = 1", {"a": 2**63}, "selector.operands"),
    ("a = 1", {"a": b"x"}, "selector.operands"),
    ("a = TIMESTAMP '2026-01-31 09:00:00'", {"a": NAIVE}, "selector.operands"),
    (
        "a = TIMESTAMP '2026-01-31 09:00:00'",
        {"a": datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))},
        "selector.overflow",
    ),
    # An error wins over NULL, and over a truth value that does not decide.
    ("1 / a = 1 AND b", {"a": 0, "b": None}, "selector.division"),
    ("1 / a = 1 AND b", {"a": 0, "b": True}, "selector.division"),
    ("1 / a = 1 OR b", {"a": 0, "b": False}, "selector.division"),
    ("NOT (1 / a = 1)", {"a": 0}, "selector.division"),
    ("NULL = 1 / a", {"a": 0}, "selector.division"),
    ("4 IN (1 / a, 5)", {"a": 0}, "selector.division"),
]


def schema_of(row: dict[str, Any]) -> Schema:
    """Return the schema that the row fits, as far as its values can be attributes' at all."""
    fitting: dict[str, AttributeSpec] = {}
    for name, value in row.items():
        try:
            kind = kind_of(value)
            check_value(kind, value)
        except MalformedError:
            continue
        fitting[name] = AttributeSpec(kind)
    return fitting


@pytest.mark.parametrize(("text", "row", "expected"), TRUTH)
def test_truth(text: str, row: dict[str, Any], *, expected: bool | None) -> None:
    assert evaluate(parse(text), row) is expected
    assert compile_selector(parse(text))(row) is expected
    assert compile_selector(parse(text), schema_of(row))(row) is expected


@pytest.mark.parametrize(("text", "row", "code"), ERRORS)
def test_errors(text: str, row: dict[str, Any], code: str) -> None:
    selector = parse(text)
    for ask in (partial(evaluate, selector), compile_selector(selector), compile_selector(selector, schema_of(row))):
        with pytest.raises(EvaluationError) as caught:
            ask(row)
        assert caught.value.code == code

"""Errors: one tree, stable codes, exit statuses, and plain data for programs."""

import json
import pickle
import traceback

import pytest

from penstock import errors
from penstock.errors import (
    EvaluationError,
    FailedError,
    LimitError,
    MalformedError,
    PenstockError,
    RefusedError,
    SelectorError,
)


@pytest.mark.parametrize(
    ("error", "parent", "status"),
    [
        (MalformedError("a.b", "m"), PenstockError, 2),
        (LimitError("a.b", "m"), MalformedError, 2),
        (SelectorError("a.b", "m", text="x", position=0), MalformedError, 2),
        (RefusedError("a.b", "m"), PenstockError, 1),
        (EvaluationError("a.b", "m"), RefusedError, 1),
        (FailedError("a.b", "m"), PenstockError, 3),
        (PenstockError("a.b", "m"), Exception, 3),
    ],
)
def test_the_tree_and_its_exit_statuses(error: PenstockError, parent: type[Exception], status: int) -> None:
    assert isinstance(error, parent)
    assert error.exit_status == status
    assert error.code == "a.b"


def test_the_tree_drawn_in_the_docstring_is_complete() -> None:
    assert errors.__doc__
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, PenstockError):
            assert name in errors.__doc__


def test_the_text_ends_with_the_code() -> None:
    assert str(MalformedError("name.malformed", "`x` is bad", hint="write y")) == "`x` is bad [name.malformed]"


def test_plain_data() -> None:
    bare = RefusedError("trust.expired", "the grant has expired")
    assert bare.as_dict() == {"code": "trust.expired", "message": "the grant has expired"}
    full = RefusedError("trust.expired", "the grant has expired", hint="renew it", issuer=object, count=3)
    assert full.as_dict()["hint"] == "renew it"
    assert full.as_dict()["fields"] == {"issuer": str(object), "count": "3"}
    assert full.fields == {"issuer": object, "count": 3}
    assert json.loads(json.dumps(full.as_dict())) == full.as_dict()


@pytest.mark.parametrize(
    ("text", "position", "pointer"),
    [
        ("price > 'a'", 8, "price > 'a'\n        ^"),
        ("price", 0, "price\n^"),
        ("price", 5, "price\n     ^"),
        ("", 0, "\n^"),
        ("price > 1\nAND stock = 2\nAND x", 14, "AND stock = 2\n    ^"),
        ("price > 1\nAND stock = 2\nAND x", 28, "AND x\n    ^"),
        ("price > 1\nAND stock", 9, "price > 1\n         ^"),
    ],
)
def test_a_selector_error_points_at_the_place(text: str, position: int, pointer: str) -> None:
    error = SelectorError("selector.type", "cannot compare", text=text, position=position, expected="integer")
    assert error.pointer() == pointer
    assert error.fields == {"position": position, "expected": "integer"}


def test_a_traceback_shows_the_hint() -> None:
    error = RefusedError("a.b", "no", hint="ask the owner")
    assert traceback.format_exception(error)[-1] == "hint: ask the owner\n"
    sent = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own
    assert traceback.format_exception(sent) == traceback.format_exception(error)
    assert len(traceback.format_exception(RefusedError("a.b", "no"))) == 1

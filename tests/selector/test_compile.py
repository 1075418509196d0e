"""The compiled function against the reference interpreter."""

from collections.abc import Callable

from hypothesis import given, settings
from tests.selector.strategies import SCHEMA, conditions, rows, wrong_rows

from penstock.errors import EvaluationError
from penstock.model.values import Scalar
from penstock.selector import compile_selector, evaluate, parse


def outcome(function: Callable[[], object]) -> object:
    try:
        return function()
    except EvaluationError as error:
        return error.code


@settings(deadline=None, max_examples=400)
@given(conditions(), rows())
def test_agrees_with_the_interpreter(text: str, row: dict[str, Scalar]) -> None:
    selector = parse(text)
    expected = outcome(lambda: evaluate(selector, row))
    assert outcome(lambda: compile_selector(selector, SCHEMA)(row)) is expected or isinstance(expected, str)
    assert outcome(lambda: compile_selector(selector, SCHEMA)(row)) == expected
    assert outcome(lambda: compile_selector(selector)(row)) == expected


@settings(deadline=None, max_examples=200)
@given(conditions(), wrong_rows())
def test_agrees_on_rows_of_wrong_kinds(text: str, row: dict[str, Scalar]) -> None:
    selector = parse(text)
    expected = outcome(lambda: evaluate(selector, row))
    assert outcome(lambda: compile_selector(selector)(row)) == expected

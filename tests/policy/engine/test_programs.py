"""Conditions as Python: constants are worked out beforehand, and what comes twice is worked out once."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.policy.kit import NOW

from penstock.errors import EvaluationError
from penstock.policy.engine.evaluate import EvaluationScope
from penstock.policy.engine.lookup import Context, NoSources
from penstock.policy.engine.programs import condition_program, constant_of, repeated
from penstock.policy.language.datatypes import BOOLEAN, DOUBLE, INTEGER, MAILBOX, STRING, DataType, Function, failed
from penstock.policy.language.functions import V1, V2, V3
from penstock.policy.language.policies import Apply, Designator, Expression, PolicyLiteral, apply
from penstock.policy.language.requests import SUBJECT, Facts

NAME = Designator(SUBJECT, "name", STRING)
ONE = apply(f"{V1}string-one-and-only", [NAME])


def number(value: int) -> PolicyLiteral:
    return PolicyLiteral(value, INTEGER)


def counting(answer: Callable[[str], bool]) -> tuple[Function, list[str]]:
    asked: list[str] = []

    def call(text: str) -> bool:
        asked.append(text)
        return answer(text)

    return Function("urn:example:counted", (STRING,), BOOLEAN, call), asked


def value(expression: Expression, facts: Facts) -> Any:
    context = Context(None, NOW, NoSources(), facts)
    return condition_program(expression, {}, {})(context, facts)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (apply(f"{V1}integer-add", [number(1), apply(f"{V1}integer-multiply", [number(2), number(3)])]), (7,)),
        (apply(f"{V1}string-bag", [PolicyLiteral("a", STRING), PolicyLiteral("b", STRING)]), (("a", "b"),)),
        (
            apply(f"{V1}and", [PolicyLiteral(True, BOOLEAN), apply(f"{V1}not", [PolicyLiteral(True, BOOLEAN)])]),
            (False,),
        ),
        (apply(f"{V1}integer-divide", [number(1), number(0)]), None),
        (apply(f"{V1}n-of", [number(2), PolicyLiteral(True, BOOLEAN)]), None),
        (ONE, None),
    ],
)
def test_what_is_constant_is_known_beforehand(expression: Expression, expected: object) -> None:
    assert constant_of(expression) == expected


def test_what_fails_fails_when_it_is_asked() -> None:
    with pytest.raises(EvaluationError):
        value(apply(f"{V1}integer-equal", [apply(f"{V1}integer-divide", [number(1), number(0)]), number(1)]), {})


def test_constants_are_not_worked_out_again() -> None:
    counted, asked = counting(lambda text: text == "x")
    program = condition_program(Apply(counted, (PolicyLiteral("x", STRING),)), {}, {})
    for _ in range(3):
        assert program(Context(None, NOW, NoSources(), {}), {}) is True
    assert asked == ["x"]


@pytest.mark.parametrize("answer", [True, False])
def test_what_comes_twice_is_worked_out_once(*, answer: bool) -> None:
    counted, asked = counting(lambda _text: answer)
    once = Apply(counted, (ONE,))
    both = apply(f"{V1}or", [apply(f"{V1}and", [once, PolicyLiteral(False, BOOLEAN)]), apply(f"{V1}not", [once]), once])
    facts: Facts = {NAME.key: ("ann",)}
    assert value(both, facts) is EvaluationScope(Context(None, NOW, NoSources(), facts)).value(both) is True
    assert asked[:1] == ["ann"]
    # The plain evaluator asked it as often as it stands there, as far as it looked.
    assert len(asked) == 1 + (3 if answer else 2)


def test_what_is_not_needed_is_not_worked_out() -> None:
    counted, asked = counting(lambda _text: True)
    once = Apply(counted, (ONE,))
    assert value(apply(f"{V1}and", [PolicyLiteral(False, BOOLEAN), once, once]), {NAME.key: ("ann",)}) is False
    assert asked == []


def test_what_failed_is_asked_again_and_fails_again() -> None:
    def refuse(_text: str) -> bool:
        raise failed("no")

    counted, asked = counting(refuse)
    once = Apply(counted, (ONE,))
    program = condition_program(apply(f"{V1}and", [once, once]), {}, {})
    facts: Facts = {NAME.key: ("ann",)}
    for _ in range(2):
        with pytest.raises(EvaluationError):
            program(Context(None, NOW, NoSources(), facts), facts)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("of_type", "one", "other"), [(DOUBLE, 0.0, -0.0), (MAILBOX, MAILBOX.read("a@B"), MAILBOX.read("a@b"))]
)
def test_equal_values_that_are_written_apart_stay_apart(of_type: DataType, one: object, other: object) -> None:
    assert one == other
    texts = [apply(f"{V3}string-from-{of_type}", [PolicyLiteral(each, of_type)]) for each in (one, other)]
    joined = [apply(f"{V2}string-concatenate", [text, ONE]) for text in texts]
    whole = apply(f"{V2}string-concatenate", [*joined, *joined])
    assert len({*repeated(whole).values()}) > 2
    facts: Facts = {NAME.key: ("!",)}
    assert value(whole, facts) == EvaluationScope(Context(None, NOW, NoSources(), facts)).value(whole)

"""The selector as a value: checking, rewriting and building."""

import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.selector.strategies import FULL, SCHEMA, VALUES, conditions, rows

from penstock.errors import EvaluationError, LimitError, SelectorError
from penstock.model.values import AttributeSpec, Kind, Scalar
from penstock.selector import (
    ALWAYS,
    NEVER,
    Selector,
    conjunction,
    conjuncts,
    disjunction,
    equals,
    evaluate,
    negation,
    parse,
)

TYPE_ERRORS = [
    # text, code, offset of the caret
    ("s > 1", "selector.type", 4),
    ("i = 'x'", "selector.type", 4),
    ("i = TRUE", "selector.type", 4),
    ("b < TRUE", "selector.type", 0),
    ("TRUE > b", "selector.type", 0),
    ("b BETWEEN FALSE AND TRUE", "selector.type", 0),
    ("i IN (1, 2.5, 'x')", "selector.type", 14),
    ("i LIKE 'x'", "selector.type", 0),
    ("s + 'x' = 'y'", "selector.type", 0),
    ("i + s = 1", "selector.type", 4),
    ("-s = 1", "selector.type", 1),
    ("s || i = 'x'", "selector.type", 5),
    ("t + 1 > t", "selector.type", 0),
    ("b AND i", "selector.type", 6),
    ("NOT s", "selector.type", 4),
    ("i BETWEEN 1 AND 'x'", "selector.type", 16),
    ("(i + 1) = (s || 'x')", "selector.type", 11),
    ("b AND price > 1", "selector.unknown-attribute", 6),
    ('I = 1 AND "s" = s', "selector.unknown-attribute", 0),
]


@pytest.mark.parametrize(("text", "code", "position"), TYPE_ERRORS)
def test_type_errors_point_at_the_place(text: str, code: str, position: int) -> None:
    with pytest.raises(SelectorError) as caught:
        parse(text).check(SCHEMA)
    assert (caught.value.code, caught.value.position) == (code, position)
    assert caught.value.hint
    assert caught.value.text == text


@settings(deadline=None, max_examples=examples(120))
@given(conditions())
def test_well_typed_selectors_pass(text: str) -> None:
    parse(text).check(SCHEMA)


@settings(deadline=None, max_examples=examples(120))
@given(conditions(), rows())
def test_what_passes_never_meets_wrong_operands(text: str, row: dict[str, Scalar]) -> None:
    assert code_of(parse(text), row) != "selector.operands"


def code_of(selector: Selector, row: dict[str, Scalar]) -> str:
    try:
        evaluate(selector, row)
    except EvaluationError as error:
        return error.code
    return ""


def test_missing_attributes_can_be_null() -> None:
    selector = parse("nowhere > 1 AND nowhere = 'x' OR nowhere")
    with pytest.raises(SelectorError) as caught:
        selector.check({})
    assert caught.value.code == "selector.unknown-attribute"
    selector.check({}, missing="null")


def test_built_selectors_point_into_their_canonical_text() -> None:
    built = conjunction(parse("i  =  1"), parse("s > 1"))
    with pytest.raises(SelectorError) as caught:
        built.check(SCHEMA)
    assert caught.value.text == built.text == "i = 1 AND s > 1"
    assert caught.value.pointer() == "i = 1 AND s > 1\n              ^"


def test_attributes() -> None:
    assert parse("a + b > 1 AND c LIKE 'x' OR \"d-e\" IS NULL").attributes == {"a", "b", "c", "d-e"}
    assert ALWAYS.attributes == frozenset()


def test_selectors_are_values() -> None:
    assert parse("a=1") == parse("(a) = 1")
    assert len({parse("a=1"), parse("a = 1"), parse("a = 1.0")}) == 2
    assert parse("a = 1") != parse("a = TRUE")
    assert pickle.loads(pickle.dumps(parse("a = 1"))) == parse("a = 1")  # noqa: S301  # our own bytes
    assert "a = 1" in repr(parse("a=1"))
    with pytest.raises(AttributeError):
        parse("a = 1").text = "b"  # type: ignore[misc]  # that is what is tried


def test_rename() -> None:
    selector = parse("a > 1 AND b || a = 'x' AND c")
    assert selector.rename({"a": "b", "b": "a", "c": "x-y"}).text == "b > 1 AND a || b = 'x' AND \"x-y\""
    assert selector.rename({}) == selector
    for name in ("", "\ud800"):
        with pytest.raises(SelectorError) as caught:
            selector.rename({"a": name})
        assert caught.value.code == "selector.literal"
    with pytest.raises(LimitError):
        selector.rename({"a": "a" * 20_000})


def test_nullify() -> None:
    selector = parse("a > 1 OR b LIKE 'x' OR NOT c OR a IN (b, d) OR -a BETWEEN 1 AND 2 OR a IS NULL")
    assert selector.nullify(["a", "b", "c"]).text == (
        "NULL > 1 OR NULL LIKE 'x' OR (NOT NULL) OR NULL IN (NULL, d) OR -(NULL) BETWEEN 1 AND 2 OR NULL IS NULL"
    )
    assert parse("c").nullify(["c"]).text == "NULL"
    assert selector.nullify([]) == selector


@settings(deadline=None, max_examples=examples(120))
@given(conditions(), rows(), st.sets(st.sampled_from(sorted(SCHEMA))))
def test_nullify_is_what_a_masked_row_shows(text: str, row: dict[str, Scalar], hidden: set[str]) -> None:
    selector = parse(text)
    masked = {name: value for name, value in row.items() if name not in hidden}
    nullified = selector.nullify(hidden)
    assert nullified.attributes.isdisjoint(hidden)
    assert parse(nullified.text).root == nullified.root
    assert outcome(nullified, row) == outcome(selector, masked)


def outcome(selector: Selector, row: dict[str, Scalar]) -> object:
    return code_of(selector, row) or evaluate(selector, row)


@settings(deadline=None, max_examples=examples(150))
@given(st.lists(conditions(depth=2), max_size=3), rows())
def test_builders_read_back_and_mean_what_they_say(texts: list[str], row: dict[str, Scalar]) -> None:
    parts = [parse(text) for text in texts]
    for build, word, unit in ((conjunction, " AND ", "TRUE"), (disjunction, " OR ", "FALSE")):
        built = build(*parts)
        assert parse(built.text).root == built.root
        written = parse(word.join(f"({text})" for text in texts) or unit)
        assert outcome(built, row) == outcome(written, row)
    for part in parts:
        assert outcome(conjunction(*conjuncts(part)), row) == outcome(part, row)
        assert parse(negation(part).text).root == negation(part).root
        assert outcome(negation(part), row) == outcome(parse(f"NOT ({part.text})"), row)


def test_units() -> None:
    a = parse("a")
    assert conjunction() == ALWAYS == negation(NEVER) == parse("TRUE")
    assert disjunction() == NEVER == negation(ALWAYS) == parse("FALSE")
    assert conjunction(a, ALWAYS, a) == a == disjunction(NEVER, a)
    assert conjunction(a, NEVER) == NEVER
    assert disjunction(a, ALWAYS) == ALWAYS
    assert negation(negation(a)) == a


def test_building_meets_the_limits() -> None:
    def nest(deep: Selector, levels: int) -> Selector:
        for index in range(levels):
            deep = conjunction(parse(f"b = {index}"), disjunction(parse(f"c = {index}"), deep))
        return deep

    assert nest(parse("a"), 30).attributes == {"a", "b", "c"}
    with pytest.raises(LimitError):
        nest(parse("a"), 100)
    with pytest.raises(LimitError):
        conjunction(*(parse(f"a <> {index}") for index in range(3_000)))


EQUALS: list[tuple[Any, str]] = [
    ("it's", "a = 'it''s'"),
    (-5, "a = -5"),
    (-(2**63), "a = -9223372036854775808"),
    (1.5, "a = 1.5"),
    (1e300, "a = 1e+300"),
    (-0.0, "a = 0.0"),
    (True, "a = TRUE"),
    (datetime(2026, 1, 31, 9, tzinfo=timezone(timedelta(hours=1))), "a = TIMESTAMP '2026-01-31 08:00:00+00:00'"),
    (float("inf"), "a > 1.7976931348623157e+308"),
    (float("-inf"), "a < -1.7976931348623157e+308"),
]


@pytest.mark.parametrize(("value", "text"), EQUALS)
def test_equals(value: Any, text: str) -> None:  # values of every kind
    selector = equals("a", value)
    assert selector.text == text
    assert parse(text).root == selector.root
    assert evaluate(selector, {"a": value}) is True


@settings(deadline=None, max_examples=examples(120))
@given(st.sampled_from(list(Kind)).flatmap(lambda kind: st.tuples(VALUES[kind], VALUES[kind])))
def test_equals_holds_for_equal_values_only(pair: tuple[Any, Any]) -> None:
    value, other = pair
    if value != value or other != other:  # noqa: PLR0124  # NaN
        return
    assert evaluate(equals("a b", value), {"a b": other}) is (value == other)


@pytest.mark.parametrize(
    "value", [float("nan"), 2**63, "\ud800", datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None), b"x", None]
)
def test_equals_refuses_what_no_attribute_holds(value: Any) -> None:  # also what is not a value
    with pytest.raises(SelectorError) as caught:
        equals("a", value)
    assert caught.value.code == "selector.literal"


def test_schema_of_the_strategies_is_full() -> None:
    assert FULL.schema is SCHEMA
    assert {spec.kind for spec in SCHEMA.values()} == set(Kind)
    assert isinstance(SCHEMA["s"], AttributeSpec)

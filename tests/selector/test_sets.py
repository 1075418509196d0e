"""Value sets against membership of sample values."""

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.selector.strategies import LITERALS, VALUES

from penstock.model.values import INTEGER_MAX, INTEGER_MIN, AttributeSpec, Enumerated, Kind, Ranged
from penstock.selector.ast import ComparisonOperator
from penstock.selector.evaluate import compare
from penstock.selector.sets import Spans, ValueSet, complement, intersect, points, prefixed, select, unite, universe


def contains(spans: Spans, value: Any) -> bool:  # a value of the set's kind
    return any(low <= value and (high is None or value < high) for low, high in spans)


@st.composite
def kinds_and_values(draw: st.DrawFn) -> tuple[Kind, Any, Any]:
    """Draw a kind, a value of it that is not a NaN, and a constant to compare it with."""
    kind = draw(st.sampled_from(list(Kind)))
    other = draw(st.sampled_from([Kind.INTEGER, Kind.FLOAT])) if kind in (Kind.INTEGER, Kind.FLOAT) else kind
    value = draw(VALUES[kind].filter(lambda value: value == value))  # noqa: PLR0124  # NaN
    if kind is Kind.TIMESTAMP:
        value = value.astimezone(UTC)  # type: ignore[union-attr]  # by its kind it is a time
    return kind, value, draw(LITERALS[other])


@settings(deadline=None, max_examples=examples(250))
@given(
    kinds_and_values(),
    st.sampled_from([ComparisonOperator.EQ, ComparisonOperator.NE]) | st.sampled_from(list(ComparisonOperator)),
)
def test_spans_hold_what_compares_so(drawn: tuple[Kind, Any, Any], operator: ComparisonOperator) -> None:
    kind, value, constant = drawn
    if kind is Kind.BOOLEAN and operator not in (ComparisonOperator.EQ, ComparisonOperator.NE):
        return
    spans = select(kind, operator, constant)
    assert contains(spans, value) is compare(operator, value, constant)
    assert contains(complement(kind, spans), value) is not contains(spans, value)


SMALL = st.lists(st.tuples(st.integers(-9, 9), st.none() | st.integers(-9, 9)), max_size=4).map(
    lambda pairs: unite(tuple((low, high) for low, high in pairs if high is None or low < high))
)


@settings(deadline=None, max_examples=examples(150))
@given(SMALL, SMALL, st.integers(-12, 12))
def test_set_operations(first: Spans, second: Spans, value: int) -> None:
    assert contains(intersect(first, second), value) is (contains(first, value) and contains(second, value))
    assert contains(unite(first + second), value) is (contains(first, value) or contains(second, value))
    one, other = ValueSet(Kind.INTEGER, first, null=True), ValueSet(Kind.INTEGER, second, nan=True)
    assert contains((one - other).spans, value) is (contains(first, value) and not contains(second, value))
    assert ((one | other).null, (one & other).null, (one - other).null) == (True, False, True)
    if first:
        example = one.example()
        assert contains(first, example)


@settings(deadline=None, max_examples=examples(200))
@given(SMALL, SMALL, st.tuples(*[st.booleans()] * 4))
def test_a_set_holds_another_as_their_difference_says(first: Spans, second: Spans, marks: tuple[bool, ...]) -> None:
    one, other = ValueSet(Kind.INTEGER, first, *marks[:2]), ValueSet(Kind.INTEGER, second, *marks[2:])
    for mine, theirs in ((one, other), (one, one), (one | other, one), (one, one & other)):
        assert mine.holds(theirs) is (theirs - mine).empty


def test_no_set_holds_one_of_another_kind() -> None:
    assert not universe(AttributeSpec(Kind.FLOAT)).holds(universe(AttributeSpec(Kind.INTEGER)))


@settings(deadline=None, max_examples=examples(200))
@given(st.text(max_size=3), st.text(max_size=5))
def test_prefixes(prefix: str, text: str) -> None:
    assert contains(prefixed(prefix), text) is text.startswith(prefix)
    assert contains(prefixed(prefix), prefix + text)


@pytest.mark.parametrize("prefix", ["\ud7ff", "\U0010ffff", "a\U0010ffff", "", "\U0010ffff\U0010ffff"])
def test_prefixes_at_the_edges_of_unicode(prefix: str) -> None:
    spans = prefixed(prefix)
    for text in ("", "a", "b", "\ud7ff\U0010ffff", "\ue000", "a\U0010ffffz", "\U0010ffff", "\U0010ffff\U0010ffffq"):
        assert contains(spans, text) is text.startswith(prefix)


def test_edges_of_numbers() -> None:
    assert select(Kind.INTEGER, ComparisonOperator.GT, INTEGER_MAX) == ()
    assert select(Kind.INTEGER, ComparisonOperator.LT, INTEGER_MIN) == ()
    assert select(Kind.INTEGER, ComparisonOperator.GT, 1e300) == ()
    assert select(Kind.INTEGER, ComparisonOperator.EQ, 1.5) == ()
    assert select(Kind.FLOAT, ComparisonOperator.EQ, 2**53 + 1) == ()
    assert select(Kind.FLOAT, ComparisonOperator.GT, math.inf) == ()
    assert select(Kind.FLOAT, ComparisonOperator.EQ, math.inf) == ((math.inf, None),)
    assert select(Kind.BOOLEAN, ComparisonOperator.EQ, True) == ((True, None),)


def test_universe_respects_the_domain() -> None:
    assert universe(AttributeSpec(Kind.INTEGER, Ranged(1, 3))).spans == ((1, 4),)
    assert universe(AttributeSpec(Kind.INTEGER, Enumerated(frozenset([1, 2, 5])))).spans == ((1, 3), (5, 6))
    assert universe(AttributeSpec(Kind.FLOAT)).nan
    assert not universe(AttributeSpec(Kind.FLOAT, Ranged(0.0, 1.0))).nan
    assert all(universe(AttributeSpec(kind)).null for kind in Kind)


def test_examples_are_plain() -> None:
    assert universe(AttributeSpec(Kind.INTEGER)).example() == 0
    assert ValueSet(Kind.INTEGER, select(Kind.INTEGER, ComparisonOperator.LT, -5)).example() == -6
    assert ValueSet(Kind.INTEGER, select(Kind.INTEGER, ComparisonOperator.GT, 5)).example() == 6
    assert ValueSet(Kind.STRING, (), null=True, nan=True).example() is None
    assert universe(AttributeSpec(Kind.TIMESTAMP)).example() == datetime(2000, 1, 1, tzinfo=UTC)
    assert points(Kind.STRING, ["b", "a"])[0][0] == "a"
    assert ValueSet(Kind.FLOAT, select(Kind.FLOAT, ComparisonOperator.GT, 24)).example() == 25.0


def test_ends_of_spans_are_text() -> None:
    # The end of one span is the start of its complement, and may become an example.
    assert prefixed("\ud7ff") == (("\ud7ff", "\ue000"),)

"""Attribute lists are conjunctions, and conjunctions of the right kind are attribute lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trust.kit import refused

from penstock.moderator.rules.rules import AttributeList, Bound, ListEntry, listed, parts
from penstock.selector import ALWAYS, parse
from penstock.trust.limits import MODERATOR_LIST

ENTRIES = st.one_of(
    st.builds(ListEntry, st.sampled_from(["role", "company"]), st.text(st.characters(codec="utf-8"), max_size=3)),
    st.builds(ListEntry, st.just("age"), st.integers(-5, 200), st.sampled_from(Bound)),
    st.builds(ListEntry, st.just("share"), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(Bound)),
    st.builds(ListEntry, st.just("premium"), st.booleans()),
)


@given(st.lists(ENTRIES, min_size=1, max_size=5, unique_by=lambda entry: entry.order))
def test_a_list_comes_back_from_its_condition(entries: list[ListEntry]) -> None:
    found = AttributeList(tuple(entries))
    assert AttributeList.from_selector(found.selector) == found
    assert AttributeList.from_selector(parse(found.selector.text)) == found


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("company = 'A' AND 'engineer' = role", "{(company, A), (role, engineer)}"),
        ("18 >= age", "{(age, max, 18)}"),
        ("age BETWEEN 18 AND 65 AND age >= 18", "{(age, max, 65), (age, min, 18)}"),
        ("age >= 18 AND age >= 21 AND age <= 65 AND age <= 60", "{(age, max, 60), (age, min, 21)}"),
        ("premium AND NOT adult", "{(adult, False), (premium, True)}"),
    ],
)
def test_equal_conjunctions_are_one_list(text: str, written: str) -> None:
    assert str(AttributeList.from_selector(parse(text))) == written


@pytest.mark.parametrize(
    "text",
    [
        "TRUE",
        "age > 18",
        "age <> 18",
        "role = 'a' OR role = 'b'",
        "role IN ('a', 'b')",
        "role = 'a' AND role = 'b'",
        "age = NULL",
        "age >= level",
        "role >= 'a'",
        "NOT (role = 'a')",
        '"#" = 1',
        "badge LIKE 'x%'",
    ],
)
def test_other_conditions_are_no_list(text: str) -> None:
    assert AttributeList.from_selector(parse(text)) is None


def test_the_algorithm_reads_lists_and_true() -> None:
    assert listed(ALWAYS) == frozenset()
    assert listed(parse("age <= 18")) == {ListEntry("age", 18, Bound.MAX)}
    with refused("moderator.not-a-list"):
        listed(parse("age > 18"))


def test_lists_that_are_none() -> None:
    with refused("moderator.empty-list"):
        AttributeList(())
    with refused("moderator.list"):
        AttributeList.of(ListEntry("role", "a"), ListEntry("role", "b"))
    with refused("moderator.list"):
        ListEntry("role", "a", Bound.MAX)
    with refused("name.malformed"):
        ListEntry("a b", 1)
    with refused("moderator.limit"):
        AttributeList(tuple(ListEntry(f"a{n}", n) for n in range(MODERATOR_LIST + 1)))


def test_what_stands_twice_counts_once() -> None:
    assert AttributeList.of(ListEntry("role", "a"), ListEntry("role", "a")) == AttributeList.of(ListEntry("role", "a"))


def test_parts_of_a_function() -> None:
    assert parts(ALWAYS) == ()
    assert [part.text for part in parts(parse("a = 1 AND (b = 2 OR c = 3)"))] == ["a = 1", "b = 2 OR c = 3"]

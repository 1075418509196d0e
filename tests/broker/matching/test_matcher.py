"""Matching many selectors says what evaluating each of them says."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.selector.strategies import SCHEMA, conditions, rows, wrong_rows

from penstock.broker.limits import BrokerLimits
from penstock.broker.matching.matcher import Matcher
from penstock.errors import EvaluationError, SelectorError
from penstock.model.values import AttributeSpec, Kind, Scalar
from penstock.selector import Selector, evaluate, parse

SELECTORS = conditions().map(parse)


def naive(selectors: dict[int, Selector], row: dict[str, Scalar]) -> list[int]:
    """Evaluate one by one."""
    found = []
    for key, selector in selectors.items():
        try:
            if evaluate(selector, row) is True:
                found.append(key)
        except EvaluationError:
            continue
    return sorted(found)


def matcher_of(*texts: str) -> Matcher[str]:
    matcher = Matcher[str](limits=BrokerLimits())
    for text in texts:
        matcher.add(text, parse(text))
    return matcher


@settings(max_examples=examples(150), deadline=None)
@given(selectors=st.lists(SELECTORS, max_size=40), events=st.lists(rows() | wrong_rows(), min_size=1, max_size=6))
def test_matching_is_evaluation_of_each(selectors: list[Selector], events: list[dict[str, Scalar]]) -> None:
    matcher = Matcher[int](limits=BrokerLimits())
    known = dict(enumerate(selectors))
    for key, selector in known.items():
        matcher.add(key, selector, SCHEMA)
    for row in events:
        assert sorted(matcher.match(row)) == naive(known, row)


@settings(max_examples=examples(100), deadline=None)
@given(selectors=st.lists(SELECTORS, max_size=12), events=st.lists(rows() | wrong_rows(), min_size=1, max_size=20))
def test_rows_in_fixed_places_match_as_maps_do(selectors: list[Selector], events: list[dict[str, Scalar]]) -> None:
    matcher = Matcher[int](limits=BrokerLimits())
    known = dict(enumerate(selectors))
    for key, selector in known.items():
        matcher.add(key, selector, SCHEMA)
    expected = [naive(known, row) for row in events]
    for layout in (tuple(SCHEMA), tuple(sorted(SCHEMA, reverse=True))):
        rows = [["id", None, *map(row.get, layout)] for row in events]
        # Tests are compiled for a layout that has come often.
        for _ in range(2 + 256 // len(rows)):
            assert [sorted(keys) for keys in matcher.match_rows(layout, rows)] == expected


@settings(max_examples=examples(60), deadline=None)
@given(selectors=st.lists(SELECTORS, min_size=1, max_size=8), events=st.lists(rows() | wrong_rows(), max_size=4))
def test_few_selectors_are_tried_with_the_same_answer(
    selectors: list[Selector], events: list[dict[str, Scalar]]
) -> None:
    matcher = Matcher[int](limits=BrokerLimits())
    known = dict(enumerate(selectors))
    for key, selector in known.items():
        matcher.add(key, selector, SCHEMA)
    for _ in range(20):
        matcher.match({})
    assert matcher._quick is not None
    for row in events:
        assert sorted(matcher.match(row)) == naive(known, row)


def test_what_comes_and_goes_is_heeded_where_few_are_tried() -> None:
    matcher = matcher_of("i = 1", "TRUE", "i + j > 2")
    for _ in range(40):
        assert list(matcher.match({"i": 1, "j": 2**63 - 1})) == ["i = 1", "TRUE"]
    matcher.remove("i = 1")
    assert [list(matcher.match({"i": 1})) for _ in range(40)] == [["TRUE"]] * 40
    matcher.add("j = 1", parse("j = 1"))
    assert [list(matcher.match({"j": 1})) for _ in range(40)] == [["TRUE", "j = 1"]] * 40


#: simple predicates over few attributes and values, so that many clauses meet in one node
SIMPLE = st.lists(
    st.sampled_from(
        [
            *(
                f"{name} {operator} {number}"
                for name in "ij"
                for operator in ("=", "<", ">=", "<>")
                for number in (0, 1, 2)
            ),
            *(f"f {operator} {number}" for operator in ("=", "<=", ">") for number in ("1", "0.5", "9007199254740993")),
            "1 > i",
            "i BETWEEN 0 AND 2",
            "j NOT BETWEEN 0 AND 1",
            "i IN (1, 2, NULL)",
            "j NOT IN (1, 3)",
            "j NOT IN (1, NULL)",
            "f IN (0.5, 1, 3)",
            "s LIKE 'a%'",
            "s LIKE 'ab%'",
            "s NOT LIKE 'a%'",
            "s LIKE 'a%b'",
            "s = 'ab'",
            "b",
            "NOT b",
            "s IS NULL",
            "f IS NOT NULL",
            "t >= TIMESTAMP '2026-01-01 12:00:00'",
            "t < TIMESTAMP '2026-01-01 06:00:00+02:00'",
            "i + j > 2",
        ]
    ),
    min_size=1,
    max_size=4,
)
CONJUNCTIONS = st.tuples(SIMPLE, st.sampled_from([" AND ", " AND ", " OR "])).map(
    lambda drawn: parse(drawn[1].join(drawn[0]))
)

#: events with the values that these predicates are about, and their neighbours
NEAR = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-1, 3),
        "j": st.none() | st.integers(-1, 3),
        "f": st.sampled_from([None, 0.5, 1.0, 3.0, 2.0**53, float("nan"), float("inf")]),
        "s": st.sampled_from([None, "", "a", "ab", "aab", "b"]),
        "b": st.none() | st.booleans(),
        "t": st.none() | st.sampled_from([datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (0, 4, 12, 13)]),
    }
)


@settings(max_examples=examples(150), deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 60), st.none() | CONJUNCTIONS), max_size=150),
    events=st.lists(NEAR | NEAR | wrong_rows(), min_size=5, max_size=10),
)
def test_adding_replacing_and_removing(
    steps: list[tuple[int, Selector | None]], events: list[dict[str, Scalar]]
) -> None:
    matcher = Matcher[int](limits=BrokerLimits())
    known: dict[int, Selector] = {}
    for number, (key, selector) in enumerate(steps):
        if selector is None:
            assert matcher.remove(key) is (known.pop(key, None) is not None)
        else:
            matcher.add(key, selector)
            known[key] = selector
        if number % 10 == 0 or number > len(steps) - 3:
            for row in events:
                assert sorted(matcher.match(row)) == naive(known, row)
    assert sorted(matcher) == sorted(known)


@settings(max_examples=examples(50), deadline=None)
@given(selectors=st.lists(CONJUNCTIONS | SELECTORS, max_size=60))
def test_nothing_is_left_when_all_are_removed(selectors: list[Selector]) -> None:
    matcher = Matcher[int](limits=BrokerLimits())
    for key, selector in enumerate(selectors):
        matcher.add(key, selector)
    for key in range(len(selectors)):
        assert matcher.remove(key)
    assert matcher._root.empty
    assert len(matcher) == 0


@settings(max_examples=examples(60), deadline=None)
@given(selector=SELECTORS, row=rows(), bound=st.integers(1, 3))
def test_the_bound_on_clauses_changes_no_answer(selector: Selector, row: dict[str, Scalar], bound: int) -> None:
    matcher = Matcher[int](BrokerLimits(matching_clauses=bound))
    matcher.add(0, selector)
    assert list(matcher.match(row)) == naive({0: selector}, row)


def test_numbers_compare_exactly() -> None:
    matcher = matcher_of("i = 9007199254740993", "i > 9007199254740992.0", "i = 1.0", "i = 1")
    assert list(matcher.match({"i": 2**53 + 1})) == ["i = 9007199254740993", "i > 9007199254740992.0"]
    assert list(matcher.match({"i": 2.0**53})) == []
    assert sorted(matcher.match({"i": 1.0})) == ["i = 1", "i = 1.0"]
    assert list(matcher.match({"i": True})) == []


def test_null_and_nan_match_nothing_but_what_tests_for_null() -> None:
    matcher = matcher_of("f > 0", "NOT f > 0", "f IS NULL", "f IS NOT NULL", "f IS NULL OR i = 1")
    assert sorted(matcher.match({})) == ["f IS NULL", "f IS NULL OR i = 1"]
    assert list(matcher.match({"f": float("nan"), "i": 1})) == ["f IS NULL OR i = 1"]
    assert sorted(matcher.match({"f": float("inf")})) == ["f > 0", "f IS NOT NULL"]


def test_nan_is_not_a_value_on_a_route_either() -> None:
    matcher = matcher_of(*(f"f IS NOT NULL AND x{number} IS NOT NULL" for number in range(20)))
    assert list(matcher.match({"f": 1.0, "x1": 1})) == ["f IS NOT NULL AND x1 IS NOT NULL"]
    assert list(matcher.match({"f": float("nan"), "x1": 1})) == []
    assert list(matcher.match({"x1": 1})) == []


def test_timestamps_of_any_zone_are_instants() -> None:
    matcher = matcher_of("t = TIMESTAMP '2026-01-01 14:00:00+02:00'")
    assert matcher.match({"t": datetime(2026, 1, 1, 12, tzinfo=UTC)})
    assert not matcher.match({"t": datetime(2026, 1, 1, 14, tzinfo=UTC)})


def test_one_selector_of_many_keys_is_kept_once() -> None:
    matcher = Matcher[int](limits=BrokerLimits())
    for key in range(100):
        matcher.add(key, parse("price > 5"))
    assert list(matcher.match({"price": 6})) == list(range(100))
    for key in range(99):
        matcher.remove(key)
    assert list(matcher.match({"price": 6})) == [99]


def test_a_selector_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    matcher = Matcher[str](limits=BrokerLimits())
    schema = {"price": AttributeSpec(Kind.INTEGER)}
    matcher.add("a", parse("price > 5"), schema)
    with pytest.raises(SelectorError) as caught:
        matcher.add("a", parse("price > 'x'"), schema)
    assert caught.value.code == "selector.type"
    assert list(matcher.match({"price": 6})) == ["a"]


def test_what_can_be_looked_up_is_not_tried() -> None:
    matcher = Matcher[int](limits=BrokerLimits())
    for key in range(100):
        matcher.add(key, parse(f"plate = 'P{key}' AND speed * 2 > 10 OR speed BETWEEN {key} AND {key + 5}"))
    assert matcher.unrouted == 0
    matcher.add(100, parse("speed * 2 > plate_count"))
    matcher.add(101, parse("a = b"))
    assert matcher.unrouted == 2


def test_an_or_with_too_many_clauses_is_tried_as_a_whole() -> None:
    matcher = Matcher[int](limits=BrokerLimits())
    wide = " OR ".join(f"i = {number} AND j = {number}" for number in range(40))
    matcher.add(0, parse(wide))
    assert matcher.unrouted == 1
    matcher.add(0, parse(f"s = 'x' AND ({wide})"))
    assert matcher.unrouted == 0
    assert list(matcher.match({"s": "x", "i": 7, "j": 7})) == [0]
    assert list(matcher.match({"s": "x", "i": 7, "j": 8})) == []


def test_long_lists_do_not_multiply() -> None:
    numbers = ", ".join(str(number) for number in range(300))
    matcher = Matcher[int](limits=BrokerLimits())
    for key in range(20):
        matcher.add(key, parse(f"i IN ({numbers}) AND j IN ({numbers}) AND k IN ({numbers}, {1000 + key})"))
    assert _nodes(matcher) < 1000
    assert list(matcher.match({"i": 5, "j": 6, "k": 1007})) == [7]


def _nodes(matcher: Matcher[int]) -> int:
    count, pending = 0, [matcher._root]
    while pending:
        node = pending.pop()
        count += 1
        pending += (child for route in node.routes.values() for child in route.points.values())
    return count


def test_a_new_layout_for_each_row_is_neither_compiled_nor_kept() -> None:
    matcher = matcher_of("i = 1", "j > 2")
    for number in range(1_000):
        found = matcher.match_rows(("i", f"x{number}", "j"), [["id", None, number % 2, "x", 3]])
        assert sorted(found[0]) == (["i = 1", "j > 2"] if number % 2 else ["j > 2"])
    quick = matcher._quick
    assert quick is not None
    assert not quick._row_tests
    assert len(quick._layouts) <= 256

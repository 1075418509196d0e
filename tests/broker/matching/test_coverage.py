"""What is forwarded serves every subscription, and nothing of it is superfluous where that can be proven."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.selector.strategies import SCHEMA, conditions, rows

from penstock.broker.limits import BrokerLimits
from penstock.broker.matching.clauses import Box
from penstock.broker.matching.coverage import Coverage, CoverageChange, Interest
from penstock.errors import EvaluationError, SelectorError
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.values import AttributeSpec, Kind, Ranged, Scalar, Schema
from penstock.selector import ALWAYS, AnalysisVerdict, Selector, covers, evaluate, parse

NEWS, SPORT, FOOTBALL, OTHER = (
    TypeKey(Principal(bytes(32)), name) for name in ("News", "News.Sport", "News.Sport.Football", "Other")
)
ANCESTORS = {NEWS: (), SPORT: (NEWS,), FOOTBALL: (SPORT, NEWS), OTHER: ()}
SMALL: Schema = {
    "i": AttributeSpec(Kind.INTEGER),
    "r": AttributeSpec(Kind.INTEGER, Ranged(0, 5)),
    "f": AttributeSpec(Kind.FLOAT),
    "s": AttributeSpec(Kind.STRING),
    "b": AttributeSpec(Kind.BOOLEAN),
}


def interest(text: str, kind: TypeKey = NEWS, schema: Schema = SMALL) -> Interest:
    return Interest(kind, parse(text), ANCESTORS[kind], schema)


PREDICATES = [
    *(f"i {operator} {number}" for operator in ("=", ">", "<=") for number in (0, 1, 2)),
    *(f"i BETWEEN {number} AND {number + 1}" for number in range(4)),
    *(f"r {operator} {number}" for operator in (">=", "<") for number in (0, 2, 5)),
    *(f"f {operator} {number}" for operator in (">", "<=") for number in ("0.5", "1")),
    *("s = 'ab'", "s LIKE 'a%'", "s LIKE 'ab%'", "s IN ('a', 'b')", "s IS NULL", "s IS NOT NULL", "b", "NOT b"),
]
SIMPLE = st.lists(st.sampled_from(PREDICATES), max_size=3).map(lambda parts: parse(" AND ".join(parts) or "TRUE"))
ANY = st.one_of(
    SIMPLE,
    st.lists(st.sampled_from(PREDICATES), min_size=2, max_size=3).map(lambda parts: parse(" OR ".join(parts))),
    st.sampled_from(["i + r > 3", "i = 1 AND i + r > 3", "s LIKE '%a'", "FALSE"]).map(parse),
)
VALUES: dict[str, st.SearchStrategy[Scalar]] = {
    "i": st.integers(-1, 5),
    "r": st.integers(0, 5),
    "f": st.sampled_from([0.0, 0.5, 0.75, 1.0, 2.0, float("nan"), float("inf")]),
    "s": st.sampled_from(["", "a", "ab", "abc", "b", "c"]),
    "b": st.booleans(),
}
EVENTS = st.tuples(
    st.sampled_from(list(ANCESTORS)),
    st.fixed_dictionaries({}, optional={name: st.none() | values for name, values in VALUES.items()}),
)


def steps(selectors: st.SearchStrategy[Selector]) -> st.SearchStrategy[list[tuple[int, Interest | None]]]:
    interests = st.builds(
        lambda kind, selector: Interest(kind, selector, ANCESTORS[kind], SMALL),
        st.sampled_from(list(ANCESTORS)),
        selectors,
    )
    return st.lists(st.tuples(st.integers(0, 25), st.none() | interests | interests), max_size=60)


def is_true(selector: Selector, row: dict[str, Scalar]) -> bool:
    try:
        return evaluate(selector, row) is True
    except EvaluationError:
        return False


def wants(one: Interest, kind: TypeKey, row: dict[str, Scalar]) -> bool:
    return one.type in (kind, *ANCESTORS[kind]) and is_true(one.selector, row)


def surely_covers(one: Interest, other: Interest) -> bool:
    related = one.type in (other.type, *other.ancestors)
    return related and covers(one.selector, other.selector, other.schema).verdict is AnalysisVerdict.YES


def apply(coverage: Coverage[int], step: tuple[int, Interest | None], known: dict[int, Interest]) -> CoverageChange:
    key, wanted = step
    if wanted is None:
        known.pop(key, None)
        return coverage.remove(key)
    known[key] = wanted
    return coverage.add(key, wanted)


@settings(max_examples=examples(150), deadline=None)
@given(history=steps(ANY), events=st.lists(EVENTS, min_size=5, max_size=20))
def test_what_is_forwarded_is_the_union_of_the_subscriptions(
    history: list[tuple[int, Interest | None]], events: list[tuple[TypeKey, dict[str, Scalar]]]
) -> None:
    coverage, known = Coverage[int](limits=BrokerLimits()), dict[int, Interest]()
    for number, step in enumerate(history):
        apply(coverage, step, known)
        if number % 7 and number < len(history) - 1:
            continue
        for kind, row in events:
            needed = any(wants(one, kind, row) for one in known.values())
            assert any(wants(one, kind, row) for one in coverage.forwarded) is needed
        for key, one in known.items():
            above = coverage.forwarded_for(key)
            assert above is None or above in coverage.forwarded
            assert not any(wants(one, *event) and not (above and wants(above, *event)) for event in events)


@settings(max_examples=examples(60), deadline=None)
@given(
    history=st.lists(st.tuples(st.integers(0, 8), st.none() | conditions(depth=2)), max_size=16),
    events=st.lists(rows(), min_size=4, max_size=8),
)
def test_it_is_the_union_for_any_selectors(
    history: list[tuple[int, str | None]], events: list[dict[str, Scalar]]
) -> None:
    coverage, known = Coverage[int](limits=BrokerLimits()), dict[int, Interest]()
    for key, text in history:
        apply(coverage, (key, None if text is None else interest(text, schema=SCHEMA)), known)
    for row in events:
        needed = any(is_true(one.selector, row) for one in known.values())
        assert any(is_true(one.selector, row) for one in coverage.forwarded) is needed


@settings(max_examples=examples(80), deadline=None)
@given(history=steps(SIMPLE))
def test_no_forwarded_conjunction_covers_another(history: list[tuple[int, Interest | None]]) -> None:
    coverage, known = Coverage[int](limits=BrokerLimits()), dict[int, Interest]()
    for step in history:
        apply(coverage, step, known)
    forwarded = coverage.forwarded
    assert not [
        (one, other) for one in forwarded for other in forwarded if one is not other and surely_covers(one, other)
    ]
    assert len(forwarded) <= len(set(known.values()))


@settings(max_examples=examples(80), deadline=None)
@given(history=steps(ANY))
def test_a_change_is_the_difference_and_nothing_stays_behind(history: list[tuple[int, Interest | None]]) -> None:
    coverage, known = Coverage[int](limits=BrokerLimits()), dict[int, Interest]()
    for step in [*history, *((key, None) for key in range(26))]:
        before = set(coverage.forwarded)
        change = apply(coverage, step, known)
        after = set(coverage.forwarded)
        assert (set(change.added), set(change.removed)) == (after - before, before - after)
        assert len(change.added) == len(set(change.added))
    assert (len(coverage), coverage.forwarded, coverage._members) == (0, (), {})
    assert not any((coverage._roots._matchers, coverage._roots._rows, coverage._roots._sides))


def forwarded(*texts: str, limits: BrokerLimits | None = None) -> list[str]:
    coverage = Coverage[int](limits or BrokerLimits())
    for key, text in enumerate(texts):
        coverage.add(key, interest(text))
    return [one.selector.text for one in coverage.forwarded]


def test_a_parent_type_covers_its_sub_types() -> None:
    coverage = Coverage[str](limits=BrokerLimits())
    coverage.add("football", interest("i > 5", FOOTBALL))
    coverage.add("sport", interest("i > 3 AND b", SPORT))
    change = coverage.add("news", interest("i > 3", NEWS))
    assert change.added == (interest("i > 3"),)
    assert set(change.removed) == {interest("i > 5", FOOTBALL), interest("i > 3 AND b", SPORT)}
    assert coverage.add("again", interest("i > 4", SPORT)) == CoverageChange()
    change = coverage.remove("news")
    assert set(change.added) == {interest("i > 4", SPORT), interest("i > 3 AND b", SPORT)}
    assert change.removed == (interest("i > 3"),)


def test_a_sub_type_covers_neither_its_parent_nor_others() -> None:
    coverage = Coverage[str](limits=BrokerLimits())
    coverage.add("sport", interest("TRUE", SPORT))
    assert coverage.add("news", interest("i = 1", NEWS)).added
    assert coverage.add("other", interest("i = 1", OTHER)).added
    assert len(coverage.forwarded) == 3


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["i BETWEEN 0 AND 5", "i BETWEEN 4 AND 9"], ["i >= 0 AND i < 10"]),
        (["i BETWEEN 0 AND 4", "i BETWEEN 5 AND 9"], ["i >= 0 AND i < 10"]),
        (["i BETWEEN 0 AND 4", "i BETWEEN 6 AND 9"], None),
        (["f >= 0 AND f <= 4", "f > 4.5 AND f < 9"], None),
        (["i < 5 AND s = 'a'", "i > 3 AND s = 'a'"], ["i IS NOT NULL AND s = 'a'"]),
        (["i < 5 AND s = 'a'", "i > 3 AND s = 'b'"], None),
        (["i < 5 AND f > 1", "i > 3 AND f > 2"], None),
        (["b", "NOT b"], ["b IS NOT NULL"]),
        (["i = 1", "i = 2", "i = 3"], ["i >= 1 AND i < 4"]),
        (["i = 1", "i = 3", "i = 2"], ["i >= 1 AND i < 4"]),
        (["i < 3", "i IS NULL"], None),
    ],
)
def test_merging_is_exact(texts: list[str], expected: list[str] | None) -> None:
    assert forwarded(*texts) == (expected if expected is not None else [parse(text).text for text in texts])


def test_a_merged_root_goes_with_its_parts() -> None:
    coverage = Coverage[str](limits=BrokerLimits())
    for key, low in (("a", 0), ("b", 3), ("c", 6)):
        coverage.add(key, interest(f"i BETWEEN {low} AND {low + 3}"))
    coverage.add("inner", interest("i = 5"))
    assert coverage.forwarded == (interest("i >= 0 AND i < 10"),)
    coverage.add("same", interest("i >= 0 AND i < 10"))
    assert coverage.remove("b") == CoverageChange()
    change = coverage.remove("same")
    assert change.removed == (interest("i >= 0 AND i < 10"),)
    assert set(coverage.forwarded) == {interest("i BETWEEN 0 AND 3"), interest("i >= 5 AND i < 10")}


def test_merging_stops_at_its_limit() -> None:
    texts = [f"i = {number}" for number in range(6)]
    assert forwarded(*texts, limits=BrokerLimits(coverage_merged=3)) == ["i >= 0 AND i < 3", "i >= 3 AND i < 6"]


def test_several_clauses_together_may_cover() -> None:
    assert forwarded("i < 5 OR i IS NULL OR f > 1", "i > 1 OR s = 'a'", "i BETWEEN 3 AND 7 AND f > 1") == [
        parse("i < 5 OR i IS NULL OR f > 1").text,
        parse("i > 1 OR s = 'a'").text,
    ]
    assert forwarded("b AND i > 1 OR NOT b AND i > 1", "i > 1 AND b IS NOT NULL") == [
        parse("b AND i > 1 OR NOT b AND i > 1").text
    ]


def test_what_needs_evaluation_is_forwarded_once_and_can_be_covered() -> None:
    assert forwarded("i + r > 3", "i + r > 3", "r + i > 3") == ["i + r > 3", "r + i > 3"]
    assert forwarded("i = 1", "i = 1 AND i + r > 3") == ["i = 1"]
    assert forwarded("i = 1 AND i + r > 3", "i = 1") == ["i = 1"]


def test_a_clause_that_needs_evaluation_covers_nothing_beside_one_that_does_not() -> None:
    texts = [
        "i = 1 AND b OR i = 2 AND s = 'a'",
        "i = 1 OR i = 2 AND i + r > 3",
    ]
    assert forwarded(*texts) == [parse(text).text for text in texts]


def test_what_hung_below_one_that_went_is_still_served() -> None:
    coverage = Coverage[str](limits=BrokerLimits())
    for key in ("i > 3", "i > 2", "i > 1"):
        coverage.add(key, interest(key))
    assert coverage.forwarded == (interest("i > 1"),)
    assert coverage.remove("i > 2") == CoverageChange()
    assert coverage.remove("i > 1") == CoverageChange((interest("i > 3"),), (interest("i > 1"),))


def test_a_test_for_null_covers_what_has_it_too() -> None:
    assert forwarded("s IS NULL AND i = 1", "s IS NULL") == ["s IS NULL"]
    assert forwarded("s IS NULL", "s IS NULL AND i = 1") == ["s IS NULL"]


def test_what_is_never_true_is_not_forwarded() -> None:
    assert forwarded("i > 2 AND i < 2", "r > 9", "i = NULL", "i > 1 AND i < 2") == []
    coverage = Coverage[int](limits=BrokerLimits())
    coverage.add(1, interest("r > 9"))
    assert coverage.forwarded_for(1) is None
    assert coverage.remove(1) == CoverageChange()


def test_an_attribute_that_the_schema_lacks_proves_nothing() -> None:
    coverage = Coverage[int](limits=BrokerLimits())
    coverage.add(1, Interest(NEWS, parse("new = 1")))
    coverage.add(2, Interest(NEWS, parse("new = 1 AND newer = 2")))
    assert len(coverage.forwarded) == 2
    coverage.add(3, Interest(NEWS, ALWAYS))
    assert list(coverage.forwarded) == [Interest(NEWS, ALWAYS)]


def test_two_kinds_under_one_name_are_kept_apart() -> None:
    coverage = Coverage[int](limits=BrokerLimits())
    coverage.add(1, interest("i > 1"))
    coverage.add(2, Interest(NEWS, parse("i > 'a'"), (), {"i": AttributeSpec(Kind.STRING)}))
    coverage.add(3, Interest(NEWS, parse("i > 'b' OR i < 'c' AND s = 'a'"), (), {**SMALL, "i": SMALL["s"]}))
    assert len(coverage.forwarded) == 3


def test_a_selector_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    coverage = Coverage[int](limits=BrokerLimits())
    coverage.add(1, interest("i > 1"))
    with pytest.raises(SelectorError) as caught:
        coverage.add(1, interest("i > 'a'"))
    assert caught.value.code == "selector.type"
    assert coverage.forwarded == (interest("i > 1"),)


def test_the_selector_is_not_in_the_representation() -> None:
    assert "secret" not in repr(interest("s = 'secret'"))
    assert "secret" not in repr(CoverageChange((interest("s = 'secret'"),)))


@pytest.mark.parametrize(
    "shape",
    [
        "s = 'p{0}' AND i > {1}",
        "i > {0} AND f < {0}",
        "i + r > {0}",
        "s = 'x' AND i * r > {0}",
        "i = {0} OR f = {0} OR b AND r = 1",
    ],
)
def test_the_work_for_one_is_bounded(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    within = Box.within

    def counted(one: Box, other: Box) -> bool:
        calls.append(None)
        return within(one, other)

    monkeypatch.setattr(Box, "within", counted)
    coverage = Coverage[int](BrokerLimits(coverage_comparisons=20))
    for number in range(200):
        coverage.add(number, interest(shape.format(number, number % 7)))
        # Once for those that may cover it, once for those that it may cover; the last may be of three boxes and three.
        assert len(calls) <= 2 * (20 + 9)
        calls.clear()

"""Children that are found by ranges: all that can apply, and few besides."""

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.policy.kit import NOW
from tests.policy.random_policies import Maker

from penstock.policy.combining import RULE_ALGORITHMS
from penstock.policy.engine import index as index_ranges
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.evaluate import evaluate
from penstock.policy.engine.index import Ranges, Span, spans
from penstock.policy.engine.lookup import Context, NoSources
from penstock.policy.language.datatypes import DATE, DOUBLE, INTEGER, STRING, DataType, Value
from penstock.policy.language.functions import V1
from penstock.policy.language.policies import (
    Designator,
    Match,
    Policy,
    PolicySet,
    Rule,
    RuleEffect,
    Target,
    function_of,
)
from penstock.policy.language.requests import SUBJECT
from penstock.policy.language.times import read_date

LEVEL = Designator(SUBJECT, "level", INTEGER)
RULES = "urn:oasis:names:tc:xacml:3.0:rule-combining-algorithm:deny-overrides"
POLICIES = RULES.replace(":rule-", ":policy-")


def match(sign: str, value: Value, attribute: Designator = LEVEL) -> Match:
    return Match(function_of(f"{V1}{attribute.of}-{sign}"), value, attribute.of, attribute)


def between(low: Value, high: Value, attribute: Designator = LEVEL) -> Target:
    """At least the one and at most the other: the value comes first in a match."""
    least, most = match("less-than-or-equal", low, attribute), match("greater-than-or-equal", high, attribute)
    return (((least,),), ((most,),))


def found(ranges: Ranges, *values: Value, attribute: Designator = LEVEL) -> list[int]:
    return [*ranges.places(Context(None, NOW, NoSources(), {attribute.key: values}))]


def test_ranges_of_targets() -> None:
    assert spans(between(1, 5)) == {LEVEL: Span(1, 5)}
    assert spans((((match("less-than", 1), match("greater-than", 9)),),)) == {LEVEL: Span(1, 9)}
    either = (((match("greater-than", 3), match("less-than", 1)), (match("less-than", 7),)),)
    assert spans(either[:1]) == {LEVEL: Span(1, None)}
    assert spans((((match("less-than", 1),), (match("greater-than", 3),)),)) == {}
    assert spans((((match("equal", 1),),),)) == {}
    issued = Designator(SUBJECT, "level", INTEGER, issuer="me")
    assert spans(between(1, 2, issued)) == {}
    number = Designator(SUBJECT, "x", DOUBLE)
    assert spans(between(math.nan, 5.0, number)) == {number: Span(None, 5.0)}


def test_of_many_few_are_found() -> None:
    ranges = Ranges.of(range(1000), [between(10 * one, 10 * one + 14) for one in range(1000)])
    assert ranges is not None
    assert found(ranges, 5) == [0]
    assert found(ranges, 5003) == [499, 500]
    assert found(ranges, 10) == [0, 1]
    assert found(ranges, -1) == []
    assert found(ranges, 10_005) == []
    assert found(ranges) == []
    # One above the lower end and one below the upper: all may match.
    assert len(found(ranges, -1, 20_000)) == 1000


def test_what_must_be_there_is_for_each_to_say() -> None:
    must = Designator(SUBJECT, "level", INTEGER, must_be_present=True)
    ranges = Ranges.of(range(20), [between(one, one, must) for one in range(20)])
    assert ranges is not None
    assert len(found(ranges)) == 20
    assert found(ranges, 3) == [3]


def test_ranges_that_none_lies_in_are_asked() -> None:
    ranges = Ranges.of(range(20), [between(5, 1)] * 10 + [between(1, 5)] * 10)
    assert ranges is not None
    assert found(ranges, 9) == [*range(10)]


def test_few_or_others_are_no_index() -> None:
    assert Ranges.of(range(3), [between(1, 2)] * 3) is None
    assert Ranges.of(range(40), [between(1, 2)] * 10 + [()] * 30) is None


TYPES: list[tuple[DataType, list[Value]]] = [
    (INTEGER, [*range(-3, 9)]),
    (DOUBLE, [-math.inf, -1.5, 0.0, 2.0, math.inf, math.nan]),
    (STRING, ["", "a", "ab", "b", "z"]),
    (DATE, [read_date(f"2026-01-{day:02}") for day in range(1, 9)]),
]


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 1 << 40), st.sampled_from(TYPES))
def test_all_that_match_are_found(seed: int, of: tuple[DataType, list[Value]]) -> None:
    random, (of_type, values) = Random(seed), of  # noqa: S311  # the same for a seed
    attribute = Designator(SUBJECT, "x", of_type)
    signs = ["less-than", "less-than-or-equal", "greater-than", "greater-than-or-equal"]

    def any_of() -> tuple[tuple[Match, ...], ...]:
        sizes = [random.choice([1, 1, 2]) for _ in range(random.choice([1, 1, 2]))]
        return tuple(
            tuple(match(random.choice(signs), random.choice(values), attribute) for _ in range(size)) for size in sizes
        )

    targets = [tuple(any_of() for _ in range(random.choice([1, 2, 2]))) for _ in range(24)]
    rules = tuple(Rule(f"{place}", RuleEffect.PERMIT, target) for place, target in enumerate(targets))
    ranges = Ranges.of(range(24), targets)
    if ranges is None:
        return
    for size in (0, 1, 1, 1, 1, 2):
        bag = tuple(random.choices(values, k=size))
        context = Context(None, NOW, NoSources(), {attribute.key: bag})
        apply = [
            place
            for place, rule in enumerate(rules)
            if evaluate(Policy("p", "1.0", RULES, (rule,)), context).decision.value == "Permit"
        ]
        places = found(ranges, *bag, attribute=attribute)
        assert places == sorted(set(places))
        assert {*apply} <= {*places}


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 1 << 40))
def test_policies_with_many_ranges_say_what_they_say(seed: int) -> None:
    maker = Maker(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_ranges, "_FEWEST", 2)
        rules = tuple(Rule(f"r{one}", maker.random.choice([*RuleEffect]), maker.target()) for one in range(20))
        many = Policy("many", "1.0", maker.random.choice([*RULE_ALGORITHMS]), rules)
        single = [replaced(maker, rule) for rule in rules]
        root = PolicySet("s", "1.0", POLICIES, (many, *single))
        compiled = CompiledPolicy(root)
    for _ in range(12):
        facts = maker.facts()
        expected = evaluate(root, Context(None, NOW, NoSources(), facts))
        outcome = compiled.ask(facts, NOW)
        assert (outcome.decision, outcome.status) == (expected.decision, expected.status)


def replaced(maker: Maker, rule: Rule) -> Policy:
    """A policy whose only rule has the target, and perhaps an error in its condition."""
    return Policy(f"p{rule.id}", "1.0", RULES, (Rule("r", rule.effect, rule.target, maker.condition(variables=False)),))

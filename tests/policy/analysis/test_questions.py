"""Analysis agrees with trying all requests over few values, and what it shows is so."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.policy.kit import AGE, FIRST, FUNCTION, NOW, apply, designator, policy, rule, value
from tests.policy.random_policies import Maker

from penstock.errors import MalformedError
from penstock.policy.analysis.questions import DECISIONS, Analysis
from penstock.policy.combining import with_priorities
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.decide import decide
from penstock.policy.engine.evaluate import evaluate
from penstock.policy.engine.lookup import Context, NoSources, Repository
from penstock.policy.language.datatypes import BOOLEAN, DATE, DATE_TIME, DOUBLE, INTEGER, STRING, TIME, DataType
from penstock.policy.language.functions import V1
from penstock.policy.language.policies import (
    Designator,
    Expression,
    Match,
    Policy,
    PolicyLiteral,
    PolicyReference,
    PolicySet,
    Reference,
    Root,
    RuleEffect,
    function_of,
)
from penstock.policy.language.policies import apply as applied
from penstock.policy.language.requests import ACTION, ENVIRONMENT, SUBJECT, Facts, Request, key_of
from penstock.policy.syntax.json.requests import read_request, write_request
from penstock.policy.syntax.xml.policies import read_leniently, read_policy
from penstock.selector.analysis import AnalysisVerdict
from penstock.selector.limits import SelectorLimits

#: what policies name, and what requests have besides: each gap has as many values as there are attributes of the type
NAMED: dict[DataType, list[Any]] = {STRING: ["b"], INTEGER: [0, 1], DOUBLE: [0.0, math.nan], BOOLEAN: [True, False]}
TRIED: dict[DataType, list[Any]] = {
    **NAMED,
    STRING: ["a", "b", "c"],
    INTEGER: [*range(-2, 4)],
    DOUBLE: [-1.0, 0.0, 1.0, math.nan],
}
ATTRIBUTES = [
    (SUBJECT, "s", STRING),
    (ACTION, "n", INTEGER),
    (ACTION, "m", INTEGER),
    (ACTION, "d", DOUBLE),
    (ACTION, "b", BOOLEAN),
]
COMPARED = ["equal", "greater-than", "less-than-or-equal", "less-than"]
OLD = apply("integer-greater-than", apply("integer-one-and-only", designator()), value("17", "integer"))


class Simple(Maker):
    """Makes policies of the fragment over three attributes."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.attributes = self.random.sample(ATTRIBUTES, 3)

    def designator(self, of_type: DataType | None = None) -> Designator:
        known = [one for one in self.attributes if of_type in (None, one[2])]
        return Designator(*self.random.choice(known or self.attributes), must_be_present=self.rarely(4))

    def compared(self, of_type: DataType) -> str:
        return f"{V1}{of_type}-{'equal' if of_type is BOOLEAN else self.random.choice(COMPARED)}"

    def match(self) -> Match:
        attribute = self.designator()
        named = self.random.choice(NAMED[attribute.of])
        return Match(function_of(self.compared(attribute.of)), named, attribute.of, attribute)

    def one(self, of_type: DataType) -> Expression:
        found = self.designator(of_type)
        if found.of is not of_type or self.rarely(3):
            return PolicyLiteral(self.random.choice(NAMED[of_type]), of_type)
        if of_type is INTEGER and self.rarely(4):
            return applied(f"{V1}integer-bag-size", [found])
        return applied(f"{V1}{of_type}-one-and-only", [found])

    def number(self) -> Expression:
        return self.one(INTEGER)

    def condition(self, depth: int = 2, *, variables: bool = True) -> Expression:
        inner = (
            [self.condition(depth - 1, variables=variables) for _ in range(self.random.randrange(1, 4))]
            if depth
            else []
        )
        attribute = self.designator()
        of_type = attribute.of
        match self.random.randrange(0 if depth else 5, 10):
            case 0 | 1:
                return applied(f"{V1}{self.random.choice(['or', 'and'])}", inner)
            case 2:
                return applied(f"{V1}not", inner[:1])
            case 3:
                return applied(f"{V1}n-of", [PolicyLiteral(self.random.randrange(-1, 4), INTEGER), *inner])
            case 4 if variables:
                return Reference(self.random.choice(["v", "w"]), BOOLEAN)
            case 5:
                return applied(f"{V1}{of_type}-is-in", [self.one(of_type), attribute])
            case 6:
                bag = applied(f"{V1}{of_type}-bag", [self.one(of_type) for _ in range(self.random.randrange(3))])
                return applied(f"{V1}{of_type}-is-in", [self.one(of_type), bag])
            case 7:
                bag = applied(f"{V1}{of_type}-bag", [self.one(of_type) for _ in range(self.random.randrange(3))])
                return applied(f"{V1}{of_type}-at-least-one-member-of", [attribute, bag])
        return applied(self.compared(of_type), [self.one(of_type), self.one(of_type)])

    def _member(self, depth: int) -> Policy | PolicySet | PolicyReference:
        return self.policy_set(depth - 1) if depth and self.rarely(4) else self.policy()

    def root(self) -> Root:
        return self.policy() if self.rarely(2) else self.policy_set(1)

    def requests(self) -> Iterator[Facts]:
        keys = [key_of(*one) for one in self.attributes]
        for values in product(*([(), *((one,) for one in TRIED[key.of])] for key in keys)):
            yield dict(zip(keys, values, strict=True))


def decided(root: Root, facts: Facts) -> str:
    return evaluate(root, Context(None, NOW, NoSources(), facts)).decision.plain


@settings(max_examples=examples(6), deadline=None)
@given(st.integers(0, 1 << 40))
def test_two_policies_as_all_requests_show(seed: int) -> None:
    maker = Simple(seed)
    one, other = maker.root(), maker.root()
    seen = {(decided(one, facts), decided(other, facts)) for facts in maker.requests()}
    asked = Analysis(one, other, values=1)
    implied = not any(first == "Permit" != second for first, second in seen)
    assert (asked.implies().verdict is AnalysisVerdict.YES) is implied
    assert (asked.disjoint().verdict is AnalysisVerdict.YES) is (("Permit", "Permit") not in seen)
    assert (asked.equivalent().verdict is AnalysisVerdict.YES) is all(first == second for first, second in seen)
    changes = asked.changes()
    assert {(one.before, one.after) for one in changes} == {way for way in seen if way[0] != way[1]}
    for change in changes:
        facts = change.found.witness
        assert facts is not None
        assert (decided(one, facts), decided(other, facts)) == (change.before, change.after)


@settings(max_examples=examples(6), deadline=None)
@given(st.integers(0, 1 << 40))
def test_rules_as_all_requests_show(seed: int) -> None:
    maker = Simple(seed)
    root = maker.policy()
    asked = Analysis(root, values=1)
    requests = [*maker.requests()]
    said = [decided(root, facts) for facts in requests]
    alone = [
        {place for place, facts in enumerate(requests) if decided(one.alone, facts) == one.rule.effect.value}
        for one in asked.rules()
    ]
    idle = {one.rule.path[0]: one.never for one in asked.idle_rules()}
    for place, one in enumerate(root.rules):
        without = replace(root, rules=root.rules[:place] + root.rules[place + 1 :])
        duties = one.duties.obligations or one.duties.advice
        same = not duties and [decided(without, facts) for facts in requests] == said
        assert idle.get(place) == (True if not alone[place] else False if same else None)
    effects = [one.effect for one in root.rules]
    expected = {
        (one, other)
        for one, other in product(range(len(effects)), repeat=2)
        if effects[one] is RuleEffect.PERMIT and effects[other] is RuleEffect.DENY and alone[one] & alone[other]
    }
    assert {(one.permit.path[0], one.deny.path[0]) for one in asked.conflicts()} == expected


class Several(Simple):
    """Makes requests with up to two values for each attribute, and policies with what has no formula now and then."""

    def condition(self, depth: int = 2, *, variables: bool = True) -> Expression:
        if not self.rarely(6):
            return super().condition(depth, variables=variables)
        if self.rarely(2):
            sum_of_both = applied(f"{V1}integer-add", [self.one(INTEGER), self.one(INTEGER)])
            return applied(f"{V1}integer-greater-than", [sum_of_both, self.one(INTEGER)])
        return applied("urn:oasis:names:tc:xacml:3.0:function:string-starts-with", [self.one(STRING), self.one(STRING)])

    def some_requests(self, count: int) -> list[Facts]:
        def bag(of_type: DataType) -> tuple[Any, ...]:
            return tuple(self.random.choices(TRIED[of_type], k=self.random.choice([0, 1, 1, 2])))

        return [{key_of(*one): bag(one[2]) for one in self.attributes} for _ in range(count)]


@settings(max_examples=examples(4), deadline=None)
@given(st.integers(0, 1 << 40))
def test_nothing_is_overlooked_with_two_values_and_with_what_is_not_understood(seed: int) -> None:
    """What some request shows is found, or not known; what is found is so, whenever it is asked."""
    maker = Several(seed)
    one, other = maker.root(), maker.root()
    requests = maker.some_requests(150)
    asked = Analysis(one, other)
    changes = asked.changes()
    seen = {(decided(one, facts), decided(other, facts)) for facts in requests} if asked.values == 2 else set()
    assert {way for way in seen if way[0] != way[1]} <= {(one.before, one.after) for one in changes}
    for change in changes:
        if change.found.verdict is AnalysisVerdict.YES:
            assert change.found.witness is not None
            # A request that says nothing has a category all the same.
            shown = Request.of_facts({key_of(ENVIRONMENT, "x", STRING): (), **change.found.witness})
            told = read_request(json.dumps(write_request(shown)).encode())
            for way, root in ((change.before, one), (change.after, other)):
                (result,) = decide(CompiledPolicy(root).evaluate, told, NOW).results
                assert result.decision.plain == way


@settings(max_examples=examples(4), deadline=None)
@given(st.integers(0, 1 << 40))
def test_no_rule_is_overlooked_with_two_values_and_with_what_is_not_understood(seed: int) -> None:
    maker = Several(seed)
    alone = Analysis(maker.policy())
    idle = {rule.rule.path: rule for rule in alone.idle_rules()}
    conflicts = {(pair.permit.path, pair.deny.path) for pair in alone.conflicts()}
    for facts in maker.some_requests(150):
        applying = [rule for rule in alone.rules() if decided(rule.alone, facts) == rule.rule.effect.value]
        for one in applying:
            found = idle.get(one.path)
            assert found is None or not found.never or found.verdict is AnalysisVerdict.UNKNOWN
        for permit, deny in product(applying, applying):
            if permit.rule.effect is RuleEffect.PERMIT and deny.rule.effect is RuleEffect.DENY:
                assert (permit.path, deny.path) in conflicts


def test_a_request_with_two_values_shows_what_one_value_cannot() -> None:
    def has(*roles: str) -> str:
        named = designator("role", "string")
        matches = [f'<Match MatchId="{FUNCTION}string-equal">{value(role)}{named}</Match>' for role in roles]
        return f"<Target><AnyOf><AllOf>{''.join(matches)}</AllOf></AnyOf></Target>"

    root = policy(rule(target=has("doctor"), name="a"), rule(target=has("guest"), effect="Deny", name="b"))
    assert not Analysis(root, values=1).conflicts()
    (conflict,) = Analysis(root).conflicts()
    assert conflict.found.witness == {key_of(SUBJECT, "role", STRING): ("doctor", "guest")}
    both = policy(rule(target=has("doctor", "guest")))
    assert Analysis(both, values=1).idle_rules()
    assert not Analysis(both).idle_rules()


def test_what_is_not_understood_is_unknown_and_the_rest_is_told() -> None:
    def begins(name: str, text: str) -> str:
        one = apply("string-one-and-only", designator(name, "string"))
        return apply("urn:oasis:names:tc:xacml:3.0:function:string-starts-with", value(text), one)

    pattern = apply("string-regexp-match", value("^x{5}y$"), apply("string-one-and-only", designator("n", "string")))
    root = policy(
        rule(begins("n", "doc"), name="begins"),
        rule(pattern, name="number"),
        rule(apply("not", begins("n", "doc")), effect="Deny", name="other"),
        rule(apply("and", begins("n", "doc"), apply("not", begins("n", "doc"))), name="never"),
    )
    asked = Analysis(root)
    idle = {one.rule.rule.id: one for one in asked.idle_rules()}
    # Whatever it is, it does not both hold and not hold.
    assert (idle["never"].never, idle["never"].verdict, idle["never"].unknown) == (True, AnalysisVerdict.YES, ())
    assert "begins" not in idle
    assert idle["number"].verdict is AnalysisVerdict.UNKNOWN
    assert idle["number"].unknown == ("function `string-regexp-match` of rule `number` of policy `p`",)
    assert {(one.permit.rule.id, one.deny.rule.id): one.found.verdict for one in asked.conflicts()} == {
        ("number", "other"): AnalysisVerdict.UNKNOWN
    }


def test_a_request_says_what_time_it_is() -> None:
    """What is shown is so whenever it is asked, also where the time is asked in a way that has no formula."""
    current = "urn:oasis:names:tc:xacml:1.0:environment:current-"

    def clock(name: str) -> str:
        found = designator(f"{current}{name}", name).replace(SUBJECT, ENVIRONMENT)
        return apply(f"{name}-one-and-only", found)

    late = apply("time-greater-than", clock("time"), value("18:00:00Z", "time"))
    later = apply(
        "dateTime-greater-than",
        apply("dateTime-add-yearMonthDuration", clock("dateTime"), value("P1Y", "yearMonthDuration")),
        value("2026-06-01T00:00:00Z", "dateTime"),
    )
    for condition in (late, later):
        (conflict,) = Analysis(policy(rule(condition, name="a"), rule(effect="Deny", name="b"))).conflicts()
        witness = conflict.found.witness
        assert witness is not None
        assert {key.category for key in witness} == {ENVIRONMENT}
        for now in (NOW, NOW.replace(year=1999, hour=0)):
            said = evaluate(conflict.permit.alone, Context(None, now, NoSources(), witness)).decision.plain
            assert said == "Permit"


def test_policies_with_many_rules_are_looked_at_with_one_value() -> None:
    many = policy(*(rule(name=f"r{place}") for place in range(50)))
    assert (Analysis(many).values, Analysis(policy(rule())).values) == (1, 2)


def test_what_policies_of_others_have(suites: Path) -> None:
    market = Analysis(read_policy((suites / "policies/KMarket.xml").read_bytes()), values=1)
    assert len(market.conflicts(conditions=False)) == 4
    # It lacks what the schema of XACML 3.0 wants: a target, categories, and whether attributes must be present.
    geysers, repairs = read_leniently((suites / "policies/GEYSERS.xml").read_bytes())
    assert len(repairs) == 111
    assert Analysis(geysers).rules()
    assert not Analysis(geysers, values=1).conflicts(conditions=False)


def test_a_rule_behind_another_does_nothing() -> None:
    asked = Analysis(policy(rule(name="all"), rule(OLD, effect="Deny", name="old")))
    (found,) = asked.idle_rules()
    assert (str(found.rule), found.never) == ("p / old", False)
    (conflict,) = asked.conflicts()
    assert conflict.found.witness == {key_of(SUBJECT, AGE, INTEGER): (18,)}


def test_without_a_rule_there_is_no_priority_for_it() -> None:
    root = policy(rule(name="a"), rule(effect="Deny", name="b"), combining=with_priorities((1, 2), FIRST))
    # It makes no difference that can be seen by trying, and priorities are outside of the fragment.
    found = {one.rule.rule.id: one for one in Analysis(root).idle_rules()}
    assert (found["a"].never, found["a"].verdict) == (False, AnalysisVerdict.UNKNOWN)
    assert found["a"].unknown[0] == f"combining algorithm `{with_priorities((1, 2), FIRST)}` of policy `p`"


def test_a_rule_that_never_applies() -> None:
    young = apply("integer-less-than", apply("integer-one-and-only", designator()), value("5", "integer"))
    (found,) = Analysis(policy(rule(apply("and", OLD, young)))).idle_rules()
    assert found.never


def test_conditions_may_be_ignored() -> None:
    root = policy(rule(OLD), rule(apply("not", OLD), effect="Deny"))
    assert not Analysis(root).conflicts()
    assert len(Analysis(root).conflicts(conditions=False)) == 1


def test_references_are_followed_or_told() -> None:
    inner = policy(rule(OLD))
    members = (PolicyReference("p", to_set=False),)
    combining = "urn:oasis:names:tc:xacml:1.0:policy-combining-algorithm:first-applicable"
    outer = PolicySet("s", "1.0", combining, members)
    assert Analysis(outer, inner, sources=Repository([inner])).equivalent().verdict is AnalysisVerdict.YES
    with pytest.raises(MalformedError, match="is not known") as caught:
        Analysis(outer)
    assert caught.value.code == "xacml.fragment"


def test_what_the_solver_cannot_settle_is_unknown() -> None:
    asked = Analysis(policy(rule(OLD)), policy(rule(apply("not", OLD))), limits=SelectorLimits(solver_effort=1))
    assert asked.implies().verdict is AnalysisVerdict.UNKNOWN
    with pytest.raises(TypeError):
        bool(asked.implies())


@pytest.mark.parametrize(
    ("of_type", "low", "high", "between"),
    [
        (INTEGER, "1", "2", False), (INTEGER, "1", "3", True),
        (STRING, "a", "a!", True), (STRING, "a", "b", True),
        (DOUBLE, "1.0", "1.0000000000000002", False), (DOUBLE, "1.0", "1.0000000000000004", True),
        (DOUBLE, "1.7976931348623157e308", "INF", False),
        (TIME, "23:59:59", "23:59:59.1", True), (TIME, "00:00:00", "00:00:00Z", False),
        (TIME, "00:00:00+13:59", "00:00:00+13:59", False),
        (DATE, "2026-01-01", "2026-01-02", True), (DATE, "2026-01-01Z", "2026-01-01-00:01", False),
        (DATE_TIME, "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z", True),
    ],
)  # fmt: skip
def test_what_lies_between(of_type: DataType, low: str, high: str, *, between: bool) -> None:
    one = apply(f"{of_type}-one-and-only", designator("x", of_type.name))
    after = apply(f"{of_type}-greater-than", one, value(low, of_type.name))
    before = apply(f"{of_type}-less-than", one, value(high, of_type.name))
    found = Analysis(policy(rule(apply("and", after, before))), policy(rule(effect="Deny"))).implies()
    assert (found.verdict is AnalysisVerdict.NO) is between


def test_the_clock_is_always_there() -> None:
    now = designator("urn:oasis:names:tc:xacml:1.0:environment:current-time", "time").replace(
        SUBJECT, "urn:oasis:names:tc:xacml:3.0:attribute-category:environment"
    )
    there = apply(f"{FUNCTION}integer-equal", apply("time-bag-size", now), value("1", "integer"))
    assert Analysis(policy(rule(there)), policy(rule())).equivalent().verdict is AnalysisVerdict.YES
    assert DECISIONS == ("Permit", "Deny", "NotApplicable", "Indeterminate")

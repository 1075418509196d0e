"""Whole policies as Python say what compiled ones say, or that they do not know."""

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.policy.kit import NOW, policy, rule
from tests.policy.random_policies import Maker

from penstock.errors import EvaluationError
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.evaluate import evaluate
from penstock.policy.engine.fast_path import FastPolicy, NoFastAnswer
from penstock.policy.engine.lookup import Context, Repository
from penstock.policy.language.datatypes import DATE_TIME, INTEGER, STRING
from penstock.policy.language.functions import V1
from penstock.policy.language.policies import (
    Designator,
    Duties,
    Duty,
    Match,
    Policy,
    PolicyLiteral,
    PolicyReference,
    PolicySet,
    Root,
    Rule,
    RuleEffect,
    apply,
    function_of,
)
from penstock.policy.language.requests import ENVIRONMENT, SUBJECT, Facts
from penstock.policy.language.results import PolicyOutcome, XacmlDecision
from penstock.policy.language.times import read_date_time

KNOWN = replace(policy(rule()), id="known")
POLICY = "urn:oasis:names:tc:xacml:3.0:policy-combining-algorithm:"
RULE = POLICY.replace(":policy-", ":rule-")
NOTHING = Duties()
ALGORITHMS = [
    *(f"{POLICY}{name}" for name in ("deny-overrides", "permit-overrides", "deny-unless-permit", "permit-unless-deny")),
    "urn:oasis:names:tc:xacml:1.0:policy-combining-algorithm:first-applicable",
]
Said = Counter[XacmlDecision | None]


class Simple(Maker):
    """Makes policies that seldom want something to be done."""

    def duties(self) -> Duties:
        return super().duties() if self.rarely(8) else Duties()


def said(ask: FastPolicy | None, facts: Facts) -> XacmlDecision | None:
    try:
        return None if ask is None else ask.decide(facts, NOW)
    except (EvaluationError, NoFastAnswer):
        return None


def compared(root: Root, known: Repository, asked: list[Facts]) -> Said:
    """Ask the fast one, the compiled one and the plain evaluator, and count what the fast one says."""
    ask, compiled = FastPolicy.of(root, known), CompiledPolicy(root, known)
    found: Said = Counter()
    for facts in asked:
        decision = said(ask, facts)
        found[decision] += 1
        if decision is not None:
            assert compiled.ask(facts, NOW) == PolicyOutcome(decision)
            plain = evaluate(root, Context(None, NOW, known, facts))
            assert (plain.decision, plain.obligations, plain.advice) == (decision, (), ())
    return found


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 1 << 40))
@example(189_781_982)  # an attribute that only the plain evaluator asks for
@example(281_312)  # obligations of one rule behind those of another, which are for the other effect
def test_it_says_what_the_compiled_one_says(seed: int) -> None:
    maker = Simple(seed) if seed % 4 else Maker(seed)
    root: Root = maker.policy() if maker.rarely(3) else maker.policy_set()
    compared(root, Repository([KNOWN]), [maker.facts() for _ in range(12)])


def test_often_there_is_a_fast_answer() -> None:
    found: Said = Counter()
    for maker in map(Simple, range(60)):
        root = replace(maker.policy_set(), combining=maker.random.choice(ALGORITHMS))
        found += compared(root, Repository([KNOWN]), [maker.facts() for _ in range(12)])
    assert {*found} == {XacmlDecision.PERMIT, XacmlDecision.DENY, XacmlDecision.NOT_APPLICABLE, None}
    assert min(found.values()) > 20


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_of_many_few_are_asked(algorithm: str) -> None:
    found: Said = Counter()
    for maker in map(Simple, range(2)):
        many = tuple(one for one in (maker.policy() for _ in range(40)) if one.target)
        asked = [maker.facts() for _ in range(60)]
        found += compared(PolicySet("many", "1.0", algorithm, many), Repository(), asked)
        rules = tuple(replace(one, duties=Duties()) for each in many for one in each.rules if one.target)
        variables = many[0].variables
        flat = Policy("flat", "1.0", algorithm.replace(":policy-", ":rule-"), rules, variables=variables)
        found += compared(flat, Repository(), asked)
    assert found.total() > found[None]


WHO = Designator(SUBJECT, "who", STRING)


def rule_of(effect: RuleEffect, *names: str, duties: Duties = NOTHING) -> Rule:
    """Return a rule about some people, or about all."""
    target = (tuple((Match(function_of(f"{V1}string-equal"), name, STRING, WHO),) for name in names),)
    return Rule("r", effect, target if names else (), duties=duties)


@pytest.mark.parametrize("count", [1, 20])
def test_weaker_decisions_of_few_and_of_many(count: int) -> None:
    def who(*names: str) -> Facts:
        return {WHO.key: names}

    for effect, algorithm in zip(RuleEffect, ("deny-overrides", "permit-overrides"), strict=True):
        rules = tuple(rule_of(effect, f"a{place}", f"b{place}") for place in range(count))
        policies = tuple(Policy(f"p{place}", "1.0", f"{RULE}{algorithm}", (one,)) for place, one in enumerate(rules))
        for root in (
            Policy("p", "1.0", f"{RULE}{algorithm}", rules),
            PolicySet("s", "1.0", f"{POLICY}{algorithm}", policies),
        ):
            asked = [who(f"a{count - 1}"), who(f"b{count - 1}"), who("x", "a0"), who("nobody")]
            assert compared(root, Repository(), asked) == {XacmlDecision.of(effect): 3, XacmlDecision.NOT_APPLICABLE: 1}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_to_be_done_besides_is_never_passed_over(algorithm: str) -> None:
    for on, effect in product(RuleEffect, RuleEffect):
        duties = Duties((Duty("log", on),))
        rules = (rule_of(effect), rule_of(effect, duties=duties))
        for combined in (rules, rules[::-1]):
            compared(Policy("p", "1.0", algorithm.replace(":policy-", ":rule-"), combined), Repository(), [{}])
        policies = tuple(Policy("p", "1.0", f"{RULE}deny-overrides", (one,), duties=duties) for one in rules)
        for root in (PolicySet("s", "1.0", algorithm, policies), PolicySet("s", "1.0", algorithm, policies * 10)):
            compared(root, Repository(), [{}])
            compared(replace(root, duties=duties), Repository(), [{}])


def test_it_knows_the_time() -> None:
    clock = Designator(ENVIRONMENT, "urn:oasis:names:tc:xacml:1.0:environment:current-dateTime", DATE_TIME)
    size = apply(f"{V1}integer-equal", [apply(f"{V1}dateTime-bag-size", [clock]), PolicyLiteral(1, INTEGER)])
    timely = Policy("p", "1.0", f"{RULE}deny-overrides", (Rule("r", RuleEffect.PERMIT, (), size),))
    assert compared(timely, Repository(), [{}]) == {XacmlDecision.PERMIT: 1}


def test_facts_may_say_what_time_it_is() -> None:
    clock = Designator(ENVIRONMENT, "urn:oasis:names:tc:xacml:1.0:environment:current-dateTime", DATE_TIME)
    long_ago = read_date_time("2001-01-01T00:00:00Z")
    target = (((Match(function_of(f"{V1}dateTime-equal"), long_ago, DATE_TIME, clock),),),)
    root = Policy("p", "1.0", f"{RULE}deny-overrides", (Rule("r", RuleEffect.PERMIT, target),))
    asked: list[Facts] = [{}, {clock.key: (long_ago,)}]
    assert compared(root, Repository(), asked) == {XacmlDecision.NOT_APPLICABLE: 1, XacmlDecision.PERMIT: 1}


@pytest.mark.parametrize("clock", [False, True])
def test_many_are_found_by_ranges_of_what_facts_say_and_of_the_time(*, clock: bool) -> None:
    number = Designator(SUBJECT, "number", INTEGER)
    moment = Designator(ENVIRONMENT, "urn:oasis:names:tc:xacml:1.0:environment:current-dateTime", DATE_TIME)
    rules = []
    for place in range(20):
        least = read_date_time(f"20{place + 20}-01-01T00:00:00Z") if clock else place
        compares = function_of(f"{V1}{'dateTime' if clock else 'integer'}-less-than-or-equal")
        match = Match(compares, least, DATE_TIME if clock else INTEGER, moment if clock else number)
        rules.append(Rule("r", RuleEffect.DENY, (((match,),),)))
    for target in ((), *rule_of(RuleEffect.DENY, "ann").target):
        named = [replace(one, target=(*one.target, target) if target else one.target) for one in rules]
        root = Policy("p", "1.0", f"{RULE}deny-overrides", (*named, Rule("r", RuleEffect.PERMIT)))
        assert compared(root, Repository(), [{number.key: (7,), WHO.key: ("ann",)}]) == {XacmlDecision.DENY: 1}


def test_a_set_within_another_version_of_itself() -> None:
    """Another version of a set is another set; within itself it is only in a ring."""
    first = PolicySet("a", "1.0", ALGORITHMS[4], (KNOWN,))
    inner = PolicySet("inner", "1.0", ALGORITHMS[4], (PolicyReference("a", to_set=True, version="1.0"),))
    second = PolicySet("a", "2.0", ALGORITHMS[4], (PolicyReference("inner", to_set=True),))
    never = replace(inner, id="never", target=rule_of(RuleEffect.DENY, "nobody").target, members=second.members)
    root = PolicySet("root", "1.0", ALGORITHMS[4], (never, PolicyReference("a", to_set=True)))
    assert compared(root, Repository([first, second, inner]), [{}]) == {XacmlDecision.PERMIT: 1}
    ring = replace(inner, members=(PolicyReference("a", to_set=True, version="2.0"),))
    assert compared(root, Repository([first, second, ring]), [{}]) == {None: 1}


def test_references_that_lead_nowhere() -> None:
    again = PolicySet("again", "1.0", ALGORITHMS[0], (PolicyReference("again", to_set=True), KNOWN))
    for wrong in (again, replace(again, members=(PolicyReference("nobody", to_set=False),))):
        root = PolicySet("root", "1.0", ALGORITHMS[0], (PolicyReference("again", to_set=True),))
        assert compared(root, Repository([wrong]), [{}]) == {None: 1}


def test_many_references_to_one_are_compiled_once() -> None:
    """Each of thirty sets refers twice to the next: what is read in no time must not take very long to compile."""
    sets = [
        PolicySet(f"s{n}", "1.0", ALGORITHMS[4], (PolicyReference(f"s{n + 1}", to_set=True),) * 2) for n in range(30)
    ]
    last = PolicySet("s30", "1.0", ALGORITHMS[4], (KNOWN,))
    assert compared(sets[0], Repository([*sets, last]), [{}]) == {XacmlDecision.PERMIT: 1}

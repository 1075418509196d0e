"""Policies that differ by their conditions alone are found by the tests that these begin with."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.policy.engine.test_compiler import Elsewhere
from tests.policy.kit import NOW
from tests.policy.random_policies import Maker

from penstock.errors import EvaluationError
from penstock.policy.combining import POLICY_ALGORITHMS, RULE_ALGORITHMS
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.evaluate import evaluate
from penstock.policy.engine.fast_path import FastPolicy, NoFastAnswer
from penstock.policy.engine.index import Comparisons, leads_of_policy, leads_of_rule
from penstock.policy.engine.lookup import Context, NoSources, Repository
from penstock.policy.language.datatypes import BOOLEAN, INTEGER, STRING
from penstock.policy.language.functions import V1
from penstock.policy.language.policies import (
    Designator,
    Duties,
    Duty,
    Expression,
    Match,
    Policy,
    PolicyLiteral,
    PolicySet,
    Reference,
    Rule,
    RuleEffect,
    apply,
    function_of,
)
from penstock.policy.language.requests import SUBJECT, Facts, Request

NONE = Duties()
FIRST = "urn:oasis:names:tc:xacml:1.0:rule-combining-algorithm:first-applicable"


class Comparing(Maker):
    """Makes conditions that compare attributes with each other, and others that fail now and then."""

    def single(self) -> Expression:
        return apply(f"{V1}string-one-and-only", [self.designator(STRING)])

    def test(self) -> Expression:
        match self.random.randrange(8):
            case 0 | 1 | 2:
                return apply(f"{V1}string-equal", [self.single(), self.single()])
            case 3:
                return apply(f"{V1}string-at-least-one-member-of", [self.designator(STRING), self.designator(STRING)])
            case 4:
                return apply(f"{V1}string-is-in", [self.single(), self.designator(STRING)])
            case 5:
                return apply(f"{V1}not", [self.test()])
            case 6:
                return apply(f"{V1}or", [self.test(), self.test()])
        return self.condition()

    def compared_rule(self, place: int) -> Rule:
        tests = [self.test() for _ in range(self.random.choice([1, 1, 2, 3]))]
        condition = tests[0] if len(tests) == 1 else apply(f"{V1}and", tests)
        target = self.target() if self.rarely(4) else ()
        effect, duties = (
            self.random.choice([*RuleEffect]),
            self.duties() if self.rarely(5) else NONE,
        )
        return Rule(f"r{place}", effect, target, condition, duties)

    def compared_policy(self, rules: int) -> Policy:
        made = tuple(self.compared_rule(place) for place in range(rules))
        variables = {"v": self.condition(variables=False), "w": Reference("v", BOOLEAN)}
        target, duties = self.target() if self.rarely(4) else (), self.duties() if self.rarely(5) else NONE
        return Policy("p", "1.0", self.random.choice([*RULE_ALGORITHMS]), made, target, variables, duties)

    def many(self) -> Policy | PolicySet:
        if self.rarely(3):
            return self.compared_policy(40)
        members = tuple(self.compared_policy(self.random.choice([1, 1, 2])) for _ in range(40))
        return PolicySet("s", "1.0", self.random.choice([*POLICY_ALGORITHMS]), members)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 1 << 40))
def test_the_index_says_what_the_plain_evaluator_says(seed: int) -> None:
    maker = Comparing(seed)
    root, sources = maker.many(), Elsewhere(())
    compiled, quick = CompiledPolicy(root, sources), FastPolicy.of(root, Repository())
    for _ in range(8):
        sources.values = maker.random.choice([(), (1,), None])
        asked = maker.facts()
        expected = evaluate(root, Context(None, NOW, sources, asked))
        assert compiled.ask(asked, NOW) == replace(expected, applicable=())
        named = replace(Request.of_facts(asked), return_policy_ids=True)
        assert compiled.ask_request(named, NOW) == expected
        try:
            decided = None if quick is None else quick.decide(asked, NOW)
        except (EvaluationError, NoFastAnswer):
            decided = None
        assert decided in (None, evaluate(root, Context(None, NOW, NoSources(), asked)).decision)


def attribute(name: str, *, must: bool = False) -> Designator:
    return Designator(SUBJECT, name, STRING, must_be_present=must)


def equal(one: str, other: str, *, must: bool = False) -> Expression:
    values = [apply(f"{V1}string-one-and-only", [attribute(name, must=must)]) for name in (one, other)]
    return apply(f"{V1}string-equal", values)


def ruled(*tests: Expression, target: tuple[()] = ()) -> Rule:
    return Rule("r", RuleEffect.PERMIT, target, apply(f"{V1}and", tests))


def facts(**values: tuple[str, ...]) -> Facts:
    return {attribute(name).key: bag for name, bag in values.items()}


def found(index: Comparisons, asked: Facts) -> list[int]:
    return [*index.places(Context(None, NOW, NoSources(), asked))]


def index_of(*rules: Rule) -> Comparisons:
    return Comparisons([leads_of_rule(rule, {}) for rule in rules])


def test_those_are_found_whose_tests_hold() -> None:
    index = index_of(
        ruled(equal("a", "b")),
        ruled(equal("a", "c")),
        ruled(equal("a", "b"), equal("b", "c")),
        Rule("r", RuleEffect.DENY),
    )
    assert index.size == 3
    assert found(index, facts(a=("x",), b=("x",), c=("y",))) == [0, 3]
    assert found(index, facts(a=("x",), b=("y",), c=("x",))) == [1, 3]
    assert found(index, facts(a=("x",), b=("x",), c=("x",))) == [0, 1, 2, 3]
    assert found(index, facts(a=("x",), b=("y",), c=("z",))) == [3]


def test_of_those_that_say_the_same_the_first_is_enough() -> None:
    rules = [ruled(equal("a", "b")), ruled(equal("a", "b")), replace(ruled(equal("a", "b")), effect=RuleEffect.DENY)]
    index = index_of(*rules, *rules, ruled(equal("a", "b"), equal("c", "d")))
    asked = facts(a=("x",), b=("x",), c=("x",), d=("y",))
    assert found(index, asked) == [0, 2]
    assert [*index.places(Context(None, NOW, NoSources(), asked), whole=True)] == [0, 1, 2, 3, 4, 5]


def test_what_more_than_tests_decides_is_not_left_out_beside_others() -> None:
    """A policy with a target, with obligations or with several rules says something else than its rule alone."""
    holds, denies = ruled(equal("a", "b")), replace(ruled(equal("a", "b")), effect=RuleEffect.DENY)
    plain = Policy("p", "1.0", FIRST, (holds,))
    told = Duties((Duty("log", RuleEffect.PERMIT),))
    target = (((Match(function_of(f"{V1}string-equal"), "x", STRING, attribute("c")),),),)
    others = [
        replace(plain, rules=(denies, holds)),
        replace(plain, duties=told),
        replace(plain, target=target),
        replace(plain, rules=(replace(holds, duties=told),)),
        replace(plain, rules=(replace(holds, target=target),)),
    ]
    for one in others:
        index = Comparisons([leads_of_policy(policy) for policy in (one, plain, one, plain)])
        assert found(index, facts(a=("x",), b=("x",), c=("y",))) == [0, 1, 2]


def test_what_may_fail_is_looked_at() -> None:
    index = index_of(ruled(equal("a", "b")), ruled(equal("a", "c")), ruled(equal("b", "c"), equal("a", "d")))
    # `b` has two values, or none: whatever needs one of it is an error, and the others are as they are.
    for several in (("x", "y"), ()):
        assert found(index, facts(a=("x",), b=several, c=("y",), d=("x",))) == [0, 2]
        assert found(index, facts(a=("x",), b=several, c=("x",), d=("x",))) == [0, 1, 2]


def test_what_is_not_known_to_have_a_value_ends_the_tests_of_a_condition() -> None:
    fails = apply(
        f"{V1}integer-equal", [PolicyLiteral(1, INTEGER), apply(f"{V1}integer-divide", [PolicyLiteral(1, INTEGER)] * 2)]
    )
    (lead,) = leads_of_rule(ruled(equal("a", "b"), fails, equal("c", "d")), {}) or ()
    assert lead.tests == (equal("a", "b"),)
    assert leads_of_rule(ruled(fails, equal("c", "d")), {}) is None
    assert leads_of_rule(Rule("r", RuleEffect.DENY), {}) is None


def test_variables_are_what_they_stand_for() -> None:
    again = apply(f"{V1}and", [Reference("v", BOOLEAN), Reference("v", BOOLEAN)])
    variables: dict[str, Expression] = {"v": equal("a", "b"), "w": again}
    (lead,) = leads_of_rule(ruled(Reference("w", BOOLEAN), equal("c", "d")), variables) or ()
    assert lead.tests == (equal("a", "b"), equal("c", "d"))
    doubling: dict[str, Expression] = {"v0": apply(f"{V1}and", [])}
    for step in range(60):
        doubling[f"v{step + 1}"] = apply(f"{V1}and", [Reference(f"v{step}", BOOLEAN)] * 2)
    assert leads_of_rule(ruled(Reference("v60", BOOLEAN), equal("c", "d")), doubling) is not None


def test_a_policy_is_left_out_where_all_of_its_rules_are() -> None:
    both = Policy("p", "1.0", FIRST, (ruled(equal("a", "b")), ruled(equal("a", "c"))))
    some = replace(both, rules=(*both.rules, Rule("always", RuleEffect.DENY)))
    index = Comparisons([leads_of_policy(both), leads_of_policy(some)])
    assert found(index, facts(a=("x",), b=("y",), c=("z",))) == [1]
    assert found(index, facts(a=("x",), b=("y",), c=("x",))) == [0, 1]


@pytest.mark.parametrize("size", [15, 1_000])
def test_of_many_few_are_asked(size: int) -> None:
    names = [f"n{place}" for place in range(40)]
    rules = [ruled(equal(names[place % 40], names[(place * 7 + 1) % 40])) for place in range(size)]
    index = index_of(*rules)
    asked = facts(**{name: (f"{place}",) for place, name in enumerate(names)})
    assert found(index, asked) == []
    same = Context(None, NOW, NoSources(), {**asked, **facts(n0=("1",))})
    assert len(index.places(same, whole=True)) == sum(rule == rules[0] for rule in rules)

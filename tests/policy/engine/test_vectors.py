"""Requests that are decided together get what each would get by itself, and few of them have to be asked about."""

import math
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.policy.engine.test_compiler import DENY, EQUAL, Elsewhere
from tests.policy.kit import NOW, value
from tests.policy.random_policies import ATTRIBUTES, Maker

from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.evaluate import evaluate
from penstock.policy.engine.lookup import ANCESTOR, Context, NoSources, PolicySources
from penstock.policy.engine.vectors import Vectors, constants_of, units_of
from penstock.policy.language.datatypes import BOOLEAN, DATE_TIME, DOUBLE, INTEGER, STRING, URI, Value
from penstock.policy.language.functions import V1, V3
from penstock.policy.language.policies import (
    Assignment,
    Designator,
    Duties,
    Duty,
    Expression,
    Match,
    Policy,
    PolicyLiteral,
    PolicySet,
    Reference,
    Root,
    Rule,
    RuleEffect,
    Target,
    apply,
    function_of,
)
from penstock.policy.language.requests import ENVIRONMENT, RESOURCE, RESOURCE_ID, SUBJECT, Facts, Key, key_of
from penstock.policy.language.results import PolicyOutcome, XacmlDecision
from penstock.policy.language.times import read_date_time

KEYS = [key_of(*one) for one in ATTRIBUTES]
RULES = DENY.replace(":policy-", ":rule-")
ROLE, LEVEL = Designator(SUBJECT, "role", STRING), Designator(SUBJECT, "level", INTEGER)
NAME = Designator(RESOURCE, RESOURCE_ID, STRING)


class Asking:
    """Asks about requests one by one, each value being a class of its own."""

    def __init__(self, vectors: Vectors) -> None:
        self.vectors = vectors
        self.ends: set[int] = set()

    def __call__(self, facts: Facts) -> PolicyOutcome:
        state = 0
        for place, key in enumerate(self.vectors.keys):
            bag = facts.get(key, ())
            state = self.vectors.step(place, state, tuple(map(repr, bag)), bag)
        self.ends.add(state)
        return self.vectors.outcome(state)


def plainly(root: Root, facts: Facts, sources: PolicySources) -> PolicyOutcome:
    return evaluate(root, Context(None, NOW, sources, facts))


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 1 << 40))
def test_it_says_what_the_plain_one_says(seed: int) -> None:
    maker = Maker(seed)
    root: Root = maker.policy() if maker.rarely(3) else maker.policy_set()
    sources = Elsewhere(())
    ask = Asking(Vectors(root, sources, NOW, KEYS))
    for _ in range(20):
        facts = maker.facts()
        assert ask(facts) == plainly(root, facts, sources)


def equal(attribute: Designator, *values: str) -> Target:
    return (tuple((Match(EQUAL, value, STRING, attribute),) for value in values),)


def level(name: str, bound: int) -> Expression:
    return apply(f"{V1}integer-{name}", [apply(f"{V1}integer-one-and-only", [LEVEL]), PolicyLiteral(bound, INTEGER)])


def policy(*rules: Rule, target: Target = (), variables: dict[str, Expression] | None = None) -> Policy:
    return Policy("p", "1.0", RULES, rules, target, variables or {})


def constants(root: Root, key: Key) -> frozenset[Value] | None:
    parts = [part for unit in units_of(root, NoSources(), [key]) for part in (*unit.wanted, *unit.parts)]
    return constants_of(dict.fromkeys(parts), key)


def test_requests_that_are_alike_are_asked_about_once() -> None:
    members = tuple(
        policy(Rule("r", RuleEffect.PERMIT, (), level("greater-than", number)), target=equal(ROLE, f"role{number}"))
        for number in range(50)
    )
    root = PolicySet("s", "1.0", DENY, members)
    ask = Asking(Vectors(root, NoSources(), NOW, [ROLE.key, LEVEL.key]))
    said = [ask({ROLE.key: (f"role{one % 100}",), LEVEL.key: (one,)}).decision for one in range(5_000)]
    assert said.count(XacmlDecision.PERMIT) > 1_000
    # Each policy holds or does not; and then there are those that no policy knows.
    assert len(ask.ends) <= 101


def test_everything_counts_of_a_value_that_is_told() -> None:
    told = Duties((Duty("o", RuleEffect.PERMIT, (Assignment("x", LEVEL),)),))
    root = policy(Rule("r", RuleEffect.PERMIT, equal(ROLE, "a"), None, told))
    ask = Asking(Vectors(root, NoSources(), NOW, [ROLE.key, LEVEL.key]))
    (one,), (other,) = (ask({ROLE.key: ("a",), LEVEL.key: (level,)}).obligations for level in (1, 2))
    assert [one.assigned[0].value, other.assigned[0].value] == [1, 2]
    # Not where it is not told.
    ask.ends.clear()
    assert [ask({ROLE.key: ("b",), LEVEL.key: (level,)}).decision.plain for level in (1, 2)] == ["NotApplicable"] * 2
    assert len(ask.ends) == 1


def test_values_that_are_equal_and_not_the_same_are_told_apart() -> None:
    number = Designator(SUBJECT, "d", DOUBLE)
    root = policy(
        Rule("r", RuleEffect.PERMIT, (), None, Duties((Duty("o", RuleEffect.PERMIT, (Assignment("x", number),)),)))
    )
    ask = Asking(Vectors(root, NoSources(), NOW, [number.key]))
    told = [repr(ask({number.key: (zero,)}).obligations[0].assigned[0].value) for zero in (0.0, -0.0, math.nan)]
    assert told == ["0.0", "-0.0", "nan"]


def test_a_policy_that_asks_about_another_request_depends_on_all_of_this_one() -> None:
    other = f'<Attribute AttributeId="{RESOURCE_ID}" IncludeInResult="false">{value("open")}</Attribute>'
    asks = apply(f"{V3}access-permitted", [PolicyLiteral(RESOURCE, URI), PolicyLiteral(other, STRING)])
    root = policy(
        Rule("direct", RuleEffect.PERMIT, equal(NAME, "open"), level("greater-than", 5)),
        Rule("asks", RuleEffect.PERMIT, equal(NAME, "shut"), asks),
    )
    ask = Asking(Vectors(root, NoSources(), NOW, [NAME.key, LEVEL.key]))
    for number in (3, 7):
        facts = {NAME.key: ("shut",), LEVEL.key: (number,)}
        assert ask(facts) == plainly(root, facts, NoSources())
    assert ask({NAME.key: ("shut",), LEVEL.key: (7,)}).decision is XacmlDecision.PERMIT


def test_what_lies_above_a_resource_depends_on_the_resource() -> None:
    class Tree(NoSources):
        def parents(self, resource: Value, /) -> tuple[Value, ...]:
            return {"leaf": ("branch",), "branch": ("root",)}.get(resource, ())

    above = Designator(RESOURCE, ANCESTOR, STRING)
    root = policy(Rule("r", RuleEffect.PERMIT, equal(above, "root")))
    for known in ([NAME.key], [NAME.key, above.key]):
        ask = Asking(Vectors(root, Tree(), NOW, known))
        for facts in ({NAME.key: ("leaf",)}, {NAME.key: ("root",)}, {NAME.key: ("root",), above.key: ("root",)}):
            said = {key: bag for key, bag in facts.items() if key in known}
            assert ask(said) == plainly(root, said, Tree())


def test_the_time_is_that_of_the_run() -> None:
    now = Designator(ENVIRONMENT, "urn:oasis:names:tc:xacml:1.0:environment:current-dateTime", DATE_TIME)
    noon = Match(function_of(f"{V1}dateTime-equal"), read_date_time("2026-05-01T12:00:00Z"), DATE_TIME, now)
    root = policy(Rule("r", RuleEffect.PERMIT, (((noon,),),)))
    for at, said in ((NOW, XacmlDecision.PERMIT), (NOW + timedelta(hours=1), XacmlDecision.NOT_APPLICABLE)):
        # Where a table has a column for it, and a row says nothing, too.
        for known in ([], [now.key]):
            assert Asking(Vectors(root, NoSources(), at, known))({}).decision is said


def test_constants_tell_values_apart_where_nothing_else_is_done_with_them() -> None:
    several = apply(f"{V1}string-bag", [PolicyLiteral("b", STRING), PolicyLiteral("c", STRING)])
    member = apply(f"{V1}string-at-least-one-member-of", [ROLE, several])
    between = apply(f"{V1}and", [level("greater-than", 3), level("less-than", 9)])
    root = policy(
        Rule("one", RuleEffect.PERMIT, equal(ROLE, "a"), between),
        Rule("two", RuleEffect.DENY, (), Reference("v", BOOLEAN)),
        variables={"v": member},
    )
    assert constants(root, ROLE.key) == frozenset("abc")
    assert constants(root, LEVEL.key) == frozenset((3, 9))
    lower = apply(f"{V1}string-normalize-to-lower-case", [apply(f"{V1}string-one-and-only", [ROLE])])
    folded = apply(f"{V1}string-equal", [lower, PolicyLiteral("a", STRING)])
    assert constants(policy(Rule("r", RuleEffect.PERMIT, (), folded)), ROLE.key) is None
    pattern = Match(function_of(f"{V1}string-regexp-match"), "a+", STRING, ROLE)
    assert constants(policy(Rule("r", RuleEffect.PERMIT, (((pattern,),),))), ROLE.key) is None


def test_what_is_remembered_can_be_forgotten() -> None:
    root = policy(Rule("r", RuleEffect.PERMIT, equal(ROLE, "a")))
    vectors = Vectors(root, NoSources(), NOW, [ROLE.key])
    ask = Asking(vectors)
    assert ask({ROLE.key: ("a",)}).decision is XacmlDecision.PERMIT
    before = vectors.size
    vectors.clear()
    assert vectors.size < before
    assert ask({ROLE.key: ("b",)}) == CompiledPolicy(root).ask({ROLE.key: ("b",)}, NOW)

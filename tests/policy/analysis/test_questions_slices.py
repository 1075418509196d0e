"""Parts of policies decide as the whole does, where the rule that they are about may apply."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.policy.kit import FIRST, NOW
from tests.policy.random_policies import ATTRIBUTES, VALUES, Maker

from penstock.policy.analysis.questions import Analysis, PlacedRule, Slices, apart, needs
from penstock.policy.engine.evaluate import evaluate
from penstock.policy.engine.lookup import Context, NoSources
from penstock.policy.language.datatypes import STRING
from penstock.policy.language.functions import V1
from penstock.policy.language.policies import (
    Designator,
    Match,
    Policy,
    PolicyReference,
    PolicySet,
    Root,
    Rule,
    RuleEffect,
    function_of,
)
from penstock.policy.language.requests import Facts, key_of
from penstock.policy.language.results import PolicyOutcome, XacmlDecision

DENY_OVERRIDES = "urn:oasis:names:tc:xacml:3.0:policy-combining-algorithm:deny-overrides"
ON_PERMIT = "urn:oasis:names:tc:xacml:3.0:policy-combining-algorithm:on-permit-apply-second"


class Plain(Maker):
    """Makes sets without references, and requests with at most one value for each attribute."""

    def _member(self, depth: int) -> Policy | PolicySet | PolicyReference:
        return self.policy_set(depth - 1) if depth and self.rarely(4) else self.policy()

    def facts(self) -> Facts:
        known = [one for one in ATTRIBUTES if not self.rarely(4)]
        return {key_of(*one): (self.random.choice(VALUES[one[2]]),) for one in known}


def told(root: Root, facts: Facts) -> PolicyOutcome:
    return evaluate(root, Context(None, NOW, NoSources(), facts))


def rules_of(root: Root) -> list[PlacedRule]:
    return [*Analysis(root).rules()]


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 1 << 40))
def test_a_part_decides_as_the_whole_where_the_rule_may_apply(seed: int) -> None:
    maker = Plain(seed)
    root = maker.policy_set(1)
    slices = Slices()
    for placed in rules_of(root)[:4]:
        wanted = needs(placed.targets, present=True)
        part = slices.near(root, wanted)
        for _ in range(8):
            facts = maker.facts()
            holds = all(facts.get(key, (None,))[0] in values for key, values in wanted.items())
            if told(placed.alone, facts).decision is not XacmlDecision.NOT_APPLICABLE:
                assert holds
            if holds:
                assert told(part, facts).decision is told(root, facts).decision


def test_where_places_count_nothing_is_left_out() -> None:
    first = Designator(*ATTRIBUTES[0])

    def wants(text: str) -> Policy:
        target = (((Match(function_of(f"{V1}string-equal"), text, STRING, first),),),)
        return Policy(text, "1.0", FIRST, (Rule("r", RuleEffect.PERMIT),), target)

    for name, left in ((ON_PERMIT, ["a", "b", "c"]), (DENY_OVERRIDES, ["b"])):
        root = PolicySet("s", "1.0", name, (wants("a"), wants("b"), wants("c")))
        part = Slices().near(root, {first.key: frozenset("b")})
        assert isinstance(part, PolicySet)
        assert [one.id for one in part.members] == left


def test_what_is_far_is_left_out() -> None:
    sizes = []
    for seed in range(20):
        root, slices = Plain(seed).policy_set(1), Slices()
        rules = rules_of(root)
        for placed in rules:
            part = slices.near(root, needs(placed.targets, present=True))
            sizes.append(len(rules_of(part)) / len(rules))
    assert min(sizes) < 0.8
    assert any(size == 1 for size in sizes)


def test_targets_that_want_different_values_are_apart() -> None:
    key, other = (key_of(*one) for one in ATTRIBUTES[:2])
    assert apart({key: frozenset("a")}, {key: frozenset("bc")})
    assert not apart({key: frozenset("ab")}, {key: frozenset("bc")})
    assert not apart({key: frozenset("a")}, {other: frozenset("b")})

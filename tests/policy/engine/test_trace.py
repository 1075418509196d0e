"""A traced decision is the engine's, and the elements that decided give it without the others."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.policy.kit import NOW
from tests.policy.random_policies import Maker
from tests.policy.whole_policies import MAJORITY

from penstock.policy.combining import (
    POLICY_ALGORITHMS,
    POLICY_COMBINING,
    RULE_ALGORITHMS,
    RULE_COMBINING,
    DecisionTuple,
    with_priorities,
)
from penstock.policy.engine.evaluate import evaluate
from penstock.policy.engine.lookup import Context, NoSources, Repository
from penstock.policy.engine.trace import TracedElement, trace
from penstock.policy.language.datatypes import BOOLEAN, STRING
from penstock.policy.language.functions import V1
from penstock.policy.language.policies import (
    Designator,
    Match,
    Policy,
    PolicyLiteral,
    PolicyReference,
    PolicySet,
    Root,
    Rule,
    RuleEffect,
    function_of,
)
from penstock.policy.language.requests import SUBJECT
from penstock.policy.language.results import XacmlDecision

NEVER = (((Match(function_of(f"{V1}string-equal"), "x", STRING, Designator(SUBJECT, "urn:absent", STRING)),),),)
SILENT = Policy("silent", "1.0", RULE_COMBINING["first-applicable"], (), NEVER)
TWO = DecisionTuple.of({"P": "#P > 1", "D": "#P < 2 and #D > 0"}).id
PERMIT, DENY = RuleEffect.PERMIT, RuleEffect.DENY


def rule(name: str, effect: RuleEffect, *, holds: bool = True) -> Rule:
    return Rule(name, effect, condition=PolicyLiteral(holds, BOOLEAN))


def pruned(traced: TracedElement) -> Root | Rule | PolicyReference:
    """Return an element in which all children that did not decide are never applicable."""
    element = traced.element
    if isinstance(element, Rule | PolicyReference) or not traced.children:
        return element
    kept = [pruned(child) if place in traced.deciding else None for place, child in enumerate(traced.children)]
    if isinstance(element, Policy):
        rules = [one if isinstance(one, Rule) else replace(element.rules[0], target=NEVER) for one in kept]
        return replace(element, rules=tuple(rules))
    return replace(element, members=tuple(SILENT if one is None or isinstance(one, Rule) else one for one in kept))


def algorithms(maker: Maker, root: Root) -> Root:
    """Replace some algorithms by a decision tuple, or give them priorities."""
    if isinstance(root, PolicySet):
        members = [one if isinstance(one, PolicyReference) else algorithms(maker, one) for one in root.members]
        root = replace(root, members=tuple(members))
    count = len(root.rules if isinstance(root, Policy) else root.members)
    if maker.rarely(4):
        return replace(root, combining=MAJORITY)
    if count and maker.rarely(4):
        priorities = [maker.random.randrange(3) for _ in range(count)]
        return replace(root, combining=with_priorities(priorities, root.combining))
    return root


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 1 << 40))
def test_what_decided_decides_alone(seed: int) -> None:
    maker = Maker(seed)
    root = algorithms(maker, maker.policy_set())
    sources = Repository([replace(maker.policy(), id="known")])
    for facts in (maker.facts() for _ in range(5)):
        traced = trace(root, Context(None, NOW, sources, facts))
        assert traced.outcome == evaluate(root, Context(None, NOW, sources, facts))
        alone = pruned(traced)
        assert isinstance(alone, PolicySet)
        assert evaluate(alone, Context(None, NOW, sources, facts)).decision is traced.outcome.decision


def decided(combining: str, *rules: Rule) -> TracedElement:
    return trace(Policy("p", "1.0", combining, rules), Context(None, NOW, NoSources(), {}))


@pytest.mark.parametrize(
    ("name", "rules", "deciding", "evaluated"),
    [
        ("deny-overrides", "PDP", (1,), 2),
        ("deny-overrides", "P-P", (0,), 3),
        ("permit-overrides", "D-P", (2,), 3),
        ("first-applicable", "-DP", (1,), 2),
        ("deny-unless-permit", "D-D", (), 3),
        ("deny-unless-permit", "D-P", (2,), 3),
        ("permit-unless-deny", "P-D", (2,), 3),
        (MAJORITY, "PPD", (0,), 3),
        (TWO, "PP-", (0, 1), 3),
        (TWO, "P-D", (2,), 3),
    ],
)
def test_which_rules_decide(name: str, rules: str, deciding: tuple[int, ...], evaluated: int) -> None:
    made = [rule(f"r{place}", DENY if one == "D" else PERMIT, holds=one != "-") for place, one in enumerate(rules)]
    traced = decided(RULE_COMBINING.get(name, name), *made)
    assert traced.deciding == deciding
    assert sum(one.outcome is not None for one in traced.children) == evaluated


def test_two_policies_that_must_not_both_apply() -> None:
    members = tuple(Policy(name, "1.0", RULE_COMBINING["deny-overrides"], (rule("r", PERMIT),)) for name in "ab")
    root = PolicySet("s", "1.0", POLICY_COMBINING["only-one-applicable"], (SILENT, *members))
    traced = trace(root, Context(None, NOW, NoSources(), {}))
    assert traced.deciding == (1, 2)
    assert [one.applies for one in traced.children] == [False, True, True]
    assert [one.outcome for one in traced.children] == [None, None, None]


def test_a_reference_that_cannot_be_resolved_decides() -> None:
    reference = PolicyReference("missing", to_set=False)
    root = PolicySet("s", "1.0", POLICY_COMBINING["first-applicable"], (SILENT, reference))
    traced = trace(root, Context(None, NOW, NoSources(), {}))
    assert traced.deciding == (1,)
    assert traced.outcome is not None
    assert traced.outcome.decision is XacmlDecision.INDETERMINATE_DP


def test_rules_behind_a_target_are_not_traced() -> None:
    root = replace(SILENT, rules=(rule("r", PERMIT),))
    traced = trace(root, Context(None, NOW, NoSources(), {}))
    assert (traced.children, traced.deciding) == ((), ())


def test_all_algorithms_are_tried() -> None:
    """The random policies above use each algorithm of the standard."""
    used = {one.combining for seed in range(400) for one in Maker(seed).policy_set().members if isinstance(one, Policy)}
    assert {*RULE_ALGORITHMS} <= used
    assert {*POLICY_ALGORITHMS} <= {Maker(seed).policy_set().combining for seed in range(400)}

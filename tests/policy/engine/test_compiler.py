"""Compiled policies say what the plain evaluator says: decision, status, obligations, and which policies applied."""

import contextlib
import gc
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.policy.kit import AGE, NOW, apply, designator, policy, rule, value
from tests.policy.random_policies import Maker

from penstock.apps.cli.conformance import run_suite
from penstock.errors import EvaluationError, MalformedError, PenstockError
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.evaluate import evaluate
from penstock.policy.engine.index import Index, IndexEntry
from penstock.policy.engine.lookup import Context, NoSources
from penstock.policy.language.datatypes import INTEGER, STRING, Value
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
from penstock.policy.language.requests import SUBJECT, Request, key_of
from penstock.policy.language.results import XacmlDecision

DENY = "urn:oasis:names:tc:xacml:3.0:policy-combining-algorithm:deny-overrides"
KNOWN = policy(rule())


class Elsewhere(NoSources):
    """Finds one policy, fails with another, and knows an attribute that it sometimes cannot find."""

    def __init__(self, values: tuple[int, ...] | None) -> None:
        self.values = values

    def policy(self, reference: PolicyReference) -> Root:
        if reference.id == "broken":
            raise MalformedError("xacml.element", "no policy")
        return KNOWN if reference.id == "known" else super().policy(reference)

    def attribute(self, wanted: Designator, _request: Request, /) -> tuple[Value, ...]:
        if self.values is None:
            raise EvaluationError("xacml.processing", "out of reach")
        return self.values if wanted.of is INTEGER else ()


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 1 << 40))
@example(220_379_662_071)  # variables of two policies that share a name
@example(34_132)  # an algorithm that asks targets alone
def test_it_says_what_the_plain_one_says(seed: int) -> None:
    maker = Maker(seed)
    root: Root = maker.policy() if maker.rarely(3) else maker.policy_set()
    sources = Elsewhere(())
    compiled = CompiledPolicy(root, sources)
    for _ in range(12):
        sources.values = maker.random.choice([(), (1,), None])
        asked = maker.facts()
        expected = evaluate(root, Context(None, NOW, sources, asked))
        assert compiled.ask(asked, NOW) == replace(expected, applicable=())
        named = replace(Request.of_facts(asked), return_policy_ids=True)
        assert compiled.ask_request(named, NOW) == expected


def test_random_policies_say_everything() -> None:
    said = Counter(
        evaluate(maker.policy_set(), Context(None, NOW, Elsewhere((1,)), maker.facts())).decision
        for maker in map(Maker, range(400))
    )
    assert {*said} == {*XacmlDecision}
    assert min(said[XacmlDecision.PERMIT], said[XacmlDecision.DENY]) > 20


def test_the_suite_passes_with_it(suites: Path) -> None:
    assert [one for one in run_suite(suites / "xacml-3.0", NOW) if one.differences] == []


WHO = Designator(SUBJECT, "who", STRING)
EQUAL = function_of(f"{V1}string-equal")


def one_of(*names: str) -> tuple[tuple[tuple[Match, ...], ...], ...]:
    return (tuple((Match(EQUAL, name, STRING, WHO),) for name in names),)


def test_of_many_only_those_are_looked_at_that_can_apply() -> None:
    numbers = range(100)
    entries = [IndexEntry.of(f"child {number}", one_of(f"n{number}", f"n{number + 1}")) for number in numbers]
    index = Index.of(entries, str.upper)
    assert index is not None

    def found(*names: str) -> list[str]:
        return [*index.candidates(Context(None, NOW, NoSources(), {WHO.key: names}))]

    # They need not be asked again whether their targets match.
    assert found("n5") == ["CHILD 4", "CHILD 5"]
    assert found("n5", "n6") == ["CHILD 4", "CHILD 5", "CHILD 6"]
    assert found("nobody") == []
    assert found() == []


class Counted(str):
    """A text that may be looked for so often only, all in all."""

    __slots__ = ()
    left = 10_000

    def __hash__(self) -> int:
        Counted.left -= 1
        assert Counted.left
        return super().__hash__()


def test_of_many_values_not_all_combinations_are_looked_for() -> None:
    wanted = [Designator(SUBJECT, name, STRING) for name in ("who", "where", "what")]
    rules = tuple(
        Rule(f"{number}", RuleEffect.PERMIT, tuple(((Match(EQUAL, f"n{number}", STRING, one),),) for one in wanted))
        for number in range(9)
    )
    compiled = CompiledPolicy(Policy("p", "1.0", DENY.replace(":policy-", ":rule-"), rules))
    many = tuple(Counted(f"n{number}") for number in range(8, 300))
    assert compiled.ask({one.key: many for one in wanted}, NOW).decision is XacmlDecision.PERMIT
    assert compiled.ask({one.key: many[1:] for one in wanted}, NOW).decision is XacmlDecision.NOT_APPLICABLE


def test_what_must_be_there_and_is_not_is_not_passed_over() -> None:
    wanted = Designator(SUBJECT, "who", STRING, must_be_present=True)
    target = (((Match(EQUAL, "ann", STRING, wanted),),),)
    rules = tuple(Rule(f"r{number}", RuleEffect.PERMIT, target) for number in range(9))
    root = Policy("p", "1.0", "urn:oasis:names:tc:xacml:3.0:rule-combining-algorithm:deny-overrides", rules)
    assert CompiledPolicy(root).ask({}, NOW).decision is XacmlDecision.INDETERMINATE_P
    assert CompiledPolicy(root).ask({WHO.key: ("bob",)}, NOW).decision is XacmlDecision.NOT_APPLICABLE


def test_an_attribute_may_have_a_value_for_each_of_two_needs() -> None:
    """Who is ann and also bob is both, though no name is both."""
    rules = DENY.replace(":policy-", ":rule-")
    others = tuple(Rule("r", RuleEffect.PERMIT, one_of(f"n{number}")) for number in range(9))
    both = Rule("r", RuleEffect.DENY, (*one_of("ann"), *one_of("bob")))
    of_both = Policy("p", "1.0", rules, (replace(both, target=one_of("bob")),), one_of("ann"))
    policies = tuple(Policy("p", "1.0", rules, (one,)) for one in others)
    for root in (Policy("p", "1.0", rules, (both, *others)), PolicySet("s", "1.0", DENY, (of_both, *policies))):
        compiled = CompiledPolicy(root)
        assert compiled.ask({WHO.key: ("ann", "bob")}, NOW).decision is XacmlDecision.DENY
        assert compiled.ask({WHO.key: ("ann",)}, NOW).decision is XacmlDecision.NOT_APPLICABLE


def test_what_is_found_by_its_rules_is_asked_for_its_target() -> None:
    rules = DENY.replace(":policy-", ":rule-")
    policies = tuple(
        Policy("p", "1.0", rules, (Rule("r", RuleEffect.PERMIT, one_of("ann")),), one_of(f"n{number}", "bob", "cid"))
        for number in range(9)
    )
    compiled = CompiledPolicy(PolicySet("s", "1.0", DENY, policies))
    assert compiled.ask({WHO.key: ("ann",)}, NOW).decision is XacmlDecision.NOT_APPLICABLE
    assert compiled.ask({WHO.key: ("ann", "bob")}, NOW).decision is XacmlDecision.PERMIT


def test_a_policy_that_others_refer_to_may_change() -> None:
    class Newest(NoSources):
        current = policy(rule())

        def policy(self, _reference: PolicyReference) -> Root:
            return self.current

    newest = Newest()
    compiled = CompiledPolicy(PolicySet("s", "1.0", DENY, (PolicyReference("p", to_set=False),)), newest)
    assert compiled.ask({}, NOW).decision is XacmlDecision.PERMIT
    newest.current = policy(rule(effect="Deny"))
    assert compiled.ask({}, NOW).decision is XacmlDecision.DENY


def test_a_variable_is_worked_out_once() -> None:
    asked = []

    class Counting(NoSources):
        def attribute(self, wanted: Designator, _request: Request, /) -> tuple[int, ...]:
            asked.append(wanted)
            return (18,)

    found = apply("integer-is-in", value("18", "integer"), designator())
    define = f'<VariableDefinition VariableId="v">{found}</VariableDefinition>'
    twice = apply("and", *['<VariableReference VariableId="v"/>'] * 2)
    compiled = CompiledPolicy(policy(define, rule(twice)), Counting())
    assert compiled.ask({key_of(SUBJECT, AGE, STRING): ("x",)}, NOW).decision is XacmlDecision.PERMIT
    assert len(asked) == 1


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(*, enabled: bool) -> None:
    unknown = replace(policy(rule()), combining="urn:none")
    before = gc.isenabled()
    try:
        for root in (policy(rule()), unknown):
            (gc.enable if enabled else gc.disable)()
            with contextlib.suppress(PenstockError):
                CompiledPolicy(root)
            assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()

"""Algorithms by priorities, and decisions that several have made."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policy.kit import FIRST, NOW, policy, request, rule
from tests.policy.test_combining import Said
from tests.trust.kit import refused

from penstock.errors import MalformedError, PenstockError
from penstock.policy.combining import (
    POLICY_ALGORITHMS,
    DecisionTuple,
    combined,
    combined_responses,
    policy_algorithm,
    rule_algorithm,
    split_priorities,
    with_priorities,
)
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.decide import decide, plainly
from penstock.policy.engine.lookup import Repository
from penstock.policy.language.policies import PolicyReference, PolicySet, Root
from penstock.policy.language.results import (
    PROCESSING_ERROR,
    SYNTAX_ERROR,
    Obligation,
    PolicyOutcome,
    Response,
    Result,
    XacmlDecision,
)
from penstock.policy.syntax.text.lint import lint
from penstock.policy.syntax.text.policies import read_text_policy
from penstock.policy.syntax.text.policy_writer import write_text
from penstock.policy.syntax.xml.policies import read_policy, write_policy

P, D, NA = XacmlDecision.PERMIT, XacmlDecision.DENY, XacmlDecision.NOT_APPLICABLE
IN_P, IN_D, IN_DP = XacmlDecision.INDETERMINATE_P, XacmlDecision.INDETERMINATE_D, XacmlDecision.INDETERMINATE_DP
DENY_OVERRIDES = "urn:oasis:names:tc:xacml:3.0:policy-combining-algorithm:deny-overrides"
MAJORITY = DecisionTuple.of(
    {"P": "#P > #D and #IN = 0", "D": "#D >= #P and #D > 0 and #IN = 0", "NA": "#P = 0 and #D = 0 and #IN = 0"}
)


def foremost(decisions: Sequence[XacmlDecision], priorities: Sequence[int]) -> list[XacmlDecision]:
    """The paper's words: of all that are applicable, those with the highest priority."""
    applicable = [one for decision, one in zip(decisions, priorities, strict=True) if decision is not NA]
    return [
        decision
        for decision, one in zip(decisions, priorities, strict=True)
        if not applicable or one == max(applicable)
    ]


@pytest.mark.parametrize("name", [*POLICY_ALGORITHMS, MAJORITY.id])
def test_only_the_highest_priority_counts(name: str) -> None:
    plain = policy_algorithm(name)
    for priorities in ([1, 1, 1], [3, 2, 1], [1, 5, 5], [2, -1, 2]):
        by_priority = policy_algorithm(with_priorities(priorities, name))
        for decisions in product(XacmlDecision, repeat=3):
            counted = foremost(decisions, priorities)
            wanted = plain([Said(one) for one in counted], None).decision
            assert by_priority([Said(one) for one in decisions], None).decision is wanted, (priorities, decisions)


def test_those_below_are_not_asked() -> None:
    high, low = Said(P), Said(D)
    assert policy_algorithm(with_priorities([2, 1], DENY_OVERRIDES))([high, low], None).decision is P
    assert high.asked
    assert not low.asked


def test_priorities_stand_wherever_an_algorithm_is_named() -> None:
    inner = (policy(rule(name="a")), policy(rule(effect="Deny", name="b")))

    def asked(root: Root) -> Result:
        (plain,) = decide(plainly(root), request(), NOW).results
        (quick,) = decide(CompiledPolicy(root).evaluate, request(), NOW).results
        assert plain == quick
        return plain

    for priorities, decision in (([2, 1], P), ([1, 2], D), ([1, 1], D)):
        root = PolicySet("s", "1.0", with_priorities(priorities, DENY_OVERRIDES), inner)
        assert asked(root).decision is decision
        assert read_policy(write_policy(root)) == root
        assert read_text_policy(write_text(root)) == root
    rules = policy(rule(name="a"), rule(effect="Deny", name="b"), combining=with_priorities([1, 2], FIRST))
    assert asked(rules).decision is D


def test_tuples_and_priorities_as_text() -> None:
    text = """policy p {
    apply tuple { P "#P > 1" D "#P < 1 and #D > 0" } priorities 2, 0
    rule a { permit }
    rule b { deny }
}
"""
    root = read_text_policy(text)
    made = DecisionTuple.of({"P": "#P > 1", "D": "#P < 1 and #D > 0"})
    assert root.combining == with_priorities([2, 0], made.id)
    assert 'apply tuple { P "#P > 1" D "#P < 1 and #D > 0" } priorities 2, 0\n' in write_text(root)
    below = read_text_policy("policy p { apply deny-overrides priorities - 1, -2 }")
    assert split_priorities(below.combining)[0] == (-1, -2)
    assert read_text_policy(write_text(below)) == below


@pytest.mark.parametrize(
    ("text", "code", "column"),
    [
        ('apply tuple { P "#P > 1" D "#P > 0" }', "combining.overlap", 18),
        ('apply tuple { X "#P > 1" }', "combining.elements", 18),
        ('apply tuple { P "P" P "P" }', "combining.elements", 32),
        ("apply tuple { P }", "xacml.syntax", 28),
        ("apply deny-overrides priorities", "xacml.syntax", 44),
        ("apply deny-overrides priorities 1.5", "xacml.syntax", 44),
        ("apply nothing priorities 1", "xacml.combining", 18),
    ],
)
def test_what_is_wrong_with_them_is_told(text: str, code: str, column: int) -> None:
    with pytest.raises(PenstockError) as caught:
        read_text_policy(f"policy p {{ {text} }}")
    assert caught.value.code == code
    assert caught.value.fields["column"] == column


@pytest.mark.parametrize("priorities", [(1, 2, 3), (1,)])
def test_as_many_priorities_as_children(priorities: tuple[int, ...]) -> None:
    root = policy(rule(name="a"), rule(effect="Deny", name="b"), combining=with_priorities(priorities, FIRST))
    (result,) = decide(CompiledPolicy(root).evaluate, request(), NOW).results
    assert (result.decision, result.status.code) == (IN_DP, PROCESSING_ERROR)
    assert "priorities" in result.status.message
    assert [one.code for one in lint(root)] == ["combining-priorities"]


def test_what_others_issue_decides_nothing() -> None:
    root = replace(policy(rule()), issuer="somebody")
    assert [one.code for one in lint(root)] == ["issuer-unknown"]
    for ready in (CompiledPolicy, plainly):
        for issued in (root, PolicySet("s", "1.0", DENY_OVERRIDES, (root,))):
            with refused("xacml.issuer"):
                ready(issued)
    reference = PolicySet("s", "1.0", DENY_OVERRIDES, (PolicyReference(root.id, to_set=False),))
    for evaluator in (CompiledPolicy(reference).evaluate, plainly(reference)):
        for _ in range(2):
            (result,) = decide(evaluator, request(), NOW, Repository([root])).results
            assert (result.decision, result.status.code) == (IN_DP, SYNTAX_ERROR)


def test_a_tuple_that_leaves_something_open_is_told() -> None:
    root = policy(rule(name="a"), combining=DecisionTuple.of({"P": "#P > 1", "D": "#P < 1"}).id.replace("&", "&amp;"))
    (finding,) = lint(root)
    assert finding.code == "combining-gap"
    assert "1 of P" in finding.message


@pytest.mark.parametrize(
    "name", ["1,2", ":urn:x", "1,x:urn:x", "1:urn:penstock:priorities:1:urn:x", "1,,2:urn:x", "99999999999:urn:x"]
)
def test_what_are_no_priorities_is_told(name: str) -> None:
    with pytest.raises(MalformedError) as caught:
        rule_algorithm(f"urn:penstock:priorities:{name}")
    assert caught.value.code == "combining.priorities"


@given(st.text("urn:penstock:priorities:0123456789,-", max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        priorities, inner = split_priorities(f"urn:penstock:priorities:{text}")
    except PenstockError:
        return
    assert split_priorities(with_priorities(priorities, inner)) == (priorities, inner)


# --- decisions of several --------------------------------------------------------------------------------------------


def said(decision: XacmlDecision, *told: str) -> PolicyOutcome:
    return PolicyOutcome(decision, obligations=tuple(map(Obligation, told)))


def test_decisions_that_several_have_made() -> None:
    assert combined(DENY_OVERRIDES, [said(P), said(NA), said(D)]).decision is D
    assert combined(MAJORITY.id, [said(P), said(P), said(D)]).decision is P
    assert combined(MAJORITY.id, [said(P), said(P), said(D)], [1, 1, 2]).decision is D
    assert combined(MAJORITY.id, [said(P), said(IN_D)]).decision is IN_DP
    assert combined(DENY_OVERRIDES, []).decision is NA


def test_what_is_to_be_done_goes_with_those_that_agree() -> None:
    outcome = combined(MAJORITY.id, [said(P, "log"), said(D, "alarm"), said(P, "tell")])
    assert [one.id for one in outcome.obligations] == ["log", "tell"]


@pytest.mark.parametrize("name", POLICY_ALGORITHMS)
def test_made_decisions_are_combined_as_children_are(name: str) -> None:
    for decisions in product(XacmlDecision, repeat=3):
        wanted = policy_algorithm(name)([Said(one) for one in decisions], None).decision
        assert combined(name, [said(one) for one in decisions]).decision is wanted


def test_answers_of_several_are_combined_result_by_result() -> None:
    first = Response([Result(P, obligations=(Obligation("log"),)), Result(NA)])
    second = Response([Result(P, obligations=(Obligation("tell"),)), Result(D, advice=(Obligation("sorry"),))])
    found = combined_responses(DENY_OVERRIDES, [first, second])
    assert [one.decision for one in found.results] == [P, D]
    assert [one.id for one in found.results[0].obligations] == ["log", "tell"]
    assert [one.id for one in found.results[1].advice] == ["sorry"]
    with pytest.raises(MalformedError) as caught:
        combined_responses(DENY_OVERRIDES, [first, Response([Result(P)])])
    assert caught.value.code == "combining.responses"

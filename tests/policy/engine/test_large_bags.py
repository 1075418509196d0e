"""Requests with a great many values: sets are compared in a time like their sizes, and what takes longer ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policy.kit import AGE, NOW, apply, designator, policy_text, request, rule

from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.decide import decide, plainly
from penstock.policy.language.functions import FUNCTIONS, V1
from penstock.policy.language.results import PROCESSING_ERROR, Result, XacmlDecision
from penstock.policy.syntax.xml.policies import read_policy

BAGS = st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.0, float("inf")]), max_size=5).map(tuple)
EQUAL = f'<Function FunctionId="{V1}integer-equal"/>'


def asked(condition: str, values: int) -> list[Result]:
    root, one = read_policy(policy_text(rule(condition))), request(*range(values))
    return [decide(way, one, NOW).results[0] for way in (plainly(root), CompiledPolicy(root).evaluate)]


@pytest.mark.parametrize("name", ["integer-subset", "integer-set-equals", "integer-at-least-one-member-of"])
def test_bags_of_many_values_are_compared(name: str) -> None:
    for result in asked(apply(name, designator(), designator()), 30_000):
        assert result.decision is XacmlDecision.PERMIT


@pytest.mark.parametrize("name", ["any-of-any", "all-of-all", "all-of-any", "any-of-all"])
def test_what_compares_each_with_each_ends(name: str) -> None:
    condition = apply(f"{V1.replace('1.0', '3.0')}{name}", EQUAL, designator(AGE), designator(AGE))
    for result in asked(condition, 1_001):
        assert result.decision is XacmlDecision.INDETERMINATE_P
        assert result.status.code == PROCESSING_ERROR
    for result in asked(condition, 30):
        assert not result.decision.indeterminate


@given(BAGS, BAGS)
def test_set_functions_are_those_of_the_standard(some: tuple[float, ...], others: tuple[float, ...]) -> None:
    def said(name: str) -> object:
        return FUNCTIONS[f"{V1}double-{name}"].call(some, others)

    assert said("subset") is all(one in others for one in some)
    assert said("set-equals") is (all(one in others for one in some) and all(one in some for one in others))
    assert said("at-least-one-member-of") is any(one in others for one in some)
    assert said("intersection") == tuple(dict.fromkeys(one for one in some if one in others))

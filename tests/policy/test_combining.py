"""Each algorithm, against the pseudo-code of appendix C over all sequences of decisions up to a length."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import pytest

from penstock.errors import MalformedError
from penstock.policy.combining import policy_algorithm, rule_algorithm
from penstock.policy.language.results import (
    MISSING_ATTRIBUTE,
    DecisionStatus,
    Obligation,
    PolicyId,
    PolicyOutcome,
    XacmlDecision,
)

P, D, NA = XacmlDecision.PERMIT, XacmlDecision.DENY, XacmlDecision.NOT_APPLICABLE
IN_P, IN_D, IN_DP = XacmlDecision.INDETERMINATE_P, XacmlDecision.INDETERMINATE_D, XacmlDecision.INDETERMINATE_DP
V1, V3 = "urn:oasis:names:tc:xacml:1.0:", "urn:oasis:names:tc:xacml:3.0:"
SEQUENCES = [sequence for length in range(5) for sequence in product(XacmlDecision, repeat=length)]


@dataclass
class Said:
    """A child that says something, and knows whether it was asked."""

    decision: XacmlDecision
    name: str = ""
    asked: bool = False

    def evaluate(self, _context: None, /) -> PolicyOutcome:
        self.asked = True
        status = DecisionStatus(MISSING_ATTRIBUTE) if self.decision.indeterminate else DecisionStatus()
        told = (Obligation(self.name),) if self.decision in (P, D) else ()
        applicable = (PolicyId(self.name, "1.0"),) if self.decision in (P, D) else ()
        return PolicyOutcome(self.decision, status, told, told, applicable)

    def applies(self, _context: None, /) -> bool | PolicyOutcome:
        if self.decision is IN_DP:
            return PolicyOutcome(IN_DP, DecisionStatus(MISSING_ATTRIBUTE))
        return self.decision is not NA


def deny_overrides(decisions: Sequence[XacmlDecision]) -> XacmlDecision:
    """C.2, line by line."""
    error_d = error_p = error_dp = permit = False
    for decision in decisions:
        match decision:
            case XacmlDecision.DENY:
                return D
            case XacmlDecision.PERMIT:
                permit = True
            case XacmlDecision.INDETERMINATE_D:
                error_d = True
            case XacmlDecision.INDETERMINATE_P:
                error_p = True
            case XacmlDecision.INDETERMINATE_DP:
                error_dp = True
    if error_dp:
        return IN_DP
    if error_d and (error_p or permit):
        return IN_DP
    if error_d:
        return IN_D
    if permit:
        return P
    return IN_P if error_p else NA


SWAPPED = {P: D, D: P, IN_P: IN_D, IN_D: IN_P, NA: NA, IN_DP: IN_DP}


def permit_overrides(decisions: Sequence[XacmlDecision]) -> XacmlDecision:
    """C.4, which is C.2 with permit and deny exchanged."""
    return SWAPPED[deny_overrides([SWAPPED[one] for one in decisions])]


def first_applicable(decisions: Sequence[XacmlDecision]) -> XacmlDecision:
    return next((one for one in decisions if one is not NA), NA)


NAMED: dict[str, Callable[[Sequence[XacmlDecision]], XacmlDecision]] = {
    f"{V3}rule-combining-algorithm:deny-overrides": deny_overrides,
    f"{V3}rule-combining-algorithm:ordered-deny-overrides": deny_overrides,
    f"{V3}rule-combining-algorithm:permit-overrides": permit_overrides,
    f"{V3}rule-combining-algorithm:ordered-permit-overrides": permit_overrides,
    f"{V3}rule-combining-algorithm:deny-unless-permit": lambda decisions: P if P in decisions else D,
    f"{V3}rule-combining-algorithm:permit-unless-deny": lambda decisions: D if D in decisions else P,
    f"{V1}rule-combining-algorithm:first-applicable": first_applicable,
}


@pytest.mark.parametrize("name", NAMED)
def test_rules_are_combined_as_the_standard_says(name: str) -> None:
    combine = rule_algorithm(name)
    for sequence in SEQUENCES:
        assert combine([Said(one) for one in sequence], None).decision is NAMED[name](sequence), sequence


@pytest.mark.parametrize("name", NAMED)
def test_policies_are_combined_as_rules_are(name: str) -> None:
    combine = policy_algorithm(name.replace(":rule-", ":policy-"))
    for sequence in SEQUENCES:
        assert combine([Said(one) for one in sequence], None).decision is NAMED[name](sequence), sequence


def test_only_one_may_be_applicable() -> None:
    combine = policy_algorithm(f"{V1}policy-combining-algorithm:only-one-applicable")
    for sequence in SEQUENCES:
        found = combine([Said(one) for one in sequence], None).decision
        applicable = [one for one in sequence if one is not NA]
        if not applicable:
            assert found is NA
        elif IN_DP in sequence or len(applicable) > 1:
            assert found is IN_DP
        else:
            assert found is applicable[0]


def test_before_3_a_policy_that_fails_denies() -> None:
    combine = policy_algorithm(f"{V1}policy-combining-algorithm:deny-overrides")
    for sequence in SEQUENCES:
        denied = any(one is D or one.indeterminate for one in sequence)
        assert combine([Said(one) for one in sequence], None).decision is (D if denied else P if P in sequence else NA)


def test_before_3_a_rule_that_fails_counts_for_its_effect() -> None:
    combine = rule_algorithm(f"{V1}rule-combining-algorithm:deny-overrides")
    rules = [sequence for sequence in SEQUENCES if IN_DP not in sequence]
    for sequence in rules:
        found = combine([Said(one) for one in sequence], None).decision
        if D in sequence:
            assert found is D
        elif IN_D in sequence:
            assert found.indeterminate
        elif P in sequence:
            assert found is P
        else:
            assert found.indeterminate is (IN_P in sequence)


def test_the_second_is_applied_where_the_first_permits() -> None:
    combine = policy_algorithm(f"{V3}policy-combining-algorithm:on-permit-apply-second")
    for first, second, third in product(XacmlDecision, repeat=3):
        children = [Said(first), Said(second), Said(third)]
        found = combine(children, None).decision
        if first is P:
            assert (found, children[2].asked) == (second, False)
        elif first in (D, NA, IN_D):
            assert (found, children[1].asked) == (third, False)
        else:
            assert found.indeterminate or {second, third} == {NA}
    assert combine([Said(D), Said(P)], None).decision is NA
    assert combine([Said(P)], None).decision is IN_DP


def test_the_first_of_on_permit_apply_second_is_named_among_the_applicable() -> None:
    combine = policy_algorithm(f"{V3}policy-combining-algorithm:on-permit-apply-second")

    def named(*decisions: XacmlDecision) -> list[str]:
        children = [Said(one, name) for one, name in zip(decisions, "abc", strict=False)]
        return [one.id for one in combine(children, None).applicable]

    assert named(P, P) == ["a", "b"]
    assert named(P, NA, D) == ["a"]
    assert named(D, P, D) == ["a", "c"]
    assert named(D, P) == ["a"]
    assert named(NA, P, D) == ["c"]
    assert named(IN_P, P, D) == ["b", "c"]


def test_what_agrees_goes_along() -> None:
    combine = rule_algorithm(f"{V3}rule-combining-algorithm:deny-overrides")
    found = combine([Said(P, "a"), Said(NA, "b"), Said(D, "c"), Said(D, "d")], None)
    assert [told.id for told in found.obligations] == ["c"]
    found = combine([Said(P, "a"), Said(P, "b")], None)
    assert [told.id for told in found.advice] == ["a", "b"]


def test_nobody_is_asked_without_need() -> None:
    children = [Said(P), Said(D)]
    rule_algorithm(f"{V1}rule-combining-algorithm:first-applicable")(children, None)
    assert [one.asked for one in children] == [True, False]


def test_the_reason_is_that_of_the_first_that_failed() -> None:
    combine = rule_algorithm(f"{V3}rule-combining-algorithm:permit-overrides")
    assert combine([Said(D), Said(IN_P)], None).status.code == MISSING_ATTRIBUTE


def test_others_are_refused() -> None:
    with pytest.raises(MalformedError) as caught:
        rule_algorithm("urn:nonsense")
    assert caught.value.code == "xacml.combining"

"""Combining algorithms (appendix C): what rules or policies say together.

An algorithm is given children that are evaluated when they are asked for, and asks no more of them than it needs. What
counts is which decisions came and in which order; the obligations and advice of those that agree with the result go
with it (section 7.18).

`overrides(D)` is deny-overrides and `overrides(P)` permit-overrides. `unless(P)` is deny-unless-permit and `unless(D)`
permit-unless-deny. `first` is first-applicable, `only_one` only-one-applicable, `on_permit_second`
on-permit-apply-second. `legacy_…` are deny-overrides and permit-overrides before XACML 3.0.
`registry` maps ids to them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from penstock.policy.language.results import (
    NOT_APPLICABLE,
    PROCESSING_ERROR,
    DecisionStatus,
    PolicyOutcome,
    XacmlDecision,
)

P, D, NA = XacmlDecision.PERMIT, XacmlDecision.DENY, XacmlDecision.NOT_APPLICABLE
IN_P, IN_D, IN_DP = XacmlDecision.INDETERMINATE_P, XacmlDecision.INDETERMINATE_D, XacmlDecision.INDETERMINATE_DP


C_contra = TypeVar("C_contra", contravariant=True)
C = TypeVar("C")


class Child(Protocol[C_contra]):
    """A rule, a policy or a policy set, evaluated where somebody says."""

    def evaluate(self, context: C_contra, /) -> PolicyOutcome:
        """Return what it says."""

    def applies(self, context: C_contra, /) -> bool | PolicyOutcome:
        """Say whether its target matches; what comes of it where that is not known."""


class CombiningAlgorithm(Protocol):
    """A combining algorithm."""

    def __call__(self, children: Sequence[Child[C]], context: C, /) -> PolicyOutcome:
        """Return what children say together."""


def gathered(decision: XacmlDecision, outcomes: Iterable[PolicyOutcome]) -> PolicyOutcome:
    """Return a decision, with the obligations and advice of those that say the same, and why it could not be made."""
    outcomes = [*outcomes]
    same = [one for one in outcomes if one.decision is decision]
    applicable = tuple(name for one in outcomes for name in one.applicable)
    if decision.indeterminate:
        spoiled = next((one for one in outcomes if one.decision.indeterminate), None)
        status = DecisionStatus(PROCESSING_ERROR) if spoiled is None else spoiled.status
        return PolicyOutcome(decision, status, applicable=applicable)
    return PolicyOutcome(
        decision,
        obligations=tuple(told for one in same for told in one.obligations),
        advice=tuple(told for one in same for told in one.advice),
        applicable=applicable,
    )


def _asked(children: Sequence[Child[C]], context: C, enough: Callable[[XacmlDecision], bool]) -> list[PolicyOutcome]:
    """Return what children say, in their order, up to the first that is enough."""
    outcomes: list[PolicyOutcome] = []
    for child in children:
        outcomes.append(child.evaluate(context))
        if enough(outcomes[-1].decision):
            break
    return outcomes


def overrides(strong: XacmlDecision) -> CombiningAlgorithm:
    """C.2, C.4: the strong decision wins, and where it could have come, the answer is not known."""
    weak = P if strong is D else D
    strong_spoiled, weak_spoiled = (IN_D, IN_P) if strong is D else (IN_P, IN_D)

    def combine(children: Sequence[Child[C]], context: C) -> PolicyOutcome:
        outcomes = _asked(children, context, lambda decision: decision is strong)
        seen = {one.decision for one in outcomes}
        if strong in seen:
            return gathered(strong, outcomes)
        if IN_DP in seen or (strong_spoiled in seen and (weak_spoiled in seen or weak in seen)):
            return gathered(IN_DP, outcomes)
        for decision in (strong_spoiled, weak, weak_spoiled):
            if decision in seen:
                return gathered(decision, outcomes)
        return gathered(NA, outcomes)

    return combine


def unless(strong: XacmlDecision) -> CombiningAlgorithm:
    """C.6, C.7: the strong decision where anybody says so, otherwise the other one."""
    other = D if strong is P else P

    def combine(children: Sequence[Child[C]], context: C) -> PolicyOutcome:
        outcomes = _asked(children, context, lambda decision: decision is strong)
        return gathered(strong if any(one.decision is strong for one in outcomes) else other, outcomes)

    return combine


def first(children: Sequence[Child[C]], context: C) -> PolicyOutcome:
    """C.8: the first that is applicable."""
    outcomes = _asked(children, context, lambda decision: decision is not NA)
    return gathered(outcomes[-1].decision if outcomes else NA, outcomes)


def only_one(children: Sequence[Child[C]], context: C) -> PolicyOutcome:
    """C.9: the only one whose target matches; more than one is an error."""
    chosen: Child[C] | None = None
    for child in children:
        applies = child.applies(context)
        if isinstance(applies, PolicyOutcome):
            return PolicyOutcome(IN_DP, applies.status)
        if applies:
            if chosen is not None:
                return PolicyOutcome(IN_DP, DecisionStatus(PROCESSING_ERROR, "more than one policy is applicable"))
            chosen = child
    return NOT_APPLICABLE if chosen is None else chosen.evaluate(context)


def on_permit_second(children: Sequence[Child[C]], context: C) -> PolicyOutcome:
    """Apply the second where the first permits, and the third, if there is one, where it does not."""
    if len(children) not in (2, 3):
        return PolicyOutcome(
            IN_DP, DecisionStatus(PROCESSING_ERROR, "on-permit-apply-second combines two or three policies")
        )
    first = children[0].evaluate(context)
    if first.decision is P:
        return _after(first, children[1].evaluate(context))
    if first.decision in (IN_P, IN_DP):
        # Which of the others would be applied is not known.
        return _either(first, children[1:], context)
    return _after(first, NOT_APPLICABLE if len(children) == 2 else children[2].evaluate(context))


def _after(first: PolicyOutcome, outcome: PolicyOutcome) -> PolicyOutcome:
    """Return what comes of a later child; the first was applicable beside it (section 5.48)."""
    return replace(outcome, applicable=(*first.applicable, *outcome.applicable)) if first.applicable else outcome


def _either(first: PolicyOutcome, children: Sequence[Child[C]], context: C) -> PolicyOutcome:
    outcomes = [child.evaluate(context) for child in children]
    decisions = {one.decision for one in outcomes} | ({NA} if len(outcomes) == 1 else set())
    permits = bool(decisions & {P, IN_P, IN_DP})
    denies = bool(decisions & {D, IN_D, IN_DP})
    applicable = tuple(name for one in (first, *outcomes) for name in one.applicable)
    if not permits and not denies:
        return PolicyOutcome(NA, applicable=applicable)
    return PolicyOutcome(
        IN_DP if permits and denies else IN_P if permits else IN_D, first.status, applicable=applicable
    )


# --- before 3.0 ------------------------------------------------------------------------------------------------------


def legacy_rules(strong: XacmlDecision) -> CombiningAlgorithm:
    """C.10, C.12: as rules were combined before; a rule that fails counts for what its effect is."""
    weak, spoiled = (P, IN_D) if strong is D else (D, IN_P)

    def combine(children: Sequence[Child[C]], context: C) -> PolicyOutcome:
        outcomes = _asked(children, context, lambda decision: decision is strong)
        seen = {one.decision for one in outcomes}
        if strong in seen:
            return gathered(strong, outcomes)
        if spoiled in seen or IN_DP in seen:
            return gathered(spoiled if IN_DP not in seen else IN_DP, outcomes)
        if weak in seen:
            return gathered(weak, outcomes)
        failed = next((one.decision for one in outcomes if one.decision.indeterminate), None)
        return gathered(NA if failed is None else failed, outcomes)

    return combine


def legacy_deny_policies(children: Sequence[Child[C]], context: C) -> PolicyOutcome:
    """C.11: as policies were combined before: a policy that fails denies."""
    outcomes = _asked(children, context, lambda decision: decision is D or decision.indeterminate)
    seen = {one.decision for one in outcomes}
    if any(one is D or one.indeterminate for one in seen):
        return gathered(D, outcomes)
    return gathered(P if P in seen else NA, outcomes)


def legacy_permit_policies(children: Sequence[Child[C]], context: C) -> PolicyOutcome:
    """C.13: as policies were combined before: a policy that fails is an error where none permits or denies."""
    outcomes = _asked(children, context, lambda decision: decision is P)
    seen = {one.decision for one in outcomes}
    for decision in (P, D):
        if decision in seen:
            return gathered(decision, outcomes)
    return gathered(IN_DP if any(one.indeterminate for one in seen) else NA, outcomes)

"""Combining algorithms of the standard as formulas: when each decision comes, given when each child says what."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import z3

from penstock.policy.combine import IN_D, IN_DP, IN_P, NA, D, P
from penstock.policy.results import Decision

Formula: TypeAlias = Any
"""A z3 expression; z3 ships no types."""

Outcomes: TypeAlias = Mapping[Decision, Formula]
"""When each decision comes; just one of them does."""


@dataclass(frozen=True, slots=True)
class Truth:
    """When something holds, and when it does not; otherwise there is an error."""

    holds: Formula
    fails: Formula


class Logic:
    """Formulas of one z3 context."""

    def __init__(self) -> None:
        self.context = z3.Context()

    def constant(self, value: bool) -> Formula:
        """Return what always holds, or never."""
        return z3.BoolVal(value, self.context)

    def all(self, formulas: Iterable[Formula]) -> Formula:
        """Return that all hold."""
        return z3.And([self.constant(True), *formulas])

    def any(self, formulas: Iterable[Formula]) -> Formula:
        """Return that one holds."""
        return z3.Or([self.constant(False), *formulas])

    def first(self, *cases: tuple[Decision, Formula]) -> Outcomes:
        """Return the decision of the first case that holds; where none does, nothing is applicable."""
        found = {decision: self.constant(False) for decision in Decision}
        none = self.constant(True)
        for decision, formula in (*cases, (NA, self.constant(True))):
            found[decision] = z3.Or(found[decision], z3.And(none, formula))
            none = z3.And(none, z3.Not(formula))
        return found

    def chosen(self, cases: Iterable[tuple[Formula, Outcomes]]) -> Outcomes:
        """Return the outcomes of the one case that holds."""
        cases = [*cases]
        return {
            decision: self.any(z3.And(formula, outcomes[decision]) for formula, outcomes in cases)
            for decision in Decision
        }


@dataclass(frozen=True, slots=True)
class Child:
    """A rule, a policy or a policy set: when it says what, and when its target matches."""

    says: Outcomes
    applies: Truth


Combine: TypeAlias = Callable[[Logic, Sequence[Child]], Outcomes]


def algorithm(name: str) -> Combine | None:
    """Return an algorithm by its id; none for those that are not of the standard."""
    version, _, short = name.removeprefix("urn:oasis:names:tc:xacml:").partition(":")
    return _ALGORITHMS.get(f"{'3' if version == '3.0' else '1'} {short.replace('ordered-', '')}")


def _said(logic: Logic, children: Sequence[Child], *decisions: Decision) -> Formula:
    return logic.any(child.says[decision] for child in children for decision in decisions)


def _overrides(strong: Decision) -> Combine:
    weak, strong_spoiled, weak_spoiled = (P, IN_D, IN_P) if strong is D else (D, IN_P, IN_D)

    def combine(logic: Logic, children: Sequence[Child]) -> Outcomes:
        either = z3.And(_said(logic, children, strong_spoiled), _said(logic, children, weak_spoiled, weak))
        return logic.first(
            (strong, _said(logic, children, strong)),
            (IN_DP, z3.Or(_said(logic, children, IN_DP), either)),
            *((decision, _said(logic, children, decision)) for decision in (strong_spoiled, weak, weak_spoiled)),
        )

    return combine


def _unless(strong: Decision) -> Combine:
    def combine(logic: Logic, children: Sequence[Child]) -> Outcomes:
        other = D if strong is P else P
        return logic.first((strong, _said(logic, children, strong)), (other, logic.constant(True)))

    return combine


def _first(logic: Logic, children: Sequence[Child]) -> Outcomes:
    decisive = [decision for decision in Decision if decision is not NA]
    return logic.first(*((decision, child.says[decision]) for child in children for decision in decisive))


def _only_one(logic: Logic, children: Sequence[Child]) -> Outcomes:
    unknown = logic.any(z3.Not(z3.Or(child.applies.holds, child.applies.fails)) for child in children)
    seen, several = logic.constant(False), logic.constant(False)
    for child in children:
        several = z3.Or(several, z3.And(seen, child.applies.holds))
        seen = z3.Or(seen, child.applies.holds)
    spoiled = z3.Or(unknown, several)
    none = z3.Not(z3.Or(spoiled, seen))
    one = [(z3.And(z3.Not(spoiled), child.applies.holds), child.says) for child in children]
    return logic.chosen([(spoiled, _always(logic, IN_DP)), (none, _always(logic, NA)), *one])


def _always(logic: Logic, decision: Decision) -> Outcomes:
    return logic.first((decision, logic.constant(True)))


def _on_permit_second(logic: Logic, children: Sequence[Child]) -> Outcomes:
    if len(children) not in (2, 3):
        return _always(logic, IN_DP)
    first, second, *third = children
    doubtful = z3.Or(first.says[IN_P], first.says[IN_DP])
    otherwise = third[0].says if third else _always(logic, NA)
    permits = _said(logic, children[1:], P, IN_P, IN_DP)
    denies = _said(logic, children[1:], D, IN_D, IN_DP)
    either = logic.first((IN_DP, z3.And(permits, denies)), (IN_P, permits), (IN_D, denies))
    no = z3.Not(z3.Or(first.says[P], doubtful))
    return logic.chosen([(first.says[P], second.says), (doubtful, either), (no, otherwise)])


def _legacy_rules(strong: Decision) -> Combine:
    weak, spoiled, other = (P, IN_D, IN_P) if strong is D else (D, IN_P, IN_D)

    def combine(logic: Logic, children: Sequence[Child]) -> Outcomes:
        order = (strong, IN_DP, spoiled, weak, other)
        return logic.first(*((decision, _said(logic, children, decision)) for decision in order))

    return combine


def _legacy_deny_policies(logic: Logic, children: Sequence[Child]) -> Outcomes:
    denied = _said(logic, children, D, IN_D, IN_P, IN_DP)
    return logic.first((D, denied), (P, _said(logic, children, P)))


def _legacy_permit_policies(logic: Logic, children: Sequence[Child]) -> Outcomes:
    spoiled = _said(logic, children, IN_D, IN_P, IN_DP)
    return logic.first((P, _said(logic, children, P)), (D, _said(logic, children, D)), (IN_DP, spoiled))


_RULES, _POLICIES = "rule-combining-algorithm:", "policy-combining-algorithm:"
_ALGORITHMS: Final[Mapping[str, Combine]] = {
    **{f"3 {kind}deny-overrides": _overrides(D) for kind in (_RULES, _POLICIES)},
    **{f"3 {kind}permit-overrides": _overrides(P) for kind in (_RULES, _POLICIES)},
    **{f"3 {kind}deny-unless-permit": _unless(P) for kind in (_RULES, _POLICIES)},
    **{f"3 {kind}permit-unless-deny": _unless(D) for kind in (_RULES, _POLICIES)},
    **{f"1 {kind}first-applicable": _first for kind in (_RULES, _POLICIES)},
    f"3 {_POLICIES}on-permit-apply-second": _on_permit_second,
    f"1 {_POLICIES}only-one-applicable": _only_one,
    f"1 {_RULES}deny-overrides": _legacy_rules(D),
    f"1 {_RULES}permit-overrides": _legacy_rules(P),
    f"1 {_POLICIES}deny-overrides": _legacy_deny_policies,
    f"1 {_POLICIES}permit-overrides": _legacy_permit_policies,
}

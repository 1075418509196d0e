"""Combining algorithms of the standard as formulas: when each decision comes, given when each child says what."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from penstock.policy.analysis.formulas import (
    EncodedChild,
    Formula,
    Outcomes,
    always,
    both,
    chosen,
    either,
    first,
    negated,
    some,
)
from penstock.policy.combining.algorithms import IN_D, IN_DP, IN_P, NA, D, P
from penstock.policy.combining.registry import standard
from penstock.policy.language.results import XacmlDecision

Combine: TypeAlias = Callable[[Sequence[EncodedChild]], Outcomes]


def algorithm(name: str) -> Combine | None:
    """Return an algorithm by its id; none for those that are not of the standard."""
    found = standard(name)
    return None if found is None else _ALGORITHMS[found.name]


def _said(children: Sequence[EncodedChild], *decisions: XacmlDecision) -> Formula:
    return some(child.says[decision] for child in children for decision in decisions)


def _overrides(strong: XacmlDecision) -> Combine:
    weak, strong_spoiled, weak_spoiled = (P, IN_D, IN_P) if strong is D else (D, IN_P, IN_D)

    def combine(children: Sequence[EncodedChild]) -> Outcomes:
        doubtful = both(_said(children, strong_spoiled), _said(children, weak_spoiled, weak))
        return first(
            (strong, _said(children, strong)),
            (IN_DP, either(_said(children, IN_DP), doubtful)),
            *((decision, _said(children, decision)) for decision in (strong_spoiled, weak, weak_spoiled)),
        )

    return combine


def _unless(strong: XacmlDecision) -> Combine:
    def combine(children: Sequence[EncodedChild]) -> Outcomes:
        other = D if strong is P else P
        return first((strong, _said(children, strong)), (other, True))

    return combine


def _first(children: Sequence[EncodedChild]) -> Outcomes:
    found: dict[XacmlDecision, list[Formula]] = {decision: [] for decision in XacmlDecision if decision is not NA}
    none: Formula = True
    for child in children:
        for decision, formulas in found.items():
            formulas.append(both(none, child.says[decision]))
        none = both(none, child.says[NA])
    return {**{decision: some(formulas) for decision, formulas in found.items()}, NA: none}


def _only_one(children: Sequence[EncodedChild]) -> Outcomes:
    unknown = some(negated(child.applies.fine) for child in children)
    seen, several = False, False
    for child in children:
        several = either(several, both(seen, child.applies.holds))
        seen = either(seen, child.applies.holds)
    spoiled = either(unknown, several)
    none = negated(either(spoiled, seen))
    one = [(both(negated(spoiled), child.applies.holds), child.says) for child in children]
    return chosen([(spoiled, always(IN_DP)), (none, always(NA)), *one])


def _on_permit_second(children: Sequence[EncodedChild]) -> Outcomes:
    if len(children) not in (2, 3):
        return always(IN_DP)
    asked, second, *third = children
    doubtful = either(asked.says[IN_P], asked.says[IN_DP])
    otherwise = third[0].says if third else always(NA)
    permits = _said(children[1:], P, IN_P, IN_DP)
    denies = _said(children[1:], D, IN_D, IN_DP)
    unknown = first((IN_DP, both(permits, denies)), (IN_P, permits), (IN_D, denies))
    no = negated(either(asked.says[P], doubtful))
    return chosen([(asked.says[P], second.says), (doubtful, unknown), (no, otherwise)])


def _legacy_rules(strong: XacmlDecision) -> Combine:
    weak, spoiled, other = (P, IN_D, IN_P) if strong is D else (D, IN_P, IN_D)

    def combine(children: Sequence[EncodedChild]) -> Outcomes:
        order = (strong, IN_DP, spoiled, weak, other)
        return first(*((decision, _said(children, decision)) for decision in order))

    return combine


def _legacy_deny_policies(children: Sequence[EncodedChild]) -> Outcomes:
    denied = _said(children, D, IN_D, IN_P, IN_DP)
    return first((D, denied), (P, _said(children, P)))


def _legacy_permit_policies(children: Sequence[EncodedChild]) -> Outcomes:
    spoiled = _said(children, IN_D, IN_P, IN_DP)
    return first((P, _said(children, P)), (D, _said(children, D)), (IN_DP, spoiled))


_ALGORITHMS: Final[Mapping[str, Combine]] = {
    "deny-overrides": _overrides(D),
    "permit-overrides": _overrides(P),
    "deny-unless-permit": _unless(P),
    "permit-unless-deny": _unless(D),
    "first-applicable": _first,
    "on-permit-apply-second": _on_permit_second,
    "only-one-applicable": _only_one,
    "deny-overrides of rules before 3.0": _legacy_rules(D),
    "permit-overrides of rules before 3.0": _legacy_rules(P),
    "deny-overrides of policies before 3.0": _legacy_deny_policies,
    "permit-overrides of policies before 3.0": _legacy_permit_policies,
}

"""Decisions as formulas: when something is true, when it is not, and when each decision is the result.

A formula is any object with `&`, `|` and `~`: z3's for analysis, formulas over an event's attributes for partial
evaluation. Formulas that are always or never true are Python's True and False. A truth is a pair of formulas; if
neither is true, the plain evaluator meets an error. Nothing is approximated: errors, and the order in which arguments
are evaluated, have the same effect as in the plain evaluator. `algorithm` gives the standard's combining algorithms as
formulas over the outcomes of the children.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce, singledispatch
from itertools import pairwise
from operator import and_, or_
from typing import Any, Final, TypeAlias

from penstock.policy.combining import IN_D, IN_DP, IN_P, NA, D, P, standard
from penstock.policy.language.policies import RuleEffect
from penstock.policy.language.results import XacmlDecision

Formula: TypeAlias = Any
"""An expression with `&`, `|` and `~`, or Python's True or False. (z3 ships no types.)"""

Outcomes: TypeAlias = Mapping[XacmlDecision, Formula]
"""For each decision, when it is the result; exactly one is."""


@dataclass(frozen=True, slots=True)
class TruthFormula:
    """When something is true, and when it is false; otherwise there is an error."""

    holds: Formula
    fails: Formula

    @property
    def fine(self) -> Formula:
        """When there is no error."""
        return either(self.holds, self.fails)


@dataclass(frozen=True, slots=True)
class EncodedChild:
    """A rule, a policy or a policy set: when each decision is its outcome, and when its target matches."""

    says: Outcomes
    applies: TruthFormula


# --- formulas --------------------------------------------------------------------------------------------------------


def every(formulas: Iterable[Formula]) -> Formula:
    """Return that all hold."""
    kept = []
    for formula in formulas:
        if formula is False:
            return False
        if formula is not True:
            kept.append(formula)
    return all_of(kept[0], kept) if len(kept) > 1 else kept[0] if kept else True


def some(formulas: Iterable[Formula]) -> Formula:
    """Return that one holds."""
    kept = []
    for formula in formulas:
        if formula is True:
            return True
        if formula is not False:
            kept.append(formula)
    return one_of(kept[0], kept) if len(kept) > 1 else kept[0] if kept else False


@singledispatch
def all_of(one: Formula, formulas: Sequence[Formula]) -> Formula:
    """Join one or more formulas; kinds of formulas with a better way than `&` register it."""
    return reduce(and_, formulas[1:], one)


@singledispatch
def one_of(one: Formula, formulas: Sequence[Formula]) -> Formula:
    """Join one or more formulas; kinds of formulas with a better way than `|` register it."""
    return reduce(or_, formulas[1:], one)


def both(*formulas: Formula) -> Formula:
    """Return that all hold."""
    return every(formulas)


def either(*formulas: Formula) -> Formula:
    """Return that one holds."""
    return some(formulas)


def negated(formula: Formula) -> Formula:
    """Return the negation."""
    return not formula if isinstance(formula, bool) else ~formula


# --- truths ----------------------------------------------------------------------------------------------------------


def decided(fine: Formula, holds: Formula) -> TruthFormula:
    """Return a truth without errors."""
    return TruthFormula(both(fine, holds), both(fine, negated(holds)))


def every_truth(truths: Iterable[TruthFormula]) -> TruthFormula:
    """Return the conjunction; a false part decides, even if others are errors (section 7.7)."""
    truths = [*truths]
    return TruthFormula(every(one.holds for one in truths), some(one.fails for one in truths))


def some_truth(truths: Iterable[TruthFormula]) -> TruthFormula:
    """Return the disjunction; a true part decides, even if others are errors (section 7.7)."""
    truths = [*truths]
    return TruthFormula(some(one.holds for one in truths), every(one.fails for one in truths))


def in_order(truths: Iterable[TruthFormula], *, decisive: bool) -> TruthFormula:
    """Return `or` if True decides, otherwise `and`: arguments are evaluated up to the first that decides (A.3.5)."""
    found: Formula = False
    others: Formula = True
    for truth in truths:
        decides, goes_on = (truth.holds, truth.fails) if decisive else (truth.fails, truth.holds)
        found = either(found, both(others, decides))
        others = both(others, goes_on)
    return TruthFormula(found, others) if decisive else TruthFormula(others, found)


def n_of(wanted: int, truths: Sequence[TruthFormula]) -> TruthFormula:
    """Return that enough are true; arguments are evaluated in order, and no more than necessary (A.3.5)."""
    yes, no = True, False
    if wanted > len(truths):
        return TruthFormula(no, no)
    # From the last argument on: the result if so many of the remaining ones are required.
    rest = [TruthFormula(yes, no)] + [TruthFormula(no, yes)] * max(wanted, 0)
    for left, truth in enumerate(reversed(truths), 1):
        pairs = pairwise(rest[: left + 1])
        rest[1 : left + 1] = [_one_more(truth, fewer, same) for fewer, same in pairs]
    return rest[-1]


def _one_more(truth: TruthFormula, fewer: TruthFormula, same: TruthFormula) -> TruthFormula:
    """Return the result with one more argument of `n-of`: if it is true, one fewer of the others is required."""
    return TruthFormula(
        either(both(truth.holds, fewer.holds), both(truth.fails, same.holds)),
        either(both(truth.holds, fewer.fails), both(truth.fails, same.fails)),
    )


# --- decisions -------------------------------------------------------------------------------------------------------


def first(*cases: tuple[XacmlDecision, Formula]) -> Outcomes:
    """Return the decision of the first case that is true; NotApplicable if none is."""
    found: dict[XacmlDecision, list[Formula]] = {decision: [] for decision in XacmlDecision}
    none: Formula = True
    for decision, formula in (*cases, (NA, True)):
        found[decision].append(both(none, formula))
        none = both(none, negated(formula))
    return {decision: some(formulas) for decision, formulas in found.items()}


def chosen(cases: Iterable[tuple[Formula, Outcomes]]) -> Outcomes:
    """Return the outcomes of the one case that is true."""
    cases = [*cases]
    return {decision: some(both(formula, said[decision]) for formula, said in cases) for decision in XacmlDecision}


def always(decision: XacmlDecision) -> Outcomes:
    """Return the outcomes of a constant decision."""
    return first((decision, True))


def ruled(effect: RuleEffect, applies: TruthFormula, condition: TruthFormula, told: Formula) -> EncodedChild:
    """Return the outcomes of a rule, given when its obligations and advice can be evaluated (section 7.11)."""
    # True and false exclude each other, so that neither must be excluded explicitly.
    not_applicable = either(applies.fails, both(applies.holds, condition.fails))
    decides = every([applies.holds, condition.holds, told])
    spoiled = negated(either(not_applicable, decides))
    says = {NA: not_applicable, XacmlDecision.of(effect): decides, XacmlDecision.spoiled(effect): spoiled}
    return EncodedChild({**dict.fromkeys(XacmlDecision, False), **says}, applies)


def contained(applies: TruthFormula, said: Outcomes, told: Mapping[RuleEffect, Formula]) -> EncodedChild:
    """Return the outcomes of a container from those of its children and its target (7.12 to 7.14)."""
    matches, unknown = applies.holds, negated(applies.fine)
    permits, denies = both(matches, told[RuleEffect.PERMIT]), both(matches, told[RuleEffect.DENY])
    found = {decision: both(negated(applies.fails), said[decision]) for decision in XacmlDecision}
    spoiled_p = both(said[P], either(unknown, both(matches, negated(told[RuleEffect.PERMIT]))))
    spoiled_d = both(said[D], either(unknown, both(matches, negated(told[RuleEffect.DENY]))))
    says = {
        **found,
        P: both(permits, said[P]),
        D: both(denies, said[D]),
        NA: either(applies.fails, said[NA]),
        IN_P: either(found[IN_P], spoiled_p),
        IN_D: either(found[IN_D], spoiled_d),
    }
    return EncodedChild(says, applies)


Combine: TypeAlias = Callable[[Sequence[EncodedChild]], Outcomes]


def algorithm(name: str) -> Combine | None:
    """Return an algorithm of the standard by its id; None for others."""
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

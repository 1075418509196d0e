"""Ways out of a conflict: which rules would change, and to what (paper 1, section IV).

Each strategy looks at the conflicts of a candidate and says what all involved would have to state; the rule base then
says whether that fits. It does as a whole, with all that stands below and above, or not at all: a part of a resolution
is none.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from penstock.errors import MalformedError
from penstock.moderator.base import RuleBase
from penstock.moderator.conflicts import Function, Kind, Mode
from penstock.moderator.deltas import Standing, Status
from penstock.moderator.judge import in_list_order
from penstock.moderator.lists import AttributeList, listed, parts
from penstock.moderator.rules import PublishRule
from penstock.moderator.steps import Strategy
from penstock.selector import Selector, conjunction

Forms: TypeAlias = Mapping[str, PublishRule]
"""What rules would state, by their ids; the candidate is among them."""


def resolve(base: RuleBase, candidate: PublishRule, strategy: Strategy) -> Forms | None:
    """Return the forms that a strategy would put in force, or None where it leads nowhere.

    Raises what `Detector.conflicts` raises.
    """
    base.detector.conflicts(candidate)
    try:
        forms = _STRATEGIES[strategy](base, candidate)
    except MalformedError:
        # What the parts say together contradicts itself, or is too large, or no list: there is no way here.
        return None
    with base.draft() as draft:
        return forms if draft.fits(standings(base, candidate, forms)) else None


def standings(base: RuleBase, candidate: PublishRule, forms: Forms) -> dict[str, Standing]:
    """Return how rules stand once their forms are in force."""
    stated = {rule_id: base.standings[rule_id].stated for rule_id in forms if rule_id != candidate.id}
    stated[candidate.id] = candidate
    return {rule_id: Standing(stated[rule_id], Status.IN_FORCE, form) for rule_id, form in forms.items()}


def _add(base: RuleBase, candidate: PublishRule) -> Forms:
    """Add attributes (Algorithms 2 and 3).

    (1) The candidate takes on what the others demand of it: on the same event type, and where the scope makes it obey.
    (2) All on the same event type state that, and (3) those that the scope makes obey the candidate take on what they
    lack of it.
    """
    # (1) What is added may be what another one lacks.
    form, conflicts = candidate, base.detector.conflicts(candidate)
    for _ in range(_ROUNDS):
        if not any(conflict.missing for conflict in conflicts):
            break
        for conflict in conflicts:
            form = _with(base, form, conflict.function, conflict.missing)
        conflicts = base.detector.conflicts(form)
    # (2) Rules on one event type state the same.
    forms = {form.id: form} | _agreeing(base, form)
    # (3) The whole of them, or the rule base refuses it.
    for conflict in conflicts:
        if conflict.kind is not Kind.SAME:
            for rule_id in conflict.rules:
                rule = forms.get(rule_id, base.detector.rules[rule_id])
                forms[rule_id] = _with(base, rule, conflict.function, conflict.extra)
    return forms


def _delete(base: RuleBase, candidate: PublishRule) -> Forms:
    """Delete attributes (Algorithm 4): the candidate, and the rules it collides with, keep what they have in common.

    What the candidate demands no longer may be what implied something else, which is then not common either.
    """
    form, conflicts = candidate, base.detector.conflicts(candidate)
    for _ in range(_ROUNDS):
        if not any(conflict.extra for conflict in conflicts):
            break
        for conflict in conflicts:
            if conflict.extra:
                form = _common(base, form, base.detector.rules[conflict.rules[0]], conflict.function)
        conflicts = base.detector.conflicts(form)
    forms = {form.id: form} | _agreeing(base, form)
    for conflict in conflicts:
        if conflict.kind is not Kind.SAME:
            for rule_id in conflict.rules:
                rule = forms.get(rule_id, base.detector.rules[rule_id])
                forms[rule_id] = _common(base, rule, form, conflict.function)
    return forms


def _follow(base: RuleBase, candidate: PublishRule) -> Forms:
    """Change the candidate alone: to what is in force on its event type, else to what the others allow."""
    agreed = base.on(candidate.event)
    if agreed:
        return {candidate.id: replace(candidate, fnc_p=agreed[0].fnc_p, fnc_s=agreed[0].fnc_s)}
    form = candidate
    for _ in range(_ROUNDS):
        conflicts = base.detector.conflicts(form)
        for conflict in conflicts:
            form = _with(base, form, conflict.function, conflict.missing)
            form = _without(base, form, conflict.function, conflict.extra)
        if not conflicts:
            break
    return {candidate.id: form}


#: lists that differ in bounds, and additions that collide with deletions, could go round for ever
_ROUNDS: Final = 4
_STRATEGIES: Final[Mapping[Strategy, Callable[[RuleBase, PublishRule], Forms]]] = {
    Strategy.ADD: _add,
    Strategy.DELETE: _delete,
    Strategy.FOLLOW: _follow,
}


def _agreeing(base: RuleBase, form: PublishRule) -> dict[str, PublishRule]:
    """Return the rules on the event type of a form, stating what it states."""
    return {rule.id: replace(rule, fnc_p=form.fnc_p, fnc_s=form.fnc_s) for rule in base.on(form.event)}


def function_of(rule: PublishRule, function: Function) -> Selector:
    """Return one of the functions of a rule."""
    return rule.fnc_p if function is Function.P else rule.fnc_s


def stating(base: RuleBase, rule: PublishRule, function: Function, demanded: Iterable[Selector]) -> PublishRule:
    """Return a rule with another function: the conjunction of these parts, written as a list where it is one."""
    selector = conjunction(*demanded)
    listed = AttributeList.from_selector(selector)
    if listed is not None and (base.mode is Mode.ALGORITHM or len(listed.entries) == len(parts(selector))):
        selector = listed.selector
    return replace(rule, fnc_p=selector) if function is Function.P else replace(rule, fnc_s=selector)


def _with(base: RuleBase, rule: PublishRule, function: Function, added: tuple[Selector, ...]) -> PublishRule:
    if not added:
        return rule
    return stating(base, rule, function, (*parts(function_of(rule, function)), *added))


def _common(base: RuleBase, rule: PublishRule, other: PublishRule, function: Function) -> PublishRule:
    """Return a rule that demands, in one function, what it and another one both demand."""
    one, two = function_of(rule, function), function_of(other, function)
    if base.mode is Mode.ALGORITHM:
        return stating(base, rule, function, in_list_order(listed(one) & listed(two)))
    kept = [part for part in parts(one) if base.judge.implies(function, two, part).holds]
    return stating(
        base, rule, function, (*kept, *(part for part in parts(two) if base.judge.implies(function, one, part).holds))
    )


def _without(base: RuleBase, rule: PublishRule, function: Function, deleted: tuple[Selector, ...]) -> PublishRule:
    if not deleted:
        return rule
    texts = {part.text for part in deleted}
    demanded = parts(function_of(rule, function))
    if base.mode is Mode.ALGORITHM:
        # The detector names the entries of a list, which may be written in another way.
        listed = AttributeList.from_selector(function_of(rule, function))
        demanded = () if listed is None else tuple(entry.selector for entry in listed.entries)
    return stating(base, rule, function, (part for part in demanded if part.text not in texts))

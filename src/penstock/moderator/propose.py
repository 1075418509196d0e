"""Proposals: all ways out of a conflict, those that change least first, each with what it changes and for whom.

One that opens an event type to everybody comes after all that do not.

Nothing is applied here. Whoever has to agree is named: to demand less of others than its publisher stated, a rule needs
its publisher's consent, and to demand more does not.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from penstock.errors import EvaluationError
from penstock.model.principals import Principal
from penstock.model.profiles import Profile
from penstock.moderator.base import RuleBase
from penstock.moderator.conflicts import Function
from penstock.moderator.deltas import Delta
from penstock.moderator.lists import parts
from penstock.moderator.resolution import Forms, function_of, resolve
from penstock.moderator.rules import PublishRule
from penstock.moderator.steps import Strategy
from penstock.selector import ALWAYS, Selector, evaluate


@dataclass(frozen=True, slots=True)
class Revision:
    """One rule, before and after; of the candidate, what was asked for and what it would get."""

    before: PublishRule
    after: PublishRule

    @property
    def opened(self) -> bool:
        """True where everybody satisfies a function after, and not before."""
        both = ((function_of(self.before, each), function_of(self.after, each)) for each in Function)
        return any(before != ALWAYS and after == ALWAYS for before, after in both)

    def diff(self) -> Iterator[str]:
        """Yield what goes and what comes, line by line."""
        for function in Function:
            old, new = (parts(function_of(rule, function)) for rule in (self.before, self.after))
            yield from (f"- {function}: {part.text}" for part in old if part not in new)
            yield from (f"+ {function}: {part.text}" for part in new if part not in old)


@dataclass(frozen=True, slots=True)
class Resolution:
    """One way out."""

    strategy: Strategy
    forms: Forms
    #: the rules that change, the candidate first, then by event type and id
    revisions: tuple[Revision, ...]
    #: rules in force that change
    touched: int
    #: publishers whose rule would admit somebody whom it admits neither now nor as they stated it
    relaxed: frozenset[Principal]
    #: the rules, by their ids, that would do so
    wider: frozenset[str] = frozenset()
    #: of the subscribers that are known, how many gain and lose events, counted for each rule that changes
    gained: int = 0
    lost: int = 0

    @property
    def order(self) -> tuple[int, int, int, int]:
        """How much changes: types opened to everybody, then rules in force, subscribers, parts of functions."""
        lines = sum(1 for revision in self.revisions for _ in revision.diff())
        return (sum(1 for revision in self.revisions if revision.opened), self.touched, self.gained + self.lost, lines)

    def diff(self) -> str:
        """Return the rules that change, each with what goes and what comes."""
        return "\n".join(
            f"{revision.before.event.name} {revision.before.id}\n" + "\n".join(f"  {line}" for line in revision.diff())
            for revision in self.revisions
        )


def propose(base: RuleBase, candidate: PublishRule, subscribers: Sequence[Profile] = ()) -> tuple[Resolution, ...]:
    """Return all ways in which a candidate that collides could come into force, the one that changes least first.

    Of strategies that come to the same, the first is named.

    Raises what `Detector.conflicts` raises.
    """
    found: list[Resolution] = []
    for strategy in Strategy:
        forms = resolve(base, candidate, strategy)
        if forms is None:
            continue
        resolution = _resolution(base, candidate, strategy, forms, subscribers)
        if not any(other.revisions == resolution.revisions for other in found):
            found.append(resolution)
    return tuple(sorted(found, key=lambda resolution: resolution.order))


def find(base: RuleBase, candidate: PublishRule, strategy: Strategy) -> Resolution | None:
    """Return one way out, if it is one. Raises as `propose`."""
    forms = resolve(base, candidate, strategy)
    return None if forms is None else _resolution(base, candidate, strategy, forms, ())


def _resolution(
    base: RuleBase, candidate: PublishRule, strategy: Strategy, forms: Forms, subscribers: Sequence[Profile]
) -> Resolution:
    others = sorted(
        (form for form in forms.values() if form.id != candidate.id), key=lambda form: (form.event, form.id)
    )
    revisions = [
        Revision(before, after)
        for before, after in (
            (candidate, forms[candidate.id]),
            *((base.detector.rules[form.id], form) for form in others),
        )
        if before != after
    ]
    return weigh(base, strategy, forms, revisions, subscribers)


def weigh(
    base: RuleBase,
    strategy: Strategy,
    forms: Forms,
    revisions: Sequence[Revision],
    subscribers: Sequence[Profile] = (),
) -> Resolution:
    """Return a way out with what it costs: which rules change, who has to agree, and how many gain and lose."""
    wider = [
        revision.before
        for revision in revisions
        if not implies(base, revision.after, revision.before)
        and not implies(base, revision.after, _stated(base, revision.before))
    ]
    relaxed = frozenset().union(*map(whose, wider))
    gained, lost = _count(revisions, subscribers)
    touched = sum(1 for revision in revisions if revision.before.id in base.detector.rules)
    ids = frozenset(rule.id for rule in wider)
    return Resolution(strategy, forms, tuple(revisions), touched, relaxed, ids, gained, lost)


def relaxed_by(base: RuleBase, delta: Delta) -> frozenset[Principal]:
    """Return those whose rules come into a form that admits somebody whom they admit neither now nor as stated."""
    found: set[Principal] = set()
    for change in delta.rules.values():
        before, after = change.before, change.after
        if after is None or after.form is None or implies(base, after.form, after.stated):
            continue
        if before is None or before.form is None or not implies(base, after.form, before.form):
            found |= whose(after.stated)
    return frozenset(found)


def tightened_by(base: RuleBase, delta: Delta) -> frozenset[Principal]:
    """Return who stated rules in force whose new form shuts out somebody whom they admit now and as stated."""
    changed = ((change.before, change.after) for change in delta.rules.values())
    return frozenset(
        after.stated.stated_by
        for before, after in changed
        if before is not None and before.form is not None and after is not None and after.form is not None
        if not implies(base, before.form, after.form) and not implies(base, after.stated, after.form)
    )


def whose(rule: PublishRule) -> frozenset[Principal]:
    """Return all who have to agree where a rule is relaxed."""
    return rule.speakers


def _stated(base: RuleBase, rule: PublishRule) -> PublishRule:
    """Return what was stated of a rule in force; a candidate is what was stated."""
    standing = base.standings.get(rule.id)
    return rule if standing is None or standing.form is None else standing.stated


def implies(base: RuleBase, one: PublishRule, other: PublishRule) -> bool:
    """Say whether it is certain that whoever satisfies the functions of one rule satisfies those of the other."""
    return all(
        base.judge.implies(function, function_of(one, function), function_of(other, function)).holds
        for function in Function
    )


def _count(revisions: Iterable[Revision], subscribers: Sequence[Profile]) -> tuple[int, int]:
    gained = lost = 0
    for revision in revisions:
        for subscriber in subscribers:
            before, after = admits(revision.before.fnc_s, subscriber), admits(revision.after.fnc_s, subscriber)
            gained += after and not before
            lost += before and not after
    return gained, lost


def admits(function: Selector, profile: Profile) -> bool:
    """Say whether a profile satisfies a function; where it has no value, it does not."""
    try:
        return evaluate(function, profile.values) is True
    except EvaluationError:
        return False

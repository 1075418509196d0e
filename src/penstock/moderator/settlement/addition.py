"""State a rule, and choose a proposal if it conflicts.

A rule that conflicts is rejected, and stored in the log. Nothing else changes unless somebody chooses a resolution, or
the domain's customs name one to try immediately.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.errors import MalformedError, RefusedError
from penstock.model.instants import instant_key
from penstock.model.principals import Principal
from penstock.model.profiles import Profile
from penstock.moderator.base.base import RuleBase, RuleBaseDraft
from penstock.moderator.base.tables import duplicate
from penstock.moderator.rules.rules import Conflict, PublishRule, Rule
from penstock.moderator.rules.steps import Add, LoggedAs, Note, Resolve, RuleState, RuleStatus, Step, Strategy
from penstock.moderator.settlement.proposals import NEWEST, Heuristic, Resolution, find, propose, standings
from penstock.trust.validity import State


class Tightening(StrEnum):
    """How others' rules may be tightened."""

    #: by the author of the rule that they conflict with, or by the moderator
    FREE = "free"
    #: by the moderator, if a poll chose it
    POLL = "poll"


@dataclass(frozen=True, slots=True)
class Customs:
    """Conventions of a domain."""

    #: tried immediately if a rule conflicts; None: somebody chooses
    resolve: Strategy | None = None
    #: the order in which log entries are restored
    heuristic: Heuristic = NEWEST
    #: known subscribers, to count who gains and loses
    subscribers: Sequence[Profile] = field(default=(), repr=False)
    #: who may state rules in a rule book; empty: everybody with a key
    speakers: frozenset[Principal] = frozenset()
    #: how others' rules can be tightened in a rule book
    tightening: Tightening = Tightening.FREE


DEFAULT_CUSTOMS = Customs()


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of a request: a step that can be applied, and its explanation."""

    step: Step
    #: the rule's conflicts
    conflicts: tuple[Conflict, ...] = ()
    #: how they were, or could be, resolved
    resolution: Resolution | None = None


def plan_add(base: RuleBase, rule: PublishRule, note: Note, customs: Customs = DEFAULT_CUSTOMS) -> Plan:
    """Plan the result of stating a publisher's rule: in force, waiting for its period, or rejected.

    A rule of the same id that is not in force is replaced by the new one, if its publisher stated both.

    Raises `MalformedError` (`moderator.duplicate-id`, `moderator.period`), `RefusedError` (`moderator.not-yours`), and
    what `Vocabulary.check` raises.
    """
    _check_new(base, rule, note)
    conflicts = base.detector.conflicts(rule)
    resolution: Resolution | None = None
    with base.draft() as draft:
        _forget(draft, rule.id)
        if rule.validity.state(instant_key(note.when)) is State.NOT_YET:
            conflicts = ()
            draft.stand({rule.id: RuleState(rule, RuleStatus.WAITING)})
        elif rule.rests(base.away):
            raise RefusedError("moderator.away", "the publisher of the rule has left", hint="let it come back first")
        else:
            resolution = enter(draft, rule, customs)
        return Plan(Step(base.next_number, note, Add(rule), draft.delta), conflicts, resolution)


def enter(draft: RuleBaseDraft, rule: PublishRule, customs: Customs) -> Resolution | None:
    """Put a rule in force, resolved by the domain's customs if necessary, or log that it was rejected."""
    base = draft.base
    if draft.fits({rule.id: RuleState(rule, RuleStatus.IN_FORCE, rule)}):
        return None
    resolution = None if customs.resolve is None else find(base, rule, customs.resolve)
    if resolution is None or resolution.relaxed:
        draft.stand({rule.id: RuleState(rule, RuleStatus.REJECTED)})
        draft.log(LoggedAs.REJECTED, (rule,))
        return None
    settle_on(draft, rule, resolution)
    return resolution


def plan_resolve(base: RuleBase, request: Resolve, note: Note, customs: Customs = DEFAULT_CUSTOMS) -> Plan:
    """Plan the chosen proposal for a rejected rule.

    Raises `MalformedError` (`moderator.unknown-rule`), `RefusedError`: `moderator.not-rejected`,
    `moderator.unresolved` if that proposal is not possible (the field `proposals` has those that are),
    `moderator.consent` if a publisher has not agreed that its rule is relaxed.
    """
    standing = base.standing(request.rule_id)
    rule = standing.stated
    if standing.status is not RuleStatus.REJECTED or rule.rests(base.away):
        raise RefusedError(
            "moderator.not-rejected", f"rule `{rule.id}` is {standing.status}", hint="only rejected rules are resolved"
        )
    conflicts = base.detector.conflicts(rule)
    resolution = find(base, rule, request.strategy)
    if resolution is None:
        raise RefusedError(
            "moderator.unresolved",
            f"rule `{rule.id}` cannot come into force by `{request.strategy}`",
            hint="choose another of the proposals",
            proposals=propose(base, rule, customs.subscribers),
        )
    check_agreed(resolution, request.consents)
    with base.draft() as draft:
        settle_on(draft, rule, resolution)
        return Plan(Step(base.next_number, note, request, draft.delta), conflicts, resolution)


def check_agreed(resolution: Resolution, consents: frozenset[Principal]) -> None:
    """Check that all agree whose rules would be relaxed. Raises `RefusedError` (`moderator.consent`)."""
    missing = sorted(resolution.relaxed - consents)
    if missing:
        raise RefusedError(
            "moderator.consent",
            f"a rule of {missing[0].short} would be relaxed, and it has not agreed",
            hint="ask each publisher whose rule is relaxed",
            publishers=tuple(missing),
        )


def settle_on(draft: RuleBaseDraft, rule: PublishRule, resolution: Resolution) -> None:
    """Put the forms of a resolution in force, and log the forms that they replace (paper 1, section V-A)."""
    base = draft.base
    changed = dict.fromkeys(revision.before.event for revision in resolution.revisions if revision.before.id != rule.id)
    before = [base.on(event) for event in changed]
    for entry in base.history.on(rule.event):
        if entry.kind is LoggedAs.REJECTED and entry.rules == (rule,):
            draft.drop(entry)
    draft.stand(standings(base, rule, resolution.forms))
    for rules in before:
        draft.log(LoggedAs.MODIFIED, rules)
    if resolution.forms[rule.id] != rule:
        draft.log(LoggedAs.MODIFIED, (rule,))


def _forget(draft: RuleBaseDraft, rule_id: str) -> None:
    """Remove a rule that is stated again from the log: its publisher does not want the old form any more."""
    known = draft.base.standings.get(rule_id)
    for entry in () if known is None else draft.base.history.on(known.stated.event):
        if any(rule.id == rule_id for rule in entry.rules):
            draft.drop(entry)


def _check_new(base: RuleBase, rule: PublishRule, note: Note) -> None:
    known = base.standings.get(rule.id)
    if rule.id in base.wishes or (
        known is not None and (known.form is not None or known.stated.stated_by != rule.stated_by)
    ):
        raise duplicate(rule.id)
    check_own(rule, note)
    check_period(rule, note)


def check_period(rule: Rule, note: Note) -> None:
    """Check that a rule can be in force, now or later. Raises `MalformedError` (`moderator.period`)."""
    if rule.validity.online:
        raise MalformedError("moderator.period", "the period of a rule depends on an on-line test", hint="give dates")
    if rule.validity.state(instant_key(note.when)) is State.EXPIRED:
        raise MalformedError("moderator.period", "the period of the rule has ended already", hint="give a later end")


def check_own(rule: Rule, note: Note) -> None:
    """Check that a rule's author makes the request. Raises `RefusedError` (`moderator.not-yours`)."""
    if note.who != rule.stated_by:
        raise _not_yours(rule, note, "let the principal that stated it make the request")


def check_speaker(rule: Rule, note: Note) -> None:
    """Check that a rule's author, or a principal bound by it, makes the request.

    Raises `RefusedError` (`moderator.not-yours`).
    """
    if note.who not in rule.speakers:
        raise _not_yours(rule, note, "let the principal that stated it make the request, or one that it binds")


def _not_yours(rule: Rule, note: Note, hint: str) -> RefusedError:
    message = f"{note.who.short} may not change rule `{rule.id}`: {rule.stated_by.short} stated it"
    return RefusedError("moderator.not-yours", message, hint=hint)

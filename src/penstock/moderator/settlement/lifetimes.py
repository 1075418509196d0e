"""Rules that begin and end by themselves, and those who leave and come back (paper 1, sections I-A and V)."""

from datetime import datetime

from penstock.errors import RefusedError
from penstock.model.instants import instant_key
from penstock.model.principals import Principal
from penstock.moderator.base.base import RuleBase, RuleBaseDraft
from penstock.moderator.base.tables import duplicate
from penstock.moderator.rules.rules import SubscribeRule
from penstock.moderator.rules.steps import (
    Delta,
    Leave,
    Note,
    Pass,
    Return,
    RuleChange,
    RuleStatus,
    StateSubscriberRule,
    Step,
    SubscriberRule,
    WithdrawRule,
)
from penstock.moderator.settlement.addition import (
    DEFAULT_CUSTOMS,
    Customs,
    Plan,
    check_own,
    check_period,
    check_speaker,
    enter,
)
from penstock.moderator.settlement.removal import bring_back, take_out
from penstock.trust.validity import State

# ----------------------------------------------------------------------------------------------------------------------
# The life of subscribers' rules: stated, withdrawn, begun and ended by time, at rest while who stated them is away.
#
# They have no conflicts among each other, and none with publishers' rules that anything would have to be done about:
# whether the two sides match is decided when somebody subscribes (`allow`).


_GONE = (RuleStatus.WITHDRAWN, RuleStatus.ENDED)


def plan_subscribe(base: RuleBase, rule: SubscribeRule, note: Note) -> Plan:
    """Plan the result of stating a subscriber's rule: in force, or waiting for its period.

    A rule of the same id that is gone is replaced by the new one, if the same one stated both.

    Raises `MalformedError` (`moderator.duplicate-id`, `moderator.period`), `RefusedError` (`moderator.not-yours`,
    `moderator.away`), and what `Vocabulary.check` raises.
    """
    known = base.wishes.get(rule.id)
    replaceable = known is None or (known.status in _GONE and known.stated.stated_by == rule.stated_by)
    if rule.id in base.standings or not replaceable:
        raise duplicate(rule.id)
    check_own(rule, note)
    check_period(rule, note)
    if rule.rests(base.away):
        raise RefusedError("moderator.away", "whoever the rule is of has left", hint="let it come back first")
    with base.draft() as draft:
        draft.wish({rule.id: SubscriberRule(rule, _status(rule, note.when))})
        return Plan(Step(base.next_number, note, StateSubscriberRule(rule), draft.delta))


def plan_unsubscribe(base: RuleBase, request: WithdrawRule, note: Note, customs: Customs = DEFAULT_CUSTOMS) -> Plan:
    """Plan the withdrawal of a subscriber's rule by its author or its subscriber.

    Raises `RefusedError`: `moderator.not-yours`, `moderator.gone`.
    """
    wish = base.wishes[request.rule_id]
    check_speaker(wish.stated, note)
    if wish.status in _GONE:
        raise RefusedError("moderator.gone", f"rule `{request.rule_id}` is {wish.status} already")
    with base.draft() as draft:
        draft.wish({request.rule_id: SubscriberRule(wish.stated, RuleStatus.WITHDRAWN)})
        # Whatever is withdrawn, nothing in the log is left that fits.
        restored = bring_back(draft, note.when, customs)
        return Plan(Step(base.next_number, note, request, draft.delta, restored))


def pass_wishes(draft: RuleBaseDraft, now: datetime) -> None:
    """Let the rules go whose periods have ended, and those come whose periods have begun."""
    draft.wish(
        {
            rule_id: SubscriberRule(
                wish.stated, RuleStatus.ENDED if _status(wish.stated, now) is RuleStatus.ENDED else RuleStatus.IN_FORCE
            )
            for rule_id, wish in draft.base.wishes.items()
            if (wish.status not in _GONE and _status(wish.stated, now) is RuleStatus.ENDED)
            or (
                wish.status is RuleStatus.WAITING
                and _status(wish.stated, now) is RuleStatus.IN_FORCE
                and not wish.stated.rests(draft.base.away)
            )
        }
    )


def rest_wishes(draft: RuleBaseDraft, who: Principal) -> None:
    """Let the rules of somebody rest."""
    draft.wish(
        {
            rule_id: SubscriberRule(wish.stated, RuleStatus.LEFT)
            for rule_id, wish in draft.base.wishes.items()
            if wish.status is RuleStatus.IN_FORCE and who in wish.stated.speakers
        }
    )


def state_wishes_again(draft: RuleBaseDraft, who: Principal, now: datetime) -> None:
    """Let the rules of somebody come back that rested, or whose periods have begun meanwhile."""
    draft.wish(
        {
            rule_id: SubscriberRule(wish.stated, RuleStatus.IN_FORCE)
            for rule_id, wish in draft.base.wishes.items()
            if wish.status in (RuleStatus.LEFT, RuleStatus.WAITING)
            and who in wish.stated.speakers
            and not wish.stated.rests(draft.base.away)
            and _status(wish.stated, now) is RuleStatus.IN_FORCE
        }
    )


def _status(rule: SubscribeRule, now: datetime) -> RuleStatus:
    match rule.validity.state(instant_key(now)):
        case State.NOT_YET:
            return RuleStatus.WAITING
        case State.EXPIRED:
            return RuleStatus.ENDED
        case _:
            return RuleStatus.IN_FORCE


# ----------------------------------------------------------------------------------------------------------------------
# Rules that begin and end by themselves, and those who leave and come back (paper 1, sections I-A and V).


_LIVE = (RuleStatus.IN_FORCE, RuleStatus.REJECTED, RuleStatus.WAITING, RuleStatus.LEFT)


def plan_pass(base: RuleBase, note: Note, customs: Customs = DEFAULT_CUSTOMS) -> Plan:
    """Plan the passing of time: remove rules whose periods have ended, and try those whose periods begin."""
    now = instant_key(note.when)
    limited = {rule_id: base.standings[rule_id] for rule_id, due in sorted(base.limited.items()) if due <= now}
    ended = {
        rule_id: RuleStatus.ENDED
        for rule_id, standing in limited.items()
        if standing.status in _LIVE and standing.stated.validity.state(now) is State.EXPIRED
    }
    begun = [
        standing.stated
        for standing in limited.values()
        if standing.status is RuleStatus.WAITING and standing.stated.validity.state(now) is State.VALID
    ]
    with base.draft() as draft:
        pass_wishes(draft, note.when)
        restored = take_out(draft, ended, note.when, customs)
        for rule in begun:
            if not rule.rests(base.away):
                enter(draft, rule, customs)
        # To resolve conflicts of these, rules in force may have changed again.
        restored += bring_back(draft, note.when, customs)
        return Plan(Step(base.next_number, note, Pass(), draft.delta, restored))


def plan_leave(base: RuleBase, publisher: Principal, note: Note, customs: Customs = DEFAULT_CUSTOMS) -> Plan:
    """Plan the leaving of a publisher: suspend rules that it stated, or that have no other publisher.

    Of rules of several it is a publisher no longer, as long as it is away (`RuleBase.rules`).

    Raises `RefusedError` (`moderator.away`) when it is away already.
    """
    if publisher in base.away:
        raise RefusedError("moderator.away", f"{publisher.short} has left already")
    away = base.away | {publisher}
    going = {
        rule_id: RuleStatus.LEFT
        for rule_id, standing in base.standings.items()
        if standing.status is RuleStatus.IN_FORCE and standing.stated.rests(away)
    }
    with base.draft() as draft:
        rest_wishes(draft, publisher)
        draft.change(Delta(away={publisher: RuleChange(None, True)}))
        restored = take_out(draft, going, note.when, customs)
        return Plan(Step(base.next_number, note, Leave(publisher), draft.delta, restored))


def plan_return(base: RuleBase, publisher: Principal, note: Note, customs: Customs = DEFAULT_CUSTOMS) -> Plan:
    """Plan the return of a publisher: state its suspended rules again, by their ids.

    Raises `RefusedError` (`moderator.present`) when it is not away.
    """
    if publisher not in base.away:
        raise RefusedError("moderator.present", f"{publisher.short} has not left")
    with base.draft() as draft:
        draft.change(Delta(away={publisher: RuleChange(True, None)}))
        state_wishes_again(draft, publisher, note.when)
        _state_again(draft, publisher, note, customs)
        restored = bring_back(draft, note.when, customs)
        return Plan(Step(base.next_number, note, Return(publisher), draft.delta, restored))


def _state_again(draft: RuleBaseDraft, publisher: Principal, note: Note, customs: Customs) -> None:
    now = instant_key(note.when)
    for _, standing in sorted(draft.base.standings.items()):
        stated = standing.stated
        rested = standing.status in (RuleStatus.LEFT, RuleStatus.WAITING) and publisher in stated.speakers
        if rested and not stated.rests(draft.base.away) and stated.validity.state(now) is State.VALID:
            enter(draft, stated, customs)

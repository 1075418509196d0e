"""Rules that begin and end by themselves, and those who leave and come back (paper 1, sections I-A and V)."""

from penstock.errors import RefusedError
from penstock.model.instants import instant_key
from penstock.model.principals import Principal
from penstock.moderator.adding import DEFAULT_CUSTOMS, Customs, Plan, enter
from penstock.moderator.base import Draft, RuleBase
from penstock.moderator.deltas import Change, Delta, Status
from penstock.moderator.removal import bring_back, take_out
from penstock.moderator.steps import Leave, Note, Pass, Return, Step
from penstock.moderator.wishes import pass_wishes, rest_wishes, state_wishes_again
from penstock.trust.validity import State

_LIVE = (Status.IN_FORCE, Status.REJECTED, Status.WAITING, Status.LEFT)


def plan_pass(base: RuleBase, note: Note, customs: Customs = DEFAULT_CUSTOMS) -> Plan:
    """Plan what comes of the time: rules whose periods have ended go, those whose periods begin are tried."""
    now = instant_key(note.when)
    limited = {rule_id: base.standings[rule_id] for rule_id, due in sorted(base.limited.items()) if due <= now}
    ended = {
        rule_id: Status.ENDED
        for rule_id, standing in limited.items()
        if standing.status in _LIVE and standing.stated.validity.state(now) is State.EXPIRED
    }
    begun = [
        standing.stated
        for standing in limited.values()
        if standing.status is Status.WAITING and standing.stated.validity.state(now) is State.VALID
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
    """Plan what comes of a publisher that goes away: the rules rest that it stated, or that are of nobody else.

    Of rules of several it is a publisher no longer, as long as it is away (`RuleBase.rules`).

    Raises `RefusedError` (`moderator.away`) when it is away already.
    """
    if publisher in base.away:
        raise RefusedError("moderator.away", f"{publisher.short} has left already")
    away = base.away | {publisher}
    going = {
        rule_id: Status.LEFT
        for rule_id, standing in base.standings.items()
        if standing.status is Status.IN_FORCE and standing.stated.rests(away)
    }
    with base.draft() as draft:
        rest_wishes(draft, publisher)
        draft.change(Delta(away={publisher: Change(None, True)}))
        restored = take_out(draft, going, note.when, customs)
        return Plan(Step(base.next_number, note, Leave(publisher), draft.delta, restored))


def plan_return(base: RuleBase, publisher: Principal, note: Note, customs: Customs = DEFAULT_CUSTOMS) -> Plan:
    """Plan what comes of a publisher that is back: its rules that rested are stated again, by their ids.

    Raises `RefusedError` (`moderator.present`) when it is not away.
    """
    if publisher not in base.away:
        raise RefusedError("moderator.present", f"{publisher.short} has not left")
    with base.draft() as draft:
        draft.change(Delta(away={publisher: Change(True, None)}))
        state_wishes_again(draft, publisher, note.when)
        _state_again(draft, publisher, note, customs)
        restored = bring_back(draft, note.when, customs)
        return Plan(Step(base.next_number, note, Return(publisher), draft.delta, restored))


def _state_again(draft: Draft, publisher: Principal, note: Note, customs: Customs) -> None:
    now = instant_key(note.when)
    for _, standing in sorted(draft.base.standings.items()):
        stated = standing.stated
        rested = standing.status in (Status.LEFT, Status.WAITING) and publisher in stated.speakers
        if rested and not stated.rests(draft.base.away) and stated.validity.state(now) is State.VALID:
            enter(draft, stated, customs)

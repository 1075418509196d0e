"""The life of subscribers' rules: stated, withdrawn, begun and ended by time, at rest while who stated them is away.

They have no conflicts among each other, and none with publishers' rules that anything would have to be done about:
who suits whom is asked when somebody subscribes (`allow`).
"""

from datetime import datetime

from penstock.errors import RefusedError
from penstock.model.instants import instant_key
from penstock.model.principals import Principal
from penstock.moderator.adding import DEFAULT_CUSTOMS, Customs, Plan, check_own, check_period, check_speaker
from penstock.moderator.base import Draft, RuleBase
from penstock.moderator.deltas import Status, Wish
from penstock.moderator.removal import bring_back
from penstock.moderator.rules import SubscribeRule
from penstock.moderator.steps import Note, Step, Subscribe, Withdraw
from penstock.moderator.tables import duplicate
from penstock.trust.validity import State

_GONE = (Status.WITHDRAWN, Status.ENDED)


def plan_subscribe(base: RuleBase, rule: SubscribeRule, note: Note) -> Plan:
    """Plan what comes of a rule that a subscriber states: in force, or waiting for its period.

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
        draft.wish({rule.id: Wish(rule, _status(rule, note.when))})
        return Plan(Step(base.next_number, note, Subscribe(rule), draft.delta))


def plan_unsubscribe(base: RuleBase, request: Withdraw, note: Note, customs: Customs = DEFAULT_CUSTOMS) -> Plan:
    """Plan what comes of a subscriber's rule being taken back by whoever stated it, or is subscribed by it.

    Raises `RefusedError`: `moderator.not-yours`, `moderator.gone`.
    """
    wish = base.wishes[request.rule_id]
    check_speaker(wish.stated, note)
    if wish.status in _GONE:
        raise RefusedError("moderator.gone", f"rule `{request.rule_id}` is {wish.status} already")
    with base.draft() as draft:
        draft.wish({request.rule_id: Wish(wish.stated, Status.WITHDRAWN)})
        # Whatever is withdrawn, nothing in the log is left that fits.
        restored = bring_back(draft, note.when, customs)
        return Plan(Step(base.next_number, note, request, draft.delta, restored))


def pass_wishes(draft: Draft, now: datetime) -> None:
    """Let the rules go whose periods have ended, and those come whose periods have begun."""
    draft.wish(
        {
            rule_id: Wish(wish.stated, Status.ENDED if _status(wish.stated, now) is Status.ENDED else Status.IN_FORCE)
            for rule_id, wish in draft.base.wishes.items()
            if (wish.status not in _GONE and _status(wish.stated, now) is Status.ENDED)
            or (
                wish.status is Status.WAITING
                and _status(wish.stated, now) is Status.IN_FORCE
                and not wish.stated.rests(draft.base.away)
            )
        }
    )


def rest_wishes(draft: Draft, who: Principal) -> None:
    """Let the rules of somebody rest."""
    draft.wish(
        {
            rule_id: Wish(wish.stated, Status.LEFT)
            for rule_id, wish in draft.base.wishes.items()
            if wish.status is Status.IN_FORCE and who in wish.stated.speakers
        }
    )


def state_wishes_again(draft: Draft, who: Principal, now: datetime) -> None:
    """Let the rules of somebody come back that rested, or whose periods have begun meanwhile."""
    draft.wish(
        {
            rule_id: Wish(wish.stated, Status.IN_FORCE)
            for rule_id, wish in draft.base.wishes.items()
            if wish.status in (Status.LEFT, Status.WAITING)
            and who in wish.stated.speakers
            and not wish.stated.rests(draft.base.away)
            and _status(wish.stated, now) is Status.IN_FORCE
        }
    )


def _status(rule: SubscribeRule, now: datetime) -> Status:
    match rule.validity.state(instant_key(now)):
        case State.NOT_YET:
            return Status.WAITING
        case State.EXPIRED:
            return Status.ENDED
        case _:
            return Status.IN_FORCE

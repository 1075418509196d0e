"""Rules that end, are withdrawn or begin, principals that leave and return (paper 1, sections I-A, V and Algorithm 5).

When rules go out of force: (1) The rules are removed. (2) The log is searched, in the order of the heuristic, for
entries that fit now: a rejected request, or an earlier form of a changed rule. Each entry that fits is restored, until
none is left. (3) Demands that no rule in force states any more are deleted from all rules: no restriction outlives
those who asked for it. (4) That can let more of the log fit.

An earlier form is restored only if it brings rules nearer to what their publishers stated, so that this ends. If it
concerned several rules, those that are still wanted are restored. A withdrawn rule is not restored, unless the
heuristic is the paper's, and never in the step that withdrew it.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from itertools import chain, islice
from typing import Final

from penstock.errors import RefusedError
from penstock.model.instants import instant_key
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.moderator.base.base import RuleBase, RuleBaseDraft
from penstock.moderator.base.tables import Demand, Reason, duplicate, imposed_on
from penstock.moderator.rules.rules import PublishRule, RuleFunction, SubscribeRule, parts
from penstock.moderator.rules.steps import (
    Delta,
    Leave,
    Logged,
    LoggedAs,
    Note,
    Pass,
    Return,
    RuleChange,
    RuleState,
    RuleStatus,
    StateSubscriberRule,
    Step,
    Strategy,
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
    settle_on,
)
from penstock.moderator.settlement.proposals import find, function_of, implies, resolve, stating
from penstock.selector import conjunction
from penstock.trust.validity import State


def plan_withdraw(base: RuleBase, request: WithdrawRule, note: Note, customs: Customs = DEFAULT_CUSTOMS) -> Plan:
    """Plan the withdrawal of a rule by its author, or by one of its publishers.

    If one of several publishers withdraws, the rule continues with the others.

    Raises `MalformedError` (`moderator.unknown-rule`), `RefusedError`: `moderator.not-yours`, `moderator.gone`.
    """
    standing = base.standing(request.rule_id)
    check_speaker(standing.stated, note)
    if standing.status in (RuleStatus.WITHDRAWN, RuleStatus.ENDED):
        raise RefusedError("moderator.gone", f"rule `{request.rule_id}` is {standing.status} already")
    stated = standing.stated
    with base.draft() as draft:
        if note.who == stated.stated_by or stated.publishers == (note.who,):
            restored = take_out(draft, {request.rule_id: RuleStatus.WITHDRAWN}, note.when, customs)
        else:
            restored = _step_out(draft, standing, note, customs)
        return Plan(Step(base.next_number, note, request, draft.delta, restored))


def _step_out(draft: RuleBaseDraft, standing: RuleState, note: Note, customs: Customs) -> tuple[Logged, ...]:
    """Remove a publisher from a rule and from its log entries; return the entries that were restored."""
    gone, base, rule_id = (note.who,), draft.base, standing.stated.id
    stated, restored = standing.stated.without(gone), tuple[Logged, ...]()
    if standing.status is RuleStatus.IN_FORCE and stated.rests(base.away):
        # All other publishers are away.
        restored = take_out(draft, {rule_id: RuleStatus.LEFT}, note.when, customs)
    now = base.standings[rule_id]
    entries = {
        entry.place: RuleChange(
            entry,
            replace(entry, rules=tuple(rule.without(gone) if rule.id == rule_id else rule for rule in entry.rules)),
        )
        for entry in base.history.on(stated.event)
        if any(rule.id == rule_id for rule in entry.rules)
    }
    after = RuleState(stated, now.status, None if now.form is None else now.form.without(gone))
    draft.change(Delta(rules={rule_id: RuleChange(now, after)}, log=entries))
    return (*restored, *bring_back(draft, note.when, customs))


def take_out(draft: RuleBaseDraft, going: dict[str, RuleStatus], now: datetime, customs: Customs) -> tuple[Logged, ...]:
    """Remove rules, set their status, restore log entries that fit, and return these.

    Replaced forms of other rules on the same event types are logged.
    """
    base = draft.base
    gone = [base.standings[rule_id] for rule_id in sorted(going)]
    events = sorted({standing.stated.event for standing in gone if standing.form is not None})
    before = {event: base.on(event) for event in events}
    # (1) Removing a rule cannot cause a conflict.
    draft.stand({standing.stated.id: RuleState(standing.stated, going[standing.stated.id]) for standing in gone})
    for standing in gone:
        _drop_requests(draft, standing.stated)
    # (2) Earlier forms and rejected requests are what publishers wanted.
    search = _Search(draft, now, customs, before)
    if customs.heuristic.revive:
        for event in events:
            search.revive(event, frozenset(going))
    search.run()
    # (3) Delete demands without a reason; (4) restore entries that fit without them.
    search.relieve()
    if customs.heuristic.revive:
        for event in events:
            if not any(entry.event == event for entry in search.restored):
                search.add_rejected(event)
        search.run()
        search.relieve()
    search.log_replaced(frozenset(going))
    return tuple(search.restored)


def bring_back(draft: RuleBaseDraft, now: datetime, customs: Customs) -> tuple[Logged, ...]:
    """Restore all log entries that fit, and return them."""
    search = _Search(draft, now, customs, {})
    search.run()
    search.relieve()
    search.log_replaced(frozenset())
    return tuple(search.restored)


def candidates(base: RuleBase, now: datetime) -> Iterator[Logged]:
    """Yield the log entries that could be restored, whether or not they fit, with the rules that are still wanted."""
    return (_still(base, entry, now) for entry in base.history if is_candidate(base, entry, now))


def fitting(base: RuleBase, now: datetime) -> list[Logged]:
    """Return the log entries that probably fit; check only entries whose reasons have changed.

    The reason against an entry is noted, so that it is checked again when the reason changes.
    """
    found: list[Logged] = []
    for entry in _open(base):
        reasons = _lacks(base, entry, now)
        if reasons is None:
            wanted = _still(base, entry, now)
            blocker = base.blocker(wanted)
            if blocker is None:
                found.append(wanted)
                continue
            reasons = frozenset({blocker})
        if reasons:
            base.history.keep_out(entry, reasons)
    return found


_WANTED: Final = frozenset({RuleStatus.IN_FORCE, RuleStatus.REJECTED})


def is_candidate(base: RuleBase, entry: Logged, now: datetime, statuses: Collection[RuleStatus] = _WANTED) -> bool:
    """Return whether an entry can be restored: it is still wanted, and nearer to what was stated."""
    return _lacks(base, entry, now, statuses) is None


def _still(base: RuleBase, entry: Logged, now: datetime, statuses: Collection[RuleStatus] = _WANTED) -> Logged:
    """Return an entry with its rules that are still wanted by a publisher that is present; possibly none."""
    return replace(entry, rules=tuple(rule for rule in entry.rules if _wanted(base, rule, now, statuses)))


def _wanted(base: RuleBase, rule: PublishRule, now: datetime, statuses: Collection[RuleStatus]) -> bool:
    standing = base.standings[rule.id]
    return standing.status in statuses and not standing.stated.rests(base.away) and _is_time(standing, now)


def _is_time(standing: RuleState, now: datetime) -> bool:
    return standing.stated.validity.state(instant_key(now)) is State.VALID


def _lacks(
    base: RuleBase, entry: Logged, now: datetime, statuses: Collection[RuleStatus] = _WANTED
) -> frozenset[Reason] | None:
    """Return the reasons against an entry: none if only time prevents it; None if it can be restored."""
    progress = False
    for rule in _still(base, entry, now, statuses).rules:
        standing = base.standings[rule.id]
        if standing.form == rule:
            continue
        if standing.form is not None and not nearer(base, standing.form, rule, standing.stated):
            return _reasons(base, entry)
        # A form that its publisher once agreed to because of others is not what it stated.
        if standing.form is None and rule != standing.stated and not implies(base, rule, standing.stated):
            return _reasons(base, entry)
        progress = True
    if progress:
        return None
    known = [base.standings[rule.id] for rule in entry.rules]
    late = any(standing.status in statuses and not _is_time(standing, now) for standing in known)
    return frozenset() if late else _reasons(base, entry)


def _reasons(base: RuleBase, entry: Logged) -> frozenset[Reason]:
    """Return everything that an entry depends on: its rules' status, and whether their publishers are present."""
    speakers = (base.standings[rule.id].stated.speakers for rule in entry.rules)
    return frozenset((*(rule.id for rule in entry.rules), *base.away.intersection(frozenset().union(*speakers))))


def nearer(base: RuleBase, form: PublishRule, other: PublishRule, stated: PublishRule) -> bool:
    """Return whether another form of a rule is nearer to what was stated: between the two, and different."""
    if form == stated:
        return False
    if other == stated:
        return True
    tightened = implies(base, form, other) and implies(base, other, stated) and not implies(base, other, form)
    relaxed = implies(base, stated, other) and implies(base, other, form) and not implies(base, form, other)
    return tightened or relaxed


def restore(draft: RuleBaseDraft, entry: Logged) -> bool:
    """Restore the rules of an entry if they fit, and remove it from the log; return whether they fit."""
    known = draft.base.standings
    back = {rule.id: RuleState(known[rule.id].stated, RuleStatus.IN_FORCE, rule) for rule in entry.rules}
    if not draft.fits(back):
        return False
    draft.drop(draft.base.history.entries[entry.place])
    return True


class _Search:
    """The search of the log within one step; `before` has the forms in force on event types with removed rules."""

    def __init__(
        self, draft: RuleBaseDraft, now: datetime, customs: Customs, before: dict[TypeKey, tuple[PublishRule, ...]]
    ) -> None:
        self.restored: list[Logged] = []
        self._draft = draft
        self._now = now
        self._customs = customs
        self._before = before

    def run(self) -> None:
        """Restore entries until none fits."""
        while self._first(fitting(self._draft.base, self._now)):
            pass

    def revive(self, event: TypeKey, going: frozenset[str]) -> None:
        """Restore one entry on an event type, even if its rules were withdrawn, but not by this step."""
        base, statuses = self._draft.base, _WANTED | {RuleStatus.WITHDRAWN}
        self._first(
            _still(base, entry, self._now, statuses)
            for entry in base.history.on(event)
            if going.isdisjoint(rule.id for rule in entry.rules) and is_candidate(base, entry, self._now, statuses)
        )

    def relieve(self) -> None:
        """Delete demands that no rule in force states, and restore entries that fit then, until nothing changes."""
        while relieve(self._draft):
            self.run()

    def add_rejected(self, event: TypeKey) -> None:
        """Add attributes that were rejected before (Algorithm 5, last part), if that relaxes no rule."""
        base = self._draft.base
        for entry in self._ordered(base.history.on(event)):
            rule = entry.rules[0]
            if entry.kind is not LoggedAs.REJECTED or not is_candidate(base, entry, self._now):
                continue
            resolution = find(base, rule, Strategy.ADD)
            if resolution is not None and not resolution.relaxed:
                settle_on(self._draft, rule, resolution)

    def log_replaced(self, going: frozenset[str]) -> None:
        """Log the forms that were replaced."""
        forms = self._draft.base.detector.rules
        back = {entry.event for entry in self.restored}
        for event, rules in self._before.items():
            if event in back or any(forms.get(rule.id) != rule for rule in rules if rule.id not in going):
                self._draft.log(LoggedAs.MODIFIED, rules)

    def _ordered(self, entries: Iterable[Logged]) -> list[Logged]:
        return self._customs.heuristic.ordered(self._draft.base, entries, self._customs.subscribers)

    def _first(self, entries: Iterable[Logged]) -> bool:
        """Restore the first entry that fits; return whether there was one."""
        base = self._draft.base
        for entry in self._ordered(entries):
            before = base.on(entry.event)
            if restore(self._draft, entry):
                self._before.setdefault(entry.event, before)
                self.restored.append(entry)
                return True
        return False


def _open(base: RuleBase) -> Iterable[Logged]:
    """Return the entries without a known reason against them that are near a change."""
    history = base.history
    if len(history.open) <= _FEW:
        return [history.entries[place] for place in history.open]
    near = [entry for event in _near(base, base.unsettled) for entry in history.on(event)]
    return [entry for entry in near if entry.place in history.open]


#: if there are so few entries, all are checked, near a change or not
_FEW: Final = 64


def _near(base: RuleBase, changed: Collection[TypeKey]) -> Iterable[TypeKey]:
    """Return the event types with log entries that are above or below some types."""
    logged, tree = base.history.events, base.tree
    above = {over for event in changed for over in (event, *tree.ancestors(event))}
    below = chain.from_iterable(tree.subtree(event) for event in changed)
    found = [*islice(below, len(logged) + 1)]
    if len(found) <= len(logged):
        return {event for event in (*above, *found) if event in logged}
    # Usually there are more types below than entries.
    kept = frozenset(changed)
    return [event for event in logged if event in above or any(over in kept for over in tree.ancestors(event))]


def _drop_requests(draft: RuleBaseDraft, stated: PublishRule) -> None:
    """Remove requests for a rule that is not wanted any more; its entries together with other rules stay in the log."""
    for entry in draft.base.history.on(stated.event):
        if entry.kind is LoggedAs.REJECTED and entry.rules == (stated,):
            draft.drop(entry)


def relieve(draft: RuleBaseDraft) -> bool:
    """Delete demands that no rule in force states any more (Algorithm 4); return whether something changed.

    All of them are deleted if that fits, otherwise as many as possible.
    """
    found = [*draft.base.unfounded(draft.delta)]
    if not found or _delete(draft, found):
        return bool(found)
    deleted = [each for each in found if _delete(draft, [each])]
    return bool(deleted)


def _delete(draft: RuleBaseDraft, unfounded: Iterable[tuple[Demand, frozenset[str]]]) -> bool:
    """Delete demands from rules; return whether that fits, possibly with demands of other rules instead."""
    base = draft.base
    of_rule: dict[str, set[Demand]] = {}
    for demand, rule_ids in unfounded:
        for rule_id in rule_ids:
            of_rule.setdefault(rule_id, set()).add(demand)
    known = {rule_id: base.standings[rule_id] for rule_id in of_rule}
    forms = {rule_id: _without(base, known[rule_id], demands) for rule_id, demands in of_rule.items()}
    if draft.fits({rule_id: replace(known[rule_id], form=form) for rule_id, form in forms.items()}):
        return True
    with base.draft() as trial:
        trial.stand({rule_id: RuleState(standing.stated, RuleStatus.REJECTED) for rule_id, standing in known.items()})
        # Types above come first, because those below are compared with them.
        for form in sorted(forms.values(), key=lambda form: (len([*base.tree.ancestors(form.event)]), form.id)):
            resolved = resolve(base, form, Strategy.ADD)
            if resolved is None or not resolved.keys() <= known.keys():
                return False
            trial.stand(
                {key: RuleState(known[key].stated, RuleStatus.IN_FORCE, each) for key, each in resolved.items()}
            )
        changed = trial.delta
    made = (imposed_on(change.after) for change in changed.rules.values() if change.after is not None)
    if not all(demands.isdisjoint(frozenset().union(*made)) for demands in of_rule.values()):
        return False
    draft.change(changed)
    return True


def _without(base: RuleBase, standing: RuleState, deleted: Collection[Demand]) -> PublishRule:
    """Return a rule without some demands; stated demands that they implied replace them."""
    form = standing.form or standing.stated
    for function in RuleFunction:
        before = function_of(form, function)
        kept = [part for part in parts(before) if (function, part) not in deleted]
        own = [
            part
            for part in parts(function_of(standing.stated, function))
            if base.judge.implies(function, before, part).holds
            and not base.judge.implies(function, conjunction(*kept), part).holds
        ]
        if len(kept) < len(parts(before)):
            form = stating(base, form, function, (*kept, *own))
    return form


# ----------------------------------------------------------------------------------------------------------------------
# The life of subscribers' rules: stated, withdrawn, begun and ended by time, suspended while their authors are away.
#
# They do not conflict with each other, nor with publishers' rules: whether the two sides match is decided when somebody
# subscribes (`Subscriptions.allow`).


_GONE = (RuleStatus.WITHDRAWN, RuleStatus.ENDED)


def plan_subscribe(base: RuleBase, rule: SubscribeRule, note: Note) -> Plan:
    """Plan the result of stating a subscriber's rule: in force, or waiting for its period.

    The new rule replaces a rule of the same id that is gone, if the same principal stated both.

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
        raise RefusedError("moderator.away", "the subscriber of the rule has left", hint="let it come back first")
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
        # Withdrawing a subscriber's rule cannot let a log entry fit.
        restored = bring_back(draft, note.when, customs)
        return Plan(Step(base.next_number, note, request, draft.delta, restored))


def pass_wishes(draft: RuleBaseDraft, now: datetime) -> None:
    """End subscribers' rules whose periods have ended, and start those whose periods have begun."""
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
    """Suspend a principal's subscriber rules."""
    draft.wish(
        {
            rule_id: SubscriberRule(wish.stated, RuleStatus.LEFT)
            for rule_id, wish in draft.base.wishes.items()
            if wish.status is RuleStatus.IN_FORCE and who in wish.stated.speakers
        }
    )


def state_wishes_again(draft: RuleBaseDraft, who: Principal, now: datetime) -> None:
    """Resume a principal's suspended subscriber rules, and start those whose periods have begun meanwhile."""
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
# Rules that begin and end by time, and principals that leave and return (paper 1, sections I-A and V).


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
        # Resolving their conflicts may have changed rules in force again.
        restored += bring_back(draft, note.when, customs)
        return Plan(Step(base.next_number, note, Pass(), draft.delta, restored))


def plan_leave(base: RuleBase, publisher: Principal, note: Note, customs: Customs = DEFAULT_CUSTOMS) -> Plan:
    """Plan the leaving of a publisher: suspend rules that it stated, or that have no other publisher.

    While it is away, it is left out of rules with other publishers (`RuleBase.rules`).

    Raises `RefusedError` (`moderator.away`) if it is away already.
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

    Raises `RefusedError` (`moderator.present`) if it is not away.
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

"""Rules go out of force, and others come back (paper 1, section V-B, Algorithm 5).

(1) The rules go. (2) The log is searched, in the order of the heuristic, for what fits now: a request that was
rejected, or what rules stated before they were changed. Whatever fits comes back, until nothing in the log does.
(3) Where the rules that stay on the event type got no earlier form back, what only those that went had demanded is
deleted from them, as far as the others allow it. (4) That may let more of the log fit.

An earlier form comes back only if it brings rules nearer to what their publishers stated, so that this ends. A rule
that its publisher withdrew does not come back, unless the heuristic is the paper's, and never in the step in which it
was withdrawn. Nothing is widened below the event type, since no scope asks for that; the paper's heuristic does so
where it finds what it deletes.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from itertools import chain, islice
from typing import Final

from penstock.errors import RefusedError
from penstock.model.instants import instant_key
from penstock.model.names import TypeKey
from penstock.moderator.adding import DEFAULT_CUSTOMS, Customs, Plan, check_speaker, settle_on
from penstock.moderator.base import Draft, RuleBase
from penstock.moderator.conflicts import Function
from penstock.moderator.deltas import Change, Delta, Logged, LoggedAs, Standing, Status
from penstock.moderator.history import Reason
from penstock.moderator.lists import parts
from penstock.moderator.propose import find, implies
from penstock.moderator.resolution import function_of, stating
from penstock.moderator.rules import PublishRule
from penstock.moderator.steps import Note, Step, Strategy, Withdraw
from penstock.trust.validity import State


def plan_withdraw(base: RuleBase, request: Withdraw, note: Note, customs: Customs = DEFAULT_CUSTOMS) -> Plan:
    """Plan what comes of a rule being taken back by whoever stated it, or by one of those that it is of.

    Of several publishers one takes back that it is of it; the rule goes on to be that of the others.

    Raises `MalformedError` (`moderator.unknown-rule`), `RefusedError`: `moderator.not-yours`, `moderator.gone`.
    """
    standing = base.standing(request.rule_id)
    check_speaker(standing.stated, note)
    if standing.status in (Status.WITHDRAWN, Status.ENDED):
        raise RefusedError("moderator.gone", f"rule `{request.rule_id}` is {standing.status} already")
    stated = standing.stated
    with base.draft() as draft:
        if note.who == stated.stated_by or stated.publishers == (note.who,):
            restored = take_out(draft, {request.rule_id: Status.WITHDRAWN}, note.when, customs)
        else:
            restored = _step_out(draft, standing, note, customs)
        return Plan(Step(base.next_number, note, request, draft.delta, restored))


def _step_out(draft: Draft, standing: Standing, note: Note, customs: Customs) -> tuple[Logged, ...]:
    """Let a rule of several be one of the others alone, and all that the log has of it; return what came back."""
    gone, base, rule_id = (note.who,), draft.base, standing.stated.id
    stated, restored = standing.stated.without(gone), tuple[Logged, ...]()
    if standing.status is Status.IN_FORCE and stated.rests(base.away):
        # None of the others is there.
        restored = take_out(draft, {rule_id: Status.LEFT}, note.when, customs)
    now = base.standings[rule_id]
    entries = {
        entry.place: Change(
            entry,
            replace(entry, rules=tuple(rule.without(gone) if rule.id == rule_id else rule for rule in entry.rules)),
        )
        for entry in base.history.on(stated.event)
        if any(rule.id == rule_id for rule in entry.rules)
    }
    after = Standing(stated, now.status, None if now.form is None else now.form.without(gone))
    draft.change(Delta(rules={rule_id: Change(now, after)}, log=entries))
    return (*restored, *bring_back(draft, note.when, customs))


def take_out(draft: Draft, going: dict[str, Status], now: datetime, customs: Customs) -> tuple[Logged, ...]:
    """Let rules go, each to its status, and bring back what fits then; return what came back.

    What was in force on an event type whose other rules got another form is logged.
    """
    base = draft.base
    gone = [base.standings[rule_id] for rule_id in sorted(going)]
    events = sorted({standing.stated.event for standing in gone if standing.form is not None})
    before = {event: base.on(event) for event in events}
    # (1) Nothing can collide for want of a rule.
    draft.stand({standing.stated.id: Standing(standing.stated, going[standing.stated.id]) for standing in gone})
    for standing in gone:
        _drop_requests(draft, standing.stated)
    # (2) What was in force before, or was asked for, is what somebody wanted.
    search = _Search(draft, now, customs, before)
    if customs.heuristic.revive:
        for event in events:
            search.revive(event, frozenset(going))
    search.run()
    for event in events:
        if any(entry.event == event for entry in search.restored):
            continue
        before_surgery = draft.delta
        # (3) No earlier form fits: demand less of the present one.
        outdated = [standing.stated for standing in gone if standing.stated.event == event]
        _operate(draft, event, outdated, customs)
        if customs.heuristic.revive:
            search.add_rejected(event)
        # (4) Now that it does, others may fit.
        if draft.delta is not before_surgery:
            search.run()
    search.log_replaced(frozenset(going))
    return tuple(search.restored)


def bring_back(draft: Draft, now: datetime, customs: Customs) -> tuple[Logged, ...]:
    """Bring back whatever in the log fits; return what did."""
    search = _Search(draft, now, customs, {})
    search.run()
    search.log_replaced(frozenset())
    return tuple(search.restored)


def candidates(base: RuleBase, now: datetime) -> Iterator[Logged]:
    """Yield what the log has to bring back, whether or not it fits."""
    return (entry for entry in base.history if is_candidate(base, entry, now))


def fitting(base: RuleBase, now: datetime) -> list[Logged]:
    """Return what comes back from the log if it is tried, so far as one can see; look only where something changed.

    Why an entry does not come back is noted, so that it is looked at again when that has changed.
    """
    found: list[Logged] = []
    for entry in _open(base):
        reasons = _lacks(base, entry, now)
        if reasons is None:
            blocker = base.blocker(entry)
            if blocker is None:
                found.append(entry)
                continue
            reasons = frozenset({blocker})
        if reasons:
            base.history.keep_out(entry, reasons)
    return found


_WANTED: Final = frozenset({Status.IN_FORCE, Status.REJECTED})


def is_candidate(base: RuleBase, entry: Logged, now: datetime, statuses: Collection[Status] = _WANTED) -> bool:
    """Say whether an entry may come back: everybody still wants it, and it is nearer to what they stated."""
    return _lacks(base, entry, now, statuses) is None


def _lacks(
    base: RuleBase, entry: Logged, now: datetime, statuses: Collection[Status] = _WANTED
) -> frozenset[Reason] | None:
    """Return why an entry may not come back: nothing but time if there are no reasons; None if it may."""
    progress, away = False, base.away
    for rule in entry.rules:
        standing = base.standings[rule.id]
        if standing.status not in statuses:
            return frozenset({rule.id})
        if standing.stated.rests(away):
            return frozenset({rule.id, *(away & standing.stated.speakers)})
        if standing.stated.validity.state(instant_key(now)) is not State.VALID:
            return frozenset()
        if standing.form == rule:
            continue
        if standing.form is not None and not nearer(base, standing.form, rule, standing.stated):
            return frozenset({rule.id})
        # What its publisher agreed to once, for others' sake, is not what it states when it comes back.
        if standing.form is None and rule != standing.stated and not implies(base, rule, standing.stated):
            return frozenset({rule.id})
        progress = True
    return None if progress else frozenset(rule.id for rule in entry.rules)


def nearer(base: RuleBase, form: PublishRule, other: PublishRule, stated: PublishRule) -> bool:
    """Say whether another form of a rule is nearer to what was stated: between the two, and not the same."""
    if form == stated:
        return False
    if other == stated:
        return True
    tightened = implies(base, form, other) and implies(base, other, stated) and not implies(base, other, form)
    relaxed = implies(base, stated, other) and implies(base, other, form) and not implies(base, form, other)
    return tightened or relaxed


def restore(draft: Draft, entry: Logged) -> bool:
    """Bring an entry back if it fits; say whether it does."""
    known = draft.base.standings
    back = {rule.id: Standing(known[rule.id].stated, Status.IN_FORCE, rule) for rule in entry.rules}
    if not draft.fits(back):
        return False
    draft.drop(entry)
    return True


class _Search:
    """The search of the log within one step; `before` is what was in force where rules have gone."""

    def __init__(
        self, draft: Draft, now: datetime, customs: Customs, before: dict[TypeKey, tuple[PublishRule, ...]]
    ) -> None:
        self.restored: list[Logged] = []
        self._draft = draft
        self._now = now
        self._customs = customs
        self._before = before

    def run(self) -> None:
        """Bring back what fits until nothing does."""
        while self._first(fitting(self._draft.base, self._now)):
            pass

    def revive(self, event: TypeKey, going: frozenset[str]) -> None:
        """Bring back one entry about an event type, be it that its rules were withdrawn, but not those just going."""
        base = self._draft.base
        self._first(
            entry
            for entry in base.history.on(event)
            if going.isdisjoint(rule.id for rule in entry.rules)
            and is_candidate(base, entry, self._now, _WANTED | {Status.WITHDRAWN})
        )

    def add_rejected(self, event: TypeKey) -> None:
        """Add attributes that were rejected before (Algorithm 5, last part), where that relaxes no rule."""
        base = self._draft.base
        for entry in self._ordered(base.history.on(event)):
            rule = entry.rules[0]
            if entry.kind is not LoggedAs.REJECTED or not is_candidate(base, entry, self._now):
                continue
            resolution = find(base, rule, Strategy.ADD)
            if resolution is not None and not resolution.relaxed:
                settle_on(self._draft, rule, resolution)

    def log_replaced(self, going: frozenset[str]) -> None:
        """Log what was in force where something else took its place."""
        forms = self._draft.base.detector.rules
        back = {entry.event for entry in self.restored}
        for event, rules in self._before.items():
            if event in back or any(forms.get(rule.id) != rule for rule in rules if rule.id not in going):
                self._draft.log(LoggedAs.MODIFIED, rules)

    def _ordered(self, entries: Iterable[Logged]) -> list[Logged]:
        return self._customs.heuristic.ordered(self._draft.base, entries, self._customs.subscribers)

    def _first(self, entries: Iterable[Logged]) -> bool:
        """Bring back the first of some entries that fits; say whether there was one."""
        base = self._draft.base
        for entry in self._ordered(entries):
            before = base.on(entry.event)
            if restore(self._draft, entry):
                self._before.setdefault(entry.event, before)
                self.restored.append(entry)
                return True
        return False


def _open(base: RuleBase) -> Iterable[Logged]:
    """Return the entries that nothing is known to keep out, but for those far from all that has changed."""
    history = base.history
    if len(history.open) <= _FEW:
        return [history.entries[place] for place in history.open]
    near = [entry for event in _near(base, base.unsettled) for entry in history.on(event)]
    return [entry for entry in near if entry.place in history.open]


#: entries that are looked at though nothing has changed near them, which is not asked then
_FEW: Final = 64


def _near(base: RuleBase, changed: Collection[TypeKey]) -> Iterable[TypeKey]:
    """Return the event types with log entries that stand on a path with some types, or below one of them."""
    logged, tree = base.history.events, base.tree
    above = {over for event in changed for over in (event, *tree.ancestors(event))}
    below = chain.from_iterable(tree.subtree(event) for event in changed)
    found = [*islice(below, len(logged) + 1)]
    if len(found) <= len(logged):
        return {event for event in (*above, *found) if event in logged}
    # There are more types below than entries.
    kept = frozenset(changed)
    return [event for event in logged if event in above or any(over in kept for over in tree.ancestors(event))]


def _drop_requests(draft: Draft, stated: PublishRule) -> None:
    """Drop requests for a rule that nobody asks for any more; what it stood for with others stays in the log."""
    for entry in draft.base.history.on(stated.event):
        if entry.kind is LoggedAs.REJECTED and entry.rules == (stated,):
            draft.drop(entry)


def _operate(draft: Draft, event: TypeKey, outdated: list[PublishRule], customs: Customs) -> None:
    """Delete from the rules on an event type, part by part, what only rules that went had demanded (Algorithm 4)."""
    base = draft.base
    for function in Function:
        demanded = dict.fromkeys(part for rule in outdated for part in parts(function_of(rule, function)))
        for part in demanded:
            rules = [rule for rule in base.on(event) if part in parts(function_of(rule, function))]
            others = [base.standings[rule.id].stated for rule in rules]
            if not rules or any(part in parts(function_of(rule, function)) for rule in others):
                continue
            below = _imposed_below(base, event, function, part) if customs.heuristic.revive else []
            draft.fits(
                {
                    rule.id: Standing(
                        base.standings[rule.id].stated,
                        Status.IN_FORCE,
                        stating(
                            base,
                            rule,
                            function,
                            [kept for kept in parts(function_of(rule, function)) if kept != part],
                        ),
                    )
                    for rule in (*rules, *below)
                }
            )


def _imposed_below(base: RuleBase, event: TypeKey, function: Function, part: object) -> list[PublishRule]:
    """Return the rules below an event type that demand a part which their publishers did not state."""
    found = (rule for under in base.tree.subtree(event) if under != event for rule in base.on(under))
    return [
        rule
        for rule in found
        if part in parts(function_of(rule, function))
        and part not in parts(function_of(base.standings[rule.id].stated, function))
    ]

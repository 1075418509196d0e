"""The tables of a rule base except its tree, and checks of their changes."""

from collections.abc import Callable, Collection, Iterable, Iterator, KeysView, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NoReturn, TypeAlias, TypeVar

from penstock.errors import MalformedError, RefusedError
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.tree import TypeTree
from penstock.moderator.rules.rule_blocks import Standings
from penstock.moderator.rules.rules import AttributeList, PublishRule, RuleFunction, parts
from penstock.moderator.rules.steps import (
    Delta,
    Logged,
    Place,
    Rooted,
    RuleChange,
    RuleState,
    RuleStatus,
    SubscriberRule,
)
from penstock.selector import Selector

# ----------------------------------------------------------------------------------------------------------------------
# The history of rules as the paper's stack (paper 1, section V-A): a view of the log of steps, newest first.
#
# A restored entry leaves the view; the log itself is never cleared.
#
# An entry that cannot be restored has a reason: a rule in force that it conflicts with, a rule of its own that is not
# wanted any more, or a principal that is away. The entry is not examined again before its reason changes. So the cost
# of a search depends on what has changed, not on the length of the log.


Reason: TypeAlias = str | Principal
"""The id of a rule, or a principal, whose status prevents an entry from being restored."""


@dataclass(frozen=True, slots=True)
class _KeptOut:
    entry: Logged
    reasons: frozenset[Reason]


class History:
    """The log entries that can be restored, by place."""

    def __init__(self) -> None:
        self._entries: dict[Place, Logged] = {}
        self._on: dict[TypeKey, set[Place]] = {}
        #: entries that may fit: no reason against them is known
        self._open: set[Place] = set()
        #: includes entries that a draft wrote, because they will be written again
        self._kept_out: dict[Place, _KeptOut] = {}
        self._by_reason: dict[Reason, set[Place]] = {}

    @property
    def entries(self) -> Mapping[Place, Logged]:
        """All entries."""
        return MappingProxyType(self._entries)

    @property
    def open(self) -> Collection[Place]:
        """The entries against which no reason is known."""
        return self._open

    def __iter__(self) -> Iterator[Logged]:
        """Yield the entries from the top of the stack (the newest) to the bottom."""
        return (self._entries[place] for place in sorted(self._entries, reverse=True))

    @property
    def events(self) -> KeysView[TypeKey]:
        """The event types with entries."""
        return self._on.keys()

    def on(self, event: TypeKey) -> tuple[Logged, ...]:
        """Return the entries about one event type, oldest first."""
        return tuple(self._entries[place] for place in sorted(self._on.get(event, ())))

    def same(self, entry: Logged) -> Logged | None:
        """Return the entry with the same content as another one, if there is one."""
        for place in self._on.get(entry.event, ()):
            found = self._entries[place]
            if (found.kind, found.rules) == (entry.kind, entry.rules):
                return found
        return None

    def change(self, changes: Mapping[Place, RuleChange[Logged]]) -> None:
        """Add entries, and remove others."""
        for place, change in changes.items():
            if change.before is not None:
                del self._entries[place]
                self._open.discard(place)
                self._forget(change.before)
        for place, change in changes.items():
            if change.after is not None:
                self._entries[place] = change.after
                self._on.setdefault(change.after.event, set()).add(place)
                known = self._kept_out.get(place)
                if known is None or known.entry != change.after:
                    self._let_in(place)

    def keep_out(self, entry: Logged, reasons: frozenset[Reason]) -> None:
        """Note why an entry cannot be restored; there must be at least one reason."""
        self._let_in(entry.place)
        self._open.discard(entry.place)
        self._kept_out[entry.place] = _KeptOut(entry, reasons)
        for reason in reasons:
            self._by_reason.setdefault(reason, set()).add(entry.place)
        if len(self._kept_out) > 2 * len(self._entries) + 16:
            for place in [place for place in self._kept_out if place not in self._entries]:
                self._let_in(place)

    def release(self, reasons: Iterable[Reason]) -> None:
        """Check again the entries whose reasons have changed."""
        for reason in reasons:
            for place in [*self._by_reason.get(reason, ())]:
                self._let_in(place)

    def release_all(self) -> None:
        """Check all entries again."""
        self._kept_out.clear()
        self._by_reason.clear()
        self._open = set(self._entries)

    def _let_in(self, place: Place) -> None:
        known = self._kept_out.pop(place, None)
        for reason in () if known is None else known.reasons:
            places = self._by_reason[reason]
            places.discard(place)
            if not places:
                del self._by_reason[reason]
        if place in self._entries:
            self._open.add(place)

    def _forget(self, entry: Logged) -> None:
        places = self._on[entry.event]
        places.remove(entry.place)
        if not places:
            del self._on[entry.event]


# ----------------------------------------------------------------------------------------------------------------------
# Demands that rules in force make although their publishers did not state them.
#
# A rule takes on a demand because of another rule, on its own event type or on one above or below. The demand lasts as
# long as a rule in force states it: on the same event type, or on types that are connected with it by rules that make
# the same demand. Otherwise it is unfounded (`unfounded`), and is removed when a rule is removed (`lifetimes`).


Demand: TypeAlias = tuple[RuleFunction, Selector]
"""A part of one of a rule's functions."""


class ImposedDemands:
    """Index of rules in force with demands that their publishers did not state."""

    def __init__(self) -> None:
        self._holders: dict[Demand, set[str]] = {}

    def __iter__(self) -> Iterator[Demand]:
        """Yield the demands that some rule makes without stating them."""
        return iter(self._holders)

    def holders(self, demand: Demand) -> Collection[str]:
        """Return the ids of the rules that make a demand and do not state it."""
        return self._holders.get(demand, ())

    def change(self, changes: Mapping[str, RuleChange[RuleState]]) -> None:
        """Update for changed rules."""
        for rule_id, change in changes.items():
            for demand in () if change.before is None else imposed_on(change.before):
                holders = self._holders[demand]
                holders.discard(rule_id)
                if not holders:
                    del self._holders[demand]
            for demand in () if change.after is None else imposed_on(change.after):
                self._holders.setdefault(demand, set()).add(rule_id)


def imposed_on(standing: RuleState) -> frozenset[Demand]:
    """Return the demands of a rule in force that its publisher did not state."""
    form, stated = standing.form, standing.stated
    if form is None or (form.fnc_p == stated.fnc_p and form.fnc_s == stated.fnc_s):
        return frozenset()
    return _demands(form, _made) - stated_by(stated)


def stated_by(rule: PublishRule) -> frozenset[Demand]:
    """Return a rule's demands, as written and as entries of an attribute list."""
    return _demands(rule, _written)


def _demands(rule: PublishRule, of: Callable[[Selector], Iterable[Selector]]) -> frozenset[Demand]:
    return frozenset(
        (*((RuleFunction.P, part) for part in of(rule.fnc_p)), *((RuleFunction.S, part) for part in of(rule.fnc_s)))
    )


@lru_cache(maxsize=4096)
def _made(selector: Selector) -> tuple[Selector, ...]:
    return parts(selector)


@lru_cache(maxsize=4096)
def _written(selector: Selector) -> tuple[Selector, ...]:
    listed = AttributeList.from_selector(selector)
    return (*_made(selector), *(() if listed is None else (entry.selector for entry in listed.entries)))


def unfounded(
    demands: Iterable[Demand],
    known: ImposedDemands,
    standings: Mapping[str, RuleState],
    tree: TypeTree,
    keeps: Callable[[RuleState, Demand], bool],
) -> Iterator[tuple[Demand, frozenset[str]]]:
    """Yield the demands that no rule in force justifies, with the ids of the rules that make them.

    A rule that `keeps` a demand, because its own statement implies it, justifies it.
    """
    held = {demand: known.holders(demand) for demand in dict.fromkeys(demands)}
    held = {demand: holders for demand, holders in held.items() if holders}
    if not held:
        return
    reasons: dict[Demand, set[TypeKey]] = {demand: set() for demand in held}
    for standing in standings.values():
        if standing.form is not None:
            for demand in held.keys() & stated_by(standing.stated):
                reasons[demand].add(standing.stated.event)
    for demand, holders in sorted(held.items(), key=lambda each: (each[0][0], each[0][1].text)):
        makers = {rule_id: standings[rule_id] for rule_id in sorted(holders)}
        sources = reasons[demand].union(each.stated.event for each in makers.values() if keeps(each, demand))
        founded = _connected(sources, {each.stated.event for each in makers.values()}, tree)
        without = frozenset(rule_id for rule_id, each in makers.items() if each.stated.event not in founded)
        if without:
            yield demand, without


def _connected(sources: Collection[TypeKey], others: Collection[TypeKey], tree: TypeTree) -> frozenset[TypeKey]:
    """Return the types that are connected with a source through types above and below that are in the set."""
    among = {*sources, *others}
    near: dict[TypeKey, set[TypeKey]] = {event: set() for event in among}
    for event in among:
        for over in tree.ancestors(event):
            if over in among:
                near[event].add(over)
                near[over].add(event)
    found, waiting = {*sources}, [*sources]
    while waiting:
        fresh = near[waiting.pop()] - found
        found |= fresh
        waiting += fresh
    return frozenset(found)


# ----------------------------------------------------------------------------------------------------------------------
# The tables of a rule base except its tree, and checks of their changes.


STALE: Final = "moderator.stale"
S = TypeVar("S", RuleState, SubscriberRule)


@dataclass(frozen=True, slots=True)
class Image:
    """The whole state of a rule base, for comparisons and for `RuleBase.resume`."""

    rules: Mapping[str, RuleState]
    types: Mapping[TypeKey, TypeKey | None]
    log: Mapping[Place, Logged]
    away: frozenset[Principal]
    wishes: Mapping[str, SubscriberRule] = field(default_factory=dict)
    #: the types on which something has changed since the log was last searched, and the number of steps
    unsettled: frozenset[TypeKey] = field(default=frozenset(), compare=False)
    steps: int = field(default=0, compare=False)


class RuleTables:
    """The tables of a rule base: rules, log entries, and publishers that are away."""

    def __init__(self) -> None:
        self.rules = Standings()
        self.wishes: dict[str, SubscriberRule] = {}
        self.history = History()
        self.away: set[Principal] = set()
        #: computed on first use, because it needs all rules
        self._imposed: ImposedDemands | None = None

    @classmethod
    def of(cls, image: Image) -> "RuleTables":
        """Return the tables of an image."""
        tables = cls()
        tables.rules = Standings.of(image.rules)
        tables.wishes.update(image.wishes)
        tables.history.change({place: RuleChange(None, entry) for place, entry in image.log.items()})
        tables.away.update(image.away)
        return tables

    @property
    def imposed(self) -> ImposedDemands:
        """Return demands of rules in force that nobody stated."""
        if self._imposed is None:
            self._imposed = ImposedDemands()
            self._imposed.change({rule_id: RuleChange(None, each) for rule_id, each in self.rules.revised().items()})
        return self._imposed

    def write(self, delta: Delta) -> None:
        """Apply a delta, except for the tree."""
        _write(self.rules, delta.rules)
        if self._imposed is not None:
            self._imposed.change(delta.rules)
        _write(self.wishes, delta.wishes)
        self.history.change(delta.log)
        for who, change in delta.away.items():
            (self.away.add if change.after else self.away.discard)(who)
        if any(change.before is not None and change.after is not None for change in delta.types.values()):
            self.history.release_all()
        else:
            # Adding or removing a type changes nothing between other types.
            self.history.release((*delta.rules, *delta.away))

    def check(self, delta: Delta, tree: TypeTree) -> None:
        """Check that the old values are those of a delta, and that the change is allowed.

        Raises `RefusedError`: `moderator.stale`, `moderator.in-use`, `moderator.away`; `MalformedError`
        (`moderator.duplicate-id`).
        """
        self._check_before(delta, tree)
        self._check_ids(delta)
        self._check_types(delta)
        self._check_present(delta)

    def check_away(self, delta: Delta) -> None:
        """Check that principals that leave have no rule in force. Raises `RefusedError` (`moderator.away`)."""
        if not any(change.after for change in delta.away.values()):
            return
        away = self._away_after(delta)
        for rule_id, after in self._standing_after(delta):
            if after.status is RuleStatus.IN_FORCE and after.stated.rests(away):
                raise RefusedError(
                    "moderator.away",
                    f"rule `{rule_id}` would be in force although its principals are away",
                    rule=rule_id,
                )

    def _check_before(self, delta: Delta, tree: TypeTree) -> None:
        parents = tree.parents
        same = (
            all(self.rules.get(key) == change.before for key, change in delta.rules.items())
            and all(self.wishes.get(key) == change.before for key, change in delta.wishes.items())
            and all(
                (Rooted(parents[key]) if key in parents else None) == change.before
                for key, change in delta.types.items()
            )
            and all(self.history.entries.get(key) == change.before for key, change in delta.log.items())
            and all((key in self.away) is bool(change.before) for key, change in delta.away.items())
        )
        if not same:
            stale("what the change is about is not as it was")

    def _check_ids(self, delta: Delta) -> None:
        """Check that a publisher's and a subscriber's rule do not share an id."""
        for rule_id in delta.ids:
            rule = delta.rules[rule_id].after if rule_id in delta.rules else self.rules.get(rule_id)
            wish = delta.wishes[rule_id].after if rule_id in delta.wishes else self.wishes.get(rule_id)
            if rule is not None and wish is not None:
                raise duplicate(rule_id)

    def _check_types(self, delta: Delta) -> None:
        """Check that removed types have neither rules that can return nor log entries."""
        gone = {event for event, change in delta.types.items() if change.after is None}
        if not gone:
            return
        for rule_id, after in self._standing_after(delta):
            if after.stated.event in gone and after.status is not RuleStatus.ENDED:
                raise RefusedError(
                    "moderator.in-use", f"rule `{rule_id}` is about an event type that would be removed", rule=rule_id
                )
        for event in gone:
            for entry in self.history.on(event):
                if entry.place not in delta.log:
                    raise RefusedError("moderator.in-use", "the log has rules on an event type that would be removed")

    def _check_present(self, delta: Delta) -> None:
        """Check that no rule of principals that are away comes into force."""
        changed: list[tuple[str, RuleState | SubscriberRule]] = [*_after({}, delta.rules), *_after({}, delta.wishes)]
        away = self._away_after(delta)
        for rule_id, after in changed if away else ():
            if after.status is RuleStatus.IN_FORCE and after.stated.rests(away):
                raise RefusedError(
                    "moderator.away", f"the principals of rule `{rule_id}` have left", hint="let it come back first"
                )

    def _away_after(self, delta: Delta) -> Collection[Principal]:
        """Return the principals that are away after a delta."""
        if not delta.away:
            return self.away
        return (self.away - delta.away.keys()) | {who for who, change in delta.away.items() if change.after}

    def _standing_after(self, delta: Delta) -> Iterator[tuple[str, RuleState | SubscriberRule]]:
        """Yield the status of all rules after a delta."""
        yield from _after(self.rules, delta.rules)
        yield from _after(self.wishes, delta.wishes)


def duplicate(rule_id: str) -> MalformedError:
    """Return the error for an id that is already in use."""
    return MalformedError(
        "moderator.duplicate-id", f"there is a rule `{rule_id}` already", hint="give the new one another id"
    )


def stale(message: str) -> NoReturn:
    """Refuse a change that was planned on another state. Raises `RefusedError` (`moderator.stale`)."""
    raise RefusedError(STALE, message, hint="plan it again")


def _after(table: Mapping[str, S], changes: Mapping[str, RuleChange[S]]) -> Iterator[tuple[str, S]]:
    for rule_id, standing in table.items():
        if rule_id not in changes:
            yield rule_id, standing
    for rule_id, change in changes.items():
        if change.after is not None:
            yield rule_id, change.after


def _write(table: MutableMapping[str, S], changes: Mapping[str, RuleChange[S]]) -> None:
    for key, change in changes.items():
        if change.after is None:
            del table[key]
        else:
            table[key] = change.after

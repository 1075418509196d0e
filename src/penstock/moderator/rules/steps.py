"""Steps: each change of a rule base as a record of who asked for what, when and why, and what it changed.

The sequence of steps is the log, which is append-only; the state of a rule base is a fold of it. A step has both the
request and its result, so that it can be requested again after an earlier one was undone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Generic, TypeAlias, TypeVar

from penstock.model.names import TypeKey
from penstock.model.principals import DIGEST_BYTES, Principal
from penstock.moderator.rules.rules import PublishRule, Rule, SubscribeRule

# ----------------------------------------------------------------------------------------------------------------------
# The changes of a step as a value: the state before and after, so that every step can be undone.
#
# The state of a rule base is five tables: publishers' rules and their status, the event types and their parents, the
# log of rules that can be restored, who is away, and subscribers' rules. A `Delta` has the differences in each. Deltas
# can be composed and inverted, which is all that folding and undoing need.


K = TypeVar("K")
T = TypeVar("T")


class RuleStatus(StrEnum):
    """The status of a rule."""

    IN_FORCE = "in-force"
    #: stated, but conflicting
    REJECTED = "rejected"
    #: its period has not begun
    WAITING = "waiting"
    #: its publisher withdrew it
    WITHDRAWN = "withdrawn"
    #: its period has ended, or its event type was removed
    ENDED = "ended"
    #: its publisher is away
    LEFT = "left"


#: the publisher wants the rule in force; the publisher does not
_STANDING: Final = (RuleStatus.IN_FORCE, RuleStatus.REJECTED, RuleStatus.WAITING)
_FORSAKEN: Final = (RuleStatus.WITHDRAWN, RuleStatus.LEFT)


@dataclass(frozen=True, slots=True)
class RuleState:
    """A rule as its publisher stated it, and as it is in force, which can differ after conflicts were resolved."""

    stated: PublishRule
    status: RuleStatus
    form: PublishRule | None = None

    def __post_init__(self) -> None:
        if (self.status is RuleStatus.IN_FORCE) is (self.form is None):
            raise ValueError("a rule has a form if and only if it is in force")


@dataclass(frozen=True, slots=True)
class SubscriberRule:
    """A subscriber's rule. It never conflicts, so it is in force as stated, and is never rejected."""

    stated: SubscribeRule
    status: RuleStatus

    def __post_init__(self) -> None:
        if self.status is RuleStatus.REJECTED:
            raise ValueError("a subscriber's rule is not rejected")


@dataclass(frozen=True, slots=True)
class Rooted:
    """The parent of a type in the tree; a root has none."""

    parent: TypeKey | None


class LoggedAs(StrEnum):
    """Why rules are in the log (paper 1, section V-A)."""

    REJECTED = "rejected"
    MODIFIED = "modified"


Place: TypeAlias = tuple[int, int]
"""The place of a log entry: the number of the step that wrote it, and its number within that step."""


@dataclass(frozen=True, slots=True)
class Logged:
    """Rules on one event type that can be restored: a rejected request, or forms in force that were changed."""

    place: Place
    kind: LoggedAs
    rules: tuple[PublishRule, ...]

    @property
    def event(self) -> TypeKey:
        """The rules' event type."""
        return self.rules[0].event


@dataclass(frozen=True, slots=True)
class RuleChange(Generic[T]):
    """The values of one key before and after a step; None if absent."""

    before: T | None
    after: T | None

    def inverse(self) -> "RuleChange[T]":
        """Return the inverse change."""
        return RuleChange(self.after, self.before)


def _nothing() -> MappingProxyType[K, T]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Delta:
    """All changes of a step."""

    rules: Mapping[str, RuleChange[RuleState]] = field(default_factory=_nothing)
    types: Mapping[TypeKey, RuleChange[Rooted]] = field(default_factory=_nothing)
    log: Mapping[Place, RuleChange[Logged]] = field(default_factory=_nothing)
    away: Mapping[Principal, RuleChange[bool]] = field(default_factory=_nothing)
    wishes: Mapping[str, RuleChange[SubscriberRule]] = field(default_factory=_nothing)

    def inverse(self) -> "Delta":
        """Return the inverse delta."""
        return Delta(
            _turned(self.rules), _turned(self.types), _turned(self.log), _turned(self.away), _turned(self.wishes)
        )

    def then(self, other: "Delta") -> "Delta":
        """Return the composition of this delta and a later one, without values that are unchanged overall."""
        return Delta(
            _joined(self.rules, other.rules),
            _joined(self.types, other.types),
            _joined(self.log, other.log),
            _joined(self.away, other.away),
            _joined(self.wishes, other.wishes),
        )

    def bears(self, other: "Delta") -> bool:
        """Return whether a later delta depends on this one: it changes the same, or one needs a type of the other.

        That is a type that this delta added and the later one concerns, or one that this delta concerns and the later
        one removed. A rule with several publishers depends on who of them is away.
        """
        added = {event for event, change in self.types.items() if change.before is None}
        removed = {event for event, change in other.types.items() if change.after is None}
        return not (
            added.isdisjoint(other.events)
            and removed.isdisjoint(self.events)
            and self.ids.isdisjoint(other.ids)
            and self.types.keys().isdisjoint(other.types)
            and self.log.keys().isdisjoint(other.log)
            and self.away.keys().isdisjoint(other.away)
            and self.away.keys().isdisjoint(other.resting)
        )

    @property
    def ids(self) -> frozenset[str]:
        """The ids of the rules of both kinds that change."""
        return frozenset((*self.rules, *self.wishes))

    @property
    def ceasing(self) -> Mapping[str, Rule]:
        """The rules of both kinds that are in force before and not after."""
        return {
            rule_id: before.stated
            for rule_id, before, after in self._standings()
            if before is not None and before.status is RuleStatus.IN_FORCE
            if after is None or after.status is not RuleStatus.IN_FORCE
        }

    @property
    def rising(self) -> Mapping[str, Rule]:
        """The rules of both kinds that are wanted after, but before were withdrawn, left or never stated."""
        return {
            rule_id: after.stated
            for rule_id, before, after in self._standings()
            if after is not None and after.status in _STANDING
            if before is None or before.status in _FORSAKEN
        }

    @property
    def resting(self) -> frozenset[Principal]:
        """The principals whose rules are suspended, or resume."""
        sides = (side for _, *both in self._standings() for side in both)
        return frozenset().union(*(side.stated.speakers for side in sides if side and side.status is RuleStatus.LEFT))

    def _standings(self) -> Iterator[tuple[str, RuleState | SubscriberRule | None, RuleState | SubscriberRule | None]]:
        yield from ((rule_id, change.before, change.after) for rule_id, change in self.rules.items())
        yield from ((rule_id, change.before, change.after) for rule_id, change in self.wishes.items())

    @property
    def logged(self) -> tuple[Logged, ...]:
        """Return the entries that enter the log, in order."""
        return tuple(change.after for _, change in sorted(self.log.items()) if change.after is not None)

    @property
    def dropped(self) -> tuple[Logged, ...]:
        """Return the entries that leave the log, in order."""
        return tuple(change.before for _, change in sorted(self.log.items()) if change.before is not None)

    @property
    def events(self) -> frozenset[TypeKey]:
        """The event types on or below which something changes."""
        wishes = [
            side.stated.event
            for change in self.wishes.values()
            for side in (change.before, change.after)
            if side is not None
        ]
        return self.unsettling.union(wishes)

    @property
    def unsettling(self) -> frozenset[TypeKey]:
        """The event types on or below which a change can affect whether publishers' rules fit."""
        rules = [
            side.stated.event
            for change in self.rules.values()
            for side in (change.before, change.after)
            if side is not None
        ]
        entries = [entry.event for entry in (*self.logged, *self.dropped)]
        hung = [
            side.parent
            for change in self.types.values()
            for side in (change.before, change.after)
            if side is not None and side.parent is not None
        ]
        return frozenset((*rules, *entries, *self.types, *hung))


NO_CHANGE: Final = Delta()


def _turned(table: Mapping[K, RuleChange[T]]) -> Mapping[K, RuleChange[T]]:
    return MappingProxyType({key: change.inverse() for key, change in table.items()})


def _joined(one: Mapping[K, RuleChange[T]], other: Mapping[K, RuleChange[T]]) -> Mapping[K, RuleChange[T]]:
    joined = dict(one)
    for key, change in other.items():
        before = one[key].before if key in one else change.before
        joined[key] = RuleChange(before, change.after)
    return MappingProxyType({key: change for key, change in joined.items() if change.before != change.after})


# ----------------------------------------------------------------------------------------------------------------------
# Steps: each change of a rule base as a record of who asked for what, when and why, and what it changed.


class Strategy(StrEnum):
    """The proposals for a conflict (paper 1, section IV)."""

    #: only the candidate changes, to what the rules in force allow
    FOLLOW = "follow"
    #: all rules involved demand what any of them demands: Algorithms 2 and 3
    ADD = "add-attributes"
    #: all rules involved demand what they have in common: Algorithm 4
    DELETE = "delete-attributes"


CLOCK: Final = Principal(bytes(DIGEST_BYTES))
"""The author of unsigned steps that pass time. It is not the digest of a key, so nobody can sign as this principal."""


@dataclass(frozen=True, slots=True)
class Note:
    """The author, time and reason of a change."""

    who: Principal
    when: datetime
    why: str = ""


@dataclass(frozen=True, slots=True)
class Add:
    """A publisher states a rule."""

    rule: PublishRule


@dataclass(frozen=True, slots=True)
class StateSubscriberRule:
    """A subscriber states a rule."""

    rule: SubscribeRule


@dataclass(frozen=True, slots=True)
class Resolve:
    """Choose a proposal for a rejected rule; these publishers consent to the relaxation of their rules."""

    rule_id: str
    strategy: Strategy
    consents: frozenset[Principal] = frozenset()


@dataclass(frozen=True, slots=True)
class WithdrawRule:
    """The author withdraws a rule, or one of its publishers withdraws from it."""

    rule_id: str


@dataclass(frozen=True, slots=True)
class Pass:
    """Time passes: periods begin and end."""


@dataclass(frozen=True, slots=True)
class Leave:
    """A publisher or a subscriber leaves; its rules are suspended."""

    publisher: Principal


@dataclass(frozen=True, slots=True)
class Return:
    """A principal that left returns, and so do its rules if they fit."""

    publisher: Principal


@dataclass(frozen=True, slots=True)
class AddType:
    """A new event type."""

    event: TypeKey
    parent: TypeKey | None = None


@dataclass(frozen=True, slots=True)
class MoveType:
    """An event type moves in the tree, with all types below it.

    If rules would conflict, a proposal is chosen; these publishers consent to the relaxation of their rules.
    """

    event: TypeKey
    parent: TypeKey | None = None
    strategy: Strategy | None = None
    consents: frozenset[Principal] = frozenset()


@dataclass(frozen=True, slots=True)
class RenameType:
    """An event type gets another name; the rules on it follow."""

    event: TypeKey
    to: TypeKey


@dataclass(frozen=True, slots=True)
class RemoveType:
    """An event type is removed: the types below it move to its parent, and the rules on it end."""

    event: TypeKey


@dataclass(frozen=True, slots=True)
class Undo:
    """A step is undone; with `replay`, the steps that depend on it are requested again."""

    number: int
    replay: bool = False


TreeChange: TypeAlias = AddType | MoveType | RenameType | RemoveType
#: requests that restore log entries that fit
SEARCHING: Final = (WithdrawRule, Pass, Leave, Return, MoveType, RemoveType)

Forward: TypeAlias = Add | StateSubscriberRule | Resolve | WithdrawRule | Pass | Leave | Return | TreeChange
"""All requests except `Undo`."""

Request: TypeAlias = Forward | Undo


@dataclass(frozen=True, slots=True)
class Step:
    """One change: the request, and its result."""

    number: int
    note: Note
    request: Request
    delta: Delta = field(default=NO_CHANGE, repr=False)
    #: the log entries that were restored, in order
    restored: tuple[Logged, ...] = field(default=(), repr=False)

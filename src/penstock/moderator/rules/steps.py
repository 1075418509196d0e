"""Steps: each change of a rule base as a record of who asked for what, when and why, and what it changed.

The steps in their order are the log, which only grows; the state of a rule base is a fold of it. What was asked for is
kept beside what came of it, so that a step can be asked for again where an earlier one was undone.
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
# What a step changes, as a value: what stood before and what stands after, so that everything can be taken back.
#
# The state of a rule base is five tables: publishers' rules and how they stand, the event types and their parents, the
# log of rules that may come back, who is away, and subscribers' rules. A `Delta` names what differs in each; deltas can
# be put one after the other and turned round, and that is all that folding and undoing need.


K = TypeVar("K")
T = TypeVar("T")


class RuleStatus(StrEnum):
    """The status of a rule."""

    IN_FORCE = "in-force"
    #: asked for, and conflicts
    REJECTED = "rejected"
    #: its period has not begun
    WAITING = "waiting"
    #: its publisher took it back
    WITHDRAWN = "withdrawn"
    #: its period has ended, or its event type has gone
    ENDED = "ended"
    #: its publisher is away
    LEFT = "left"


#: what its publisher wants in force, and what it does not
_STANDING: Final = (RuleStatus.IN_FORCE, RuleStatus.REJECTED, RuleStatus.WAITING)
_FORSAKEN: Final = (RuleStatus.WITHDRAWN, RuleStatus.LEFT)


@dataclass(frozen=True, slots=True)
class RuleState:
    """A rule as its publisher stated it, and as it is in force, which may differ after conflicts were resolved."""

    stated: PublishRule
    status: RuleStatus
    form: PublishRule | None = None

    def __post_init__(self) -> None:
        if (self.status is RuleStatus.IN_FORCE) is (self.form is None):
            raise ValueError("a rule has a form if and only if it is in force")


@dataclass(frozen=True, slots=True)
class SubscriberRule:
    """A subscriber's rule. It conflicts with no other, so it is in force as it was stated, and never rejected."""

    stated: SubscribeRule
    status: RuleStatus

    def __post_init__(self) -> None:
        if self.status is RuleStatus.REJECTED:
            raise ValueError("a subscriber's rule is not rejected")


@dataclass(frozen=True, slots=True)
class Rooted:
    """Where a type hangs in the tree; a root has no parent."""

    parent: TypeKey | None


class LoggedAs(StrEnum):
    """Why rules are in the log (paper 1, section V-A)."""

    REJECTED = "rejected"
    MODIFIED = "modified"


Place: TypeAlias = tuple[int, int]
"""Where an entry stands in the log: the number of the step that wrote it, and which of its entries it is."""


@dataclass(frozen=True, slots=True)
class Logged:
    """Rules on one event type that may come back: a request that was rejected, or what was in force and was changed."""

    place: Place
    kind: LoggedAs
    rules: tuple[PublishRule, ...]

    @property
    def event(self) -> TypeKey:
        """The event type that the rules are on."""
        return self.rules[0].event


@dataclass(frozen=True, slots=True)
class RuleChange(Generic[T]):
    """The values of one key before and after a step; None for nothing."""

    before: T | None
    after: T | None

    def inverse(self) -> "RuleChange[T]":
        """Return the change back."""
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
        """Return the delta back."""
        return Delta(
            _turned(self.rules), _turned(self.types), _turned(self.log), _turned(self.away), _turned(self.wishes)
        )

    def then(self, other: "Delta") -> "Delta":
        """Return this delta and another after it, as one; what is as it was before is left out."""
        return Delta(
            _joined(self.rules, other.rules),
            _joined(self.types, other.types),
            _joined(self.log, other.log),
            _joined(self.away, other.away),
            _joined(self.wishes, other.wishes),
        )

    def bears(self, other: "Delta") -> bool:
        """Say whether a later delta depends on this one: it changes the same, or they need a type of each other.

        That is a type that this one added and the later one is about, or one that it is about and the later one
        removed. A rule of several came to rest, or back, because the others were away or there.
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
        """The rules that change, of both kinds: they share their ids."""
        return frozenset((*self.rules, *self.wishes))

    @property
    def ceasing(self) -> Mapping[str, Rule]:
        """The rules of both kinds that are in force before, and not after."""
        return {
            rule_id: before.stated
            for rule_id, before, after in self._standings()
            if before is not None and before.status is RuleStatus.IN_FORCE
            if after is None or after.status is not RuleStatus.IN_FORCE
        }

    @property
    def rising(self) -> Mapping[str, Rule]:
        """The rules of both kinds that nobody stood for before, withdrawn or left or never stated, and that stand."""
        return {
            rule_id: after.stated
            for rule_id, before, after in self._standings()
            if after is not None and after.status in _STANDING
            if before is None or before.status in _FORSAKEN
        }

    @property
    def resting(self) -> frozenset[Principal]:
        """Those whose rules come to rest, or rest no longer."""
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
        """The event types on which something changes, or below which."""
        wishes = [
            side.stated.event
            for change in self.wishes.values()
            for side in (change.before, change.after)
            if side is not None
        ]
        return self.unsettling.union(wishes)

    @property
    def unsettling(self) -> frozenset[TypeKey]:
        """Those on which, or below which, something changes that can let publishers' rules fit, or not fit any more."""
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

    #: the candidate alone changes, to what the rules in force allow
    FOLLOW = "follow"
    #: all involved demand what any of them demands: Algorithms 2 and 3
    ADD = "add-attributes"
    #: all involved demand what they have in common: Algorithm 4
    DELETE = "delete-attributes"


CLOCK: Final = Principal(bytes(DIGEST_BYTES))
"""Whose step it is that time passes where nobody signed for it. It is the digest of no key: nobody can sign as it."""


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
    """Choose a proposal for a rule that was rejected; these publishers consent to the relaxation of their rules."""

    rule_id: str
    strategy: Strategy
    consents: frozenset[Principal] = frozenset()


@dataclass(frozen=True, slots=True)
class WithdrawRule:
    """Whoever stated a rule takes it back, or one of those that it is of takes back to be among them."""

    rule_id: str


@dataclass(frozen=True, slots=True)
class Pass:
    """Time passes: periods begin and end."""


@dataclass(frozen=True, slots=True)
class Leave:
    """A publisher, or a subscriber, goes away; its rules rest."""

    publisher: Principal


@dataclass(frozen=True, slots=True)
class Return:
    """Somebody who went away comes back, and its rules with it, as far as they fit."""

    publisher: Principal


@dataclass(frozen=True, slots=True)
class AddType:
    """A new event type."""

    event: TypeKey
    parent: TypeKey | None = None


@dataclass(frozen=True, slots=True)
class MoveType:
    """An event type, with all below it, goes elsewhere.

    Where rules would conflict then, somebody chooses a proposal; these publishers consent to the relaxation of theirs.
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
    """An event type goes: the types below it hang on its parent from then on, and the rules on it end."""

    event: TypeKey


@dataclass(frozen=True, slots=True)
class Undo:
    """A step is taken back; those that depend on it are asked for again, if that is wanted."""

    number: int
    replay: bool = False


TreeChange: TypeAlias = AddType | MoveType | RenameType | RemoveType
#: requests that bring back from the log whatever fits
SEARCHING: Final = (WithdrawRule, Pass, Leave, Return, MoveType, RemoveType)

Forward: TypeAlias = Add | StateSubscriberRule | Resolve | WithdrawRule | Pass | Leave | Return | TreeChange
"""Requests that ask for something new."""

Request: TypeAlias = Forward | Undo


@dataclass(frozen=True, slots=True)
class Step:
    """One change: the request, and its result."""

    number: int
    note: Note
    request: Request
    delta: Delta = field(default=NO_CHANGE, repr=False)
    #: what came back from the log, in its order
    restored: tuple[Logged, ...] = field(default=(), repr=False)

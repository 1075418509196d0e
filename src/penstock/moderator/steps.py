"""Steps: each change of a rule base as a record of who asked for what, when and why, and what it changed.

The steps in their order are the log, which only grows; the state of a rule base is a fold of it. What was asked for is
kept beside what came of it, so that a step can be asked for again where an earlier one was undone.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, TypeAlias

from penstock.model.names import TypeKey
from penstock.model.principals import DIGEST_BYTES, Principal
from penstock.moderator.deltas import NO_CHANGE, Delta, Logged
from penstock.moderator.rules import PublishRule, SubscribeRule


class Strategy(StrEnum):
    """The ways out of a conflict (paper 1, section IV)."""

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
    """Who changes something, when, and why."""

    who: Principal
    when: datetime
    why: str = ""


@dataclass(frozen=True, slots=True)
class Add:
    """A publisher states a rule."""

    rule: PublishRule


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A subscriber states a rule."""

    rule: SubscribeRule


@dataclass(frozen=True, slots=True)
class Resolve:
    """A way out of a conflict is chosen for a rule that was rejected; these publishers agree that theirs is relaxed."""

    rule_id: str
    strategy: Strategy
    consents: frozenset[Principal] = frozenset()


@dataclass(frozen=True, slots=True)
class Withdraw:
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

    Where rules would collide then, somebody chooses a way out; these publishers agree that theirs is relaxed.
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
SEARCHING: Final = (Withdraw, Pass, Leave, Return, MoveType, RemoveType)

Forward: TypeAlias = Add | Subscribe | Resolve | Withdraw | Pass | Leave | Return | TreeChange
"""Requests that ask for something new."""

Request: TypeAlias = Forward | Undo


@dataclass(frozen=True, slots=True)
class Step:
    """One change: the request, and what came of it."""

    number: int
    note: Note
    request: Request
    delta: Delta = field(default=NO_CHANGE, repr=False)
    #: what came back from the log, in its order
    restored: tuple[Logged, ...] = field(default=(), repr=False)

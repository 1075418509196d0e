"""Conflicts: where a rule conflicts with rules in force, and for which profile."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Final

from penstock.model.names import TypeKey
from penstock.model.profiles import Profile
from penstock.model.tree import TreeScope
from penstock.selector import Selector


class Mode(StrEnum):
    """The definition of a conflict; docs/explanation/conflicts.md compares the three."""

    #: the functions as sets of profiles, and the scope of the tree
    SCOPED = "scoped"
    #: Algorithm 1, on attribute lists
    ALGORITHM = "algorithm"
    #: Definition 1, word by word
    LITERAL = "literal"


class ConflictKind(StrEnum):
    """The place of the rule in force: on the same event type, above the candidate's, or below."""

    SAME = "same"
    UP = "up"
    DOWN = "down"


class RuleFunction(StrEnum):
    """Which of the two functions of a rule."""

    P = "fnc_p"
    S = "fnc_s"


class Party(StrEnum):
    """One of the two sides of a conflict."""

    CANDIDATE = "candidate"
    RULE = "rule"


@dataclass(frozen=True, slots=True)
class Demands:
    """Which implications must hold between a candidate's function and that of a rule in force, lest they conflict."""

    #: who satisfies the candidate's function satisfies the rule's
    candidate_implies: bool
    #: who satisfies the rule's function satisfies the candidate's
    rule_implies: bool


_EQUAL: Final = Demands(candidate_implies=True, rule_implies=True)
_BELOW: Final = Demands(candidate_implies=True, rule_implies=False)
_ABOVE: Final = Demands(candidate_implies=False, rule_implies=True)


def demands(kind: ConflictKind, scope: TreeScope, mode: Mode) -> Demands:
    """Return what must hold (paper 1, sections II and III-B).

    A right that reaches upwards is of use only if whoever has it below may have it above: the descendant's function
    implies the ancestor's. A right that reaches downwards asks for the reverse. On one event type, and by Definition 1
    everywhere, the functions say the same.
    """
    if kind is ConflictKind.SAME or mode is Mode.LITERAL:
        return _EQUAL
    return _BELOW if (kind is ConflictKind.UP) is (scope is TreeScope.UPWARD) else _ABOVE


@dataclass(frozen=True, slots=True)
class Conflict:
    """A candidate and the rules on one event type that state one and the same function, which it conflicts with."""

    event: TypeKey
    #: the ids of the rules, sorted
    rules: tuple[str, ...]
    kind: ConflictKind
    function: RuleFunction
    #: parts of the rules' function that the candidate's does not demand, and ought to
    missing: tuple[Selector, ...] = ()
    #: parts of the candidate's function that the rules' does not demand, and ought to
    extra: tuple[Selector, ...] = ()
    #: a profile that one function admits and the other does not, and which one admits it; None if lists differ that
    #: admit the same, and where nothing was decided
    witness: Profile | None = None
    admitted_by: Party | None = None
    #: False: the solver did not find out in its time, and what is not known to fit does not fit
    certain: bool = True

    @property
    def attributes(self) -> tuple[str, ...]:
        """The attributes at fault, sorted."""
        return tuple(sorted(frozenset().union(*(part.attributes for part in self.missing + self.extra))))


_KINDS: Final = {kind: number for number, kind in enumerate(ConflictKind)}
_NAMES: Final = attrgetter("event.owner.digest", "event.name", "function", "rules")


def in_order(conflicts: Iterable[Conflict]) -> tuple[Conflict, ...]:
    """Return conflicts in the order that all detectors answer in: the same event, upwards, downwards; then by name."""
    return tuple(sorted(sorted(conflicts, key=_NAMES), key=lambda found: _KINDS[found.kind]))

"""Trees of event types, rules over them that agree with each other, and candidates that do not, as paper 1 has them."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.profiles import ProfileSchema, alphabetic
from penstock.model.tree import TreeScope, TypeTree
from penstock.moderator.detection.detector import Detector
from penstock.moderator.rules.rules import AttributeList, ListEntry, Mode, PublishRule
from penstock.moderator.rules.vocabulary import Vocabulary
from penstock.selector import ALWAYS, Selector, parse

OWNER = Principal(b"\1" * 32)
VALUES = 4
#: attributes that are demanded of anybody at most, as in the paper's examples
MOST = 3
#: attributes that anybody demands, and that those who disagree demand
LETTERS = "abc"
ATTRIBUTES = 4
_SPARE = [f"{letter}{number}" for letter in "bc" for number in range(2, ATTRIBUTES + 1)]

Demanded = tuple[tuple[str, int], ...]
"""Attributes and their values."""


class CandidateKind(StrEnum):
    """What a candidate states."""

    THE_SAME = "what was agreed on"
    MORE = "one attribute more"
    LESS = "one attribute less"
    OTHER = "another value"


@dataclass(frozen=True, slots=True)
class RuleCandidate:
    """A rule as numbers, to be written for whoever it is to be added by."""

    id: str
    event: int
    publisher: int
    demanded: Demanded

    def term(self) -> str:
        """Write it for Prolog."""
        attributes = ", ".join(f"{name}-{value}" for name, value in self.demanded)
        return f"candidate({self.event}, '{self.id}', {self.publisher}, [{attributes}])."


@dataclass(frozen=True)
class RuleWorld:
    """A balanced binary tree of so many levels; type N has 2N and 2N + 1 below it.

    Each subtree agreed on what is demanded there: what is demanded above, and every few levels another attribute, so
    that as many are demanded at the bottom of a low tree as at that of a high one.
    """

    levels: int
    #: attribute lists, or else formulas that are none
    lists: bool = True

    @property
    def types(self) -> int:
        """How many event types there are."""
        return int(2**self.levels) - 1

    @cached_property
    def keys(self) -> list[TypeKey]:
        """The keys of the types, by their numbers."""
        return [TypeKey(OWNER, f"T{number}") for number in range(self.types + 1)]

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The tree, and the attributes that can be demanded."""
        parents = {self.keys[n]: self.keys[n // 2] if n > 1 else None for n in range(1, self.types + 1)}
        names = [f"{letter}{n}" for letter in LETTERS for n in range(1, ATTRIBUTES + 1)]
        people = ProfileSchema({name: alphabetic(*map(str, range(VALUES))) for name in names})
        return Vocabulary(TypeTree.of(parents, TreeScope.UPWARD), ProfileSchema({}), people)

    @cached_property
    def _functions(self) -> dict[Demanded, Selector]:
        return {(): ALWAYS}

    def demanded(self, number: int) -> Demanded:
        """Return what was agreed on for a type: its path from the root decides."""
        depth, every = number.bit_length() - 1, max(1, (self.levels - 1) // MOST)
        many = min(depth // every, MOST)
        return tuple((f"a{n}", (number >> (depth - every * n)) % VALUES) for n in range(1, many + 1))

    def function(self, demanded: Demanded) -> Selector:
        """Return what is demanded as a selector."""
        if demanded not in self._functions:
            if self.lists:
                made = AttributeList(tuple(ListEntry(name, str(value)) for name, value in demanded)).selector
            else:
                # Each part reads two attributes, so that no box says it.
                made = parse(" AND ".join(_parts(demanded)))
            self._functions[demanded] = made
        return self._functions[demanded]

    def draw(
        self,
        count: int,
        *,
        seed: int,
        publishers: int = 100,
        says: CandidateKind = CandidateKind.THE_SAME,
        prefix: str = "r",
    ) -> Iterator[RuleCandidate]:
        """Yield candidates on types drawn at random."""
        drawn = random.Random(seed)  # noqa: S311  # the same rules in each run
        for number in range(count):
            event, publisher = drawn.randint(1, self.types), drawn.randint(1, publishers)
            yield RuleCandidate(f"{prefix}{number}", event, publisher, _changed(self.demanded(event), says, drawn))

    def rule(self, candidate: RuleCandidate) -> PublishRule:
        """Return a candidate as a rule."""
        publisher = Principal(candidate.publisher.to_bytes(32, "big"))
        function = self.function(candidate.demanded)
        return PublishRule(candidate.id, self.keys[candidate.event], (publisher,), publisher, fnc_s=function)

    def unseen(self, count: int, *, seed: int, prefix: str = "unseen") -> list[PublishRule]:
        """Return rules whose functions nobody has stated before, on types drawn at random, as many of each kind.

        Each function has something that hardly any other has: a list three attributes more, a formula a part of its
        own. That part says nothing that the formula does not say, but where the rule demands more than was agreed on.
        """
        drawn = random.Random(seed)  # noqa: S311  # the same rules in each run
        found = []
        for says in CandidateKind:
            for candidate in self.draw(
                count // len(CandidateKind), seed=seed, says=says, prefix=f"{prefix}-{says.name}-"
            ):
                more = [(name, drawn.randrange(VALUES)) for name in drawn.sample(_SPARE, MOST)]
                if self.lists:
                    function = self.function((*candidate.demanded, *more))
                else:
                    function = parse(
                        " AND ".join(_parts(candidate.demanded, more, redundant=says is not CandidateKind.MORE))
                    )
                found.append(replace(self.rule(candidate), fnc_s=function))
        return found

    def rules(self, candidates: Iterable[RuleCandidate]) -> list[PublishRule]:
        """Return candidates as rules."""
        return [self.rule(candidate) for candidate in candidates]

    def detector(self, mode: Mode, about: Iterable[PublishRule]) -> Detector:
        """Return a detector that was asked about the types of rules: they get their numbers when that happens first."""
        detector = Detector(self.vocabulary, mode)
        for rule in about:
            detector.conflicts(PublishRule("asked", rule.event, (OWNER,), OWNER))
        return detector


def _changed(demanded: Demanded, says: CandidateKind, drawn: random.Random) -> Demanded:
    match says:
        case CandidateKind.THE_SAME:
            return demanded
        case CandidateKind.MORE:
            return (*demanded, ("b1", drawn.randrange(VALUES)))
        case CandidateKind.LESS:
            return demanded[:-1]
        case CandidateKind.OTHER:
            changed = list(demanded) or [("a1", 0)]
            at = drawn.randrange(len(changed))
            name, value = changed[at]
            changed[at] = (name, (value + drawn.randint(1, VALUES - 1)) % VALUES)
            return tuple(changed)


def _parts(demanded: Demanded, more: Sequence[tuple[str, int]] = (), *, redundant: bool = False) -> list[str]:
    """Return the parts of a formula, and one more; a redundant one begins with one of the others, if there is one."""
    parts = [f"{name} = '{value}' OR {_next(name)} = '{value}'" for name, value in demanded]
    if more:
        parts.append(" OR ".join([*(parts[-1:] if redundant else ()), *(f"{name} = '{v}'" for name, v in more)]))
    return [f"({part})" for part in parts]


def _next(name: str) -> str:
    return chr(ord(name[0]) + 1) + name[1:]

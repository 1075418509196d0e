"""Decision points with policies of each class that can be recycled, and a naive version of each inference rule.

A world has a policy that changes, the truth about each question, and the announcement of each change. `drive` asks a
recycler about it, and raises `AssertionError` at the first answer that the decision point would not give.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from random import Random
from typing import Any

from penstock.authority.decisions.messages import (
    AccessAnswer,
    AnswerEffect,
    LabelRecycling,
    PolicyRevision,
    RecyclingClass,
    RoleRecycling,
)
from penstock.authority.decisions.questions import AccessQuestion, Entity
from penstock.authority.decisions.recycling import CachedAnswer, Recycled, Recycler
from penstock.authority.decisions.updates import PolicyChange, PolicyUpdate, ResourceChange, RolePermissionChange
from penstock.crypto import SigningKey

PERMIT, DENY = AnswerEffect.PERMIT, AnswerEffect.DENY
POINT = SigningKey(b"decision point".ljust(32)).principal
START = datetime(2026, 1, 1, tzinfo=UTC)
NOW = START.timestamp()
POLICY = "documents"


def answer(
    question: AccessQuestion,
    effect: AnswerEffect,
    recycling: RecyclingClass | None = None,
    *,
    revision: str = "0",
    holds_for: str | None = None,
    issued: datetime = START,
    lasts: float = 3_600,
) -> AccessAnswer:
    """Return an answer of the decision point."""
    return AccessAnswer(
        question.digest,
        effect,
        (PolicyRevision(POLICY, revision, START),),
        POINT,
        issued,
        issued + timedelta(seconds=lasts),
        recycling=recycling,
        holds_for=holds_for,
    )


def update(number: int, changes: Iterable[PolicyChange]) -> PolicyUpdate:
    """Return the update to the revision with this number."""
    return PolicyUpdate(POINT, START, number, bytes(32), START, POLICY, tuple(changes), str(number - 1), str(number))


class World(ABC):
    """A decision point."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)  # noqa: S311  # the same each time
        self.number = 0

    @abstractmethod
    def question(self) -> AccessQuestion:
        """Return a random question."""

    @abstractmethod
    def permits(self, question: AccessQuestion) -> bool:
        """Return the truth."""

    @abstractmethod
    def change(self) -> list[PolicyChange]:
        """Change the policy, and return what is announced."""

    @abstractmethod
    def infer(self, question: AccessQuestion, known: Iterable[CachedAnswer]) -> set[AnswerEffect]:
        """Return what follows from answers, naively: by the issue's rules, one after the other."""

    def declared(self, _question: AccessQuestion) -> RecyclingClass | None:
        """Return the class that the point declares."""
        return None

    def holds_for(self, _question: AccessQuestion) -> str | None:
        """Return the set of requests for which the same answer holds."""
        return None

    def effect(self, question: AccessQuestion) -> AnswerEffect:
        """Return the decision."""
        return PERMIT if self.permits(question) else DENY

    def answer(self, question: AccessQuestion, now: float, lasts: float) -> AccessAnswer:
        """Return the decision point's answer."""
        return answer(
            question,
            self.effect(question),
            self.declared(question),
            revision=str(self.number),
            holds_for=self.holds_for(question),
            issued=datetime.fromtimestamp(now, UTC),
            lasts=lasts,
        )


# --- roles ------------------------------------------------------------------------------------------------------------


class RoleWorld(World):
    """Roles with permissions; a subject may have any of them."""

    def __init__(self, seed: int, *, roles: int = 6, objects: int = 3, density: float = 0.3) -> None:
        super().__init__(seed)
        self.roles = [f"r{number}" for number in range(roles)]
        self.permissions = [*product(("read", "write"), (f"d{number}" for number in range(objects)))]
        pairs = product(self.roles, self.permissions)
        self.granted = {pair for pair in pairs if self.chance.random() < density}

    def question(self) -> AccessQuestion:
        roles: list[Any] = [*self.chance.sample(self.roles, self.chance.randint(0, min(4, len(self.roles))))]
        action, item = self.chance.choice(self.permissions)
        subject = Entity(
            "user", f"u{self.chance.randint(0, 9)}", {"roles": roles} if self.chance.random() < 0.95 else {}
        )
        return AccessQuestion.of(subject, action, ("document", item))

    def permits(self, question: AccessQuestion) -> bool:
        permission = (question.action.id, question.resource.id)
        return any((role, permission) in self.granted for role in roles_of(question))

    def declared(self, _question: AccessQuestion) -> RecyclingClass | None:
        return RoleRecycling("roles")

    def change(self) -> list[PolicyChange]:
        if self.chance.random() < 0.2:
            # Any other change: everything about the resources that begin so.
            prefix = self.chance.choice(("", "d0", "d1"))
            for role, permission in product(self.roles, self.permissions):
                if permission[1].startswith(prefix) and self.chance.random() < 0.3:
                    self.granted ^= {(role, permission)}
            return [ResourceChange("document", prefix)]
        found: list[PolicyChange] = []
        for _ in range(self.chance.randint(1, 3)):
            role, permission = self.chance.choice(self.roles), self.chance.choice(self.permissions)
            granted = (role, permission) not in self.granted
            self.granted ^= {(role, permission)}
            found.append(RolePermissionChange(role, permission[0], "document", permission[1], granted))
        return found

    def infer(self, question: AccessQuestion, known: Iterable[CachedAnswer]) -> set[AnswerEffect]:
        roles, found, denied = roles_of(question), set(), set[str]()
        same = [
            one
            for one in known
            if (one.question.action.id, one.question.resource.id) == (question.action.id, question.resource.id)
            and "roles" in one.question.subject.properties
        ]
        for one in same:
            denied |= roles_of(one.question) if one.answer.effect is DENY else set()
        for one in same:
            remainder = roles_of(one.question) - denied
            if one.answer.effect is PERMIT and remainder and remainder <= roles:
                found.add(PERMIT)
        return found | ({DENY} if roles and roles <= denied else set())


def roles_of(question: AccessQuestion) -> set[str]:
    """Return the roles of the subject."""
    found = question.subject.properties.get("roles", [])
    assert isinstance(found, list)
    return {str(role) for role in found}


# --- labels -----------------------------------------------------------------------------------------------------------

LABELS = LabelRecycling(frozenset({"read"}), frozenset({"append"}), frozenset({"write"}))


@dataclass(frozen=True)
class Label:
    """A level and compartments."""

    level: int
    compartments: frozenset[str]

    def __ge__(self, other: "Label") -> bool:
        return self.level >= other.level and self.compartments >= other.compartments


class LabelWorld(World):
    """Bell–LaPadula: fixed labels, and for some objects an access matrix too, which the answers report apart."""

    def __init__(self, seed: int, *, subjects: int = 6, objects: int = 6, levels: int = 3) -> None:
        super().__init__(seed)
        self.levels = levels
        self.subjects = {f"s{number}": self.label() for number in range(subjects)}
        self.objects = {f"o{number}": self.label() for number in range(objects)}
        self.matrix = {name for name in self.objects if self.chance.random() < 0.3}
        self.refused = {
            key
            for key in product(self.subjects, self.matrix, ("read", "append", "write"))
            if self.chance.random() < 0.3
        }

    def label(self) -> Label:
        return Label(self.chance.randrange(self.levels), frozenset(c for c in "ab" if self.chance.random() < 0.4))

    def question(self) -> AccessQuestion:
        chance = self.chance
        action = chance.choice(("read", "append", "write"))
        return AccessQuestion.of(
            ("user", chance.choice([*self.subjects])), action, ("file", chance.choice([*self.objects]))
        )

    def mandatory(self, question: AccessQuestion) -> bool:
        subject, item = self.subjects[question.subject.id], self.objects[question.resource.id]
        match question.action.id:
            case "read":
                return subject >= item
            case "append":
                return item >= subject
        return subject == item

    def permits(self, question: AccessQuestion) -> bool:
        key = (question.subject.id, question.resource.id, question.action.id)
        return self.mandatory(question) and key not in self.refused

    def declared(self, question: AccessQuestion) -> RecyclingClass | None:
        if question.resource.id not in self.matrix:
            return LABELS
        mandatory = PERMIT if self.mandatory(question) else DENY
        return LabelRecycling(LABELS.read, LABELS.append, LABELS.write, mandatory)

    def change(self) -> list[PolicyChange]:
        if self.chance.random() < 0.3:
            self.subjects[self.chance.choice([*self.subjects])] = self.label()
            return [ResourceChange()]
        name = self.chance.choice([*self.objects])
        self.objects[name] = self.label()
        return [ResourceChange("file", name, exact=True)]

    def infer(self, question: AccessQuestion, known: Iterable[CachedAnswer]) -> set[AnswerEffect]:
        greater, negated, unequal = set[tuple[str, str]](), set[tuple[str, str]](), set[tuple[str, str]]()
        nodes = set[str]()
        for asked, said in known:
            pair = (asked.subject.id, asked.resource.id)
            nodes |= set(pair)
            assert isinstance(said.recycling, LabelRecycling)
            permitted = (said.recycling.mandatory or said.effect) is PERMIT
            match asked.action.id:
                case "write" if permitted:
                    greater |= {pair, pair[::-1]}
                case "write":
                    unequal |= {pair, pair[::-1]}
                case action:
                    (greater if permitted else negated).add(pair if action == "read" else pair[::-1])
        greater |= {(node, node) for node in nodes}
        while more := {(x, z) for x, y in greater for u, z in greater if y == u} - greater:
            greater |= more
        negated |= {(y, x) for x, y in unequal if (x, y) in greater}
        negated |= {
            (low, high)
            for x, y in negated
            for low in nodes
            for high in nodes
            if (x, low) in greater and (high, y) in greater
        }
        equal = {(x, y) for x, y in greater if (y, x) in greater}
        unequal |= {(u, v) for x, y in unequal for u in nodes for v in nodes if (x, u) in equal and (y, v) in equal}
        pair = (question.subject.id, question.resource.id)
        wanted = {
            "read": {pair},
            "append": {pair[::-1]},
            "write": {pair, pair[::-1]},
        }[question.action.id]
        found = set()
        if wanted <= greater and question.resource.id not in self.matrix:
            found.add(PERMIT)
        if wanted & negated or (len(wanted) == 2 and pair in unequal):
            found.add(DENY)
        return found


# --- attributes -------------------------------------------------------------------------------------------------------


class AttributeWorld(World):
    """Attribute rules, the first of which decides; answers say for which requests they hold."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.rules = [self.rule() for _ in range(6)]

    def rule(self) -> tuple[dict[str, str], bool]:
        names = self.chance.sample([*_VALUES], self.chance.randint(1, 3))
        return {name: self.chance.choice(_VALUES[name]) for name in names}, self.chance.random() < 0.5

    def question(self) -> AccessQuestion:
        said = {name: self.chance.choice(values) for name, values in _VALUES.items()}
        subject = Entity("user", f"u{self.chance.randint(0, 3)}", {"team": said["subject.properties.team"]})
        return AccessQuestion.of(
            subject,
            said["action.name"],
            Entity("file", said["resource.id"], {"kind": said["resource.properties.kind"]}),
        )

    def permits(self, question: AccessQuestion) -> bool:
        said = _said(question)
        return next((permitted for rule, permitted in self.rules if rule.items() <= said.items()), False)

    def holds_for(self, question: AccessQuestion) -> str | None:
        """Return the conditions that were evaluated until a rule decided."""
        said, parts = _said(question), set[str]()
        for rule, _ in self.rules:
            if rule.items() <= said.items():
                parts |= {f"\"{name}\" = '{value}'" for name, value in rule.items()}
                break
            # One value that differs is enough for the rule not to match, and stays so.
            name = next(name for name, value in rule.items() if said[name] != value)
            parts.add(f"\"{name}\" = '{said[name]}'")
        return " AND ".join(sorted(parts)) or None

    def change(self) -> list[PolicyChange]:
        place = self.chance.randrange(len(self.rules))
        old, self.rules[place] = self.rules[place], self.rule()
        if "resource.id" in old[0] and self.chance.random() < 0.7:
            self.rules[place] = (
                {**self.rules[place][0], "resource.id": self.chance.choice(_VALUES["resource.id"])},
                True,
            )
        ids = {rule.get("resource.id") for rule, _ in (old, self.rules[place])}
        if None in ids:
            return [ResourceChange("file")]
        return [ResourceChange("file", str(name), exact=True) for name in ids]

    def infer(self, question: AccessQuestion, known: Iterable[CachedAnswer]) -> set[AnswerEffect]:
        said, found = _said(question), set()
        for one in known:
            parts = [part.split(" = ") for part in (one.answer.holds_for or "").split(" AND ")]
            if one.answer.holds_for and all(said[name.strip('"')] == value.strip("'") for name, value in parts):
                found.add(one.answer.effect)
        return found


_VALUES = {
    "action.name": ("read", "write"),
    "resource.id": ("f1", "f2", "f3"),
    "resource.properties.kind": ("text", "image"),
    "subject.properties.team": ("red", "blue"),
}


def _said(question: AccessQuestion) -> dict[str, str]:
    return {
        "action.name": question.action.id,
        "resource.id": question.resource.id,
        "resource.properties.kind": str(question.resource.properties["kind"]),
        "subject.properties.team": str(question.subject.properties["team"]),
    }


# --- asking -----------------------------------------------------------------------------------------------------------


def drive(world: World, recycler: Recycler, steps: int, *, changes: float = 0.02, complete: bool = True) -> int:
    """Ask questions, and change the policy in between. Return how many answers were recycled beyond the same question.

    Raises `AssertionError` for a recycled answer that is not the decision point's, for one that the naive version does
    not find or finds otherwise, and for a contradiction.
    """
    now, inferred = NOW, 0
    recycler.follow({POLICY: "0"})
    for _ in range(steps):
        now += world.chance.random() * 10
        if world.chance.random() < changes:
            announced = world.change()
            world.number += 1
            assert not recycler.change(update(world.number, announced)).lost
        question = world.question()
        found = recycler.answer(question, now)
        if complete:
            known = list(recycler.cached())
            naive = {one.answer.effect for one in known if one.question == question} | world.infer(question, known)
            assert naive == (set() if found is None else {found.effect}), (question.text, naive, found)
        if found is None:
            learning = recycler.learn(question, world.answer(question, now, world.chance.choice((5, 100, 1_000))), now)
            assert learning.kept, learning.why
            continue
        assert found.effect is world.effect(question), (question.text, found)
        inferred += list(premises_of(found)) != [question]
    return inferred


def premises_of(found: Recycled) -> Iterator[AccessQuestion]:
    """Yield the questions from whose answers a recycled answer follows."""
    return (one.question for one in found.premises)

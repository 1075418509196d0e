"""Scenarios as plain data, such as a YAML file holds: what may stand where, and nothing else."""

import hashlib
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final, TypeVar

from penstock.errors import MalformedError
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.profiles import Profile, ProfileSchema, alphabetic, numeric
from penstock.model.tree import Scope, TypeTree
from penstock.model.values import AttributeSpec, Kind
from penstock.moderator import steps
from penstock.moderator.adding import Customs
from penstock.moderator.conflicts import Mode
from penstock.moderator.heuristics import HEURISTICS
from penstock.moderator.lists import AttributeList, Bound, Entry
from penstock.moderator.rules import PublishRule
from penstock.moderator.scenario import Scenario, ScenarioStep
from penstock.moderator.vocabulary import Vocabulary
from penstock.selector import ALWAYS, Selector, parse
from penstock.trust.validity import Validity

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

#: who changes the tree and lets time pass
MODERATOR: Final = "moderator"
#: what can be expected of a step
FACTS: Final = frozenset(
    {
        "outcome",
        "code",
        "conflicts",
        "proposals",
        "restored",
        "logged",
        "dropped",
        "rules",
        "log",
        "away",
        "waiting",
    }
)
_DOMAIN: Final = b"penstock scenario\0"


def principal_of(name: str) -> Principal:
    """Return the principal that a name in a scenario stands for; nobody has its key."""
    return Principal(hashlib.sha256(_DOMAIN + name.encode()).digest())


def read_scenario(data: object) -> Scenario:
    """Read a scenario. Raises `MalformedError` (`moderator.scenario`), and what its parts raise."""
    return _Reader(data).scenario()


class _Table:
    """A mapping of which every key has to be asked for."""

    def __init__(self, data: object, where: str) -> None:
        if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
            raise _malformed(where, "a mapping with names as keys")
        self._left: dict[str, object] = dict(data)
        self.where = where

    def has(self, key: str) -> bool:
        return key in self._left

    def names(self) -> list[str]:
        return [*self._left]

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        value = self._left.pop(key, default)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise _malformed(f"{self.where}, `{key}`", _KINDS[kind])
        return value

    def any(self, key: str) -> object:
        return self._left.pop(key, None)

    def table(self, key: str) -> "_Table":
        return _Table(self._left.pop(key, {}), f"{self.where}, `{key}`")

    def texts(self, key: str) -> list[str]:
        found = self.take(key, list, [])
        if not all(isinstance(each, str) for each in found):
            raise _malformed(f"{self.where}, `{key}`", "a list of names")
        return found

    def done(self) -> None:
        if self._left:
            unknown = next(iter(self._left))[:80]
            raise MalformedError(
                "moderator.scenario",
                f"{self.where}: `{unknown}` means nothing here",
                hint="see docs/reference/moderator-scenario.md",
            )


_KINDS: Final[Mapping[type, str]] = {
    str: "text",
    list: "a list",
    bool: "true or false",
    int: "a whole number",
    dict: "a mapping",
}


def _malformed(where: str, wanted: str) -> MalformedError:
    return MalformedError(
        "moderator.scenario", f"{where}: expected {wanted}", hint="see docs/reference/moderator-scenario.md"
    )


class _Reader:
    """Reads one scenario from top to bottom; rules are known by their ids once they were stated."""

    def __init__(self, data: object) -> None:
        self._top = _Table(data, "scenario")
        self._names: dict[Principal, str] = {}
        self._stated: dict[str, PublishRule] = {}

    def scenario(self) -> Scenario:
        top = self._top
        title, source = top.take("title", str), top.take("source", str, "")
        owner = self._who(top.take("owner", str, "owner"))
        self._event: Callable[[str], TypeKey] = lambda name: TypeKey(owner, name)
        tree = self._tree(top.table("types"), self._choice(top, "scope", Scope))
        publishers, _ = self._profiles(top.table("publishers"))
        subscribers, people = self._profiles(top.table("subscribers"))
        mode = self._choice(top, "mode", Mode, Mode.SCOPED)
        customs = self._customs(top.table("customs"), people)
        self._now = now = self._instant(top, "now")
        listed = top.take("steps", list)
        top.done()
        read = [self._step(_Table(each, f"step {number}")) for number, each in enumerate(listed, 1)]
        return Scenario(title, source, Vocabulary(tree, publishers, subscribers), mode, customs, now, self._names, read)

    # --- what there is at the beginning -----------------------------------------------------------------------

    def _tree(self, table: _Table, scope: Scope) -> TypeTree:
        parents: dict[TypeKey, TypeKey | None] = {}
        for name in table.names():
            parents[self._event(name)] = self._parent(table, name)
        return TypeTree.of(parents, scope)

    def _parent(self, table: _Table, key: str) -> TypeKey | None:
        parent = table.any(key)
        if parent is not None and not isinstance(parent, str):
            raise _malformed(f"{table.where}, `{key}`", "the name of a type, or nothing for a root")
        return None if parent is None else self._event(parent)

    def _profiles(self, table: _Table) -> tuple[ProfileSchema, list[Profile]]:
        declared = table.table("attributes")
        schema = ProfileSchema({name: self._spec(declared, name) for name in declared.names()})
        people = table.table("profiles")
        profiles = [schema.profile(people.take(name, dict)) for name in people.names()]
        table.done()
        return schema, profiles

    def _spec(self, table: _Table, name: str) -> AttributeSpec:
        match table.any(name):
            case list(values) if all(isinstance(value, str) for value in values):
                return alphabetic(*values)
            case {"min": int() | float() as low, "max": int() | float() as high}:
                return numeric(low, high)
            case str(kind) if kind in [*Kind]:
                return AttributeSpec(Kind(kind))
        raise _malformed(f"{table.where}, `{name}`", "a list of values, `min` and `max`, or a kind")

    def _customs(self, table: _Table, people: list[Profile]) -> Customs:
        strategy = self._choice(table, "resolve", steps.Strategy) if table.has("resolve") else None
        heuristic = table.take("heuristic", str, "newest")
        if heuristic not in HEURISTICS:
            raise _malformed(f"{table.where}, `heuristic`", f"one of {', '.join(HEURISTICS)}")
        table.done()
        return Customs(strategy, HEURISTICS[heuristic], tuple(people))

    # --- steps ------------------------------------------------------------------------------------------------

    def _step(self, table: _Table) -> ScenarioStep:
        kinds = [key for key in table.names() if key in REQUESTS]
        if len(kinds) != 1:
            raise _malformed(table.where, f"one of {', '.join(REQUESTS)}")
        request, asked_by = REQUESTS[kinds[0]](self, table, kinds[0])
        if table.has("at"):
            self._now = self._instant(table, "at")
        who = self._who(table.take("who", str)) if table.has("who") else asked_by
        note = steps.Note(who, self._now, table.take("why", str, ""))
        expected = table.take("expect", dict, {})
        unknown = sorted(set(expected) - FACTS)
        if unknown:
            raise _malformed(f"{table.where}, `expect`", f"some of {', '.join(sorted(FACTS))}")
        table.done()
        return ScenarioStep(request, note, expected)

    def add(self, table: _Table, key: str) -> tuple[steps.Request, Principal]:
        table = table.table(key)
        by = table.take("by", str)
        publishers = table.texts("publishers") or [by]
        begin = self._instant(table, "from") if table.has("from") else None
        end = self._instant(table, "until") if table.has("until") else None
        rule = PublishRule(
            table.take("id", str),
            self._event(table.take("event", str)),
            tuple(map(self._who, publishers)),
            self._who(by),
            self._function(table, "fnc_p"),
            self._function(table, "fnc_s"),
            Validity.between(begin, end),
        )
        table.done()
        self._stated[rule.id] = rule
        return steps.Add(rule), rule.stated_by

    def resolve(self, table: _Table, key: str) -> tuple[steps.Request, Principal]:
        table = table.table(key)
        rule_id = table.take("rule", str)
        strategy = self._choice(table, "strategy", steps.Strategy)
        consents = frozenset(map(self._who, table.texts("consents")))
        table.done()
        return steps.Resolve(rule_id, strategy, consents), self._who(MODERATOR)

    def withdraw(self, table: _Table, key: str) -> tuple[steps.Request, Principal]:
        rule_id = table.take(key, str)
        stated = self._stated.get(rule_id)
        return steps.Withdraw(rule_id), self._who(MODERATOR) if stated is None else stated.stated_by

    def time(self, table: _Table, key: str) -> tuple[steps.Request, Principal]:
        self._now = self._instant(table, key)
        return steps.Pass(), self._who(MODERATOR)

    def leave(self, table: _Table, key: str) -> tuple[steps.Request, Principal]:
        publisher = self._who(table.take(key, str))
        return steps.Leave(publisher), publisher

    def come_back(self, table: _Table, key: str) -> tuple[steps.Request, Principal]:
        publisher = self._who(table.take(key, str))
        return steps.Return(publisher), publisher

    def tree(self, table: _Table, key: str) -> tuple[steps.Request, Principal]:
        table = table.table(key)
        event = self._event(table.take("event", str))
        request: steps.Request
        match key:
            case "add-type":
                request = steps.AddType(event, self._parent(table, "parent"))
            case "move-type":
                request = steps.MoveType(event, self._parent(table, "parent"))
            case "rename-type":
                request = steps.RenameType(event, self._event(table.take("to", str)))
            case _:
                request = steps.RemoveType(event)
        table.done()
        return request, self._who(MODERATOR)

    def undo(self, table: _Table, key: str) -> tuple[steps.Request, Principal]:
        table = table.table(key)
        request = steps.Undo(table.take("step", int), table.take("replay", bool, False))
        table.done()
        return request, self._who(MODERATOR)

    # --- parts ------------------------------------------------------------------------------------------------

    def _who(self, name: str) -> Principal:
        principal = principal_of(name)
        self._names[principal] = name
        return principal

    def _function(self, table: _Table, key: str) -> Selector:
        match table.any(key):
            case None:
                return ALWAYS
            case str(text):
                return parse(text)
            case dict(entries):
                return AttributeList(
                    tuple(entry for name, value in entries.items() for entry in _entries(table.where, name, value))
                ).selector
        raise _malformed(f"{table.where}, `{key}`", "a selector, or attributes and their values")

    def _instant(self, table: _Table, key: str) -> datetime:
        text = table.take(key, str)
        try:
            instant = datetime.fromisoformat(text)
        except ValueError as error:
            raise _malformed(f"{table.where}, `{key}`", "an instant such as 2026-01-31T12:00:00Z") from error
        if instant.tzinfo is None:
            raise _malformed(f"{table.where}, `{key}`", "an instant with its zone, such as 2026-01-31T12:00:00Z")
        return instant

    def _choice(self, table: _Table, key: str, kind: type[E], default: E | None = None) -> E:
        text = table.take(key, str, None if default is None else default.value)
        try:
            return kind(text)
        except ValueError as error:
            raise _malformed(f"{table.where}, `{key}`", f"one of {', '.join(kind)}") from error


def _entries(where: str, name: str, value: object) -> list[Entry]:
    match value:
        case dict():
            if not value or not set(value) <= {Bound.MIN, Bound.MAX}:
                raise _malformed(f"{where}, `{name}`", "a value, `min`, `max`, or both")
            return [Entry(name, end, Bound(bound)) for bound, end in value.items()]
        case bool() | int() | float() | str():
            return [Entry(name, value)]
    raise _malformed(f"{where}, `{name}`", "a value, `min`, `max`, or both")


#: what can be asked for
REQUESTS: Final[Mapping[str, Callable[[_Reader, _Table, str], tuple[steps.Request, Principal]]]] = {
    "add": _Reader.add,
    "resolve": _Reader.resolve,
    "withdraw": _Reader.withdraw,
    "pass": _Reader.time,
    "leave": _Reader.leave,
    "return": _Reader.come_back,
    "add-type": _Reader.tree,
    "move-type": _Reader.tree,
    "rename-type": _Reader.tree,
    "remove-type": _Reader.tree,
    "undo": _Reader.undo,
}

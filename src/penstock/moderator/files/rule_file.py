"""Read and write rule bases as plain data, such as a YAML file contains (docs/reference/rule-base.md).

A file says what rules may name (the type tree, its scope, the attributes of profiles), who is known, what the domain
has agreed on, and which rules are stated. Scenarios begin in the same way and continue with steps (`scenarios`).

A name means the principal that the file lists under `principals`, otherwise the one that the reader knows by that name,
otherwise a principal whose key nobody has, so that rules can be tried before there are keys.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import groupby
from types import MappingProxyType
from typing import Final, TypeVar

from penstock.codec.yaml_text import Lined, Written
from penstock.errors import MalformedError, did_you_mean
from penstock.model.instants import parse_end, parse_instant
from penstock.model.names import TypeKey, check_attribute_name
from penstock.model.principals import Principal
from penstock.model.profiles import Profile, ProfileSchema, alphabetic, numeric
from penstock.model.tree import TreeScope, TypeTree
from penstock.model.values import AttributeSpec, Enumerated, Kind, Ranged, Schema, Value
from penstock.moderator.descriptions import parse_function
from penstock.moderator.files.founding import Known
from penstock.moderator.rules.rules import (
    AttributeList,
    Bound,
    ListEntry,
    Mode,
    PublishRule,
    Rule,
    RuleFunction,
    SubscribeRule,
)
from penstock.moderator.rules.steps import Add, StateSubscriberRule, Strategy
from penstock.moderator.rules.vocabulary import Vocabulary
from penstock.moderator.settlement.addition import Customs, Tightening
from penstock.moderator.settlement.proposals import HEURISTICS, NEWEST
from penstock.selector import ALWAYS, Selector
from penstock.trust.validity import Validity

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

_KINDS: Final[Mapping[type, str]] = {
    str: "text",
    list: "a list",
    bool: "true or false",
    int: "a whole number",
    dict: "a mapping",
}


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file: its error code, and the page that describes it."""

    code: str
    page: str

    def malformed(self, where: str, wanted: str) -> MalformedError:
        """Return the error for a value of the wrong kind."""
        return self.wrong(where, f"expected {wanted}")

    def wrong(self, where: str, problem: str, **fields: object) -> MalformedError:
        """Return the error for a problem at a place."""
        return MalformedError(self.code, f"{where}: {problem}", hint=f"see {self.page}", **fields)


class StrictMapping:
    """A mapping in which unknown keys are errors. Each method raises `MalformedError` with the file's code."""

    def __init__(self, data: object, where: str, form: FileKind, line: int = 0) -> None:
        self.form = form
        self.where = where
        self._lines = data.lines if isinstance(data, Lined) else {}
        self._line = next(iter(self._lines.values()), line)
        if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
            raise form.malformed(self.place(), "a mapping with names as keys")
        self._left: dict[str, object] = dict(data)
        self._asked: set[str] = set()

    def place(self, key: str | None = None) -> str:
        """Return the place of a key, or of the table itself, for messages."""
        line = self._line if key is None else self.line(key)
        where = self.where if key is None else f"{self.where}, `{key[:80]}`"
        return f"line {line}: {where}" if line else where

    def line(self, key: str | None = None) -> int:
        """Return the line of a key; 0 if it is not known."""
        return self._line if key is None else self._lines.get(key, self._line)

    def malformed(self, key: str | None, wanted: str) -> MalformedError:
        """Return the error for a key with a value of the wrong kind."""
        return self.form.malformed(self.place(key), wanted)

    @contextmanager
    def at(self, key: str | None = None) -> Iterator[None]:
        """Add the key and the line of a value to errors about it."""
        place = self.place(key)
        try:
            yield
        except MalformedError as error:
            # An inner reader has already added the place.
            if error.code != self.form.code:
                error.message = f"{place}: {error.message}"
            raise

    def has(self, key: str) -> bool:
        """Return whether a key exists that was not read yet."""
        self._asked.add(key)
        return key in self._left

    def names(self) -> list[str]:
        """Return the keys that were not read yet."""
        return [*self._left]

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return a value of a kind."""
        self._asked.add(key)
        if default is None and key not in self._left:
            raise self.form.wrong(self.place(key), f"it is missing ({_KINDS[kind]})")
        value = self._left.pop(key, default)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise self.malformed(key, _KINDS[kind])
        return value

    def any(self, key: str) -> object:
        """Return a value of any kind."""
        self._asked.add(key)
        return self._left.pop(key, None)

    def table(self, key: str) -> "StrictMapping":
        """Return an inner table; an empty one if the key is missing."""
        found = self.any(key)
        return StrictMapping({} if found is None else found, f"{self.where}, `{key[:80]}`", self.form, self.line(key))

    def tables(self, key: str, what: str) -> list["StrictMapping"]:
        """Return the tables of a list, each named after its kind and number."""
        found = self.take(key, list, [])
        line = self.line(key)
        return [StrictMapping(each, f"{what} {number}", self.form, line) for number, each in enumerate(found, 1)]

    def texts(self, key: str) -> list[str]:
        """Return a list of names."""
        found = self.take(key, list, [])
        if not all(isinstance(each, str) for each in found):
            raise self.malformed(key, "a list of names")
        return found

    def choice(self, key: str, kind: type[E], default: E | None = None) -> E:
        """Return one of some words."""
        text = self.take(key, str, None if default is None else default.value)
        try:
            return kind(text)
        except ValueError as error:
            raise self.malformed(key, _also(f"one of {', '.join(kind)}", did_you_mean(text, kind))) from error

    def done(self) -> None:
        """Check that every key was read."""
        for key in self._left:
            meant = did_you_mean(key, sorted(self._asked))
            raise self.form.wrong(self.place(key), _also("this means nothing here", meant))


def _also(text: str, more: str) -> str:
    return f"{text}; {more}" if more else text


# ----------------------------------------------------------------------------------------------------------------------
# Attributes in hand-written files: their declarations, their values, and conditions on them.


def read_schema(table: StrictMapping) -> ProfileSchema:
    """Read the attributes of profiles. Raises `MalformedError`: the file's code, and what attributes raise."""
    specs: dict[str, AttributeSpec] = {}
    for name in table.names():
        with table.at(name):
            check_attribute_name(name)
            specs[name] = _attribute_spec(table, name)
    return ProfileSchema(specs)


def _attribute_spec(table: StrictMapping, name: str) -> AttributeSpec:
    match table.any(name):
        case list(values) if values and all(isinstance(value, str) for value in values):
            return alphabetic(*values)
        case {"min": int() | float() as low, "max": int() | float() as high, **rest} if not rest:
            return numeric(low, high)
        case str(kind) if kind in [*Kind]:
            return AttributeSpec(Kind(kind))
        case {"kind": str(kind), "values": list(values), **rest} if kind in [*Kind] and not rest:
            members = [_as_kind(Kind(kind), value) for value in values]
            return AttributeSpec(Kind(kind), Enumerated(frozenset(members)))
        case {"kind": str(kind), "min": low, "max": high, **rest} if kind in [*Kind] and not rest:
            ends = (_as_kind(Kind(kind), low), _as_kind(Kind(kind), high))
            return AttributeSpec(Kind(kind), Ranged(*ends))  # type: ignore[arg-type]  # the spec checks its ends
        case []:
            return alphabetic()
        case str(kind):
            raise table.malformed(name, _also(f"a kind: {', '.join(Kind)}", did_you_mean(kind, Kind)))
    raise table.malformed(name, "a list of values, `min` and `max`, or a kind")


def read_value(schema: ProfileSchema, name: str, value: object) -> Value | None:
    """Read a value of an attribute's kind; kinds that YAML lacks are written as text. Raises `MalformedError`."""
    if value is None:
        return None
    spec = schema.attributes.get(name)
    return _scalar(value) if spec is None else _as_kind(spec.kind, value)


def _as_kind(kind: Kind, value: object) -> Value:
    found = _scalar(value)
    if kind is Kind.TIMESTAMP and isinstance(found, str):
        return parse_instant(found)
    if kind is Kind.FLOAT and isinstance(found, int) and not isinstance(found, bool):
        return float(found)
    return found


def _scalar(value: object) -> Value:
    if isinstance(value, bool | int | float | str):
        return value
    raise MalformedError("value.kind", "a list or a mapping is not a value of an attribute", hint="give one value")


def read_list(table: StrictMapping, key: str, written: dict[str, object], schema: ProfileSchema) -> AttributeList:
    """Read an attribute list: attributes, and their values or bounds. Raises `MalformedError` as `AttributeList`."""
    return AttributeList(
        tuple(entry for name, value in written.items() for entry in _entries(table, key, name, value, schema))
    )


def _entries(table: StrictMapping, key: str, name: str, value: object, schema: ProfileSchema) -> list[ListEntry]:
    problem = table.malformed(key, f"for `{name[:80]}` a value, `min`, `max`, or both")
    bounds = value if isinstance(value, dict) else {Bound.IS: value}
    if isinstance(value, dict) and (not value or not set(value) <= {Bound.MIN, Bound.MAX}):
        raise problem
    found = []
    for bound, end in bounds.items():
        known = None if isinstance(end, list | dict) else read_value(schema, name, end)
        if known is None:
            raise problem
        found.append(ListEntry(name, known, Bound(str(bound))))
    return found


R = TypeVar("R", PublishRule, SubscribeRule)

RULES: Final = FileKind("moderator.file", "docs/reference/rule-base.md")
#: the default owner of types
OWNER: Final = "owner"
_DOMAIN: Final = b"penstock scenario\0"
_WRITTEN: Final = ("ed25519:", "threshold:")


def principal_of(name: str) -> Principal:
    """Return a principal for a name that is not bound to one; nobody has its key."""
    return Principal(hashlib.sha256(_DOMAIN + name.encode()).digest())


@dataclass(frozen=True, slots=True)
class RuleFile:
    """The content of a file: vocabulary, profiles, customs, and stated rules."""

    vocabulary: Vocabulary
    mode: Mode = Mode.SCOPED
    customs: Customs = field(default_factory=Customs)
    title: str = ""
    owner: Principal = field(default_factory=lambda: principal_of(OWNER))
    rules: tuple[PublishRule, ...] = ()
    subscriptions: tuple[SubscribeRule, ...] = ()
    #: profiles of publishers and of subscribers; a principal can have both
    publishers: Known = field(default_factory=lambda: MappingProxyType({}), repr=False)
    subscribers: Known = field(default_factory=lambda: MappingProxyType({}), repr=False)
    #: names of principals
    names: Mapping[Principal, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    #: lines of rules, by id
    lines: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)

    @property
    def stated(self) -> tuple[Add | StateSubscriberRule, ...]:
        """The requests that state the file's rules, in order."""
        return (*map(Add, self.rules), *map(StateSubscriberRule, self.subscriptions))

    @property
    def profiles(self) -> Known:
        """The profile of each principal, for `Subscriptions`."""
        return joined(self.publishers, self.subscribers)


def joined(publishers: Known, subscribers: Known) -> Known:
    """Join the profiles of publishers and subscribers."""
    values = {who: dict(profile.values) for who, profile in publishers.items()}
    for who, profile in subscribers.items():
        values[who] = {**values.get(who, {}), **profile.values}
    return MappingProxyType({who: Profile(MappingProxyType(each)) for who, each in values.items()})


def read_rule_file(data: object, known: Mapping[str, Principal] = MappingProxyType({})) -> RuleFile:
    """Read a rule base; `known` are the reader's petnames.

    Raises `MalformedError`: `moderator.file`, `moderator.duplicate-id`, `principal.ambiguous`, and what its parts
    raise; each says in which line, as far as that is known.
    """
    reader = RuleReader(data, "rule base", RULES, known)
    found = reader.rule_base()
    reader.top.done()
    return found


class RuleReader:
    """Reads the common part of rule bases and scenarios."""

    def __init__(self, data: object, what: str, form: FileKind, known: Mapping[str, Principal]) -> None:
        self.top = StrictMapping(data, what, form)
        self.names: dict[Principal, str] = {}
        self._known = dict(known)
        self._lines: dict[str, int] = {}
        self._schemas: dict[str, ProfileSchema] = {}
        self._functions: dict[tuple[str, str], Selector] = {}

    def rule_base(self) -> RuleFile:
        """Read the parts of a rule base; other keys are left for the caller."""
        top = self.top
        title = top.take("title", str, "")
        self._read_principals(top.table("principals"))
        self._owner = self.who(top, "owner", OWNER)
        tree = self._tree(top)
        publishers, about_publishers = self._profiles(top, "publishers")
        subscribers, about_subscribers = self._profiles(top, "subscribers")
        vocabulary = Vocabulary(tree, publishers, subscribers)
        mode = top.choice("mode", Mode, Mode.SCOPED)
        customs = self._customs(top.table("customs"), tuple(about_subscribers.values()))
        rules = tuple(self._once(each, self.publish_rule) for each in top.tables("rules", "rule"))
        subscriptions = tuple(
            self._once(each, self.subscribe_rule) for each in top.tables("subscriptions", "subscription")
        )
        self._check_both(about_publishers, about_subscribers, vocabulary)
        return RuleFile(
            vocabulary,
            mode,
            customs,
            title,
            self._owner,
            rules,
            subscriptions,
            about_publishers,
            about_subscribers,
            self.names,
            self._lines,
        )

    # --- who, and about what ------------------------------------------------------------------------------------

    def _read_principals(self, table: StrictMapping) -> None:
        for name in table.names():
            with table.at(name):
                principal = Principal.parse(table.take(name, str))
                if self._known.get(name, principal) != principal:
                    raise MalformedError(
                        "principal.ambiguous",
                        f"you know another principal as `{name[:80]}`",
                        hint="change the name in the file, or yours",
                    )
            self._known[name] = principal

    def who(self, table: StrictMapping, key: str, default: str | None = None) -> Principal:
        """Read the name of a principal."""
        name = table.take(key, str, default)
        with table.at(key):
            return self.principal(name)

    def principal(self, name: str) -> Principal:
        """Return the principal that a name refers to. Raises `MalformedError` (`principal.malformed`)."""
        if not name or not name.isprintable() or len(name) > 80:
            raise MalformedError("principal.malformed", f"`{name[:80]}` is not the name of a principal")
        if name.startswith(_WRITTEN):
            found = Principal.parse(name)
            self.names.setdefault(found, found.short)
            return found
        found = self._known.get(name) or principal_of(name)
        if self.names.get(found, found.short) == found.short:
            self.names[found] = name
        return found

    def event(self, table: StrictMapping, key: str) -> TypeKey:
        """Read the name of an event type."""
        name = table.take(key, str)
        with table.at(key):
            return self.event_of(name)

    def event_of(self, name: str) -> TypeKey:
        """Return the event type with a name; one of another owner is written `owner/name`."""
        owner, slash, rest = name.rpartition("/")
        return TypeKey(self.principal(owner) if slash else self._owner, rest)

    def parent(self, table: StrictMapping, key: str) -> TypeKey | None:
        """Read the name of a parent; empty for a root."""
        parent = table.any(key)
        if parent is not None and not isinstance(parent, str):
            raise table.malformed(key, "the name of a type, or nothing for a root")
        with table.at(key):
            return None if parent is None else self.event_of(parent)

    def _tree(self, top: StrictMapping) -> TypeTree:
        scope = top.choice("scope", TreeScope)
        table = top.table("types")
        parents: dict[TypeKey, TypeKey | None] = {}
        written: dict[TypeKey, str] = {}
        for name in table.names():
            with table.at(name):
                event = self.event_of(name)
            if event in parents:
                raise table.form.wrong(table.place(name), "the event type stands there twice")
            parents[event], written[event] = self.parent(table, name), name
        for event, parent in parents.items():
            if parent is not None and parent not in parents:
                raise MalformedError(
                    "tree.parent",
                    f"{table.place(written[event])}: its parent `{parent.name}` is not among the types",
                    hint="add the parent to `types`, with nothing behind it if it is a root",
                )
        with top.at("types"):
            return TypeTree.of(parents, scope)

    # --- profiles -----------------------------------------------------------------------------------------------

    def _profiles(self, top: StrictMapping, key: str) -> tuple[ProfileSchema, Known]:
        table = top.table(key)
        declared = table.table("attributes")
        schema = self._schemas[key] = read_schema(declared)
        people = table.table("profiles")
        profiles: dict[Principal, Profile] = {}
        for name in people.names():
            values = people.take(name, dict)
            with people.at(name):
                who = self.principal(name)
                given = {each: read_value(schema, each, value) for each, value in values.items()}
                profiles[who] = schema.profile({each: value for each, value in given.items() if value is not None})
        table.done()
        return schema, MappingProxyType(profiles)

    def _check_both(self, publishers: Known, subscribers: Known, words: Vocabulary) -> None:
        """Check that a principal's two profiles have the same value for each common attribute."""
        shared = words.publishers.attributes.keys() & words.subscribers.attributes.keys()
        for who in publishers.keys() & subscribers.keys():
            for name in sorted(shared):
                if publishers[who].values.get(name) != subscribers[who].values.get(name):
                    raise self.top.form.wrong(
                        self.top.place("subscribers"),
                        f"`{self.names[who]}` has another `{name}` as a subscriber than as a publisher",
                    )

    def _customs(self, table: StrictMapping, people: tuple[Profile, ...]) -> Customs:
        strategy = table.choice("resolve", Strategy) if table.has("resolve") else None
        heuristic = table.take("heuristic", str, "newest")
        if heuristic not in HEURISTICS:
            raise table.malformed("heuristic", f"one of {', '.join(HEURISTICS)}")
        with table.at("speakers"):
            speakers = frozenset(map(self.principal, table.texts("speakers")))
        tightening = table.choice("tightening", Tightening, Tightening.FREE)
        table.done()
        return Customs(strategy, HEURISTICS[heuristic], people, speakers, tightening)

    # --- rules --------------------------------------------------------------------------------------------------

    def publish_rule(self, table: StrictMapping) -> PublishRule:
        """Read a publisher's rule."""
        rule_id = self._rule_id(table)
        by = table.take("by", str)
        with table.at("publishers"):
            named = table.texts("publishers") if table.has("publishers") else [by]
            if not named:
                raise table.malformed("publishers", "the rule's publishers; leave it out if that is `by` alone")
            publishers = tuple(map(self.principal, named))
        with table.at("by"):
            stated_by = self.principal(by)
        event = self.event(table, "event")
        fnc_p, fnc_s = self.function(table, "fnc_p", "publishers"), self.function(table, "fnc_s", "subscribers")
        validity = self.validity(table)
        table.done()
        with table.at():
            return PublishRule(rule_id, event, publishers, stated_by, fnc_p, fnc_s, validity)

    def subscribe_rule(self, table: StrictMapping) -> SubscribeRule:
        """Read a subscriber's rule."""
        rule_id = self._rule_id(table)
        by = table.take("by", str)
        with table.at("by"):
            stated_by = self.principal(by)
        subscriber = self.who(table, "subscriber", by)
        event = self.event(table, "event")
        fnc_p, validity = self.function(table, "fnc_p", "publishers"), self.validity(table)
        table.done()
        with table.at():
            return SubscribeRule(rule_id, event, subscriber, stated_by, fnc_p, validity)

    def _rule_id(self, table: StrictMapping) -> str:
        rule_id = table.take("id", str)
        table.where = f"rule `{rule_id[:80]}`"
        return rule_id

    def _once(self, table: StrictMapping, read: Callable[[StrictMapping], R]) -> R:
        """Read a rule, and check that its id is unique."""
        line = table.line("id")
        rule = read(table)
        if rule.id in self._lines:
            before = self._lines[rule.id]
            where = f", in line {before}" if before else ""
            raise MalformedError(
                "moderator.duplicate-id",
                f"{table.place('id')}: another rule has this id{where}",
                hint="give one of them another id",
            )
        self._lines[rule.id] = line
        return rule

    def function(self, table: StrictMapping, key: str, whose: str) -> Selector:
        """Read a function: a condition, or attributes and their values; a missing one is TRUE."""
        if not table.has(key):
            return ALWAYS
        value = table.any(key)
        # Many rules state the same function.
        written = (whose, repr(value))
        found = self._functions.get(written)
        if found is None:
            with table.at(key):
                found = self._functions[written] = self._function(table, key, whose, value)
        return found

    def _function(self, table: StrictMapping, key: str, whose: str, value: object) -> Selector:
        match value:
            case str(text):
                return parse_function(text)
            case dict():
                return read_list(table, key, value, self._schemas[whose]).selector
        # An empty function is probably a mistake, and would admit everybody.
        raise table.malformed(key, "a condition, or attributes and their values; to demand nothing, leave it out")

    def validity(self, table: StrictMapping) -> Validity:
        """Read a period; a missing date means that it is open. A day as its end is included."""
        begin = self.instant(table, "from") if table.has("from") else None
        end = self.instant(table, "until", to=parse_end) if table.has("until") else None
        with table.at("until"):
            return Validity.between(begin, end)

    def instant(self, table: StrictMapping, key: str, to: Callable[[str], datetime] = parse_instant) -> datetime:
        """Read an instant."""
        text = table.take(key, str)
        with table.at(key):
            return to(text)


# ----------------------------------------------------------------------------------------------------------------------
# Write rule bases so that reading them gives the same rule base.


def write_rule_file(rules: RuleFile) -> dict[str, Written]:
    """Return a rule base as plain data, for `write_yaml`."""
    return _Writer(rules).rule_base()


class _Writer:
    """Writes one rule base; principals are written by name if the name is unique."""

    def __init__(self, rules: RuleFile) -> None:
        self._rules = rules
        called = [name for who, name in rules.names.items() if name != who.short]
        self._names = {who: name for who, name in rules.names.items() if name != who.short and called.count(name) == 1}

    def rule_base(self) -> dict[str, Written]:
        rules = self._rules
        tree = rules.vocabulary.tree
        parts: dict[str, Written] = {
            "title": rules.title,
            "scope": tree.scope.value,
            "mode": rules.mode.value,
            "principals": self._principals(),
            "owner": "" if rules.owner == principal_of(OWNER) else self._who(rules.owner),
            "types": {
                self._event(event): None if parent is None else self._event(parent)
                for event, parent in tree.parents.items()
            },
            "publishers": self._people(rules.vocabulary.publishers, rules.publishers),
            "subscribers": self._people(rules.vocabulary.subscribers, rules.subscribers),
            "customs": self._customs(rules.customs),
            "rules": self._stated(rules.rules),
            "subscriptions": self._stated(rules.subscriptions),
        }
        return {key: value for key, value in parts.items() if value}

    def _principals(self) -> dict[str, Written]:
        """Return the principals of names that must be listed."""
        return {name: str(who) for who, name in self._names.items() if who != principal_of(name)}

    def _who(self, principal: Principal) -> str:
        return self._names.get(principal, str(principal))

    def _event(self, event: TypeKey) -> str:
        return event.name if event.owner == self._rules.owner else f"{self._who(event.owner)}/{event.name}"

    def _people(self, schema: ProfileSchema, profiles: Mapping[Principal, Profile]) -> dict[str, Written]:
        parts: dict[str, Written] = {
            "attributes": {name: _spec(spec) for name, spec in schema.attributes.items()},
            "profiles": {
                self._who(who): {name: _value(value) for name, value in profile.values.items() if value is not None}
                for who, profile in profiles.items()
            },
        }
        return {key: value for key, value in parts.items() if value}

    def _customs(self, customs: Customs) -> dict[str, Written]:
        written: dict[str, Written] = {} if customs.resolve is None else {"resolve": customs.resolve.value}
        if customs.heuristic != NEWEST:
            written["heuristic"] = customs.heuristic.name
        if customs.speakers:
            written["speakers"] = [self._who(each) for each in sorted(customs.speakers)]
        if customs.tightening is not Tightening.FREE:
            written["tightening"] = customs.tightening.value
        return written

    def _stated(self, rules: Iterable[Rule]) -> list[Written]:
        return [self._rule(rule) for rule in rules]

    def _rule(self, rule: Rule) -> dict[str, Written]:
        by = self._who(rule.stated_by)
        written: dict[str, Written] = {"id": rule.id, "event": self._event(rule.event), "by": by}
        if isinstance(rule, PublishRule):
            if rule.publishers != (rule.stated_by,):
                written["publishers"] = [self._who(publisher) for publisher in rule.publishers]
            written |= self._function(RuleFunction.P, rule.fnc_p) | self._function(RuleFunction.S, rule.fnc_s)
        else:
            if rule.subscriber != rule.stated_by:
                written["subscriber"] = self._who(rule.subscriber)
            written |= self._function(RuleFunction.P, rule.fnc_p)
        return {**written, **_period(rule.validity)}

    def _function(self, function: RuleFunction, selector: Selector) -> dict[str, Written]:
        schema = self._rules.vocabulary.profiles(function).attributes
        return {} if selector == ALWAYS else {function.value: _selector(selector, schema)}


def _spec(spec: AttributeSpec) -> Written:
    match spec.domain:
        case Enumerated(values):
            listed = sorted(map(_value, values), key=str)
            return listed if spec.kind is Kind.STRING else {"kind": spec.kind.value, "values": listed}
        case Ranged(low, high) if spec.kind is Kind.TIMESTAMP:
            return {"kind": spec.kind.value, "min": _value(low), "max": _value(high)}
        case Ranged(low, high):
            return {"min": _value(low), "max": _value(high)}
    return spec.kind.value


def _selector(selector: Selector, schema: Schema) -> Written:
    """Return attributes and their values if they are read as the same function; otherwise the condition."""
    listed = AttributeList.from_selector(selector)
    if listed is None or listed.selector != selector or not all(_is_plain(entry, schema) for entry in listed.entries):
        return selector.text
    written: dict[str, Written] = {}
    bounds: dict[str, Written]
    for name, entries in groupby(listed.entries, key=lambda entry: entry.name):
        bounds = {entry.bound.value: _value(entry.value) for entry in entries}
        if Bound.IS in bounds and len(bounds) > 1:
            # A mapping cannot contain both a value and a bound.
            return selector.text
        written[name] = bounds.get(Bound.IS, bounds)
    return written


def _is_plain(entry: ListEntry, schema: Schema) -> bool:
    """Return whether YAML has values of this kind, and this value is read back unchanged."""
    spec = schema.get(entry.name)
    made = spec is not None and spec.kind is Kind.FLOAT and not isinstance(entry.value, float)
    return not made and not isinstance(entry.value, datetime)


def _value(value: Value) -> str | int | float | bool:
    return _instant(value) if isinstance(value, datetime) else value


def _instant(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _period(validity: Validity) -> dict[str, Written]:
    ends = (("from", validity.starts), ("until", validity.ends))
    return {key: _instant(end) for key, end in ends if end is not None}

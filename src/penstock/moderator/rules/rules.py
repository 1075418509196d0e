"""Rules: what publishers and subscribers state about one event type (paper 1, section II), and how rules conflict.

    (publish-rule (id <id>) (event <owner> <name>) (publishers <principal> …)
                  (fnc-p <selector>) (fnc-s <selector>) (valid …) (stated-by <principal>))
    (subscribe-rule (id <id>) (event <owner> <name>) (subscriber <principal>)
                    (fnc-p <selector>) (valid …) (stated-by <principal>))

`P.publish(e, fnc_p, fnc_s)`: only publishers whose profiles satisfy `fnc_p` publish events of type `e`, and only
subscribers whose profiles satisfy `fnc_s` receive them. `S.subscribe(e, fnc_p)`: S wants them only from such
publishers. A rule is a claim that is signed by whoever stated it (`penstock.trust.signed`); a `Vocabulary` checks which
types and attributes it may name.

Functions are often attribute lists, as in the algorithms and examples of paper 1 (section III-A):

    {(role, engineer), (age, max, 18)}

An alphabetic attribute has its one value, a numeric one its minimum or maximum; all entries must match. A list is
only a conjunction in the selector language: rules carry `AttributeList.selector`.
"""

import re
from collections.abc import Collection, Iterable, Sized
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import Annotated, ClassVar, Final, TypeAlias

from penstock.codec.sexp import Form, ListForm, SExp, text
from penstock.errors import LimitError, MalformedError
from penstock.model.names import TypeKey, check_attribute_name
from penstock.model.principals import Principal
from penstock.model.profiles import Profile
from penstock.model.tree import TreeScope
from penstock.model.values import Value, canonical, kind_of
from penstock.moderator.limits import MODERATOR_FUNCTIONS, MODERATOR_ID_LENGTH, MODERATOR_PUBLISHERS
from penstock.selector import ALWAYS, Selector, conjunction, conjuncts, equals, parse
from penstock.selector.ast import And, AttributeReference, Between, Compare, ComparisonOperator, Condition, Literal, Not
from penstock.selector.selector import compares
from penstock.trust.limits import MODERATOR_LIST
from penstock.trust.signed import Claim, malformed, read_owner
from penstock.trust.validity import ALWAYS as FOREVER
from penstock.trust.validity import ValidityField


class Bound(StrEnum):
    """The condition of an entry: this value, at least this value, or at most this value."""

    IS = "is"
    MIN = "min"
    MAX = "max"


_COMPARISONS: Final = {
    Bound.IS: ComparisonOperator.EQ,
    Bound.MIN: ComparisonOperator.GE,
    Bound.MAX: ComparisonOperator.LE,
}
_BOUNDS: Final = {comparison: bound for bound, comparison in _COMPARISONS.items()}


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One attribute of a list. Raises `MalformedError` (`name.malformed`, `moderator.list`)."""

    name: str
    value: Value
    bound: Bound = Bound.IS

    def __post_init__(self) -> None:
        check_attribute_name(self.name)
        kind_of(self.value)
        if self.bound is not Bound.IS and isinstance(self.value, bool | str):
            raise MalformedError(
                "moderator.list",
                f"attribute `{self.name}`: only numbers and timestamps can have a minimum or a maximum",
            )
        object.__setattr__(self, "value", canonical(self.value))

    @property
    def order(self) -> tuple[str, str]:
        """The attribute and the bound; a list has at most one entry for each."""
        return (self.name, self.bound)

    @property
    def selector(self) -> Selector:
        """The entry as a condition."""
        if self.bound is Bound.IS:
            return equals(self.name, self.value)
        return compares(self.name, _COMPARISONS[self.bound], self.value)

    def __str__(self) -> str:
        bound = "" if self.bound is Bound.IS else f"{self.bound}, "
        return f"({self.name}, {bound}{self.value})"


@dataclass(frozen=True, slots=True)
class AttributeList:
    """Entries that must all match, ordered by name.

    Raises `MalformedError`: `moderator.empty-list`, `moderator.list` (two entries with the same attribute and bound);
    `LimitError` (`moderator.limit`).

    >>> from penstock.selector import parse
    >>> people = AttributeList.of(ListEntry("role", "engineer"), ListEntry("age", 18, Bound.MAX))
    >>> print(people, people.selector.text, sep="  ")
    {(age, max, 18), (role, engineer)}  age <= 18 AND role = 'engineer'
    >>> AttributeList.from_selector(parse("role = 'engineer' AND 18 >= age")) == people
    True
    """

    entries: tuple[ListEntry, ...]
    selector: Selector = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ordered = tuple(sorted(dict.fromkeys(self.entries), key=lambda entry: entry.order))
        if not ordered:
            raise MalformedError(
                "moderator.empty-list", "an attribute list has no entries", hint="write TRUE to admit everybody"
            )
        _check_length(ordered)
        for one, other in pairwise(ordered):
            if one.order == other.order:
                raise MalformedError("moderator.list", f"attribute `{one.name}` is in a list twice")
        object.__setattr__(self, "entries", ordered)
        object.__setattr__(self, "selector", conjunction(*(entry.selector for entry in ordered)))

    @classmethod
    def of(cls, *entries: ListEntry) -> "AttributeList":
        """Build a list."""
        return cls(entries)

    @classmethod
    def from_selector(cls, selector: Selector) -> "AttributeList | None":
        """Return the list that is equal to a condition, however it is written; None if there is none.

        TRUE is not a list: it has no entries.
        """
        found = _read(selector)
        return None if found is None else cls(found)

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.entries)) + "}"


def listed(selector: Selector) -> frozenset[ListEntry]:
    """Return the entries of a function that Algorithm 1 can read; TRUE has none.

    Raises `MalformedError` (`moderator.not-a-list`) for all other formulas.
    """
    if selector == ALWAYS:
        return frozenset()
    found = _read(selector)
    if found is None:
        raise MalformedError(
            "moderator.not-a-list",
            "the algorithm of the paper compares attribute lists, and this function is not one",
            hint="use the mode `scoped`, which reads every formula",
        )
    _check_length(found)
    return frozenset(found)


def parts(selector: Selector) -> tuple[Selector, ...]:
    """Return the parts of a function: its conjuncts; TRUE has none."""
    return () if selector == ALWAYS else conjuncts(selector)


def _read(selector: Selector) -> tuple[ListEntry, ...] | None:
    """Return the entries of a condition that is a list; None if it is not."""
    found: dict[tuple[str, str], ListEntry] = {}
    for part in (selector.root,) if not isinstance(selector.root, And) else selector.root.operands:
        entries = _entries(part)
        if entries is None:
            return None
        for entry in entries:
            kept = found.get(entry.order)
            stricter = entry if kept is None else _stricter(kept, entry)
            if stricter is None:
                return None
            found[entry.order] = stricter
    return tuple(found.values())


def _check_length(entries: Sized) -> None:
    if len(entries) > MODERATOR_LIST:
        raise LimitError("moderator.limit", f"an attribute list has more than {MODERATOR_LIST} entries")


def _stricter(one: ListEntry, other: ListEntry) -> ListEntry | None:
    """Return the entry that is equal to two entries of one attribute together; None if there is none."""
    if one == other:
        return one
    # `Vocabulary.check` finds kinds that cannot be compared.
    if one.bound is Bound.IS or type(one.value) is not type(other.value):
        return None
    least = one.value < other.value  # type: ignore[operator]  # of one type, checked above
    return one if least is (one.bound is Bound.MAX) else other


def _entries(part: Condition) -> Iterable[ListEntry] | None:
    match part:
        case Compare(operator, AttributeReference(name), Literal(value)) | Compare(
            operator, Literal(value), AttributeReference(name)
        ):
            if isinstance(part.left, Literal):
                operator = operator.flipped
            bound = _BOUNDS.get(operator)
            return None if bound is None or value is None else _entry(name, value, bound)
        case Between(AttributeReference(name), Literal(low), Literal(high)) if low is not None and high is not None:
            ends = (_entry(name, low, Bound.MIN), _entry(name, high, Bound.MAX))
            return None if None in ends else [entry for end in ends if end for entry in end]
        case AttributeReference(name):
            return _entry(name, True, Bound.IS)
        case Not(AttributeReference(name)):
            return _entry(name, False, Bound.IS)
        case _:
            return None


def _entry(name: str, value: Value, bound: Bound) -> tuple[ListEntry, ...] | None:
    try:
        return (ListEntry(name, value, bound),)
    except MalformedError:
        return None


class Mode(StrEnum):
    """The definition of a conflict; docs/explanation/conflicts.md compares the three."""

    #: the functions as sets of profiles, and the scope of the tree
    SCOPED = "scoped"
    #: Algorithm 1, on attribute lists
    ALGORITHM = "algorithm"
    #: Definition 1, literally
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
    """The implications that are required between a candidate's function and that of a rule in force."""

    #: whoever satisfies the candidate's function satisfies the rule's
    candidate_implies: bool
    #: whoever satisfies the rule's function satisfies the candidate's
    rule_implies: bool


_EQUAL: Final = Demands(candidate_implies=True, rule_implies=True)
_BELOW: Final = Demands(candidate_implies=True, rule_implies=False)
_ABOVE: Final = Demands(candidate_implies=False, rule_implies=True)


def demands(kind: ConflictKind, scope: TreeScope, mode: Mode) -> Demands:
    """Return the required implications (paper 1, sections II and III-B).

    A right that reaches upwards is useful only if whoever has it below may have it above: the descendant's function
    implies the ancestor's. A right that reaches downwards requires the reverse. On one event type, and by Definition 1
    everywhere, the functions must be equal.
    """
    if kind is ConflictKind.SAME or mode is Mode.LITERAL:
        return _EQUAL
    return _BELOW if (kind is ConflictKind.UP) is (scope is TreeScope.UPWARD) else _ABOVE


@dataclass(frozen=True, slots=True)
class Conflict:
    """A conflict of a candidate with the rules on one event type that state the same function."""

    event: TypeKey
    #: the ids of the rules, sorted
    rules: tuple[str, ...]
    kind: ConflictKind
    function: RuleFunction
    #: parts of the rules' function that the candidate's lacks
    missing: tuple[Selector, ...] = ()
    #: parts of the candidate's function that the rules' lacks
    extra: tuple[Selector, ...] = ()
    #: a profile that only one function admits, and which one; None if the lists differ but admit the same profiles, or
    #: if it was not decided
    witness: Profile | None = None
    admitted_by: Party | None = None
    #: False if the solver did not decide in time; then the rules are treated as conflicting
    certain: bool = True

    @property
    def attributes(self) -> tuple[str, ...]:
        """The attributes at fault, sorted."""
        return tuple(sorted(frozenset().union(*(part.attributes for part in self.missing + self.extra))))


_KINDS: Final = {kind: number for number, kind in enumerate(ConflictKind)}
_NAMES: Final = attrgetter("event.owner.digest", "event.name", "function", "rules")


def in_order(conflicts: Iterable[Conflict]) -> tuple[Conflict, ...]:
    """Sort conflicts in the order that all detectors use: the same event, upwards, downwards; then by name."""
    return tuple(sorted(sorted(conflicts, key=_NAMES), key=lambda found: _KINDS[found.kind]))


_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*", re.ASCII)


# A log repeats functions: stated, requested, in force before and after.
@lru_cache(maxsize=MODERATOR_FUNCTIONS)
def _parsed(function: str) -> Selector:
    return parse(function)


def _read_event(parts: tuple[SExp, ...]) -> TypeKey:
    match parts:
        case (owner, name):
            return TypeKey(read_owner(owner), text(name))
    raise malformed("a rule must have one `(event <owner> <name>)`")


EventField = Annotated[TypeKey, ListForm(lambda event: (str(event.owner).encode(), event.name.encode()), _read_event)]
"""The `(event <owner> <name>)` of a rule."""
_FUNCTION: Final[Form[Selector]] = Form(lambda function: function.text.encode(), lambda value: _parsed(text(value)))


@dataclass(frozen=True, slots=True)
class PublishRule(Claim):
    """`P.publish(e, fnc_p, fnc_s)`; several publishers if they agreed on one rule (the paper's P_list).

    Raises `MalformedError` (`moderator.rule`), `LimitError` (`moderator.limit`).
    """

    HEAD: ClassVar = b"publish-rule"
    ORDER: ClassVar = ("id", "event", "publishers", "fnc_p", "fnc_s", "validity", "stated_by")
    SIGNER: ClassVar = "stated_by"
    id: str
    event: EventField
    publishers: tuple[Principal, ...]
    stated_by: Principal
    # These contain demands on others, which must not appear in logs.
    fnc_p: Annotated[Selector, _FUNCTION] = field(default=ALWAYS, repr=False)
    fnc_s: Annotated[Selector, _FUNCTION] = field(default=ALWAYS, repr=False)
    validity: ValidityField = FOREVER

    def __post_init__(self) -> None:
        _check_id(self.id)
        if not self.publishers or len(set(self.publishers)) != len(self.publishers):
            raise MalformedError("moderator.rule", f"rule `{self.id}` has no publisher, or lists one twice")
        if len(self.publishers) > MODERATOR_PUBLISHERS:
            raise LimitError("moderator.limit", f"a rule has more than {MODERATOR_PUBLISHERS} publishers")

    @property
    def speakers(self) -> frozenset[Principal]:
        """The principal that stated the rule, and those that it binds too."""
        return frozenset({self.stated_by, *self.publishers})

    def rests(self, away: Collection[Principal]) -> bool:
        """Return whether the rule is suspended while some are away: its author, or all its publishers."""
        return self.stated_by in away or all(publisher in away for publisher in self.publishers)

    def without(self, away: Collection[Principal]) -> "PublishRule":
        """Return the rule without the publishers that are away. Raises as the rule if none is left."""
        if not any(publisher in away for publisher in self.publishers):
            return self
        return replace(self, publishers=tuple(publisher for publisher in self.publishers if publisher not in away))


@dataclass(frozen=True, slots=True)
class SubscribeRule(Claim):
    """`S.subscribe(e, fnc_p)`. Raises `MalformedError` (`moderator.rule`), `LimitError` (`moderator.limit`)."""

    HEAD: ClassVar = b"subscribe-rule"
    ORDER: ClassVar = ("id", "event", "subscriber", "fnc_p", "validity", "stated_by")
    SIGNER: ClassVar = "stated_by"
    id: str
    event: EventField
    subscriber: Principal
    stated_by: Principal
    fnc_p: Annotated[Selector, _FUNCTION] = field(default=ALWAYS, repr=False)
    validity: ValidityField = FOREVER

    def __post_init__(self) -> None:
        _check_id(self.id)

    @property
    def speakers(self) -> frozenset[Principal]:
        """The principal that stated the rule, and the subscriber."""
        return frozenset({self.stated_by, self.subscriber})

    def rests(self, away: Collection[Principal]) -> bool:
        """Return whether the rule is suspended while some are away: its author or its subscriber."""
        return self.stated_by in away or self.subscriber in away


Rule: TypeAlias = PublishRule | SubscribeRule


def _check_id(rule_id: str) -> None:
    if not _ID.fullmatch(rule_id):
        raise MalformedError(
            "moderator.rule",
            f"`{rule_id[:80]}` is not a rule id",
            hint="allowed: ASCII letters, digits, `.`, `_`, `:` and `-`, beginning with a letter or a digit",
        )
    if len(rule_id) > MODERATOR_ID_LENGTH:
        raise LimitError("moderator.limit", f"a rule id has more than {MODERATOR_ID_LENGTH} characters")

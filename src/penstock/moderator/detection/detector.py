"""Detect conflicts of a candidate among many rules, at a cost that hardly depends on their number.

Only rules on the path to the root and in the subtree can conflict with a candidate. The path is short (`type_depth`).
The subtree is an interval of places, and summaries of its parts (`SummaryTree`) skip all rules that certainly fit, so
that the cost is that of the conflicts that are found.

While no conflicting rule was put in force, two more facts hold, because inclusion is transitive. All rules on one event
type state the same, so a candidate that states it too has no conflicts. If the nearest rule above fits, all rules
further above fit; if a rule below fits, all rules below that one fit.

Rules of a snapshot are deferred: they are kept by event type and are not read until a question is about a type above or
below theirs.

`find_conflicts` is the reference: Algorithm 1 of paper 1, short and slow. `Detector` gives the same answers, except
that it can know from another rule that a rule fits, if the solver gave up on that pair and the reference calls it
undecided.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from typing import Any, Final, Generic, Protocol, Self, TypeAlias, TypeVar

from penstock.errors import MalformedError, PenstockError
from penstock.model.names import TypeKey
from penstock.model.tree import TreeScope, TypeTree
from penstock.moderator.detection.judge import (
    Difference,
    FunctionForm,
    PlainJudge,
    QuickJudge,
    Side,
    conflicts_between,
    conflicts_with,
    differences,
    of_two,
)
from penstock.moderator.limits import MODERATOR_LIMITS, ModeratorLimits
from penstock.moderator.rules.rule_blocks import false_snapshot
from penstock.moderator.rules.rules import (
    Conflict,
    ConflictKind,
    ListEntry,
    Mode,
    PublishRule,
    RuleFunction,
    demands,
    in_order,
)
from penstock.moderator.rules.vocabulary import Vocabulary
from penstock.selector import Selector
from penstock.selector.algebra import Box
from penstock.trust.caches import Recent

# ----------------------------------------------------------------------------------------------------------------------
# An ordered map from places to summaries of the functions stated there, with a summary for each range of places.
#
# It is a B+-tree: leaves hold places in order, branches hold children, and each node has the summary of everything
# below. A walk along an interval skips ranges whose summary settles the question, and costs a few steps for each place
# at which it stops. Additions update the summaries on their path, removals rebuild them; small nodes are not merged,
# and are removed when they are empty.
#
# Summaries let functions that certainly fit a candidate be skipped together. Below a candidate the scope of the tree
# requires one of two things of each function in force (`demands`). Either it implies the candidate's: then a box around
# all functions, and the parts that all of them have, are enough. Or the candidate's implies it: then a box inside all
# functions, and the parts that any of them has, are enough. Both are exact for attribute lists: a box lies around, or
# inside, several boxes if and only if it does so for each. Algorithm 1 compares entries in the same two ways.
# Definition 1 requires equality: then a summary is the text that all functions share, if they do.
#
# A summary can say less than is known (then `fits` is False, and the functions are examined), but never more.


#: places of a leaf, and children of a branch
_FULL: Final = 32


class Mergeable(Protocol):
    """The operations of a summary."""

    def merged(self, other: Self) -> Self:
        """Return the summary of both; the same object if nothing is new."""


M = TypeVar("M", bound=Mergeable)


@dataclass(slots=True)
class Walk(Generic[M]):
    """A walk from one place to another, which stops where the summary does not settle the question.

    The caller can advance `start` meanwhile; places before it are skipped.
    """

    start: bytes
    end: bytes
    doubtful: Callable[[M], bool]


class _Leaf(Generic[M]):
    __slots__ = ("items", "places", "summary")

    def __init__(self, places: list[bytes], items: list[M]) -> None:
        self.places = places
        self.items = items
        self.summary = reduce(_merged, items)

    def add(self, place: bytes, summary: M) -> bool:
        """Add a statement at a place; return whether the summary has changed."""
        at = bisect_left(self.places, place)
        if at < len(self.places) and self.places[at] == place:
            self.items[at] = self.items[at].merged(summary)
        else:
            self.places.insert(at, place)
            self.items.insert(at, summary)
        before = self.summary
        self.summary = before.merged(summary)
        return self.summary is not before

    def split(self) -> "tuple[bytes, _Leaf[M]]":
        half = len(self.items) // 2
        right = _Leaf(self.places[half:], self.items[half:])
        del self.places[half:], self.items[half:]
        self.summary = reduce(_merged, self.items)
        return right.places[0], right

    def replace(self, place: bytes, summary: M | None) -> None:
        at = bisect_left(self.places, place)
        if summary is not None:
            self.items[at] = summary
        else:
            del self.places[at], self.items[at]
        if self.items:
            self.summary = reduce(_merged, self.items)

    def walk(self, walk: "Walk[M]") -> Iterator[bytes]:
        at = bisect_left(self.places, walk.start)
        while at < len(self.places) and self.places[at] < walk.end:
            if walk.doubtful(self.items[at]):
                yield self.places[at]
                at = bisect_left(self.places, walk.start, at + 1)
            else:
                at += 1


class _Branch(Generic[M]):
    __slots__ = ("items", "places", "summary")

    def __init__(self, places: list[bytes], items: "list[_Node[M]]") -> None:
        #: the first place of each child but the first
        self.places = places
        self.items = items
        self.summary = self._sum()

    def _sum(self) -> M:
        return reduce(_merged, (item.summary for item in self.items))

    def split(self) -> "tuple[bytes, _Branch[M]]":
        half = len(self.items) // 2
        divider = self.places[half - 1]
        right = _Branch(self.places[half:], self.items[half:])
        del self.places[half - 1 :], self.items[half:]
        self.summary = self._sum()
        return divider, right

    def replace(self, place: bytes, summary: M | None) -> None:
        at = bisect_right(self.places, place)
        child = self.items[at]
        child.replace(place, summary)
        if not child.items:
            del self.items[at], self.places[max(at - 1, 0) : max(at, 1)]
        if self.items:
            self.summary = self._sum()

    def walk(self, walk: "Walk[M]") -> Iterator[bytes]:
        at, last = bisect_right(self.places, walk.start), bisect_left(self.places, walk.end)
        # Descending costs less than a comparison.
        if at == last:
            yield from self.items[at].walk(walk)
            return
        while at <= last:
            if walk.doubtful(self.items[at].summary):
                yield from self.items[at].walk(walk)
            at = max(at + 1, bisect_right(self.places, walk.start))


_Node: TypeAlias = _Leaf[M] | _Branch[M]


class SummaryTree(Generic[M]):
    """The ordered map from places to summaries."""

    def __init__(self) -> None:
        self._root: _Node[M] | None = None

    def add(self, place: bytes, summary: M) -> None:
        """Merge a statement into the summary of its place."""
        if self._root is None:
            self._root = _Leaf([place], [summary])
            return
        way: list[tuple[_Branch[M], int]] = []
        node = self._root
        while isinstance(node, _Branch):
            at = bisect_right(node.places, place)
            way.append((node, at))
            node = node.items[at]
        # A statement that does not change a node does not change the nodes above it.
        if node.add(place, summary):
            for branch, _ in reversed(way):
                merged = branch.summary.merged(summary)
                if merged is branch.summary:
                    break
                branch.summary = merged
        if len(node.items) > _FULL:
            self._split(node, way)

    def _split(self, node: _Node[M], way: list[tuple[_Branch[M], int]]) -> None:
        """Split a node that is too full, and the nodes above it if they become too full."""
        while len(node.items) > _FULL:
            divider, right = node.split()
            if not way:
                self._root = _Branch([divider], [node, right])
                return
            above, at = way.pop()
            above.places.insert(at, divider)
            above.items.insert(at + 1, right)
            node = above

    def replace(self, place: bytes, summary: M | None) -> None:
        """Replace the summary of a place, which must exist; None removes it."""
        if self._root is not None:
            self._root.replace(place, summary)
            if not self._root.items:
                self._root = None

    def walk(self, walk: Walk[M]) -> Iterator[bytes]:
        """Yield the places on a walk whose summaries are doubtful, in order.

        If the test doubts a summary, it must doubt every summary into which that one is merged.
        """
        if self._root is not None:
            yield from self._root.walk(walk)


def _merged(one: M, other: M) -> M:
    return one.merged(other)


# ----------------------------------------------------------------------------------------------------------------------
# Summaries.


#: at most so many ranges of one value set, and parts or entries, are kept in a summary
_SPANS: Final = 16
_PARTS: Final = 64


class Summary(Protocol):
    """A summary of some functions."""

    def merged(self, other: Any) -> Any:  # a summary of the same class, which a protocol cannot say
        """Return the summary of both; the same object if nothing is new."""

    def fits(self, form: FunctionForm, side: Side) -> bool:
        """Return whether a candidate's function certainly conflicts with none of them."""


Summarise: TypeAlias = Callable[[FunctionForm], Summary]


def summarise(scope: TreeScope, mode: Mode) -> Summarise:
    """Return the kind of summary for functions below a candidate."""
    if mode is Mode.LITERAL:
        return lambda form: OneText(form.selector.text)
    if demands(ConflictKind.DOWN, scope, mode).rule_implies:
        if mode is Mode.ALGORITHM:
            return lambda form: CommonEntries(form.entries)
        return lambda form: Around(form.box, form.rest)
    if mode is Mode.ALGORITHM:
        return lambda form: AllEntries(form.entries)
    return lambda form: Inside(form.box, form.rest)


@dataclass(frozen=True, slots=True)
class Around:
    """A box around all functions, and the other parts that all have: do they imply the candidate's?"""

    box: Box
    rest: frozenset[Selector]

    def merged(self, other: "Around") -> "Around":
        """Return the summary of both; the same object if nothing is new."""
        rest = self.rest if self.rest <= other.rest else self.rest & other.rest
        box, same = dict(self.box), rest is self.rest
        for name, values in self.box.items():
            theirs = other.box.get(name)
            if theirs is not None and values.holds(theirs):
                continue
            same = False
            union = None if theirs is None else values | theirs
            if union is None or len(union.spans) > _SPANS:
                del box[name]
            else:
                box[name] = union
        return self if same else Around(box, rest)

    def fits(self, form: FunctionForm, side: Side) -> bool:
        """Return whether all functions certainly imply the candidate's."""
        return side.within(self.box, form.box) and all(
            part in self.rest or any(side.implies(known, part) for known in self.rest) for part in form.rest
        )


@dataclass(frozen=True, slots=True)
class Inside:
    """A box inside all functions, and the other parts that any has: does the candidate's imply them?

    The box is None if they have nothing in common.
    """

    box: Box | None
    rest: frozenset[Selector]

    def merged(self, other: "Inside") -> "Inside":
        """Return the summary of both; the same object if nothing is new."""
        rest = self.rest if other.rest <= self.rest else self.rest | other.rest
        if self.box is None or other.box is None or len(rest) > _PARTS:
            return self if self.box is None else Inside(None, frozenset())
        box, same = dict(self.box), rest is self.rest
        for name, values in other.box.items():
            ours = self.box.get(name)
            if ours is not None and values.holds(ours):
                continue
            same = False
            common = values if ours is None else ours & values
            if common.empty or len(common.spans) > _SPANS:
                return Inside(None, frozenset())
            box[name] = common
        return self if same else Inside(box, rest)

    def fits(self, form: FunctionForm, side: Side) -> bool:
        """Return whether the candidate's function certainly implies all others."""
        return (
            self.box is not None
            and side.within(form.box, self.box)
            and all(part in form.rest or side.implies(form.selector, part) for part in self.rest)
        )


@dataclass(frozen=True, slots=True)
class CommonEntries:
    """The entries that all lists have: do these contain the candidate's?"""

    entries: frozenset[ListEntry]

    def merged(self, other: "CommonEntries") -> "CommonEntries":
        """Return the summary of both; the same object if nothing is new."""
        return self if self.entries <= other.entries else CommonEntries(self.entries & other.entries)

    def fits(self, form: FunctionForm, side: Side) -> bool:  # noqa: ARG002  # lists have no boxes; the protocol
        """Return whether all lists contain the candidate's."""
        return form.entries <= self.entries


@dataclass(frozen=True, slots=True)
class AllEntries:
    """The entries that any list has, unless they are too many: does the candidate's contain them?"""

    entries: frozenset[ListEntry] | None

    def merged(self, other: "AllEntries") -> "AllEntries":
        """Return the summary of both; the same object if nothing is new."""
        if self.entries is None:
            return self
        if other.entries is None or len(union := self.entries | other.entries) > _PARTS:
            return AllEntries(None)
        return self if len(union) == len(self.entries) else AllEntries(union)

    def fits(self, form: FunctionForm, side: Side) -> bool:  # noqa: ARG002  # lists have no boxes; the protocol
        """Return whether the candidate's list contains all others."""
        return self.entries is not None and self.entries <= form.entries


@dataclass(frozen=True, slots=True)
class OneText:
    """The text that all functions share; None if they differ."""

    text: str | None

    def merged(self, other: "OneText") -> "OneText":
        """Return the summary of both; the same object if nothing is new."""
        return self if self.text is None or self.text == other.text else OneText(None)

    def fits(self, form: FunctionForm, side: Side) -> bool:  # noqa: ARG002  # texts have no boxes; the protocol
        """Return whether all functions equal the candidate's."""
        return form.selector.text == self.text


def find_conflicts(
    candidate: PublishRule,
    rules: Iterable[PublishRule],
    vocabulary: Vocabulary,
    mode: Mode = Mode.SCOPED,
    *,
    limits: ModeratorLimits = MODERATOR_LIMITS,
) -> tuple[Conflict, ...]:
    """Return all conflicts of a candidate with rules in force, one rule after the other (Algorithm 1).

    The candidate itself is left out if it is among them.

    Raises `MalformedError` (`moderator.not-a-list`) in the mode `algorithm`.
    """
    judge = PlainJudge(vocabulary, mode, limits=limits)
    found: dict[tuple[TypeKey, str, str, RuleFunction], Conflict] = {}
    for rule in rules:
        kind = relation(vocabulary.tree, candidate.event, rule.event)
        if kind is None or rule.id == candidate.id:
            continue
        for conflict in conflicts_between(candidate, [rule], kind, vocabulary.tree.scope, judge):
            stated = (rule.event, rule.fnc_p.text, rule.fnc_s.text, conflict.function)
            others = found[stated].rules if stated in found else ()
            found[stated] = replace(conflict, rules=tuple(sorted((*others, rule.id))))
    return in_order(found.values())


def relation(tree: TypeTree, event: TypeKey, other: TypeKey) -> ConflictKind | None:
    """Return the relation of `other` to `event` in the tree; None if they are not related."""
    if event == other:
        return ConflictKind.SAME
    if tree.is_sub(event, other):
        return ConflictKind.UP
    return ConflictKind.DOWN if tree.is_sub(other, event) else None


# ----------------------------------------------------------------------------------------------------------------------
# Places of event types: keys in which a subtree is an interval, and which stay the same when types are added.
#
# A place is the path from the root, a number of four bytes per level, counted among siblings: as bytes, places sort in
# pre-order, parents first. All places below a type begin with its own place, so they form an interval. A new type gets
# the next number below its parent; other places do not change.


#: bytes of one level
STEP: Final = 4
_AFTER: Final = b"\xff" * STEP

S = TypeVar("S")


@dataclass(slots=True, eq=False)
class Spot(Generic[S]):
    """An event type: its place, and the sorted ids of the rules on it, grouped by statement."""

    event: TypeKey
    place: bytes
    above: "Spot[S] | None"
    stated: dict[S, list[str]] = field(default_factory=dict)
    #: the number of child branches with rules
    below: int = 0
    #: the number of places given to children
    numbered: int = 0

    def begin(self) -> None:
        """Count this type at the types above it, before its first rules are added."""
        spot = self
        live = bool(spot.stated or spot.below)
        while not live and spot.above is not None:
            spot = spot.above
            live = bool(spot.stated or spot.below)
            spot.below += 1

    def end(self) -> None:
        """Stop counting this type at the types above it: it has no rules any more."""
        spot = self
        while not (spot.stated or spot.below) and spot.above is not None:
            spot.above.below -= 1
            spot = spot.above


class TypePlaces(Generic[S]):
    """The places of the types of one tree, assigned on first use."""

    def __init__(self, tree: TypeTree) -> None:
        self._tree = tree
        self._roots = 0
        #: places that are assigned
        self.known: dict[TypeKey, Spot[S]] = {}

    def spot(self, event: TypeKey) -> Spot[S]:
        """Return the place of a type, which must be in the tree."""
        found = self.known.get(event)
        if found is None:
            parent = self._tree.parents[event]
            above = None if parent is None else self.spot(parent)
            if above is None:
                place = self._roots.to_bytes(STEP, "big")
                self._roots += 1
            else:
                place = above.place + above.numbered.to_bytes(STEP, "big")
                above.numbered += 1
            found = self.known[event] = Spot(event, place, above)
        return found

    def follow(self, tree: TypeTree) -> list[Spot[S]]:
        """Switch to a changed tree; return the old places of types that were moved or removed."""
        before, self._tree = self._tree, tree
        changed: dict[TypeKey, bool] = {}

        def has_moved(event: TypeKey) -> bool:
            if event not in changed:
                parent = tree.parents.get(event)
                same = event in tree and parent == before.parents[event]
                changed[event] = not same or (parent is not None and has_moved(parent))
            return changed[event]

        moved = [spot for event, spot in self.known.items() if has_moved(event)]
        for spot in moved:
            del self.known[spot.event]
        return moved


def after(place: bytes) -> bytes:
    """Return the end of the interval of a subtree, which begins with its own place."""
    return place + _AFTER


# ----------------------------------------------------------------------------------------------------------------------
# The detector.


@dataclass(frozen=True, slots=True, eq=False)
class _Both:
    """Summaries of both functions."""

    p: Summary
    s: Summary

    def merged(self, other: "_Both") -> "_Both":
        if other is self:
            return self
        p = self.p if other.p is self.p else self.p.merged(other.p)
        s = self.s if other.s is self.s else self.s.merged(other.s)
        return self if p is self.p and s is self.s else _Both(p, s)


@dataclass(slots=True, eq=False)
class _Statement:
    """Two checked functions, shared by all rules that state them."""

    p: FunctionForm
    s: FunctionForm
    both: _Both
    #: the number of rules in force that state it
    rules: int = 0


@dataclass(slots=True, eq=False)
class _Candidate:
    """A rule, its statement, the place of its event type, and its own place if it is in force in any form."""

    rule: PublishRule
    statement: _Statement
    spot: Spot[_Statement]
    own: Spot[_Statement] | None


Deferred: TypeAlias = Sequence[tuple[str, str, Sequence[str]]]
"""For an event type: the functions for publishers and for subscribers, and the ids of the rules that state them."""

Fetch: TypeAlias = Callable[[str], PublishRule]
"""Reads a rule in force by its id."""


def _nothing_deferred(rule_id: str) -> PublishRule:
    raise KeyError(rule_id)


class _InForce(Mapping[str, PublishRule]):
    """The rules in force, by id; they are read on first use."""

    def __init__(self, detector: "Detector") -> None:
        self._detector = detector

    def __getitem__(self, rule_id: str) -> PublishRule:
        return self._detector.rule(rule_id)

    def __contains__(self, rule_id: object) -> bool:
        return rule_id in self._detector.ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._detector.ids)

    def __len__(self) -> int:
        return len(self._detector.ids)


class Detector:
    """Find the conflicts of a candidate with the rules in force."""

    def __init__(
        self, vocabulary: Vocabulary, mode: Mode = Mode.SCOPED, *, limits: ModeratorLimits = MODERATOR_LIMITS
    ) -> None:
        self.mode = mode
        self._vocabulary = vocabulary
        self._limits = limits
        self._judge = QuickJudge(vocabulary, mode, limits=limits)
        self._of_p, self._of_s = self._judge.side(RuleFunction.P), self._judge.side(RuleFunction.S)
        self._summarise = summarise(vocabulary.tree.scope, mode)
        self._places: TypePlaces[_Statement] = TypePlaces(vocabulary.tree)
        #: None for deferred rules that have not been read
        self._rules: dict[str, PublishRule | None] = {}
        self._deferred: dict[TypeKey, Deferred] = {}
        #: event types for which all deferred rules have been read
        self._read: set[TypeKey] = set()
        self._fetch: Fetch = _nothing_deferred
        #: the types with rules, by their places
        self._standing: dict[bytes, Spot[_Statement]] = {}
        self._index: SummaryTree[_Both] = SummaryTree()
        #: contains at least one of any two rules that conflict
        self._doubtful: dict[str, None] = {}
        #: by the texts of both functions; statements without rules are dropped when there are too many
        self._statements: dict[tuple[str, str], _Statement] = {}
        self._room = limits.moderator_answers
        self._compared: Recent[tuple[ConflictKind, _Statement, _Statement], tuple[Difference, ...]] = Recent(
            limits.moderator_answers
        )

    @property
    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary of rules."""
        return self._vocabulary

    @property
    def rules(self) -> Mapping[str, PublishRule]:
        """The rules in force, by their ids."""
        return _InForce(self)

    def on(self, event: TypeKey) -> tuple[PublishRule, ...]:
        """Return the rules in force on an event type, by their ids."""
        self.read_about(event)
        spot = self._places.known.get(event)
        found = () if spot is None else chain.from_iterable(spot.stated.values())
        return tuple(self.rule(rule_id) for rule_id in sorted(found))

    def rule(self, rule_id: str) -> PublishRule:
        """Return a rule in force. Raises `KeyError`, and what reading deferred rules raises."""
        found = self._rules[rule_id]
        if found is None:
            found = self._rules[rule_id] = self._fetch(rule_id)
        return found

    @property
    def ids(self) -> KeysView[str]:
        """The ids of the rules in force."""
        return self._rules.keys()

    # --- questions ----------------------------------------------------------------------------------------------

    def conflicts(self, candidate: PublishRule) -> tuple[Conflict, ...]:
        """Return all conflicts of a candidate with the rules in force, except a rule with the same id.

        Raises what `Vocabulary.check` raises, and `MalformedError` (`moderator.not-a-list`) in the mode `algorithm`.
        """
        return self._find(self._check(candidate))

    def blocker(self, candidate: PublishRule, besides: Collection[str]) -> str | None:
        """Return the id of a rule in force that a candidate conflicts with, except some rules.

        Raises as `conflicts`.
        """
        ids = (rule_id for found in self._each(self._check(candidate)) for rule_id in found.rules)
        return next((rule_id for rule_id in ids if rule_id not in besides), None)

    def review(self) -> Iterator[tuple[PublishRule, tuple[Conflict, ...]]]:
        """Yield each rule that was put in force unchecked, and its conflicts; without conflicts it becomes certain."""
        for rule in [self.rule(rule_id) for rule_id in self._doubtful]:
            found = self._find(self._check(rule))
            if not found:
                self._doubtful.pop(rule.id, None)
            yield rule, found

    # --- changes ------------------------------------------------------------------------------------------------

    def defer(self, event: TypeKey, stated: Deferred, fetch: Fetch) -> None:
        """Put rules on one event type in force, to be read with `fetch` when a question concerns them.

        The first such question raises `RefusedError` (`moderator.book`) if they differ from the statement, or conflict.

        Raises `MalformedError` (`moderator.unknown-type`, `moderator.duplicate-id`).
        """
        if not stated:
            # The event type may have been removed, and with it all rules in force.
            return
        self._vocabulary.check_type(event)
        for _, _, ids in stated:
            if not ids or not self._rules.keys().isdisjoint(ids):
                raise MalformedError("moderator.duplicate-id", "a rule in force is listed twice")
            self._rules.update(dict.fromkeys(ids))
        self._deferred[event] = stated
        self._fetch = fetch

    def read_about(self, event: TypeKey) -> None:
        """Read and compare the deferred rules on an event type, and on the types above and below it.

        Raises `RefusedError` (`moderator.book`), on every call, if `defer` received something false.
        """
        if not self._deferred or event in self._read:
            return
        tree = self._vocabulary.tree
        for each in (*tree.ancestors(event), *tree.subtree(event)):
            for fnc_p, fnc_s, ids in self._deferred.get(each, ()):
                rule, spot = self.rule(ids[0]), self._places.spot(each)
                if (rule.event, *_texts(rule)) != (each, fnc_p, fnc_s):
                    raise false_snapshot("lists other functions than rules in force have")
                try:
                    candidate = _Candidate(rule, self._statements.get(_texts(rule)) or self._state(rule), spot, None)
                    conflicting = any(True for _ in self._each(candidate))
                except PenstockError as error:
                    raise false_snapshot("has rules in force that cannot be") from error
                if conflicting:
                    raise false_snapshot("has rules in force that conflict")
                if candidate.statement not in spot.stated:
                    self._put(candidate, ids)
            # Refused rules stay deferred, and are refused again: no question is answered without them.
            self._deferred.pop(each, None)
        self._read.add(event)

    def add(self, rule: PublishRule) -> tuple[Conflict, ...]:
        """Put a rule in force unless it conflicts; return its conflicts.

        Raises what `conflicts` raises, and `MalformedError` (`moderator.duplicate-id`). Then nothing is changed.
        """
        candidate = self._check_new(rule)
        found = self._find(candidate)
        if not found:
            self._put(candidate)
        return found

    def put(self, rule: PublishRule) -> None:
        """Put a rule in force without looking for conflicts, for example one of an existing rule base.

        Raises what `add` raises.
        """
        self._put(self._check_new(rule))
        self._doubtful[rule.id] = None

    def remove(self, rule_id: str) -> PublishRule:
        """Remove a rule from the rules in force. Raises `MalformedError` (`moderator.unknown-rule`)."""
        if rule_id not in self._rules:
            raise MalformedError("moderator.unknown-rule", f"no rule in force is called `{rule_id[:80]}`")
        rule = self.rule(rule_id)
        self.read_about(rule.event)
        spot = self._places.spot(rule.event)
        statement = self._statements[_texts(rule)]
        same = spot.stated[statement]
        del self._rules[rule_id], same[bisect_left(same, rule_id)]
        self._doubtful.pop(rule_id, None)
        statement.rules -= 1
        if not same:
            del spot.stated[statement]
            parts = [stated.both for stated in spot.stated]
            self._index.replace(spot.place, reduce(_Both.merged, parts) if parts else None)
            if not parts:
                del self._standing[spot.place]
                spot.end()
        return rule

    def follow(self, tree: TypeTree) -> None:
        """Switch to a changed tree of the same scope; rules on moved types become doubtful.

        Raises `MalformedError` (`moderator.unknown-type`) if a rule is on a removed type. Then nothing is changed.
        """
        for event in [*self._deferred]:
            self.read_about(event)
        vocabulary = replace(self._vocabulary, tree=tree)
        for standing in self._standing.values():
            vocabulary.check_type(standing.event)
        if tree.scope is not self._vocabulary.tree.scope:
            raise MalformedError(
                "moderator.scope", "the tree has another scope", hint="create a detector for that tree"
            )
        self._vocabulary = vocabulary
        moved: list[str] = []
        for spot in self._places.follow(tree):
            if spot.stated:
                del self._standing[spot.place]
                self._index.replace(spot.place, None)
                moved += chain.from_iterable(spot.stated.values())
                for statement, same in spot.stated.items():
                    statement.rules -= len(same)
                spot.stated.clear()
                spot.end()
        for rule_id in moved:
            self._put(self._check(self.rule(rule_id)))
            self._doubtful[rule_id] = None

    # --- within -------------------------------------------------------------------------------------------------

    def _check(self, rule: PublishRule) -> _Candidate:
        if self._deferred:
            self.read_about(rule.event)
        statement = self._statements.get((rule.fnc_p.text, rule.fnc_s.text)) or self._state(rule)
        spot = self._places.known.get(rule.event)
        if spot is None:
            self._vocabulary.check_type(rule.event)
            spot = self._places.spot(rule.event)
        own = self.rule(rule.id) if rule.id in self._rules else None
        return _Candidate(rule, statement, spot, None if own is None else self._places.spot(own.event))

    def _check_new(self, rule: PublishRule) -> _Candidate:
        if rule.id in self._rules:
            raise MalformedError(
                "moderator.duplicate-id", f"a rule `{rule.id}` is in force", hint="give the new one another id"
            )
        return self._check(rule)

    def _state(self, rule: PublishRule) -> _Statement:
        """Return the statement of a rule; check its functions if they are new."""
        self._vocabulary.check(rule, shown=self._judge.shows, limits=self._limits)
        # In the mode `algorithm`, functions must be lists.
        forms = self._judge.forms
        p, s = forms[RuleFunction.P].form(rule.fnc_p), forms[RuleFunction.S].form(rule.fnc_s)
        statement = _Statement(p, s, _Both(self._summarise(p), self._summarise(s)))
        if len(self._statements) >= self._room:
            self._statements = {texts: kept for texts, kept in self._statements.items() if kept.rules}
            self._room = max(self._limits.moderator_answers, 2 * len(self._statements))
        self._statements[_texts(rule)] = statement
        return statement

    def _put(self, candidate: _Candidate, ids: Sequence[str] = ()) -> None:
        """Put a candidate in force, or all rules with some ids that state the same on its event type."""
        rule, spot, statement = candidate.rule, candidate.spot, candidate.statement
        self._rules[rule.id] = rule
        statement.rules += len(ids) or 1
        same = spot.stated.get(statement)
        if same is not None:
            insort(same, rule.id)
            return
        if not spot.stated:
            self._standing[spot.place] = spot
            spot.begin()
        spot.stated[statement] = sorted(ids) or [rule.id]
        self._index.add(spot.place, statement.both)

    def _find(self, candidate: _Candidate) -> tuple[Conflict, ...]:
        found = [*self._each(candidate)]
        return in_order(found) if found else ()

    def _each(self, candidate: _Candidate) -> Iterator[Conflict]:
        """Yield conflicts as they are found."""
        # Definition 1 is not transitive.
        consistent = not self._doubtful and self.mode is not Mode.LITERAL
        found = self._at(candidate.spot, candidate, ConflictKind.SAME)
        if found:
            yield from found
        elif consistent and found is not None:
            return
        spot = candidate.spot.above
        while spot is not None:
            if spot.stated:
                found = self._at(spot, candidate, ConflictKind.UP)
                if found:
                    yield from found
                elif consistent and found is not None:
                    break
            spot = spot.above
        if candidate.spot.below:
            yield from self._below(candidate, consistent=consistent)

    def _below(self, candidate: _Candidate, *, consistent: bool) -> Iterator[Conflict]:
        place = candidate.spot.place
        walk = Walk(place + b"\0", after(place), self._doubts(candidate.statement))
        for under in self._index.walk(walk):
            found = self._at(self._standing[under], candidate, ConflictKind.DOWN)
            if found:
                yield from found
            walk.start = after(under) if consistent and found is not None and not found else under + b"\0"

    def _at(self, spot: Spot[_Statement], candidate: _Candidate, kind: ConflictKind) -> list[Conflict] | None:
        """Return the conflicts with the rules on a type; None if there are none but the candidate itself."""
        found: list[Conflict] | None = None
        for statement, ids in spot.stated.items():
            others = ids
            if candidate.own is spot:
                others = [rule_id for rule_id in ids if rule_id != candidate.rule.id]
                if not others:
                    continue
            found = [] if found is None else found
            if statement is not candidate.statement:
                unlike = self._differences(candidate, statement, others[0], kind)
                if unlike:
                    found += conflicts_with(spot.event, self._counting(others, candidate.rule), kind, unlike)
        return found

    def _differences(
        self, candidate: _Candidate, statement: _Statement, rule_id: str, kind: ConflictKind
    ) -> tuple[Difference, ...]:
        """Compare a candidate with a rule that states something else; remember the result."""
        asked = (kind, candidate.statement, statement)
        known = self._compared.get(asked)
        if known is None:
            scope = self._vocabulary.tree.scope
            known = differences(candidate.rule, self.rule(rule_id), kind, scope, self._judge)
            self._compared.put(asked, known)
        return known

    def _counting(self, ids: list[str], candidate: PublishRule) -> tuple[str, ...]:
        """Return the ids of rules that a candidate can conflict with: by Definition 1, those of other publishers."""
        if self.mode is not Mode.LITERAL:
            return tuple(ids)
        return tuple(rule_id for rule_id in ids if of_two(candidate, self.rule(rule_id)))

    def _doubts(self, stated: _Statement) -> Callable[[_Both], bool]:
        """Return a test whether summarised functions may conflict with a candidate above them."""
        p, s, either = stated.p, stated.s, self.mode is Mode.LITERAL
        known = {stated.both: False}

        def doubtful(both: _Both) -> bool:
            answer = known.get(both)
            if answer is None:
                fits = both.p.fits(p, self._of_p)
                # By Definition 1 rules conflict in both functions or not at all.
                if fits is not either:
                    fits = both.s.fits(s, self._of_s)
                answer = known[both] = not fits
            return answer

        return doubtful


def _texts(rule: PublishRule) -> tuple[str, str]:
    return (rule.fnc_p.text, rule.fnc_s.text)


# ----------------------------------------------------------------------------------------------------------------------
# All conflicts within a set of rules, for example those of a file.


@dataclass(frozen=True, slots=True)
class CheckedRule:
    """A rule, its conflicts with earlier rules, and any other error in it."""

    rule: PublishRule
    conflicts: tuple[Conflict, ...] = ()
    problem: PenstockError | None = None


def check_rules(
    vocabulary: Vocabulary, mode: Mode, rules: Iterable[PublishRule], *, limits: ModeratorLimits = MODERATOR_LIMITS
) -> Iterator[CheckedRule]:
    """Yield each rule with its conflicts; of two rules that conflict, the later one names the earlier.

    Rules with conflicts are compared with later ones too. Two rules whose periods do not overlap do not conflict. An
    invalid rule is not compared.
    """
    detector = Detector(vocabulary, mode, limits=limits)
    known: dict[str, PublishRule] = {}
    for rule in rules:
        try:
            conflicts = detector.add(rule)
            if conflicts:
                detector.put(rule)
        except PenstockError as error:
            yield CheckedRule(rule, problem=error)
            continue
        known[rule.id] = rule
        yield CheckedRule(rule, in_order(_at_one_time(rule, conflicts, known)))


def _at_one_time(rule: PublishRule, conflicts: Iterable[Conflict], known: dict[str, PublishRule]) -> Iterator[Conflict]:
    for conflict in conflicts:
        ids = tuple(each for each in conflict.rules if rule.validity.intersect(known[each].validity) is not None)
        if ids:
            yield conflict if ids == conflict.rules else replace(conflict, rules=ids)

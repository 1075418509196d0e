"""Summarise many functions, so that those which certainly fit a candidate are skipped together.

Below a candidate the scope of the tree demands one of two things of each function in force (`conflicts.demands`).
Either it implies the candidate's: then it is enough to know a box around all of theirs, and the parts that none of them
lacks. Or the candidate's implies it: then it is enough to know a box inside all of theirs, and the parts that any of
them has. Both are exact where functions are attribute lists: a box lies around, or inside, several boxes just if it
does so for each. Algorithm 1 compares entries in the same two ways. Definition 1 asks for equality, and there a summary
is the one text that all functions have, if they have.

A summary may say less than is known (`fits` is then False, and one looks more closely), never more.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, Generic, Protocol, Self, TypeAlias, TypeVar

from penstock.model.tree import TreeScope
from penstock.moderator.detection.judge import FunctionForm, Side
from penstock.moderator.rules.conflicts import ConflictKind, Mode, demands
from penstock.moderator.rules.lists import ListEntry
from penstock.selector import Selector
from penstock.selector.algebra import Box

# ----------------------------------------------------------------------------------------------------------------------
# An ordered map from places to summaries of what is stated there, with a summary for each stretch of it.
#
# A B+-tree: leaves hold places in order, branches hold children, and each knows the summary of all that is below. So a
# walk along an interval passes over stretches whose summary settles the question, and costs a few steps for each place
# that it stops at. Something new changes the summaries on its way alone. What is dropped has them rebuilt on its way;
# nodes that become small stay so, and go when they are empty.


#: places of a leaf, and children of a branch
_FULL: Final = 32


class Mergeable(Protocol):
    """The operations of a summary."""

    def merged(self, other: Self) -> Self:
        """Return the summary of both; the same object if nothing is new."""


S = TypeVar("S", bound=Mergeable)


@dataclass(slots=True)
class Walk(Generic[S]):
    """A walk from a place to another one, which stops where something is doubtful.

    Whoever walks may move `start` on meanwhile, and what lies before it is left out.
    """

    start: bytes
    end: bytes
    doubtful: Callable[[S], bool]


class _Leaf(Generic[S]):
    __slots__ = ("items", "places", "summary")

    def __init__(self, places: list[bytes], items: list[S]) -> None:
        self.places = places
        self.items = items
        self.summary = reduce(_merged, items)

    def add(self, place: bytes, summary: S) -> bool:
        """Add what is stated at a place; say whether the summary has changed."""
        at = bisect_left(self.places, place)
        if at < len(self.places) and self.places[at] == place:
            self.items[at] = self.items[at].merged(summary)
        else:
            self.places.insert(at, place)
            self.items.insert(at, summary)
        before = self.summary
        self.summary = before.merged(summary)
        return self.summary is not before

    def split(self) -> "tuple[bytes, _Leaf[S]]":
        half = len(self.items) // 2
        right = _Leaf(self.places[half:], self.items[half:])
        del self.places[half:], self.items[half:]
        self.summary = reduce(_merged, self.items)
        return right.places[0], right

    def replace(self, place: bytes, summary: S | None) -> None:
        at = bisect_left(self.places, place)
        if summary is not None:
            self.items[at] = summary
        else:
            del self.places[at], self.items[at]
        if self.items:
            self.summary = reduce(_merged, self.items)

    def walk(self, walk: "Walk[S]") -> Iterator[bytes]:
        at = bisect_left(self.places, walk.start)
        while at < len(self.places) and self.places[at] < walk.end:
            if walk.doubtful(self.items[at]):
                yield self.places[at]
                at = bisect_left(self.places, walk.start, at + 1)
            else:
                at += 1


class _Branch(Generic[S]):
    __slots__ = ("items", "places", "summary")

    def __init__(self, places: list[bytes], items: "list[_Node[S]]") -> None:
        #: what divides the children, one fewer than they are: the least place that belongs to the right one
        self.places = places
        self.items = items
        self.summary = self._sum()

    def _sum(self) -> S:
        return reduce(_merged, (item.summary for item in self.items))

    def split(self) -> "tuple[bytes, _Branch[S]]":
        half = len(self.items) // 2
        divider = self.places[half - 1]
        right = _Branch(self.places[half:], self.items[half:])
        del self.places[half - 1 :], self.items[half:]
        self.summary = self._sum()
        return divider, right

    def replace(self, place: bytes, summary: S | None) -> None:
        at = bisect_right(self.places, place)
        child = self.items[at]
        child.replace(place, summary)
        if not child.items:
            del self.items[at], self.places[max(at - 1, 0) : max(at, 1)]
        if self.items:
            self.summary = self._sum()

    def walk(self, walk: "Walk[S]") -> Iterator[bytes]:
        at, last = bisect_right(self.places, walk.start), bisect_left(self.places, walk.end)
        # Looking further down costs less than a question.
        if at == last:
            yield from self.items[at].walk(walk)
            return
        while at <= last:
            if walk.doubtful(self.items[at].summary):
                yield from self.items[at].walk(walk)
            at = max(at + 1, bisect_right(self.places, walk.start))


_Node: TypeAlias = _Leaf[S] | _Branch[S]


class SummaryTree(Generic[S]):
    """The map."""

    def __init__(self) -> None:
        self._root: _Node[S] | None = None

    def add(self, place: bytes, summary: S) -> None:
        """Add what is stated at a place to what is there."""
        if self._root is None:
            self._root = _Leaf([place], [summary])
            return
        way: list[tuple[_Branch[S], int]] = []
        node = self._root
        while isinstance(node, _Branch):
            at = bisect_right(node.places, place)
            way.append((node, at))
            node = node.items[at]
        # What is known of a stretch already is known of all that it is a part of.
        if node.add(place, summary):
            for branch, _ in reversed(way):
                merged = branch.summary.merged(summary)
                if merged is branch.summary:
                    break
                branch.summary = merged
        if len(node.items) > _FULL:
            self._split(node, way)

    def _split(self, node: _Node[S], way: list[tuple[_Branch[S], int]]) -> None:
        """Split a node that is too full, and those on the way to it that become so."""
        while len(node.items) > _FULL:
            divider, right = node.split()
            if not way:
                self._root = _Branch([divider], [node, right])
                return
            above, at = way.pop()
            above.places.insert(at, divider)
            above.items.insert(at + 1, right)
            node = above

    def replace(self, place: bytes, summary: S | None) -> None:
        """Put something in the place of what is stated at a place, which must not be nothing; None: nothing more."""
        if self._root is not None:
            self._root.replace(place, summary)
            if not self._root.items:
                self._root = None

    def walk(self, walk: Walk[S]) -> Iterator[bytes]:
        """Yield the places on a walk whose summaries are doubtful, in order.

        Whoever doubts a summary must doubt every one that it is merged into.
        """
        if self._root is not None:
            yield from self._root.walk(walk)


def _merged(one: S, other: S) -> S:
    return one.merged(other)


# ----------------------------------------------------------------------------------------------------------------------
# Summaries.


#: spans of one set of values, and parts or entries, that a summary keeps
_SPANS: Final = 16
_PARTS: Final = 64


class Summary(Protocol):
    """A summary of some functions."""

    def merged(self, other: Any) -> Any:  # a summary of the same class, which a protocol cannot say
        """Return the summary of both; the same object if nothing is new."""

    def fits(self, form: FunctionForm, side: Side) -> bool:
        """Say whether a candidate's function surely conflicts with none of them."""


Summarise: TypeAlias = Callable[[FunctionForm], Summary]


def summarise(scope: TreeScope, mode: Mode) -> Summarise:
    """Return how a function below a candidate is summed up."""
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
    """A box around all functions, and the parts beside boxes that all of them have: do they imply the candidate's?"""

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
        """Say whether all functions surely imply the candidate's."""
        return side.within(self.box, form.box) and all(
            part in self.rest or any(side.implies(known, part) for known in self.rest) for part in form.rest
        )


@dataclass(frozen=True, slots=True)
class Inside:
    """A box inside all functions, and the parts beside boxes that any has: does the candidate's imply them?

    There is no box where they have nothing in common.
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
        """Say whether the candidate's function surely implies all others."""
        return (
            self.box is not None
            and side.within(form.box, self.box)
            and all(part in form.rest or side.implies(form.selector, part) for part in self.rest)
        )


@dataclass(frozen=True, slots=True)
class CommonEntries:
    """The entries that all lists have: do they contain the candidate's?"""

    entries: frozenset[ListEntry]

    def merged(self, other: "CommonEntries") -> "CommonEntries":
        """Return the summary of both; the same object if nothing is new."""
        return self if self.entries <= other.entries else CommonEntries(self.entries & other.entries)

    def fits(self, form: FunctionForm, side: Side) -> bool:  # noqa: ARG002  # lists have no boxes; the protocol
        """Say whether all lists contain the candidate's."""
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
        """Say whether the candidate's list contains all others."""
        return self.entries is not None and self.entries <= form.entries


@dataclass(frozen=True, slots=True)
class OneText:
    """The one text that all functions have; None where they are several."""

    text: str | None

    def merged(self, other: "OneText") -> "OneText":
        """Return the summary of both; the same object if nothing is new."""
        return self if self.text is None or self.text == other.text else OneText(None)

    def fits(self, form: FunctionForm, side: Side) -> bool:  # noqa: ARG002  # texts have no boxes; the protocol
        """Say whether all functions are the candidate's."""
        return form.selector.text == self.text

"""An ordered map from places to summaries of what is stated there, with a summary for each stretch of it.

A B+-tree: leaves hold places in order, branches hold children, and each knows the summary of all that is below. So a
walk along an interval passes over stretches whose summary settles the question, and costs a few steps for each place
that it stops at. Something new changes the summaries on its way alone. What is dropped has them made anew on its way;
nodes that become small stay so, and go when they are empty.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Final, Generic, Protocol, Self, TypeAlias, TypeVar

#: places of a leaf, and children of a branch
_FULL: Final = 32


class Mergeable(Protocol):
    """What a summary can do."""

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

"""An ordered map from places to summaries of what is stated there, with a summary for each stretch of it.

A B+-tree: leaves hold places in order, branches hold children, and each knows the summary of all that is below. So a
walk along an interval passes over stretches whose summary settles the question, and costs a few steps for each place
that it stops at. Something new changes the summaries on its way alone. What is dropped has them made anew on its way;
nodes that become small stay so, and go when they are empty.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import reduce
from typing import Final, Generic, Protocol, Self, TypeAlias, TypeVar

#: places of a leaf, and children of a branch
_FULL: Final = 32


class Mergeable(Protocol):
    """What a summary can do."""

    def merged(self, other: Self) -> Self:
        """Return the summary of both; the same object if nothing is new."""


S = TypeVar("S", bound=Mergeable)


class _Leaf(Generic[S]):
    __slots__ = ("items", "places", "summary")

    def __init__(self, places: list[bytes], items: list[S]) -> None:
        self.places = places
        self.items = items
        self.summary = reduce(_merged, items)

    def add(self, place: bytes, summary: S) -> "_Split[S] | None":
        at = bisect_left(self.places, place)
        self.summary = self.summary.merged(summary)
        if at < len(self.places) and self.places[at] == place:
            self.items[at] = self.items[at].merged(summary)
            return None
        self.places.insert(at, place)
        self.items.insert(at, summary)
        if len(self.items) <= _FULL:
            return None
        half = _FULL // 2
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

    def first(self, start: bytes, end: bytes, doubtful: Callable[[S], bool]) -> bytes | None:
        for at in range(bisect_left(self.places, start), bisect_left(self.places, end)):
            if doubtful(self.items[at]):
                return self.places[at]
        return None


class _Branch(Generic[S]):
    __slots__ = ("items", "places", "summary")

    def __init__(self, places: list[bytes], items: "list[_Node[S]]") -> None:
        #: what divides the children, one fewer than they are: the least place that belongs to the right one
        self.places = places
        self.items = items
        self.summary = self._sum()

    def _sum(self) -> S:
        return reduce(_merged, (item.summary for item in self.items))

    def add(self, place: bytes, summary: S) -> "_Split[S] | None":
        at = bisect_right(self.places, place)
        self.summary = self.summary.merged(summary)
        split = self.items[at].add(place, summary)
        if split is None:
            return None
        self.places.insert(at, split[0])
        self.items.insert(at + 1, split[1])
        if len(self.items) <= _FULL:
            return None
        half = _FULL // 2
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

    def first(self, start: bytes, end: bytes, doubtful: Callable[[S], bool]) -> bytes | None:
        begin, last = bisect_right(self.places, start), bisect_left(self.places, end)
        if begin == last:
            # Looking further down costs less than a question.
            return self.items[begin].first(start, end, doubtful)
        for at in range(begin, last + 1):
            if doubtful(self.items[at].summary):
                found = self.items[at].first(start, end, doubtful)
                if found is not None:
                    return found
        return None


_Node: TypeAlias = _Leaf[S] | _Branch[S]
_Split: TypeAlias = tuple[bytes, _Node[S]]


class SummaryTree(Generic[S]):
    """The map."""

    def __init__(self) -> None:
        self._root: _Node[S] | None = None

    def add(self, place: bytes, summary: S) -> None:
        """Add what is stated at a place to what is there."""
        if self._root is None:
            self._root = _Leaf([place], [summary])
            return
        split = self._root.add(place, summary)
        if split is not None:
            self._root = _Branch([split[0]], [self._root, split[1]])

    def replace(self, place: bytes, summary: S | None) -> None:
        """Put something in the place of what is stated at a place, which must not be nothing; None: nothing more."""
        if self._root is not None:
            self._root.replace(place, summary)
            if not self._root.items:
                self._root = None

    def first(self, start: bytes, end: bytes, doubtful: Callable[[S], bool]) -> bytes | None:
        """Return the first place from `start` on and before `end` whose summary is doubtful.

        Whoever doubts a summary must doubt every one that it is merged into.
        """
        return None if self._root is None else self._root.first(start, end, doubtful)


def _merged(one: S, other: S) -> S:
    return one.merged(other)

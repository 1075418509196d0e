"""Who sits where in a binary tree that stays as low as it can be.

With n members the nodes 1 … n-1 are inner ones and the places n … 2n-1 are leaves; the parent of a node is its half. So
no leaf lies deeper than ⌈log2 n⌉, whatever has been. Who joins shares the place of the first leaf: both move below it.
When somebody leaves, the last leaf takes that place, and the sibling of the last leaf takes their parent's. Where some
join and some leave together, the ones take the places of the others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

M = TypeVar("M")
ROOT: Final = 1


@dataclass(frozen=True, slots=True)
class Change:
    """What a change of members came to: leaves that moved, from and to, and inner nodes that need new keys.

    Those are all above a place that somebody took or gave up: somebody who is below them no longer knows their keys, or
    somebody who is below them now must not know the old ones.
    """

    moves: tuple[tuple[int, int], ...]
    stale: tuple[int, ...]


def above(place: int) -> Iterator[int]:
    """Yield the nodes above a place, the nearest first.

    >>> list(above(11))
    [5, 2, 1]
    """
    while place > ROOT:
        place //= 2
        yield place


class Places(Generic[M]):
    """See the module."""

    def __init__(self) -> None:
        self.place: dict[M, int] = {}
        self.member: dict[int, M] = {}
        self._origin: dict[M, int] = {}
        self._touched: set[int] = set()

    def __len__(self) -> int:
        return len(self.place)

    def change(self, joins: Sequence[M], leaves: Sequence[M]) -> Change:
        """Let some join and others leave, all at once."""
        self._origin, self._touched = {}, set()
        both = min(len(joins), len(leaves))
        for joining, leaving in zip(joins, leaves, strict=False):
            self._put(joining, self._drop(leaving))
        for leaving in leaves[both:]:
            self._leave(leaving)
        for joining in joins[both:]:
            self._join(joining)
        inner = {node for place in self._touched for node in above(place) if node < len(self)}
        new = set(joins)
        stayed = ((old, member) for member, old in self._origin.items() if member in self.place and member not in new)
        moves = sorted((old, self.place[member]) for old, member in stayed if old != self.place[member])
        return Change(tuple(moves), tuple(sorted(inner, reverse=True)))

    def _join(self, joining: M) -> None:
        size = len(self)
        if not size:
            self._put(joining, ROOT)
            return
        self._put(self.member[size], 2 * size)
        self._put(joining, 2 * size + 1)

    def _leave(self, leaving: M) -> None:
        size = len(self)
        last = self.member[2 * size - 1]
        free = self._drop(leaving)
        if size == 1:
            return
        if last != leaving:
            self._put(last, free)
        # One of the last two leaves is left, unless that place has just been filled: it takes their parent's place.
        remaining = self.member.get(2 * size - 2, self.member.get(2 * size - 1))
        if remaining is not None:
            self._put(remaining, size - 1)

    def _put(self, member: M, place: int) -> None:
        old = self.place.get(member)
        if old is not None:
            self._origin.setdefault(member, old)
            self._touched.add(old)
            if self.member.get(old) == member:
                del self.member[old]
        self.place[member], self.member[place] = place, member
        self._touched.add(place)

    def _drop(self, leaving: M) -> int:
        place = self.place.pop(leaving)
        del self.member[place]
        self._touched.add(place)
        return place

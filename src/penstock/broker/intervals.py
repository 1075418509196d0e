"""A tree of half-open intervals that says which of them hold a place.

The tree is ordered by lower ends, and each node knows how far the intervals below it reach, so that a search leaves
out whatever ends before the place: it costs a logarithm for each interval that is found, whatever else is stored. A
part that has grown out of balance is built anew; no random source is needed, and no order of insertion is bad.
"""

from typing import Any, Final, Generic, TypeAlias, TypeVar

T = TypeVar("T")
End: TypeAlias = tuple[Any, ...]

#: A node is out of balance when a child holds more than this part of what it holds.
_BALANCE: Final = 0.7
#: Reached by nothing: lower than every end.
_NOWHERE: Final[End] = ()


class _Spot(Generic[T]):
    __slots__ = ("high", "left", "low", "reach", "right", "size", "value")

    def __init__(self, low: End, high: End, value: T) -> None:
        self.low = low
        self.high = high
        #: None once it was removed
        self.value: T | None = value
        self.left: _Spot[T] | None = None
        self.right: _Spot[T] | None = None
        self.size = 1
        self.reach = high

    def measure(self) -> None:
        """Take size and reach anew from the children."""
        left, right = self.left, self.right
        self.size = 1 + (left.size if left else 0) + (right.size if right else 0)
        reach = _NOWHERE if self.value is None else self.high
        if left and left.reach > reach:
            reach = left.reach
        if right and right.reach > reach:
            reach = right.reach
        self.reach = reach

    @property
    def unbalanced(self) -> bool:
        larger = max(self.left.size if self.left else 0, self.right.size if self.right else 0)
        return larger > _BALANCE * self.size + 1


class IntervalTree(Generic[T]):
    """Values by interval `low <= place < high`.

    >>> tree = IntervalTree[str]()
    >>> tree.put((1,), (5,), "one to five")
    >>> tree.put((4,), (9,), "four to nine")
    >>> tree.holding((3,)), len(tree.holding((4,))), tree.holding((9,))
    (['one to five'], 2, [])
    """

    __slots__ = ("_dead", "_root")

    def __init__(self) -> None:
        self._root: _Spot[T] | None = None
        self._dead = 0

    def __len__(self) -> int:
        return (self._root.size if self._root else 0) - self._dead

    def get(self, low: End, high: End) -> T | None:
        """Return the value of exactly this interval, if it is stored."""
        path = self._path(low, high)
        found = path[-1] if path else None
        return found.value if found is not None and found.low == low and found.high == high else None

    def put(self, low: End, high: End, value: T) -> None:
        """Store a value, in the place of one that the interval had."""
        path = self._path(low, high)
        if not path:
            self._root = _Spot(low, high, value)
            return
        last = path[-1]
        if last.low == low and last.high == high:
            self._dead -= last.value is None
            last.value = value
        elif (low, high) < (last.low, last.high):
            last.left = _Spot(low, high, value)
        else:
            last.right = _Spot(low, high, value)
        self._settle(path)

    def discard(self, low: End, high: End) -> None:
        """Remove an interval, if it is stored."""
        path = self._path(low, high)
        if not path or path[-1].value is None or (path[-1].low, path[-1].high) != (low, high):
            return
        path[-1].value = None
        self._dead += 1
        if self._dead > len(self):
            self._root = _build(_living(self._root))
            self._dead = 0
        else:
            self._settle(path)

    def holding(self, place: End) -> list[T]:
        """Return the values of all intervals that hold a place."""
        found: list[T] = []
        pending = [self._root] if self._root else []
        while pending:
            spot = pending.pop()
            if spot.reach <= place:
                continue
            if spot.left is not None:
                pending.append(spot.left)
            if spot.low <= place:
                if spot.right is not None:
                    pending.append(spot.right)
                if spot.value is not None and place < spot.high:
                    found.append(spot.value)
        return found

    def _path(self, low: End, high: End) -> list[_Spot[T]]:
        """Return the way down to the interval, or to where it would be hung."""
        path: list[_Spot[T]] = []
        spot = self._root
        wanted = (low, high)
        while spot is not None:
            path.append(spot)
            here = (spot.low, spot.high)
            if wanted == here:
                break
            spot = spot.left if wanted < here else spot.right
        return path

    def _settle(self, path: list[_Spot[T]]) -> None:
        """Measure the way back up, and rebuild the highest part that is out of balance."""
        top = None
        for index in reversed(range(len(path))):
            path[index].measure()
            if path[index].unbalanced:
                top = index
        if top is None:
            return
        living = _living(path[top])
        self._dead -= path[top].size - len(living)
        rebuilt = _build(living)
        if top == 0:
            self._root = rebuilt
            return
        above = path[top - 1]
        if above.left is path[top]:
            above.left = rebuilt
        else:
            above.right = rebuilt
        for spot in reversed(path[:top]):
            spot.measure()


def _living(root: _Spot[T] | None) -> list[_Spot[T]]:
    """Return the nodes that were not removed, in order."""
    found: list[_Spot[T]] = []
    above: list[_Spot[T]] = []
    spot = root
    while above or spot is not None:
        while spot is not None:
            above.append(spot)
            spot = spot.left
        spot = above.pop()
        if spot.value is not None:
            found.append(spot)
        spot = spot.right
    return found


def _build(spots: list[_Spot[T]]) -> _Spot[T] | None:
    """Hang nodes that are in order into a tree of the least depth."""
    if not spots:
        return None
    middle = len(spots) // 2
    root = spots[middle]
    root.left = _build(spots[:middle])
    root.right = _build(spots[middle + 1 :])
    root.measure()
    return root

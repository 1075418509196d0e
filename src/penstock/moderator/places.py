"""Where event types stand: numbers in which a subtree is an interval, and which stay when types are added.

A place is the path from the root, one number of four octets a level, each counted among its siblings: as octets, places
sort as one would walk the tree, parents first. All places below a type begin with its own, so they are an interval, and
the places above are its beginnings. A new type gets the next number below its parent; nobody else's changes.
"""

from typing import Final

from penstock.model.names import TypeKey
from penstock.model.tree import TypeTree

#: octets of one level
STEP: Final = 4
_AFTER: Final = b"\xff" * STEP


class Places:
    """The places of the types of one tree, numbered when they are first asked for."""

    def __init__(self, tree: TypeTree) -> None:
        self._tree = tree
        self._known: dict[TypeKey, bytes] = {}
        self._children: dict[TypeKey | None, int] = {}

    def place(self, event: TypeKey) -> bytes:
        """Return the place of a type, which must be in the tree."""
        found = self._known.get(event)
        if found is None:
            parent = self._tree.parents[event]
            number = self._children.get(parent, 0)
            self._children[parent] = number + 1
            above = b"" if parent is None else self.place(parent)
            self._known[event] = found = above + number.to_bytes(STEP, "big")
        return found

    def follow(self, tree: TypeTree) -> dict[TypeKey, bytes]:
        """Go on with a changed tree; return the types that have moved or gone, and where they stood."""
        before, self._tree = self._tree, tree
        changed: dict[TypeKey, bool] = {}

        def has_moved(event: TypeKey) -> bool:
            if event not in changed:
                parent = tree.parents.get(event)
                same = event in tree and parent == before.parents[event]
                changed[event] = not same or (parent is not None and has_moved(parent))
            return changed[event]

        moved = {event: place for event, place in self._known.items() if has_moved(event)}
        for event in moved:
            del self._known[event]
        return moved


def after(place: bytes) -> bytes:
    """Return the end of the interval of a subtree, which begins with its own place."""
    return place + _AFTER


def above(place: bytes) -> list[bytes]:
    """Return the places of the ancestors, the parent first."""
    return [place[:length] for length in range(len(place) - STEP, 0, -STEP)]

"""Where event types stand: numbers in which a subtree is an interval, and which stay when types are added.

A place is the path from the root, one number of four octets a level, each counted among its siblings: as octets, places
sort as one would walk the tree, parents first. All places below a type begin with its own, so they are an interval. A
new type gets the next number below its parent; nobody else's changes.
"""

from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from penstock.model.names import TypeKey
from penstock.model.tree import TypeTree

#: octets of one level
STEP: Final = 4
_AFTER: Final = b"\xff" * STEP

S = TypeVar("S")


@dataclass(slots=True, eq=False)
class Spot(Generic[S]):
    """An event type: its place, and the ids of the rules on it, sorted; those that state the same stand together."""

    event: TypeKey
    place: bytes
    above: "Spot[S] | None"
    stated: dict[S, list[str]] = field(default_factory=dict)
    #: on how many branches right below there are rules
    below: int = 0
    #: how many numbers have been given right below
    numbered: int = 0

    def begin(self) -> None:
        """Let those above know of the first rules here, before they are put down."""
        spot = self
        live = bool(spot.stated or spot.below)
        while not live and spot.above is not None:
            spot = spot.above
            live = bool(spot.stated or spot.below)
            spot.below += 1

    def end(self) -> None:
        """Let those above know that there are no rules here any more."""
        spot = self
        while not (spot.stated or spot.below) and spot.above is not None:
            spot.above.below -= 1
            spot = spot.above


class Places(Generic[S]):
    """The places of the types of one tree, numbered when they are first asked for."""

    def __init__(self, tree: TypeTree) -> None:
        self._tree = tree
        self._roots = 0
        #: where types stand that were asked for
        self.known: dict[TypeKey, Spot[S]] = {}

    def spot(self, event: TypeKey) -> Spot[S]:
        """Return where a type stands, which must be in the tree."""
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
        """Go on with a changed tree; return where types stood that have moved or gone."""
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

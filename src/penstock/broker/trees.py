"""The dissemination tree of one type, as one broker on it sees it: what each side has entered, and what follows.

The tree consists of the shortest paths to the type's rendezvous node. On each of its edges

- an interest goes up, from wherever there are subscribers, so that the rendezvous node knows where they are;
- advertisements go up, and from there down to where there is interest: this is where the two meet;
- subscriptions go, up or down, only to a side that advertises what they can match, and only those that no other
  subscription sent there covers;
- events go, up or down, to the sides whose subscriptions they match.

What is said to one side depends on what the other sides said and on nothing else. A tree has no circles, so once all
brokers see the same tree, nothing can outlive its cause.
"""

from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from penstock.broker.filters import Covering, may_overlap, widest
from penstock.broker.matching import Matcher
from penstock.broker.messages import Advertisement, Entry, Filter, Interest, Subscription
from penstock.model.names import TypeKey
from penstock.model.principals import Principal

Side: TypeAlias = Principal | None
"""A neighbour, or None: the clients of this broker."""

Name: TypeAlias = str | int
"""What an entry is called on its side: a client's key or a neighbour's handle."""

_Source: TypeAlias = tuple[Side, Name]
_C = TypeVar("_C", bound=Sized)


@dataclass(slots=True)
class Tree:
    """The entries of one tree by side. `refresh` and `entries_for` say what a neighbour has to be told."""

    key: TypeKey
    parent: Principal | None = None
    interests: dict[Side, set[Name]] = field(default_factory=dict)
    advertisements: dict[Side, dict[Name, Advertisement]] = field(default_factory=dict)
    subscriptions: dict[Side, dict[Name, Filter]] = field(default_factory=dict)
    #: the subscriptions of neighbours, for events
    index: Matcher[tuple[Principal, int]] = field(default_factory=Matcher)
    #: for each neighbour that advertises, the subscriptions that it might match
    _towards: dict[Principal, Covering[_Source]] = field(default_factory=dict)
    #: whether `_towards` follows from the entries
    _fresh: bool = False

    def put(self, side: Side, name: Name, entry: Entry) -> None:
        """Take in an entry."""
        match entry:
            case Interest():
                self.interests.setdefault(side, set()).add(name)
            case Advertisement():
                self.advertisements.setdefault(side, {})[name] = entry
                self._fresh = False
            case Subscription():
                self.subscriptions.setdefault(side, {})[name] = entry.filter
                if side is not None and isinstance(name, int):
                    self.index.add((side, name), entry.filter.selector)
                for other, covering in self._towards.items():
                    if other != side and self._wanted(other, entry.filter):
                        covering.put((side, name), entry.filter)

    def remove(self, side: Side, name: Name, entry: Entry) -> None:
        """Take out an entry that was taken in."""
        match entry:
            case Interest():
                _discard(self.interests, side, lambda names: names.remove(name))
            case Advertisement():
                _discard(self.advertisements, side, lambda entries: entries.pop(name))
                self._fresh = False
            case Subscription():
                _discard(self.subscriptions, side, lambda entries: entries.pop(name))
                if side is not None and isinstance(name, int):
                    self.index.remove((side, name))
                for covering in self._towards.values():
                    covering.remove((side, name))

    def __len__(self) -> int:
        sides = (*self.interests.values(), *self.advertisements.values(), *self.subscriptions.values())
        return sum(map(len, sides))

    def offered(self) -> frozenset[TypeKey]:
        """Return the sub-types of the tree's type that somebody advertises."""
        everything = (entry.type for entries in self.advertisements.values() for entry in entries.values())
        return frozenset(of_type for of_type in everything if of_type != self.key)

    def entries_for(self, side: Principal) -> Iterator[Entry]:
        """Yield what a neighbour has to know."""
        if not self._fresh:
            self._refresh()
        up = side == self.parent
        if up and any(other != side for other in self.interests):
            yield Interest(self.key)
        if up or side in self.interests:
            yield from self._advertised_to(side)
        if side in self._towards:
            for filter_ in self._towards[side].forwarded():
                yield Subscription(self.key, filter_)

    def _advertised_to(self, side: Principal) -> Iterator[Entry]:
        by_type: dict[TypeKey, list[Filter]] = {}
        for other, entries in self.advertisements.items():
            if other != side:
                for entry in entries.values():
                    by_type.setdefault(entry.type, []).append(entry.filter)
        for of_type, filters in by_type.items():
            for filter_ in widest(filters):
                yield Advertisement(self.key, of_type, filter_)

    def _refresh(self) -> None:
        """Find anew which subscriptions go where: advertisements have changed."""
        self._towards = {}
        for side in self.advertisements:
            if side is None or not any(True for _ in self._own(side)):
                continue
            covering = self._towards[side] = Covering()
            for other, subscriptions in self.subscriptions.items():
                if other != side:
                    for name, filter_ in subscriptions.items():
                        if self._wanted(side, filter_):
                            covering.put((other, name), filter_)
        self._fresh = True

    def _own(self, side: Side) -> Iterator[Filter]:
        entries = self.advertisements.get(side, {}).values()
        return (entry.filter for entry in entries if entry.type == self.key)

    def _wanted(self, side: Side, filter_: Filter) -> bool:
        return any(may_overlap(advertised, filter_) for advertised in self._own(side))


def _discard(sides: dict[Side, _C], side: Side, take: Callable[[_C], object]) -> None:
    entries = sides[side]
    take(entries)
    if not entries:
        del sides[side]

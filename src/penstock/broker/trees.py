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

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from penstock.broker.entries import Advertisement, AnyFilter, Entry, Filter, Interest, Subscription
from penstock.broker.filters import Covering, Moves, may_overlap, widest
from penstock.broker.matching import Matcher
from penstock.broker.publications import Publications
from penstock.broker.sealed import SealedPublications
from penstock.broker.sealed_filters import Filters, NoFilters
from penstock.broker.sealed_index import Match, SealedIndex
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.selector import ALWAYS

Side: TypeAlias = Principal | None
"""A neighbour, or None: the clients of this broker."""

Name: TypeAlias = str | int
"""What an entry is called on its side: a client's key or a neighbour's handle."""

_Source: TypeAlias = tuple[Side, Name]
_Witness: TypeAlias = tuple[Side, Name, AnyFilter]
_C = TypeVar("_C", bound=Sized)


@dataclass(slots=True)
class Tree:
    """The entries of one tree by side, and what each neighbour has to be told because of them."""

    key: TypeKey
    parent: Principal | None = None
    #: what can be opened here of sealed filters
    filters: Filters = field(default_factory=NoFilters)
    limits: Limits = DEFAULT_LIMITS
    interests: dict[Side, set[Name]] = field(default_factory=dict)
    advertisements: dict[Side, dict[Name, Advertisement]] = field(default_factory=dict)
    subscriptions: dict[Side, dict[Name, AnyFilter]] = field(default_factory=dict)
    #: the subscriptions of neighbours, for events that are not sealed, and for those that are
    index: Matcher[tuple[Principal, int]] = field(default_factory=Matcher)
    sealed: SealedIndex[tuple[Principal, int]] = field(init=False)
    #: whether more has changed since `moves` than subscriptions, so that `entries_for` has to be asked
    changed: bool = True
    #: for each neighbour that advertises, the subscriptions that it might match
    _towards: dict[Principal, Covering[_Source]] = field(default_factory=dict)
    #: those whose advertisements have changed
    _stale: set[Principal] = field(default_factory=set)
    _moves: dict[Principal, dict[AnyFilter, bool]] = field(default_factory=dict)
    #: the subscriptions that are new since `demanded`, and one for each advertisement of a client that somebody wants
    _fresh: list[_Witness] = field(default_factory=list)
    _witnesses: dict[Name, _Witness | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sealed = SealedIndex(self.key, self.filters)

    def put(self, side: Side, name: Name, entry: Entry) -> None:
        """Take in an entry; a subscription also in the place of the one that had its name."""
        match entry:
            case Interest():
                self.changed |= side not in self.interests
                self.interests.setdefault(side, set()).add(name)
            case Advertisement():
                self.advertisements.setdefault(side, {})[name] = entry
                self._readvertised(side, entry)
            case Subscription(_, filter_):
                self.subscriptions.setdefault(side, {})[name] = filter_
                self._fresh.append((side, name, filter_))
                if side is not None and isinstance(name, int):
                    self.index.add((side, name), filter_.selector if isinstance(filter_, Filter) else ALWAYS)
                    self.sealed.add((side, name), filter_)
                for other, covering in self._towards.items():
                    if other != side and other not in self._stale:
                        wanted = self._wanted(other, filter_)
                        moves = covering.put((side, name), filter_) if wanted else covering.remove((side, name))
                        self._note(other, moves)

    def remove(self, side: Side, name: Name, entry: Entry) -> None:
        """Take out an entry that was taken in."""
        match entry:
            case Interest():
                _discard(self.interests, side, lambda names: names.remove(name))
                self.changed |= side not in self.interests
            case Advertisement():
                _discard(self.advertisements, side, lambda entries: entries.pop(name))
                self._readvertised(side, entry)
            case Subscription():
                _discard(self.subscriptions, side, lambda entries: entries.pop(name))
                if side is not None and isinstance(name, int):
                    self.index.remove((side, name))
                    self.sealed.remove((side, name))
                for other, covering in self._towards.items():
                    if other not in self._stale:
                        self._note(other, covering.remove((side, name)))

    def __len__(self) -> int:
        sides = (*self.interests.values(), *self.advertisements.values(), *self.subscriptions.values())
        return sum(map(len, sides))

    def match(self, block: Publications) -> Match[tuple[Principal, int]] | None:
        """Return what finds the subscriptions of neighbours that want an event of a block; None where all may do."""
        return self.sealed.matcher(block) if isinstance(block, SealedPublications) else self.index.match

    def takers(self, block: Publications) -> Mapping[Principal, Sequence[int]]:
        """Return which neighbours want something of a block, and which of its events."""
        match = self.match(block)
        if match is None:
            return {side: range(len(block.events)) for side in self.subscriptions if side is not None}
        places = defaultdict[Principal, list[int]](list)
        for place, event in enumerate(block.events):
            for peer in {peer for peer, _ in match(event.values)}:
                places[peer].append(place)
        return places

    def rekeyed(self) -> bool:
        """Compare subscriptions anew if other keys have opened or closed some; say whether it is so."""
        differs = self.sealed.rekeyed()
        if differs:
            self.changed = True
            self._stale |= self._towards.keys()
        return differs

    def offered(self) -> frozenset[TypeKey]:
        """Return the sub-types of the tree's type that somebody advertises."""
        everything = (entry.type for entries in self.advertisements.values() for entry in entries.values())
        return frozenset(of_type for of_type in everything if of_type != self.key)

    def demanded(self) -> list[tuple[str, bool]]:
        """Return of which clients' advertisements it has changed whether anybody wants them, or was not known."""
        own = {str(name): entry for name, entry in self.advertisements.get(None, {}).items() if entry.type == self.key}
        fresh, self._fresh = self._fresh, []
        before, self._witnesses = self._witnesses, {}
        changes: list[tuple[str, bool]] = []
        for name, entry in own.items():
            known = before.get(name)
            if known is None or not self._stands(known):
                # Who was not wanted before can only be so because of what is new.
                candidates = self._all() if known is not None or name not in before else fresh
                found = next((each for each in candidates if self._is_met(entry.filter, each)), None)
                if name not in before or (known is None) != (found is None):
                    changes.append((name, found is not None))
                known = found
            self._witnesses[name] = known
        return changes

    def _all(self) -> Iterator[_Witness]:
        for side, entries in self.subscriptions.items():
            for name, filter_ in entries.items():
                yield side, name, filter_

    def _stands(self, witness: _Witness) -> bool:
        side, name, filter_ = witness
        return self.subscriptions.get(side, {}).get(name) is filter_

    def _is_met(self, advertised: Filter, witness: _Witness) -> bool:
        return self._stands(witness) and may_overlap(advertised, witness[2])

    def moves(self) -> dict[Principal, dict[Entry, bool]]:
        """Return which subscriptions each neighbour has to be told (True) or not (False), since the last time."""
        self._refresh()
        moves, self._moves, self.changed = self._moves, {}, False
        return {
            side: {Subscription(self.key, filter_): told for filter_, told in filters.items()}
            for side, filters in moves.items()
        }

    def entries_for(self, side: Principal) -> Iterator[Entry]:
        """Yield all that a neighbour has to know; `moves` has to be asked before."""
        up = side == self.parent
        if up and any(other != side for other in self.interests):
            yield Interest(self.key)
        if up or side in self.interests:
            yield from self._advertised_to(side)
        for filter_ in self._towards.get(side, ()):
            yield Subscription(self.key, filter_)

    def _advertised_to(self, side: Principal) -> Iterator[Entry]:
        by_type: dict[TypeKey, list[Filter]] = {}
        for other, entries in self.advertisements.items():
            if other != side:
                for entry in entries.values():
                    by_type.setdefault(entry.type, []).append(entry.filter)
        for of_type, filters in by_type.items():
            for filter_ in widest(of_type, filters):
                yield Advertisement(self.key, of_type, filter_)

    def _readvertised(self, side: Side, entry: Advertisement) -> None:
        self.changed = True
        if side is not None and entry.type == self.key:
            self._stale.add(side)

    def _refresh(self) -> None:
        """Find anew which subscriptions go to those whose advertisements have changed."""
        for side in self._stale:
            covering = self._towards[side] = Covering(self.key, self.filters, self.limits.route_filters)
            for other, subscriptions in self.subscriptions.items():
                if other != side:
                    for name, filter_ in subscriptions.items():
                        if self._wanted(side, filter_):
                            covering.put((other, name), filter_)
            if not any(True for _ in self._own(side)):
                del self._towards[side]
        self._stale = set()

    def _own(self, side: Side) -> Iterator[Filter]:
        entries = self.advertisements.get(side, {}).values()
        return (entry.filter for entry in entries if entry.type == self.key)

    def _wanted(self, side: Side, filter_: AnyFilter) -> bool:
        return any(may_overlap(advertised, filter_) for advertised in self._own(side))

    def _note(self, side: Principal, moves: Moves) -> None:
        if moves:
            self._moves.setdefault(side, {}).update(moves)


def _discard(sides: dict[Side, _C], side: Side, take: Callable[[_C], object]) -> None:
    entries = sides[side]
    take(entries)
    if not entries:
        del sides[side]

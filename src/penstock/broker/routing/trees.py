"""The trees of one broker, and the subscriptions of its clients, each of which may be in several trees.

A subscription to a type joins the tree of that type, and those of its sub-types that are advertised.

The cost of a group of subscriptions, for example all those of a principal, is bounded. If a group has more than
`BrokerLimits.client_filters` different filters in a tree, the tree gets one entry that admits everything instead. The
clients still get exactly what they have subscribed to, because this broker matches their filters itself.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, TypeVar

from penstock.broker.limits import BrokerLimits
from penstock.broker.matching.matcher import Matcher
from penstock.broker.routing.filters import Covering, Moves, may_overlap, widest
from penstock.broker.sealing.blocks import Match, SealedIndex, SealedPublications
from penstock.broker.sealing.filters import Filters
from penstock.broker.wire.entries import (
    Advertisement,
    AnyFilter,
    Entry,
    Filter,
    InterestEntry,
    SealedFilter,
    SubscriptionEntry,
)
from penstock.broker.wire.publications import Publications
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.selector import ALWAYS

# ----------------------------------------------------------------------------------------------------------------------
# The dissemination tree of one type, as one broker on it sees it: the entries of each side, and what follows.
#
# The tree consists of the shortest paths to the type's rendezvous node. On each of its edges
#
# - an interest goes up from each subscriber, so that the rendezvous node knows where subscribers are;
# - advertisements go up, and from the rendezvous node down to where there is interest;
# - subscriptions go, up or down, only to a side that advertises events that they may match, and only if no other
#   subscription that was sent there covers them;
# - events go, up or down, to the sides whose subscriptions they match.
#
# Messages to one side depend only on the entries of the other sides. A tree has no cycles, so once all brokers see the
# same tree, no entry can outlive its cause.


Side: TypeAlias = Principal | None
"""A neighbour, or None: the clients of this broker."""

Name: TypeAlias = str | int
"""The name of an entry on its side: a client's key or a neighbour's handle."""

_Source: TypeAlias = tuple[Side, Name]
_Witness: TypeAlias = tuple[Side, Name, AnyFilter]
_C = TypeVar("_C", bound=Sized)


@dataclass(slots=True)
class Tree:
    """The entries of one tree by side, and the entries that each neighbour must receive because of them."""

    key: TypeKey
    parent: Principal | None
    #: opens sealed filters
    filters: Filters
    limits: BrokerLimits
    interests: dict[Side, set[Name]] = field(default_factory=dict)
    advertisements: dict[Side, dict[Name, Advertisement]] = field(default_factory=dict)
    subscriptions: dict[Side, dict[Name, AnyFilter]] = field(default_factory=dict)
    #: the subscriptions of neighbours, for events that are not sealed, and for those that are
    index: Matcher[tuple[Principal, int]] = field(init=False)
    sealed: SealedIndex[tuple[Principal, int]] = field(init=False)
    #: whether more than subscriptions has changed since `moves`, so that `entries_for` must be used
    changed: bool = True
    #: for each neighbour that advertises, the subscriptions that its events may match
    _towards: dict[Principal, Covering[_Source]] = field(default_factory=dict)
    #: neighbours whose advertisements have changed
    _stale: dict[Principal, None] = field(default_factory=dict)
    _moves: dict[Principal, dict[AnyFilter, bool]] = field(default_factory=dict)
    #: the new subscriptions since `demanded`, and one matching subscription for each wanted advertisement
    _fresh: list[_Witness] = field(default_factory=list)
    _witnesses: dict[Name, _Witness | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.index = Matcher(self.limits)
        self.sealed = SealedIndex(self.key, self.filters, self.limits)

    def put(self, side: Side, name: Name, entry: Entry) -> None:
        """Add an entry. A subscription replaces the one that had its name."""
        match entry:
            case InterestEntry():
                self.changed |= side not in self.interests
                self.interests.setdefault(side, set()).add(name)
            case Advertisement():
                self.advertisements.setdefault(side, {})[name] = entry
                self._readvertised(side, entry)
            case SubscriptionEntry(_, filter_):
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
        """Remove an entry."""
        match entry:
            case InterestEntry():
                _discard(self.interests, side, lambda names: names.remove(name))
                self.changed |= side not in self.interests
            case Advertisement():
                _discard(self.advertisements, side, lambda entries: entries.pop(name))
                self._readvertised(side, entry)
            case SubscriptionEntry():
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
        """Return the matcher of neighbours' subscriptions for a block's events; None if all may match."""
        return self.sealed.matcher(block) if isinstance(block, SealedPublications) else self.index.match

    def takers(self, block: Publications) -> Mapping[Principal, Sequence[int]]:
        """Return the neighbours that want events of a block, with the places of these events."""
        match = self.match(block)
        if match is None:
            return {side: range(len(block.numbers)) for side in self.subscriptions if side is not None}
        places = defaultdict[Principal, list[int]](list)
        for place, event in enumerate(block.events):
            # In the order of the matches, so that the same events always go out in the same order.
            for peer in dict.fromkeys(peer for peer, _ in match(event.values)):
                places[peer].append(place)
        return places

    def rekeyed(self) -> bool:
        """Compare subscriptions again if new keys have opened or closed some; return whether they have."""
        differs = self.sealed.rekeyed()
        if differs:
            self.changed = True
            self._stale |= dict.fromkeys(self._towards)
        return differs

    def offered(self) -> frozenset[TypeKey]:
        """Return the sub-types of the tree's type that are advertised."""
        everything = (entry.type for entries in self.advertisements.values() for entry in entries.values())
        return frozenset(of_type for of_type in everything if of_type != self.key)

    def demanded(self) -> list[tuple[str, bool]]:
        """Return the clients' advertisements whose demand is new or has changed, and whether they are wanted."""
        own = {str(name): entry for name, entry in self.advertisements.get(None, {}).items() if entry.type == self.key}
        fresh, self._fresh = self._fresh, []
        before, self._witnesses = self._witnesses, {}
        changes: list[tuple[str, bool]] = []
        for name, entry in own.items():
            known = before.get(name)
            if known is None or not self._stands(known):
                # An advertisement that was not wanted before can only be wanted by a new subscription.
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
        """Return the subscriptions that each neighbour must get (True) or lose (False), since the last call."""
        self._refresh()
        moves, self._moves, self.changed = self._moves, {}, False
        return {
            side: {SubscriptionEntry(self.key, filter_): told for filter_, told in filters.items()}
            for side, filters in moves.items()
        }

    def entries_for(self, side: Principal) -> Iterator[Entry]:
        """Yield all entries that a neighbour must have. Call `moves` first."""
        up = side == self.parent
        if up and any(other != side for other in self.interests):
            yield InterestEntry(self.key)
        if up or side in self.interests:
            yield from self._advertised_to(side)
        for filter_ in self._towards.get(side, ()):
            yield SubscriptionEntry(self.key, filter_)

    def _advertised_to(self, side: Principal) -> Iterator[Entry]:
        by_type: dict[TypeKey, list[Filter]] = {}
        for other, entries in self.advertisements.items():
            if other != side:
                for entry in entries.values():
                    by_type.setdefault(entry.type, []).append(entry.filter)
        for of_type, filters in by_type.items():
            for filter_ in widest(of_type, filters, self.limits):
                yield Advertisement(self.key, of_type, filter_)

    def _readvertised(self, side: Side, entry: Advertisement) -> None:
        self.changed = True
        if side is not None and entry.type == self.key:
            self._stale[side] = None

    def _refresh(self) -> None:
        """Recompute the subscriptions for neighbours whose advertisements have changed."""
        for side in self._stale:
            covering = self._towards[side] = Covering(self.key, self.filters, self.limits)
            for other, subscriptions in self.subscriptions.items():
                if other != side:
                    for name, filter_ in subscriptions.items():
                        if self._wanted(side, filter_):
                            covering.put((other, name), filter_)
            if not any(True for _ in self._own(side)):
                del self._towards[side]
        self._stale = {}

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


# ----------------------------------------------------------------------------------------------------------------------
# All trees of one broker.


#: the prefix of the name of a group's entry; no key starts with it
_SUM: Final = "all "


class _Subscribed(NamedTuple):
    """A client's subscription; `open` if its filter need not be sealed."""

    tree: TypeKey
    filter: Filter
    open: bool
    group: str


@dataclass(slots=True)
class _Group:
    """The filters of a group of subscriptions in one tree: by key, and how often each occurs."""

    filters: dict[str, Filter] = field(default_factory=dict)
    different: Counter[Filter] = field(default_factory=Counter)
    #: whether one entry that admits everything stands for the group
    summed: bool = False

    def add(self, key: str, filter_: Filter) -> None:
        self.filters[key] = filter_
        self.different[filter_] += 1

    def remove(self, key: str) -> None:
        filter_ = self.filters.pop(key)
        self.different[filter_] -= 1
        if not self.different[filter_]:
            del self.different[filter_]


class Forest:
    """Trees by type. `parent` returns the next hop to a type's rendezvous node, `filters` seals and opens filters."""

    def __init__(
        self,
        parent: Callable[[TypeKey], Principal | None],
        filters: Filters,
        limits: BrokerLimits,
    ) -> None:
        self._parent = parent
        self._filters = filters
        self._version = filters.version
        self._limits = limits
        #: clients' subscriptions whose filters may have to be sealed again
        self._unsealed: dict[str, None] = {}
        self.trees: dict[TypeKey, Tree] = {}
        self.subscribed: dict[str, _Subscribed] = {}
        self._clients: dict[TypeKey, Matcher[str]] = {}
        #: rises whenever an entry comes or goes
        self.version = 0
        #: for types with clients' subscriptions, the sub-types whose trees these have joined
        self._joined: dict[TypeKey, frozenset[TypeKey]] = {}
        self._groups: dict[tuple[TypeKey, str], _Group] = {}
        self._changed: dict[TypeKey, None] = {}
        #: types with fewer subscriptions than before
        self._unwanted: set[TypeKey] = set()

    # Entries.

    def put(self, side: Side, name: Name, entry: Entry) -> None:
        """Add an entry of a side."""
        self._tree(entry.tree).put(side, name, entry)
        if isinstance(entry, Advertisement):
            self._unwanted.add(entry.tree)

    def remove(self, side: Side, name: Name, entry: Entry) -> None:
        """Remove an entry."""
        self._tree(entry.tree).remove(side, name, entry)
        self._unwanted.add(entry.tree)

    def subscribe(self, key: str, of_type: TypeKey, filter_: Filter, group: str = "", *, open_: bool = True) -> None:
        """Add a client's subscription to all trees that it joins, with the filter that neighbours may see."""
        self._clients.setdefault(of_type, Matcher(self._limits)).add(key, filter_.selector)
        entry = self.subscribed[key] = _Subscribed(of_type, filter_, open_, group)
        for tree in (of_type, *self._joined.get(of_type, ())):
            self._place(key, entry, tree)

    def unsubscribe(self, key: str) -> None:
        """Remove a client's subscription."""
        entry = self.subscribed.pop(key)
        index = self._clients[entry.tree]
        index.remove(key)
        if not len(index):
            del self._clients[entry.tree]
        for tree in (entry.tree, *self._joined.get(entry.tree, ())):
            self._displace(key, entry, tree)

    # Clients.

    def with_joined(self, key: TypeKey) -> tuple[TypeKey, ...]:
        """Return a type and the sub-types whose trees the subscriptions of clients to it have joined."""
        return key, *self._joined.get(key, ())

    def trees_of(self, key: str) -> tuple[TypeKey, ...]:
        """Return the trees that a client's subscription has joined."""
        entry = self.subscribed.get(key)
        return () if entry is None else self.with_joined(entry.tree)

    def matchers(self, line: tuple[TypeKey, ...]) -> list[Matcher[str]]:
        """Return the matchers of clients' subscriptions to these types. Each key is in one of them only."""
        return [found for key in line if (found := self._clients.get(key)) is not None]

    def wanted(self) -> frozenset[TypeKey]:
        """Return the types that clients have subscribed to."""
        return frozenset(self._clients)

    # Changes.

    def change(self, key: TypeKey) -> None:
        """Compare all entries of a tree with what neighbours have."""
        self.trees[key].changed = True
        self._changed[key] = None

    def change_all(self) -> None:
        """Compare all entries of all trees with what neighbours have."""
        for key in self.trees:
            self.change(key)

    def find_parents(self) -> None:
        """Recompute all paths, after the network has changed."""
        for key, tree in self.trees.items():
            parent = self._parent(key)
            if parent != tree.parent:
                tree.parent = parent
                self.change(key)

    def rekey(self) -> None:
        """Seal clients' filters again, and compare neighbours' filters again, if the keys have changed.

        Each call seals only some, so that other work is not delayed. A filter that is still sealed in an old epoch
        admits all events of the new one, so meanwhile neighbours route by the type.
        """
        if self._version != self._filters.version:
            self._version = self._filters.version
            # Those that already wait come first.
            self._unsealed |= dict.fromkeys(self.subscribed)
            for tree_key, found in self.trees.items():
                if found.rekeyed():
                    self._changed[tree_key] = None
        most = self._limits.filter_sealings
        while self._unsealed and most > 0:
            key = next(iter(self._unsealed))
            del self._unsealed[key]
            most -= self._reseal(key)

    @property
    def resealing(self) -> bool:
        """Whether filters still have to be sealed again."""
        return bool(self._unsealed)

    def _reseal(self, key: str) -> int:
        """Seal the filter of a subscription again, if there is one; return in how many trees it has changed."""
        entry, sealed = self.subscribed.get(key), 0
        if entry is None:
            return sealed
        for tree in (entry.tree, *self._joined.get(entry.tree, ())):
            shown, known = self._shown(entry, tree), self._entered(tree).get(key)
            if known is not None and shown != known:
                self.put(None, key, SubscriptionEntry(tree, shown))
                sealed += 1
        return sealed

    def changed(self) -> list[Tree]:
        """Join and leave trees of sub-types until nothing changes; return all trees that have changed."""
        changed: set[TypeKey] = set()
        while self._changed:
            key, _ = self._changed.popitem()
            changed.add(key)
            self._join_offered(key)
        return [self.trees[key] for key in sorted(changed)]

    def unwanted(self) -> set[TypeKey]:
        """Return the types with fewer subscriptions than at the last call."""
        unwanted, self._unwanted = self._unwanted, set()
        return unwanted

    def drop_empty(self, trees: list[Tree]) -> list[TypeKey]:
        """Drop the empty ones among these trees, and return their types."""
        empty = [tree.key for tree in trees if not len(tree)]
        self.version += bool(empty)
        for key in empty:
            del self.trees[key]
        return empty

    def _tree(self, key: TypeKey) -> Tree:
        self.version += 1
        if key not in self.trees:
            self.trees[key] = Tree(key, self._parent(key), self._filters, self._limits)
        self._changed[key] = None
        return self.trees[key]

    def _place(self, key: str, entry: _Subscribed, tree: TypeKey) -> None:
        self.put(None, key, InterestEntry(tree))
        if not entry.group:
            self.put(None, key, SubscriptionEntry(tree, self._shown(entry, tree)))
            return
        group = self._groups.setdefault((tree, entry.group), _Group())
        group.add(key, entry.filter)
        if group.summed:
            return
        if len(group.different) <= self._limits.client_filters:
            self.put(None, key, SubscriptionEntry(tree, self._shown(entry, tree)))
            return
        group.summed = True
        self.put(None, _SUM + entry.group, SubscriptionEntry(tree))
        for name in group.filters.keys() & self._entered(tree).keys():
            self.remove(None, name, SubscriptionEntry(tree))

    def _shown(self, entry: _Subscribed, tree: TypeKey) -> AnyFilter:
        """Return a client's filter in a tree as neighbours may see it."""
        shown = self._filters.seal(tree, entry.filter)
        return shown if entry.open or isinstance(shown, SealedFilter) else Filter()

    def _displace(self, key: str, entry: _Subscribed, tree: TypeKey) -> None:
        self.remove(None, key, InterestEntry(tree))
        if key in self._entered(tree):
            self.remove(None, key, SubscriptionEntry(tree))
        group = self._groups.get((tree, entry.group))
        if group is None:
            return
        group.remove(key)
        if group.summed and len(group.different) <= self._limits.client_filters // 2:
            # Add the filters before the entry that stands for them is removed.
            group.summed = False
            for name in group.filters:
                self.put(None, name, SubscriptionEntry(tree, self._shown(self.subscribed[name], tree)))
            self.remove(None, _SUM + entry.group, SubscriptionEntry(tree))
        if not group.filters:
            del self._groups[tree, entry.group]

    def _entered(self, tree: TypeKey) -> Mapping[Name, AnyFilter]:
        """Return the clients' subscriptions in a tree."""
        return self.trees[tree].subscriptions.get(None, {})

    def _join_offered(self, key: TypeKey) -> None:
        """Let clients' subscriptions to a type join the trees of its advertised sub-types."""
        before = self._joined.pop(key, frozenset())
        offered = self.trees[key].offered() if key in self._clients else frozenset()
        if offered:
            self._joined[key] = offered
        if offered == before:
            return
        for name, entry in self.subscribed.items():
            if entry.tree == key:
                for sub_type in sorted(offered - before):
                    self._place(name, entry, sub_type)
                for sub_type in sorted(before - offered):
                    self._displace(name, entry, sub_type)

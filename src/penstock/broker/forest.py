"""The trees of one broker, and the subscriptions of its clients, each of which may stand in several of them.

A subscription to a type takes part in the tree of that type, and in those of its sub-types of which this broker hears
that somebody advertises them.

What a group of subscriptions, say all those of a principal, may cost the network is bounded. Where it asks for more
than `Limits.client_filters` different things in a tree, it stands there as one that asks for everything. Its clients
still get what they have asked for and nothing else: that is found out here, whatever neighbours send.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.broker.entries import Advertisement, AnyFilter, Entry, Filter, Interest, SealedFilter, Subscription
from penstock.broker.matching import Matcher, Values
from penstock.broker.sealed_filters import Filters
from penstock.broker.trees import Name, Side, Tree
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import TypeKey
from penstock.model.principals import Principal

#: what the name of a group's entry begins with, which no key does
_SUM: Final = "all "


class _Subscribed(NamedTuple):
    """What a client has subscribed to; `open` where its filter need not be sealed."""

    tree: TypeKey
    filter: Filter
    open: bool
    group: str


@dataclass(slots=True)
class _Group:
    """What a group of subscriptions asks for in one tree: by key, and how often each filter is among it."""

    filters: dict[str, Filter] = field(default_factory=dict)
    different: Counter[Filter] = field(default_factory=Counter)
    #: whether it stands there as one that asks for everything
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
    """Trees by type. `parent` says where a tree's rendezvous node lies, `filters` what is sealed and opened here."""

    def __init__(
        self,
        parent: Callable[[TypeKey], Principal | None],
        filters: Filters,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._parent = parent
        self._filters = filters
        self._version = filters.version
        self._limits = limits
        #: subscriptions of clients whose filters may have to be sealed anew
        self._unsealed: dict[str, None] = {}
        self.trees: dict[TypeKey, Tree] = {}
        self.subscribed: dict[str, _Subscribed] = {}
        self._clients: dict[TypeKey, Matcher[str]] = {}
        #: for types with subscriptions of clients, the sub-types whose trees these have joined
        self._joined: dict[TypeKey, frozenset[TypeKey]] = {}
        self._groups: dict[tuple[TypeKey, str], _Group] = {}
        self._changed: dict[TypeKey, None] = {}
        #: types of which less may be wanted than before
        self._unwanted: set[TypeKey] = set()

    # Entries.

    def put(self, side: Side, name: Name, entry: Entry) -> None:
        """Take in an entry of a side."""
        self._tree(entry.tree).put(side, name, entry)
        if isinstance(entry, Advertisement):
            self._unwanted.add(entry.tree)

    def remove(self, side: Side, name: Name, entry: Entry) -> None:
        """Take out an entry that was taken in."""
        self._tree(entry.tree).remove(side, name, entry)
        self._unwanted.add(entry.tree)

    def subscribe(self, key: str, of_type: TypeKey, filter_: Filter, group: str = "", *, open_: bool = True) -> None:
        """Take in a client's subscription, in all trees in which it takes part, with what neighbours may see of it."""
        self._clients.setdefault(of_type, Matcher()).add(key, filter_.selector)
        entry = self.subscribed[key] = _Subscribed(of_type, filter_, open_, group)
        for tree in (of_type, *self._joined.get(of_type, ())):
            self._place(key, entry, tree)

    def unsubscribe(self, key: str) -> None:
        """Take it out."""
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
        """Return the trees in which a client's subscription takes part."""
        entry = self.subscribed.get(key)
        return () if entry is None else self.with_joined(entry.tree)

    def matchers(self, line: tuple[TypeKey, ...]) -> list[Callable[[Values], tuple[str, ...]]]:
        """Return what finds the keys of clients' subscriptions to one of these types, each key in one of them only."""
        return [found.match for key in line if (found := self._clients.get(key)) is not None]

    def wanted(self) -> frozenset[TypeKey]:
        """Return the types that clients have subscribed to."""
        return frozenset(self._clients)

    # Changes.

    def change(self, key: TypeKey) -> None:
        """Have everything about a tree told anew where it differs."""
        self.trees[key].changed = True
        self._changed[key] = None

    def change_all(self) -> None:
        """Have everything told anew where it differs."""
        for key in self.trees:
            self.change(key)

    def find_parents(self) -> None:
        """Find all paths anew: the network has changed."""
        for key, tree in self.trees.items():
            parent = self._parent(key)
            if parent != tree.parent:
                tree.parent = parent
                self.change(key)

    def rekey(self) -> None:
        """Seal filters anew, and compare those of others anew, if there are other keys than before.

        Not more than some are sealed with each call: others have something to do too. What is still sealed in an old
        epoch asks nothing of events of the new one, so that neighbours go by the type meanwhile.
        """
        if self._version != self._filters.version:
            self._version = self._filters.version
            # Those that wait already are the first.
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
        """Whether filters are still to be sealed anew."""
        return bool(self._unsealed)

    def _reseal(self, key: str) -> int:
        """Seal the filter of a subscription anew, if it still stands, and say for how many trees that was needed."""
        entry, sealed = self.subscribed.get(key), 0
        if entry is None:
            return sealed
        for tree in (entry.tree, *self._joined.get(entry.tree, ())):
            shown, known = self._shown(entry, tree), self._entered(tree).get(key)
            if known is not None and shown != known:
                self.put(None, key, Subscription(tree, shown))
                sealed += 1
        return sealed

    def changed(self) -> list[Tree]:
        """Join and leave trees of sub-types until nothing changes, and return all trees that did change."""
        changed: set[TypeKey] = set()
        while self._changed:
            key, _ = self._changed.popitem()
            changed.add(key)
            self._join_offered(key)
        return [self.trees[key] for key in sorted(changed)]

    def unwanted(self) -> set[TypeKey]:
        """Return the types of which less may be wanted than the last time."""
        unwanted, self._unwanted = self._unwanted, set()
        return unwanted

    def drop_empty(self, trees: list[Tree]) -> list[TypeKey]:
        """Forget those of these trees in which nothing stands, and return them."""
        empty = [tree.key for tree in trees if not len(tree)]
        for key in empty:
            del self.trees[key]
        return empty

    def _tree(self, key: TypeKey) -> Tree:
        if key not in self.trees:
            self.trees[key] = Tree(key, self._parent(key), self._filters, self._limits)
        self._changed[key] = None
        return self.trees[key]

    def _place(self, key: str, entry: _Subscribed, tree: TypeKey) -> None:
        self.put(None, key, Interest(tree))
        if not entry.group:
            self.put(None, key, Subscription(tree, self._shown(entry, tree)))
            return
        group = self._groups.setdefault((tree, entry.group), _Group())
        group.add(key, entry.filter)
        if group.summed:
            return
        if len(group.different) <= self._limits.client_filters:
            self.put(None, key, Subscription(tree, self._shown(entry, tree)))
            return
        group.summed = True
        self.put(None, _SUM + entry.group, Subscription(tree))
        for name in group.filters.keys() & self._entered(tree).keys():
            self.remove(None, name, Subscription(tree))

    def _shown(self, entry: _Subscribed, tree: TypeKey) -> AnyFilter:
        """Return what neighbours may see of a client's filter in a tree."""
        shown = self._filters.seal(tree, entry.filter)
        return shown if entry.open or isinstance(shown, SealedFilter) else Filter()

    def _displace(self, key: str, entry: _Subscribed, tree: TypeKey) -> None:
        self.remove(None, key, Interest(tree))
        if key in self._entered(tree):
            self.remove(None, key, Subscription(tree))
        group = self._groups.get((tree, entry.group))
        if group is None:
            return
        group.remove(key)
        if group.summed and len(group.different) <= self._limits.client_filters // 2:
            # First what is wanted, then what was told in its place.
            group.summed = False
            for name in group.filters:
                self.put(None, name, Subscription(tree, self._shown(self.subscribed[name], tree)))
            self.remove(None, _SUM + entry.group, Subscription(tree))
        if not group.filters:
            del self._groups[tree, entry.group]

    def _entered(self, tree: TypeKey) -> Mapping[Name, AnyFilter]:
        """Return what stands in a tree for clients."""
        return self.trees[tree].subscriptions.get(None, {})

    def _join_offered(self, key: TypeKey) -> None:
        """Let clients' subscriptions to a type take part in the trees of the sub-types that are advertised."""
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

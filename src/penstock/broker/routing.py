"""The router of one broker: a plain state machine between its clients and its neighbours.

Whoever drives it tells it what happens (`link_up`, `receive`, `subscribe`, `tick`, …) and carries out what it returns:
`Send`, `Deliver`, `Cut`. It reads no clock and keeps no secret; `now` is any clock that does not go backwards, in
seconds. How a tree works is told in `trees`, who is on it in `membership`, how two neighbours keep count in `hops`.

An event travels in the tree of its own type only. A subscription to a type therefore takes part in the trees of its
sub-types too: their publishers advertise in the trees of all ancestors, and where a broker with such a subscription
hears of a sub-type, it joins that tree. So a broker that may not route a sub-type never sees its events.

At most once: an event's origin numbers it, and each broker takes each number once, also while paths are being repaired.
In source order while the path stays the same, because links keep order.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from penstock.broker.copies import Copies
from penstock.broker.entries import Advertisement, Entry, Filter, Interest, Subscription
from penstock.broker.filters import passes
from penstock.broker.hops import Heard, Hops
from penstock.broker.matching import Matcher
from penstock.broker.membership import Membership, View
from penstock.broker.messages import Announcement, Body, Disclosure, Enter, Hop, Pulse, Withdraw
from penstock.broker.outputs import Cut as Cut
from penstock.broker.outputs import Deliver as Deliver
from penstock.broker.outputs import Disclosed as Disclosed
from penstock.broker.outputs import Interested as Interested
from penstock.broker.outputs import Output as Output
from penstock.broker.outputs import Send as Send
from penstock.broker.outputs import Settings as Settings
from penstock.broker.outputs import Size as Size
from penstock.broker.publications import Publications, blocks, check_slot
from penstock.broker.retained import Retained, Sample
from penstock.broker.trees import Side, Tree
from penstock.errors import LimitError, MalformedError, PenstockError, RefusedError
from penstock.model.events import TransitEvent
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.selector import ALWAYS, Compiled

_T = TypeVar("_T")


@dataclass(slots=True)
class _Neighbour:
    hops: Hops
    up: bool = False
    last: float = 0.0
    #: what it has entered, and the handles of that which it may enter
    entered: dict[int, Entry] = field(default_factory=dict)
    heeded: set[int] = field(default_factory=set)
    told: dict[TypeKey, dict[Entry, int]] = field(default_factory=dict)
    handles: int = 0


@dataclass(frozen=True, slots=True)
class _Advertised:
    entries: tuple[Advertisement, ...]
    #: None where everything passes
    passes: Compiled | None


class Router:
    """See the module. `incarnation` rises from start to start of a broker."""

    def __init__(self, me: Principal, incarnation: int, settings: Settings | None = None) -> None:
        self.me = me
        self._settings = settings or Settings()
        self._may_route, self._limits = self._settings.may_route, self._settings.limits
        self._admitted = self._settings.admitted
        self._members = Membership(
            me, incarnation, proof=self._settings.proof, admitted=self._admitted, limits=self._limits
        )
        self._view: View | None = None
        self._neighbours: dict[Principal, _Neighbour] = {}
        self._trees: dict[TypeKey, Tree] = {}
        self._changed: dict[TypeKey, None] = {}
        self._advertised: dict[str, _Advertised] = {}
        self._subscribed: dict[str, Subscription] = {}
        self._clients: dict[TypeKey, Matcher[str]] = {}
        #: for types with subscriptions of clients, the sub-types whose trees these have joined
        self._joined: dict[TypeKey, frozenset[TypeKey]] = {}
        self._published = 0
        self._copies = Copies(self._limits)
        self._retained = Retained(self._limits)
        #: types of which less may be wanted now of what is retained
        self._unwanted: set[TypeKey] = set()
        self._pulsed = float("-inf")
        self._renewed: float | None = None
        self._outputs: list[Output] = []

    # Links and neighbours.

    def link_up(self, peer: Principal, now: float) -> list[Output]:
        """Begin with a neighbour to whom there is a new connection."""
        self._down(peer)
        neighbour = self._neighbours.setdefault(peer, _Neighbour(Hops(self._members.incarnation)))
        neighbour.up, neighbour.last = True, now
        neighbour.hops.connect()
        self._begin(peer, neighbour)
        return self._settle()

    def link_down(self, peer: Principal) -> list[Output]:
        """Forget what a neighbour said: the connection is gone."""
        self._down(peer)
        return self._settle()

    def receive(self, peer: Principal, hop: Hop, now: float) -> list[Output]:
        """Take a word of a neighbour. One who breaks the rules is cut off."""
        neighbour = self._neighbours.get(peer)
        if neighbour is None or not neighbour.up:
            return []
        neighbour.last = now
        try:
            self._take(peer, neighbour, hop, now)
        except PenstockError as error:
            self._cut(peer, error)
        return self._settle()

    def tick(self, now: float) -> list[Output]:
        """Do what is due: signs of life, and forgetting those who give none. Call it about every second."""
        for peer, neighbour in list(self._neighbours.items()):
            silent = now - neighbour.last
            if neighbour.up and silent > self._settings.silence:
                self._cut(peer, RefusedError("network.silent", "a neighbour has not been heard of for too long"))
            elif not neighbour.up and silent > self._settings.lifetime:
                del self._neighbours[peer]
        if now - self._pulsed >= self._settings.pulse:
            self._pulsed = now
            for peer in self._up():
                self._say(peer, Pulse())
        self._renew(now)
        forgotten = self._members.forget(now, self._settings.lifetime)
        self._outputs.extend(Disclosed(broker, b"") for broker in forgotten)
        return self._settle()

    def disclose(self, octets: bytes) -> list[Output]:
        """Show something to all brokers, in place of what was shown before.

        Raises `LimitError` (`network.limit`) when it is too long.
        """
        self._spread(self._members.disclose(octets))
        return self._settle()

    def leave(self) -> list[Output]:
        """Withdraw everything from the neighbours, and tell everybody. Close the links after what this returns."""
        self._spread(self._members.leave())
        return self._settle()

    # Clients.

    def advertise(
        self, key: str, of_type: TypeKey, ancestors: Iterable[TypeKey] = (), filter_: Filter | None = None
    ) -> list[Output]:
        """Let a client publish events of a type that pass a filter.

        Raises `RefusedError` (`route.key`) if the key is taken.
        """
        _new(key, self._advertised)
        own = Advertisement(of_type, of_type, filter_ or Filter())
        entries = (own, *(Advertisement(a, of_type) for a in dict.fromkeys(ancestors) if a != of_type))
        self._advertised[key] = _Advertised(entries, None if own.filter.selector == ALWAYS else passes(own.filter))
        for entry in entries:
            self._put(None, key, entry)
        return self._settle()

    def unadvertise(self, key: str) -> list[Output]:
        """Take an advertisement back. Raises `RefusedError` (`route.unknown`)."""
        _old(key, self._advertised)
        for entry in self._advertised.pop(key).entries:
            self._remove(None, key, entry)
        return self._settle()

    def subscribe(self, key: str, of_type: TypeKey, filter_: Filter | None = None) -> list[Output]:
        """Let a client have the events of a type and its sub-types that pass a filter.

        Raises `RefusedError` (`route.key`) if the key is taken.
        """
        _new(key, self._subscribed)
        entry = self._subscribed[key] = Subscription(of_type, filter_ or Filter())
        self._clients.setdefault(of_type, Matcher()).add(key, entry.filter.selector)
        for tree in (of_type, *self._joined.get(of_type, ())):
            self._place(key, entry, tree)
        self._show_to_client(key, entry)
        return self._settle()

    def unsubscribe(self, key: str) -> list[Output]:
        """Take a subscription back. Raises `RefusedError` (`route.unknown`)."""
        _old(key, self._subscribed)
        entry = self._subscribed.pop(key)
        index = self._clients[entry.tree]
        index.remove(key)
        if not len(index):
            del self._clients[entry.tree]
        for tree in (entry.tree, *self._joined.get(entry.tree, ())):
            self._displace(key, entry, tree)
        return self._settle()

    def publish(self, key: str, events: Sequence[TransitEvent], retain: str = "") -> list[Output]:
        """Publish events under an advertisement; the last of them is the state of the slot `retain`, if there is one.

        Raises `RefusedError`: `route.unknown`, `route.outside` when the advertisement does not announce such events,
        and `LimitError`: `route.event-size`, `message.limit` for the name of a slot.
        """
        _old(key, self._advertised)
        advertised = self._advertised[key]
        of_type, passing = advertised.entries[0].type, advertised.passes
        for event in events:
            if event.key != of_type or (passing is not None and not passing(event.values)):
                raise RefusedError(
                    "route.outside", "the event is not what was advertised", hint="advertise what you publish"
                )
        check_slot(retain)
        for block in blocks(self.me, self._members.incarnation, self._published + 1, events, retain):
            self._published += len(block.events)
            self._forward(block, None)
        return self._settle()

    # What operators and tests look at.

    @property
    def view(self) -> View:
        """The live part of the network as this broker sees it."""
        return self._members.view

    def size(self) -> Size:
        """Count what the router holds."""
        neighbours = self._neighbours.values()
        entered = [entry for neighbour in neighbours for entry in neighbour.entered.values()]
        told = sum(len(entries) for neighbour in neighbours for entries in neighbour.told.values())
        subscriptions = sum(isinstance(entry, Subscription) for entry in entered)
        clients = len(self._advertised) + len(self._subscribed)
        return Size(clients, len(entered), subscriptions, told, len(self._trees), len(self._retained))

    def trust_changed(self) -> list[Output]:
        """Find all paths anew: `may_route` or `admitted` answers otherwise than before."""
        self._view = None
        for news in self._members.review():
            self._spread(news)
        for key in self._trees:
            self._change(key)
        for peer, neighbour in self._neighbours.items():
            for handle, entry in neighbour.entered.items():
                self._heed(peer, neighbour, handle, entry, allowed=self._allowed(entry.tree, peer))
        return self._settle()

    # Words of neighbours.

    def _take(self, peer: Principal, neighbour: _Neighbour, hop: Hop, now: float) -> None:
        match neighbour.hops.hear(hop):
            case Heard.NEW:
                self._greeted(peer, neighbour)
            case Heard.REBORN:
                self._greeted(peer, neighbour)
                self._begin(peer, neighbour)
            case Heard.LOST:
                self._outputs.append(Send(peer, neighbour.hops.again()))
            case Heard.ASKED:
                self._begin(peer, neighbour)
            case Heard.NEXT:
                self._obey(peer, neighbour, hop.body, now)
            case Heard.NOTHING:
                pass

    def _greeted(self, peer: Principal, neighbour: _Neighbour) -> None:
        self._empty(peer, neighbour)
        self._spread(self._members.link_up(peer))

    def _obey(self, peer: Principal, neighbour: _Neighbour, body: Body, now: float) -> None:
        match body:
            case Announcement():
                news = self._members.hear(body, now)
                # My own, if it had to be corrected, goes to everybody; another's not back to where it came from.
                self._spread(news, but=None if news is None or news.broker == self.me else peer)
            case Disclosure():
                passed_on, octets = self._members.hear_disclosure(body)
                self._spread(passed_on, but=None if body.broker == self.me else peer)
                if octets is not None:
                    self._outputs.append(Disclosed(body.broker, octets))
            case Enter(handle, entry):
                self._enter(peer, neighbour, handle, entry)
            case Withdraw(handle):
                if handle not in neighbour.entered:
                    raise MalformedError("route.handle", "a neighbour withdraws what it has not entered")
                entry = neighbour.entered.pop(handle)
                self._heed(peer, neighbour, handle, entry, allowed=False)
            case Publications():
                self._forward(body, peer)

    def _enter(self, peer: Principal, neighbour: _Neighbour, handle: int, entry: Entry) -> None:
        if handle in neighbour.entered:
            raise MalformedError("route.handle", "a neighbour enters two things under one handle")
        if len(neighbour.entered) >= self._limits.route_entries:
            raise LimitError("route.limit", f"a neighbour enters more than {self._limits.route_entries} things")
        neighbour.entered[handle] = entry
        self._heed(peer, neighbour, handle, entry, allowed=self._allowed(entry.tree, peer))

    def _heed(self, peer: Principal, neighbour: _Neighbour, handle: int, entry: Entry, *, allowed: bool) -> None:
        """Let an entry count, or no longer."""
        if allowed and handle not in neighbour.heeded:
            neighbour.heeded.add(handle)
            self._put(peer, handle, entry)
            if isinstance(entry, Subscription):
                self._show_to_neighbour(peer, entry)
        elif not allowed and handle in neighbour.heeded:
            neighbour.heeded.discard(handle)
            self._remove(peer, handle, entry)

    def _begin(self, peer: Principal, neighbour: _Neighbour) -> None:
        """Begin a session, and tell everything anew in it."""
        self._outputs.append(Send(peer, neighbour.hops.begin()))
        for announcement in self._members.announcements():
            self._say(peer, announcement)
        neighbour.told, neighbour.handles = {}, 0
        for key in self._trees:
            self._change(key)

    def _down(self, peer: Principal) -> None:
        neighbour = self._neighbours.get(peer)
        if neighbour is None or not neighbour.up:
            return
        neighbour.up = False
        neighbour.told = {}
        self._empty(peer, neighbour)
        self._spread(self._members.link_down(peer))

    def _cut(self, peer: Principal, reason: PenstockError) -> None:
        self._down(peer)
        self._outputs.append(Cut(peer, reason))

    def _empty(self, peer: Principal, neighbour: _Neighbour) -> None:
        for handle, entry in neighbour.entered.items():
            self._heed(peer, neighbour, handle, entry, allowed=False)
        neighbour.entered = {}

    def _up(self) -> list[Principal]:
        return [peer for peer, neighbour in self._neighbours.items() if neighbour.up]

    def _say(self, peer: Principal, body: Body) -> None:
        self._outputs.append(Send(peer, self._neighbours[peer].hops.say(body)))

    def _spread(self, announcement: Announcement | Disclosure | None, but: Principal | None = None) -> None:
        if announcement is not None:
            for peer in self._up():
                if peer != but:
                    self._say(peer, announcement)

    def _renew(self, now: float) -> None:
        """Announce anew now and then: who was out of reach for long may have been forgotten by some, and not by all."""
        if self._renewed is None:
            self._renewed = now
        if now - self._renewed >= self._settings.lifetime / 2:
            self._renewed = now
            for news in self._members.renew():
                self._spread(news)

    # Trees.

    def _tree(self, key: TypeKey) -> Tree:
        if key not in self._trees:
            self._trees[key] = Tree(key, self._members.view.parent(key, self._may_route))
        self._changed[key] = None
        return self._trees[key]

    def _change(self, key: TypeKey) -> None:
        """Have everything about a tree told anew where it differs."""
        self._trees[key].changed = True
        self._changed[key] = None

    def _put(self, side: Side, name: str | int, entry: Entry) -> None:
        self._tree(entry.tree).put(side, name, entry)
        if isinstance(entry, Advertisement):
            self._unwanted.add(entry.tree)

    def _remove(self, side: Side, name: str | int, entry: Entry) -> None:
        self._tree(entry.tree).remove(side, name, entry)
        self._unwanted.add(entry.tree)

    def _place(self, key: str, entry: Subscription, tree: TypeKey) -> None:
        self._put(None, key, Interest(tree))
        self._put(None, key, replace(entry, tree=tree))

    def _displace(self, key: str, entry: Subscription, tree: TypeKey) -> None:
        self._remove(None, key, Interest(tree))
        self._remove(None, key, replace(entry, tree=tree))

    def _settle(self) -> list[Output]:
        """Tell the neighbours what follows from what happened, and return all that is to be done."""
        if self._view is not self._members.view:
            self._view = self._members.view
            self._find_parents(self._view)
        if self._changed:
            self._tell_changes(sorted(self._join_all()))
        for key in self._unwanted:
            self._retained.prune(key, self._is_wanted)
        self._unwanted = set()
        outputs, self._outputs = self._outputs, []
        return outputs

    def _tell_changes(self, keys: list[TypeKey]) -> None:
        entering: list[tuple[Principal, TypeKey, Entry]] = []
        withdrawing: list[tuple[Principal, TypeKey, Entry]] = []
        for key in keys:
            self._outputs.extend(Interested(*change) for change in self._trees[key].demanded())
            self._compare(self._trees[key], entering, withdrawing)
        # A path is laid before the old one is given up.
        for peer, key, entry in entering:
            self._tell(peer, key, entry)
        for peer, key, entry in withdrawing:
            self._untell(peer, key, entry)
        for key in keys:
            if not len(self._trees[key]):
                del self._trees[key]

    def _find_parents(self, view: View) -> None:
        for key, tree in self._trees.items():
            parent = view.parent(key, self._may_route)
            if parent != tree.parent:
                tree.parent = parent
                self._change(key)

    def _join_all(self) -> set[TypeKey]:
        """Join and leave trees of sub-types until nothing changes, and return all trees that did change."""
        changed: set[TypeKey] = set()
        while self._changed:
            key, _ = self._changed.popitem()
            changed.add(key)
            self._join_offered(key)
        return changed

    def _join_offered(self, key: TypeKey) -> None:
        """Let clients' subscriptions to a type take part in the trees of the sub-types that are advertised."""
        before = self._joined.pop(key, frozenset())
        offered = self._trees[key].offered() if key in self._clients else frozenset()
        if offered:
            self._joined[key] = offered
        if offered == before:
            return
        for name, entry in self._subscribed.items():
            if entry.tree == key:
                for sub_type in sorted(offered - before):
                    self._place(name, entry, sub_type)
                for sub_type in sorted(before - offered):
                    self._displace(name, entry, sub_type)

    def _compare(
        self,
        tree: Tree,
        entering: list[tuple[Principal, TypeKey, Entry]],
        withdrawing: list[tuple[Principal, TypeKey, Entry]],
    ) -> None:
        everything, moves = tree.changed, tree.moves()
        for peer in self._up() if everything else moves:
            told = self._neighbours[peer].told.get(tree.key, {})
            if not everything:
                wanted = moves[peer]
            elif self._allowed(tree.key, peer):
                wanted = {**dict.fromkeys(told, False), **dict.fromkeys(tree.entries_for(peer), True)}
            else:
                wanted = dict.fromkeys(told, False)
            entering.extend((peer, tree.key, entry) for entry, holds in wanted.items() if holds and entry not in told)
            withdrawing.extend(
                (peer, tree.key, entry) for entry, holds in wanted.items() if not holds and entry in told
            )

    def _allowed(self, key: TypeKey, peer: Principal) -> bool:
        return self._admitted(peer) and self._may_route(key, self.me) and self._may_route(key, peer)

    def _tell(self, peer: Principal, key: TypeKey, entry: Entry) -> None:
        neighbour = self._neighbours[peer]
        neighbour.handles += 1
        neighbour.told.setdefault(key, {})[entry] = neighbour.handles
        self._say(peer, Enter(neighbour.handles, entry))

    def _untell(self, peer: Principal, key: TypeKey, entry: Entry) -> None:
        told = self._neighbours[peer].told
        self._say(peer, Withdraw(told[key].pop(entry)))
        if not told[key]:
            del told[key]

    # Events.

    def _forward(self, block: Publications, came_from: Side) -> None:
        if came_from is not None and not self._allowed(block.type, came_from):
            return
        if not block.state:
            places = self._copies.first(block)
            if places:
                fresh = block.pick(places)
                self._carry(fresh, came_from)
                if fresh.retain:
                    self._retain(fresh, came_from)
        elif block.retain and self._retain(block, came_from):
            # It may have come before, and been forgotten; should it yet come by another way, it is a copy.
            self._copies.first(block)
            self._carry(block, came_from)

    def _carry(self, block: Publications, came_from: Side) -> None:
        """Give events to clients, and to the neighbours whose subscriptions they match."""
        sends = list(self._onward(block, came_from))
        deliveries = self._matched(block)
        if deliveries:
            self._outputs.append(Deliver(deliveries))
        for peer, part in sends:
            self._say(peer, part)

    def _onward(self, block: Publications, came_from: Side) -> Iterator[tuple[Principal, Publications]]:
        tree = self._trees.get(block.type)
        if tree is None or block.hops >= self._limits.network_hops:
            return
        match, places = tree.index.match, defaultdict[Principal, list[int]](list)
        for place, event in enumerate(block.events):
            for peer in {peer for peer, _ in match(event.values)}:
                places[peer].append(place)
        for peer, wanted in places.items():
            if peer != came_from and self._allowed(block.type, peer):
                for part in block.pick(wanted).onward().parts(self._limits):
                    yield peer, part

    def _matched(self, block: Publications) -> tuple[tuple[tuple[str, ...], TransitEvent], ...]:
        # A key stands for a subscription to one type, so that no two of these know the same key.
        matchers = [self._clients[key].match for key in (block.type, *block.ancestors) if key in self._clients]
        found: list[tuple[tuple[str, ...], TransitEvent]] = []
        for event in block.events if matchers else ():
            keys = [key for match in matchers for key in match(event.values)]
            if keys:
                keys.sort()
                found.append((tuple(keys), event))
        return tuple(found)

    # State.

    def _retain(self, block: Publications, source: Side) -> bool:
        """Keep the latest of some events of one slot; say whether it is later than what was kept."""
        samples = (Sample(block.pick([place]), source) for place in range(len(block.events)))
        latest = max(samples, key=lambda sample: sample.order)
        return self._is_wanted(latest) and self._retained.keep(latest)

    def _show_to_client(self, key: str, entry: Subscription) -> None:
        if len(self._retained):
            passing = passes(entry.filter)
            events = [sample.event for sample in self._retained.of_line(entry.tree)]
            found = tuple(((key,), event) for event in events if passing(event.values))
            if found:
                self._outputs.append(Deliver(found))

    def _show_to_neighbour(self, peer: Principal, entry: Subscription) -> None:
        if entry.tree in self._retained:
            passing = passes(entry.filter)
            for sample in self._retained.of_type(entry.tree):
                if passing(sample.event.values) and sample.block.hops < self._limits.network_hops:
                    self._say(peer, replace(sample.block, state=True).onward())

    def _is_wanted(self, sample: Sample) -> bool:
        """Say whether what follows a sample would come here too, or nothing can and somebody might ask for it."""
        event, tree = sample.event, self._trees.get(sample.event.key)
        if sample.source is None or any(
            key in self._clients and self._clients[key].match(event.values) for key in (event.key, *event.ancestors)
        ):
            return True
        if tree is None:
            return False
        if any(peer != sample.source for peer, _ in tree.index.match(event.values)):
            return True
        return bool(tree.interests) and not any(side is not None for side in tree.advertisements)


def _new(key: str, taken: dict[str, _T]) -> None:
    if key in taken:
        raise RefusedError("route.key", f"`{key[:80]}` is in use already", hint="take another key")


def _old(key: str, taken: dict[str, _T]) -> None:
    if key not in taken:
        raise RefusedError("route.unknown", f"there is nothing under `{key[:80]}`")

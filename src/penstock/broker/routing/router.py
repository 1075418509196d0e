"""The router of one broker: a pure state machine between its clients and its neighbours.

Whoever drives it tells it what happens (`link_up`, `receive`, `subscribe`, `tick`, …) and carries out what it returns:
`Send`, `Deliver`, `Cut`. It reads no clock and keeps no secret; `now` is any clock that does not go backwards, in
seconds. `trees` explains how a tree works, `membership` who is on it, `peers` what each neighbour entered and was sent.

An event travels in the tree of its own type only. A subscription to a type therefore takes part in the trees of its
sub-types too: their publishers advertise in the trees of all ancestors, and where a broker with such a subscription
hears of a sub-type, it joins that tree. So a broker that may not route a sub-type never sees its events.

At most once: an event's origin numbers it, and each broker takes each number once, also while paths are being repaired.
In source order while the path stays the same, because links keep order.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from penstock.broker.matching.matcher import Matcher
from penstock.broker.routing.carrier import Carried, Carrier
from penstock.broker.routing.filters import Advertised, check_known, check_new, check_passing, outside
from penstock.broker.routing.membership import Membership, NetworkView
from penstock.broker.routing.messages import (
    Announcement,
    Body,
    Confirm,
    Confirmed,
    Disclosure,
    Enter,
    Hop,
    Pulse,
    WithdrawEntry,
)
from penstock.broker.routing.outputs import (
    Cut,
    Deliver,
    Disclosed,
    Interested,
    Output,
    RouterSettings,
    Send,
    Size,
    Unsent,
)
from penstock.broker.routing.peers import Confirmations, Heard, Hops, LostNeighbours, Neighbour, Peers
from penstock.broker.routing.trees import Forest
from penstock.broker.sealing.blocks import SealedPublications
from penstock.broker.wire.entries import Entry, Filter, SubscriptionEntry
from penstock.broker.wire.publications import Publications, PublishedRows, blocks, check_slot
from penstock.errors import PenstockError, RefusedError
from penstock.model.events import TransitEvent
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.selector import Compiled


class _Route(NamedTuple):
    """Where rows of an advertisement go, until the forest changes."""

    version: int
    type: EventType
    #: what passes of what is advertised; None if everything does
    passing: Compiled | None
    clients: list[Matcher[str]]
    has_neighbours: bool


def _united(found: list[list[tuple[str, ...]]], rows: int) -> list[tuple[str, ...]]:
    """Return the keys that several indexes found for each row; each key is in one of them only."""
    return [tuple(sorted(chain.from_iterable(keys))) for keys in zip(*found, strict=True)] or [()] * rows


class Router:
    """See the module. `incarnation` rises from start to start of a broker."""

    def __init__(self, me: Principal, incarnation: int, settings: RouterSettings) -> None:
        self.me = me
        self._settings = settings
        self._may_route, self._limits = self._settings.may_route, self._settings.limits
        self._vault = self._settings.vault
        self._admitted = self._settings.admitted
        self._members = Membership(
            me, incarnation, proof=self._settings.proof, admitted=self._admitted, limits=self._limits
        )
        self._view: NetworkView | None = None
        self._neighbours = Peers(self._allowed)
        self._forest = Forest(
            lambda key: self._members.view.parent(key, self._may_route), self._vault.filters, self._limits
        )
        self._carrier = Carrier(self._forest, self._allowed, self._vault, self._limits)
        self._lost = LostNeighbours(self._limits)
        self._confirmations = Confirmations(self._limits)
        #: whether the messages to send follow from a client's subscription
        self._wishing = False
        self._advertised = Advertised(self._vault.seals)
        self._published = 0
        self._routes: dict[str, _Route] = {}
        self._pulsed = float("-inf")
        self._renewed: float | None = None
        self._outputs: list[Output] = []

    # Links and neighbours.

    def link_up(self, peer: Principal, now: float) -> list[Output]:
        """Begin with a neighbour with a new connection."""
        self._down(peer)
        neighbour = self._neighbours.setdefault(peer, Neighbour(Hops(self._members.incarnation)))
        neighbour.up, neighbour.last, neighbour.since = True, now, now
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
                self._lost.forget(peer)
            elif neighbour.up and neighbour.hops.greeted and silent < self._settings.pulse <= now - neighbour.since:
                self._lost.forget(peer)
        if now - self._pulsed >= self._settings.pulse:
            self._pulsed = now
            for peer in self._neighbours.up():
                self._say(peer, Pulse())
        self._renew(now)
        self._confirmations.expire(now)
        forgotten = self._members.forget(now, self._settings.lifetime)
        self._outputs.extend(Disclosed(broker, b"") for broker in forgotten)
        return self._settle()

    def disclose(self, data: bytes) -> list[Output]:
        """Show something to all brokers, in place of what was shown before.

        Raises `LimitError` (`network.limit`) when it is too long.
        """
        self._spread(self._members.disclose(data))
        return self._settle()

    def believe(self, broker: Principal, data: bytes) -> list[Output]:
        """Pass on what a broker discloses, now that it was read; nothing happens where it discloses something else."""
        self._spread(self._members.believe(broker, data))
        return self._settle()

    def disbelieve(self, broker: Principal, data: bytes) -> None:
        """Forget what a broker discloses: it cannot be read."""
        self._members.disbelieve(broker, data)

    def is_unread(self, broker: Principal, data: bytes) -> bool:
        """Return whether a broker still discloses this, and nobody has read it."""
        return self._members.is_unread(broker, data)

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
        for entry in self._advertised.put(key, of_type, ancestors, filter_ or Filter()):
            self._forest.put(None, key, entry)
        return self._settle()

    def unadvertise(self, key: str) -> list[Output]:
        """Take an advertisement back. Raises `RefusedError` (`route.unknown`)."""
        for entry in self._advertised.pop(key):
            self._forest.remove(None, key, entry)
        return self._settle()

    def subscribe(self, key: str, of_type: TypeKey, filter_: Filter | None = None, group: str = "") -> list[Output]:
        """Let a client have the events of a type and its sub-types that pass a filter, and the state that there is.

        What the subscriptions of one `group` ask of the network is bounded (`forest`).

        Raises `RefusedError` (`route.key`) if the key is taken.
        """
        check_new(key, self._forest.subscribed)
        wanted = filter_ or Filter()
        self._forest.subscribe(key, of_type, wanted, group, open_=not self._vault.seals(of_type))
        self._wishing = True
        shown = self._carrier.shown_to_client(of_type, wanted)
        if shown:
            self._outputs.append(Deliver(tuple(((key,), event) for event in shown)))
        return self._settle()

    def unsubscribe(self, key: str) -> list[Output]:
        """Take a subscription back. Raises `RefusedError` (`route.unknown`)."""
        check_known(key, self._forest.subscribed)
        self._forest.unsubscribe(key)
        return self._settle()

    def confirm(self, token: str, keys: Iterable[str], now: float) -> list[Output]:
        """Have it said (`Laid`) when the paths of subscriptions or advertisements are laid, throughout the network."""
        names = tuple(keys)
        self._confirmations.await_for_client(
            token, lambda: {tree for key in names for tree in self._trees_of(key)}, now
        )
        return self._settle()

    def _trees_of(self, key: str) -> Iterable[TypeKey]:
        """Return the trees in which a client's wish stands."""
        return (*self._forest.trees_of(key), *self._advertised.trees(key))

    def publish(self, key: str, events: Sequence[TransitEvent], retain: str = "") -> list[Output]:
        """Publish events under an advertisement; the last of them is the state of the slot `retain`, if there is one.

        Raises what `check_events` and `send` raise, and `LimitError` (`message.limit`) for the name of a slot.
        """
        self.check_events(key, events)
        check_slot(retain)
        return self.send(events, retain)

    def publish_rows(
        self, key: str, event_type: EventType, layout: tuple[str, ...], rows: list[list[Any]]
    ) -> tuple[list[tuple[str, ...]], list[Output]]:
        """Publish rows of a type that is not sealed; the values in them are those of the attributes in `layout`.

        Return the keys of the clients' subscriptions that each row matches, and the actions for neighbours.
        Raises what `check_events` raises, and `LimitError` (`route.event-size`).
        """
        route = self._routes.get(key)
        if route is None or route.version != self._forest.version or route.type is not event_type:
            route = self._find_route(key, event_type)
        if route.passing is not None:
            check_passing(event_type.key, route.passing, PublishedRows(event_type, layout, rows).events())
        first = self._published + 1
        self._published += len(rows)
        found = [clients.match_rows(layout, rows) for clients in route.clients]
        keys = found[0] if len(found) == 1 else _united(found, len(rows))
        if route.has_neighbours or self._lost.anybody:
            published = PublishedRows(event_type, layout, rows)
            block = published.block(self.me, self._members.incarnation, first)
            for peer, part in self._carrier.publish(block):
                self._say(peer, part)
            self._outputs.extend(Unsent(*missing) for missing in self._lost.missing(block, None))
            return keys, self._settle()
        # Nobody else gets them, so that none of them can come back as a copy.
        return keys, []

    def _find_route(self, key: str, event_type: EventType) -> "_Route":
        of_type, passing = self._advertised.passing(key)
        if of_type != event_type.key:
            raise outside()
        tree = self._forest.trees.get(of_type)
        clients = self._forest.matchers_of((of_type, *event_type.ancestors))
        route = _Route(self._forest.version, event_type, passing, clients, tree is not None and len(tree.index) > 0)
        if len(self._routes) >= self._limits.cache_entries:
            self._routes.clear()
        self._routes[key] = route
        return route

    def check_events(self, key: str, events: Sequence[TransitEvent]) -> None:
        """Check that events are what an advertisement announces.

        Raises `RefusedError`: `route.unknown`, `route.outside`.
        """
        self._advertised.check(key, events)

    def seals(self, of_type: TypeKey) -> bool:
        """Return whether events of a type travel sealed."""
        return self._vault.seals(of_type)

    def send(self, events: Sequence[TransitEvent], retain: str = "") -> list[Output]:
        """Send events that were checked when they came.

        Raises `LimitError` (`route.event-size`), and what sealing raises.
        """
        for block in blocks(self.me, self._members.incarnation, self._published + 1, events, retain):
            self._published += len(block.events)
            if not self._vault.seals(block.type):
                self._carry(block, None)
                continue
            if self._settings.on_fabric and not block.retain:
                # There are no neighbours who would get the blocks.
                self._vault.require(block.events)
                self._carry(block, None)
                continue
            for part in SealedPublications.sealing_all(block, self._vault, self._limits):
                self._carry(part, None)
        return self._settle()

    @property
    def waiting(self) -> int:
        """How many sealed blocks wait for keys."""
        return self._carrier.waiting

    def keys_changed(self) -> list[Output]:
        """Open what waits for keys: some have come."""
        self._carried(self._carrier.keys_changed())
        return self._settle()

    def give_up(self, of: Callable[[TypeKey], bool] = lambda _type: True) -> list[Output]:
        """Keep sealed what waits for keys that will not come: of all types, or of those that are said."""
        self._carried(self._carrier.give_up(of))
        return self._settle()

    @property
    def resealing(self) -> bool:
        """Whether filters of clients are still to be sealed under new keys: `reseal` goes on with it."""
        return self._forest.resealing

    def reseal(self) -> list[Output]:
        """Seal some more filters under new keys; so does everything else that happens here."""
        return self._settle()

    # Where something else than links is between brokers.

    def arrived(self, block: Publications) -> list[Output]:
        """Give clients the events of a block that did not come from a neighbour, and that somebody has verified."""
        self._carry(block, None)
        return self._settle()

    def wanted(self) -> frozenset[TypeKey]:
        """Return the types that clients have subscribed to."""
        return self._forest.wanted()

    # What operators and tests look at.

    @property
    def view(self) -> NetworkView:
        """The live part of the network as this broker sees it."""
        return self._members.view

    def size(self) -> Size:
        """Count what the router holds."""
        ledgers = [neighbour.ledger for neighbour in self._neighbours.values()]
        entered = [entry for ledger in ledgers for entry in ledger.entered.values()]
        told = sum(len(entries) for ledger in ledgers for entries in ledger.told.values())
        subscriptions = sum(isinstance(entry, SubscriptionEntry) for entry in entered)
        clients = len(self._advertised) + len(self._forest.subscribed)
        trees, retained = len(self._forest.trees), len(self._carrier.retained)
        return Size(clients, len(entered), subscriptions, told, trees, retained)

    def trust_changed(self) -> list[Output]:
        """Find all paths again: `may_route` or `admitted` answers otherwise than before."""
        self._view = None
        for news in self._members.review():
            self._spread(news)
        self._forest.change_all()
        for peer, neighbour in self._neighbours.items():
            for handle, entry in neighbour.ledger.entered.items():
                self._heed(peer, neighbour, handle, entry, allowed=self._allowed(entry.tree, peer))
        return self._settle()

    # Words of neighbours.

    def _take(self, peer: Principal, neighbour: Neighbour, hop: Hop, now: float) -> None:
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

    def _greeted(self, peer: Principal, neighbour: Neighbour) -> None:
        self._empty(peer, neighbour)
        self._spread(self._members.link_up(peer))

    def _obey(self, peer: Principal, neighbour: Neighbour, body: Body, now: float) -> None:
        match body:
            case Announcement():
                news = self._members.hear(body, now, peer)
                # My own, if it had to be corrected, goes to everybody; another's not back to where it came from.
                self._spread(news, but=None if news is None or news.broker == self.me else peer)
            case Disclosure():
                passed_on, data = self._members.hear_disclosure(body)
                self._spread(passed_on, but=None if body.broker == self.me else peer)
                if data is not None:
                    self._outputs.append(Disclosed(body.broker, data, peer))
            case Enter(handle, entry):
                neighbour.ledger.enter(handle, entry, self._limits.route_entries)
                self._heed(peer, neighbour, handle, entry, allowed=self._allowed(entry.tree, peer))
            case WithdrawEntry(handle):
                self._heed(peer, neighbour, handle, neighbour.ledger.withdraw(handle), allowed=False)
            case Confirm(_, tree):
                self._confirmations.await_for_peer(peer, body, lambda: self._forest.with_joined(tree), now)
            case Confirmed(number):
                self._confirmations.confirmed(peer, number)
            case Publications():
                self._carry(body, peer)

    def _heed(self, peer: Principal, neighbour: Neighbour, handle: int, entry: Entry, *, allowed: bool) -> None:
        """Let an entry count, or no longer. A subscription also asks for the state that there is."""
        if not neighbour.ledger.heed(handle, allowed=allowed):
            return
        if not allowed:
            self._forest.remove(peer, handle, entry)
            return
        self._forest.put(peer, handle, entry)
        if isinstance(entry, SubscriptionEntry):
            self._lost.asks_again(peer, entry.tree)
            for block in self._carrier.shown_to_neighbour(entry):
                self._say(peer, block)

    def _begin(self, peer: Principal, neighbour: Neighbour) -> None:
        """Begin a session, and tell everything again in it."""
        self._outputs.append(Send(peer, neighbour.hops.begin()))
        for announcement in self._members.announcements():
            self._say(peer, announcement)
        neighbour.ledger.forget_told()
        self._confirmations.forget(peer)
        self._forest.change_all()

    def _down(self, peer: Principal) -> None:
        neighbour = self._neighbours.get(peer)
        if neighbour is None or not neighbour.up:
            return
        neighbour.up = False
        neighbour.ledger.forget_told()
        self._confirmations.forget(peer)
        self._lost.lose(peer, neighbour.ledger.counting())
        self._empty(peer, neighbour)
        self._spread(self._members.link_down(peer))

    def _cut(self, peer: Principal, reason: PenstockError) -> None:
        self._down(peer)
        self._outputs.append(Cut(peer, reason))

    def _empty(self, peer: Principal, neighbour: Neighbour) -> None:
        for handle, entry in neighbour.ledger.entered.items():
            self._heed(peer, neighbour, handle, entry, allowed=False)
        neighbour.ledger.entered = {}

    def _say(self, peer: Principal, body: Body) -> None:
        self._outputs.append(Send(peer, self._neighbours[peer].hops.say(body)))

    def _spread(self, announcement: Announcement | Disclosure | None, but: Principal | None = None) -> None:
        if announcement is not None:
            for peer in self._neighbours.up():
                if peer != but:
                    self._say(peer, announcement)

    def _renew(self, now: float) -> None:
        """Announce again now and then: some brokers may have forgotten one that was out of reach."""
        if self._renewed is None:
            self._renewed = now
        if now - self._renewed >= self._settings.lifetime / 2:
            self._renewed = now
            for news in self._members.renew():
                self._spread(news)

    # What follows from what happened.

    def _settle(self) -> list[Output]:
        """Tell the neighbours what follows from what happened, and return all that is to be done."""
        if self._view is not self._members.view:
            self._view = self._members.view
            self._forest.find_parents()
        self._forest.rekey()
        trees = self._forest.changed()
        if trees:
            self._outputs.extend(Interested(*change) for tree in trees for change in tree.demanded())
            for peer, word in self._neighbours.news(trees):
                if isinstance(word, Enter):
                    self._confirmations.told(peer, word.entry.tree, wish=self._wishing)
                self._say(peer, word)
            for key in self._forest.drop_empty(trees):
                self._confirmations.forget_tree(key)
            self._carrier.prune()
        self._say_confirmed()
        self._wishing = False
        outputs, self._outputs = self._outputs, []
        return outputs

    def _say_confirmed(self) -> None:
        """Say what is confirmed and what is asked, after everything that it is about."""
        confirmations = self._confirmations
        if confirmations.said or confirmations.laid:
            said, confirmations.said = confirmations.said, []
            laid, confirmations.laid = confirmations.laid, []
            for peer, body in said:
                self._say(peer, body)
            self._outputs.extend(laid)

    def _allowed(self, key: TypeKey, peer: Principal) -> bool:
        return self._admitted(peer) and self._may_route(key, self.me) and self._may_route(key, peer)

    def _carry(self, block: Publications, came_from: Principal | None) -> None:
        self._carried(self._carrier.carry(block, came_from))
        if len(self._lost):
            self._outputs.extend(Unsent(*missing) for missing in self._lost.missing(block, came_from))

    def _carried(self, carried: Carried) -> None:
        self._outputs.extend(carried.unopened)
        if carried.deliveries:
            self._outputs.append(Deliver(carried.deliveries))
        for peer, part in carried.sends:
            self._say(peer, part)

"""The router of one broker: a pure state machine between its clients and its neighbours.

The driver passes in what happens (`link_up`, `receive`, `subscribe`, `tick`, …) and carries out the outputs: `Send`,
`Deliver`, `Cut`. The router reads no clock and keeps no secret. `now` is any monotonic clock, in seconds. `trees`
explains how a tree works, `membership` who is on it, `peers` the entries on both sides of a link.

An event travels only in the tree of its own type. A subscription to a type therefore also joins the trees of its
sub-types: their publishers advertise in the trees of all ancestors, and a broker with such a subscription joins the
tree of each sub-type that is advertised. So a broker that may not route a sub-type never sees its events.

Delivery is at most once: an event's origin numbers it, and each broker accepts each number once, also while paths are
being repaired. Events arrive in the order of their source while the path stays the same, because links keep order.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from penstock.broker.matching.matcher import Matcher
from penstock.broker.routing.carrier import Carried, Carrier, match_rows
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
from penstock.broker.wire.publications import Publications, blocks, check_slot
from penstock.errors import PenstockError, RefusedError
from penstock.model.events import EventRows, TransitEvent
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.selector import Compiled


class _Route(NamedTuple):
    """The destinations of an advertisement's rows, until the forest changes."""

    version: int
    type: EventType
    #: the test of the advertisement's filter; None if everything passes
    passing: Compiled | None
    clients: list[Matcher[str]]
    has_neighbours: bool


class Router:
    """The router of one broker. `incarnation` must rise with each start of the broker."""

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
        self._allowed = self._settings.may_pass or self._may_pass
        self._neighbours = Peers(self._allowed)
        self._forest = Forest(
            lambda key: self._members.view.parent(key, self._may_route), self._vault.filters, self._limits
        )
        self._carrier = Carrier(self._forest, self._allowed, self._vault, self._limits)
        self._lost = LostNeighbours(self._limits)
        self._confirmations = Confirmations(self._limits)
        #: whether a client's subscription causes the messages to send
        self._wishing = False
        self._advertised = Advertised(self._vault.seals)
        self._published = 0
        self._routes: dict[str, _Route] = {}
        self._pulsed = float("-inf")
        self._renewed: float | None = None
        self._outputs: list[Output] = []

    # Links and neighbours.

    def link_up(self, peer: Principal, now: float) -> list[Output]:
        """Start a session with a neighbour over a new connection."""
        self._down(peer)
        neighbour = self._neighbours.setdefault(peer, Neighbour(Hops(self._members.incarnation)))
        neighbour.up, neighbour.last, neighbour.since = True, now, now
        neighbour.hops.connect()
        self._begin(peer, neighbour)
        return self._settle()

    def link_down(self, peer: Principal) -> list[Output]:
        """Forget a neighbour's entries: the connection is gone."""
        self._down(peer)
        return self._settle()

    def introduce(self, announcements: Iterable[Announcement], now: float) -> list[Output]:
        """Know brokers by their last announcements, which are not verified or forwarded: everybody knows them."""
        self._members.introduce(announcements, now)
        return self._settle()

    @property
    def announcement(self) -> Announcement:
        """The last announcement of this broker."""
        return self._members.own

    def receive(self, peer: Principal, hop: Hop, now: float) -> list[Output]:
        """Process a neighbour's message. A neighbour that breaks the protocol is cut off."""
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
        """Send signs of life, and cut off silent neighbours. Call this about every second."""
        for peer, neighbour in list(self._neighbours.items()):
            silent = now - neighbour.last
            if neighbour.up and silent > self._settings.silence:
                self._cut(peer, RefusedError("network.silent", "a neighbour has been silent for too long"))
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
        """Replace this broker's disclosure to all brokers.

        Raises `LimitError` (`network.limit`) if it is too long.
        """
        self._spread(self._members.disclose(data))
        return self._settle()

    def believe(self, broker: Principal, data: bytes) -> list[Output]:
        """Forward a broker's disclosure after it was read. Does nothing if there is a later one."""
        self._spread(self._members.believe(broker, data))
        return self._settle()

    def disbelieve(self, broker: Principal, data: bytes) -> None:
        """Drop a broker's disclosure, because it cannot be read."""
        self._members.disbelieve(broker, data)

    def is_unread(self, broker: Principal, data: bytes) -> bool:
        """Return whether this is a broker's latest disclosure, and was not read yet."""
        return self._members.is_unread(broker, data)

    def leave(self) -> list[Output]:
        """Withdraw all entries, and announce that this broker leaves. Close the links after the outputs."""
        self._spread(self._members.leave())
        return self._settle()

    # Clients.

    def advertise(
        self, key: str, of_type: TypeKey, ancestors: Iterable[TypeKey] = (), filter_: Filter | None = None
    ) -> list[Output]:
        """Enter a client's advertisement of events that pass a filter.

        Raises `RefusedError` (`route.key`) if the key is in use.
        """
        for entry in self._advertised.put(key, of_type, ancestors, filter_ or Filter()):
            self._forest.put(None, key, entry)
        return self._settle()

    def unadvertise(self, key: str) -> list[Output]:
        """Withdraw an advertisement. Raises `RefusedError` (`route.unknown`)."""
        for entry in self._advertised.pop(key):
            self._forest.remove(None, key, entry)
        return self._settle()

    def subscribe(self, key: str, of_type: TypeKey, filter_: Filter | None = None, group: str = "") -> list[Output]:
        """Subscribe a client to a type and its sub-types with a filter, and deliver retained events.

        The subscriptions of one `group` are bounded together (`trees`).

        Raises `RefusedError` (`route.key`) if the key is in use.
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
        """Withdraw a subscription. Raises `RefusedError` (`route.unknown`)."""
        check_known(key, self._forest.subscribed)
        self._forest.unsubscribe(key)
        return self._settle()

    def confirm(self, token: str, keys: Iterable[str], now: float) -> list[Output]:
        """Return `Laid`, now or later, when the paths of these requests are set up throughout the network."""
        names = tuple(keys)
        self._confirmations.await_for_client(
            token, lambda: {tree for key in names for tree in self._trees_of(key)}, now
        )
        return self._settle()

    def _trees_of(self, key: str) -> Iterable[TypeKey]:
        """Return the trees that have a client's request."""
        return (*self._forest.trees_of(key), *self._advertised.trees(key))

    def publish(self, key: str, events: Sequence[TransitEvent], retain: str = "") -> list[Output]:
        """Publish events under an advertisement; the last is retained in the slot `retain`, if that is given.

        Raises what `check_events` and `send` raise, and `LimitError` (`message.limit`) for the name of a slot.
        """
        self.check_events(key, events)
        check_slot(retain)
        return self.send(events, retain)

    def publish_rows(
        self, key: str, event_type: EventType, layout: tuple[str, ...], rows: list[list[Any]]
    ) -> tuple[list[tuple[str, ...]], list[Output]]:
        """Publish rows of an unsealed type, with the values of the attributes in `layout`.

        Return the keys of the clients' subscriptions that each row matches, and the outputs for neighbours.
        Raises what `check_events` raises, and `LimitError` (`route.event-size`).
        """
        route = self._routes.get(key)
        if route is None or route.version != self._forest.version or route.type is not event_type:
            route = self._find_route(key, event_type)
        if route.passing is not None:
            check_passing(event_type.key, route.passing, EventRows(event_type.key, event_type.ancestors, layout, rows))
        first = self._published + 1
        self._published += len(rows)
        keys = match_rows(route.clients, layout, rows)
        if route.has_neighbours or self._lost.anybody:
            events = EventRows(event_type.key, event_type.ancestors, layout, rows)
            (block,) = blocks(self.me, self._members.incarnation, first, events)
            for peer, part in self._carrier.publish(block):
                self._say(peer, part)
            self._outputs.extend(Unsent(*missing) for missing in self._lost.missing(block, None))
            return keys, self._settle()
        # They go to no other broker, so none can come back as a copy.
        return keys, []

    def _find_route(self, key: str, event_type: EventType) -> "_Route":
        of_type, passing = self._advertised.passing(key)
        if of_type != event_type.key:
            raise outside()
        tree = self._forest.trees.get(of_type)
        clients = self._forest.matchers((of_type, *event_type.ancestors))
        route = _Route(self._forest.version, event_type, passing, clients, tree is not None and len(tree.index) > 0)
        if len(self._routes) >= self._limits.cache_entries:
            self._routes.clear()
        self._routes[key] = route
        return route

    def check_events(self, key: str, events: Sequence[TransitEvent]) -> None:
        """Check events against an advertisement.

        Raises `RefusedError`: `route.unknown`, `route.outside`.
        """
        self._advertised.check(key, events)

    def seals(self, of_type: TypeKey) -> bool:
        """Return whether events of a type travel sealed."""
        return self._vault.seals(of_type)

    def send(self, events: Sequence[TransitEvent], retain: str = "") -> list[Output]:
        """Send checked events.

        Raises `LimitError` (`route.event-size`), and what sealing raises.
        """
        for block in blocks(self.me, self._members.incarnation, self._published + 1, events, retain):
            self._published += len(block.numbers)
            if not self._vault.seals(block.type):
                self._carry(block, None)
                continue
            if self._settings.on_fabric and not block.retain:
                # There are no neighbours to send blocks to.
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
        """Open the blocks that wait for keys, because keys have arrived."""
        self._carried(self._carrier.keys_changed())
        return self._settle()

    def give_up(self, of: Callable[[TypeKey], bool] = lambda _type: True) -> list[Output]:
        """Drop the blocks that wait for keys, of all or some types. They are quarantined."""
        self._carried(self._carrier.give_up(of))
        return self._settle()

    @property
    def resealing(self) -> bool:
        """Whether clients' filters still have to be sealed under new keys. `reseal` continues."""
        return self._forest.resealing

    def reseal(self) -> list[Output]:
        """Seal some more filters under new keys, as every other call does."""
        return self._settle()

    # Fabrics instead of links.

    def arrived(self, block: Publications) -> list[Output]:
        """Deliver a verified block that did not come from a neighbour."""
        self._carry(block, None)
        return self._settle()

    def wanted(self) -> frozenset[TypeKey]:
        """Return the types that clients have subscribed to."""
        return self._forest.wanted()

    # For operators and tests.

    @property
    def view(self) -> NetworkView:
        """The live part of the network, as this broker sees it."""
        return self._members.view

    def size(self) -> Size:
        """Return how much the router holds."""
        ledgers = [neighbour.ledger for neighbour in self._neighbours.values()]
        entered = [entry for ledger in ledgers for entry in ledger.entered.values()]
        told = sum(len(entries) for ledger in ledgers for entries in ledger.told.values())
        subscriptions = sum(isinstance(entry, SubscriptionEntry) for entry in entered)
        clients = len(self._advertised) + len(self._forest.subscribed)
        trees, retained = len(self._forest.trees), len(self._carrier.retained)
        return Size(clients, len(entered), subscriptions, told, trees, retained)

    def trust_changed(self) -> list[Output]:
        """Compute all paths again, after answers of `may_route` or `admitted` have changed."""
        self._view = None
        for news in self._members.review():
            self._spread(news)
        self._forest.change_all()
        for peer, neighbour in self._neighbours.items():
            for handle, entry in neighbour.ledger.entered.items():
                self._heed(peer, neighbour, handle, entry, allowed=self._allowed(entry.tree, peer))
        return self._settle()

    # Messages of neighbours.

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
                # This broker's own corrected one goes to all; another's does not go back to its sender.
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
        """Count an entry, or not any longer. A new subscription also gets the retained events."""
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
        """Start a session, and send everything in it again."""
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
        """Announce again regularly: some brokers may have forgotten this one while it was unreachable."""
        if self._renewed is None:
            self._renewed = now
        if now - self._renewed >= self._settings.lifetime / 2:
            self._renewed = now
            for news in self._members.renew():
                self._spread(news)

    # Outputs.

    def _settle(self) -> list[Output]:
        """Compute the messages to neighbours that follow from what happened, and return all outputs."""
        # Without trees nothing depends on the network, which brokers that start hear about one by one.
        if self._forest.trees and self._view is not self._members.view:
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
        """Send confirmations and questions after the entries that they are about."""
        confirmations = self._confirmations
        if confirmations.said or confirmations.laid:
            said, confirmations.said = confirmations.said, []
            laid, confirmations.laid = confirmations.laid, []
            for peer, body in said:
                self._say(peer, body)
            self._outputs.extend(laid)

    def _may_pass(self, key: TypeKey, peer: Principal) -> bool:
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

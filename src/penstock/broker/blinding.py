"""Types whose names the network must not learn: neighbours see labels only (dissertation, section 8.2).

`Labels` computes the labels of a broker, `BlindedVault` seals and opens blocks under labels, and `BlindingRouter`
translates between names and labels around the plain router.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from penstock.broker.limits import BrokerLimits
from penstock.broker.local.type_library import Library
from penstock.broker.routing.filters import check_new, check_passing, passing_of
from penstock.broker.routing.outputs import Deliver, Deliveries, Interested, Output, RouterSettings
from penstock.broker.routing.router import Router
from penstock.broker.sealing.blocks import Vault
from penstock.broker.sealing.filters import Filters, NoFilters, OpenedFilter
from penstock.broker.wire.entries import AnyFilter, Filter, SealedFilter
from penstock.codec.blocks import (
    Blinded,
    BlockHeader,
    BlockNames,
    PlainNames,
    Route,
    read_route,
    says_labels,
    with_route,
    write_route,
    written_route,
)
from penstock.crypto.blinding import Directory, blind, blinded_key, is_blinded, label, unknown_label
from penstock.crypto.wrapping import Secret
from penstock.errors import RefusedError
from penstock.model.events import EventRows, TransitEvent, typed
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.selector import Compiled

# ----------------------------------------------------------------------------------------------------------------------
# The labels that a broker uses for blinded types when it talks to other brokers.
#
# A label is derived from a key that the brokers of the type share (`KeyGroup.labels`). When that key changes, all
# brokers that have it advertise and subscribe under both labels for a while (`BrokerLimits.label_overlap`). They
# publish under the old label for the first half of that time, and then under the new one. So each event is sent once,
# and a broker that receives the new key within the first half misses nothing. A broker that starts in between also
# asks for the old key.


_EVER: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Label:
    """One label of a type: the name that is derived from it, its key, and when its epoch started."""

    type: TypeKey
    tree: TypeKey
    key: Secret = field(repr=False)
    begun: datetime


class Labels:
    """The labels that a broker knows."""

    def __init__(self, library: Library, clock: Callable[[], datetime], limits: BrokerLimits) -> None:
        self._library = library
        self._clock = clock
        self._limits = limits
        self._overlap = timedelta(milliseconds=limits.label_overlap)
        #: by type and epoch, the oldest first
        self._held: dict[TypeKey, dict[int, _Label]] = {}
        self._trees: dict[TypeKey, _Label] = {}
        self._used: dict[TypeKey, TypeKey] = {}
        self._directory = Directory()
        #: routes that were translated to labels and to names
        self._routes: dict[tuple[TypeKey, bytes], bytes] = {}
        self._named: dict[bytes, tuple[TypeKey, bytes]] = {}
        self._revision = -1
        self._changes = 0

    def __repr__(self) -> str:
        return f"Labels({len(self._trees)})"

    @property
    def version(self) -> int:
        """Changes when labels or blinded types come or go, and when other labels come into use."""
        return self._changes + self._library.revision

    # Keys.

    def put(self, of_type: TypeKey, epoch: int, key: Secret, begun: datetime | None = None) -> None:
        """Add the labels' key of an epoch, and when the epoch started; None for a past epoch."""
        found = _Label(of_type, blinded_key(label(key, str(of_type))), key, begun or _EVER)
        self._held[of_type] = dict(sorted({**self._held.get(of_type, {}), epoch: found}.items()))
        self._changed()

    def drop(self, of_type: TypeKey, epoch: int) -> None:
        """Forget a key, if it is known. With the newest all others go: the broker has lost its right."""
        held = self._held.get(of_type, {})
        if epoch not in held:
            return
        gone = list(held) if epoch == max(held) else [epoch]
        self._held[of_type] = {number: one for number, one in held.items() if number not in gone}
        if not self._held[of_type]:
            del self._held[of_type]
        self._changed()

    def tick(self) -> None:
        """Use labels that all others should know by now, and forget those that nobody uses any more."""
        over = [(of_type, epoch) for of_type in self._held for epoch in self._over(of_type)]
        for of_type, epoch in over:
            self.drop(of_type, epoch)
        if self._used != self._in_use():
            self._changed()

    def missing(self, of_type: TypeKey) -> int | None:
        """Return the epoch whose labels are still in use but unknown here; None if there is none."""
        held = self._held.get(of_type)
        if not held:
            return None
        newest = max(held)
        recent = newest > 1 and self._clock() < held[newest].begun + self._overlap
        return newest - 1 if recent and newest - 1 not in held else None

    def _over(self, of_type: TypeKey) -> list[int]:
        held, now = self._held[of_type], self._clock()
        newest = max(held)
        return [epoch for epoch in held if epoch != newest and now >= held[newest].begun + self._overlap]

    def _in_use(self) -> dict[TypeKey, TypeKey]:
        """Return the label of each type to publish under: the newest one that all should know by now."""
        settled = self._clock() - self._overlap / 2
        used: dict[TypeKey, TypeKey] = {}
        for of_type, held in self._held.items():
            known = [one.tree for one in held.values() if one.begun <= settled]
            # If all labels are too new, use the oldest.
            used[of_type] = known[-1] if known else next(iter(held.values())).tree
        return used

    def _changed(self) -> None:
        self._changes += 1
        self._trees = {one.tree: one for held in self._held.values() for one in held.values()}
        self._used = self._in_use()
        self._routes.clear()
        self._revision = -1

    def keys(self, of_type: TypeKey) -> list[tuple[int, Secret]]:
        """Return the labels' keys that this broker holds, by epoch."""
        return [(epoch, one.key) for epoch, one in self._held.get(of_type, {}).items()]

    # Names.

    def blinds(self, of_type: TypeKey) -> bool:
        """Return whether a type's owner wants it blinded."""
        return of_type in self._library.blinded

    def trees(self, of_type: TypeKey) -> list[TypeKey]:
        """Return the names that brokers use for a type: its labels if it is blinded, otherwise its own name."""
        if not self.blinds(of_type):
            return [of_type]
        return [one.tree for one in self._held.get(of_type, {}).values()]

    def line(self, of_type: TypeKey) -> list[TypeKey]:
        """Return the names under which to subscribe to a type.

        Other brokers do not learn the sub-types of a blinded type. So that a subscriber gets these too, each is
        subscribed to by its own label, if this broker knows it.
        """
        if not self.blinds(of_type):
            return [of_type]
        below = {verified.event_type.key for verified in self._library.below(of_type, self._clock())}
        return [tree for one in sorted(below | {of_type}) for tree in self.trees(one)]

    def in_use(self, of_type: TypeKey) -> TypeKey:
        """Return the label under which to publish a type. Raises `RefusedError` (`seal.unknown-label`)."""
        found = self._used.get(of_type)
        if found is None:
            raise unknown_label()
        return found

    def type_of(self, tree: TypeKey) -> TypeKey | None:
        """Return the type of a label, if this broker knows it."""
        found = self._trees.get(tree)
        return None if found is None else found.type

    # Encoded routes of blocks.

    def route(self, tree: TypeKey, plain: bytes) -> bytes:
        """Return the route of a block under a label. Raises `RefusedError` (`seal.unknown-label`)."""
        found = self._routes.get((tree, plain))
        if found is None:
            if tree not in self._trees:
                raise unknown_label()
            made = write_route(blind(self._trees[tree].key, self._directory.resolve(read_route(plain))))
            found = self._routes[tree, plain] = self._bounded(made)
        return found

    def names(self, blinded: bytes) -> tuple[TypeKey, bytes]:
        """Return the label of a block, and its route with names instead of labels.

        Raises `RefusedError` (`seal.unknown-label`) and what reading a route raises.
        """
        self._learn()
        found = self._named.get(blinded)
        if found is None:
            route = read_route(blinded)
            names = self.resolve(route)
            tree = blinded_key(route.type) if isinstance(route, Blinded) else names.type
            found = self._named[blinded] = tree, self._bounded(write_route(PlainNames(names)))
        return found

    def resolve(self, route: Route) -> BlockNames:
        """Return the names of a route. Raises `RefusedError` (`seal.unknown-label`)."""
        self._learn()
        return self._directory.resolve(route)

    def _bounded(self, route: bytes) -> bytes:
        if len(self._routes) + len(self._named) >= self._limits.seal_streams:
            self._routes.clear()
            self._named.clear()
        return route

    def _learn(self) -> None:
        """Compute the labels of all names again, if types or keys have come or gone."""
        if self._revision == self._library.revision:
            return
        self._revision, self._directory = self._library.revision, Directory()
        self._named.clear()
        for one in self._trees.values():
            for line, attributes in self._names(one.type):
                self._directory.add(one.key, line, attributes)

    def _names(self, of_type: TypeKey) -> Iterator[tuple[tuple[TypeKey, ...], tuple[str, ...]]]:
        for verified in self._library.below(of_type, self._clock()):
            event_type = verified.event_type
            if event_type.key == of_type:
                line = (of_type, *event_type.ancestors)
                yield line, tuple(str(attribute.id) for attribute in event_type.attributes)


# ----------------------------------------------------------------------------------------------------------------------
# Sealing and opening events of blinded types: blocks and the router have labels only.
#
# The vault behind it sees blocks with the type's name. Only their routes are translated.


_CLOSED: Final = NoFilters()


class BlindedFilters:
    """`Filters` for types with labels, and for all others."""

    def __init__(self, filters: Filters, labels: Labels) -> None:
        self._filters = filters
        self._labels = labels

    @property
    def version(self) -> int:
        """Changes when keys or labels change."""
        return self._filters.version + self._labels.version

    def seal(self, of_type: TypeKey, filter_: Filter, /) -> AnyFilter:
        """Return a filter for neighbours; one that admits everything if the label's type is unknown."""
        found = self._type_of(of_type)
        return Filter() if found is None else self._filters.seal(found, filter_)

    def open(self, of_type: TypeKey, sealed: SealedFilter, /) -> OpenedFilter:
        """Open the parts for which there are keys."""
        found = self._type_of(of_type)
        return _CLOSED.open(of_type, sealed) if found is None else self._filters.open(found, sealed)

    def attributes(self, route: Route, /) -> Sequence[str]:
        """Return the attributes of a block; none if a label in its route is unknown."""
        try:
            return self._labels.resolve(route).attributes if isinstance(route, Blinded) else route.names.attributes
        except RefusedError:
            return ()

    def _type_of(self, of_type: TypeKey) -> TypeKey | None:
        return self._labels.type_of(of_type) if is_blinded(of_type) else of_type


class BlindedVault:
    """A `Vault` that translates labels for the vault behind it."""

    def __init__(self, vault: Vault, labels: Labels) -> None:
        self._vault = vault
        self._labels = labels
        self.filters = BlindedFilters(vault.filters, labels)
        self.now = vault.now

    def __repr__(self) -> str:
        return f"BlindedVault({self._vault!r})"

    def seals(self, of_type: TypeKey, /) -> bool:
        """Return whether events of a type travel sealed. All events under labels do."""
        return is_blinded(of_type) or self._vault.seals(of_type)

    def seal(self, events: Sequence[TransitEvent], /) -> bytes:
        """Seal events of one type, or of one label. Raises `RefusedError` (`seal.*`, `seal.unknown-label`)."""
        tree = typed(events).key
        if not is_blinded(tree):
            return self._vault.seal(events)
        data = self._vault.seal(self._known(events))
        return with_route(data, self._labels.route(tree, written_route(data)))

    def require(self, events: Sequence[TransitEvent], /) -> None:
        """Raise `RefusedError` as `seal` if keys to seal events of one type or label are missing."""
        self._vault.require(self._known(events) if is_blinded(typed(events).key) else events)

    def _known(self, events: Sequence[TransitEvent]) -> Sequence[TransitEvent]:
        """Return events of a label under their type's name. Raises `RefusedError` (`seal.unknown-label`)."""
        of_type = self._labels.type_of(typed(events).key)
        if of_type is None:
            raise unknown_label()
        return renamed(events, of_type)

    def open(self, data: bytes, /) -> Sequence[TransitEvent]:
        """Return the events of a block. Raises `RefusedError` (`seal.*`) and `MalformedError`."""
        if not says_labels(data):
            return self._vault.open(data)
        tree, plain = self._named(data)
        return renamed(self._vault.open(plain), tree)

    def _named(self, data: bytes) -> tuple[TypeKey, bytes]:
        """Return the label of a block, and the block with names instead of labels."""
        try:
            tree, route = self._labels.names(written_route(data))
        except RefusedError:
            # As with any missing key: it may still arrive.
            raise RefusedError(
                "seal.unknown-key", "this broker has no key for a blinded block", hint="forward it, or wait for the key"
            ) from None
        return tree, with_route(data, route)

    def demands(self, of_type: TypeKey, /) -> bool:
        """Return whether events of a type must be signed."""
        return self._vault.demands(self._type_of(of_type))

    def verify(self, data: bytes, events: Sequence[TransitEvent], /) -> None:
        """Verify the signature of all events of a block. Raises `RefusedError` (`seal.*`)."""
        if says_labels(data):
            data = self._named(data)[1]
            events = renamed(events, self._type_of(typed(events).key))
        self._vault.verify(data, events)

    def take(self, header: BlockHeader, of_type: TypeKey, rows: Sequence[int], arrived: datetime, /) -> Sequence[int]:
        """Accept each row of an opened block once, under whatever label it arrives."""
        return self._vault.take(header, self._type_of(of_type), rows, arrived)

    def knows(self, header: BlockHeader, of_type: TypeKey, rows: Sequence[int], /) -> bool:
        """Return whether rows of a block were accepted before, under whatever label."""
        return self._vault.knows(header, self._type_of(of_type), rows)

    def _type_of(self, of_type: TypeKey) -> TypeKey:
        return (self._labels.type_of(of_type) or of_type) if is_blinded(of_type) else of_type

    def reads_as_much(self, peer: Principal, of_type: TypeKey, /) -> bool:
        """Return whether a neighbour may read everything of a type that this broker may."""
        # Plaintext beside a blinded block would reveal the names that its route hides.
        return not is_blinded(of_type) and self._vault.reads_as_much(peer, of_type)


def renamed(events: Sequence[TransitEvent], key: TypeKey) -> Sequence[TransitEvent]:
    """Return events under another name of their type."""
    if type(events) is EventRows:
        return EventRows(key, events.ancestors, events.layout, events.rows)
    return tuple([TransitEvent(key, event.ancestors, event.values, event.id, event.time) for event in events])


# ----------------------------------------------------------------------------------------------------------------------
# The router of a broker that knows blinded types: clients use names, neighbours see labels.
#
# A client's request (an advertisement or a subscription) is entered in the trees of all current labels of its type.
# When labels come and go, or an owner starts to blind a type, requests move: into the new trees first, then out of the
# old ones. The plain router has one request for each tree; their outputs are combined here.


@dataclass(slots=True)
class _Wish:
    """A client's advertisement or subscription, and its names in the plain router."""

    type: TypeKey
    filter: Filter | None
    #: the ancestors of an advertised type
    line: tuple[TypeKey, ...] = ()
    #: the group whose requests are bounded together
    group: str = ""
    #: what the filter admits; None if it admits everything
    passes: Compiled | None = None
    placed: tuple[str, ...] = ()


@dataclass(slots=True)
class _Wishes:
    """Requests of one kind: how they are entered in the plain router and withdrawn, and in which trees they belong."""

    enter: Callable[[str, TypeKey, _Wish], list[Output]]
    leave: Callable[[str], list[Output]]
    trees: Callable[[TypeKey], list[TypeKey]]
    by_key: dict[str, _Wish] = field(default_factory=dict)
    #: the client's key, by the name of the request under a label
    keys: dict[str, str] = field(default_factory=dict)

    def begin(self, key: str, wish: _Wish) -> list[Output]:
        """Enter a request. Raises `RefusedError` (`route.key`)."""
        check_new(key, self.by_key)
        self.by_key[key] = wish
        return self.place(key, wish)

    def end(self, key: str) -> list[Output]:
        """Withdraw a request. Raises `RefusedError` (`route.unknown`)."""
        wish = self.by_key.pop(key, None)
        if wish is None:
            return self.leave(key)
        return [output for name in wish.placed for output in self._displace(name)]

    def place(self, key: str, wish: _Wish) -> list[Output]:
        """Enter a request in the trees where it belongs, and withdraw it from all others."""
        trees = {name_in(key, tree): tree for tree in self.trees(wish.type)}
        before, wish.placed = wish.placed, tuple(trees)
        said: list[Output] = []
        for name, tree in trees.items():
            if is_blinded(tree):
                self.keys[name] = key
            if name not in before:
                said += self.enter(name, tree, wish)
        for name in before:
            if name not in trees:
                said += self._displace(name)
        return said

    def place_all(self) -> list[Output]:
        """Place all requests."""
        return [output for key, wish in self.by_key.items() for output in self.place(key, wish)]

    def _displace(self, name: str) -> list[Output]:
        said = self.leave(name)
        self.keys.pop(name, None)
        return said


def name_in(key: str, tree: TypeKey) -> str:
    """Return the name of a client's request in the plain router, in a tree."""
    return f"{key} {tree.name}" if is_blinded(tree) else key


_Demand: TypeAlias = dict[str, bool]


class BlindingRouter(Router):
    """A router that uses labels for blinded types."""

    def __init__(self, me: Principal, incarnation: int, settings: RouterSettings, labels: Labels) -> None:
        super().__init__(me, incarnation, settings)
        self._labels = labels
        #: the version of the labels under which requests are entered
        self.labelled = labels.version
        self._offers = _Wishes(self._offer, self._withdraw, labels.trees)
        self._requests = _Wishes(self._request, super().unsubscribe, labels.line)
        #: for each advertisement the labels under which it is wanted; and what its client was sent
        self._demands: dict[str, _Demand] = {}
        self._told: dict[str, bool] = {}

    # Clients.

    def advertise(
        self, key: str, of_type: TypeKey, ancestors: Iterable[TypeKey] = (), filter_: Filter | None = None
    ) -> list[Output]:
        """Enter a client's advertisement. Raises what the router raises."""
        line, passing = tuple(ancestors), passing_of(filter_ or Filter())
        return self._offers.begin(key, _Wish(of_type, filter_, line, passes=passing))

    def unadvertise(self, key: str) -> list[Output]:
        """Withdraw an advertisement. Raises what the router raises."""
        self._demands.pop(key, None)
        self._told.pop(key, None)
        return self._offers.end(key)

    def subscribe(self, key: str, of_type: TypeKey, filter_: Filter | None = None, group: str = "") -> list[Output]:
        """Subscribe a client to a type and its sub-types. Raises errors of the router."""
        return self._requests.begin(key, _Wish(of_type, filter_, group=group))

    def unsubscribe(self, key: str) -> list[Output]:
        """Withdraw a subscription. Raises what the router raises."""
        return self._requests.end(key)

    def check_events(self, key: str, events: Sequence[TransitEvent]) -> None:
        """Check events against an advertisement. Raises what the router raises."""
        wish = self._offers.by_key.get(key)
        if wish is None or not self._labels.blinds(wish.type):
            super().check_events(key, events)
        else:
            check_passing(wish.type, wish.passes, events)

    def send(self, events: Sequence[TransitEvent], retain: str = "") -> list[Output]:
        """Send checked events. Raises what the router raises, and `seal.unknown-label`."""
        of_type = typed(events).key
        if not self._labels.blinds(of_type):
            return super().send(events, retain)
        said = self.labels_changed()
        return [*said, *super().send(renamed(events, self._labels.in_use(of_type)), retain)]

    def wanted(self) -> frozenset[TypeKey]:
        """Return the types that clients have subscribed to."""
        return frozenset(wish.type for wish in self._requests.by_key.values())

    def labels_changed(self) -> list[Output]:
        """Move requests to other trees, if labels or blinded types have come or gone."""
        if self.labelled == self._labels.version:
            return []
        self.labelled = self._labels.version
        return [*self._offers.place_all(), *self._requests.place_all()]

    def _trees_of(self, key: str) -> Iterable[TypeKey]:
        wishes = (self._requests.by_key.get(key), self._offers.by_key.get(key))
        names = [name for wish in wishes if wish is not None for name in wish.placed]
        return [tree for trees in map(super()._trees_of, names) for tree in trees]

    # Calls of the router.

    def _offer(self, name: str, tree: TypeKey, wish: _Wish) -> list[Output]:
        # Subscribers of an ancestor subscribe to this type's own label, so nobody has to learn what it extends.
        return super().advertise(name, tree, () if is_blinded(tree) else wish.line, wish.filter)

    def _withdraw(self, name: str) -> list[Output]:
        return [*super().unadvertise(name), *self._interested(name, wanted=False)]

    def _request(self, name: str, tree: TypeKey, wish: _Wish) -> list[Output]:
        return super().subscribe(name, tree, wish.filter, wish.group)

    # Outputs of the router.

    def _settle(self) -> list[Output]:
        outputs = super()._settle()
        if not self._offers.keys and not self._requests.keys:
            return outputs
        return [said for output in outputs for said in self._said(output)]

    def _said(self, output: Output) -> list[Output]:
        match output:
            case Deliver(deliveries):
                return [Deliver(self._named(deliveries))]
            case Interested(name, wanted) if name in self._offers.keys:
                return self._interested(name, wanted=wanted)
        return [output]

    def _interested(self, name: str, *, wanted: bool) -> list[Output]:
        """Tell a client whether its advertisement is wanted under at least one label, if that has changed."""
        key = self._offers.keys.get(name)
        if key is None or key not in self._offers.by_key:
            return []
        demand = self._demands.setdefault(key, {})
        demand[name] = wanted
        if not wanted:
            del demand[name]
        if self._told.get(key) is bool(demand):
            return []
        self._told[key] = bool(demand)
        return [Interested(key, bool(demand))]

    def _named(self, deliveries: Deliveries) -> Deliveries:
        """Return deliveries by the names that clients know, without those of labels that have just gone."""
        return tuple(named for delivery in deliveries if (named := self._name(*delivery)) is not None)

    def _name(self, names: tuple[str, ...], event: TransitEvent) -> tuple[tuple[str, ...], TransitEvent] | None:
        if not is_blinded(event.key):
            return names, event
        of_type = self._labels.type_of(event.key)
        if of_type is None:
            return None
        return tuple(self._requests.keys[name] for name in names), renamed((event,), of_type)[0]

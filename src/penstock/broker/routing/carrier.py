"""Carry events through one broker: to its clients, to the neighbours that want them, and into retained state."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.broker.evolution.statements import is_reserved
from penstock.broker.limits import BrokerLimits
from penstock.broker.matching.matcher import Matcher
from penstock.broker.routing.filters import passes
from penstock.broker.routing.outputs import Deliveries, RowDeliveries, Unopened
from penstock.broker.routing.trees import Forest, Side
from penstock.broker.sealing.blocks import SealedPublications, Vault, not_sealed
from penstock.broker.wire.entries import Filter, SubscriptionEntry
from penstock.broker.wire.publications import Publications
from penstock.codec.blocks import BlockHeader
from penstock.crypto.seal_keys import unknown_key
from penstock.errors import LimitError, MalformedError, PenstockError, RefusedError
from penstock.model.events import EventRows, TransitEvent
from penstock.model.names import TypeKey
from penstock.model.principals import Principal

# ----------------------------------------------------------------------------------------------------------------------
# Detecting copies of events.
#
# The origin of an event numbers it. While paths are being repaired an event may arrive twice, or late. Each broker
# accepts each number of an origin once. An event that arrives too late to tell counts as a copy, and so does one of an
# earlier incarnation of its origin. The memory is bounded: a window of numbers for each type and origin, and at most
# `BrokerLimits.route_streams` windows, of which the least recent is forgotten first.


_Name: TypeAlias = tuple[Principal, TypeKey]


@dataclass(slots=True)
class _Stream:
    """The recent numbers of one origin and type."""

    incarnation: int
    highest: int = -1
    recent: set[int] = field(default_factory=set)

    def take(self, numbers: Sequence[int], window: int) -> Sequence[int]:
        """Record rising numbers; return the places of the new ones."""
        if numbers[0] > self.highest:
            places: Sequence[int] = range(len(numbers))
            self.recent.update(numbers)
        else:
            places = [place for place, number in enumerate(numbers) if self._is_new(number, window)]
        self.highest = max(self.highest, numbers[-1])
        if len(self.recent) > 2 * window:
            self.recent = {seen for seen in self.recent if seen > self.highest - window}
        return places

    def knows(self, numbers: Sequence[int], window: int) -> bool:
        """Return whether all numbers have arrived before, or arrive too late."""
        if numbers[-1] > self.highest:
            return False
        return all(number in self.recent or number <= self.highest - window for number in numbers)

    def _is_new(self, number: int, window: int) -> bool:
        if number in self.recent or number <= self.highest - window:
            return False
        self.recent.add(number)
        self.highest = max(self.highest, number)
        return True


class Copies:
    """The events that one broker has seen."""

    def __init__(self, limits: BrokerLimits) -> None:
        self._limits = limits
        self._streams: OrderedDict[_Name, _Stream] = OrderedDict()

    def knows(self, block: Publications) -> bool:
        """Return whether all events of a block are copies. Records nothing."""
        stream = self._streams.get((block.origin, block.type))
        if stream is None or stream.incarnation < block.incarnation:
            return False
        return stream.incarnation > block.incarnation or stream.knows(block.numbers, self._limits.route_window)

    def first(self, block: Publications) -> Sequence[int]:
        """Return the places of the events that arrive for the first time, and record all of them."""
        name = block.origin, block.type
        stream = self._streams.get(name)
        if stream is None or stream.incarnation < block.incarnation:
            stream = self._streams[name] = _Stream(block.incarnation)
        self._streams.move_to_end(name)
        if len(self._streams) > self._limits.route_streams:
            self._streams.popitem(last=False)
        if stream.incarnation > block.incarnation:
            return ()
        return stream.take(block.numbers, self._limits.route_window)


# ----------------------------------------------------------------------------------------------------------------------
# Sealed blocks that clients want, and whose keys have not arrived yet. The oldest are dropped first.


class Waiting(NamedTuple):
    """A block that waits for its key. Its arrival time counts, however long it waits."""

    block: SealedPublications
    came_from: Side
    arrived: datetime


class WaitingRoom:
    """The blocks that wait for keys, bounded in number and bytes."""

    def __init__(self, limits: BrokerLimits) -> None:
        self._limits = limits
        self._waiting: deque[Waiting] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, block: SealedPublications) -> bool:
        return any(one.block.block == block.block and one.block.places == block.places for one in self._waiting)

    def put(self, waiting: Waiting) -> list[Waiting]:
        """Add a block; return those that are dropped for it."""
        self._waiting.append(waiting)
        self._bytes += len(waiting.block.block)
        gone: list[Waiting] = []
        limits = self._limits
        while len(self._waiting) > limits.seal_waiting or self._bytes > limits.seal_waiting_bytes:
            gone.append(self._waiting.popleft())
            self._bytes -= len(gone[-1].block.block)
        return gone

    def empty(self) -> list[Waiting]:
        """Remove and return all blocks, in the order of arrival."""
        return self.take(lambda _type: True)

    def take(self, of: Callable[[TypeKey], bool]) -> list[Waiting]:
        """Remove and return the blocks of some types, in the order of arrival."""
        taken = [waiting for waiting in self._waiting if of(waiting.block.type)]
        self._waiting = deque(waiting for waiting in self._waiting if not of(waiting.block.type))
        self._bytes -= sum(len(waiting.block.block) for waiting in taken)
        return taken


# ----------------------------------------------------------------------------------------------------------------------
# Retained state: the latest event of each slot, kept by the brokers that carry it.
#
# A publisher may name the slot that an event belongs to, for example the certificate whose validity it states. For each
# type and slot a broker keeps the latest event, by its time, then by its id and the number of its origin. A new
# subscriber receives the retained events that match. A broker that receives them forwards those that it did not have.
# So state comes from the nearest broker that has it, and each broker forwards each event once.
#
# A retained event stays current only while a subscription brings its successors. So events that no subscription matches
# any more are dropped, except at their publishers' brokers, and while the path to these is broken. The memory is
# bounded. When it is full, the side that most events came from loses its oldest: a neighbour displaces only its own.


_NEVER: Final = datetime.min.replace(tzinfo=UTC)
#: the approximate size of an event besides its texts, and of an attribute
_EVENT_BYTES: Final = 512
_VALUE_BYTES: Final = 128

_Slot: TypeAlias = tuple[TypeKey, str]


@dataclass(frozen=True, slots=True)
class RetainedSample:
    """The latest event of a slot, as a block of one, and the side from which it came."""

    block: Publications
    source: Side

    @property
    def event(self) -> TransitEvent:
        """The event."""
        return self.block.events[0]

    @property
    def order(self) -> tuple[datetime, str, int, int, bytes]:
        """The sort key: the later of two samples has the greater one."""
        block, event = self.block, self.event
        return event.time or _NEVER, event.id, block.incarnation, block.numbers[0], block.origin.digest

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        event = self.event
        texts = sum(len(value) for value in (event.id, *event.values.values()) if isinstance(value, str))
        return _EVENT_BYTES + _VALUE_BYTES * len(event.values) + 4 * texts


class RetainedSamples:
    """The samples that one broker keeps."""

    def __init__(self, limits: BrokerLimits) -> None:
        self._limits = limits
        self._samples: OrderedDict[_Slot, RetainedSample] = OrderedDict()
        self._slots: dict[TypeKey, OrderedDict[str, None]] = {}
        #: by type (None for all types) and side, the slots; and the bytes by side
        self._sides: dict[TypeKey | None, dict[Side, OrderedDict[_Slot, None]]] = {None: {}}
        self._side_bytes: dict[Side, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._samples)

    def __contains__(self, key: TypeKey) -> bool:
        return key in self._slots

    def keep(self, sample: RetainedSample) -> bool:
        """Keep a sample if it is later than the kept one; return whether it is."""
        slot = sample.block.type, sample.block.retain
        held = self._samples.get(slot)
        if held is not None:
            if sample.order <= held.order:
                return False
            self._drop(slot)
        self._samples[slot] = sample
        self._slots.setdefault(slot[0], OrderedDict())[slot[1]] = None
        for key in (slot[0], None):
            self._sides.setdefault(key, {}).setdefault(sample.source, OrderedDict())[slot] = None
        self._side_bytes[sample.source] = self._side_bytes.get(sample.source, 0) + sample.size
        self._bytes += sample.size
        self._make_room(slot[0])
        return True

    def of_type(self, key: TypeKey) -> list[RetainedSample]:
        """Return the samples of one type, ordered by time."""
        return sorted((self._samples[key, slot] for slot in self._slots.get(key, ())), key=lambda s: s.order)

    def of_line(self, key: TypeKey) -> list[RetainedSample]:
        """Return the samples of a type and its sub-types, ordered by time."""
        return sorted(self._in_line(key), key=lambda sample: sample.order)

    def prune(self, key: TypeKey, wanted: Callable[[RetainedSample], bool]) -> None:
        """Drop the samples of one type that are not wanted."""
        for slot in list(self._slots.get(key, ())):
            if not wanted(self._samples[key, slot]):
                self._drop((key, slot))

    def _in_line(self, key: TypeKey) -> Iterator[RetainedSample]:
        for of_type, slots in self._slots.items():
            for slot in slots:
                sample = self._samples[of_type, slot]
                if of_type == key or key in sample.event.ancestors:
                    yield sample

    def _make_room(self, key: TypeKey) -> None:
        if len(self._slots[key]) > self._limits.route_retained:
            fullest = max(self._sides[key].values(), key=len)
            self._drop(next(iter(fullest)))
        while len(self._samples) > self._limits.route_retained_all or self._bytes > self._limits.route_retained_bytes:
            most = max(self._side_bytes, key=self._side_bytes.__getitem__)
            self._drop(next(iter(self._sides[None][most])))

    def _drop(self, slot: _Slot) -> None:
        sample = self._samples.pop(slot)
        self._bytes -= sample.size
        self._side_bytes[sample.source] -= sample.size
        del self._slots[slot[0]][slot[1]]
        if not self._slots[slot[0]]:
            del self._slots[slot[0]]
        for key in (slot[0], None):
            sides = self._sides[key]
            del sides[sample.source][slot]
            if not sides[sample.source]:
                del sides[sample.source]
            if key is not None and not sides:
                del self._sides[key]
        if not self._side_bytes[sample.source]:
            del self._side_bytes[sample.source]


# ----------------------------------------------------------------------------------------------------------------------
# The carrier.


Allowed: TypeAlias = Callable[[TypeKey, Principal], bool]
"""Returns whether events of a type may come from a neighbour, and go to it."""

_Matchers: TypeAlias = list[Matcher[str]]


def match_rows(matchers: _Matchers, layout: tuple[str, ...], rows: list[list[Any]]) -> list[tuple[str, ...]]:
    """Return the keys of clients' subscriptions that each row matches; each key is in one matcher only."""
    found = [matcher.match_rows(layout, rows) for matcher in matchers]
    if len(found) == 1:
        return found[0]
    return [tuple(sorted(chain.from_iterable(keys))) for keys in zip(*found, strict=True)] or [()] * len(rows)


@dataclass(frozen=True, slots=True)
class Carried:
    """The result of carrying events: deliveries to clients, messages to neighbours, and refused blocks."""

    deliveries: Deliveries = ()
    sends: tuple[tuple[Principal, Publications], ...] = ()
    unopened: tuple[Unopened, ...] = ()


_NOTHING = Carried()
#: errors after which a block is not forwarded: it is a replay, which others have received already
_SENT_AGAIN: Final = frozenset(("seal.replayed", "seal.sender"))


class Carrier:
    """Carries events through one broker."""

    def __init__(self, forest: Forest, allowed: Allowed, vault: Vault, limits: BrokerLimits) -> None:
        self._forest = forest
        self._allowed = allowed
        self._vault = vault
        self._limits = limits
        #: blocks that clients of this broker want, and whose keys are missing
        self._waiting = WaitingRoom(limits)
        self._copies = Copies(limits)
        #: the same for refused blocks that are forwarded: their numbers must not block other events with them
        self._refused = Copies(limits)
        self.retained = RetainedSamples(limits)

    @property
    def waiting(self) -> int:
        """How many sealed blocks wait for keys."""
        return len(self._waiting)

    def carry(self, block: Publications, came_from: Side) -> Carried:
        """Carry events that came from a side. Raises `LimitError` (`route.event-size`)."""
        if came_from is not None and not self._allowed(block.type, came_from):
            return _NOTHING
        if isinstance(block, SealedPublications) and block.is_foreign:
            return self._carry_sealed(block, came_from)
        # Plaintext events of sealed types, or of types that extend them, are refused.
        if came_from is not None and any(map(self._vault.seals, (block.type, *block.ancestors))):
            return Carried(unopened=(Unopened(block.origin, b"", not_sealed(block.type), came_from),))
        return self._carry_state(block, came_from) if block.state else self._carry_events(block, came_from)

    def publish(self, block: Publications) -> Iterator[tuple[Principal, Publications]]:
        """Yield the messages to neighbours for a client's events. Raises `LimitError` (`route.event-size`)."""
        self._copies.first(block)
        return self._onward(block, None)

    def keys_changed(self) -> Carried:
        """Open the blocks that wait for keys, and return the deliveries. Blocks without a key stay."""
        found: list[tuple[tuple[str, ...], TransitEvent]] = []
        unopened: list[Unopened] = []
        for waiting in self._waiting.empty():
            try:
                block = self._open(*waiting, read=bool(self._matchers(waiting.block)))
            except (RefusedError, MalformedError) as error:
                unopened.append(_refused(waiting, error))
                continue
            if block.closed:
                unopened.extend(self._wait(waiting))
            else:
                found.extend(self._matched(block))
        return Carried(tuple(found), unopened=tuple(unopened))

    def give_up(self, of: Callable[[TypeKey], bool]) -> Carried:
        """Drop the waiting blocks of some types, because their keys will not arrive. They are quarantined."""
        gone = self._waiting.take(of)
        return Carried(unopened=tuple(_refused(waiting, unknown_key(waiting.block.type)) for waiting in gone))

    def shown_to_client(self, of_type: TypeKey, filter_: Filter) -> list[TransitEvent]:
        """Return the retained events that match a client's new subscription."""
        if not len(self.retained):
            return []
        passing = passes(filter_)
        return [sample.event for sample in self.retained.of_line(of_type) if passing(sample.event.values)]

    def shown_to_neighbour(self, entry: SubscriptionEntry) -> list[Publications]:
        """Return the retained events that match a neighbour's new subscription."""
        if entry.tree not in self.retained:
            return []
        passing = passes(entry.filter if isinstance(entry.filter, Filter) else Filter())
        samples = [sample for sample in self.retained.of_type(entry.tree) if passing(sample.event.values)]
        blocks = [sample.block for sample in samples if sample.block.hops < self._limits.network_hops]
        return [replace(block, state=True).onward() for block in blocks]

    def prune(self) -> None:
        """Drop retained events that nobody wants any more."""
        for key in self._forest.unwanted():
            self.retained.prune(key, self._is_wanted)

    # Sealed blocks of other brokers.

    def _carry_sealed(self, block: SealedPublications, came_from: Side) -> Carried:
        """Carry a sealed block.

        1. A copy has known numbers, and is not opened again. A block that nobody here reads is not opened at all. Any
           broker on the way can write those numbers, and could use up those of others. So a block that clients will
           read counts as a copy only by the numbers inside of it.
        2. Plaintext beside it is trusted only from a neighbour that may read as much as this broker.
        3. It is opened, or waits for its key; a block of a past epoch is refused. If clients get it and the owner
           demands it, it must be signed by a broker that may publish it.
        4. It was sealed recently, and its rows are new by the numbers inside of it. On a fabric, the signed numbers
           show that already for blocks that come directly from their sealer.
        5. A refusal applies to the clients of this broker alone, see `_carry_refused`.
        """
        copied, readers = self._copies.knows(block), self._matchers(block)
        if copied and not (readers and self._is_unread(block, came_from)):
            return _NOTHING
        if block.beside and (came_from is None or not self._vault.reads_as_much(came_from, block.type)):
            block = block.hidden()
        if not readers and not self._is_asked(block):
            return self._carry_events(block, came_from)
        arrived = self._vault.now()
        try:
            opened = self._open(block, came_from, arrived, read=bool(readers))
        except (RefusedError, MalformedError) as error:
            # The neighbour may not be the culprit.
            return self._carry_refused(Waiting(block, came_from, arrived), error)
        if readers and not opened.closed and came_from is not None:
            # Its rows were accepted by the numbers inside.
            self._copies.first(opened)
            # The labels of a block do not name all of its ancestors.
            known = readers if opened.ancestors == block.ancestors else self._matchers(opened)
            return self._sides(opened, came_from, known)
        carried = self._carry_events(opened, came_from)
        if opened.closed and readers and not (copied and opened in self._waiting):
            return replace(carried, unopened=tuple(self._wait(Waiting(opened, came_from, arrived))))
        return carried

    def _carry_refused(self, waiting: Waiting, reason: PenstockError) -> Carried:
        """Refuse a block here, and forward it by its type, like a broker without keys.

        This broker may be wrong: its clock, a restart, or other epochs, policies or types than the next brokers have.
        They decide for themselves. A malformed or replayed block is not forwarded.
        """
        unopened = (_refused(waiting, reason),)
        if isinstance(reason, MalformedError) or reason.code in _SENT_AGAIN:
            return Carried(unopened=unopened)
        block = waiting.block.hidden()
        places = self._refused.first(block)
        sends = self._onward(block.pick(places), waiting.came_from) if places else ()
        return Carried(sends=tuple(sends), unopened=unopened)

    def _is_unread(self, block: SealedPublications, came_from: Side) -> bool:
        """Return whether a block was not accepted before, by its header. On a fabric its numbers are signed."""
        header = block.header
        return came_from is not None and header is not None and not self._vault.knows(header, block.type, block.places)

    def _is_asked(self, block: SealedPublications) -> bool:
        """Return whether routing a block depends on its content."""
        tree = self._forest.trees.get(block.type)
        return tree is not None and tree.sealed.asks

    def _open(self, block: SealedPublications, came_from: Side, arrived: datetime, *, read: bool) -> SealedPublications:
        """Open a block, and record its rows. It is verified if clients `read` it and its owner demands that."""
        signed = self._vault.demands(block.type)
        verified = signed and read
        if block.beside:
            block = _believed(block, verified=verified)
        opened = block.opened(self._vault, verified=verified)
        # Any reader could have sealed a block in another broker's name, so an unverified one is not recorded.
        if opened.closed or opened.header is None or (signed and not verified):
            return opened
        if came_from is None:
            _check_sender(opened.header, opened.origin)
            return opened
        return opened.pick(self._vault.take(opened.header, opened.type, opened.places, arrived))

    def _wait(self, waiting: Waiting) -> list[Unopened]:
        return [_refused(gone, unknown_key(gone.block.type)) for gone in self._waiting.put(waiting)]

    # Events.

    def _carry_events(self, block: Publications, came_from: Side) -> Carried:
        places = self._copies.first(block)
        if not places:
            return _NOTHING
        fresh = block.pick(places)
        carried = self._sides(fresh, came_from)
        if fresh.retain:
            self._retain(fresh, came_from)
        return carried

    def _carry_state(self, block: Publications, came_from: Side) -> Carried:
        if not block.retain or not self._retain(block, came_from):
            return _NOTHING
        # It may have arrived before and been dropped. If it arrives again over another path, it is a copy.
        self._copies.first(block)
        return self._sides(block, came_from)

    def _sides(self, block: Publications, came_from: Side, matchers: _Matchers | None = None) -> Carried:
        return Carried(self._matched(block, matchers), tuple(self._onward(block, came_from)))

    def _matched(self, block: Publications, matchers: _Matchers | None = None) -> Deliveries:
        if isinstance(block, SealedPublications) and block.closed:
            return ()
        if matchers is None:
            matchers = self._matchers(block)
        events = block.events
        if type(events) is EventRows:
            return RowDeliveries(match_rows(matchers, events.layout, events.rows), events) if matchers else ()
        if len(matchers) == 1:
            # The usual case; the matcher returns combined keys from its cache.
            match = matchers[0].match
            each = ((match(event.values), event) for event in events)
            return tuple((keys, event) for keys, event in each if keys)
        found: list[tuple[tuple[str, ...], TransitEvent]] = []
        for event in events if matchers else ():
            keys = {key for matcher in matchers for key in matcher.match(event.values)}
            if keys:
                found.append((tuple(sorted(keys)), event))
        return tuple(found)

    def _matchers(self, block: Publications) -> _Matchers:
        return self._forest.matchers((block.type, *block.ancestors))

    def _onward(self, block: Publications, came_from: Side) -> Iterator[tuple[Principal, Publications]]:
        tree = self._forest.trees.get(block.type)
        if tree is None or not len(tree.index) or block.hops >= self._limits.network_hops:
            return
        for peer, wanted in tree.takers(block).items():
            if peer != came_from and self._allowed(block.type, peer):
                yield from ((peer, part) for part in self._parts_for(peer, block.pick(wanted), came_from))

    def _parts_for(self, peer: Principal, block: Publications, came_from: Side) -> list[Publications]:
        if isinstance(block, SealedPublications):
            onward: Publications = block.onward(beside=self._vault.reads_as_much(peer, block.type))
        else:
            onward = block.onward()
        try:
            return list(onward.parts(self._limits))
        except LimitError:
            if came_from is None:
                raise
            # It was encoded in fewer bytes than it should take, and not necessarily by the neighbour.
            return []

    def _retain(self, block: Publications, source: Side) -> bool:
        """Retain the latest of some events of one slot; return whether it is later than the retained one.

        Events of reserved types are never retained here: the parts that verify them keep them.
        """
        if is_reserved(block.type.name):
            return False
        samples = (RetainedSample(block.pick([place]), source) for place in range(len(block.events)))
        latest = max(samples, key=lambda sample: sample.order)
        return self._is_wanted(latest) and self.retained.keep(latest)

    def _is_wanted(self, sample: RetainedSample) -> bool:
        """Return whether a sample's successors would arrive here, or cannot while somebody may still ask for it."""
        event, tree = sample.event, self._forest.trees.get(sample.event.key)
        matchers = self._forest.matchers((event.key, *event.ancestors))
        if sample.source is None or any(matcher.match(event.values) for matcher in matchers):
            return True
        if tree is None:
            return False
        if any(peer != sample.source for peer, _ in tree.index.match(event.values)):
            return True
        return bool(tree.interests) and not any(side is not None for side in tree.advertisements)


def _believed(block: SealedPublications, *, verified: bool) -> SealedPublications:
    """Return a block with the events of the plaintext beside it, or without plaintext if it cannot be used.

    A part of a block cannot be verified.
    """
    if verified and not block.is_whole:
        return block.hidden()
    try:
        return block.believed()
    except (MalformedError, LimitError):
        # The neighbour may not have written it, and the sealed content may be right.
        return block.hidden()


def _check_sender(header: BlockHeader, origin: Principal) -> None:
    """Raise `RefusedError` (`seal.sender`) if the sender of a block on a fabric is not its sealer."""
    if header.sender != origin:
        raise RefusedError(
            "seal.sender",
            f"{origin.short} has sent a block across the fabric that another broker sealed",
            hint="check that broker: it replays blocks",
        )


def _refused(waiting: Waiting, reason: PenstockError) -> Unopened:
    return Unopened(waiting.block.origin, waiting.block.block, reason, waiting.came_from)

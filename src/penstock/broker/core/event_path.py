"""The path of an event through one broker: from a client's message to the frames of its readers.

`EventPath.publish` is the whole path of an event that a client of this broker publishes. Nothing is queued on it: when
`publish` returns, the frames are on the readers' links.

1. Run what is due, and apply changed policy: `Core.begin`, `LocalBroker.catch_up`.
2. Check the publisher's rights: `_admit`. They were decided when it advertised (`LocalBroker.advertise`).
3. Events of sealed types, and events for a fabric, leave this path: `Exchange` forwards them, as rows (`EventRows`).
4. Match subscriptions: the router numbers the rows and finds the keys of the subscriptions that each row matches
   (`Router.publish_rows`). It forwards rows to neighbours with matching subscriptions.
5. Apply each reader's rights: `_show`. They were decided when it subscribed (`LocalBroker.subscribe`).
6. Send the rows that a reader sees as messages on its link: `write`.

Events from neighbours, from a fabric, or from an opened sealed block join at step 5: `deliver`. Rows of opened blocks
are shown together (`Delivery.for_arrivals`) if such rows arrive often.

A `_Plan` caches what was found for an advertisement until something changes. Rights are checked in loops that are
generated once for each advertisement and for each part of a subscription (`Publication.admit`, `Delivery.for_rows`).
Irregular rows, and advertisements whose rights depend on values or on the time, are checked one event at a time
(`Publication`, `Delivery`), with the same results.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeAlias

from penstock.broker.limits import BrokerLimits
from penstock.broker.local.effective_requests import Offer
from penstock.broker.local.local_broker import LocalBroker, NotPublished, Receiver
from penstock.broker.local.requests import Given, Output, Publish
from penstock.broker.local.sessions import Session, SessionAdvertisement, SessionSubscription
from penstock.broker.local.type_library import Library
from penstock.broker.routing.outputs import Output as Routed
from penstock.broker.routing.outputs import RowDeliveries
from penstock.broker.routing.router import Router
from penstock.broker.wire.protocol import PublishMessage, Row, write_events
from penstock.errors import LimitError, MalformedError, PenstockError, RefusedError
from penstock.guard.enforce import Environment, ShowRows
from penstock.model.events import Event, EventRows, TransitEvent
from penstock.model.names import TypeKey, TypeName
from penstock.selector import ALWAYS
from penstock.trust.capabilities import Right
from penstock.trust.refusals import LackedRight

if TYPE_CHECKING:
    from penstock.broker.wire.link import Link

Deliveries: TypeAlias = Iterable[tuple[tuple[str, ...], TransitEvent]]
"""Events, each with the keys of the subscriptions that it matches."""

#: the environment for rights that do not depend on it
_UNASKED: Final[Environment] = MappingProxyType({})
#: events in one message to a reader
_ROWS: Final = 512
#: rows of a layout that come from elsewhere, before loops are generated for it: that takes as long as some rows do
_OFTEN: Final = 256
#: such layouts that are remembered: publishers choose which values they leave out, and loops take much memory
_LAYOUTS: Final = 64


class WriteBudget:
    """The number of events that can wait for the fabric, on all topics. Beyond half of it, publishers are slowed."""

    #: seconds that a publisher waits for room; after a longer time its client would consider the broker dead
    PATIENCE: ClassVar = 2.0

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting = 0
        self._eased = asyncio.Event()

    @property
    def crowded(self) -> bool:
        """Whether publishers should wait."""
        return 2 * self._waiting > self._most

    def has(self, events: int) -> bool:
        """Return whether there is room for this number of events."""
        return self._waiting + events <= self._most

    def take(self, events: int) -> bool:
        """Reserve room for this number of events, and return whether there was enough."""
        if not self.has(events):
            return False
        self._waiting += events
        return True

    def give(self, events: int) -> None:
        """Release reserved room."""
        self._waiting -= events
        if not self.crowded:
            self._eased.set()

    async def wait(self) -> None:
        """Wait until it is not crowded any more, or for `PATIENCE`."""
        self._eased.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.PATIENCE):
                await self._eased.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPorts:
    """The functions of a node that its event path calls."""

    #: runs what is due, and returns the time
    begin: Callable[[], datetime]
    #: carries out the outputs of the local broker and the router
    settle: Callable[[Iterable[Output | Routed]], None]
    #: the budget of events that wait for the fabric between brokers; None if brokers are connected by links
    outbox: WriteBudget | None = None
    counts: Counter[str] = field(default_factory=Counter)


class _Reader(NamedTuple):
    """A receiving subscription, what it sees of events of one type, and whether it has no filter of its own."""

    receiver: Receiver
    show: ShowRows
    asks_for_all: bool


_Readers: TypeAlias = dict[tuple[str, ...], list[_Reader]]
"""The readers of a row, by the keys that it matches."""


@dataclass(slots=True)
class _Plan:
    """Where events of one advertisement and type go. It is valid until a request, a type or a validity changes."""

    name: TypeName
    #: the version of the requests and the number of type changes for which it was made
    made_by: tuple[int, int]
    #: when the type's validity ends
    ends: datetime | None
    offer: Offer
    #: the router's key of the advertisement
    key: str
    #: whether events go directly to readers and neighbours: not sealed, and not across a fabric
    direct: bool
    readers: _Readers = field(default_factory=dict)


@dataclass(slots=True)
class _Arrival:
    """Rows of one layout that come from elsewhere: how many there were, and their readers."""

    rows: int = 0
    readers: _Readers = field(default_factory=dict)


class EventPath:
    """See the module. `links` has the link of each open session."""

    def __init__(
        self, local: LocalBroker, library: Library, router: Router, ports: PathPorts, limits: BrokerLimits
    ) -> None:
        self._local = local
        self._library = library
        self._router = router
        self._ports = ports
        self._limits = limits
        self._plans: dict[tuple[str, str], _Plan] = {}
        #: by type, ancestors and layout, until a request or a type changes
        self._arrived: dict[tuple[TypeKey, tuple[TypeKey, ...], tuple[str, ...]], _Arrival] = {}
        self._arrived_by = (-1, -1)
        self.links: dict[str, Link] = {}

    def publish(self, session: str, message: PublishMessage) -> None:
        """Deliver the events that a client publishes to their readers, and refuse those that may not be published.

        Raises `LimitError` (`network.outbox`), `MalformedError` (`protocol.row`), what finding the type raises, and
        what the router raises. If it raises, none of the message's events has been delivered.
        """
        ports, local, rows = self._ports, self._local, message.rows
        # (1) Run what is due.
        now = ports.begin()
        client = local.session(session)
        if changes := local.catch_up(now):
            ports.settle(changes)
        # (2) The publisher's rights.
        plan: _Plan | PenstockError | None = self._plans.get((session, message.advertisement))
        if not isinstance(plan, _Plan) or not self._holds(plan, message.type, now):
            plan = self._plan(client, message, now)
        ports.counts["published"] += len(rows)
        if isinstance(plan, PenstockError):
            refused = [NotPublished(position, plan) for position in range(len(rows))]
        else:
            offer = plan.offer
            self._check_rows(plan, rows)
            admitted, refused = self._admit(client, offer, rows, now)
            if admitted and plan.direct:
                # (4) Match subscriptions, (5) apply the readers' rights, and (6) send.
                keys, onward = self._router.publish_rows(plan.key, offer.type, offer.layout, admitted)
                for given in self._show(plan.readers, partial(self._find_readers, plan), admitted, keys, now):
                    self.write(given)
                if onward:
                    ports.settle(onward)
            elif admitted:
                # (3) Leave this path.
                of_type = offer.type
                events = EventRows(of_type.key, of_type.ancestors, offer.layout, admitted)
                ports.settle((Publish(plan.key, events),))
        if refused:
            ports.settle(local.refuse(client, message.advertisement, message.type, refused, now))

    def _holds(self, plan: _Plan, name: TypeName, now: datetime) -> bool:
        local = self._local
        return (
            (plan.name is name or plan.name == name)
            and plan.made_by == (local.active.version, self._library.changes)
            and (plan.ends is None or now <= plan.ends)
            and not local.held
            and not local.suspended
        )

    def _plan(self, client: Session, message: PublishMessage, now: datetime) -> _Plan | PenstockError:
        """Return the plan for a client's events of a type, or the reason why none of them may be published.

        Raises what finding the type raises.
        """
        verified = self._library.get(message.type, now)
        event_type, advertisement = verified.event_type, message.advertisement
        held = client.held.get(advertisement)
        found = held.offer_of(event_type) if isinstance(held, SessionAdvertisement) else None
        if found is None:
            # A right that has ended, or was revoked, leaves an advertisement without an offer.
            why = "it has not advertised the type" if held is None else "its advertisement does not permit it"
            return LackedRight(client.principal, Right.PUBLISH, message.type).refuse("broker.not-advertised", why)
        offer, key = found
        # The client names the type. It must be the offer's type, because its ancestors determine who receives events.
        if offer.type is not event_type and offer.type != event_type:
            return MalformedError("event.type", f"the advertisement is for `{offer.type.name}`")
        if self._local.is_suspended(event_type):
            hint = "try again later"
            return RefusedError("broker.policy-stale", "the policy of the type's owner is not known here", hint=hint)
        direct = not self._router.seals(event_type.key) and self._ports.outbox is None
        made_by = self._local.active.version, self._library.changes
        plan = _Plan(message.type, made_by, verified.validity.ends, offer, key, direct)
        if len(self._plans) >= self._limits.cache_entries:
            self._plans.clear()
        self._plans[client.id, advertisement] = plan
        return plan

    def _check_rows(self, plan: _Plan, rows: Sequence[Row]) -> None:
        """Check that rows have a value for each attribute, and that there is room for them on the fabric."""
        width = len(plan.offer.layout) + 2
        if not {width}.issuperset(map(len, rows)):
            name = plan.offer.type.name.name
            raise MalformedError("protocol.row", f"an event of `{name}` has {width - 2} attributes")
        outbox = self._ports.outbox
        if outbox is not None and not outbox.has(len(rows)):
            raise LimitError(
                "network.outbox",
                "too many events wait for the fabric: these were not accepted",
                hint="publish them again later; the broker's operator sees whether the fabric is away",
            )

    def _admit(
        self, client: Session, offer: Offer, rows: Sequence[Row], now: datetime
    ) -> tuple[list[Row], list[NotPublished]]:
        """Return the rows as they may be published, and the refused ones."""
        refused: list[NotPublished] = []
        admit = offer.publication.admit
        # If all of them are within the rate, and no right depends on it, they are counted together.
        together = admit is not None and client.usage.rate.take(now, len(rows), self._limits.client_rate)

        def ask(row: Row) -> Row | None:
            try:
                return self._admit_one(client, offer, row, now, counted=together)
            except (RefusedError, MalformedError) as error:
                position = next(place for place, one in enumerate(rows) if one is row)
                refused.append(NotPublished(position, error))
                return None

        if together and admit is not None:
            admitted = admit(rows, self._limits.client_event_bytes, ask)
        else:
            admitted = [found for row in rows if (found := ask(row)) is not None]
        if admitted:
            client.tally.count(offer.recorded, passed=len(admitted))
        return admitted, refused

    def _admit_one(self, client: Session, offer: Offer, row: Row, now: datetime, *, counted: bool) -> Row:
        """Return one event as it may be published. Raises `RefusedError` and `MalformedError`."""
        usages = self._local.usages
        # The values of a row were checked when it was read.
        event = Event(offer.type, dict(zip(offer.names, row[2:], strict=True)), row[0], row[1])  # type: ignore[arg-type]  # so
        try:
            usages.check_size(event)
        except LimitError:
            client.usage.rate.note(now, -counted)
            raise
        if not counted:
            usages.count(client.usage, now)
        surroundings = self._local.environment(client, now) if offer.timely else _UNASKED
        try:
            passed = offer.publication(event, surroundings)
        except RefusedError as error:
            client.tally.count(offer.recorded, refused=1)
            why = "no right covers an event with these values at this time"
            if error.code == "guard.not-permitted":
                raise LackedRight(client.principal, Right.PUBLISH, offer.type.name).refuse(error.code, why) from None
            raise
        return [row[0], row[1], *map(passed.values.get, offer.layout)]

    def _show(
        self,
        known: _Readers,
        find: Callable[[tuple[str, ...]], list[_Reader]],
        rows: Sequence[Row],
        keys: Sequence[tuple[str, ...]],
        now: datetime,
    ) -> list[Given]:
        """Return what each reader sees of rows. `keys` are those of the subscriptions that each row matches.

        `known` caches the readers by these keys, and `find` returns them.
        """
        seen: dict[str, _Seen] = {}
        # Usually all rows of a message match the same subscriptions.
        same = keys.count(keys[0]) == len(keys)
        for found, run in [(keys[0], rows)] if same else _runs(keys, rows):
            readers = known.get(found)
            if readers is None:
                if len(known) >= self._limits.cache_entries:
                    known.clear()
                readers = known[found] = find(found)
            for receiver, show, asks_for_all in readers:
                held = receiver.held
                one = seen.get(held.ticket)
                if one is None:
                    one = seen[held.ticket] = _Seen(held, asks_for_all=asks_for_all)
                one.add(receiver, len(run), show(run, self._surroundings(receiver, now)))
        return [given for one in seen.values() if (given := one.given()) is not None]

    def _find_readers(self, plan: _Plan, keys: tuple[str, ...]) -> list[_Reader]:
        found = self._local.active.receivers(keys, plan.offer.type) if keys else ()
        return [_Reader(one, one.view.for_rows(plan.offer.type), one.held.asked.selector == ALWAYS) for one in found]

    def _surroundings(self, receiver: Receiver, now: datetime) -> Environment:
        return self._local.environment(receiver.held.session, now) if receiver.part.timely else _UNASKED

    def deliver(self, deliveries: Deliveries, now: datetime) -> list[Given]:
        """Return what readers see of events that this broker's clients did not publish."""
        local = self._local
        if type(deliveries) is RowDeliveries:
            known = self._arrivals(deliveries.events)
            if known is not None:
                return self._deliver_rows(known, deliveries, now)
        found: dict[str, _Seen] = {}
        for keys, event in deliveries:
            if (local.held or local.suspended) and local.is_suspended(event):
                local.held_back += 1
                continue
            for receiver in local.active.receivers(keys, event):
                held = receiver.held
                one = found.get(held.ticket)
                if one is None:
                    one = found[held.ticket] = _Seen(held, asks_for_all=held.asked.selector == ALWAYS)
                seen = receiver.view(event, self._surroundings(receiver, now))
                one.add(receiver, 1, [] if seen is None else [[seen.id, seen.time, *seen.values.values()]])
        return [given for one in found.values() if (given := one.given()) is not None]

    def _deliver_rows(self, known: _Readers, deliveries: RowDeliveries, now: datetime) -> list[Given]:
        """Return the same of rows of a layout that comes often."""
        local, events = self._local, deliveries.events
        if (local.held or local.suspended) and local.is_suspended(events):
            local.held_back += len(events)
            return []
        return self._show(known, partial(self._find_arrivals, events), events.rows, deliveries.keys, now)

    def _arrivals(self, events: EventRows) -> _Readers | None:
        """Return who reads rows like these; None if their layout comes too seldom to generate loops for it."""
        made_by = self._local.active.version, self._library.changes
        if made_by != self._arrived_by:
            self._arrived_by = made_by
            self._arrived.clear()
        layout = events.key, events.ancestors, events.layout
        arrival = self._arrived.get(layout)
        if arrival is None:
            if len(self._arrived) >= _LAYOUTS:
                self._arrived.clear()
            arrival = self._arrived[layout] = _Arrival()
        arrival.rows += len(events)
        return arrival.readers if arrival.rows >= _OFTEN else None

    def _find_arrivals(self, events: EventRows, keys: tuple[str, ...]) -> list[_Reader]:
        found = self._local.active.receivers(keys, events)
        return [_Reader(one, one.view.for_arrivals(events), one.held.asked.selector == ALWAYS) for one in found]

    def write(self, given: Given) -> None:
        """Send events to a reader, if it is still connected."""
        link = self.links.get(given.session)
        if link is None:
            return
        self._ports.counts["delivered"] += len(given.rows)
        for start in range(0, len(given.rows), _ROWS):
            messages = write_events(given.subscription, given.rows[start : start + _ROWS], self._limits.codec)
            try:
                for message in messages:
                    link.post(message, eager=True)
            except PenstockError:
                # Whoever serves the link learns from the link that it has ended.
                return


def _runs(keys: Sequence[tuple[str, ...]], rows: Sequence[Row]) -> Iterator[tuple[tuple[str, ...], list[Row]]]:
    """Yield runs of consecutive rows that match the same subscriptions. Rows without a match are left out."""
    last: tuple[str, ...] = ()
    run: list[Row] = []
    for found, row in zip(keys, rows, strict=True):
        if found and found == last:
            run.append(row)
        elif found:
            if run:
                yield last, run
            last, run = found, [row]
    if run:
        yield last, run


class _Seen:
    """Events for one subscription, and how many passed and were refused by each of its parts."""

    __slots__ = ("_asks_for_all", "_counted", "_held", "_rows")

    def __init__(self, held: SessionSubscription, *, asks_for_all: bool) -> None:
        self._held = held
        self._asks_for_all = asks_for_all
        self._rows: list[Row] = []
        self._counted: dict[int, tuple[Receiver, list[int]]] = {}

    def add(self, receiver: Receiver, events: int, rows: list[Row]) -> None:
        """Add the rows that the subscription sees of this number of events."""
        self._rows += rows
        entry = self._counted.get(id(receiver.part))
        if entry is None:
            entry = self._counted[id(receiver.part)] = (receiver, [0, 0])
        entry[1][0] += len(rows)
        if self._asks_for_all:
            # Events that the reader's own filter rejects are not refused.
            entry[1][1] += events - len(rows)

    def given(self) -> Given | None:
        """Count what passed and what was refused for the session, and return what is sent to it."""
        held = self._held
        for receiver, (passed, refused) in self._counted.values():
            if passed or refused:
                held.session.tally.count(receiver.part.recorded, passed=passed, refused=refused)
        if not self._rows:
            return None
        reader = next(iter(self._counted.values()))[0].view.event_type
        return Given(held.session.id, held.asked.id, reader, self._rows)

"""The path of an event through one broker: from a client's message to the frames of its readers.

`EventPath.publish` is the whole path of an event that a client of this broker publishes. Nothing is queued on it: when
`publish` returns, the frames are on the readers' links.

1. What has become due until now is done, and policy that has changed is applied: `Core.begin`, `LocalBroker.catch_up`.
2. The publisher's rights. They were decided when it advertised (`LocalBroker.advertise`); the advertisement lets rows
   pass: `_admit`.
3. Events of sealed types leave the path here, and so do those for a fabric: `Exchange` carries them further.
4. Who wants it. The router numbers the rows and finds the keys of the subscriptions that each row matches:
   `Router.publish_rows`. Neighbours who want some are sent them.
5. Each reader's rights. They were decided when it subscribed (`LocalBroker.subscribe`); each part of the subscription
   shows rows: `_show`.
6. The rows that a reader sees become messages on its link: `write`.

Events that come from elsewhere join at step 5: `deliver`. They come from neighbours, from a fabric, or from a sealed
block that was opened.

A `_Plan` keeps what was found for an advertisement until anything changes. The rights are asked in loops that are
generated once for each advertisement and for each part of a subscription (`Publication.admit`, `Delivery.for_rows`).
Irregular rows, and advertisements whose rights depend on values or on the
moment, are asked one event at a time (`Publication`, `Delivery`), which says the same.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeAlias

from penstock.broker.limits import BrokerLimits
from penstock.broker.local.effective_requests import Offer
from penstock.broker.local.local_broker import LocalBroker, NotPublished, Receiver
from penstock.broker.local.requests import Given, Output, Publish
from penstock.broker.local.sessions import Session, SessionAdvertisement, SessionSubscription
from penstock.broker.local.type_library import Library
from penstock.broker.routing.outputs import Output as Routed
from penstock.broker.routing.router import Router
from penstock.broker.wire.protocol import PublishMessage, Row, write_events
from penstock.broker.wire.publications import PublishedRows
from penstock.errors import LimitError, MalformedError, PenstockError, RefusedError
from penstock.guard.enforce import Environment, ShowRows
from penstock.model.events import Event, TransitEvent
from penstock.model.names import TypeName
from penstock.selector import ALWAYS

if TYPE_CHECKING:
    from penstock.broker.wire.link import Link

Deliveries: TypeAlias = Iterable[tuple[tuple[str, ...], TransitEvent]]
"""Events, each with the keys of the subscriptions that it matches."""

#: what rights are asked about that do not depend on the moment
_UNASKED: Final[Environment] = MappingProxyType({})
#: events in one message to a reader
_ROWS: Final = 512


class WriteBudget:
    """How many events may wait for the fabric, on all topics together; who brings more than half of it is slowed."""

    #: seconds for which who publishes waits for room; longer than that, and clients would take the broker for dead
    PATIENCE: ClassVar = 2.0

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting = 0
        self._eased = asyncio.Event()

    @property
    def crowded(self) -> bool:
        """Whether whoever brings events should wait."""
        return 2 * self._waiting > self._most

    def has(self, events: int) -> bool:
        """Whether there is room for events."""
        return self._waiting + events <= self._most

    def take(self, events: int) -> bool:
        """Take room for events, if there is enough."""
        if not self.has(events):
            return False
        self._waiting += events
        return True

    def give(self, events: int) -> None:
        """Give room back."""
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
    """What an event path needs of the node that it is in."""

    #: returns the time, when all that was due until then is done
    begin: Callable[[], datetime]
    #: does what the local broker and the router want done besides
    settle: Callable[[Iterable[Output | Routed]], None]
    #: what may wait for the fabric that is between brokers; None if links are between them
    outbox: WriteBudget | None = None
    counts: Counter[str] = field(default_factory=Counter)


class _Reader(NamedTuple):
    """A subscription that gets events, how it is shown those of one type, and whether it asks for all of them."""

    receiver: Receiver
    show: ShowRows
    asks_for_all: bool


@dataclass(slots=True)
class _Plan:
    """What becomes of the events of one advertisement and type. It holds until a request, a type or a date changes."""

    name: TypeName
    #: the version of the requests, and how often types have changed
    made_by: tuple[int, int]
    #: when the type's validity ends
    ends: datetime | None
    offer: Offer
    #: under which the router knows the advertisement
    key: str
    #: whether events go straight to readers and neighbours: they are not sealed, and no fabric is between brokers
    direct: bool
    #: those who get a row, by the keys that it matches
    readers: dict[tuple[str, ...], list[_Reader]] = field(default_factory=dict)


class EventPath:
    """See the module. `links` are those of the sessions that are open."""

    def __init__(
        self, local: LocalBroker, library: Library, router: Router, ports: PathPorts, limits: BrokerLimits
    ) -> None:
        self._local = local
        self._library = library
        self._router = router
        self._ports = ports
        self._limits = limits
        self._plans: dict[tuple[str, str], _Plan] = {}
        self.links: dict[str, Link] = {}

    def publish(self, session: str, message: PublishMessage) -> None:
        """Take the events that a client publishes all the way to their readers; those that may not pass are refused.

        Raises `LimitError` (`network.outbox`), `MalformedError` (`protocol.row`), what finding the type raises, and
        what the router raises: nothing of the message has passed then.
        """
        ports, local, rows = self._ports, self._local, message.rows
        # (1) What is due.
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
                # (4) Who wants it, (5) the readers' rights, and (6) their frames.
                keys, onward = self._router.publish_rows(plan.key, offer.type, offer.layout, admitted)
                for given in self._show(plan, admitted, keys, now):
                    self.write(given)
                if onward:
                    ports.settle(onward)
            elif admitted:
                # (3) Not on this path.
                ports.settle((Publish(plan.key, PublishedRows(offer.type, offer.layout, admitted).events()),))
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
        """Return what becomes of a client's events of a type, or why none of them may be published.

        Raises what finding the type raises.
        """
        verified = self._library.get(message.type, now)
        event_type, advertisement = verified.event_type, message.advertisement
        held = client.held.get(advertisement)
        found = held.offer_of(event_type) if isinstance(held, SessionAdvertisement) else None
        if found is None:
            return RefusedError("broker.not-advertised", "no advertisement lets this be published", hint="advertise it")
        offer, key = found
        # The type is the client's word: it must be that of the offer, or its ancestors would choose who receives it.
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
        """Check that rows have a value for each attribute, and that a fabric takes them."""
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
        """Return what may be published of rows, and what may not."""
        refused: list[NotPublished] = []
        admit = offer.publication.admit
        # Where all of them are within the rate, and no right depends on it, they are counted together.
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
        """Return what may be published of one event. Raises `RefusedError` and `MalformedError`."""
        usages = self._local.usages
        # What a row holds was seen when it was read.
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
        except RefusedError:
            client.tally.count(offer.recorded, refused=1)
            raise
        return [row[0], row[1], *map(passed.values.get, offer.layout)]

    def _show(self, plan: _Plan, rows: Sequence[Row], keys: Sequence[tuple[str, ...]], now: datetime) -> list[Given]:
        """Return what each reader sees of rows, for which the router found the keys of subscriptions."""
        seen: dict[str, _Seen] = {}
        # Mostly all rows of a message match the same subscriptions.
        same = keys.count(keys[0]) == len(keys)
        for found, run in [(keys[0], rows)] if same else _runs(keys, rows):
            readers = plan.readers.get(found)
            if readers is None:
                readers = plan.readers[found] = self._find_readers(plan, found)
            for receiver, show, asks_for_all in readers:
                held = receiver.held
                one = seen.get(held.ticket)
                if one is None:
                    one = seen[held.ticket] = _Seen(held, asks_for_all=asks_for_all)
                one.add(receiver, len(run), show(run, self._surroundings(receiver, now)))
        return [given for one in seen.values() if (given := one.given()) is not None]

    def _find_readers(self, plan: _Plan, keys: tuple[str, ...]) -> list[_Reader]:
        if len(plan.readers) >= self._limits.cache_entries:
            plan.readers.clear()
        found = self._local.active.receivers(keys, plan.offer.type) if keys else ()
        return [_Reader(one, one.view.for_rows(plan.offer.type), one.held.asked.selector == ALWAYS) for one in found]

    def _surroundings(self, receiver: Receiver, now: datetime) -> Environment:
        return self._local.environment(receiver.held.session, now) if receiver.part.timely else _UNASKED

    def deliver(self, deliveries: Deliveries, now: datetime) -> list[Given]:
        """Return what readers see of events that come from elsewhere, for which the router found the keys."""
        local = self._local
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
                # A link that is at its end says so to whoever serves it.
                return


def _runs(keys: Sequence[tuple[str, ...]], rows: Sequence[Row]) -> Iterator[tuple[tuple[str, ...], list[Row]]]:
    """Yield rows that follow each other and match the same subscriptions; those that match none are passed over."""
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
    """Events on their way to one subscription, and what they count for."""

    __slots__ = ("_asks_for_all", "_counted", "_held", "_rows")

    def __init__(self, held: SessionSubscription, *, asks_for_all: bool) -> None:
        self._held = held
        self._asks_for_all = asks_for_all
        self._rows: list[Row] = []
        self._counted: dict[int, tuple[Receiver, list[int]]] = {}

    def add(self, receiver: Receiver, events: int, rows: list[Row]) -> None:
        """Take the rows that are seen of so many events."""
        self._rows += rows
        entry = self._counted.get(id(receiver.part))
        if entry is None:
            entry = self._counted[id(receiver.part)] = (receiver, [0, 0])
        entry[1][0] += len(rows)
        if self._asks_for_all:
            # What a reader's own filter passes over was not refused.
            entry[1][1] += events - len(rows)

    def given(self) -> Given | None:
        """Tell the session what passed and what did not, and return what goes to it."""
        held = self._held
        for receiver, (passed, refused) in self._counted.values():
            if passed or refused:
                held.session.tally.count(receiver.part.recorded, passed=passed, refused=refused)
        if not self._rows:
            return None
        reader = next(iter(self._counted.values()))[0].view.event_type
        return Given(held.session.id, held.asked.id, reader, self._rows)

"""The exchange between the local broker and the router: each immediately applies the other's outputs.

It is a plain state machine, as both of them are. Callers give inputs to `local` or `router`, and what these return to
`settle`. That returns the outputs for the outside: messages to clients and neighbours, links to cut, reports. The
asyncio node, networks within one process and the simulator drive it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple, Protocol, TypeAlias

from penstock.broker.core.event_path import EventPath
from penstock.broker.local import requests
from penstock.broker.local.local_broker import LocalBroker
from penstock.broker.local.requests import RequestReport, ToClient, carry_out
from penstock.broker.routing.outputs import (
    Cut,
    Deliver,
    Deliveries,
    Disclosed,
    Interested,
    Laid,
    RowDeliveries,
    Send,
    Unopened,
    Unsent,
)
from penstock.broker.routing.outputs import Output as Routed
from penstock.broker.routing.router import Router
from penstock.broker.sealing.blocks import BlockBuilder
from penstock.errors import PenstockError, RefusedError
from penstock.model.events import TransitEvent, typed
from penstock.model.names import TypeKey

Outward: TypeAlias = ToClient | RequestReport | Send | Cut | Disclosed | Unopened | Unsent | Laid
"""Outputs for the driver."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """Events of one sealed type to put into a block now. They were checked when they were published."""

    events: Sequence[TransitEvent] = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Parting:
    """An advertisement to withdraw after the events published under it were sent."""

    request: requests.Unadvertise


@dataclass(frozen=True, slots=True)
class _Gone:
    """Events of a type were sent: the broker withdraws its own advertisement, if these were the last ones."""

    type: TypeKey


@dataclass(frozen=True, slots=True)
class _Lost:
    """Accepted events that can never be sealed, and why."""

    reason: PenstockError


Inward: TypeAlias = requests.Output | Routed | Gathered | _Parting | _Gone | _Lost

_KEYS: Final = frozenset(("seal.unknown-key", "seal.unknown-label"))

OWN = "@"
"""The prefix of the keys under which the broker itself subscribes and advertises."""


_STANDING: Final = f"{OWN}waiting "


class ExchangeResult(NamedTuple):
    """The outputs for the outside, in order, and the first error, which did not stop the other outputs."""

    outward: list[Outward]
    failed: PenstockError | None


class FabricPort(Protocol):
    """A fabric that is between brokers in the place of links."""

    def spread(self, events: tuple[TransitEvent, ...]) -> None:
        """Send events of one type that clients of this broker have published to the other brokers."""

    def interests_changed(self) -> None:
        """Read the topics that clients want now: what they ask for has changed, or which types there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangePorts:
    """What an exchange needs of the node that it is in."""

    #: raises if events of one type can never be sealed by the keys of this broker
    sealable: Callable[[Sequence[TransitEvent]], None]
    #: takes events for which the broker itself has subscribed
    take_own: Callable[[datetime, TransitEvent], None]
    #: what is between brokers in the place of links
    fabric: FabricPort | None = None


class Exchange:
    """See the module."""

    def __init__(
        self, local: LocalBroker, router: Router, path: EventPath, gathering: BlockBuilder, ports: ExchangePorts
    ) -> None:
        self.local = local
        self._path = path
        self.router = router
        #: events of sealed types, until they are sealed
        self.gathering = gathering
        self._ports = ports
        self._fabric = ports.fabric
        #: types that the broker itself advertises, for events whose publishers may have gone
        self._standing: set[TypeKey] = set()

    def settle(self, now: datetime, outputs: Iterable[Inward]) -> ExchangeResult:
        """Carry out the outputs for the local broker and the router, and return the others."""
        outward: list[Outward] = []
        pending, failed = deque(outputs), None
        while pending:
            try:
                self._obey(now, pending.popleft(), pending, outward)
            except PenstockError as error:
                failed = failed or error
        return ExchangeResult(outward, failed)

    def _obey(self, now: datetime, output: Inward, pending: deque[Inward], outward: list[Outward]) -> None:
        match output:
            case Deliver(deliveries):
                pending.extend(self._deliver(now, deliveries))
            case requests.Publish(key, events) if self.router.seals(typed(events).key):
                self.router.check_events(key, events)
                self._ports.sealable(events)
                ready = self.gathering.put(now, events)
                if len(ready) > 1:
                    # The first block is sent now. The others go before everything that waits, even if it fails.
                    pending.extendleft(map(Gathered, ready[:0:-1]))
                pending.extend(self._send(now, ready[0]) if ready else ())
            case requests.Publish(_, events):
                pending.extend(carry_out(output, self.router))
                self._spread(events)
            case Gathered(events):
                pending.extend(self._send(now, events))
            case requests.Subscribe() | requests.Unsubscribe():
                pending.extend(carry_out(output, self.router))
                if self._fabric is not None:
                    self._fabric.interests_changed()
            case requests.Advertise():
                pending.extend(carry_out(output, self.router))
            case requests.Unadvertise():
                # The events published under it are sent before it is withdrawn.
                pending.extendleft([_Parting(output), *map(Gathered, reversed(self.gathering.all()))])
            case _Parting(request):
                pending.extend(self._stand())
                pending.extend(carry_out(request, self.router))
            case _Gone(of_type):
                pending.extend(self._stand_down(of_type))
            case _Lost(reason):
                raise reason
            case Interested(key, wanted):
                # On a fabric the router does not learn what clients of other brokers want.
                if self._fabric is None:
                    pending.extend(self.local.wanted(key, wanted=wanted))
            case _:
                outward.append(output)

    def _deliver(self, now: datetime, deliveries: Deliveries) -> list[Inward]:
        # Mostly all rows of a block match the same subscriptions.
        every = {*deliveries.keys} if type(deliveries) is RowDeliveries else [keys for keys, _ in deliveries]
        if not any(key[0] == OWN for keys in every for key in keys):
            return self._show(now, deliveries)
        for keys, event in deliveries:
            if any(key[0] == OWN for key in keys):
                self._ports.take_own(now, event)
        theirs = ((tuple(key for key in keys if key[0] != OWN), event) for keys, event in deliveries)
        return self._show(now, [found for found in theirs if found[0]])

    def _show(self, now: datetime, deliveries: Deliveries) -> list[Inward]:
        return [*self.local.catch_up(now), *self._path.deliver(deliveries, now)]

    def _stand(self) -> Iterator[Routed]:
        """Advertise the types of waiting events: otherwise nobody would subscribe, and they would reach nobody."""
        for event in self.gathering.waiting():
            if event.key not in self._standing:
                self._standing.add(event.key)
                yield from self.router.advertise(f"{_STANDING}{event.key}", event.key, event.ancestors)

    def _stand_down(self, of_type: TypeKey) -> list[Routed]:
        if of_type in self.gathering:
            return []
        self._standing.discard(of_type)
        return self.router.unadvertise(f"{_STANDING}{of_type}")

    def _send(self, now: datetime, events: Sequence[TransitEvent]) -> Sequence[Inward]:
        """Seal and send events. If keys have gone meanwhile, the events wait, because they were accepted."""
        try:
            outputs = self.router.send(events)
        except RefusedError as error:
            if error.code not in _KEYS:
                raise
            return self._wait(now, events)
        self._spread(events)
        if not self._standing or typed(events).key not in self._standing:
            return outputs
        return [*outputs, _Gone(typed(events).key)]

    def _spread(self, events: Sequence[TransitEvent]) -> None:
        if self._fabric is not None:
            self._fabric.spread(tuple(events))

    def _wait(self, now: datetime, events: Sequence[TransitEvent]) -> list[Inward]:
        """Let events wait for keys, except events with attributes whose keys the broker may not have any more."""
        waiting = tuple(event for event in events if self._can_ever_go(event))
        if len(waiting) == len(events):
            self.gathering.keep(now, events)
            return []
        name = typed(events).key.name
        lost = RefusedError(
            "seal.unsent",
            f"{len(events) - len(waiting)} events of `{name}` that clients have published are not sealed",
            hint="this broker has lost its right to keys that they need, and they are gone",
        )
        # The remaining events must not wait with the lost ones: they are sent separately.
        return [*([Gathered(waiting)] if waiting else ()), _Lost(lost)]

    def _can_ever_go(self, event: TransitEvent) -> bool:
        try:
            self._ports.sealable((event,))
        except RefusedError:
            return False
        return True

    @property
    def due(self) -> datetime | None:
        """When to call `flush` at the latest; None if no events are gathered."""
        return self.gathering.due

    def flush(self, now: datetime) -> list[Inward]:
        """Return the gathered events that are due."""
        return [Gathered(events) for events in self.gathering.ready(now)]

    def released(self) -> list[Inward]:
        """Return all gathered events that can be sealed: keys have arrived, or the broker stops."""
        return [Gathered(events) for events in self.gathering.all()]

"""The inside of a broker: the local broker and the router, each told at once what the other one wants of it.

A plain state machine, as both of them are. Whatever has happened is told to one of them, through `local` and `router`,
and what they return is given to `settle`, which returns what is left to be done outside: words for clients and
neighbours, links to be cut, reports. The asyncio node, networks within one process and the simulator drive it.
"""

from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TypeAlias

from penstock.broker import requests, routing
from penstock.broker.local import LocalBroker
from penstock.broker.requests import Report, ToClient, carry_out
from penstock.broker.routing import Cut, Deliver, Disclosed, Interested, Router, Send, Unopened
from penstock.errors import RefusedError
from penstock.model.events import TransitEvent
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import TypeKey

Outward: TypeAlias = ToClient | Report | Send | Cut | Disclosed | Unopened
"""What is to be done outside."""

Inward: TypeAlias = requests.Output | routing.Output
Deliveries: TypeAlias = tuple[tuple[tuple[str, ...], TransitEvent], ...]

Holds: TypeAlias = Callable[[TypeKey], bool]
"""Says whether events of a type have to wait."""


def _never(_of_type: TypeKey) -> bool:
    return False


OWN = "@"
"""What the keys begin with under which the broker itself subscribes and advertises."""


class Exchange:
    """See the module. `own` has, by the name of their type, who gets events for the broker itself."""

    def __init__(self, local: LocalBroker, router: Router, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self.local = local
        self.router = router
        self.own: dict[str, Callable[[datetime, TransitEvent], None]] = {}
        #: whether events of a type have to wait, since they cannot be sealed yet; those that do, the oldest first
        self.holds: Holds = _never
        self._held: deque[requests.Publish] = deque()
        self._held_events = 0
        #: told of what clients publish and of what they ask for, where something else than links is between brokers
        self.spread: Callable[[tuple[TransitEvent, ...]], None] = lambda _events: None
        self.asked: Callable[[], None] = lambda: None
        #: whether what the router hears of those who want events is all that there is to hear
        self.quenches = True

    def settle(self, now: datetime, outputs: Iterable[Inward]) -> list[Outward]:
        """Carry out what can be done inside, and return the rest, in order."""
        outward: list[Outward] = []
        pending = deque(outputs)
        while pending:
            output = pending.popleft()
            match output:
                case Deliver(deliveries):
                    pending.extend(self._deliver(now, deliveries))
                case requests.Publish(_, events):
                    if self.holds(events[0].key):
                        self._hold(output)
                        continue
                    pending.extend(carry_out(output, self.router))
                    self.spread(events)
                case requests.Subscribe() | requests.Unsubscribe():
                    pending.extend(carry_out(output, self.router))
                    self.asked()
                case requests.Advertise() | requests.Unadvertise():
                    pending.extend(carry_out(output, self.router))
                case Interested(key, wanted):
                    if self.quenches:
                        pending.extend(self.local.wanted(key, wanted=wanted))
                case _:
                    outward.append(output)
        return outward

    def _deliver(self, now: datetime, deliveries: Deliveries) -> list[Inward]:
        if not any(key[0] == OWN for keys, _ in deliveries for key in keys):
            return list(self.local.deliver(now, deliveries))
        for keys, event in deliveries:
            if any(key[0] == OWN for key in keys) and event.key.name in self.own:
                self.own[event.key.name](now, event)
        theirs = ((tuple(key for key in keys if key[0] != OWN), event) for keys, event in deliveries)
        return list(self.local.deliver(now, [found for found in theirs if found[0]]))

    def released(self) -> list[Inward]:
        """Return what waited and need not wait any more; the rest goes on waiting."""
        held, self._held, self._held_events = self._held, deque(), 0
        return list(held)

    def _hold(self, publish: requests.Publish) -> None:
        self._held_events += len(publish.events)
        if self._held_events > self._limits.seal_held:
            self._held_events -= len(publish.events)
            raise RefusedError(
                "seal.buffer-full", "too many events wait for keys", hint="is the key manager there? try again later"
            )
        self._held.append(publish)

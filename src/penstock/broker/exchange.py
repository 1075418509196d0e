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
from penstock.model.events import TransitEvent

Outward: TypeAlias = ToClient | Report | Send | Cut | Disclosed | Unopened
"""What is to be done outside."""

Inward: TypeAlias = requests.Output | routing.Output
Deliveries: TypeAlias = tuple[tuple[tuple[str, ...], TransitEvent], ...]

OWN = "@"
"""What the keys begin with under which the broker itself subscribes and advertises."""


class Exchange:
    """See the module. `own` gets the events for subscriptions of the broker itself."""

    def __init__(self, local: LocalBroker, router: Router) -> None:
        self.local = local
        self.router = router
        self.own: Callable[[datetime, TransitEvent], None] = lambda _now, _event: None
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
            if any(key[0] == OWN for key in keys):
                self.own(now, event)
        theirs = ((tuple(key for key in keys if key[0] != OWN), event) for keys, event in deliveries)
        return list(self.local.deliver(now, [found for found in theirs if found[0]]))

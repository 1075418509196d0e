"""A large network of real routers, to count messages: no links, clients or decisions, and no time.

The routers know each other from the beginning, as in a network that has run for a while. Brokers that announce
themselves to each other one by one cost the square of their number, which is most of the work of a large network that
starts.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING

from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.outputs import Deliver, Output, RouterSettings, Send
from penstock.broker.routing.router import Router
from penstock.broker.wire.publications import Publications
from penstock.model.events import TransitEvent
from penstock.model.principals import Principal
from penstock.model.types import EventType

if TYPE_CHECKING:
    from penstock.broker.routing.messages import Hop


class RouterNetwork:
    """Routers by number, with links between them.

    >>> network = RouterNetwork([(1, 0), (2, 0), (3, 1)])
    >>> len(network.routers[3].view.links)
    4
    """

    def __init__(self, links: Sequence[tuple[int, int]]) -> None:
        limits = BrokerLimits()
        names = [
            Principal(sha256(f"router {number}".encode()).digest())
            for number in range(1 + max(map(max, links), default=0))
        ]
        self.routers = [Router(name, 1, RouterSettings(limits=limits)) for name in names]
        self._numbers = {name: number for number, name in enumerate(names)}
        self._pending: deque[tuple[int, int, Hop]] = deque()
        #: how many times a publication went from one router to another
        self.hops = 0
        #: events that reached a client: the router, the keys of its subscriptions, and the event's id
        self.delivered: list[tuple[int, tuple[str, ...], str]] = []
        with _unannounced():
            for one, other in links:
                self.do(one, lambda router, peer=names[other]: router.link_up(peer, 0.0))  # type: ignore[misc]
                self.do(other, lambda router, peer=names[one]: router.link_up(peer, 0.0))  # type: ignore[misc]
                self.run()
        known = [router.announcement for router in self.routers]
        for number in range(len(names)):
            self.do(number, lambda router: router.introduce(known, 0.0))

    def do(self, number: int, act: Callable[[Router], list[Output]]) -> None:
        """Let something happen at a router. What follows from it at others happens when they run."""
        for output in act(self.routers[number]):
            if isinstance(output, Send):
                self.hops += isinstance(output.hop.body, Publications)
                self._pending.append((number, self._numbers[output.peer], output.hop))
            elif isinstance(output, Deliver):
                self.delivered += [(number, keys, event.id) for keys, event in output.deliveries]

    def run(self) -> None:
        """Let all messages arrive, and those that follow from them."""
        while self._pending:
            source, target, hop = self._pending.popleft()
            peer = self.routers[source].me
            self.do(target, lambda router, peer=peer, hop=hop: router.receive(peer, hop, 0.0))  # type: ignore[misc]

    def subscribe(self, number: int, key: str, event_type: EventType) -> None:
        """Let a client of a router subscribe to a type and its sub-types."""
        self.do(number, lambda router: router.subscribe(key, event_type.key))
        self.run()

    def advertise(self, number: int, key: str, event_type: EventType) -> None:
        """Let a client of a router announce that it will publish a type."""
        self.do(number, lambda router: router.advertise(key, event_type.key, event_type.ancestors))
        self.run()

    def publish(self, number: int, key: str, event: TransitEvent) -> int:
        """Let a client publish an event; return how many times it went from one router to another."""
        before = self.hops
        self.do(number, lambda router: router.publish(key, (event,)))
        self.run()
        return self.hops - before


@contextmanager
def _unannounced() -> Iterator[None]:
    """Let routers forward nothing about others while their links come up."""
    spread = Router._spread  # noqa: SLF001  # there is no network without announcements elsewhere
    try:
        Router._spread = lambda *_, **__: None  # type: ignore[method-assign]  # noqa: SLF001
        yield
    finally:
        Router._spread = spread  # type: ignore[method-assign]  # noqa: SLF001

"""How many hops events take through a large network of brokers: the real routers, and messages that are counted.

The brokers know the whole network from the start. Announcing 2,000 brokers to each other would take most of the time
and does not change where an event goes.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from itertools import count
from random import Random
from types import MappingProxyType
from typing import Any, Final

from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.membership import MayRoute, NetworkView, everybody
from penstock.broker.routing.messages import Hop
from penstock.broker.routing.outputs import Deliver, Output, RouterSettings, Send
from penstock.broker.routing.router import Router
from penstock.broker.wire.publications import Publications
from penstock.model.events import TransitEvent
from penstock.model.names import TypeKey
from penstock.model.principals import Principal

_OWNER: Final = Principal(b"\1" * 32)
_NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
#: how often a graph is drawn again that is not connected or has too few links
_TRIES: Final = 100


def random_links(brokers: int, degree: int, random: Random) -> list[set[int]]:
    """Return a connected random graph in which each broker has about so many links."""
    for _ in range(_TRIES):
        links: list[set[int]] = [set() for _ in range(brokers)]
        ends = [broker for broker in range(brokers) for _ in range(degree)]
        random.shuffle(ends)
        for one, other in zip(ends[::2], ends[1::2], strict=False):
            if one != other:
                links[one].add(other)
                links[other].add(one)
        found, pending = {0}, [0]
        while pending:
            fresh = links[pending.pop()] - found
            found |= fresh
            pending += fresh
        if len(found) == brokers:
            return links
    raise ValueError("no connected graph was found: choose a higher degree")


class _SharedView(NetworkView):
    """A view of a network that all brokers see in the same way: the rendezvous node of each type is computed once."""

    roots: dict[TypeKey, Principal | None]

    def root(self, key: TypeKey, may_route: MayRoute = everybody) -> Principal | None:
        """Return a type's rendezvous node."""
        if key not in self.roots:
            self.roots[key] = super().root(key, may_route)
        return self.roots[key]


class _KnownNetwork:
    """The membership of a broker that knows all others from the start, and announces nothing."""

    incarnation = 1

    def __init__(self, view: NetworkView) -> None:
        self.view = view

    def announcements(self) -> list[Any]:
        return []

    def link_up(self, _peer: Principal) -> None:
        return None


@dataclass(frozen=True, slots=True)
class _Way:
    sender: Principal
    receiver: Principal
    hop: Hop


class BrokerGraph:
    """Routers of a network, whose messages arrive in the order in which they were sent."""

    def __init__(self, links: Iterable[Iterable[int]]) -> None:
        graph = [*links]
        self.brokers = [Principal(sha256(b"broker %d" % number).digest()) for number in range(len(graph))]
        self._pending: deque[_Way] = deque()
        self._routers: dict[Principal, Router] = {}
        self._numbers = count(1)
        #: messages with events, and deliveries to clients, since `publish` began
        self.hops = self.deliveries = 0
        ends: Mapping[Principal, frozenset[Principal]] = {
            broker: frozenset(self.brokers[other] for other in graph[number])
            for number, broker in enumerate(self.brokers)
        }
        # All of them compute the same distances, each once.
        distances: dict[Principal, dict[Principal, int]] = {}
        roots: dict[TypeKey, Principal | None] = {}
        for broker in self.brokers:
            router = Router(broker, 1, RouterSettings(limits=BrokerLimits(network_brokers=len(graph))))
            view = _SharedView(broker, ends, distances)
            object.__setattr__(view, "roots", roots)
            known: Any = _KnownNetwork(view)
            router._members = known  # noqa: SLF001  # instead of announcing everybody to everybody
            self._routers[broker] = router
        for broker in self.brokers:
            for other in sorted(ends[broker]):
                self._take(broker, self._routers[broker].link_up(other, 0.0))
        self.run()

    def subscribe(self, broker: Principal, name: str) -> None:
        """Subscribe a client of a broker to a type and its sub-types."""
        key = f"{broker} {name}"
        self._take(broker, self._routers[broker].subscribe(key, TypeKey(_OWNER, name)))
        self.run()

    def advertise(self, broker: Principal, name: str, *ancestors: str) -> None:
        """Advertise a type at a broker."""
        above = [TypeKey(_OWNER, one) for one in ancestors]
        self._take(broker, self._routers[broker].advertise(name, TypeKey(_OWNER, name), above))
        self.run()

    def publish(self, broker: Principal, name: str, *ancestors: str) -> int:
        """Publish an event, and return how many hops it takes."""
        self.hops = self.deliveries = 0
        above = tuple(TypeKey(_OWNER, one) for one in ancestors)
        event = TransitEvent(TypeKey(_OWNER, name), above, MappingProxyType({}), f"e{next(self._numbers)}", _NOW)
        self._take(broker, self._routers[broker].publish(name, [event]))
        self.run()
        return self.hops

    def run(self) -> None:
        """Let everything arrive that is on its way."""
        while self._pending:
            way = self._pending.popleft()
            self._take(way.receiver, self._routers[way.receiver].receive(way.sender, way.hop, 0.0))

    def _take(self, broker: Principal, outputs: Iterable[Output]) -> None:
        for output in outputs:
            match output:
                case Send(peer, hop):
                    self.hops += isinstance(hop.body, Publications)
                    self._pending.append(_Way(broker, peer, hop))
                case Deliver(deliveries):
                    self.deliveries += sum(len(keys) for keys, _ in deliveries)
                case _:
                    pass


@dataclass(frozen=True, slots=True)
class HopCounts:
    """Hops for a number of groups: one event, one for each group that all receive, and one that only it receives."""

    attribute_level: float
    event_level: float
    own_types: float


def count_hops(graph: BrokerGraph, numbers: Sequence[int], random: Random) -> list[HopCounts]:
    """Draw a publisher and a subscriber for each group, and count hops for these numbers of groups."""
    draw = f"D{random.getrandbits(48):x}"
    publisher, *subscribers = random.sample(graph.brokers, max(numbers) + 1)
    whole = f"{draw}.All"
    graph.advertise(publisher, whole)
    found, own = [], 0
    for number, subscriber in enumerate(subscribers, start=1):
        part, alone = f"{whole}.Part{number}", f"{draw}.Own{number}"
        graph.advertise(publisher, part, whole)
        graph.subscribe(subscriber, whole)
        graph.advertise(publisher, alone)
        graph.subscribe(subscriber, alone)
        own += graph.publish(publisher, alone)
        if number not in numbers:
            continue
        one = graph.publish(publisher, whole)
        if graph.deliveries != number:
            raise ValueError("an event did not reach all subscribers")
        many = sum(graph.publish(publisher, f"{whole}.Part{place}", whole) for place in range(1, number + 1))
        found.append(HopCounts(one, many, own))
    return found

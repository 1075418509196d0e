"""A network of routers in memory: seeded delays, links that break, crashes, partitions, restarts, and echoes.

Links keep order and lose nothing while they last, as TLS does; what is under way when one breaks is lost. With `echoes`
a transport is tried that is worse than that: it repeats words at any later time, also in later sessions. With `losses`
it swallows some.
"""

import hashlib
import heapq
import itertools
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.messages import Hop
from penstock.broker.routing.outputs import Cut, Deliver, Disclosed, Interested, Output, RouterSettings, Send
from penstock.broker.routing.router import Router
from penstock.broker.wire.entries import Filter
from penstock.codec.wire import decode, encode
from penstock.model.events import Event, TransitEvent
from penstock.model.names import TypeKey, TypeName
from penstock.model.principals import Principal
from penstock.model.types import AttributeDefinition, EventType, TypeDefinition
from penstock.model.values import AttributeSpec, Kind, Scalar
from penstock.selector import evaluate, parse

OWNER = Principal(hashlib.sha256(b"owner").digest())
NUMBER, TEXT = AttributeSpec(Kind.INTEGER), AttributeSpec(Kind.STRING)


def principal(name: str) -> Principal:
    return Principal(hashlib.sha256(name.encode()).digest())


def make_type(name: str, attributes: Mapping[str, AttributeSpec], parent: EventType | None = None) -> EventType:
    own = tuple(AttributeDefinition(word, word, spec) for word, spec in attributes.items())
    return EventType.of(TypeDefinition(TypeName(OWNER, name), own, parent.name if parent else None), parent)


def filter_of(event_type: EventType, text: str) -> Filter:
    """Write a filter with the names of the attributes, as a client would."""
    ids = {attribute.name: str(attribute.id) for attribute in event_type.attributes}
    return Filter.of(parse(text).rename(ids), {ids[a.name]: a.spec for a in event_type.attributes})


@dataclass
class Client:
    """What a client of a broker wants, which outlasts the broker: clients reconnect."""

    advertised: dict[str, tuple[EventType, Filter]] = field(default_factory=dict)
    subscribed: dict[str, tuple[EventType, Filter]] = field(default_factory=dict)


@dataclass(frozen=True)
class Delivery:
    broker: str
    key: str
    event: str


class Network:
    def __init__(
        self, seed: int = 0, *, echoes: float = 0.0, losses: float = 0.0, settings: RouterSettings | None = None
    ):
        self.random = random.Random(seed)  # noqa: S311  # a test that can be repeated
        self.echoes, self.losses, self.settings = echoes, losses, settings or RouterSettings(limits=BrokerLimits())
        self.now = 0.0
        self.routers: dict[str, Router] = {}
        self.clients: dict[str, Client] = {}
        self.names: dict[Principal, str] = {}
        self.links: dict[frozenset[str], int] = {}
        self.delivered: list[Delivery] = []
        self.cuts: list[Cut] = []
        #: of brokers that are not called by the hash of their name
        self.principals: dict[str, Principal] = {}
        #: what publishers received last, by broker and key
        self.wanted: dict[tuple[str, str], bool] = {}
        #: the last that was retained, by broker and key
        self.states: dict[tuple[str, str], TransitEvent] = {}
        self.disclosed: list[tuple[str, str, bytes]] = []
        #: counted by the kind of the body
        self.sent: dict[str, int] = {}
        #: brokers that hear nothing, though their links are up
        self.deaf: set[str] = set()
        self._order = itertools.count()
        self._moments = itertools.count()
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._arrivals: dict[tuple[str, str], float] = {}
        self._incarnations = itertools.count(1)
        self._sessions = itertools.count(1)

    # What happens to brokers and links.

    def start(self, *names: str) -> None:
        for name in names:
            who = self._who(name)
            self.names[who] = name
            self.routers[name] = Router(who, next(self._incarnations), self.settings)
            client = self.clients.setdefault(name, Client())
            for key, (of_type, filter_) in client.advertised.items():
                self._do(name, self.routers[name].advertise(key, of_type.key, of_type.ancestors, filter_))
            for key, (of_type, filter_) in client.subscribed.items():
                self._do(name, self.routers[name].subscribe(key, of_type.key, filter_))

    def connect(self, *pairs: tuple[str, str]) -> None:
        for one, other in pairs:
            link = frozenset((one, other))
            if link in self.links or one not in self.routers or other not in self.routers:
                continue
            self.links[link] = next(self._sessions)
            for here, there in ((one, other), (other, one)):
                self._do(here, self.routers[here].link_up(self._who(there), self.now))

    def disconnect(self, *pairs: tuple[str, str]) -> None:
        """Break links; each end finds out in its own time."""
        for one, other in pairs:
            session = self.links.pop(frozenset((one, other)), None)
            if session is not None:
                for here, there in ((one, other), (other, one)):
                    self._later(self._lost(here, there, self.routers.get(here)))

    def kill(self, name: str) -> None:
        del self.routers[name]
        self.disconnect(*[(name, other) for other in self.neighbours(name)])

    def leave(self, name: str) -> None:
        self._do(name, self.routers[name].leave())
        self.run()
        self.kill(name)

    def neighbours(self, name: str) -> list[str]:
        return sorted(next(iter(link - {name})) for link in self.links if name in link)

    def partition(self, group: Iterable[str]) -> list[tuple[str, str]]:
        """Cut all links between a group and the others; return them."""
        inside = set(group)
        cut = [(one, other) for one, other in map(sorted, self.links) if (one in inside) != (other in inside)]
        self.disconnect(*cut)
        return cut

    # What clients do.

    def advertise(self, name: str, key: str, of_type: EventType, text: str = "TRUE") -> None:
        filter_ = filter_of(of_type, text)
        self.clients[name].advertised[key] = (of_type, filter_)
        self._do(name, self.routers[name].advertise(key, of_type.key, of_type.ancestors, filter_))

    def unadvertise(self, name: str, key: str) -> None:
        del self.clients[name].advertised[key]
        self._do(name, self.routers[name].unadvertise(key))

    def subscribe(self, name: str, key: str, of_type: EventType, text: str = "TRUE") -> None:
        filter_ = filter_of(of_type, text)
        self.clients[name].subscribed[key] = (of_type, filter_)
        self._do(name, self.routers[name].subscribe(key, of_type.key, filter_))

    def unsubscribe(self, name: str, key: str) -> None:
        del self.clients[name].subscribed[key]
        self._do(name, self.routers[name].unsubscribe(key))

    def publish(self, name: str, key: str, event_id: str, /, **values: Scalar) -> TransitEvent:
        return self.retain(name, key, event_id, "", **values)

    def retain(self, name: str, key: str, event_id: str, slot: str, /, **values: Scalar) -> TransitEvent:
        of_type = self.clients[name].advertised[key][0]
        event = Event.of(of_type, values, id=event_id, time=self.clock).to_transit()
        self._do(name, self.routers[name].publish(key, (event,), slot))
        return event

    @property
    def clock(self) -> datetime:
        """What publishers take for the time: it is later each time they look."""
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now, microseconds=next(self._moments))

    # Time.

    def run(self) -> None:
        """Let everything that is under way arrive."""
        while self._agenda:
            self.step()

    def step(self) -> None:
        """Let the next thing happen that is under way."""
        self.now, _, happen = heapq.heappop(self._agenda)
        happen()

    def wait(self, seconds: float) -> None:
        """Let time pass, with a tick each second."""
        for _ in range(int(seconds)):
            self.run()
            self.now += 1
            for name in list(self.routers):
                self._do(name, self.routers[name].tick(self.now))
        self.run()

    # What should come out.

    def reachable(self, name: str) -> set[str]:
        found, pending = {name}, [name]
        while pending:
            for other in self.neighbours(pending.pop()):
                if other not in found:
                    found.add(other)
                    pending.append(other)
        return found

    def expected(self, name: str, event: TransitEvent) -> set[Delivery]:
        """Say who should get an event, by looking at all subscriptions of everybody."""
        line = (event.key, *event.ancestors)
        return {
            Delivery(broker, key, event.id)
            for broker in self.reachable(name)
            for key, (of_type, filter_) in self.clients[broker].subscribed.items()
            if of_type.key in line and evaluate(filter_.selector, event.values) is True
        }

    def root(self, key: TypeKey) -> set[str]:
        """Return which broker the brokers take for the rendezvous node of a type."""
        return {self.names[root] for router in self.routers.values() if (root := router.view.root(key))}

    def held(self) -> dict[str, int]:
        """Return how many subscriptions of neighbours each broker holds."""
        return {name: router.size().subscriptions for name, router in self.routers.items()}

    def empty(self) -> bool:
        sizes = [router.size() for router in self.routers.values()]
        return all(size.entered == size.told == size.trees == size.clients == 0 for size in sizes)

    # How it works.

    def _who(self, name: str) -> Principal:
        return self.principals.get(name) or principal(name)

    def _do(self, name: str, outputs: list[Output]) -> None:
        for output in outputs:
            match output:
                case Send(peer, hop):
                    self._send(name, self.names[peer], hop)
                case Deliver(deliveries):
                    for keys, event in deliveries:
                        self.delivered.extend(Delivery(name, key, event.id) for key in keys)
                case Interested(key, wanted):
                    self.wanted[name, key] = wanted
                case Disclosed(broker, octets):
                    self.disclosed.append((name, self.names[broker], octets))
                    # Whoever runs a router reads it, and says so.
                    self._do(name, self.routers[name].believe(broker, octets))
                case Cut(peer):
                    self.cuts.append(output)
                    self.disconnect((name, self.names[peer]))

    def _send(self, here: str, there: str, hop: Hop) -> None:
        self.sent[hop.body.KIND] = self.sent.get(hop.body.KIND, 0) + 1
        # All that travels is written, and read back.
        copy = Hop.from_tree(decode(encode(hop.to_tree())))
        assert copy == hop
        session = self.links.get(frozenset((here, there)))
        if self.random.random() >= self.losses:
            # In order: nothing overtakes what was sent before it on the same link.
            arrival = max(self.now + self.random.uniform(0.001, 0.1), self._arrivals.get((here, there), 0.0))
            self._arrivals[here, there] = arrival
            self._at(arrival, self._arrive(here, there, copy, session))
        if self.random.random() < self.echoes:
            self._at(self.now + self.random.uniform(0, 3), self._arrive(here, there, copy, None))

    def _arrive(self, here: str, there: str, hop: Hop, session: int | None) -> Callable[[], None]:
        def arrive() -> None:
            link = self.links.get(frozenset((here, there)))
            if there in self.routers and there not in self.deaf and link is not None and session in (None, link):
                self._do(there, self.routers[there].receive(self._who(here), hop, self.now))

        return arrive

    def _lost(self, here: str, there: str, router: Router | None) -> Callable[[], None]:
        session = self.links.get(frozenset((here, there)))

        def lost() -> None:
            # A link that was made again in the meantime was `link_up` again too.
            if self.routers.get(here) is router is not None and self.links.get(frozenset((here, there))) == session:
                self._do(here, router.link_down(self._who(there)))

        return lost

    def _later(self, happen: Callable[[], None]) -> None:
        self._at(self.now + self.random.uniform(0, 2), happen)

    def _at(self, moment: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (moment, next(self._order), happen))

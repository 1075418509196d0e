"""Three domains of brokers, and what is checked of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tests.broker.network import NUMBER, TEXT, Delivery, Network, make_type

from penstock.model.types import EventType
from penstock.model.values import Scalar

NEWS = make_type("News", {"n": NUMBER, "s": TEXT})
SPORT = make_type("News.Sport", {"score": NUMBER}, NEWS)
FOOTBALL = make_type("News.Sport.Football", {"goals": NUMBER}, SPORT)
STOCK = make_type("Stock", {"n": NUMBER, "s": TEXT})
TYPES = (NEWS, SPORT, FOOTBALL, STOCK)

#: three domains and their brokers
DOMAINS = {"police": ("p1", "p2"), "council": ("c1", "c2"), "press": ("m1", "m2")}
BROKERS = tuple(name for names in DOMAINS.values() for name in names)
#: each domain is linked within, the police with the council, the council with the press, and the press with the police
LINKS = (("p1", "p2"), ("c1", "c2"), ("m1", "m2"), ("p2", "c1"), ("c2", "m1"), ("m2", "p1"))


def domain_of(broker: str) -> str:
    return next(domain for domain, names in DOMAINS.items() if broker in names)


def three_domains(seed: int = 0, **options: float) -> Network:
    network = Network(seed, **options)  # type: ignore[arg-type]  # echoes and losses
    network.start(*BROKERS)
    network.connect(*LINKS)
    network.run()
    return network


def rooted_at(network: Network, broker: str) -> EventType:
    """Return a type whose rendezvous node is the given broker."""
    candidates = (make_type(f"Type{i}", {"n": NUMBER, "s": TEXT}) for i in range(1000))
    return next(candidate for candidate in candidates if network.root(candidate.key) == {broker})


Events: TypeAlias = Sequence[tuple[str, str, Mapping[str, Scalar]]]
"""Who publishes, under which advertisement, and what."""


def check_delivery(network: Network, events: Events, tag: str = "") -> int:
    """Publish events; what is delivered must be what the oracle says, once each. Return how much that is."""
    network.delivered.clear()
    expected: Counter[Delivery] = Counter()
    for number, (broker, key, values) in enumerate(events):
        event = network.publish(broker, key, f"{tag}{number}", **values)
        expected.update(network.expected(broker, event))
    network.run()
    assert Counter(network.delivered) == expected
    return expected.total()


def busy(network: Network) -> Events:
    """Let each broker subscribe and advertise, and return events to publish."""
    for number, broker in enumerate(BROKERS):
        network.advertise(broker, "pub", TYPES[number % 4])
        network.subscribe(broker, "some", TYPES[(number + 1) % 4], f"n > {number}")
        network.subscribe(broker, "all", TYPES[(number + 2) % 4])
    network.run()
    return [(broker, "pub", {"n": n}) for broker in BROKERS for n in range(0, 8, 3)]


def of_living(network: Network, events: Events) -> Events:
    return [event for event in events if event[0] in network.routers]

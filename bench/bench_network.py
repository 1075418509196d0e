"""Events from end to end: through one broker and through two, against nats-py through one NATS server.

Publisher, brokers, server and subscriber are processes of their own, and take turns: in each round every set-up carries
the same events. Both sides give their reader events it can use: with NATS the program packs and unpacks them, as a
program must; the figure with bare bytes, which nobody could use, stands beside it.
"""

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import count

from harness import Result, at_least, at_most, microseconds, observed, seconds
from network_parts import NETWORK, OWNER, READER, SIGHTING, SIGNED, TYPE, credentials
from penstock.broker.local.decisions import AuthoritySources
from penstock.broker.local.local_broker import LocalBroker
from penstock.broker.local.type_library import Library
from penstock.guard import Recorder
from penstock.model.names import TypeKey, TypeName
from penstock.model.types import EventType
from penstock.selector import parse
from penstock.testing.nats import NatsServer
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import VerifiedType, read_type
from penstock.trust.validity import ALWAYS
from processes import Part, Way

EVENTS = 60_000
ROUNDS = 5
PARTS = "network_parts.py"


def through_nats(stack: ExitStack, port: str, *words: str) -> Way:
    subscriber = Part(stack, PARTS, "nats-subscriber", port, *words)
    return Way(Part(stack, PARTS, "nats-publisher", port, *words), subscriber)


def through_brokers(stack: ExitStack, brokers: int, *words: str) -> Way:
    ports: list[str] = []
    for number in range(brokers):
        ports.append(Part(stack, PARTS, "broker", number, *ports[:1], *words).hear())
    subscriber = Part(stack, PARTS, "subscriber", ports[0], *words)
    return Way(Part(stack, PARTS, "publisher", ports[-1], *words), subscriber)


class Unsigned(Library):
    """Types that are believed as they come: what a broker without signed types would have."""

    def __init__(self, event_type: EventType) -> None:
        super().__init__()
        self._only = VerifiedType(str(event_type.name), event_type, SIGHTING, OWNER.principal, ALWAYS, ())

    def __contains__(self, _name: object) -> bool:
        return True

    def get(self, _name: TypeName, _now: datetime) -> VerifiedType:
        return self._only

    def below(self, _key: TypeKey, _now: datetime) -> Iterator[VerifiedType]:
        return iter((self._only,))


def request(library: Library) -> Callable[[], None]:
    """Return what subscribes at a local broker, and ends it again; the selector is another one each time."""
    now, numbers = datetime.now(UTC), count(1)
    recorder = Recorder(
        source="bench",
        sink=lambda _record: None,
        clock=lambda: now,
        timer=lambda: 0,
        ids=lambda: str(next(numbers)),
    )
    local = LocalBroker(NETWORK, recorder, library, AuthoritySources(credentials()))
    local.connect(now, "reader", READER.principal, Credentials())

    def subscribe() -> None:
        local.subscribe(now, "reader", "s", SIGHTING.name, parse(f"speed > {next(numbers)}"))
        local.unsubscribe(now, "reader", "s")

    return subscribe


def subscriptions() -> list[Result]:
    """Compare a subscription request to signed types, known and brought along, with one to types without signatures."""
    now = datetime.now(UTC)
    known = Library(NETWORK)
    known.add(SIGNED, now)
    signed = SIGNED.to_bytes()

    def brought() -> None:
        """Read and verify a definition that comes with the request, and was not seen before."""
        library = Library(NETWORK)
        library.add(read_type(signed), now)
        library.get(SIGHTING.name, now)

    plain, signed_known, bringing = seconds(request(Unsigned(TYPE)), request(known), brought, repeat=50)
    words = f"{microseconds(signed_known)} signed, {microseconds(plain)} unsigned"
    return [
        at_most("network: subscription, signed types / unsigned", signed_known / plain, 1.3, words),
        observed(
            "network: subscription, type brought along / unsigned",
            (signed_known + bringing) / plain,
            f"{microseconds(bringing)} more, once for each type",
        ),
    ]


def run() -> list[Result]:
    return [*throughput(), *subscriptions()]


def throughput() -> list[Result]:
    """Compare events from end to end."""
    with ExitStack() as stack:
        port = stack.enter_context(NatsServer()).url.rpartition(":")[2]
        ways = {
            "nats": through_nats(stack, port),
            "bare": through_nats(stack, port, "bare"),
            "one": through_brokers(stack, 1),
            "two": through_brokers(stack, 2),
            "off": through_brokers(stack, 1, "off"),
        }
        for way in ways.values():
            way.carry(EVENTS // 10)
        for _ in range(ROUNDS):
            for way in ways.values():
                way.rates.append(way.carry(EVENTS))
    rate = {name: statistics.median(way.rates) for name, way in ways.items()}

    def detail(name: str, other: str) -> str:
        return f"{rate[name]:,.0f} events/s, {rate[other]:,.0f} with {other}"

    return [
        at_least("network: one broker / nats-py", rate["one"] / rate["nats"], 0.5, detail("one", "nats")),
        at_least("network: two brokers / nats-py", rate["two"] / rate["nats"], 0.3, detail("two", "nats")),
        at_least("network: access control / off", rate["one"] / rate["off"], 0.9, detail("one", "off")),
        observed("network: one broker / bare octets", rate["one"] / rate["bare"], detail("one", "bare")),
        observed("network: two brokers / bare octets", rate["two"] / rate["bare"], detail("two", "bare")),
    ]

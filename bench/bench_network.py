"""Events from end to end: through one broker and through two, against nats-py and zenoh through one server.

Publisher, brokers, server and subscriber are processes of their own, and take turns: in each round every set-up carries
the same events. Both sides give their reader events it can use: with NATS the program packs and unpacks them, as a
program must; the figure with bare bytes, which nobody could use, stands beside it.

zenoh's Python client is not among the locked dependencies. `ZENOH_PYTHON` names a Python that has `eclipse-zenoh` and
`msgpack`; without one, its lines are skipped.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import trustme

from harness import Result, at_least, at_most, microseconds, observed, seconds
from network_parts import NETWORK, OWNER, READER, SIGHTING, SIGNED, TYPE, credentials
from penstock.broker.limits import BrokerLimits
from penstock.broker.local.decisions import AuthoritySources
from penstock.broker.local.local_broker import LocalBroker
from penstock.broker.local.type_library import Library
from penstock.guard import Recorder
from penstock.model.names import TypeKey, TypeName
from penstock.model.types import EventType
from penstock.selector import parse
from penstock.testing.nats import NatsServer
from penstock.testing.server_process import free_port
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import VerifiedType, read_type
from penstock.trust.validity import ALWAYS
from processes import Part, Way

EVENTS = 60_000
SINGLE = 500
ROUNDS = 5
PARTS = "network_parts.py"
ZENOH_PARTS = "zenoh_parts.py"
ZENOH = os.environ.get("ZENOH_PYTHON", sys.executable)


def through_nats(stack: ExitStack, port: str, *words: str) -> Way:
    subscriber = Part(stack, PARTS, "nats-subscriber", port, *words)
    return Way(Part(stack, PARTS, "nats-publisher", port, *words), subscriber)


def through_brokers(stack: ExitStack, brokers: int, *words: str) -> Way:
    ports: list[str] = []
    for number in range(brokers):
        ports.append(Part(stack, PARTS, "broker", number, *ports[:1], *words).hear())
    subscriber = Part(stack, PARTS, "subscriber", ports[0], *words)
    return Way(Part(stack, PARTS, "publisher", ports[-1], *words), subscriber)


def has_zenoh() -> bool:
    """Return whether there is a zenoh to compare with."""
    return not subprocess.run([ZENOH, "-c", "import zenoh, msgpack"], check=False, capture_output=True).returncode  # noqa: S603  # an interpreter


def through_zenoh(stack: ExitStack, *words: str) -> Way:
    address = f"tcp/127.0.0.1:{free_port()}"
    Part(stack, ZENOH_PARTS, "router", address, python=ZENOH).hear()
    subscriber = Part(stack, ZENOH_PARTS, "subscriber", address, *words, python=ZENOH)
    return Way(Part(stack, ZENOH_PARTS, "publisher", address, *words, python=ZENOH), subscriber)


class Unsigned(Library):
    """Types that are believed as they come: what a broker without signed types would have."""

    def __init__(self, event_type: EventType) -> None:
        super().__init__(limits=BrokerLimits())
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
    local = LocalBroker(NETWORK, recorder, library, AuthoritySources(credentials()), limits=BrokerLimits())
    local.connect(now, "reader", READER.principal, Credentials())

    def subscribe() -> None:
        local.subscribe(now, "reader", "s", SIGHTING.name, parse(f"speed > {next(numbers)}"))
        local.unsubscribe(now, "reader", "s")

    return subscribe


def subscriptions() -> list[Result]:
    """Compare a subscription request to signed types, known and brought along, with one to types without signatures."""
    now = datetime.now(UTC)
    known = Library(NETWORK, limits=BrokerLimits())
    known.add(SIGNED, now)
    signed = SIGNED.to_bytes()

    def brought() -> None:
        """Read and verify a definition that comes with the request, and was not seen before."""
        library = Library(NETWORK, limits=BrokerLimits())
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
    return [*throughput(), *latency(), *subscriptions()]


def latency() -> list[Result]:
    """Compare the time from posting one event to reading it, over TLS; the next one is posted after that."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1")
        authority.cert_pem.write_to_path(folder / "ca.pem")
        certificate.private_key_pem.write_to_path(folder / "key.pem")
        certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
        config = f'tls {{ cert_file: "{folder}/cert.pem", key_file: "{folder}/key.pem" }}'
        port = stack.enter_context(NatsServer(config=config)).url.rpartition(":")[2]
        broker = Part(stack, PARTS, "broker", 0).hear()
        ways = [
            Part(stack, PARTS, "both", broker),
            Part(stack, PARTS, "nats-both", port, folder / "ca.pem"),
        ]
        for way in ways:
            way.hear()
        times: list[list[float]] = [[], []]
        for _ in range(ROUNDS + 1):
            for way, found in zip(ways, times, strict=True):
                way.say(SINGLE)
                found.append(float(way.hear()))
    ours, theirs = (statistics.median(found[1:]) for found in times)
    words = f"p50 {microseconds(ours)}, {microseconds(theirs)} with nats-py"
    return [at_most("network: one event at a time / nats-py over TLS", ours / theirs, 2.0, words)]


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
        zenoh = has_zenoh()
        if zenoh:
            ways["zenoh"] = through_zenoh(stack)
            ways["bare zenoh"] = through_zenoh(stack, "bare")
        for way in ways.values():
            way.carry(EVENTS // 10)
        for _ in range(ROUNDS):
            for way in ways.values():
                way.rates.append(way.carry(EVENTS))
    rate = {name: statistics.median(way.rates) for name, way in ways.items()}

    def detail(name: str, other: str) -> str:
        return f"{rate[name]:,.0f} events/s, {rate[other]:,.0f} with {other}"

    if zenoh:
        against_zenoh = [
            at_least("network: one broker / zenoh", rate["one"] / rate["zenoh"], 0.3, detail("one", "zenoh")),
            observed("network: one broker / bare zenoh", rate["one"] / rate["bare zenoh"], detail("one", "bare zenoh")),
        ]
    else:
        skipped = "skipped: set ZENOH_PYTHON to a Python with eclipse-zenoh and msgpack"
        against_zenoh = [observed("network: one broker / zenoh", 0.0, skipped)]
    return [
        *against_zenoh,
        at_least("network: one broker / nats-py", rate["one"] / rate["nats"], 0.5, detail("one", "nats")),
        at_least("network: two brokers / nats-py", rate["two"] / rate["nats"], 0.3, detail("two", "nats")),
        at_least("network: access control / off", rate["one"] / rate["off"], 0.9, detail("one", "off")),
        observed("network: one broker / bare octets", rate["one"] / rate["bare"], detail("one", "bare")),
        observed("network: two brokers / bare octets", rate["two"] / rate["bare"], detail("two", "bare")),
    ]

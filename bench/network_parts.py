"""The processes of bench_network: `python network_parts.py <role> …`. Each says what it has on standard output.

Whoever publishes or reads waits for lines `<events>` on standard input and does so many, once for each line.
"""

import asyncio
import ssl
import statistics
import sys
import time
from datetime import UTC, datetime
from itertools import count
from typing import Any

import msgpack
import nats

from penstock import connect
from penstock.broker.core.settings import NodeSettings, TrustSettings
from penstock.broker.limits import BrokerLimits
from penstock.broker.local import effective_requests as effective
from penstock.broker.node.node import Node
from penstock.broker.wire.transports import PeerAddress
from penstock.crypto import SigningKey
from penstock.guard import Delivery, Publication, Recorder
from penstock.guard.enforce import ShowRows
from penstock.model import AttributeDefinition, AttributeSpec, Event, Kind, NetworkName, TypeDefinition, TypeName
from penstock.model.events import TransitEvent
from penstock.model.types import EventType
from penstock.trust.capabilities import BROKER_RIGHTS, BoundSelector, Right, event_tag, network_tag
from penstock.trust.certificates import Authorisation, Certificate, issue
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import sign_type
from penstock.trust.validity import ALWAYS

OWNER, WRITER, READER, *BROKERS = (SigningKey(bytes([number]) * 32) for number in range(31, 36))
NETWORK = NetworkName(OWNER.principal, "Bench")
KINDS = {
    "plate": Kind.STRING,
    "place": Kind.STRING,
    "speed": Kind.INTEGER,
    "lane": Kind.INTEGER,
    "heading": Kind.FLOAT,
}
SIGHTING = TypeDefinition(
    TypeName(OWNER.principal, "Sighting"),
    tuple(AttributeDefinition(name, name, AttributeSpec(kind)) for name, kind in KINDS.items()),
)
SIGNED = sign_type(SIGHTING, OWNER)
TYPE = EventType.of(SIGHTING)
VALUES: dict[str, Any] = {"plate": "AB 12 CDE", "place": "Euston Road", "speed": 42, "lane": 1, "heading": 271.5}
SUBJECT = "sightings"


def _issue(who: SigningKey, tag: object) -> Certificate:
    return issue(Authorisation(OWNER.principal, who.principal, tag, False, ALWAYS), OWNER)  # type: ignore[arg-type]  # a tag


def credentials() -> Credentials:
    """Everybody may connect, the writer may publish; the reader may not see the lane, nor slow cars (class 2)."""
    network = [_issue(who, network_tag(OWNER.principal, "Bench", [Right.CONNECT])) for who in (WRITER, READER)]
    network += [_issue(who, network_tag(OWNER.principal, "Bench", BROKER_RIGHTS)) for who in BROKERS]
    network += [_issue(who, event_tag(OWNER.principal, "Sighting", None, [Right.ROUTE])) for who in BROKERS]
    publish = event_tag(OWNER.principal, "Sighting", None, [Right.PUBLISH])
    seen = [attribute.id for attribute in TYPE.attributes if attribute.name != "lane"]
    if "off" in sys.argv:
        everything = event_tag(OWNER.principal, "Sighting", None, [Right.SUBSCRIBE])
        return Credentials.of(*network, _issue(WRITER, publish), _issue(READER, everything))
    subscribe = event_tag(
        OWNER.principal,
        "Sighting",
        None,
        [Right.SUBSCRIBE],
        attributes=seen,
        where=[BoundSelector.of("speed > 30", TYPE)],
    )
    return Credentials.of(*network, _issue(WRITER, publish), _issue(READER, subscribe))


class UncheckedPublication(Publication):
    """What is left of publishing when nothing is asked, in the quickest way there is."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._ids = tuple(attribute.id for attribute in self.event_type.attributes)
        self.admit = lambda rows, _most, _ask: list(rows)

    def __call__(self, event: Event, _environment: object) -> TransitEvent:
        stated: dict[str, Any] = dict(zip(self._ids, event.values.values(), strict=True))
        return TransitEvent(self.event_type.key, self.event_type.ancestors, stated, event.id, event.time)


class UncheckedDelivery(Delivery):
    """What is left of delivery when nothing is asked, in the quickest way there is."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._ids = [str(attribute.id) for attribute in self.event_type.attributes]
        self._names = [attribute.name for attribute in self.event_type.attributes]

    def for_rows(self, _source: EventType) -> ShowRows:
        return lambda rows, _environment: list(rows)

    def __call__(self, event: TransitEvent, _environment: object) -> Event:
        seen = dict(zip(self._names, map(event.values.get, self._ids), strict=True))
        return Event(self.event_type, seen, event.id, event.time)


async def broker(number: int, *called: int) -> None:
    """Run a broker that calls the first one, if it is told where that listens."""
    numbers = count(1)
    settings = NodeSettings(
        key=BROKERS[number],
        network=NETWORK,
        peers=tuple(PeerAddress("127.0.0.1", port, BROKERS[0].principal) for port in called),
        credentials=credentials(),
        types=(SIGNED,),
        trust=TrustSettings(strict=False),
        limits=BrokerLimits(),
    )
    recorder = Recorder(
        source="bench",
        sink=lambda _record: None,
        clock=lambda: datetime.now(UTC),
        timer=time.perf_counter_ns,
        ids=lambda: str(next(numbers)),
    )
    async with Node(settings, recorder) as node:
        print(node.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def publisher(port: int) -> None:
    """Publish through a broker."""
    async with connect(f"penstock://127.0.0.1:{port}", key=WRITER, network=NETWORK) as client:
        feed = await client.advertise(SIGNED)
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            for number in range(int(line)):
                await feed.post({**VALUES, "speed": 31 + number % 60})
            await feed.flush()


async def subscriber(port: int) -> None:
    """Read through a broker, and tell how long it took from the first to the last."""
    async with connect(f"penstock://127.0.0.1:{port}", key=READER, network=NETWORK) as client:
        events = await client.subscribe(SIGNED)
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            await anext(events)
            start = time.perf_counter()
            for _ in range(int(line) - 1):
                event = await anext(events)
                assert event["lane"] is None or "off" in sys.argv
            print(time.perf_counter() - start, flush=True)


async def both(port: int) -> None:
    """Publish one event and read it, again and again, over two connections; tell how long it took in the middle."""
    url = f"penstock://127.0.0.1:{port}"
    async with (
        connect(url, key=WRITER, network=NETWORK) as writer,
        connect(url, key=READER, network=NETWORK) as reader,
    ):
        feed, events = await writer.advertise(SIGNED), await reader.subscribe(SIGNED)
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            times: list[float] = []
            for number in range(int(line)):
                start = time.perf_counter()
                await feed.post({**VALUES, "speed": 31 + number % 60})
                await anext(events)
                times.append(time.perf_counter() - start)
            print(statistics.median(times), flush=True)


async def nats_both(port: int, authority: str) -> None:
    """Do the same through a NATS server over TLS: each event packed and unpacked."""
    address, context = f"tls://127.0.0.1:{port}", ssl.create_default_context(cafile=authority)
    writer, reader = await nats.connect(address, tls=context), await nats.connect(address, tls=context)
    messages = (await reader.subscribe(SUBJECT)).messages
    await reader.flush()
    print("ready", flush=True)
    names, numbers = list(KINDS), count(1)
    while line := await asyncio.to_thread(sys.stdin.readline):
        times: list[float] = []
        for number in range(int(line)):
            start = time.perf_counter()
            row = [f"x-{next(numbers)}", datetime.now(UTC), *{**VALUES, "speed": 31 + number % 60}.values()]
            await writer.publish(SUBJECT, msgpack.packb(row, datetime=True))
            _, _, *values = msgpack.unpackb((await anext(messages)).data, timestamp=3)
            dict(zip(names, values, strict=True))
            times.append(time.perf_counter() - start)
        print(statistics.median(times), flush=True)


async def nats_publisher(port: int, bare: bool) -> None:
    """Publish through a NATS server: each event packed, or always the same bytes."""
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    print("ready", flush=True)
    packed = msgpack.packb(["x-1", datetime.now(UTC), *VALUES.values()], datetime=True)
    numbers = count(1)
    while line := await asyncio.to_thread(sys.stdin.readline):
        for number in range(int(line)):
            if not bare:
                row = [f"x-{next(numbers)}", datetime.now(UTC), *{**VALUES, "speed": 31 + number % 60}.values()]
                packed = msgpack.packb(row, datetime=True)
            await client.publish(SUBJECT, packed)
        await client.flush()


async def nats_subscriber(port: int, bare: bool) -> None:
    """Read through a NATS server: each event unpacked into a dictionary, or just counted."""
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    events = await client.subscribe(SUBJECT, pending_msgs_limit=10_000_000, pending_bytes_limit=1 << 30)
    await client.flush()
    print("ready", flush=True)
    names = list(KINDS)
    while line := await asyncio.to_thread(sys.stdin.readline):
        await events.next_msg(60)
        start = time.perf_counter()
        left = int(line) - 1
        async for message in events.messages:
            if not bare:
                _, _, *values = msgpack.unpackb(message.data, timestamp=3)
                dict(zip(names, values, strict=True))
            left -= 1
            if not left:
                break
        print(time.perf_counter() - start, flush=True)


def main(role: str, *words: str) -> None:
    numbers = [int(word) for word in words if word.isdecimal()]
    if "off" in words:
        # For comparison only: the broker of this process asks nothing.
        for checked, unchecked in (("Delivery", UncheckedDelivery), ("Publication", UncheckedPublication)):
            setattr(effective, checked, unchecked)
    match role:
        case "broker":
            asyncio.run(broker(*numbers))
        case "publisher":
            asyncio.run(publisher(numbers[0]))
        case "subscriber":
            asyncio.run(subscriber(numbers[0]))
        case "both":
            asyncio.run(both(numbers[0]))
        case "nats-both":
            asyncio.run(nats_both(numbers[0], words[1]))
        case "nats-publisher":
            asyncio.run(nats_publisher(numbers[0], "bare" in words))
        case "nats-subscriber":
            asyncio.run(nats_subscriber(numbers[0], "bare" in words))


if __name__ == "__main__":
    main(*sys.argv[1:])

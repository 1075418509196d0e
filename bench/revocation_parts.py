"""Processes of the revocation benchmark: brokers that write down when they last delivered, a publisher, and readers."""

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from penstock.broker.client.client import Subscription, connect
from penstock.broker.core.settings import NodeSettings, TrustSettings
from penstock.broker.limits import BrokerLimits
from penstock.broker.local import requests
from penstock.broker.node.node import Node
from penstock.broker.wire.transports import PeerAddress
from penstock.crypto import SigningKey
from penstock.guard import Recorder
from penstock.model import AttributeDefinition, AttributeSpec, Kind, NetworkName, TypeDefinition, TypeName
from penstock.model.instants import format_date
from penstock.store.files.decision_file import DecisionFile
from penstock.store.files.policy_files import PolicyFolder
from penstock.trust.capabilities import BROKER_RIGHTS, Right, event_tag, network_tag
from penstock.trust.certificates import Authorisation, Certificate, issue
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import sign_type
from penstock.trust.tags import Tag
from penstock.trust.validity import Validity

OWNER, WRITER, *REST = (SigningKey(bytes([number]) * 32) for number in range(41, 52))
BROKERS, READERS = REST[:4], REST[4:]
#: the reader whose right is granted and revoked again and again, at the broker that is farthest from the owner
TARGET = READERS[0]
NETWORK = NetworkName(OWNER.principal, "Bench")
SIGHTING = TypeDefinition(
    TypeName(OWNER.principal, "Sighting"),
    (AttributeDefinition("plate", "0", AttributeSpec(Kind.STRING)),),
)
SIGNED = sign_type(SIGHTING, OWNER)
_HOST = "127.0.0.1"
#: seconds between two lots of events
_PAUSE = 0.005


def granted(who: SigningKey, tag: Tag, expires: datetime | None = None) -> Certificate:
    """Return a certificate of the owner."""
    validity = Validity(None, None if expires is None else format_date(expires))
    return issue(Authorisation(OWNER.principal, who.principal, tag, False, validity), OWNER)


def on_type(right: Right) -> Tag:
    """Return a right on the type."""
    return event_tag(OWNER.principal, SIGHTING.name.name, None, [right])


def credentials() -> Credentials:
    """Everybody may connect, four readers may read; the broker of the owner stamps for it."""
    connecting, being_broker = (
        network_tag(OWNER.principal, NETWORK.name, rights) for rights in ([Right.CONNECT], BROKER_RIGHTS)
    )
    return Credentials.of(
        *(granted(who, connecting) for who in (WRITER, *READERS)),
        *(granted(broker, being_broker) for broker in BROKERS),
        *(granted(broker, on_type(Right.ROUTE)) for broker in BROKERS),
        granted(BROKERS[-1], event_tag(OWNER.principal, None, None, [Right.STAMP])),
        granted(WRITER, on_type(Right.PUBLISH)),
        *(granted(reader, on_type(Right.SUBSCRIBE)) for reader in READERS if reader is not TARGET),
    )


async def broker(number: int, folder: str, *called: str) -> None:
    """Run a broker of a line, on a disk; answer a line with when, and how often, it has delivered to the target."""
    state = Path(folder) / str(number)
    state.mkdir()
    decisions, numbers = DecisionFile(state / "decisions.jsonl"), count(1)
    recorder = Recorder(
        source="bench",
        sink=decisions.append,
        revocations=decisions.append,
        safe=decisions.sync,
        clock=lambda: datetime.now(UTC),
        timer=time.perf_counter_ns,
        ids=lambda: str(next(numbers)),
    )
    settings = NodeSettings(
        key=BROKERS[number],
        network=NETWORK,
        peers=tuple(PeerAddress(_HOST, int(port), BROKERS[number - 1].principal) for port in called),
        credentials=credentials(),
        types=(SIGNED,),
        operators=frozenset([OWNER.principal]),
        trust=TrustSettings(strict=True),
        limits=BrokerLimits(),
    )
    async with Node(settings, recorder, keep=PolicyFolder(state)) as node:
        give, last, events = node.core.path.write, 0.0, 0

        def noted(given: requests.Given) -> None:
            nonlocal last, events
            session = node.core.local.session(given.session)
            if session.principal == TARGET.principal:
                last, events = time.time(), events + len(given.events)
            give(given)

        node.core.path.write = noted  # type: ignore[method-assign]  # to watch it deliver
        print(node.port, flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(last, events, flush=True)


async def publisher(port: int, rate: int) -> None:
    """Publish so many events a second until the process is ended."""
    async with connect(f"penstock://{_HOST}:{port}", key=WRITER, network=NETWORK, patience=60) as client:
        feed = await client.advertise(SIGNED)
        print("ready", flush=True)
        begun, sent = time.monotonic(), 0
        while True:
            due = int((time.monotonic() - begun) * rate)
            # What a busy machine did not send in time is not sent in a burst.
            for _ in range(min(due - sent, rate // 10)):
                await feed.post({"plate": "AB 12 CDE"})
            sent = due
            await asyncio.sleep(_PAUSE)


async def readers(*ports: int) -> None:
    """Read with one client at each broker, and the target at the first of them."""
    async with AsyncExitStack() as stack:
        tasks = []
        for key, port in zip(READERS, (ports[0], *ports), strict=True):
            url = f"penstock://{_HOST}:{port}"
            client = await stack.enter_async_context(connect(url, key=key, network=NETWORK, patience=60))
            if key is TARGET:
                print("ready", flush=True)
                # The owner grants the right once before anything is measured.
                await asyncio.to_thread(sys.stdin.readline)
            tasks.append(asyncio.create_task(_read(await client.subscribe(SIGNED))))
        print("ready", flush=True)
        await asyncio.gather(*tasks)


async def _read(events: Subscription) -> None:
    async for _ in events:
        pass


def main(role: str, *words: str) -> None:
    match role:
        case "broker":
            asyncio.run(broker(int(words[0]), *words[1:]))
        case "publisher":
            asyncio.run(publisher(*map(int, words)))
        case "readers":
            asyncio.run(readers(*map(int, words)))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What an attacker knows, and how it speaks to brokers: links on which anything can be said, and nodes that cheat."""

import asyncio
import base64
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from typing import Any, TypeAlias

from tests.broker.node_kit import BROKERS, HOST, LIMITS, Broker, settings
from tests.broker.sports import AGENCY, NETWORK

from penstock.broker.evolution.statements import POLICY
from penstock.broker.routing.membership import rendezvous
from penstock.broker.wire.link import Endpoint, Link, connect
from penstock.broker.wire.protocol import Hello, PeerRole
from penstock.broker.wire.transports import PeerAddress
from penstock.codec.wire import encode
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.model.names import TypeKey
from penstock.trust.policy_events import PolicyEvent
from penstock.trust.signed import UnverifiedValue, parse_signed


def key_of(name: str) -> SigningKey:
    """Return the key of a name."""
    return SigningKey(sha256(name.encode()).digest())


def _ground() -> SigningKey:
    """Return a key for which the owner's policy meets at the attacker."""
    of_policy = TypeKey(AGENCY.principal, POLICY)
    honest = [broker.principal for broker in BROKERS]
    keys = (key_of(f"ground {number}") for number in count())
    return next(key for key in keys if rendezvous(of_policy, iter([*honest, key.principal])) == key.principal)


#: who may connect and nothing else, the same with a key made for its place, and who may read
MEMBER, GROUND, SUBSCRIBER = key_of("member"), _ground(), key_of("subscriber")


@dataclass
class Target:
    """The network that is attacked, and for how long."""

    seconds: float
    ports: list[int]
    nats: str = ""
    #: what the owner has said so far
    policy: list[str] = field(default_factory=list)
    blows: int = 0
    _end: float | None = None

    def begin(self) -> None:
        """Say that preparations are over and the attack begins."""
        self._end = time.monotonic() + self.seconds
        sys.stdout.write(json.dumps({"begun": True}) + "\n")
        sys.stdout.flush()

    @property
    def going_on(self) -> bool:
        """Whether there is still time."""
        return self._end is not None and time.monotonic() < self._end

    async def rest(self) -> None:
        """Wait until the time is over."""
        while self.going_on:
            await asyncio.sleep(0.05)

    def said(self) -> list[UnverifiedValue[PolicyEvent]]:
        """Return what the owner has said so far."""
        return [parse_signed(base64.b64decode(one), PolicyEvent) for one in self.policy]

    def address(self, broker: int) -> PeerAddress:
        return PeerAddress(HOST, self.ports[broker], BROKERS[broker].principal)


#: what an attacker on a NATS server does first
LISTENING = "listening"
Attack: TypeAlias = Callable[[Target], Awaitable[None]]


@asynccontextmanager
async def link_to(target: Target, broker: int, key: SigningKey) -> AsyncIterator[Link]:
    """Yield a link on which nothing has been said. Raises as `connect`."""
    link = await connect(Endpoint(key=key, network=NETWORK, limits=LIMITS), HOST, target.ports[broker])
    try:
        yield link
    finally:
        await link.close()


async def greet(link: Link, role: PeerRole, credentials: bytes = b"") -> None:
    """Say hello, and wait for whatever comes. Raises what the link ends with."""
    link.post(encode(Hello(role, credentials).to_tree()))
    async with asyncio.timeout(5):
        await link.receive()


@asynccontextmanager
async def cheating_broker(target: Target, key: SigningKey, *called: int, **more: Any) -> AsyncIterator[Broker]:
    """Yield a node of the attacker that calls brokers, whether they let it in or not."""
    peers = tuple(target.address(broker) for broker in called)
    async with Broker(settings(key=key, peers=peers, **more)) as node:
        deadline = time.monotonic() + 2.0
        while len(node.neighbours.up()) < len(called) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        yield node


async def each_again(target: Target, blow: Callable[[], Awaitable[object]], at_once: int = 1) -> None:
    """Strike again and again, some in parallel, whatever the result."""

    async def strike() -> None:
        while target.going_on:
            target.blows += 1
            with suppress(PenstockError, OSError, TimeoutError):
                await blow()
            await asyncio.sleep(0)

    await asyncio.gather(*(strike() for _ in range(at_once)))

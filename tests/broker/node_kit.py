"""Nodes and clients over real TLS in one process, and peers that keep no rules."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from typing import TypeVar

import pytest
from tests.broker.sports import AGENCY, CONNECT, NETWORK, NOW, TYPES, grant, signed

from penstock.broker.client.client import Client, Feed, Subscription, connect
from penstock.broker.core.reports import LinkReport
from penstock.broker.core.settings import NodeSettings, TrustSettings
from penstock.broker.fabric.network import FabricSettings
from penstock.broker.keys.node_keys import Managing
from penstock.broker.limits import BrokerLimits
from penstock.broker.local.decisions import AuthoritySources
from penstock.broker.local.requests import RequestReport
from penstock.broker.node.node import Node
from penstock.broker.node.policies import Keep
from penstock.broker.wire.link import Endpoint, Link
from penstock.broker.wire.link import connect as open_link
from penstock.broker.wire.protocol import Hello, PeerRole
from penstock.broker.wire.transports import PeerAddress
from penstock.codec.wire import Wire, Writable, encode
from penstock.crypto import SigningKey
from penstock.errors import PenstockError, RefusedError
from penstock.guard import DecisionRecord, Recorder, RevocationRecord
from penstock.model.values import Scalar
from penstock.trust.capabilities import BROKER_RIGHTS, Right
from penstock.trust.certificates import Certificate
from penstock.trust.credentials import Credentials
from penstock.trust.refusals import LackedRight

T = TypeVar("T")
BROKERS = [SigningKey(bytes([i]) * 32) for i in range(61, 66)]
HOST = "127.0.0.1"
LIMITS = BrokerLimits(link_goodbye=300)
#: for what has to happen, however busy the machine is
LONG = 60.0

#: every broker may carry all types of the agency
ROUTES = [grant(broker, one, Right.ROUTE) for broker in BROKERS for one in TYPES]


def run(test: Coroutine[object, object, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(2 * LONG):
            await test

    asyncio.run(bounded())


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(LONG):
        while not holds():
            await asyncio.sleep(0.005)


OF_RIGHTS = {
    "broker.not-permitted",
    "broker.not-told",
    "broker.not-advertised",
    "guard.not-permitted",
    "keys.not-manager",
    "keys.not-entitled",
}


async def refused(code: str, act: Awaitable[object]) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        await act
    assert caught.value.code == code, caught.value
    if code in OF_RIGHTS:
        # Every refusal for lack of rights says who may not do what, and which command explains it.
        assert isinstance(caught.value.fields["lacked"], LackedRight)
        assert caught.value.message.startswith(str(caught.value.fields["lacked"]))
        assert "`penstock explain " in caught.value.hint
    return caught.value


class Broker(Node):
    """A node that remembers what its operator receives."""

    told: list[RequestReport | LinkReport | PenstockError]

    def __init__(
        self,
        settings: NodeSettings,
        sink: Callable[[DecisionRecord], None] | None = None,
        keep: Keep | None = None,
        fabric: FabricSettings | None = None,
        managing: Managing | None = None,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.told = []
        self.revocations: list[RevocationRecord] = []
        self.records: list[DecisionRecord] = []
        numbers = count(1)
        recorder = Recorder(
            source="broker",
            sink=sink or self.records.append,
            clock=lambda: NOW,
            timer=lambda: 0,
            ids=lambda: str(next(numbers)),
            revocations=self.revocations.append,
        )
        super().__init__(
            settings, recorder, clock=clock, reported=self.told.append, keep=keep, fabric=fabric, managing=managing
        )

    @property
    def codes(self) -> set[str]:
        return {report.code for report in self.told}

    @property
    def held(self) -> int:
        """How many subscriptions and advertisements of clients stand."""
        return sum(len(session.held) for session in self.core.local._sessions.values())

    def policy(self, *certificates: Certificate) -> None:
        """Change the policy."""
        self.core.change_sources(AuthoritySources(bag(*certificates)))

    def sees(self, *brokers: Node) -> bool:
        """Say whether these, and no others, are the other brokers of the network as this one sees it."""
        return set(self.brokers()) == {self.core.principal, *(one.core.principal for one in brokers)}

    @property
    def address(self) -> PeerAddress:
        return PeerAddress(HOST, self.port, self.core.principal)


def bag(*certificates: Certificate) -> Credentials:
    brokers = [grant(broker, None, *BROKER_RIGHTS) for broker in BROKERS] + ROUTES
    return Credentials.of(*CONNECT, *brokers, *certificates)


def settings(*policy: Certificate, key: SigningKey = BROKERS[0], **more: object) -> NodeSettings:
    chosen: dict[str, object] = {
        "credentials": bag(*policy),
        "types": tuple(map(signed, TYPES)),
        "operators": frozenset([AGENCY.principal]),
        "limits": LIMITS,
        # Most tests are not about time-stamps, and need none.
        "trust": TrustSettings(strict=False),
        **more,
    }
    return NodeSettings(key=key, network=NETWORK, **chosen)  # type: ignore[arg-type]  # of the settings


@asynccontextmanager
async def running(
    *policy: Certificate,
    key: SigningKey = BROKERS[0],
    keep: Keep | None = None,
    fabric: FabricSettings | None = None,
    managing: Managing | None = None,
    **more: object,
) -> AsyncIterator[Broker]:
    async with Broker(settings(*policy, key=key, **more), keep=keep, fabric=fabric, managing=managing) as node:
        yield node


def client_of(node: Node | int, key: SigningKey, **more: object) -> Client:
    port = node if isinstance(node, int) else node.port
    chosen: dict[str, object] = {"limits": LIMITS, "timeout": LONG, **more}
    return connect(f"penstock://{HOST}:{port}", key=key, network=NETWORK, **chosen)  # type: ignore[arg-type]  # so


async def publish(feed: Feed, event: Mapping[str, Scalar] | None = None, /, **values: Scalar) -> None:
    """Publish an event, again while the broker compares its policy with that of others."""
    while True:
        try:
            await feed.publish(event, **values)
        except RefusedError as error:
            if error.code != "broker.policy-stale":
                raise
            await asyncio.sleep(0.01)
        else:
            return


async def flow(feed: Feed, subscription: Subscription) -> None:
    """Publish until something arrives, and take all that does."""
    arrived = False
    async with asyncio.timeout(LONG):
        while not arrived:
            await publish(feed, headline="probe")
            with suppress(TimeoutError):
                await subscription.next(0.1)
                arrived = True
        await publish(feed, headline="end of probes")
        while (await anext(subscription))["headline"] != "end of probes":
            pass


async def take(subscription: Subscription[T], number: int = 1) -> list[T]:
    return [await subscription.next(LONG) for _ in range(number)]


async def headlines(subscription: Subscription, number: int) -> list[Scalar]:
    return [event["headline"] for event in await take(subscription, number)]


# Peers that keep no rules.


@asynccontextmanager
async def peer(
    node: Node, key: SigningKey, role: PeerRole | None = PeerRole.CLIENT, shown: bytes = b""
) -> AsyncIterator[Link]:
    """Yield a link of somebody who says what he likes; with a role, who has said hello."""
    link = await open_link(Endpoint(key=key, network=NETWORK, limits=LIMITS), HOST, node.port)
    try:
        if role is not None:
            say(link, Hello(role, shown).to_tree())
        yield link
    finally:
        await link.close()


def say(link: Link, *messages: Writable) -> None:
    for message in messages:
        link.post(encode(message))


async def hear(link: Link, number: int) -> list[Wire]:
    """Return the next words, so many at least."""
    found: list[Wire] = []
    async with asyncio.timeout(LONG):
        while len(found) < number:
            found += await link.receive()
    return found


async def ending(link: Link) -> str:
    """Return the code with which a node ends a link."""
    try:
        async with asyncio.timeout(LONG):
            while True:
                await link.receive()
    except PenstockError as error:
        return str(error.fields.get("reason", error.code))

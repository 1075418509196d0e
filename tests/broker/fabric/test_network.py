"""A network of brokers behaves in one way, whatever is between them: links, an embedded fabric, or NATS servers."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from typing import Final

import pytest
from tests.broker.node.test_policies import complete_at
from tests.broker.node_kit import BROKERS, Broker, client_of, flow, headlines, refused, run, running, until
from tests.broker.sports import AGENCY, LIVE, NEWS, NUMBER, PDA, REPORTER, TENNIS, definition, grant, signed

from penstock.broker.fabric.network import FabricSettings
from penstock.broker.node.policies import Keep
from penstock.crypto import SigningKey
from penstock.errors import FailedError
from penstock.fabric import EmbeddedFabric, Fabric
from penstock.fabric.nats import NatsFabric
from penstock.model import TypeDefinition
from penstock.testing.nats import NatsServer
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.certificates import Authorisation, Certificate, issue
from penstock.trust.credentials import Credentials
from penstock.trust.policy_events import Install, RequireStamps, Revoke
from penstock.trust.policy_state import PolicyAuthor, publish
from penstock.trust.validity import ALWAYS

READING: Final = grant(PDA, NEWS, Right.SUBSCRIBE)
WRITING: Final = grant(REPORTER, NEWS, Right.PUBLISH)
TENNIS_READING: Final = grant(PDA, TENNIS, Right.SUBSCRIBE)
TENNIS_WRITING: Final = grant(REPORTER, TENNIS, Right.PUBLISH)
_NUMBERS = count()


class Between(ABC):
    """What is between the brokers of a network."""

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[None]:
        """Be there."""

    @abstractmethod
    def broker(
        self, number: int, *policy: Certificate, keep: Keep | None = None
    ) -> AbstractAsyncContextManager[Broker]:
        """Run a broker that is in the network."""


class Links(Between):
    """Each broker calls those that run already."""

    def __init__(self) -> None:
        self._running: list[Broker] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        yield

    @asynccontextmanager
    async def broker(self, number: int, *policy: Certificate, keep: Keep | None = None) -> AsyncIterator[Broker]:
        peers = tuple(one.address for one in self._running)
        async with running(*policy, key=BROKERS[number], keep=keep, peers=peers) as node:
            self._running.append(node)
            try:
                yield node
            finally:
                self._running.remove(node)


class Embedded(Between):
    fabric: Fabric

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with EmbeddedFabric() as self.fabric:
            yield

    @asynccontextmanager
    async def broker(self, number: int, *policy: Certificate, keep: Keep | None = None) -> AsyncIterator[Broker]:
        settings = FabricSettings(fabric=self.fabric, unsafe_plaintext=True)
        async with running(*policy, key=BROKERS[number], keep=keep, fabric=settings) as node:
            yield node


class Nats(Between):
    """Each broker has a connection of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._prefix = f"net{next(_NUMBERS)}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        yield

    @asynccontextmanager
    async def broker(self, number: int, *policy: Certificate, keep: Keep | None = None) -> AsyncIterator[Broker]:
        async with await NatsFabric.connect(self._url, prefix=self._prefix) as fabric:
            settings = FabricSettings(fabric=fabric, unsafe_plaintext=True)
            async with running(*policy, key=BROKERS[number], keep=keep, fabric=settings) as node:
                yield node


@pytest.fixture(params=["links", "embedded", "nats"])
def between(request: pytest.FixtureRequest) -> Between:
    """Return each kind in turn."""
    if request.param == "nats":
        return Nats(request.getfixturevalue("server").url)
    return Links() if request.param == "links" else Embedded()


@asynccontextmanager
async def network(between: Between, *policy: Certificate, size: int = 2) -> AsyncIterator[list[Broker]]:
    """Run brokers that all know of each other."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(between.open())
        nodes = [await stack.enter_async_context(between.broker(number, *policy)) for number in range(size)]
        await until(lambda: all(node.sees(*(one for one in nodes if one is not node)) for node in nodes))
        yield nodes


def now() -> datetime:
    return datetime.now(UTC)


def grant_on(made: TypeDefinition, who: SigningKey, right: Right) -> Certificate:
    """Grant a right on a type that is not among those of the service."""
    tag = event_tag(AGENCY.principal, made.name.name, None, (right,))
    return issue(Authorisation(AGENCY.principal, who.principal, tag, False, ALWAYS), AGENCY)


def number_at(node: Broker) -> object:
    """Return the number of the agency's last policy event that a node knows."""
    found = node.policies.status()[str(AGENCY.principal)]
    assert isinstance(found, dict)
    return found["number"]


def state_at(node: Broker) -> object:
    found = node.policies.status()[str(AGENCY.principal)]
    assert isinstance(found, dict)
    return found["state"]


def test_events_reach_all_who_want_them_once_and_in_order(between: Between) -> None:
    async def main() -> None:
        async with (
            network(between, READING, WRITING, size=3) as (one, other, third),
            client_of(one, PDA) as here,
            client_of(other, PDA) as there,
            client_of(third, PDA) as elsewhere,
            client_of(one, REPORTER) as writer,
        ):
            feed = await writer.advertise(NEWS.name)
            near, far = await here.subscribe(NEWS.name), await there.subscribe(NEWS.name)
            picky = await elsewhere.subscribe(NEWS.name, "location = 'London'")
            await flow(feed, far)
            while near.waiting:
                await anext(near)
            await until(lambda: not one.on_fabric or (third.on_fabric and third.on_fabric.reads(NEWS.name.key)))
            await feed.publish_many(
                [{"headline": str(n), "location": ("London", "Paris")[n % 2]} for n in range(1_500)]
            )
            assert await headlines(far, 1_500) == [str(n) for n in range(1_500)]
            assert (await headlines(near, 1_500))[-1] == "1499"
            assert await headlines(picky, 750) == [str(n) for n in range(0, 1_500, 2)]
            await asyncio.sleep(0.1)
            assert [near.waiting, far.waiting, picky.waiting] == [0, 0, 0]

    run(main())


def test_sub_types_known_and_new(between: Between) -> None:
    golf = definition("Golf", {"holes": NUMBER}, NEWS.name)

    async def main() -> None:
        author = PolicyAuthor(AGENCY)
        async with (
            network(between, READING, TENNIS_WRITING) as (one, other),
            client_of(one, PDA) as reader,
            client_of(other, REPORTER) as writer,
        ):
            news = await reader.subscribe(NEWS.name)
            await flow(await writer.advertise(TENNIS.name), news)
            granted = publish(
                *(grant_on(golf, BROKERS[n], Right.ROUTE) for n in range(2)), grant_on(golf, REPORTER, Right.PUBLISH)
            )
            await writer.evolve(author.change(now(), Install(signed(golf)), granted).to_bytes())
            await until(lambda: number_at(one) == number_at(other) == 1)
            await flow(await writer.advertise(golf.name), news)

    run(main())


def test_what_an_owner_grants_and_revokes_reaches_all_brokers(between: Between) -> None:
    async def main() -> None:
        author = PolicyAuthor(AGENCY)
        async with (
            network(between) as (one, other),
            client_of(one, PDA) as reader,
            client_of(other, REPORTER) as writer,
        ):
            await refused("broker.not-permitted", reader.subscribe(NEWS.name))
            await writer.evolve(author.change(now(), publish(READING, WRITING)).to_bytes())
            await until(lambda: number_at(one) == 1)
            news, feed = await reader.subscribe(NEWS.name), await writer.advertise(NEWS.name)
            await flow(feed, news)
            await writer.evolve(author.change(now(), Revoke((READING.id,))).to_bytes())
            await until(lambda: complete_at(other, 2))
            seen = {found.broker for found in one.policies.completion(AGENCY.principal, 2).brokers}
            assert seen == {key.principal for key in BROKERS[:2]}
            await feed.publish(headline="secret")
            await asyncio.sleep(0.2)
            assert not news.waiting
            # A subscription that stands comes to nothing, until policy lets it again.
            await writer.evolve(author.change(now(), publish(grant(PDA, NEWS, Right.SUBSCRIBE))).to_bytes())
            await until(lambda: number_at(one) == 3)

    run(main())


def test_a_broker_that_comes_later_knows_what_holds(between: Between) -> None:
    async def main() -> None:
        author = PolicyAuthor(AGENCY)
        async with network(between) as (one, _), client_of(one, REPORTER) as writer:
            for changes in (publish(READING, WRITING), Revoke((READING.id,)), publish(TENNIS_READING)):
                await writer.evolve(author.change(now(), changes).to_bytes())
            async with between.broker(2) as late, client_of(late, PDA) as reader:
                await until(lambda: number_at(late) == 3)
                # What was revoked does not count, though the client shows it.
                await reader.disclose(Credentials.of(READING))
                await refused("broker.not-permitted", reader.subscribe(LIVE.name))
                await reader.subscribe(TENNIS.name)
                await until(lambda: complete_at(one, 3))

    run(main())


def test_time_stamps_keep_brokers_going(between: Between) -> None:
    async def main() -> None:
        author = PolicyAuthor(AGENCY)
        async with (
            network(between) as (one, other),
            client_of(one, PDA) as reader,
            client_of(other, REPORTER) as writer,
        ):
            await writer.evolve(author.change(now(), publish(READING, WRITING), RequireStamps()).to_bytes())
            await until(lambda: state_at(one) == "unstamped")
            await writer.evolve(author.stamp(now(), 60_000).to_bytes())
            await until(lambda: state_at(one) == "fresh")
            news, feed = await reader.subscribe(NEWS.name), await writer.advertise(NEWS.name)
            await flow(feed, news)
            await writer.evolve(author.stamp(now(), 200).to_bytes())
            await until(lambda: state_at(one) == state_at(other) == "silent")
            await refused("broker.policy-stale", feed.publish(headline="h"))
            async with between.broker(2) as late:
                await writer.evolve(author.stamp(now(), 60_000).to_bytes())
                await until(lambda: state_at(one) == state_at(late) == "fresh")

    run(main())


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_nats_server_goes_and_comes_back(server: NatsServer, how: str) -> None:
    async def main() -> None:
        author, between = PolicyAuthor(AGENCY), Nats(server.url)
        async with (
            network(between, READING, WRITING) as (one, other),
            client_of(one, PDA) as reader,
            client_of(other, REPORTER) as writer,
        ):
            news, feed = await reader.subscribe(NEWS.name), await writer.advertise(NEWS.name)
            await flow(feed, news)
            await asyncio.to_thread(server.kill if how == "kill" else server.stop)
            await feed.publish_many([{"headline": str(n)} for n in range(100)])
            await writer.evolve(author.change(now(), publish(TENNIS_READING)).to_bytes())
            await asyncio.to_thread(server.start)
            # What waited for the server arrives, events and policy.
            assert await headlines(news, 100) == [str(n) for n in range(100)]
            await until(lambda: number_at(one) == 1)
            assert other.core.counts["lost"] == one.core.counts["missing"] == 0

    run(main())


def test_a_broker_goes_and_comes_back(between: Between) -> None:
    async def main() -> None:
        async with network(between, READING, WRITING) as (one, other), client_of(one, PDA) as reader:
            news = await reader.subscribe(NEWS.name)
            async with between.broker(2, READING, WRITING) as third, client_of(third, REPORTER) as writer:
                await until(lambda: one.sees(other, third))
                await flow(await writer.advertise(NEWS.name), news)
            await until(lambda: one.sees(other))
            async with between.broker(2, READING, WRITING) as third, client_of(third, REPORTER) as writer:
                await until(lambda: one.sees(other, third))
                await flow(await writer.advertise(NEWS.name), news)

    run(main())


def test_a_broker_that_is_started_twice_disturbs_nobody() -> None:
    async def main() -> None:
        between = Embedded()
        async with network(between, READING, WRITING) as (one, other):
            incarnation = one.on_fabric and one.on_fabric._members.incarnation
            settings = FabricSettings(fabric=between.fabric, unsafe_plaintext=True)
            with pytest.raises(FailedError) as failed:
                async with running(READING, WRITING, key=BROKERS[0], fabric=settings, port=one.port):
                    pass
            assert failed.value.code == "link.address"
            await asyncio.sleep(0.1)
            assert other.sees(one)
            async with client_of(other, PDA) as reader, client_of(one, REPORTER) as writer:
                await flow(await writer.advertise(NEWS.name), await reader.subscribe(NEWS.name))
            assert one.on_fabric
            assert one.on_fabric._members.incarnation == incarnation

    run(main())


def test_a_broker_reports_another_process_with_its_key() -> None:
    async def main() -> None:
        between = Embedded()
        async with network(between, READING, WRITING) as (one, _), between.broker(0, READING, WRITING):
            await until(lambda: "network.twin" in one.codes)

    run(main())

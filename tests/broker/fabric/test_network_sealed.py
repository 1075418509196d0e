"""Sealed types on a fabric: they cross it in their blocks, and others do not cross it unless somebody says so."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from tests.broker.keys.test_node_keys import MANAGING, PUBLISHING, READING, SEALED, WRITING, holds, managing, now
from tests.broker.node_kit import BROKERS, LONG, Broker, client_of, flow, headlines, run, running, until
from tests.broker.sports import NEWS, PDA, REPORTER, grant, signed

from penstock.broker.client.client import Feed, Subscription
from penstock.broker.fabric.network import FabricSettings, read_body, topic_of, write_body
from penstock.broker.sealing.blocks import SealedPublications
from penstock.broker.wire.publications import Publications
from penstock.codec.wire import encode
from penstock.errors import MalformedError
from penstock.fabric import EmbeddedFabric, Fabric
from penstock.fabric import TopicSubscription as Samples
from penstock.fabric.nats import NatsFabric
from penstock.model.events import TransitEvent
from penstock.testing.nats import NatsServer
from penstock.trust.capabilities import Right
from penstock.trust.event_types import UnverifiedType

POLICY = (READING, WRITING, MANAGING, PUBLISHING, grant(BROKERS[1], NEWS, Right.SUBSCRIBE))


@asynccontextmanager
async def two(one: Fabric, other: Fabric, *types: UnverifiedType, unsafe: bool = False) -> AsyncIterator[list[Broker]]:
    """Yield a broker that publishes and manages keys, and one that reads."""
    ways = [FabricSettings(fabric=fabric, unsafe_plaintext=unsafe) for fabric in (one, other)]
    async with (
        running(*POLICY, key=BROKERS[0], types=types, fabric=ways[0], managing=managing()) as pub,
        running(*POLICY, key=BROKERS[1], types=types, fabric=ways[1]) as sub,
    ):
        await until(lambda: pub.sees(sub) and sub.sees(pub))
        yield [pub, sub]


@asynccontextmanager
async def flowing(one: Fabric, other: Fabric) -> AsyncIterator[tuple[Broker, Feed, Subscription]]:
    """Yield the broker that publishes sealed news to the other, a feed there, and who reads at the other."""
    async with two(one, other, signed(SEALED)) as (pub, sub):
        await until(lambda: holds(pub) == holds(sub) == 4)
        async with client_of(sub, PDA) as reader, client_of(pub, REPORTER) as writer:
            news, feed = await reader.subscribe(NEWS.name), await writer.advertise(NEWS.name)
            await flow(feed, news)
            yield pub, feed, news


async def crossed(samples: Samples, kept: list[bytes]) -> None:
    """Keep what goes over a topic."""
    async for sample in samples:
        kept.append(sample.data)  # noqa: PERF401  # seen while it grows


async def exchange(one: Fabric, other: Fabric, wire: Fabric) -> None:
    kept: list[bytes] = []
    async with flowing(one, other) as (_, feed, news), await wire.subscribe(topic_of(NEWS.name.key)) as samples:
        watching = asyncio.create_task(crossed(samples, kept))
        await feed.publish_many([{"headline": f"SECRET-{n}", "location": "London"} for n in range(100)])
        assert await headlines(news, 100) == [f"SECRET-{n}" for n in range(100)]
        await until(lambda: bool(kept))
        watching.cancel()
    assert not any(b"SECRET" in octets or b"London" in octets for octets in kept)


def test_sealed_events_cross_an_embedded_fabric_unread() -> None:
    async def main() -> None:
        async with EmbeddedFabric() as fabric:
            await exchange(fabric, fabric, fabric)

    run(main())


def test_sealed_events_cross_nats_servers_unread(server: NatsServer) -> None:
    async def main() -> None:
        async with (
            await NatsFabric.connect(server.url, prefix="sealed") as one,
            await NatsFabric.connect(server.url, prefix="sealed") as other,
            await NatsFabric.connect(server.url, prefix="sealed") as wire,
        ):
            await exchange(one, other, wire)

    run(main())


def test_what_nobody_seals_stays_at_its_broker() -> None:
    async def main() -> None:
        async with (
            EmbeddedFabric() as fabric,
            two(fabric, fabric, signed(NEWS)) as (pub, sub),
            client_of(sub, PDA) as reader,
            client_of(pub, PDA) as near,
            client_of(pub, REPORTER) as writer,
        ):
            far, here = await reader.subscribe(NEWS.name), await near.subscribe(NEWS.name)
            feed = await writer.advertise(NEWS.name)
            await feed.publish(headline="h")
            await here.next(LONG)
            await asyncio.sleep(0.1)
            assert not far.waiting
            assert pub.core.counts["not carried"] == pub.core.counts["network.plaintext"] == 1

    run(main())


def test_plaintext_of_a_sealed_type_is_refused() -> None:
    async def main() -> None:
        async with EmbeddedFabric() as fabric:
            on_it = FabricSettings(fabric=fabric, unsafe_plaintext=True)
            await forge(on_it)

    async def forge(on_it: FabricSettings) -> None:
        async with (
            # One of the brokers does not know that the type is sealed, or says so.
            running(*POLICY, key=BROKERS[0], types=(signed(NEWS),), fabric=on_it) as pub,
            running(*POLICY, key=BROKERS[1], types=(signed(SEALED),), fabric=on_it) as sub,
        ):
            await until(lambda: pub.sees(sub) and sub.sees(pub))
            async with client_of(sub, PDA) as reader, client_of(pub, REPORTER) as writer:
                far = await reader.subscribe(NEWS.name)
                feed = await writer.advertise(NEWS.name)
                await until(lambda: sub.on_fabric is not None and sub.on_fabric.reads(NEWS.name.key))
                await feed.publish(headline="forged")
                await until(lambda: sub.core.counts["seal.missing"] > 0)
                assert not far.waiting

    run(main())


def test_nothing_stands_beside_a_block_on_a_fabric() -> None:
    made: list[bytes] = []

    async def main() -> None:
        async with EmbeddedFabric() as fabric, two(fabric, fabric, signed(SEALED)) as (pub, _):
            await until(lambda: holds(pub) == 4)
            event = TransitEvent(NEWS.name.key, (), {}, "id", now())
            plain = Publications(pub.core.principal, 1, (1,), (event,))
            sealed = SealedPublications.sealing(plain, pub.core.vault)
            made.extend(write_body(block) for block in (plain, sealed, sealed.onward(beside=True)))

    run(main())
    plain, sealed, beside = made
    assert type(read_body(plain)) is Publications
    assert isinstance(read_body(sealed), SealedPublications)
    for octets in (beside, b"\x90", encode(["other", []])):
        with pytest.raises(MalformedError):
            read_body(octets)


def test_what_crosses_a_fabric_is_sealed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with EmbeddedFabric() as fabric, flowing(fabric, fabric) as (pub, feed, news):
            sealed, seal = list[int](), pub.core.vault.seal

            def counted(events: Sequence[TransitEvent]) -> bytes:
                sealed.append(len(events))
                return seal(events)

            monkeypatch.setattr(pub.core.vault, "seal", counted)
            await feed.publish_many([{"headline": str(number)} for number in range(100)])
            assert await headlines(news, 100) == [str(number) for number in range(100)]
            assert sum(sealed) == 100

    run(main())


def test_without_a_key_what_would_cross_a_fabric_waits() -> None:
    async def main() -> None:
        async with EmbeddedFabric() as fabric, flowing(fabric, fabric) as (pub, feed, news):
            (scope, epoch, key), *_ = [held for held in pub.core.ring.items() if "#" in held[0]]
            pub.core.ring.close(scope, epoch)
            await feed.publish(headline="kept", location="London", agency="PA")
            waiting = pub.core.exchange.gathering
            # It has lingered, and is held back since.
            await until(lambda: len(waiting) == 1 and waiting.due is None)
            pub.core.ring.begin(scope, epoch, key)
            pub.core.release()
            assert await headlines(news, 1) == ["kept"]

    run(main())

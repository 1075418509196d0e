"""A fabric that nobody has to trust: what servers, strangers and other brokers can put on it, and what it can lose."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.broker.node.test_policies import complete_at
from tests.broker.node_kit import (
    BROKERS,
    LIMITS,
    Broker,
    client_of,
    ending,
    headlines,
    peer,
    refused,
    run,
    running,
    settings,
    until,
)
from tests.broker.sports import (
    AGENCY,
    LIBRARY_TYPES,
    NETWORK,
    NEWS,
    PDA,
    REPORTER,
    STRANGER,
    TENNIS,
    grant,
)

from penstock.broker.client.client import Client, Subscription
from penstock.broker.evolution.statements import ACKNOWLEDGEMENT, POLICY
from penstock.broker.fabric.members import SignedSample, network_topic
from penstock.broker.fabric.network import FabricSettings, read_body, topic_of, write_body
from penstock.broker.fabric.topics import STATE, events_qos
from penstock.broker.limits import BrokerLimits
from penstock.broker.node.node import Node
from penstock.broker.routing.membership import SignedProof
from penstock.broker.wire.protocol import PeerRole
from penstock.broker.wire.publications import Publications
from penstock.crypto import SigningKey
from penstock.errors import FailedError, MalformedError
from penstock.fabric import EmbeddedFabric, Publisher, Qos
from penstock.model import Event, NetworkName, TypeDefinition
from penstock.model.names import TypeKey
from penstock.trust.capabilities import BROKER_RIGHTS, Right
from penstock.trust.credentials import Credentials
from penstock.trust.policy_state import PolicyAuthor, publish

READ = grant(PDA, NEWS, Right.SUBSCRIBE)
WRITE = grant(REPORTER, NEWS, Right.PUBLISH)
MEMBERS = network_topic(NETWORK)


def now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Speaker:
    """Somebody who says on a fabric what he likes, as a broker or as nobody."""

    fabric: EmbeddedFabric
    key: SigningKey = BROKERS[1]
    network: NetworkName = NETWORK
    incarnation: int = 1
    number: int = 0
    _events: int = field(default=0, repr=False)

    async def appear(self, *, body: bytes = b"+", **changes: Any) -> None:
        sample = self._sign(MEMBERS, body, **changes)
        await self._publish(MEMBERS, STATE, sample.to_bytes(), key=str(sample.origin))

    def sample(self, headline: str, made: TypeDefinition = NEWS, **changes: Any) -> SignedSample:
        """Return a sample with one event, as a broker would write it but for the changes."""
        self._events += 1
        event = Event.of(LIBRARY_TYPES[made.name], {"headline": headline}, id=headline, time=now()).to_transit()
        block = Publications(self.key.principal, self.incarnation, (self._events,), (event,))
        topic = changes.pop("topic", topic_of(made.name.key))
        return self._sign(topic, write_body(changes.pop("block", block)), **changes)

    async def say(self, headline: str, **changes: Any) -> bytes:
        octets = self.sample(headline, **changes).to_bytes()
        await self.throw(octets)
        return octets

    async def throw(self, octets: bytes, key: TypeKey = NEWS.name.key) -> None:
        """Put bytes on the topic of a type."""
        await self._publish(topic_of(key), events_qos(60.0, 0.0), octets)

    async def _publish(self, topic: str, qos: Qos, octets: bytes, key: str = "") -> None:
        await self.fabric.declare(topic, qos)
        await (await self.fabric.publisher(topic)).publish(octets, key=key)

    def _sign(self, topic: str, body: bytes, **changes: Any) -> SignedSample:
        self.number += 1
        made = SignedSample(self.key.principal, self.incarnation, self.number, now(), body)
        return replace(made, **changes).sign(topic, SignedProof(self.key, self.network, limits=BrokerLimits()))


@dataclass
class Scene:
    fabric: EmbeddedFabric
    node: Broker
    news: Subscription
    speaker: Speaker

    async def arrives(self, headline: str = "ok") -> None:
        """Check that what a broker says arrives, and nothing that was said before."""
        await self.speaker.say(headline)
        assert await headlines(self.news, 1) == [headline]


@asynccontextmanager
async def scene(**more: Any) -> AsyncIterator[Scene]:
    """Run a broker with a reader, and somebody else on the fabric who is a broker of the network."""
    async with EmbeddedFabric() as fabric:
        on_it = FabricSettings(fabric=fabric, unsafe_plaintext=True, **more)
        async with running(READ, WRITE, fabric=on_it) as node, client_of(node, PDA) as reader:
            news = await reader.subscribe(NEWS.name)
            assert node.on_fabric is not None
            await until(lambda: node.on_fabric and node.on_fabric.reads(NEWS.name.key))
            speaker = Speaker(fabric)
            await speaker.appear()
            await until(lambda: speaker.key.principal in node.brokers())
            yield Scene(fabric, node, news, speaker)


BAD: dict[str, tuple[str, Callable[[Speaker], bytes]]] = {
    "not a sample": ("message.malformed", lambda _one: b"\x90"),
    "not even our encoding": ("wire.malformed", lambda _one: b"\xc1"),
    "another's name": ("network.proof", lambda one: one.sample("x", origin=BROKERS[2].principal).to_bytes()),
    "a broken signature": ("network.proof", lambda one: replace(one.sample("x"), proof=bytes(96)).to_bytes()),
    "another number than was signed": ("network.proof", lambda one: replace(one.sample("x"), number=99).to_bytes()),
    "another time than was signed": ("network.proof", lambda one: replace(one.sample("x"), time=now()).to_bytes()),
    "another body than was signed": (
        "network.proof",
        lambda one: replace(one.sample("x"), body=one.sample("y").body).to_bytes(),
    ),
    "signed for another topic": ("network.proof", lambda one: one.sample("x", made=TENNIS).to_bytes()),
    "signed for another network": (
        "network.proof",
        lambda one: replace(one, network=NetworkName(AGENCY.principal, "Other")).sample("x").to_bytes(),
    ),
    "of a stranger": ("network.unknown", lambda one: replace(one, key=STRANGER).sample("x").to_bytes()),
    "too old": ("network.late", lambda one: one.sample("x", time=now() - timedelta(seconds=62)).to_bytes()),
    "before this broker": ("network.late", lambda one: one.sample("x", time=now() - timedelta(seconds=20)).to_bytes()),
    "of the future": ("network.future", lambda one: one.sample("x", time=now() + timedelta(seconds=5)).to_bytes()),
    "events of another type": (
        "message.malformed",
        lambda one: one.sample("x", made=TENNIS, topic=topic_of(NEWS.name.key)).to_bytes(),
    ),
    "events of another origin": (
        "message.malformed",
        lambda one: one.sample("x", block=replace(_block(one), origin=BROKERS[2].principal)).to_bytes(),
    ),
    "events to be kept": (
        "message.malformed",
        lambda one: one.sample("x", block=replace(_block(one), retain="slot")).to_bytes(),
    ),
    "no events": ("message.malformed", lambda one: one._sign(topic_of(NEWS.name.key), b"\x90").to_bytes()),
}


def _block(one: Speaker) -> Publications:
    return read_body(one.sample("x").body)


@pytest.mark.parametrize("what", BAD)
def test_what_is_not_as_it_should_be_is_refused_and_told(what: str) -> None:
    async def main() -> None:
        code, make = BAD[what]
        async with scene() as on:
            await on.speaker.throw(make(on.speaker))
            await until(lambda: on.node.core.counts[code])
            assert code in on.node.codes
            await on.arrives()

    run(main())


def test_samples_that_come_again_or_out_of_order_are_refused_and_those_missing_counted() -> None:
    async def main() -> None:
        async with scene() as on:
            first = await on.speaker.say("first")
            late = on.speaker.sample("late").to_bytes()
            missing = [on.speaker.sample("missing") for _ in range(3)]
            await on.speaker.say("second")
            assert await headlines(on.news, 2) == ["first", "second"]
            assert on.node.core.counts["missing"] == 1 + len(missing)
            await on.speaker.throw(first)
            await on.speaker.throw(late)
            await until(lambda: on.node.core.counts["network.replay"] == 2)
            # A broker that starts again counts again, and its former life is over.
            old = on.speaker.sample("old life").to_bytes()
            on.speaker.incarnation, on.speaker.number = 2, 0
            await on.arrives()
            await on.speaker.throw(old)
            await until(lambda: on.node.core.counts["network.replay"] == 3)
            assert on.node.core.counts["missing"] == 1 + len(missing)

    run(main())


def test_only_brokers_that_may_carry_a_type_are_heard() -> None:
    async def main() -> None:
        async with scene() as on:
            routes = [grant(key, NEWS, Right.ROUTE) for key in (BROKERS[0], BROKERS[2])]
            connect = [grant(key, None, *BROKER_RIGHTS) for key in (*BROKERS, PDA)]
            on.node.policy(READ, WRITE)
            await on.arrives()
            on.node.core.change_sources(
                replace(on.node.core.sources, credentials=Credentials.of(READ, *connect, *routes))
            )
            await on.speaker.say("untrusted")
            await until(lambda: on.node.core.counts["network.untrusted"])
            # What a broker shows for itself counts as well.
            shown = Credentials.of(grant(BROKERS[1], NEWS, Right.ROUTE)).to_bytes()
            await on.speaker.appear(body=b"+" + shown)
            await until(lambda: on.node.core.disclosed[BROKERS[1].principal])
            await on.arrives()

    run(main())


def test_a_broker_that_may_not_carry_a_type_keeps_it_to_itself() -> None:
    async def main() -> None:
        async with EmbeddedFabric() as fabric:
            on_it = FabricSettings(fabric=fabric, unsafe_plaintext=True)
            connect = [grant(key, None, *BROKER_RIGHTS) for key in (BROKERS[0], PDA, REPORTER)]
            shown = Credentials.of(READ, WRITE, *connect)
            async with (
                running(credentials=shown, fabric=on_it) as node,
                client_of(node, PDA) as reader,
                client_of(node, REPORTER) as writer,
            ):
                news = await reader.subscribe(NEWS.name)
                await (await writer.advertise(NEWS.name)).publish(headline="here")
                assert await headlines(news, 1) == ["here"]
                assert node.core.counts["not carried"] == 1

    run(main())


# Who is there.


def test_strangers_do_not_become_brokers_and_those_who_may_no_longer_are_forgotten() -> None:
    async def main() -> None:
        async with scene() as on:
            await Speaker(on.fabric, STRANGER).appear()
            await until(lambda: "broker.not-permitted" in on.node.codes)
            await on.speaker.appear(body=b"x")
            await until(lambda: "message.malformed" in on.node.codes)
            await Speaker(on.fabric, STRANGER).appear(origin=BROKERS[2].principal)
            await until(lambda: "network.proof" in on.node.codes)
            await Speaker(on.fabric, BROKERS[2]).appear(time=now() + timedelta(minutes=1))
            await until(lambda: "network.future" in on.node.codes)
            assert set(on.node.brokers()) == {BROKERS[0].principal, BROKERS[1].principal}
            connect = [grant(key, None, *BROKER_RIGHTS) for key in (BROKERS[0], PDA)]
            on.node.core.change_sources(replace(on.node.core.sources, credentials=Credentials.of(READ, *connect)))
            await until(lambda: set(on.node.brokers()) == {BROKERS[0].principal})

    run(main())


def test_who_may_only_connect_does_not_become_a_broker() -> None:
    async def main() -> None:
        async with scene() as on:
            shown = Credentials.of(grant(STRANGER, None, Right.CONNECT), grant(STRANGER, NEWS, Right.ROUTE))
            await Speaker(on.fabric, STRANGER).appear(body=b"+" + shown.to_bytes())
            await until(lambda: "broker.not-permitted" in on.node.codes)
            assert STRANGER.principal not in on.node.brokers()

    run(main())


def test_a_broker_that_gives_no_sign_of_life_is_forgotten_and_one_that_goes_says_so() -> None:
    async def main() -> None:
        async with scene(renewal=0.1, absence=0.4) as on:
            presence = (await on.fabric.state(MEMBERS, str(BROKERS[0].principal)))[0].data
            await until(lambda: BROKERS[1].principal not in on.node.brokers())
            while (await on.fabric.state(MEMBERS, str(BROKERS[0].principal)))[0].data == presence:
                await asyncio.sleep(0.01)
            await on.speaker.appear()
            await until(lambda: BROKERS[1].principal in on.node.brokers())
            before = on.speaker._sign(MEMBERS, b"+")
            await on.speaker.appear(body=b"-")
            await until(lambda: BROKERS[1].principal not in on.node.brokers())
            # What it said before does not bring it back.
            await on.speaker._publish(MEMBERS, STATE, before.to_bytes(), key=str(BROKERS[1].principal))
            await asyncio.sleep(0.05)
            assert BROKERS[1].principal not in on.node.brokers()
        assert not on.fabric._topics

    run(main())


def test_events_that_are_faster_than_the_word_that_their_broker_is_there() -> None:
    async def main() -> None:
        async with scene() as on:
            third = Speaker(on.fabric, BROKERS[2])
            sample = third._sign(MEMBERS, b"+").to_bytes()
            # As if the reader of that topic had not come so far.
            reading = on.node.on_fabric._states[MEMBERS]  # type: ignore[union-attr]  # it is on a fabric
            await reading.close()
            await third._publish(MEMBERS, STATE, sample, key=str(BROKERS[2].principal))
            await third.say("fast")
            assert await headlines(on.news, 1) == ["fast"]

    run(main())


def test_a_broker_whose_clock_went_back_is_heard_all_the_same() -> None:
    async def main() -> None:
        async with EmbeddedFabric() as fabric:
            ahead = Speaker(fabric, BROKERS[0], incarnation=int(now().timestamp() * 1000) + 10_000_000)
            await ahead.appear()
            async with running(fabric=FabricSettings(fabric=fabric, unsafe_plaintext=True)):
                pass
            (kept,) = await fabric.state(MEMBERS)
            assert SignedSample.from_bytes(kept.data).incarnation == ahead.incarnation + 1

    run(main())


# Statements about policy.


@pytest.mark.parametrize("name", [POLICY, ACKNOWLEDGEMENT])
def test_junk_among_statements_is_passed_over(name: str) -> None:
    async def main() -> None:
        async with scene() as on:
            topic = topic_of(TypeKey(AGENCY.principal, name))
            for octets in (b"junk", write_body(_block(on.speaker))):
                before = on.node.core.counts["refused"]
                await on.speaker._publish(topic, STATE, octets, key="junk")
                await until(lambda before=before: on.node.core.counts["refused"] > before)  # type: ignore[misc]  # so
            await on.arrives()

    run(main())


def test_policy_that_was_held_back_is_noticed_and_asked_for_again() -> None:
    async def main() -> None:
        author = PolicyAuthor(AGENCY)
        async with EmbeddedFabric() as fabric, two(fabric) as (here, there, writer, _news):
            policy = TypeKey(AGENCY.principal, POLICY)
            await there.on_fabric._states[topic_of(policy)].close()  # type: ignore[union-attr]  # it is on a fabric
            await writer.evolve(author.change(now(), publish(READ, WRITE)).to_bytes())
            await writer.evolve(author.stamp(now(), 60_000).to_bytes())
            await until(lambda: complete_at(here, 1))
            assert there.core.local.suspended == set()

    run(main())


# What the fabric loses.


class Flaky(EmbeddedFabric):
    """A fabric that can be away, or slow."""

    away = False
    pause = 0.0

    async def publisher(self, topic: str, *, strength: int = 0, instance: str = "") -> Any:
        return _FlakyPublisher(self, await super().publisher(topic, strength=strength, instance=instance))


class _FlakyPublisher:
    def __init__(self, fabric: Flaky, inner: Publisher) -> None:
        self._fabric, self._inner = fabric, inner

    async def publish(self, data: bytes, *, key: str = "") -> None:
        if self._fabric.away:
            raise FailedError("fabric.unreachable", "away")
        await asyncio.sleep(self._fabric.pause)
        await self._inner.publish(data, key=key)


@asynccontextmanager
async def two(
    fabric: EmbeddedFabric, limits: BrokerLimits = LIMITS, **more: Any
) -> AsyncIterator[tuple[Broker, Broker, Client, Subscription]]:
    """Run two brokers, with a writer at one; yield them, the writer, and what a reader at the other one gets."""
    on_it = FabricSettings(fabric=fabric, unsafe_plaintext=True, **more)
    async with (
        running(READ, WRITE, fabric=on_it, limits=limits) as here,
        running(READ, WRITE, key=BROKERS[1], fabric=on_it) as there,
        client_of(here, REPORTER) as writer,
        client_of(there, PDA) as reader,
    ):
        news = await reader.subscribe(NEWS.name)
        await until(lambda: there.on_fabric and there.on_fabric.reads(NEWS.name.key) and there.sees(here))
        yield here, there, writer, news


def test_what_waits_for_the_fabric_is_sent_when_it_is_back() -> None:
    async def main() -> None:
        async with Flaky() as fabric, two(fabric) as (here, _there, writer, news):
            feed = await writer.advertise(NEWS.name)
            await feed.publish(headline="before")
            assert await headlines(news, 1) == ["before"]
            fabric.away = True
            await feed.publish_many([{"headline": str(n)} for n in range(100)])
            await until(lambda: "fabric.unreachable" in here.codes)
            fabric.away = False
            assert await headlines(news, 100) == [str(n) for n in range(100)]
            assert here.core.counts["lost"] == 0

    run(main())


def test_what_finds_no_room_or_is_too_old_is_lost_and_both_sides_say_so() -> None:
    async def main() -> None:
        limits = replace(LIMITS, network_outbox=50)
        async with Flaky() as fabric, two(fabric, limits, fresh=0.3) as (here, there, writer, news):
            feed = await writer.advertise(NEWS.name)
            await feed.publish(headline="before")
            assert await headlines(news, 1) == ["before"]
            fabric.away = True
            await feed.publish_many([{"headline": str(n)} for n in range(40)])
            await until(lambda: "fabric.unreachable" in here.codes)
            # What cannot be on its way is not accepted, and what was accepted and is lost is counted.
            await refused("network.outbox", feed.publish_many([{"headline": str(n)} for n in range(60)]))
            await until(lambda: "network.late" in here.codes)
            fabric.away = False
            assert here.core.counts["lost"] == 40
            await feed.publish(headline="after")
            assert await headlines(news, 1) == ["after"]
            assert there.core.counts["missing"] == 2

    run(main())


def test_who_publishes_faster_than_the_fabric_is_slowed_and_nothing_is_lost() -> None:
    async def main() -> None:
        limits = replace(LIMITS, network_outbox=2_000)
        async with Flaky() as fabric, two(fabric, limits) as (here, there, writer, news):
            fabric.pause = 0.01
            feed = await writer.advertise(NEWS.name)
            for number in range(10_000):
                await feed.post({"headline": str(number)})
            assert await headlines(news, 10_000) == [str(number) for number in range(10_000)]
            assert (here.core.counts["lost"], there.core.counts["missing"]) == (0, 0)

    run(main())


def test_events_that_are_kept_reach_a_broker_that_was_away() -> None:
    async def main() -> None:
        async with EmbeddedFabric() as fabric:
            on_it = FabricSettings(fabric=fabric, unsafe_plaintext=True, durable=60.0)
            async with running(READ, WRITE, fabric=on_it) as here, client_of(here, REPORTER) as writer:
                feed = await writer.advertise(NEWS.name)
                await feed.publish_many([{"headline": str(n)} for n in range(10)])
                async with (
                    running(READ, WRITE, key=BROKERS[1], fabric=on_it) as late,
                    client_of(late, PDA) as reader,
                ):
                    news = await reader.subscribe(NEWS.name)
                    assert await headlines(news, 10) == [str(n) for n in range(10)]

    run(main())


# Links.


def test_there_are_no_links_beside_a_fabric() -> None:
    async def main() -> None:
        async with EmbeddedFabric() as fabric:
            on_it = FabricSettings(fabric=fabric, unsafe_plaintext=True)
            async with running(fabric=on_it) as node:
                shown = Credentials.of(grant(BROKERS[1], None, *BROKER_RIGHTS)).to_bytes()
                async with peer(node, BROKERS[1], PeerRole.BROKER, shown) as link:
                    assert await ending(link) == "node.no-links"
                with pytest.raises(MalformedError) as caught:
                    Node(replace(node.settings, peers=(node.address,)), node.core.recorder, fabric=on_it)
                assert caught.value.code == "node.peers"

    run(main())


def test_a_fabric_that_is_not_there_lets_no_broker_start() -> None:
    async def main() -> None:
        fabric = EmbeddedFabric()
        await fabric.close()
        node = Broker(settings(), fabric=FabricSettings(fabric=fabric, unsafe_plaintext=True))
        await refused("fabric.closed", node.start())
        assert not asyncio.all_tasks() - {asyncio.current_task()}

    run(main())

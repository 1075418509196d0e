"""Brokers on NATS beside a client that attacks: revocations arrive, events flow, what is not known is not delivered."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from tests.broker.fabric.test_network import READING, WRITING, Nats, network, now, number_at, state_at
from tests.broker.fabric.test_network_hostile import Speaker
from tests.broker.node_kit import BROKERS, Broker, client_of, flow, headlines, refused, run, running, until
from tests.broker.node_kit import publish as publish_event
from tests.broker.sports import AGENCY, NEWS, PDA, REPORTER, TENNIS, grant

from penstock.broker.client.client import Client, Feed, Subscription
from penstock.broker.evolution.statements import POLICY
from penstock.broker.fabric.members import SignedSample
from penstock.broker.fabric.network import FabricSettings, read_body, topic_of
from penstock.broker.fabric.topics import STATE, TopicReader
from penstock.errors import PenstockError
from penstock.fabric import EmbeddedFabric, Sample
from penstock.fabric.embedded import EmbeddedPublisher
from penstock.fabric.nats import NatsFabric
from penstock.fabric.nats_api import settle
from penstock.fabric.tasks import failing
from penstock.model.names import TypeKey
from penstock.testing.nats import NatsServer
from penstock.trust.capabilities import Right
from penstock.trust.policy_events import Change, Revoke
from penstock.trust.policy_state import PolicyAuthor, publish

POLICY_TOPIC = topic_of(TypeKey(AGENCY.principal, POLICY))


class Scene:
    """Two brokers with a reader at one and a writer at the other, and a stranger on the same server."""

    def __init__(
        self, nodes: list[Broker], writer: Client, feed: Feed, news: Subscription, stranger: NatsClient
    ) -> None:
        self.here, self.there = nodes
        self.writer, self.feed, self.news, self.stranger = writer, feed, news, stranger
        self._author, self.number = PolicyAuthor(AGENCY), 0

    async def change(self, change: Change) -> None:
        """Have the owner change its policy."""
        self.number += 1
        await self.writer.evolve(self._author.change(now(), change).to_bytes())

    async def revoke(self) -> None:
        """Take the reader's right, and check that it gets nothing after that."""
        await self.change(Revoke((READING.id,)))
        await until(lambda: number_at(self.here) == number_at(self.there) == self.number)
        while self.news.waiting:
            await anext(self.news)
        for number in range(20):
            await publish_event(self.feed, headline=str(number))
        # What went after these has been there and back.
        await until(lambda: self.there.on_fabric and not self.there.on_fabric._writings[NEWS.name.key]._waiting)
        assert not self.news.waiting

    @property
    def fabric(self) -> NatsFabric:
        found = self.here.on_fabric
        assert found is not None
        assert isinstance(found._fabric, NatsFabric)
        return found._fabric


@asynccontextmanager
async def scene(server: NatsServer) -> AsyncIterator[Scene]:
    async with (
        network(Nats(server.url), READING, WRITING) as nodes,
        client_of(nodes[0], PDA) as reader,
        client_of(nodes[1], REPORTER) as writer,
    ):
        stranger = await nats.connect(server.url)
        news, feed = await reader.subscribe(NEWS.name), await writer.advertise(NEWS.name)
        await flow(feed, news)
        yield Scene(nodes, writer, feed, news, stranger)
        await stranger.close()


async def hit(stranger: NatsClient, subject: str, answers: tuple[bytes, ...], most: int) -> Callable[[], int]:
    """Answer what others ask on a subject with junk, so many times at most; return how often it was done."""
    done = 0

    async def hear(message: Msg) -> None:
        nonlocal done
        if message.reply and done < most:
            done += 1
            await stranger.publish(message.reply, answers[done % len(answers)])

    await stranger.subscribe(subject, cb=hear)
    await settle(stranger, 10)
    return lambda: done


def test_an_empty_message_does_not_make_a_broker_deaf(server: NatsServer) -> None:
    async def main() -> None:
        async with scene(server) as on:
            # Every inbox to which a consumer delivers, and so that of the policy topic too.
            inboxes: set[str] = set()

            async def hear(message: Msg) -> None:
                inboxes.add(message.reply)

            await on.stranger.subscribe("$JS.API.CONSUMER.MSG.NEXT.>", cb=hear)
            await settle(on.stranger, 10)
            for broker in (on.here, on.there):
                for reading in broker.on_fabric._states.values():  # type: ignore[union-attr]  # it is on a fabric
                    await reading.kept()
            await on.feed.publish(headline="pulls again")
            assert await headlines(on.news, 1) == ["pulls again"]
            client = await on.fabric.link.client()
            inboxes |= {each.subject.replace("*", "x") for each in client._subs.values() if "_INBOX" in each.subject}
            for inbox in inboxes:
                for reply in ("", "x", "a.b.c.d.e.f.g.h.i"):
                    await on.stranger.publish(inbox, b"", reply=reply)
            await settle(on.stranger, 10)
            await on.feed.publish(headline="after")
            assert await headlines(on.news, 1) == ["after"]
            assert failing() == []
            await on.revoke()

    run(main())


def test_forged_answers_do_not_end_publishing(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    junk = (b"", b"{", b"[]", b'{"error": []}', b'{"stream": "other", "seq": 1}')

    async def main() -> None:
        async with scene(server) as on:
            done = await hit(on.stranger, f"{on.fabric.link.prefix}.t.>", junk, 15)
            # Which answer is faster is chance; for each kind of junk the forged one is, once.
            first, request = iter(junk), NatsClient.request

            async def forged(client: NatsClient, subject: str, *args: Any, **named: Any) -> Msg:
                answer = await request(client, subject, *args, **named)
                fake = next(first, None) if ".t." in subject else None
                return answer if fake is None else Msg(client, answer.subject, "", fake, None)

            monkeypatch.setattr(NatsClient, "request", forged)
            for number in range(30):
                await on.feed.publish(headline=str(number))
            assert await headlines(on.news, 30) == [str(number) for number in range(30)]
            assert done()
            assert on.there.core.counts["lost"] == on.here.core.counts["missing"] == 0
            await on.revoke()

    run(main())


async def delete_streams(on: Scene, *, again: bool) -> None:
    """Delete all streams of the network; with `again`, make them as they were, with nothing in them."""
    prefix = on.fabric.link.prefix
    answer = json.loads((await on.stranger.request("$JS.API.STREAM.LIST", b"{}", timeout=10)).data)
    for stream in answer["streams"]:
        config = stream["config"]
        if config["name"].startswith((f"{prefix}-", f"{prefix}_")):
            await on.stranger.request(f"$JS.API.STREAM.DELETE.{config['name']}", b"", timeout=10)
            if again:
                data = json.dumps(config).encode()
                await on.stranger.request(f"$JS.API.STREAM.CREATE.{config['name']}", data, timeout=10)


async def works_again(on: Scene) -> None:
    """Check that events flow, that all brokers still know what was said, and that a broker that comes learns it."""
    await until(lambda: not on.here.core.local.held and not on.there.core.local.held)
    arrived = 0
    while not arrived:
        await publish_event(on.feed, headline="again")
        with suppress(TimeoutError):
            await on.news.next(0.05)
            arrived += 1
    assert number_at(on.here) == number_at(on.there) == on.number


@pytest.mark.parametrize("again", [True, False], ids=["made again", "gone"])
def test_streams_that_were_deleted_are_filled_again(server: NatsServer, again: bool) -> None:
    async def main() -> None:
        async with scene(server) as on:
            await on.change(publish(grant(PDA, TENNIS, Right.SUBSCRIBE)))
            await until(lambda: number_at(on.here) == 1)
            await delete_streams(on, again=again)
            await works_again(on)
            between = Nats(server.url)
            between._prefix = on.fabric.link.prefix
            async with between.broker(2, READING, WRITING) as late:
                await until(lambda: (number_at(late), state_at(late)) == (1, "fresh"))
            await on.revoke()

    run(main())


def test_a_server_that_comes_back_with_an_empty_store(tmp_path: Path) -> None:
    async def main() -> None:
        with NatsServer(folder=tmp_path) as own:
            async with scene(own) as on:
                await on.change(publish(WRITING))
                await until(lambda: number_at(on.here) == 1)
                await asyncio.to_thread(own.kill)
                shutil.rmtree(tmp_path / "data")
                await asyncio.to_thread(own.start)
                await until(lambda: "fabric.unknown-topic" in on.here.codes)
                await works_again(on)
                between = Nats(own.url)
                between._prefix = on.fabric.link.prefix
                async with between.broker(2, READING, WRITING) as late:
                    await until(lambda: (number_at(late), state_at(late)) == (1, "fresh"))
                await on.revoke()

    run(main())


@pytest.mark.parametrize("how", ["purged", "overwritten"])
def test_a_broker_that_comes_learns_policy_that_the_servers_have_lost(how: str) -> None:
    async def main() -> None:
        author = PolicyAuthor(AGENCY)
        async with EmbeddedFabric() as fabric:
            on_it = FabricSettings(fabric=fabric, unsafe_plaintext=True)
            async with running(READING, WRITING, fabric=on_it) as here, client_of(here, REPORTER) as writer:
                for changes in (publish(WRITING), Revoke((READING.id,))):
                    await writer.evolve(author.change(now(), changes).to_bytes())
                await until(lambda: len(fabric._topics[POLICY_TOPIC].kept) == 2)
                kept = fabric._topics[POLICY_TOPIC]
                if how == "purged":
                    for number in list(kept.kept):
                        kept.drop(number)
                else:
                    for sample in list(kept.kept.values()):
                        await (await fabric.publisher(POLICY_TOPIC)).publish(b"junk", key=sample.key)
                async with running(READING, WRITING, key=BROKERS[1], fabric=on_it) as late:
                    await until(lambda: (number_at(late), state_at(late)) == (2, "fresh"))
                    async with client_of(late, PDA) as reader:
                        await refused("broker.not-permitted", reader.subscribe(NEWS.name))

    run(main())


def test_until_the_others_have_answered_nothing_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.fabric.network._ANSWERING", 0.05)

    async def main() -> None:
        async with EmbeddedFabric() as fabric:
            silent = Speaker(fabric, BROKERS[1])
            await silent.appear()
            on_it = FabricSettings(fabric=fabric, unsafe_plaintext=True)
            async with (
                running(READING, WRITING, fabric=on_it) as here,
                client_of(here, REPORTER) as writer,
                client_of(here, PDA) as reader,
            ):
                assert state_at(here) == "unreconciled"
                news, feed = await reader.subscribe(NEWS.name), await writer.advertise(NEWS.name)
                await refused("broker.policy-stale", feed.publish(headline="too early"))
                assert not news.waiting
                await silent.appear(body=b"!")
                await until(lambda: state_at(here) == "fresh")
                await feed.publish(headline="now")
                assert await headlines(news, 1) == ["now"]

    run(main())


def test_a_broker_that_does_not_answer_is_waited_for_until_it_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.fabric.network._ANSWERING", 0.05)

    async def main() -> None:
        async with EmbeddedFabric() as fabric:
            await Speaker(fabric, BROKERS[1]).appear()
            on_it = FabricSettings(fabric=fabric, unsafe_plaintext=True, renewal=0.2, absence=1.0)
            async with running(fabric=on_it) as here:
                while state_at(here) != "fresh":
                    await asyncio.sleep(0.005)
                assert set(here.brokers()) == {BROKERS[0].principal}

    run(main())


def test_what_the_topics_keep_is_not_written_again() -> None:
    async def main() -> None:
        author = PolicyAuthor(AGENCY)
        async with EmbeddedFabric() as fabric:
            on_it = FabricSettings(fabric=fabric, unsafe_plaintext=True)
            async with running(READING, WRITING, fabric=on_it) as here, client_of(here, REPORTER) as writer:
                await writer.evolve(author.change(now(), publish(WRITING)).to_bytes())
                await until(lambda: POLICY_TOPIC in fabric._topics and fabric._topics[POLICY_TOPIC].kept)
                before = fabric._topics[POLICY_TOPIC].numbers
                await here.on_fabric._restate()  # type: ignore[union-attr]  # it is on a fabric
                assert fabric._topics[POLICY_TOPIC].numbers == before

    run(main())


class Silent(EmbeddedFabric):
    """A fabric that never answers what it keeps, as often as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.losses = 0

    async def state(self, topic: str, key: str | None = None) -> tuple[Sample, ...]:
        """Return what a topic keeps, or lose the question."""
        if self.losses and topic == POLICY_TOPIC:
            self.losses -= 1
            await asyncio.Event().wait()
        return await super().state(topic, key)


def test_a_question_that_the_fabric_loses_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.fabric.topics._PATIENCE", 0.05)

    async def main() -> None:
        author = PolicyAuthor(AGENCY)
        async with Silent() as fabric:
            on_it = FabricSettings(fabric=fabric, unsafe_plaintext=True)
            async with running(READING, WRITING, fabric=on_it) as here, client_of(here, REPORTER) as writer:
                await writer.evolve(author.change(now(), publish(WRITING)).to_bytes())
                await until(lambda: POLICY_TOPIC in fabric._topics and fabric._topics[POLICY_TOPIC].kept)
                async with running(READING, WRITING, key=BROKERS[1], fabric=on_it) as late:
                    await until(lambda: state_at(late) == "fresh")
                    fabric.losses = 4
                    late.on_fabric._miss()  # type: ignore[union-attr]  # it is on a fabric
                    assert state_at(late) == "unreconciled"
                    await until(lambda: (fabric.losses, state_at(late)) == (0, "fresh"))

    run(main())


class Stumbling(EmbeddedFabric):
    """A fabric that fails in ways that nobody expects, for the next calls that a test names."""

    def __init__(self) -> None:
        super().__init__()
        self.stumbles: list[str] = []

    def _stumble(self, call: str) -> None:
        if call in self.stumbles:
            self.stumbles.remove(call)
            raise ZeroDivisionError(call)

    async def state(self, topic: str, key: str | None = None) -> tuple[Sample, ...]:
        self._stumble("state")
        return await super().state(topic, key)

    async def publisher(self, topic: str, *, strength: int = 0, instance: str = "") -> EmbeddedPublisher:
        self._stumble("publisher")
        return await super().publisher(topic, strength=strength, instance=instance)


@pytest.mark.parametrize("call", ["state", "publisher"])
def test_a_failure_that_nobody_expects_keeps_no_broker_from_delivering_again(call: str) -> None:
    async def main() -> None:
        reports: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: reports.append(str(context["message"])))
        author = PolicyAuthor(AGENCY)
        async with Stumbling() as fabric:
            on_it = FabricSettings(fabric=fabric, unsafe_plaintext=True)
            async with running(READING, WRITING, fabric=on_it) as here, client_of(here, REPORTER) as writer:
                found = here.on_fabric
                assert found is not None
                await until(lambda: state_at(here) == "fresh")
                # Policy that is on no topic yet has to be written, to a topic that nobody has written to.
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(found, "publish", lambda _statement: None)
                    await writer.evolve(author.change(now(), publish(WRITING)).to_bytes())
                fabric.stumbles.append(call)
                found._miss()
                assert state_at(here) == "unreconciled"
                await until(lambda: state_at(here) == "fresh")
                assert len(reports) == 1
                assert not fabric.stumbles
                assert len(fabric._topics[POLICY_TOPIC].kept) == 1

    run(main())


def test_a_sample_that_trips_a_broker_up_is_reported_and_the_next_one_is_taken() -> None:
    async def main() -> None:
        reports: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: reports.append(str(context["message"])))
        taken: list[bytes] = []

        async def take(sample: Sample) -> None:
            if sample.data == b"bad":
                raise ZeroDivisionError
            taken.append(sample.data)

        async with EmbeddedFabric() as fabric:
            reading = TopicReader(fabric, "topic", STATE, take, lambda _error: None)
            reading.start()
            await until(lambda: reading.up)
            writer = await fabric.publisher("topic")
            for data in (b"bad", b"good"):
                await writer.publish(data, key=data.decode())
            await until(lambda: taken)
            assert taken == [b"good"]
            assert reports == ["a sample of a topic"]
            await reading.close()

    run(main())


@given(st.binary(max_size=60))
def test_whatever_is_on_a_topic_reads_or_is_refused(data: bytes) -> None:
    for read in (SignedSample.from_bytes, read_body):
        with suppress(PenstockError):
            read(data)

"""The fabric over Kafka, on a real server: the suite of all adapters, and what is Kafka's own."""

import asyncio
import os
import threading
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.kafka_server import USERS, RunningKafka

from penstock.errors import FailedError, RefusedError
from penstock.fabric import Clock, Fabric, Ownership, Sample
from penstock.fabric.addresses import open_fabric
from penstock.fabric.kafka import KafkaFabric, KafkaPublisher
from penstock.fabric.kafka_link import KafkaLink
from penstock.fabric.kafka_login import parse_kafka
from penstock.fabric.limits import FabricLimits
from penstock.testing.fabric_suite import LIVE, LOG, PATIENCE, STATE, FabricSuite, refused, scenario, take, until
from penstock.testing.server_process import free_port

_PREFIXES = count()


class TestKafka(FabricSuite):
    @pytest.fixture(autouse=True)
    def _server(self, kafka: RunningKafka) -> None:
        self.url = f"kafka://{kafka.address}"

    async def open(self, clock: Clock) -> Fabric:
        self.prefix = f"t{os.getpid()}x{next(_PREFIXES)}"
        return await KafkaFabric.connect(self.url, prefix=self.prefix, clock=clock)

    async def join(self, fabric: Fabric, clock: Clock | None = None) -> Fabric:
        return await KafkaFabric.connect(self.url, prefix=self.prefix, clock=clock or self.clock)

    @scenario
    async def test_a_client_learns_that_another_has_removed_a_topic(self, fabric: Fabric) -> None:
        await fabric.declare("gone", LIVE)
        other = await self.join(fabric)
        reader, writer = await other.subscribe("gone"), await other.publisher("gone")
        await writer.publish(b"1")
        assert await take(reader, 1) == [b"1"]
        await fabric.remove("gone")
        with refused("fabric.unknown-topic"):
            await anext(reader)
        with refused("fabric.unknown-topic"):
            await writer.publish(b"2")
        await self.leave(fabric, other)

    @scenario
    async def test_records_of_strangers_are_counted_and_change_nothing(self, fabric: Fabric) -> None:
        assert isinstance(fabric, KafkaFabric)
        await fabric.declare("log", LOG)
        async with await fabric.subscribe("log") as reader, await fabric.publisher("log") as writer:
            producer = Producer({"bootstrap.servers": self.url.removeprefix("kafka://")})
            for key, value in ((b"a", b"\1x"), (b"alive/", b"+"), (b"discarded", b"x"), (b"k", None), (b"b", b"")):
                producer.produce(f"{self.prefix}.log.1", value, key, partition=0)
            for key, value in ((b"topics/log", b"{"), (b"topics/log", b'{"value": 1, "revision": 7, "token": ""}')):
                producer.produce(f"{self.prefix}.registry", value, key, partition=0)
            assert producer.flush(30) == 0
            await writer.publish(b"mine")
            assert await take(reader, 1) == [b"mine"]
            assert reader.counts.malformed == 3
            assert await fabric.describe("log") == LOG
            assert [sample.data for sample in await fabric.state("log")] == [b"mine"]

    @scenario
    async def test_two_clients_that_declare_or_claim_together_agree(self, fabric: Fabric) -> None:
        other = await self.join(fabric)
        both = (fabric, other)
        different = [one.declare("shared", qos) for one, qos in zip(both, (LOG, LIVE), strict=True)]
        done = await asyncio.gather(*different, return_exceptions=True)
        assert [isinstance(each, RefusedError) for each in done].count(True) == 1
        assert await fabric.describe("shared") == await other.describe("shared")
        await fabric.declare("owned", replace(STATE, ownership=Ownership.EXCLUSIVE))
        claims = await asyncio.gather(*(one.publisher("owned") for one in both), return_exceptions=True)
        assert [isinstance(each, RefusedError) for each in claims].count(True) == 1
        # A late client reads the log and finds the same.
        late = await self.join(fabric)
        assert await late.describe("shared") == await fabric.describe("shared")
        for client in (late, other):
            await self.leave(fabric, client)

    @scenario
    async def test_a_full_topic_refuses_until_samples_are_discarded(self, fabric: Fabric) -> None:
        few = FabricLimits(fabric_history=3)
        small = await KafkaFabric.connect(self.url, prefix=self.prefix, clock=self.clock, limits=few)
        await small.declare("log", LOG)
        writer = await small.publisher("log")
        for number in range(3):
            await writer.publish(b"%d" % number)
        with refused("fabric.full"):
            await writer.publish(b"more")
        await small.discard("log", (await small.state("log"))[0])
        await writer.publish(b"3")
        assert [sample.data for sample in await small.state("log")] == [b"1", b"2", b"3"]
        await self.leave(fabric, small)

    @scenario
    async def test_a_cancelled_request_takes_no_other_one_with_it(self, fabric: Fabric) -> None:
        assert isinstance(fabric, KafkaFabric)
        other = await self.join(fabric)
        await fabric.declare("live", LIVE)
        await other.serve("live", _echo)
        await fabric.describe("live")  # it has read that somebody serves the topic
        held = _hold(fabric.link)
        cancelled, kept = (asyncio.ensure_future(fabric.request("live", b"1", timeout=1.0)) for _ in range(2))
        await until(lambda: len(fabric.link._commands) == 1)
        await asyncio.sleep(0.1)  # so that the second one waits too
        cancelled.cancel()
        await asyncio.wait((cancelled,))
        held.set()
        assert await kept == b"1"
        assert await fabric.request("live", b"2", timeout=1.0) == b"2"
        await self.leave(fabric, other)

    @scenario
    async def test_a_reader_that_cannot_begin_leaves_the_topic_to_the_next_one(self, fabric: Fabric) -> None:
        assert isinstance(fabric, KafkaFabric)
        await fabric.declare("live", LIVE)
        follow = fabric.link.follow

        async def fail_once(name: str, offset: int) -> None:
            patched.setattr(fabric.link, "follow", follow)
            await asyncio.sleep(0.1)  # the second one waits for its turn
            raise _away()

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(fabric.link, "follow", fail_once)
            both = await asyncio.gather(*(fabric.subscribe("live") for _ in range(2)), return_exceptions=True)
        (failed,) = (each for each in both if isinstance(each, BaseException))
        assert isinstance(failed, FailedError)
        assert failed.code == "fabric.unreachable"
        (reader,) = (each for each in both if not isinstance(each, BaseException))
        writer = await fabric.publisher("live")
        await writer.publish(b"1")
        assert await take(reader, 1) == [b"1"]

    @scenario
    async def test_a_subscription_that_is_cancelled_can_be_repeated(self, fabric: Fabric) -> None:
        assert isinstance(fabric, KafkaFabric)
        await fabric.declare("live", LIVE)
        held = _hold(fabric.link)
        cancelled = asyncio.ensure_future(fabric.subscribe("live"))
        await until(lambda: len(fabric.link._commands) == 1)
        cancelled.cancel()
        await asyncio.wait((cancelled,))
        held.set()
        reader, writer = await fabric.subscribe("live"), await fabric.publisher("live")
        await writer.publish(b"1")
        assert await take(reader, 1) == [b"1"]

    @scenario
    async def test_a_service_that_could_not_begin_answers_nothing(self, fabric: Fabric) -> None:
        assert isinstance(fabric, KafkaFabric)
        await fabric.declare("live", LIVE)
        listing = fabric._requests._list

        async def lose(service: Any, *, there: bool) -> None:
            await listing(service, there=there)
            if there:
                raise _away()

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(fabric._requests, "_list", lose)
            with refused("fabric.unreachable"):
                await fabric.serve("live", _echo)
        with refused("fabric.no-responder"):
            await fabric.request("live", b"1", timeout=1.0)

    @scenario
    async def test_without_a_server_a_fabric_with_services_ends_its_threads(self, fabric: Fabric) -> None:
        other = await self.join(fabric)
        assert isinstance(other, KafkaFabric)
        await other.declare("live", LIVE)
        for _ in range(2):
            await other.serve("live", _echo)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(other.registry, "sync", _fail)
            with refused("fabric.unreachable"):
                await other.close()
        assert other.closed
        assert not any(thread.is_alive() for thread in other.link._threads)

    @scenario
    async def test_a_writer_that_could_not_begin_does_not_own_the_topic(self, fabric: Fabric) -> None:
        await fabric.declare("owned", replace(STATE, ownership=Ownership.EXCLUSIVE))
        await (await fabric.publisher("owned")).close()  # there is nothing to tidy after none
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(KafkaPublisher, "_tidy", _fail)
            with refused("fabric.unreachable"):
                await fabric.publisher("owned")
        await (await fabric.publisher("owned")).publish(b"1")


def _away() -> FailedError:
    return FailedError("fabric.unreachable", "the server is away")


async def _fail(*_: object) -> None:
    raise _away()


async def _echo(sample: Sample) -> bytes:
    return sample.data


def _hold(link: KafkaLink) -> threading.Event:
    """Keep the thread that follows topics from its next commands until an event is set."""
    started, going_on = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        going_on.wait(PATIENCE)

    link._commands.append((wait, asyncio.get_running_loop().create_future()))
    assert started.wait(PATIENCE)
    return going_on


def test_commands_that_wait_when_a_link_closes_are_refused() -> None:
    async def whole() -> None:
        link = KafkaLink(parse_kafka(f"kafka://127.0.0.1:{free_port()}").login, lambda _: None)
        held = _hold(link)
        waiting = asyncio.ensure_future(link.unfollow("live"))
        await until(lambda: len(link._commands) == 1)
        closing = asyncio.ensure_future(link.close())
        await until(link._ended.is_set)
        held.set()
        with refused("fabric.closed"):
            await asyncio.wait_for(waiting, PATIENCE / 4)
        await closing

    asyncio.run(whole())


def test_nobody_there_is_unreachable() -> None:
    with pytest.raises(FailedError) as failed:
        asyncio.run(KafkaFabric.connect(f"kafka://127.0.0.1:{free_port()}", timeout=0.1))
    assert failed.value.code == "fabric.unreachable"


def test_over_tls_the_certificate_of_the_server_counts(kafka: RunningKafka, tmp_path: Path) -> None:
    config = kafka.tls_config(tmp_path)

    async def exchange() -> list[bytes]:
        address, prefix = f"kafka://{kafka.tls_address}?config={config}", f"tls{os.getpid()}x{next(_PREFIXES)}"
        async with await open_fabric(address, prefix=prefix) as fabric:
            await fabric.declare("log", LOG)
            async with await fabric.subscribe("log") as reader, await fabric.publisher("log") as writer:
                await writer.publish(b"sealed")
                return await take(reader, 1)

    assert asyncio.run(exchange()) == [b"sealed"]
    # A server whose certificate nobody vouches for is not spoken to.
    config.write_text("security.protocol=SSL\n")
    with pytest.raises(FailedError) as failed:
        asyncio.run(KafkaFabric.connect(f"kafka://{kafka.tls_address}?config={config}", timeout=3))
    assert failed.value.code == "fabric.unreachable"


def test_who_is_not_allowed_is_refused(kafka: RunningKafka, tmp_path: Path) -> None:
    path = tmp_path / "client"
    login = f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=eve\nsasl.password={USERS['eve']}\n"
    path.write_text(login)
    path.chmod(0o600)
    with pytest.raises(RefusedError) as failed:
        asyncio.run(open_fabric(f"kafka://{kafka.sasl_address}?config={path}"))
    assert failed.value.code == "fabric.unauthorized"
    assert USERS["eve"] not in str(failed.value)

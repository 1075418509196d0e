"""The fabric over a real NATS server: the suite of all adapters, restarts, logins, and servers that lie."""

import asyncio
import gc
import inspect
import json
import secrets
import subprocess
import sys
import warnings
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from penstock.crypto.tls import client_context, new_certificate, server_context
from penstock.errors import FailedError, PenstockError
from penstock.fabric import Clock, Fabric, KeysUnder, Ownership, Priority, Qos, Sample, nats_feed
from penstock.fabric.envelope import encode
from penstock.fabric.limits import FabricLimits
from penstock.fabric.nats import NatsFabric
from penstock.fabric.nats_api import NatsClient, shut, store
from penstock.fabric.nats_link import DirectListening, NatsLink, checked
from penstock.fabric.nats_login import NatsLogin
from penstock.testing.fabric_suite import EVENTS, LIVE, LOG, PATIENCE, STATE, FabricSuite, refused, take, until
from penstock.testing.nats import NatsServer

_NUMBERS = count()


def prefix() -> str:
    return f"test{next(_NUMBERS)}"


def test_without_nats_py_the_import_says_what_to_install() -> None:
    program = "import sys; sys.modules['nats'] = None; import penstock.fabric.nats"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode != 0
    assert "fabric.not-installed" in found.stderr


class TestNats(FabricSuite):
    @pytest.fixture(autouse=True)
    def _server(self, server: NatsServer) -> None:
        self.server = server

    async def open(self, clock: Clock) -> Fabric:
        self.prefix = prefix()
        return await NatsFabric.connect(self.server.url, prefix=self.prefix, clock=clock)

    async def join(self, fabric: Fabric, clock: Clock | None = None) -> Fabric:
        return await NatsFabric.connect(self.server.url, prefix=self.prefix, clock=clock or self.clock)


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("qos", [LIVE, LOG], ids=["volatile", "durable"])
def test_reliable_samples_survive_the_server(server: NatsServer, qos: Qos, how: str) -> None:
    sent = [str(number).encode() for number in range(200)]

    async def whole() -> list[bytes]:
        name = prefix()
        async with (
            await NatsFabric.connect(server.url, prefix=name) as fabric,
            await NatsFabric.connect(server.url, prefix=name) as other,
        ):
            await fabric.declare("topic", qos)
            reader, writer = await other.subscribe("topic"), await fabric.publisher("topic")

            async def write() -> None:
                for data in sent:
                    await writer.publish(data)
                    await asyncio.sleep(0.001)

            writing = asyncio.create_task(write())
            got = await take(reader, 20)
            await asyncio.to_thread(server.kill if how == "kill" else server.stop)
            await asyncio.to_thread(server.start)
            got += await take(reader, 180)
            await writing
            return got

    assert asyncio.run(whole()) == sent


def test_a_sample_that_is_stored_again_behind_a_kill_comes_once(server: NatsServer) -> None:
    async def whole() -> list[bytes]:
        async with await NatsFabric.connect(server.url, prefix=prefix()) as fabric:
            await fabric.declare("topic", LIVE)
            reader, writer = await fabric.subscribe("topic"), await fabric.publisher("topic")
            await writer.publish(b"one")
            first = await anext(aiter(reader))
            # All have read it: the stream does not have it any more.
            await asyncio.sleep(0.3)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            # As a writer does that has heard no answer.
            await writer._store(first)
            await writer.publish(b"two")
            return [first.data, *await take(reader, 1)]

    assert asyncio.run(whole()) == [b"one", b"two"]


def test_best_effort_and_services_come_back_after_the_server(server: NatsServer) -> None:
    async def whole() -> None:
        name = prefix()
        async with await NatsFabric.connect(server.url, prefix=name) as fabric:
            await fabric.declare("events", EVENTS)
            got: list[bytes] = []

            async def callback(sample: Sample) -> None:
                got.append(sample.data)

            async def echo(sample: Sample) -> bytes:
                return sample.data

            await fabric.subscribe("events", callback=callback)
            await fabric.serve("events", echo)
            writer = await fabric.publisher("events")
            for how in (server.stop, server.kill):
                got.clear()
                await asyncio.to_thread(how)
                await asyncio.to_thread(server.start)
                while not got:
                    with suppress(PenstockError):
                        await writer.publish(b"again")
                    await asyncio.sleep(0.02)
                assert await fabric.request("events", b"hello", timeout=PATIENCE) == b"hello"

    asyncio.run(asyncio.wait_for(whole(), PATIENCE))


def test_a_connection_that_the_client_gave_up_is_opened_again(server: NatsServer) -> None:
    async def whole() -> None:
        async with await NatsFabric.connect(server.url, prefix=prefix()) as fabric:
            got: dict[str, list[bytes]] = {"events": [], "live": [], "log": []}
            for topic, qos in (("events", EVENTS), ("live", LIVE), ("log", LOG)):
                await fabric.declare(topic, qos)

                async def callback(sample: Sample, topic: str = topic) -> None:
                    got[topic].append(sample.data)

                await fabric.subscribe(topic, callback=callback)
                await (await fabric.publisher(topic)).publish(b"1")
            await until(lambda: all(data == [b"1"] for data in got.values()))
            first = await fabric.link.client()
            await first.close()
            for topic in ("live", "log"):
                await (await fabric.publisher(topic)).publish(b"2")
                await until(lambda topic=topic: got[topic] == [b"1", b"2"])  # type: ignore[misc]  # a default
            await (await fabric.publisher("events")).publish(b"2")
            await until(lambda: got["events"] == [b"1", b"2"])
            assert await fabric.link.client() is not first

    asyncio.run(asyncio.wait_for(whole(), PATIENCE))


def test_a_sample_whose_acknowledgement_was_lost_is_stored_once(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count()

    async def forgetful(*args: Any, **named: Any) -> int:
        stored = await store(*args, **named)
        if next(calls) % 2 == 0:
            raise TimeoutError
        return stored

    async def whole() -> None:
        async with await NatsFabric.connect(server.url, prefix=prefix()) as fabric:
            await fabric.declare("log", LOG)
            writer = await fabric.publisher("log")
            for number in range(5):
                await writer.publish(str(number).encode())
            assert [s.data for s in await fabric.state("log")] == [b"0", b"1", b"2", b"3", b"4"]

    monkeypatch.setattr("penstock.fabric.nats.store", forgetful)
    asyncio.run(whole())
    assert next(calls) == 10


def test_a_sample_that_the_server_sends_again_is_delivered_once(server: NatsServer) -> None:
    async def whole() -> None:
        async with await NatsFabric.connect(server.url, prefix=prefix()) as fabric:
            await fabric.declare("live", LIVE)
            reader = await fabric.subscribe("live")
            writer = await fabric.publisher("live")
            await writer.publish(b"1")
            assert await take(reader, 1) == [b"1"]
            (name,) = (await fabric.link.ask(f"CONSUMER.NAMES.{fabric.link.stream('live')}"))["consumers"]
            (feed,) = inspect.getclosurevars(reader._taken).nonlocals["feeds"]
            again = f"$JS.ACK.{fabric.link.stream('live')}.{name}.2.1.2.0.0"
            await feed._hear(encode(Sample(b"1")), again.encode(), b"", b"x")
            assert feed._delivery.number == 2
            feed._delivery.number = 1  # the server, which did not send it, gives the number again
            await writer.publish(b"2")
            assert await take(reader, 1) == [b"2"]

    asyncio.run(whole())


@pytest.mark.parametrize("qos", [LIVE, LOG], ids=["volatile", "durable"])
def test_a_request_that_came_while_its_consumer_was_deleted_is_noticed(
    server: NatsServer, qos: Qos, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server says nothing about such a request, as long as one may wait."""
    unanswered: list[str] = []
    publish = NatsClient.publish

    async def lose_one(client: NatsClient, subject: str, *args: Any, **named: Any) -> None:
        if ".CONSUMER.MSG.NEXT." in subject and not unanswered:
            unanswered.append(subject)
            subject, args, named = subject.replace("MSG.NEXT", "DELETE"), (), {}
        await publish(client, subject, *args, **named)

    async def whole() -> list[bytes]:
        async with await NatsFabric.connect(server.url, prefix=prefix()) as fabric:
            await fabric.declare("topic", qos)
            reader, writer = await fabric.subscribe("topic"), await fabric.publisher("topic")
            (feed,) = fabric.link.returned
            assert isinstance(feed, nats_feed.StreamFeed)
            await until(lambda: bool(unanswered) and feed._consumer not in unanswered[0])  # it has another consumer
            await writer.publish(b"1")
            return await take(reader, 1)

    monkeypatch.setattr(NatsClient, "publish", lose_one)
    monkeypatch.setattr(nats_feed, "_EXPIRES", 1_000.0)
    monkeypatch.setattr(nats_feed, "_PROBE", 0.01)
    assert asyncio.run(whole()) == [b"1"]


def test_the_state_of_a_topic_is_whole_if_its_consumer_was_deleted_meanwhile(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted: list[str] = []
    publish = NatsClient.publish

    async def delete_first(client: NatsClient, subject: str, *args: Any, **named: Any) -> None:
        if ".CONSUMER.MSG.NEXT." in subject and not deleted:
            deleted.append(subject)
            await client.request(subject.replace("MSG.NEXT", "DELETE"), timeout=PATIENCE)
        await publish(client, subject, *args, **named)

    async def whole() -> list[bytes]:
        async with await NatsFabric.connect(server.url, prefix=prefix()) as fabric:
            await fabric.declare("topic", LOG)
            writer = await fabric.publisher("topic")
            await writer.publish(b"1")
            monkeypatch.setattr(NatsClient, "publish", delete_first)
            return [sample.data for sample in await fabric.state("topic")]

    assert asyncio.run(whole()) == [b"1"]
    assert deleted


def test_without_a_server_publishing_ends_with_an_error_after_its_patience() -> None:
    async def whole(lone: NatsServer) -> None:
        async with await NatsFabric.connect(lone.url) as fabric:
            await fabric.declare("live", LIVE)
            writer = await fabric.publisher("live")
            fabric.link.timeout, fabric.link.patience = 0.2, 0.3
            await asyncio.to_thread(lone.kill)
            with refused("fabric.unreachable"):
                await writer.publish(b"x")
            with refused("fabric.unreachable"):
                await fabric.subscribe("live")

    with NatsServer() as lone:
        asyncio.run(asyncio.wait_for(whole(lone), PATIENCE))


def test_a_server_that_does_not_introduce_itself_leaves_no_socket_open() -> None:
    async def whole() -> None:
        numbers = count()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            number = next(numbers)
            if number in (1, 2):
                writer.write(b"hello\r\n")
            else:
                writer.write(b'INFO {"server_id": "x", "version": "2.10.0", "max_payload": 1000}\r\n')
                while line := await reader.readline():
                    if line.startswith(b"PING"):
                        writer.write(b"PONG\r\n")
                        if number == 0:
                            break
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            client, back = NatsClient(), asyncio.Event()

            async def returned() -> None:
                back.set()

            await client.connect(
                f"nats://127.0.0.1:{port}", reconnect_time_wait=0, reconnected_cb=returned, error_cb=ignore
            )
            await back.wait()
            await shut(client)

    async def ignore(_error: Exception) -> None:
        pass

    assert warned(asyncio.wait_for(whole(), PATIENCE)) == []


def test_a_connection_that_does_not_close_in_time_leaves_no_socket_open(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.fabric.nats_api._CLOSING", 0)

    async def whole() -> None:
        client = NatsClient()
        await client.connect(server.url)
        await shut(client)

    assert warned(whole()) == []


def test_a_server_that_does_not_answer_the_end_of_tls_keeps_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.fabric.nats_api._CLOSING", 0.01)

    async def whole() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            socket = writer.transport
            writer.write(b'INFO {"server_id": "x", "version": "2.10.0", "max_payload": 1000, "tls_required": true}\r\n')
            await writer.start_tls(server_context(new_certificate(secrets.token_bytes)))
            while not (await reader.readline()).startswith(b"PING"):
                pass
            writer.write(b"PONG\r\n")
            assert isinstance(socket, asyncio.Transport)
            socket.pause_reading()
            await ended.wait()
            socket.abort()

        ended = asyncio.Event()
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            client: Any = NatsClient()
            await client.connect(f"tls://127.0.0.1:{port}", tls=client_context())
            socket = client._transport._io_writer.get_extra_info("socket")
            await shut(client)
            assert socket.fileno() == -1
            ended.set()

    asyncio.run(asyncio.wait_for(whole(), PATIENCE))


def test_connecting_that_is_cancelled_leaves_no_socket_open() -> None:
    async def whole() -> None:
        accepted = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.set()
            await reader.read()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            connecting = asyncio.create_task(NatsFabric.connect(f"nats://127.0.0.1:{port}", timeout=PATIENCE))
            await accepted.wait()
            for _ in range(10):
                await asyncio.sleep(0)
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)

    assert warned(asyncio.wait_for(whole(), PATIENCE)) == []


def test_closing_that_is_cancelled_leaves_no_socket_open(server: NatsServer) -> None:
    async def whole() -> None:
        fabric = await NatsFabric.connect(server.url, prefix=prefix())
        closing = asyncio.create_task(fabric.link.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)

    assert warned(whole()) == []


def test_what_connects_while_its_link_closes_leaves_no_connection(server: NatsServer) -> None:
    async def whole() -> None:
        link = NatsLink(checked(server.url), prefix=prefix(), domain="", timeout=PATIENCE, patience=0)
        connecting = asyncio.create_task(link.client())
        await asyncio.sleep(0)
        await link.close()
        with refused("fabric.closed"):
            await connecting

    assert warned(whole()) == []


def warned(test: Coroutine[Any, Any, None]) -> list[str]:
    """Run a test, and return the warnings about what it left open."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        asyncio.run(test)
        gc.collect()
    return [str(one.message) for one in found if issubclass(one.category, ResourceWarning)]


def test_a_keep_all_topic_that_is_full_refuses(server: NatsServer) -> None:
    async def whole() -> None:
        limits = FabricLimits(fabric_history=3)
        async with await NatsFabric.connect(server.url, prefix=prefix(), limits=limits) as fabric:
            await fabric.declare("log", LOG)
            writer = await fabric.publisher("log")
            for _ in range(3):
                await writer.publish(b"x")
            with refused("fabric.full"):
                await writer.publish(b"y")
            await fabric.declare("state", STATE)
            writer = await fabric.publisher("state")
            for key in ("a", "b", "c", "a", "b"):
                await writer.publish(b"x", key=key)
            with refused("fabric.full"):
                await writer.publish(b"x", key="d")

    asyncio.run(whole())


def test_a_volatile_reader_that_the_server_left_behind_is_cut_off(server: NatsServer) -> None:
    async def whole() -> None:
        limits = FabricLimits(fabric_pending=5)
        async with await NatsFabric.connect(server.url, prefix=prefix(), limits=limits) as fabric:
            await fabric.declare("live", LIVE)
            slow, quick = await fabric.subscribe("live"), await fabric.subscribe("live")
            writer = await fabric.publisher("live")
            for number in range(30):
                await writer.publish(str(number).encode())
                assert await take(quick, 1) == [str(number).encode()]
            with refused("fabric.slow-consumer"):
                await take(slow, 30)

    asyncio.run(whole())


def test_a_slow_reader_of_a_durable_topic_reads_all_with_little_room(server: NatsServer) -> None:
    async def whole() -> None:
        async with await NatsFabric.connect(server.url, prefix=prefix()) as fabric:
            await fabric.declare("log", LOG)
            writer = await fabric.publisher("log")
            await asyncio.gather(*(writer.publish(b"x") for _ in range(1_500)))
            reader = await fabric.subscribe("log")
            assert await take(reader, 1_500) == [b"x"] * 1_500

    asyncio.run(whole())


def test_a_reader_of_one_key_is_sent_no_other_until_it_chooses_more(server: NatsServer) -> None:
    async def whole() -> None:
        async with await NatsFabric.connect(server.url, prefix=prefix()) as fabric:
            await fabric.declare("log", LOG)
            writer = await fabric.publisher("log")
            for key in ("a", "b", "c"):
                await writer.publish(key.encode(), key=key)
            reader = await fabric.subscribe("log", keys=["a"])
            assert await take(reader, 1) == [b"a"]
            assert (reader.counts.taken, reader.counts.unselected) == (1, 0)
            await writer.publish(b"old", key="b")
            await reader.add("b")
            for key in ("b", "a", "c", "b"):
                await writer.publish(f"new {key}".encode(), key=key)
            assert await take(reader, 3) == [b"new b", b"new a", b"new b"]

    asyncio.run(whole())


def test_each_priority_has_a_connection_of_its_own(server: NatsServer) -> None:
    async def whole() -> None:
        async with await NatsFabric.connect(server.url, prefix=prefix()) as fabric:
            clients = [await fabric.link.client(level) for level in Priority]
            assert len({id(client) for client in clients}) == 3
            heard: dict[Priority, int] = {}
            for level, client in zip(Priority, clients, strict=True):
                await fabric.declare(level.value, Qos(priority=level))
                await fabric.subscribe(level.value)
                before = client.stats["in_msgs"]
                await (await fabric.publisher(level.value)).publish(b"x")
                await until(lambda c=client, b=before: c.stats["in_msgs"] > b)  # type: ignore[misc]  # a default
                heard[level] = client.stats["in_msgs"]
            assert len(heard) == 3

    asyncio.run(whole())


async def consumers(fabric: NatsFabric, topic: str) -> int:
    return int((await fabric.link.ask(f"STREAM.INFO.{fabric.link.stream(topic)}"))["state"]["consumer_count"])


def test_closing_leaves_no_consumer_and_no_stream_behind(server: NatsServer) -> None:
    async def whole() -> None:
        async with await NatsFabric.connect(server.url, prefix=prefix()) as fabric:
            for topic, qos in (("live", LIVE), ("log", LOG)):
                await fabric.declare(topic, qos)
                async with await fabric.subscribe(topic):
                    assert await consumers(fabric, topic) == 1
                assert await consumers(fabric, topic) == 0
                await fabric.remove(topic)
                assert fabric.link.stream(topic) not in (await fabric.link.ask("STREAM.NAMES"))["streams"]

    asyncio.run(whole())


def test_a_reader_that_cannot_watch_writers_leaves_no_consumer(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen, calls = NatsLink.listen, count(1)

    async def fail(link: NatsLink, listening: DirectListening) -> None:
        if next(calls) == 2:
            raise FailedError("fabric.unreachable", "the server does not answer")
        await listen(link, listening)

    async def whole() -> int:
        async with await NatsFabric.connect(server.url, prefix=prefix()) as fabric:
            await fabric.declare("live", replace(LIVE, lease=5.0))
            monkeypatch.setattr(NatsLink, "listen", fail)
            with pytest.raises(FailedError):
                await fabric.subscribe("live", on_writer=lambda *_: None)
            return await consumers(fabric, "live")

    assert asyncio.run(whole()) == 0


def test_what_a_hostile_server_or_neighbour_says_is_counted_or_refused(server: NatsServer) -> None:
    async def whole() -> None:
        name = prefix()
        async with await NatsFabric.connect(server.url, prefix=name) as fabric:
            foreign = await fabric.link.client()
            for topic, qos in (("events", EVENTS), ("live", LIVE)):
                await fabric.declare(topic, qos)
                reader = await fabric.subscribe(topic)
                await foreign.publish(fabric.link.subject(topic, ""), b"junk")
                await (await fabric.publisher(topic)).publish(b"good")
                assert await take(reader, 1) == [b"good"]
                assert reader.counts.malformed == 1
            await fabric.declare("asked", EVENTS)
            # A stream has what it has acknowledged.
            await foreign.jetstream().publish(f"{name}.topics.asked", json.dumps({"durability": "endless"}).encode())
            with refused("fabric.registry"):
                await fabric.describe("asked")
            await fabric.declare("owned", replace(STATE, ownership=Ownership.EXCLUSIVE))
            await foreign.jetstream().publish(f"{name}.owners.owned", b"[]")
            with refused("fabric.registry"):
                await fabric.publisher("owned")

    asyncio.run(whole())


def test_a_login_that_fails_says_why(tmp_path: Path) -> None:
    async def code(login: NatsLogin | str) -> str:
        with pytest.raises(PenstockError) as failed:
            await NatsFabric.connect(login, timeout=10)
        assert "s3cret" not in f"{failed.value} {failed.value.as_dict()}"
        return failed.value.code

    (tmp_path / "token").write_text("s3cret")
    (tmp_path / "wrong").write_text("wrong")
    with NatsServer(config='authorization { token: "s3cret" }') as locked:

        async def enter() -> None:
            login = NatsLogin((locked.url,), token_file=str(tmp_path / "token"))
            assert "s3cret" not in repr(login)
            await (await NatsFabric.connect(login)).close()

        asyncio.run(enter())
        assert asyncio.run(code(locked.url)) == "fabric.unauthorized"
        wrong = NatsLogin((locked.url,), token_file=str(tmp_path / "wrong"))
        assert asyncio.run(code(wrong)) == "fabric.unauthorized"
        missing = NatsLogin((locked.url,), token_file=str(tmp_path / "none"))
        assert asyncio.run(code(missing)) == "fabric.credentials"
        url = locked.url
    assert asyncio.run(code(url)) == "fabric.unreachable"
    assert asyncio.run(code("nats://user:s3cret@host:4222")) == "fabric.bad-address"
    assert asyncio.run(code("http://host")) == "fabric.bad-address"


def test_what_waits_for_an_answer_of_the_server_can_be_cancelled(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the moment in which the answer comes, nats-py swallows that the task was cancelled."""
    answered = asyncio.Event()

    async def swallowing(*_: object, **__: object) -> None:
        try:
            answered.set()
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return

    async def main() -> None:
        client = NatsClient()
        await client.connect(server.url)
        for name in ("request", "flush"):
            monkeypatch.setattr(Client, name, swallowing)
            answered.clear()

            async def forever(name: str = name) -> None:
                while True:
                    await getattr(client, name)(5)

            task = asyncio.create_task(forever())
            await answered.wait()
            task.cancel()
            await asyncio.wait((task,), timeout=PATIENCE)
            assert task.cancelled()
        monkeypatch.undo()
        await shut(client)

    asyncio.run(main())


def test_chosen_keys_come_and_go_without_a_trace(server: NatsServer) -> None:
    async def whole() -> None:
        async with await NatsFabric.connect(server.url, prefix=prefix()) as fabric:
            await fabric.declare("answers", EVENTS)
            async with (
                await fabric.subscribe("answers", keys=[]) as reader,
                await fabric.publisher("answers") as writer,
            ):
                client = await fabric.link.client()
                before = len(client._subs)
                for number in range(200):
                    await reader.add(f"key-{number}")
                    await writer.publish(b"", key=f"key-{number}")
                    assert (await asyncio.wait_for(anext(reader), PATIENCE)).key == f"key-{number}"
                    await reader.drop(f"key-{number}")
                assert (len(client._subs), client.sinks) == (before, {})

    asyncio.run(whole())


def test_chosen_keys_survive_the_server(server: NatsServer) -> None:
    async def whole() -> None:
        name = prefix()
        async with (
            await NatsFabric.connect(server.url, prefix=name) as fabric,
            await NatsFabric.connect(server.url, prefix=name) as other,
        ):
            await fabric.declare("answers", EVENTS)
            async with await fabric.subscribe("answers", keys=["a", KeysUnder("b")]) as reader:
                server.stop()
                server.start()
                writer = await other.publisher("answers")
                seen: set[str] = set()
                async with asyncio.timeout(PATIENCE):
                    while seen != {"a", "b/1"}:
                        for key in ("a", "b/1", "c"):
                            with suppress(PenstockError):
                                await writer.publish(b"", key=key)
                        with suppress(TimeoutError):
                            seen.add((await asyncio.wait_for(anext(reader), 0.05)).key)

    asyncio.run(whole())

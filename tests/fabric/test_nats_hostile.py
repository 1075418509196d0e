"""A second client of the NATS server that sends what it likes: nobody stops reading, and nobody stops writing."""

import asyncio
import inspect
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.aio.msg import Msg

from penstock.errors import PenstockError
from penstock.fabric import Qos, Sample, TopicSubscription
from penstock.fabric.envelope import decode, encode
from penstock.fabric.nats import NatsFabric
from penstock.fabric.nats_api import AnswerError, ApiError, payload, read_answer, sequences, settle, text, whole
from penstock.fabric.nats_feed import StreamFeed, read_place
from penstock.fabric.nats_log import NatsLog
from penstock.fabric.tasks import failing
from penstock.testing.fabric_suite import EVENTS, LIVE, LOG, STATE, refused, take, until
from penstock.testing.nats import NatsServer

_NUMBERS = count()
#: what a reply subject may be that is not one of a consumer
REPLIES = (
    "",
    "x",
    "$JS.ACK",
    "$JS.ACK.a.b.c.d.e.f.g",
    "$JS.ACK.{stream}.{consumer}.1.x.1.1.0",
    "$JS.ACK.{stream}.{consumer}.1.-1.1.1.0",
    "$JS.ACK.{stream}.{consumer}.1.0.0.0.0",
    "$JS.ACK.{stream}.other.1.1.1.1.0",
    "$JS.ACK.other.{consumer}.1.1.1.1.0",
    "$JS.ACK.{stream}.{consumer}." + "9" * 400 + ".1.1.1.0",
    "a.b.c.d.e.f.g.h.i.j.k.l",
)
#: what an answer may be that is not one of JetStream
ANSWERS = (
    b"",
    b"junk",
    b"[]",
    b"null",
    b"{}",
    b"[" * 100_000,
    b'{"error": 5}',
    b'{"error": {"code": "x"}}',
    b'{"stream": 7, "seq": "x"}',
    b'{"stream": "other", "seq": 1}',
    b'{"message": {"data": "%", "seq": 1}}',
    b"\xff\xfe",
)


def run(test: Callable[[], object]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()  # type: ignore[misc]  # an async function

    asyncio.run(bounded())


def prefix() -> str:
    return f"hostile{next(_NUMBERS)}"


@asynccontextmanager
async def opened(server: NatsServer) -> AsyncIterator[tuple[NatsFabric, Client]]:
    """Yield a fabric, and a stranger on the same server."""
    stranger = await nats.connect(server.url)
    try:
        async with await NatsFabric.connect(server.url, prefix=prefix()) as fabric:
            yield fabric, stranger
    finally:
        await stranger.close()


def feed_of(reader: TopicSubscription) -> StreamFeed:
    (found,) = inspect.getclosurevars(reader._taken).nonlocals["feeds"]
    assert isinstance(found, StreamFeed)
    return found


async def raw_publish(server: NatsServer, subject: bytes, reply: bytes, data: bytes) -> None:
    """Publish what no client library lets through."""
    place = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    writer.write(b'CONNECT {"verbose":false,"pedantic":false}\r\n')
    writer.write(b"PUB %b %b %d\r\n%b\r\nPING\r\n" % (subject, reply, len(data), data))
    while b"PONG" not in await reader.readline():
        pass
    writer.close()
    await writer.wait_closed()


# What readers are sent.


@pytest.mark.parametrize("qos", [LIVE, LOG], ids=["volatile", "durable"])
def test_junk_in_the_inbox_of_a_reader_does_not_make_it_deaf(server: NatsServer, qos: Qos) -> None:
    async def whole_test() -> None:
        async with opened(server) as (fabric, stranger):
            await fabric.declare("topic", qos)
            reader, writer = await fabric.subscribe("topic"), await fabric.publisher("topic")
            await writer.publish(b"before")
            assert await take(reader, 1) == [b"before"]
            feed = feed_of(reader)
            for reply in REPLIES:
                named = reply.format(stream=feed._stream, consumer=feed._consumer)
                for data in (b"", b"junk", encode(Sample(b"forged"))):
                    await stranger.publish(f"{feed._reply}.{feed._consumer}", data, reply=named)
            await settle(stranger, 10)
            for number in range(3):
                await writer.publish(str(number).encode())
            assert await take(reader, 3) == [b"0", b"1", b"2"]
            assert reader.counts.malformed > len(REPLIES)
            assert failing() == []

    run(whole_test)


@pytest.mark.parametrize("qos", [EVENTS, LOG], ids=["core", "durable"])
def test_subjects_that_are_not_text_do_not_end_a_connection(server: NatsServer, qos: Qos) -> None:
    async def whole_test() -> None:
        async with opened(server) as (fabric, _stranger):
            await fabric.declare("topic", qos)
            reader, writer = await fabric.subscribe("topic"), await fabric.publisher("topic")
            client = await fabric.link.client()
            inbox = fabric.link.subject("topic", "")
            if qos is LOG:
                inbox = f"{feed_of(reader)._reply}.x"
            await raw_publish(server, inbox.encode(), b"\xff\xfe", b"junk")
            await raw_publish(server, inbox.rpartition(".")[0].encode() + b".\xff", b"x", b"junk")
            await writer.publish(b"after")
            assert await take(reader, 1) == [b"after"]
            assert await fabric.link.client() is client
            assert client.is_connected

    run(whole_test)


@pytest.mark.parametrize("qos", [STATE, LOG], ids=["state", "log"])
def test_messages_that_a_stream_keeps_under_subjects_that_are_not_text_are_passed_over(
    server: NatsServer, qos: Qos
) -> None:
    async def whole_test() -> None:
        async with opened(server) as (fabric, _stranger):
            await fabric.declare("topic", qos)
            reader, writer = await fabric.subscribe("topic"), await fabric.publisher("topic")
            for number in range(3):
                subject = fabric.link.subject("topic", "").rpartition(".")[0].encode() + b".\xff%d" % number
                await raw_publish(server, subject, b"", b"junk")
                await writer.publish(b"%d" % number, key=f"k{number}")
            assert await take(reader, 3) == [b"0", b"1", b"2"]
            late = await fabric.subscribe("topic")
            assert await take(late, 3) == [b"0", b"1", b"2"]

    run(whole_test)


def test_a_connection_that_is_not_read_any_more_is_opened_again(server: NatsServer) -> None:
    async def whole_test() -> None:
        async with opened(server) as (fabric, _stranger):
            reports: list[str] = []
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _loop, context: reports.append(str(context["message"])))
            await fabric.declare("topic", LOG)
            reader = await fabric.subscribe("topic")
            client = await fabric.link.client()
            client._reading_task.cancel()  # type: ignore[union-attr]  # it is connected
            await until(lambda: client.is_closed)
            await (await fabric.publisher("topic")).publish(b"after")
            assert await take(reader, 1) == [b"after"]
            assert reports == ["the normal connection to NATS"]

    run(whole_test)


def test_a_copy_is_ignored_and_a_forgery_ends_the_subscription(server: NatsServer) -> None:
    async def whole_test() -> None:
        async with opened(server) as (fabric, _stranger):
            await fabric.declare("topic", LOG)
            reader, writer = await fabric.subscribe("topic"), await fabric.publisher("topic")
            feed, seen = feed_of(reader), list[tuple[bytes, bytes, bytes, bytes]]()
            hear, sinks = feed._hear, (await fabric.link.client()).sinks

            def listening(*message: *tuple[bytes, bytes, bytes, bytes]) -> Awaitable[None] | None:
                seen.append(message)
                return hear(*message)

            (inbox,) = sinks
            sinks[inbox] = listening
            await writer.publish(b"1")
            assert await take(reader, 1) == [b"1"]
            # Each message once more, as it was. Servers of today let nobody send such a reply subject, older ones do.
            hear(*seen[0])
            await writer.publish(b"2")
            assert await take(reader, 1) == [b"2"]
            # A message in the place of the next one would have the reader skip it.
            place = read_place(seen[-1][1].decode())
            assert place is not None
            reply = f"$JS.ACK.{place.stream}.{place.consumer}.1.{place.sequence + 1}.{place.number + 1}.1.0"
            hear(encode(Sample(b"forged")), reply.encode(), b"", b"x")
            assert await take(reader, 1) == [b"forged"]
            await writer.publish(b"3")
            with refused("fabric.forged"):
                await take(reader, 1)
            # Whoever begins again gets what is true.
            assert await take(await fabric.subscribe("topic"), 3) == [b"1", b"2", b"3"]

    run(whole_test)


# What writers are answered.


def test_forged_answers_delay_a_writer_and_do_not_stop_it(server: NatsServer) -> None:
    async def whole_test() -> None:
        async with opened(server) as (fabric, stranger):
            await fabric.declare("topic", LOG)
            writer = await fabric.publisher("topic")
            left = iter(ANSWERS)

            async def forge(message: Msg) -> None:
                if message.reply.startswith("_INBOX") and (answer := next(left, None)) is not None:
                    await stranger.publish(message.reply, answer)

            await stranger.subscribe(f"{fabric.link.prefix}.t.>", cb=forge)
            await settle(stranger, 10)
            for number in range(2 * len(ANSWERS)):
                await writer.publish(str(number).encode())
            kept = [sample.data for sample in await fabric.state("topic")]
            assert kept == [str(number).encode() for number in range(2 * len(ANSWERS))]

    run(whole_test)


def test_forged_answers_of_the_api_do_not_stop_a_reader(server: NatsServer) -> None:
    async def whole_test() -> None:
        async with opened(server) as (fabric, stranger):
            await fabric.declare("topic", LOG)
            writer = await fabric.publisher("topic")
            await writer.publish(b"1")
            left = iter(ANSWERS * 3)

            async def forge(message: Msg) -> None:
                if message.reply and (answer := next(left, None)) is not None:
                    await stranger.publish(message.reply, answer)

            await stranger.subscribe("$JS.API.>", cb=forge)
            await settle(stranger, 10)
            for _ in range(len(ANSWERS)):
                assert await take(await fabric.subscribe("topic"), 1) == [b"1"]
                assert [sample.data for sample in await fabric.state("topic")] == [b"1"]

    run(whole_test)


def test_answers_go_where_nobody_can_guess(server: NatsServer) -> None:
    async def whole_test() -> None:
        async with opened(server) as (fabric, _stranger), opened(server) as (other, _also):
            one, two = await fabric.link.client(), await other.link.client()
            inboxes = [each.new_inbox().split(".") for each in (one, two)]
            assert all(len(inbox) == 3 and len(inbox[1]) == 32 for inbox in inboxes)
            assert inboxes[0][1] != inboxes[1][1]

    run(whole_test)


# Streams that are gone.


@pytest.mark.parametrize("again", [True, False], ids=["made again", "gone"])
def test_a_reader_notices_that_its_stream_is_another(server: NatsServer, again: bool) -> None:
    async def whole_test() -> None:
        async with opened(server) as (fabric, _stranger):
            await fabric.declare("topic", LOG)
            reader, writer = await fabric.subscribe("topic"), await fabric.publisher("topic")
            for number in range(20):
                await writer.publish(str(number).encode())
            assert len(await take(reader, 20)) == 20
            await fabric.link.ask(f"STREAM.DELETE.{fabric.link.stream('topic')}")
            if again:
                await fabric.declare("topic", LOG)
            # Whoever writes makes it again, too.
            await writer.publish(b"new")
            with pytest.raises(PenstockError) as ended:
                await take(reader, 1)
            assert ended.value.code in ("fabric.topic-replaced", "fabric.unknown-topic")
            assert await take(await fabric.subscribe("topic"), 1) == [b"new"]

    run(whole_test)


def test_a_reader_of_a_stream_that_was_restored_from_an_older_state_begins_again(server: NatsServer) -> None:
    async def whole_test() -> None:
        async with opened(server) as (fabric, _stranger):
            await fabric.declare("topic", LOG)
            reader = await fabric.subscribe("topic")
            feed_of(reader)._last = 1_000  # a position that the stream has not reached
            feed_of(reader)._returned()
            with refused("fabric.topic-replaced"):
                await take(reader, 1)

    run(whole_test)


def test_a_stream_whose_files_are_gone_is_made_again_by_whoever_writes(tmp_path: Path) -> None:
    async def whole_test() -> None:
        async with await NatsFabric.connect(own.url, timeout=0.5, patience=2) as fabric:
            await fabric.declare("topic", STATE)
            reader, writer = await fabric.subscribe("topic"), await fabric.publisher("topic")
            await writer.publish(b"1", key="a")
            assert await take(reader, 1) == [b"1"]
            for stream in (fabric.link.stream("topic"), fabric.link.registry):
                (messages,) = tmp_path.glob(f"**/streams/{stream}/msgs")
                shutil.rmtree(messages)
                # A server that deletes a stream while others write to it gets so far, and no further.
                with pytest.raises(ApiError):
                    await fabric.link.ask(f"STREAM.PURGE.{stream}")
            with suppress(PenstockError):  # it may say that the topic is unknown: the registry has lost it
                await writer.publish(b"2", key="a")
            with suppress(PenstockError):  # this finds that nothing can be registered
                await fabric.declare("topic", STATE)
            await fabric.declare("topic", STATE)
            await (await fabric.publisher("topic")).publish(b"3", key="a")
            with pytest.raises(PenstockError) as ended:
                await take(reader, 1)
            assert ended.value.code in ("fabric.topic-replaced", "fabric.unknown-topic")
            assert await take(await fabric.subscribe("topic"), 1) == [b"3"]

    with NatsServer(folder=tmp_path) as own:
        run(whole_test)


def test_a_server_that_lost_its_store_is_set_up_again_by_whoever_needs_it(tmp_path: Path) -> None:
    async def whole_test() -> None:
        async with opened(own) as (fabric, _stranger):
            await fabric.declare("topic", STATE)
            reader, writer = await fabric.subscribe("topic"), await fabric.publisher("topic")
            await writer.publish(b"1", key="a")
            assert await take(reader, 1) == [b"1"]
            await asyncio.to_thread(own.kill)
            shutil.rmtree(tmp_path / "data")
            await asyncio.to_thread(own.start)
            with refused("fabric.unknown-topic"):
                await take(reader, 1)
            with suppress(PenstockError):  # it may say that the topic is gone; who writes declares it again
                await writer.publish(b"lost", key="a")
            await fabric.declare("topic", STATE)
            await (await fabric.publisher("topic")).publish(b"2", key="a")
            assert await take(await fabric.subscribe("topic"), 1) == [b"2"]

    with NatsServer(folder=tmp_path) as own:
        run(whole_test)


def test_forged_answers_do_not_stop_a_log(server: NatsServer) -> None:
    async def whole_test() -> None:
        stranger = await nats.connect(server.url)
        log = await NatsLog.open(server.url, "keys", prefix=prefix())
        left = iter(ANSWERS * 3)

        async def forge(message: Msg) -> None:
            if message.reply and (answer := next(left, None)) is not None:
                await stranger.publish(message.reply, answer)

        await stranger.subscribe("$JS.API.STREAM.MSG.GET.>", cb=forge)
        await settle(stranger, 10)
        for number in range(10):
            # An answer that was lost is asked for again, and is then no.
            await log.append(number, str(number).encode())
            assert list(await log.read(0)) == [str(each).encode() for each in range(number + 1)]
        await log.close()
        await stranger.close()

    run(whole_test)


# Reading what came.

NAMES = st.sampled_from(["error", "code", "err_code", "description", "message", "data", "seq", "state", "x"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON: st.SearchStrategy[object] = st.deferred(
    lambda: SCALARS | st.lists(JSON, max_size=3) | st.dictionaries(NAMES, JSON, max_size=4)
)


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_an_answer_is_read_or_refused(data: bytes) -> None:
    try:
        answer = read_answer(data)
    except (AnswerError, ApiError):
        return
    for look in (
        payload,
        lambda a: whole(a, "state", "seq"),
        lambda a: text(a, "x"),
        lambda a: sequences(a, "state", "x"),
    ):
        with suppress(AnswerError):
            look(answer)


TOKENS = st.sampled_from(["$JS", "ACK", "a", "b", "1", "0", "-1", "9" * 30, "", "١", "x"])


@given(st.text(max_size=30) | st.lists(TOKENS, max_size=14).map(".".join))
def test_a_reply_subject_is_a_place_or_junk(reply: str) -> None:
    place = read_place(reply)
    assert place is None or (place.sequence > 0 and place.number > 0)


@given(st.binary(max_size=80))
def test_a_sample_is_read_or_refused(data: bytes) -> None:
    with suppress(PenstockError):
        decode(b"\x01" + data)


# Floods, and being used against others.


@pytest.mark.parametrize("known", [True, False], ids=["its consumer is known", "another consumer"])
def test_a_flood_in_the_inbox_of_a_reader_takes_bounded_room_and_loses_nothing(server: NatsServer, known: bool) -> None:
    async def whole_test() -> None:
        async with opened(server) as (fabric, _stranger):
            await fabric.declare("topic", LOG)
            reader, writer = await fabric.subscribe("topic"), await fabric.publisher("topic")
            feed = feed_of(reader)
            consumer = feed._consumer if known else "another"
            for number in range(2, 5_000):
                reply = f"$JS.ACK.{feed._stream}.{consumer}.1.{number}.{number}.1.0"
                feed._hear(b"junk", reply.encode(), b"", b"x")
            assert len(reader.reader) == 0
            for number in range(3):
                await writer.publish(str(number).encode())
            assert await take(reader, 3) == [b"0", b"1", b"2"]

    run(whole_test)


def test_nobody_makes_a_service_speak_to_others(server: NatsServer) -> None:
    async def whole_test() -> None:
        async with opened(server) as (fabric, stranger):
            await fabric.declare("asked", EVENTS)
            heard: list[str] = []

            async def hear(message: Msg) -> None:
                heard.append(message.subject)

            async def echo(sample: Sample) -> bytes:
                return sample.data

            await stranger.subscribe(f"{fabric.link.prefix}.victim", cb=hear)
            async with await fabric.serve("asked", echo):
                for reply in ("", f"{fabric.link.prefix}.victim", "$JS.API.STREAM.NAMES"):
                    await stranger.publish(f"{fabric.link.prefix}.ask.asked", b"junk", reply=reply)
                await settle(stranger, 10)
                # Requests are answered in order: those before this one have been heard.
                assert await fabric.request("asked", b"hello", timeout=20) == b"hello"
            await settle(stranger, 10)
            assert heard == []

    run(whole_test)

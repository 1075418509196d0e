"""A client whose broker goes and comes back."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from tests.broker.node_kit import (
    BROKERS,
    HOST,
    LIMITS,
    LONG,
    client_of,
    headlines,
    refused,
    run,
    running,
    until,
)
from tests.broker.sports import NETWORK, NEWS, PDA, REPORTER, grant, signed

from penstock.broker.client.client import Client, Subscription
from penstock.broker.wire.link import Endpoint, Link, listen
from penstock.broker.wire.protocol import Hello, Welcome, read_request, word_of
from penstock.codec.wire import Wire, encode
from penstock.errors import FailedError
from penstock.model.events import Event
from penstock.testing.server_process import free_port
from penstock.trust.capabilities import BROKER_RIGHTS, Right
from penstock.trust.credentials import Credentials

READ = grant(PDA, NEWS, Right.SUBSCRIBE)
WRITE = grant(REPORTER, NEWS, Right.PUBLISH)


async def subscribed(port: int) -> tuple[Client, Subscription]:
    """Return a client and its subscription, whose broker has gone since."""
    async with running(READ, port=port) as node:
        reader = client_of(node, PDA)
        await reader.__aenter__()
        return reader, await reader.subscribe(NEWS.name)


def test_what_stands_is_asked_for_again_and_what_waits_is_carried_out() -> None:
    async def main() -> None:
        port = free_port()
        async with running(READ, WRITE, port=port) as node:
            reader, writer = client_of(node, PDA), client_of(node, REPORTER)
            await reader.__aenter__()
            await writer.__aenter__()
            news = await reader.subscribe(NEWS.name, "location = 'London'")
            gone = await reader.subscribe(NEWS.name)
            feed = await writer.advertise(NEWS.name)
            await feed.publish(headline="before", location="London")
            assert await headlines(news, 1) == ["before"]
        await until(lambda: "down" in repr(reader) + repr(writer))
        later = asyncio.ensure_future(reader.subscribe(NEWS.name))
        ending = asyncio.create_task(gone.unsubscribe())
        waiting = asyncio.create_task(feed.publish(headline="waited", location="London"))
        await feed.post({"headline": "posted", "location": "London"})
        await asyncio.sleep(0.1)
        assert not later.done()
        assert not waiting.done()
        async with running(READ, WRITE, port=port) as node:
            other = await later
            await ending
            await waiting
            # There may have been nobody yet when the first ones were published again.
            await until(lambda: node.held == 3)
            await feed.publish(headline="after", location="London")
            for subscription in (other, news):
                # Each had begun when it had, and may have had some of those before.
                while await headlines(subscription, 1) != ["after"]:
                    pass
            assert reader.reconnections == writer.reconnections == 1
            assert gone.ended is not None
            await reader.close()
            await writer.close()
            await until(lambda: not len(node.clients))

    run(main())


def test_what_has_come_does_not_come_again_from_a_broker_that_restarted() -> None:
    async def main() -> None:
        port = free_port()
        async with running(READ, WRITE, port=port) as node:
            reader, writer = client_of(node, PDA), client_of(node, REPORTER)
            await reader.__aenter__()
            await writer.__aenter__()
            news, feed = await reader.subscribe(NEWS.name), await writer.advertise(NEWS.name)
            noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
            event = Event.of(feed.type, {"headline": "had"}, id="one", time=noon)
            for _ in range(2):
                # As its publisher likes.
                await feed.publish(event)
            assert await headlines(news, 2) == ["had", "had"]
        for other in ("another one", "a third one"):
            await until(lambda: "down" in repr(reader) + repr(writer))
            async with running(READ, WRITE, port=port) as node:
                await until(lambda: node.held == 2)
                # As if it had been under way in the network for so long, and then as its publisher likes.
                for _ in range(3):
                    await feed.publish(event)
                await feed.publish(Event.of(feed.type, {"headline": other}, id="one", time=noon))
                assert await headlines(news, 3) == ["had", "had", other]
        await reader.close()
        await writer.close()

    run(main())


@pytest.mark.parametrize("given_up", [False, True])
def test_what_is_ended_without_an_answer_has_ended(given_up: bool) -> None:
    async def main() -> None:
        port = free_port()
        reader, news = await subscribed(port)
        await until(lambda: "down" in repr(reader))
        reading = asyncio.create_task(anext(news, None))
        if given_up:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(news.unsubscribe(), 0.1)
        else:
            reader._caller.timeout = 0.1
            await news.unsubscribe()
            reader._caller.timeout = LONG
        assert await reading is None
        async with running(READ, port=port) as node:
            await reader.subscribe(NEWS.name)
            assert node.held == 1
            await reader.close()

    run(main())


def test_a_lost_connection_is_told_and_so_is_the_next() -> None:
    async def main() -> None:
        port = free_port()
        told: list[str | None] = []
        async with running(READ, port=port) as node:
            reader = client_of(node, PDA)
            await reader.__aenter__()
            reader.watch_connection(lambda lost: told.append(None if lost is None else lost.code))
            assert told == []
        await until(lambda: told != [])
        assert [code for code in told if code is None] == []
        async with running(READ, port=port):
            await until(lambda: told[-1] is None)
            assert len(told) == 2
            await reader.close()
        assert len(told) == 2

    run(main())


def test_a_refusal_after_a_restart_ends_what_stood() -> None:
    async def main() -> None:
        port = free_port()
        reader, news = await subscribed(port)
        async with running(port=port) as node:
            error = await refused("broker.not-permitted", news.next(LONG))
            assert error.fields["asked"] == "subscribe"
            assert reader.reconnections == 1
            await reader.close()
            assert node.held == 0

    run(main())


def test_a_right_that_comes_back_with_a_new_connection_is_told() -> None:
    async def main() -> None:
        port = free_port()
        told: list[str] = []
        async with running(READ, port=port) as node:
            reader = client_of(node, PDA)
            await reader.__aenter__()
            await reader.watch_rights(lambda notice: told.append(str(notice.change)))
            news = await reader.subscribe(NEWS.name)
            node.policy()
            await until(lambda: news.refusal is not None)
        async with running(READ, port=port) as node:
            await until(lambda: told == ["withdrawn", "restored"])
            assert news.refusal is None
            node.policy()
            await until(lambda: told[2:] == ["withdrawn"])
            await reader.close()

    run(main())


def test_somebody_else_at_the_same_address_is_not_taken_for_the_broker() -> None:
    async def main() -> None:
        port = free_port()
        async with running(READ, port=port) as node:
            reader = client_of(node, PDA, broker=BROKERS[0].principal)
            await reader.__aenter__()
            news = await reader.subscribe(NEWS.name)
        async with running(READ, key=BROKERS[1], port=port):
            await refused("handshake.peer", news.next(LONG))
            await refused("handshake.peer", reader.subscribe(NEWS.name))
            await reader.close()

    run(main())


def test_who_has_patience_waits_for_a_broker() -> None:
    async def main() -> None:
        port = free_port()
        await refused("link.unreachable", client_of(port, PDA).__aenter__())
        client = client_of(port, PDA, patience=LONG)
        entering = asyncio.create_task(client.__aenter__())
        await asyncio.sleep(0.1)
        async with running(READ, port=port):
            await entering
            await client.subscribe(NEWS.name)
            await client.close()

    run(main())


def test_who_has_as_many_sessions_as_allowed_waits_for_one_to_end() -> None:
    async def main() -> None:
        async with running(READ, limits=replace(LIMITS, client_sessions=1)) as node, client_of(node, PDA) as first:
            await refused("broker.sessions", client_of(node, PDA).__aenter__())
            second = client_of(node, PDA, patience=LONG)
            entering = asyncio.create_task(second.__aenter__())
            await asyncio.sleep(0.1)
            await first.close()
            await entering
            await second.close()

    run(main())


def test_who_connects_too_often_is_told_when_to_come_again_and_waits() -> None:
    async def main() -> None:
        async with running(READ) as node:
            loop, pace = asyncio.get_running_loop(), node.core._admission._pace(PDA.principal)
            pace._admissions.charge(10**6, loop.time())
            error = await refused("admission.rate", client_of(node, PDA).__aenter__())
            assert error.hint is not None
            assert error.hint.startswith("try again in ")
            client = client_of(node, PDA, patience=LONG)
            entering = asyncio.create_task(client.__aenter__())
            await until(lambda: node.core.counts["turned away"] >= 3)
            assert not node.records
            pace._admissions.charge(-(10**6), loop.time())
            await entering
            await client.close()

    run(main())


def test_a_client_that_waits_for_its_broker_can_be_closed() -> None:
    async def main() -> None:
        async with running(READ, WRITE) as node:
            writer = client_of(node, REPORTER)
            await writer.__aenter__()
            feed = await writer.advertise(NEWS.name)
        waiting = asyncio.create_task(feed.publish(headline="h"))
        await feed.post({"headline": "i"})
        await until(lambda: "down" in repr(writer))
        await writer.close()
        await refused("client.closed", waiting)
        await refused("client.closed", feed.post({"headline": "j"}))
        await refused("client.closed", writer.subscribe(NEWS.name))

    run(main())


# Brokers that do not keep to the protocol.


@asynccontextmanager
async def broker(after_welcome: Callable[[Link], Awaitable[None]], turns_away: str = "") -> AsyncIterator[int]:
    """Run a broker that lets clients in, but not the first one if it `turns_away` with a code."""
    shown = Welcome(Credentials.of(grant(BROKERS[0], None, *BROKER_RIGHTS)).to_bytes())
    away = [FailedError(turns_away, "not now")] if turns_away else []

    async def serve(link: Link) -> None:
        await link.receive()
        if away:
            raise away.pop()
        link.post(encode(shown.to_tree()))
        await after_welcome(link)

    listener = await listen(Endpoint(key=BROKERS[0], network=NETWORK, limits=LIMITS), HOST, 0, serve)
    try:
        yield listener.port
    finally:
        await listener.close()


@asynccontextmanager
async def broker_that(*words: Wire, stays: bool = True) -> AsyncIterator[int]:
    """Run a broker that lets clients in, and answers the first request with these words."""

    async def answer(link: Link) -> None:
        await link.receive()
        for word in words:
            link.post(encode(word))
        if stays:
            await asyncio.Event().wait()

    async with broker(answer) as port:
        yield port


def test_who_was_not_heard_in_time_tries_again() -> None:
    async def serve(_link: Link) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with broker(serve, "handshake.timeout") as port, client_of(port, PDA, patience=LONG) as client:
            assert client.peer is not None

    run(main())


def test_a_broker_that_did_not_answer_is_told_again_that_a_subscription_has_ended() -> None:
    heard: list[str] = []

    async def serve(link: Link) -> None:
        while True:
            for tree in await link.receive():
                request = read_request(tree)
                assert not isinstance(request, Hello)
                heard.append(word_of(request))
                if heard[-1] != "unsubscribe":
                    link.post(encode(["accepted", request.number]))

    async def main() -> None:
        async with broker(serve) as port, client_of(port, PDA, types=[signed(NEWS)]) as client:
            news = await client.subscribe(NEWS.name)
            client._caller.timeout = 0.1
            await news.unsubscribe()
            assert news.ended is not None
            await until(lambda: heard.count("unsubscribe") == 2)

    run(main())


def test_a_request_that_waited_when_the_link_was_lost_is_interrupted() -> None:
    async def main() -> None:
        async with broker_that(stays=False) as port, client_of(port, PDA) as client:
            error = await refused("client.interrupted", client.subscribe(NEWS.name))
            assert isinstance(error, FailedError)
            assert error.fields["reason"] == "link.closed"

    run(main())


def test_an_answer_that_takes_too_long() -> None:
    async def main() -> None:
        async with broker_that() as port, client_of(port, PDA, timeout=0.1) as client:
            await refused("client.timeout", client.subscribe(NEWS.name))

    run(main())


@pytest.mark.parametrize(
    "word",
    [
        ["welcome", 1, b""],
        ["hello", 1, "client", b""],
        ["events", "s1", [["id"]]],
        ["accepted", -1],
        ["right-changed", "s1", "doubled", "", "", "", None],
        ["nonsense"],
        7,
    ],
)
def test_a_broker_that_speaks_nonsense_is_left(word: Wire) -> None:
    async def main() -> None:
        async with broker_that(word) as port, client_of(port, PDA) as client:
            error = await refused("client.interrupted", client.subscribe(NEWS.name))
            assert error.fields["reason"] == "protocol.malformed"

    run(main())


def test_words_about_what_a_client_does_not_know_are_passed_over() -> None:
    words: tuple[Wire, ...] = (
        ["accepted", 77],
        ["answered", 78, None],
        ["quenched", "a9", True],
        ["right-changed", "s9", "withdrawn", "broker.not-permitted", "no", "", None],
        ["events", "s9", [["id", None, 3]]],
        ["refused", 0, "guard.not-permitted", "no", "", None, 4],
        ["answered", 1, []],
    )

    async def main() -> None:
        async with broker_that(*words) as port, client_of(port, PDA) as client:
            await refused("broker.unknown-type", client.subscribe(NEWS.name))

    run(main())


def test_credentials_that_are_too_many_for_a_hello_are_disclosed_afterwards() -> None:
    many = Credentials.of(grant(PDA, NEWS, Right.SUBSCRIBE), grant(PDA, NEWS, Right.PUBLISH))
    limits = replace(LIMITS, hello_bytes=len(many.to_bytes()))

    async def main() -> None:
        async with running(limits=limits) as node:
            error = await refused("protocol.hello", client_of(node, PDA, credentials=many, limits=limits).__aenter__())
            assert "disclose" in (error.hint or "")
            async with client_of(node, PDA, limits=limits) as reader:
                await reader.disclose(many)
                await reader.subscribe(NEWS.name)

    run(main())

"""Links across NATS: nobody there, floods, more than was granted, and servers that go."""

import asyncio
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace

import nats
import pytest
from nats.aio.msg import Msg
from tests.broker.link_kit import (
    BROKER,
    CLIENT,
    DOOR,
    LIMITS,
    MALLORY,
    Broker,
    Nats,
    broker,
    endpoint,
    fresh,
    gather,
    raw,
    refused,
    run,
    until,
    works,
)

from penstock.broker.wire.nats_link import KNOCK, NatsTransport, connect_nats, new_inbox
from penstock.codec.wire import encode
from penstock.codec.wire import frame as frame_of
from penstock.errors import PenstockError
from penstock.fabric.nats_api import settle
from penstock.model import NetworkName
from penstock.testing.nats import NatsServer


def test_nobody_there(server: NatsServer) -> None:
    async def main() -> None:
        elsewhere = NetworkName(MALLORY.principal, "elsewhere")
        async with broker(Nats(server.url)) as at:
            await refused("link.unreachable", connect_nats(endpoint(CLIENT), server.url, MALLORY.principal))
            # Another network has other doors.
            connecting = connect_nats(endpoint(CLIENT, network=elsewhere), server.url, BROKER.principal)
            await refused("link.unreachable", connecting)
            await refused("handshake.reflection", at.link(BROKER))
        await refused("link.unreachable", connect_nats(endpoint(CLIENT), server.url, BROKER.principal))
        await refused("fabric.unreachable", connect_nats(endpoint(CLIENT), "nats://127.0.0.1:1", BROKER.principal))
        await refused("fabric.bad-address", connect_nats(endpoint(CLIENT), "nats://a:b@host", BROKER.principal))

    run(main())


def test_a_broker_that_says_nothing_is_not_waited_for(server: NatsServer) -> None:
    limits = replace(LIMITS, handshake_time=2_000)

    async def main() -> None:
        silent = await nats.connect(server.url)
        heard: list[Msg] = []

        async def hear(message: Msg) -> None:
            heard.append(message)

        await silent.subscribe(DOOR, cb=hear)
        await settle(silent, 10)
        await refused("handshake.timeout", connect_nats(endpoint(CLIENT, limits), server.url, BROKER.principal))
        # A knock may be lost, and is repeated.
        await until(lambda: len(heard) > 2)
        await silent.close()

    run(main())


def test_a_flood_costs_little_and_harms_nobody(server: NatsServer) -> None:
    limits = replace(LIMITS, handshake_pending=8, handshake_time=2_000)

    async def main() -> None:
        async with broker(Nats(server.url), limits) as at:
            link = await at.link()
            await until(lambda: at.served)
            inbox = transports(at)[0]._inbox
            hostile = await nats.connect(server.url)
            largest = 0
            for number in range(3_000):
                # The subject of a link is not secret to a server.
                await hostile.publish(inbox, bytes((1,)) + number.to_bytes(8, "big") + bytes(200))
                reply = new_inbox(DOOR, fresh) if number % 10 == 0 else ("", "$JS.API.INFO", DOOR)[number % 3]
                await hostile.publish(DOOR, (KNOCK, b"", bytes(2_000))[number % 10 and number % 3], reply=reply)
                if number % 100 == 0:
                    await settle(hostile, 10)
                    largest = max(largest, len(at.listener._greeting))
                    await link.send(encode(number))
                    assert await link.receive() == [number]
            assert 0 < largest <= 8
            await until(lambda: not at.listener._greeting)
            # Those who had to give way, and those whose time was up, are gone altogether.
            assert set(at.codes) <= {"link.busy", "handshake.timeout"}
            await until(lambda: len(transports(at)) == 1)
            await hostile.close()
            await works(at)
            await link.close()

    run(main())


def transports(at: Broker) -> list[NatsTransport]:
    return list(getattr(at.listener, "_transports"))  # noqa: B009  # only listeners across NATS have them


def test_nobody_makes_a_broker_speak_to_others(server: NatsServer) -> None:
    async def main() -> None:
        async with broker(Nats(server.url)) as at:
            hostile = await nats.connect(server.url)
            for reply in ("somebody.else", f"{DOOR}.short", f"{DOOR}.{'g' * 32}", f"x.{DOOR}.{'a' * 32}", DOOR):
                await hostile.publish(DOOR, KNOCK, reply=reply)
            await settle(hostile, 10)
            await works(at)
            assert len(at.served) == 1
            assert at.codes in ([], ["link.closed"])
            await hostile.close()

    run(main())


def test_who_sends_more_than_was_granted_is_cut(server: NatsServer) -> None:
    limits = replace(LIMITS, link_inbox=10_000)

    async def main() -> None:
        async with broker(Nats(server.url), limits, serve=lambda link: until(lambda: link.ended)) as at:
            async with raw(at) as client:
                transport = client.writer.transport
                assert isinstance(transport, NatsTransport)
                await until(lambda: transport._allowed == 10_000)
                transport._allowed = 1 << 40
                for _ in range(4):
                    client.write(frame_of([encode(bytes(5_000))]))
                await at.ended("link.flood")
            await works_after(at)

    run(main())


@pytest.mark.parametrize(("kind", "content"), [(2, b"short"), (0, b"x"), (9, b"")])
def test_a_record_of_no_kind_ends_the_link(server: NatsServer, kind: int, content: bytes) -> None:
    async def main() -> None:
        async with broker(Nats(server.url)) as at, raw(at) as client:
            transport = client.writer.transport
            assert isinstance(transport, NatsTransport)
            transport._put(kind, content)
            assert await client.goodbye() == encode("wire.malformed")
            await at.ended("wire.malformed")
            await works(at)

    run(main())


def test_a_server_that_takes_nothing_ends_the_link(server: NatsServer) -> None:
    async def main() -> None:
        async with broker(Nats(server.url), serve=lambda link: gather(link, [])) as at:
            link = await at.link()
            await until(lambda: at.served)
            (transport,) = transports(at)
            # A hostile server says so in the middle of everything.
            transport._client._max_payload = 0
            at.served[0].post(encode(bytes(5_000)))
            await at.ended("link.lost")
            transport._client._max_payload = 1 << 20
            await link.close()
            await works_after(at)

    run(main())


async def works_after(at: Broker) -> None:
    """Check that somebody else gets in."""
    link = await at.link(MALLORY)
    assert link.ended is None
    await link.close()


def test_nobody_needs_nats_for_links_over_tls() -> None:
    program = "import sys, penstock.broker.wire.link; sys.exit('nats' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_links_end_with_the_server_and_come_back_with_it() -> None:
    async def main() -> None:
        with NatsServer() as own:
            async with broker(Nats(own.url)) as at:
                link = await at.link()
                await link.send(encode("x"))
                assert await link.receive() == ["x"]
                own.kill()
                await refused("link.lost", link.receive())
                await at.ended("link.lost")
                own.start()
                for _ in range(100):
                    with suppress(PenstockError):
                        await works(at)
                        break
                    await asyncio.sleep(0.05)
                await at.ended("link.closed")

    run(main())


def test_secrets_do_not_show(server: NatsServer) -> None:
    async def main() -> None:
        async with broker(Nats(server.url)) as at, raw(at) as client:
            transport = client.writer.transport
            assert repr(transport) == "NatsTransport(sealed=True, closing=False)"
            assert repr(at.listener).startswith("<penstock.")

    run(main())

"""Links over TLS: what TLS is good for, and those who do not speak it."""

import asyncio
import gc
import socket
import ssl
import warnings
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from tests.broker.link_kit import (
    BROKER,
    CLIENT,
    HOST,
    LIMITS,
    MALLORY,
    NETWORK,
    Broker,
    Raw,
    Tls,
    broker,
    check_useless,
    echo,
    endpoint,
    fresh,
    raw,
    refused,
    run,
    until,
    wait_for_the_end,
    works,
)

from penstock.broker.limits import BrokerLimits
from penstock.broker.wire.handshake import AuthenticatedPeer, Connecting, HandshakeTerms
from penstock.broker.wire.link import Link, Listener, Reception, connect, listen
from penstock.codec.wire import HEADER_BYTES, encode, raw_frame
from penstock.crypto import SigningKey
from penstock.crypto.tls import client_context, new_certificate, peer_fingerprint, server_context
from penstock.errors import FailedError
from penstock.model import NetworkName

way = Tls()


def test_small_messages_do_not_wait_for_acknowledgements_in_either_direction() -> None:
    async def main() -> None:
        async with broker(way) as at:
            link = await at.link()
            for one in (link, *at.served):
                transport = one._channel._transport
                assert transport is not None
                connection = transport.get_extra_info("socket")
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert at.served
            await link.close()

    run(main())


def test_nobody_there() -> None:
    async def main() -> None:
        async with broker(way) as at:
            port = at.port
            error = await refused("link.address", listen(endpoint(CLIENT), HOST, port, echo))
            assert isinstance(error, FailedError)
        await refused("link.unreachable", connect(endpoint(CLIENT), HOST, port))

    run(main())


def test_a_knock_at_a_closing_door_leaves_nothing_open() -> None:
    async def main() -> None:
        async with broker(way) as at:
            opened = [await asyncio.open_connection(HOST, at.port) for _ in range(3)]
            await until(lambda: at.listener._greeting)
        for _, writer in opened:
            writer.transport.abort()

    run(main())
    gc.collect()


@pytest.mark.parametrize("turns", range(6))
def test_a_listener_that_closes_while_it_accepts_leaves_nothing_open(turns: int) -> None:
    async def main() -> None:
        async with broker(way) as at:
            await asyncio.sleep(0)
            knocking = socket.create_connection((HOST, at.port))
            for _ in range(turns):
                await asyncio.sleep(0)
        knocking.close()

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        run(main())
        gc.collect()
    assert [str(one.message) for one in found] == []


def test_another_network_and_another_broker() -> None:
    async def main() -> None:
        async with broker(way) as at:
            elsewhere = NetworkName(MALLORY.principal, "elsewhere")
            await refused("handshake.network", connect(endpoint(CLIENT, network=elsewhere), HOST, at.port))
            await refused("handshake.peer", connect(endpoint(CLIENT), HOST, at.port, MALLORY.principal))
            await refused("handshake.reflection", connect(endpoint(BROKER), HOST, at.port))
            await until(lambda: len(at.reasons) == 3)
            # The broker learns why.
            assert at.reasons == ["handshake.network", "handshake.peer", "handshake.reflection"]
            await works(at)

    run(main())


def test_somebody_in_the_middle_of_tls_is_found_out() -> None:
    async def main() -> None:
        async with broker(way) as at:

            async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                with suppress(ConnectionError, ssl.SSLError):
                    while data := await reader.read(65_536):
                        writer.write(data)
                    writer.close()

            async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                onward = await asyncio.open_connection(HOST, at.port, ssl=client_context(), server_hostname="")
                await asyncio.gather(carry(reader, onward[1]), carry(onward[0], writer))
                onward[1].transport.abort()
                writer.transport.abort()

            context = server_context(new_certificate(fresh))
            middle = await asyncio.start_server(between, HOST, 0, ssl=context)
            port = middle.sockets[0].getsockname()[1]
            error = await refused("link.refused", connect(endpoint(CLIENT), HOST, port, BROKER.principal))
            assert error.fields["reason"] == "handshake.signature"
            assert at.codes == ["handshake.signature"]
            middle.close()
            await middle.wait_closed()
            await works(at)

    run(main())


def test_a_handshake_that_was_overheard_is_no_use() -> None:
    async def main() -> None:
        async with broker(way) as at:
            async with raw(at, shake=False) as client:
                shown = peer_fingerprint(client.writer.get_extra_info("ssl_object"))
                answer = Connecting(HandshakeTerms(CLIENT, NETWORK, shown), fresh).receive(await client.frame())
                assert answer is not None
                client.write(raw_frame(answer))
                assert b"proof" in await client.frame()
            await check_useless(at, answer)
            await works(at)

    run(main())


def test_who_says_nothing_does_not_keep_others_out() -> None:
    limits = replace(LIMITS, handshake_pending=4, handshake_time=10_000)

    async def main() -> None:
        async with broker(way, limits) as at:
            plain = [await asyncio.open_connection(HOST, at.port) for _ in range(8)]
            async with raw(at, shake=False) as one, raw(at, shake=False) as two:
                # The oldest gave way; both of these wait for us, as six others do.
                await works(at)
                assert set(at.codes) == {"link.busy", "link.closed"}
                assert len(at.listener._greeting) <= 4
                assert one is not two
            for _, writer in plain:
                writer.transport.abort()

    run(main())


@pytest.mark.parametrize("with_tls", [False, True])
def test_a_handshake_has_a_time(with_tls: bool) -> None:
    # As long as an honest peer takes on a busy machine, and shorter than all drops together.
    limits = replace(LIMITS, handshake_time=3_000)

    async def main() -> None:
        async with broker(way, limits) as at:
            context = client_context() if with_tls else None
            name = "" if with_tls else None
            reader, writer = await asyncio.open_connection(HOST, at.port, ssl=context, server_hostname=name)
            # A drop now and then is not a sign of life: the head of a frame, or of a TLS greeting.
            for octet in b"\x00\x00\x00\xff(((((" if with_tls else b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc":
                writer.write(bytes((octet,)))
                await asyncio.sleep(0.4)
            await until(lambda: at.codes)
            assert at.codes == ["handshake.timeout"]
            assert reader is not None
            writer.transport.abort()
            await works(at)

    run(main())


def test_a_server_that_says_nothing_is_not_waited_for() -> None:
    limits = replace(LIMITS, handshake_time=500)

    async def main() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.transport.abort()

        for context in (None, server_context(new_certificate(fresh))):
            server = await asyncio.start_server(silent, HOST, 0, ssl=context)
            port = server.sockets[0].getsockname()[1]
            await refused("handshake.timeout", connect(endpoint(CLIENT, limits), HOST, port))
            server.close()
            await server.wait_closed()

    run(main())


def test_those_who_do_not_speak_tls_or_an_old_one() -> None:
    async def main() -> None:
        async with broker(way) as at:
            _, writer = await asyncio.open_connection(HOST, at.port)
            writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            await at.ended("link.tls")
            writer.transport.abort()
            old = client_context()
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection(HOST, at.port, ssl=old, server_hostname="")
            await until(lambda: at.codes == ["link.tls", "link.tls"])
            await works(at)

    run(main())


def test_a_listener_closes_with_those_that_it_has_turned_away() -> None:
    async def main() -> None:
        async with broker(way) as at, raw(at, shake=False) as client:
            (guest,) = at.listener._greeting.values()
            # TLS does not say that it has read the broker's end.
            secured: Any = client.writer.transport
            secured._ssl_protocol._transport.pause_reading()
            client.write(b"GET / HTTP/1.1\r\n\r\n")
            await at.ended("frame.limit")
            await at.listener.close()
            assert not guest.channel.open

    run(main())


def test_a_peer_that_closes_tls_and_reads_nothing_does_not_keep_its_connection() -> None:
    async def main() -> None:
        async with broker(way, serve=wait_for_the_end) as at, raw(at) as client:
            (link,) = at.served
            channel = link._channel
            client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            # TLS does not read either: whoever closes would wait for the broker's end otherwise.
            secured: Any = client.writer.transport
            secured._ssl_protocol._transport.pause_reading()
            # More than the system takes, and less than what cuts a slow reader.
            sending = channel._transport
            assert sending is not None
            sending.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            link.post(encode(bytes(400_000)))
            client.writer.close()
            await until(sending.is_closing)
            assert link.ended is None
            await link.close()
            await until(lambda: channel._transport is None)

    run(main())


# Peers that were not let in yet.


@asynccontextmanager
async def guarded(limits: BrokerLimits, *welcome: SigningKey) -> AsyncIterator[Broker]:
    """A listener that lets in only some, and waits for what the others have to say."""

    async def serve(link: Link) -> None:
        if link.peer.key in [key.public for key in welcome]:
            link.admit()
            await echo(link)
        else:
            await until(lambda: link.ended)

    codes: list[str] = []
    own = replace(endpoint(BROKER, limits), guarded=True)
    listener = await way.listen(own, serve, lambda error: codes.append(error.code))
    try:
        yield Broker(way, listener, codes=codes)
    finally:
        await listener.close()


@asynccontextmanager
async def strangers(at: Broker, number: int) -> AsyncIterator[list[Raw]]:
    """Clients that have proved who they are, and have shown nothing."""
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(number):
            client, introduce = await way.open(at)
            stack.callback(client.writer.transport.abort)
            await introduce()
            found.append(client)
        yield found


def test_who_was_not_let_in_sends_nothing_large() -> None:
    limits = replace(LIMITS, hello_bytes=4_096)

    async def main() -> None:
        async with guarded(limits, MALLORY) as at, strangers(at, 1) as (client,):
            client.write((5_000).to_bytes(HEADER_BYTES, "big"))
            assert await client.goodbye() == encode("frame.limit")
            member = await at.link(MALLORY)
            await member.send(encode(bytes(50_000)))
            assert await member.receive() == [bytes(50_000)]
            await member.close()

    run(main())


def test_of_all_who_were_not_let_in_so_much_is_kept() -> None:
    limits = replace(LIMITS, hello_bytes=64 << 10, hello_all_bytes=200 << 10)

    async def main() -> None:
        async with guarded(limits, MALLORY) as at, strangers(at, 6) as clients:
            for client in clients:
                client.write((64 << 10).to_bytes(HEADER_BYTES, "big") + bytes(60 << 10))
            await until(lambda: at.codes.count("link.busy") == 3)
            assert sum(guest.channel.held for guest in at.listener._greeting.values()) <= 200 << 10
            await works(at, MALLORY)

    run(main())


def test_who_says_no_hello_does_not_keep_others_out() -> None:
    limits = replace(LIMITS, handshake_pending=4, links=2)

    async def main() -> None:
        async with guarded(limits, MALLORY) as at, strangers(at, 9):
            assert len(at.listener._greeting) <= 4
            assert not at.listener.links
            await works(at, MALLORY)
            await until(lambda: at.codes.count("link.busy") >= 5)

    run(main())


def test_everybody_has_a_turn_while_many_are_accepted() -> None:
    limits = replace(LIMITS, handshake_pending=64)

    async def main() -> None:
        async with broker(way, limits) as at:
            # The system takes these in while nobody here does anything.
            waiting = [socket.create_connection((HOST, at.port)) for _ in range(40)]
            turns = 0
            while len(at.listener._greeting) < 40:
                turns += 1
                await asyncio.sleep(0)
            assert turns >= 20
            for connection in waiting:
                connection.close()

    run(main())


def test_handshakes_begin_at_a_rate_and_not_before_somebody_speaks() -> None:
    limits = replace(LIMITS, handshake_rate=10)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with broker(way, limits) as at:
            assert isinstance(at.listener, Listener)
            silent = [await asyncio.open_connection(HOST, at.port) for _ in range(3)]
            await until(lambda: len(at.listener._greeting) == 3)
            assert not at.listener._begun
            before = loop.time()
            for _ in range(3):
                await works(at)
            assert at.listener._begun >= before + 3 / 10
            for _, writer in silent:
                writer.transport.abort()

    run(main())


def test_who_gives_way_is_silent_or_of_those_who_are_most() -> None:
    async def main() -> None:
        reception = Reception(endpoint(BROKER), echo, lambda _: None)
        never = asyncio.get_running_loop().create_future()

        async def shake() -> AuthenticatedPeer:
            await never
            raise AssertionError

        def greet(source: str, patience: float = inf) -> asyncio.Task[None]:
            task = reception._greet(reception._new_channel(), shake, source)
            reception._greeting[task].patience = patience
            return task

        alone, first, second = greet("a"), greet("b"), greet("b")
        assert reception._least_wanted() is first
        silent = greet("a", 0.0)
        assert reception._least_wanted() is silent
        for task in (alone, first, second, silent):
            task.cancel()
        await asyncio.gather(alone, first, second, silent, return_exceptions=True)

    run(main())


@pytest.mark.parametrize("speaks", [b"", b"no TLS at all"])
def test_a_connection_that_became_nothing_leaves_no_memory(speaks: bytes) -> None:
    """Nor does it wait for the garbage collector, which may not come for long: TLS has large buffers."""

    async def main() -> None:
        async with broker(way) as at:
            left: list[weakref.ref[object]] = []
            for _ in range(3):
                reader, writer = await asyncio.open_connection(HOST, at.port)
                await until(lambda: at.listener._greeting)
                left += [weakref.ref(guest.channel) for guest in at.listener._greeting.values()]
                writer.write(speaks)
                if speaks:
                    await reader.read()
                writer.transport.abort()
                await until(lambda: not at.listener._greeting)
            gc.disable()
            try:
                await until(lambda: not any(one() for one in left))
            finally:
                gc.enable()

    run(main())


def test_a_peer_that_was_cut_leaves_no_memory() -> None:
    limits = replace(LIMITS, hello_bytes=4_096, link_goodbye=100)

    async def main() -> None:
        async with guarded(limits) as at:
            gc.collect()
            gc.disable()
            try:
                async with strangers(at, 3) as clients:
                    left = [weakref.ref(guest.channel) for guest in at.listener._greeting.values()]
                    assert len(left) == 3
                    for client in clients:
                        client.write((5_000).to_bytes(HEADER_BYTES, "big") + bytes(5_000))
                        assert await client.goodbye() == encode("frame.limit")
                await until(lambda: not any(one() for one in left))
            finally:
                gc.enable()

    run(main())

"""Links over real TLS connections: peers that keep to the rules talk, and the others disturb nobody."""

import asyncio
import gc
import itertools
import ssl
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import pytest

from penstock.broker.handshake import Connecting, Terms
from penstock.broker.link import Endpoint, Link, Listener, Meter, Rate, connect, listen
from penstock.codec.wire import HEADER_BYTES, KEEPALIVE, Encoded, FrameReader, Wire, decode_messages, encode, raw_frame
from penstock.codec.wire import frame as frame_of
from penstock.crypto import SigningKey
from penstock.crypto.tls import client_context, new_certificate, peer_fingerprint, server_context
from penstock.errors import FailedError, PenstockError, RefusedError
from penstock.model import NetworkName
from penstock.model.limits import Limits

CLIENT, BROKER, MALLORY = (SigningKey(bytes([n]) * 32) for n in (1, 2, 3))
NETWORK = NetworkName(SigningKey(bytes([9]) * 32).principal, "UK Police Network")
LIMITS = Limits(link_goodbye=500)
HOST = "127.0.0.1"
LONG = 20.0

_counter = itertools.count(1)


def fresh(size: int) -> bytes:
    return next(_counter).to_bytes(size, "big")


def endpoint(
    key: SigningKey, limits: Limits = LIMITS, network: NetworkName = NETWORK, meter: Meter | None = None
) -> Endpoint:
    return Endpoint(key=key, network=network, limits=limits, random=fresh, meter=lambda _peer: meter)


def run(main: Coroutine[object, object, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LONG):
            await main

    asyncio.run(bounded())


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.002)


@dataclass
class Broker:
    """A listener that echoes, and remembers what became of its links."""

    listener: Listener
    served: list[Link] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    reasons: list[object] = field(default_factory=list)

    @property
    def port(self) -> int:
        return self.listener.port

    async def ended(self, code: str) -> None:
        await until(lambda: code in self.codes)


async def echo(link: Link) -> None:
    async for message in link:
        await link.send(encode(message))


async def gather(link: Link, into: list[Wire]) -> None:
    while True:
        into += await link.receive()


async def wait_for_the_end(link: Link) -> None:
    await until(lambda: link.ended)


@asynccontextmanager
async def broker(
    limits: Limits = LIMITS,
    serve: Callable[[Link], Awaitable[None]] = echo,
    meter: Meter | None = None,
) -> AsyncIterator[Broker]:
    served: list[Link] = []

    async def remember(link: Link) -> None:
        served.append(link)
        try:
            await serve(link)
        finally:
            if link.ended is not None:
                found.codes.append(link.ended.code)

    def refused(error: PenstockError) -> None:
        found.codes.append(error.code)
        found.reasons.append(error.fields.get("reason"))

    listener = await listen(endpoint(BROKER, limits, meter=meter), HOST, 0, remember, refused)
    found = Broker(listener, served)
    try:
        yield found
    finally:
        await listener.close()


async def works(at: Broker, key: SigningKey = CLIENT) -> None:
    """Check that an honest client is served."""
    link = await connect(endpoint(key), HOST, at.port, BROKER.principal)
    await link.send(encode("hello"))
    assert await link.receive() == ["hello"]
    await link.close()


@dataclass
class Raw:
    """A client that follows no rules after its handshake."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def frame(self) -> bytes:
        head = await self.reader.readexactly(HEADER_BYTES)
        return await self.reader.readexactly(int.from_bytes(head, "big"))

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def goodbye(self) -> bytes:
        """Return the octets that the broker ends with."""
        found = b""
        with suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            while True:
                found = await self.frame() or found
        return found


@asynccontextmanager
async def raw(at: Broker, *, shake: bool = True) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection(
        HOST, at.port, ssl=client_context(), server_hostname="", limit=1 << 16
    )
    client = Raw(reader, writer)
    try:
        if shake:
            shown = peer_fingerprint(writer.get_extra_info("ssl_object"))
            side = Connecting(Terms(CLIENT, NETWORK, shown), fresh)
            while not side.done:
                if answer := side.receive(await client.frame()):
                    writer.write(raw_frame(answer))
        yield client
    finally:
        writer.transport.abort()


async def refused(code: str, act: Awaitable[object]) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        await act
    assert caught.value.code == code
    return caught.value


def test_messages_go_both_ways_in_order_between_peers_who_know_each_other() -> None:
    async def main() -> None:
        async with broker() as at:
            link = await connect(endpoint(CLIENT), HOST, at.port, BROKER.principal)
            assert link.peer.principal == BROKER.principal
            assert at.served[0].peer.principal == CLIENT.principal
            sent: list[Wire] = [{"number": n, "octets": bytes(n % 300)} for n in range(2_000)]
            for message in sent:
                link.post(encode(message))
            found: list[Wire] = []
            while len(found) < len(sent):
                found += await link.receive()
            assert found == sent
            await link.close()

    run(main())


def test_what_is_posted_together_goes_out_in_one_frame() -> None:
    async def burst(link: Link) -> None:
        for number in range(1_000):
            link.post(encode(number))
        await wait_for_the_end(link)

    async def main() -> None:
        async with broker(serve=burst) as at, raw(at) as client:
            assert decode_messages(await client.frame()) == list(range(1_000))

    run(main())


def test_frames_keep_to_the_limits_whatever_is_posted() -> None:
    limits = replace(LIMITS, frame_messages=10)

    async def burst(link: Link) -> None:
        for number in range(25):
            link.post(encode(number))
        for _ in range(3):
            link.post(encode(bytes(50_000)))
        link.post(encode(bytes(LIMITS.frame_bytes - 20)))
        await wait_for_the_end(link)

    async def main() -> None:
        async with broker(limits, burst) as at, raw(at) as client:
            counts = [len(decode_messages(await client.frame())) for _ in range(6)]
            assert counts == [10, 10, 6, 1, 1, 1]

    run(main())


def test_another_network_and_another_broker() -> None:
    async def main() -> None:
        async with broker() as at:
            elsewhere = NetworkName(MALLORY.principal, "elsewhere")
            await refused("handshake.network", connect(endpoint(CLIENT, network=elsewhere), HOST, at.port))
            await refused("handshake.peer", connect(endpoint(CLIENT), HOST, at.port, MALLORY.principal))
            await refused("handshake.reflection", connect(endpoint(BROKER), HOST, at.port))
            await until(lambda: len(at.reasons) == 3)
            # The broker is told why.
            assert at.reasons == ["handshake.network", "handshake.peer", "handshake.reflection"]
            await works(at)

    run(main())


def test_somebody_in_the_middle_of_tls_is_found_out() -> None:
    async def main() -> None:
        async with broker() as at:

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
        async with broker() as at:
            async with raw(at, shake=False) as client:
                shown = peer_fingerprint(client.writer.get_extra_info("ssl_object"))
                answer = Connecting(Terms(CLIENT, NETWORK, shown), fresh).receive(await client.frame())
                assert answer is not None
                client.write(raw_frame(answer))
                assert b"proof" in await client.frame()
            for _ in range(2):
                async with raw(at, shake=False) as again:
                    await again.frame()
                    again.write(raw_frame(answer))
                    assert await again.goodbye() == encode("handshake.signature")
            assert at.codes.count("handshake.signature") == 2
            await works(at)

    run(main())


def test_frames_that_are_too_large_or_no_handshake_are_refused_before_it() -> None:
    async def main() -> None:
        async with broker() as at:
            for data, code in (
                ((2_000).to_bytes(4, "big"), "frame.limit"),
                (KEEPALIVE + (2_000).to_bytes(4, "big"), "frame.limit"),
                (b"GET / HTTP/1.1\r\n\r\n", "frame.limit"),
                (frame_of([encode("let me in")]), "handshake.malformed"),
            ):
                async with raw(at, shake=False) as client:
                    await client.frame()
                    client.write(data)
                    assert await client.goodbye() == encode(code)
                assert at.codes[-1] == code
            await works(at)

    run(main())


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ((LIMITS.frame_bytes + 1).to_bytes(4, "big"), "frame.limit"),
        (b"\xff\xff\xff\xff", "frame.limit"),
        (raw_frame(b"\xc1"), "wire.malformed"),
        (raw_frame(b"\x01"), "wire.malformed"),
        (raw_frame(b"\x91" * 40), "wire.malformed"),
        (raw_frame(b"\x91" * 40 + b"\x01"), "wire.limit"),
        (raw_frame(b"\xdc\xff\xff" + b"\x01" * 65_535), "wire.malformed"),
        (raw_frame(b"\xa3no!"), "link.goodbye"),
        (raw_frame(b"\xa2\xff\xff"), "wire.malformed"),
        (KEEPALIVE * 1_000, "link.flood"),
    ],
)
def test_a_peer_that_breaks_the_rules_is_cut_and_told_why(data: bytes, code: str) -> None:
    async def main() -> None:
        async with broker() as at, raw(at) as client:
            client.write(data)
            assert await client.goodbye() == encode(code)
            await at.ended(code)
            await works(at)

    run(main())


def test_what_came_before_a_bad_frame_is_taken() -> None:
    async def main() -> None:
        found: list[Wire] = []

        async def collect(link: Link) -> None:
            await gather(link, found)

        async with broker(serve=collect) as at, raw(at) as client:
            client.write(frame_of([encode(1), encode(2)]) + raw_frame(b"\xc1"))
            await at.ended("wire.malformed")
            assert found == [1, 2]

    run(main())


@pytest.mark.parametrize(
    ("last", "code"), [(b"", "link.lost"), (b"\x00", "frame.truncated"), (raw_frame(b"cut")[:-1], "frame.truncated")]
)
def test_an_end_without_a_goodbye_is_no_end_in_peace(last: bytes, code: str) -> None:
    async def main() -> None:
        for abort in (False, True):
            async with broker() as at, raw(at) as client:
                client.write(frame_of([encode("heard")]) + last)
                assert decode_messages(await client.frame()) == ["heard"]
                if abort:
                    client.writer.transport.abort()
                else:
                    client.writer.close()
                await at.ended(code)

    run(main())


def test_a_peer_that_does_not_read_is_cut_and_others_are_served() -> None:
    limits = replace(LIMITS, link_outbox=1 << 20)
    message = encode(bytes(10_000))

    async def main() -> None:
        async with broker(limits, wait_for_the_end) as at, raw(at):
            other = await connect(endpoint(MALLORY), HOST, at.port)
            await until(lambda: len(at.served) == 2)
            slow, quick = at.served
            posted = heard = 0
            while slow.ended is None:
                with suppress(RefusedError):
                    slow.post(message)
                quick.post(encode(posted))
                posted += 1
                if posted % 16 == 0:
                    heard += len(await other.receive())
            await refused("link.slow-reader", slow.send(message))
            await refused("link.slow-reader", slow.receive())
            # What the system holds is not ours to bound; what waits here was.
            assert posted * 10_000 < 32 << 20
            while heard < posted:
                heard += len(await other.receive())
            await other.close()

    run(main())


def test_a_peer_that_reads_nothing_for_too_long_is_cut_even_when_little_waits() -> None:
    limits = replace(LIMITS, link_stall=100, link_outbox=64 << 20)

    async def fill(link: Link) -> None:
        while True:
            await link.send(encode(bytes(100_000)))

    async def main() -> None:
        async with broker(limits, fill) as at, raw(at):
            await at.ended("link.slow-reader")

    run(main())


def test_who_sends_waits_for_who_takes() -> None:
    limits = replace(LIMITS, link_inbox=64 << 10)
    go = asyncio.Event()

    async def main() -> None:
        taken: list[Wire] = []

        async def later(link: Link) -> None:
            await go.wait()
            await gather(link, taken)

        async with broker(limits, later) as at:
            link = await connect(endpoint(CLIENT), HOST, at.port)
            sent = 0
            with suppress(TimeoutError):
                while sent < 5_000:
                    await asyncio.wait_for(link.send(encode([sent, bytes(10_000)])), 0.1)
                    sent += 1
            assert sent < 5_000
            (held,) = at.served
            assert held._channel._inbox_size < 1 << 20
            assert link.ended is None
            go.set()
            await link.close()
            await at.ended("link.closed")
            assert [message[0] for message in taken if isinstance(message, list)] == list(range(sent))

    run(main())


def test_everything_that_was_posted_arrives_before_the_goodbye() -> None:
    async def main() -> None:
        async def give(link: Link) -> None:
            for number in range(5_000):
                link.post(encode([number, bytes(500)]))

        async with broker(serve=give) as at:
            link = await connect(endpoint(CLIENT), HOST, at.port)
            found = [message[0] async for message in link if isinstance(message, list)]
            assert found == list(range(5_000))
            await refused("link.closed", link.send(encode(1)))
            await link.close()

    run(main())


def test_closing_takes_no_longer_than_a_goodbye_may() -> None:
    limits = replace(LIMITS, link_goodbye=100)

    async def main() -> None:
        async with broker(limits, wait_for_the_end) as at, raw(at):
            (link,) = at.served
            while link._channel._stalled is None:
                link.post(encode(bytes(100_000)))
            began = asyncio.get_running_loop().time()
            await link.close()
            assert asyncio.get_running_loop().time() - began < 2

    run(main())


def test_who_says_nothing_does_not_keep_others_out() -> None:
    limits = replace(LIMITS, handshake_pending=4, handshake_time=10_000)

    async def main() -> None:
        async with broker(limits) as at:
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
    limits = replace(LIMITS, handshake_time=150)

    async def main() -> None:
        async with broker(limits) as at:
            context = client_context() if with_tls else None
            name = "" if with_tls else None
            reader, writer = await asyncio.open_connection(HOST, at.port, ssl=context, server_hostname=name)
            # A drop now and then is no sign of life: the head of a frame, or of a TLS greeting.
            for octet in b"\x00\x00\x00\xff(((((" if with_tls else b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc":
                writer.write(bytes((octet,)))
                await asyncio.sleep(0.02)
            await until(lambda: at.codes)
            assert at.codes == ["handshake.timeout"]
            assert reader is not None
            writer.transport.abort()
            await works(at)

    run(main())


def test_a_server_that_says_nothing_is_not_waited_for() -> None:
    limits = replace(LIMITS, handshake_time=100)

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
        async with broker() as at:
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


def test_nobody_there() -> None:
    async def main() -> None:
        async with broker() as at:
            port = at.port
            error = await refused("link.address", listen(endpoint(CLIENT), HOST, port, echo))
            assert isinstance(error, FailedError)
        await refused("link.unreachable", connect(endpoint(CLIENT), HOST, port))

    run(main())


def test_there_are_only_so_many_links() -> None:
    limits = replace(LIMITS, links=1)

    async def main() -> None:
        async with broker(limits) as at:
            first = await connect(endpoint(CLIENT), HOST, at.port)
            error = await refused("link.refused", connect(endpoint(MALLORY), HOST, at.port))
            assert error.fields["reason"] == "link.busy"
            await first.close()
            await until(lambda: not at.listener.links)
            await works(at)

    run(main())


def test_a_quiet_link_lives_and_a_dead_one_does_not() -> None:
    limits = replace(LIMITS, link_keepalive=40, link_idle=200)

    async def main() -> None:
        async with broker(limits) as at, raw(at) as dead:
            quiet = await connect(endpoint(CLIENT, limits), HOST, at.port)
            await at.ended("link.idle")
            assert encode("link.idle") in (await dead.goodbye(), b"")
            await quiet.send(encode("still here"))
            assert await quiet.receive() == ["still here"]
            await quiet.close()

    run(main())


def test_a_peer_that_floods_is_slowed_down_and_others_are_not() -> None:
    limits = replace(LIMITS, link_inbox=4_096)

    async def main() -> None:
        count: dict[bytes, int] = {}

        async def tally(link: Link) -> None:
            async for _ in link:
                count[link.peer.key.raw] = count.get(link.peer.key.raw, 0) + 1

        rates = {CLIENT.principal: Rate(1_000, 200)}
        found = Endpoint(
            key=BROKER, network=NETWORK, limits=limits, random=fresh, meter=lambda peer: rates.get(peer.principal)
        )
        listener = await listen(found, HOST, 0, tally)
        hostile = await connect(endpoint(CLIENT), HOST, listener.port)
        honest = await connect(endpoint(MALLORY), HOST, listener.port)
        began = asyncio.get_running_loop().time()

        async def push() -> None:
            while True:
                await hostile.send(encode(bytes(100)))

        pushing = asyncio.create_task(push())
        for number in range(2_000):
            await honest.send(encode(number))
        await until(lambda: count.get(MALLORY.public.raw) == 2_000)
        await asyncio.sleep(0.2)
        taken = asyncio.get_running_loop().time() - began
        pushing.cancel()
        # One batch may be larger than the burst: as much as waits, and then it is paid for.
        assert count[CLIENT.public.raw] < 200 + 1_000 * taken + 2 * (256 << 10) // 100
        await asyncio.gather(pushing, return_exceptions=True)
        hostile._channel.abort()
        await honest.close()
        await listener.close()

    run(main())


def test_a_meter_may_cut() -> None:
    class Strict:
        def charge(self, messages: int, octets: int, now: float) -> float:
            if messages > 2:
                raise RefusedError("link.flood", "too much")
            return 0

    async def main() -> None:
        async with broker(meter=Strict()) as at:
            link = await connect(endpoint(CLIENT), HOST, at.port)
            for number in range(3):
                link.post(encode(number))
            error = await refused("link.refused", drain(link))
            assert error.fields["reason"] == "link.flood"
            await works(at)

    async def drain(link: Link) -> None:
        while True:
            await link.receive()

    run(main())


def test_the_rate_is_that_of_all_links_together_and_saves_up_no_more_than_a_burst() -> None:
    rate = Rate(10, 5)
    assert rate.charge(5, 0, 0.0) == 0
    assert rate.charge(1, 0, 0.0) == pytest.approx(0.1)
    assert rate.charge(0, 0, 100.0) == 0
    assert rate.charge(10, 0, 100.0) == pytest.approx(0.5)


def test_an_error_of_the_service_is_told_as_its_code() -> None:
    async def deny(link: Link) -> None:
        raise RefusedError("guard.denied", "a secret reason")

    async def main() -> None:
        async with broker(serve=deny) as at:
            link = await connect(endpoint(CLIENT), HOST, at.port)
            error = await refused("link.refused", link.receive())
            assert error.fields["reason"] == "guard.denied"
            assert "secret" not in str(error)
            await at.ended("guard.denied")

    run(main())


def test_an_error_does_not_grow_by_being_raised() -> None:
    async def main() -> None:
        async with broker() as at:
            link = await connect(endpoint(CLIENT), HOST, at.port)
            await link.close()
            depths = []
            for _ in range(3):
                error = await refused("link.closed", link.send(encode(1)))
                depths.append(len(traceback.extract_tb(error.__traceback__)))
            assert len(set(depths)) == 1

    run(main())


def test_a_knock_at_a_closing_door_leaves_nothing_open() -> None:
    async def main() -> None:
        async with broker() as at:
            opened = [await asyncio.open_connection(HOST, at.port) for _ in range(3)]
            await until(lambda: at.listener._greeting)
        for _, writer in opened:
            writer.transport.abort()

    run(main())
    gc.collect()


def test_closing_a_listener_ends_everything() -> None:
    async def main() -> None:
        async with broker() as at, raw(at, shake=False):
            link = await connect(endpoint(CLIENT), HOST, at.port)
            await until(lambda: at.listener._greeting)
            await at.listener.close()
            assert [message async for message in link] == []
            assert at.listener.links == []
            await link.close()

    run(main())


def test_secrets_do_not_show() -> None:
    async def main() -> None:
        async with broker() as at:
            link = await connect(endpoint(CLIENT), HOST, at.port)
            for shown in (repr(link), repr(endpoint(CLIENT)), repr(at.listener)):
                assert CLIENT.seed.hex() not in shown
                assert repr(CLIENT.seed)[2:-1] not in shown
            assert repr(link) == f"Link({BROKER.principal.short}, open)"
            await link.close()

    run(main())


def test_a_reader_of_frames_and_a_link_agree() -> None:
    # What a link sends can be read by anybody who knows the format, octet by octet.
    async def main() -> None:
        async with broker() as at, raw(at) as client:
            client.write(frame_of([encode("x"), Encoded(b"\x01")]))
            reader = FrameReader()
            found: list[Wire] = []
            while len(found) < 2:
                for view in reader.feed(await client.reader.read(1)):
                    found += decode_messages(view)
            assert found == ["x", 1]

    run(main())

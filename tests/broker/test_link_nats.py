"""Links across NATS servers that nobody has to trust.

Client and broker are on two servers; a bridge between them carries everything, and does to it what a hostile server
could do: it reads, changes, drops, repeats, swaps, adds, and puts in what belongs elsewhere.
"""

import asyncio
import hashlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from tests.broker.link_kit import (
    BROKER,
    CLIENT,
    DOOR,
    LIMITS,
    MALLORY,
    NETWORK,
    Broker,
    Nats,
    broker,
    endpoint,
    fresh,
    gather,
    nats_terms,
    raw,
    refused,
    run,
    until,
    works,
)

from penstock.broker import nats_link
from penstock.broker.handshake import LABEL, Connecting
from penstock.broker.link import Link
from penstock.broker.nats_link import KNOCK, connect_nats, listen_nats
from penstock.broker.nats_transport import NatsTransport, new_inbox
from penstock.codec.sexp import canonical, parse_canonical
from penstock.codec.wire import HEADER_BYTES, Wire, encode, raw_frame
from penstock.codec.wire import frame as frame_of
from penstock.crypto.session import Exchange
from penstock.errors import PenstockError
from penstock.model import NetworkName
from penstock.testing.nats import NatsServer

PLAIN_HEAD = 2
DATA = 1
Meddle: TypeAlias = Callable[[bytes], list[bytes]]


@pytest.fixture(scope="module")
def far() -> Iterator[NatsServer]:
    """Start the server that brokers are on."""
    with NatsServer() as started:
        yield started


def honest(data: bytes) -> list[bytes]:
    return [data]


@dataclass
class Bridge:
    """What lies between two servers. `forth` and `back` say what becomes of a message."""

    forth: Meddle = honest
    back: Meddle = honest
    knocks: int = 1
    stray: bytes = b""
    carried: list[bytes] = field(default_factory=list)

    async def carry(self, message: Msg, to: Client, meddle: Meddle) -> None:
        self.carried.append(message.data)
        for data in [KNOCK] * self.knocks if message.data == KNOCK else meddle(message.data):
            await to.publish(message.subject, data, reply=message.reply)
            if self.stray and b"challenge" in data:
                await to.publish(message.subject, self.stray, reply=new_inbox(DOOR, fresh))


@asynccontextmanager
async def between(near: NatsServer, far: NatsServer) -> AsyncIterator[Bridge]:
    bridge = Bridge()
    here, there = [await nats.connect(server.url, no_echo=True) for server in (near, far)]

    async def forth(message: Msg) -> None:
        await bridge.carry(message, there, bridge.forth)

    async def back(message: Msg) -> None:
        await bridge.carry(message, here, bridge.back)

    await here.subscribe("penstock.>", cb=forth)
    await there.subscribe("penstock.>", cb=back)
    await asyncio.gather(here.flush(), there.flush())
    try:
        yield bridge
    finally:
        await asyncio.gather(here.close(), there.close())


class Nth:
    """Does something to the record of data with a number, and to the one after it."""

    def __init__(self, number: int, act: Callable[[bytes, bytes | None], list[bytes]]) -> None:
        self._left = number
        self._act = act
        self._held: bytes | None = None

    def __call__(self, data: bytes) -> list[bytes]:
        if data[0] != DATA:
            return [data]
        self._left -= 1
        if self._left == 0:
            self._held = data
            return self._act(data, None)
        if self._left == -1 and self._held is not None:
            return self._act(self._held, data)
        return [data]


def flipped(data: bytes, then: bytes | None) -> list[bytes]:
    return [then] if then else [data[:-1] + bytes((data[-1] ^ 1,))]


def dropped(_data: bytes, then: bytes | None) -> list[bytes]:
    return [then] if then else []


def repeated(data: bytes, then: bytes | None) -> list[bytes]:
    return [then] if then else [data, data]


def later(data: bytes, then: bytes | None) -> list[bytes]:
    return [data, then] if then else [data]


def swapped(data: bytes, then: bytes | None) -> list[bytes]:
    return [then, data] if then else []


def renumbered(data: bytes, then: bytes | None) -> list[bytes]:
    """Give the one after it the number of the one that was dropped."""
    return [data[:9] + then[9:], then] if then else []


async def granted(link: Link) -> None:
    """Wait until each message goes out by itself."""
    transport = link._channel._transport
    assert isinstance(transport, NatsTransport)
    await until(lambda: transport._allowed)


@pytest.mark.parametrize("direction", ["forth", "back"])
@pytest.mark.parametrize("act", [flipped, dropped, repeated, swapped, renumbered])
def test_what_was_changed_on_its_way_ends_the_link(
    server: NatsServer, far: NatsServer, direction: str, act: Callable[[bytes, bytes | None], list[bytes]]
) -> None:
    async def main() -> None:
        found: list[Wire] = []
        ends: list[Link] = []

        async def speak(link: Link) -> None:
            with suppress(PenstockError):
                await granted(link)
                for number in range(6):
                    link.post(encode(number))
                    await asyncio.sleep(0.01)
                await gather(link, [])

        async def hear(link: Link) -> None:
            ends.append(link)
            await gather(link, found)

        async with between(server, far) as bridge, broker(Nats(far.url), serve=speak if direction == "back" else hear):
            setattr(bridge, direction, Nth(3, act))
            link = await connect_nats(endpoint(CLIENT), server.url, BROKER.principal)
            with suppress(PenstockError):
                await asyncio.gather(speak(link)) if direction == "forth" else await hear(link)
            (hearing,) = ends
            await until(lambda: hearing.ended)
            assert hearing.ended is not None
            assert hearing.ended.code == "session.tampered"
            # Something of what came before may be lost with the link; nothing is there that came after.
            assert found == list(range(len(found)))
            assert len(found) <= 3
            await link.close()

    run(main())


def test_an_honest_bridge_disturbs_nobody_and_sees_nothing(server: NatsServer, far: NatsServer) -> None:
    async def main() -> None:
        async with between(server, far) as bridge, broker(Nats(far.url)) as at:
            link = await connect_nats(endpoint(CLIENT), server.url, BROKER.principal)
            for number in range(20):
                await link.send(encode([number, "the plans of the station"]))
                assert await link.receive() == [[number, "the plans of the station"]]
            await link.close()
            await at.ended("link.closed")
            assert len(bridge.carried) > 40
            everything = b"".join(bridge.carried)
            for secret in (b"plans", b"Police", NETWORK.owner.digest, b"link.closed"):
                assert secret not in everything
            assert NETWORK.owner.digest.hex() not in DOOR

    run(main())


def test_junk_beside_records_is_no_harm(server: NatsServer, far: NatsServer) -> None:
    seen: list[bytes] = []

    def note(data: bytes) -> list[bytes]:
        seen.append(data)
        return [data]

    def litter(data: bytes) -> list[bytes]:
        """Put around a record whatever anybody could send, and records of the other direction."""
        noise = hashlib.sha256(data).digest()
        number = data[1:9]
        junk = [b"", b"\0", b"\0\0", b"\1", noise, data[:9] + noise, b"\3" + number + bytes(16), b"\2" + b"\xff" * 40]
        return [*junk, *seen[-1:], data[:-1], data + b"x", data, *junk]

    async def main() -> None:
        async with between(server, far) as bridge, broker(Nats(far.url)):
            link = await connect_nats(endpoint(CLIENT), server.url, BROKER.principal)
            for bridge.forth, bridge.back in ((litter, note), (note, litter)):
                seen.clear()
                for number in range(10):
                    await link.send(encode(number))
                    assert await link.receive() == [number]
            bridge.forth = bridge.back = honest
            await link.close()

    run(main())


def test_records_of_one_link_are_junk_on_another(server: NatsServer, far: NatsServer) -> None:
    async def main() -> None:
        kept: list[bytes] = []

        def keep(data: bytes) -> list[bytes]:
            if data[0]:
                kept.append(data)
            return [data]

        def splice(data: bytes) -> list[bytes]:
            # The very record with this number and kind, of the same client to the same broker, an hour ago.
            matching = [old for old in kept if old[:9] == data[:9]]
            return [*matching, data] if data[0] else [data]

        async with between(server, far) as bridge, broker(Nats(far.url)) as at:
            for meddle in (keep, splice):
                bridge.forth = meddle
                link = await connect_nats(endpoint(CLIENT), server.url, BROKER.principal)
                for number in range(3):
                    await link.send(encode(number))
                    assert await link.receive() == [number]
                await link.close()
            assert len(kept) >= 4
            await until(lambda: at.codes == ["link.closed"] * 2)
            # And in place of a record: it is missing then.
            link = await connect_nats(endpoint(CLIENT), server.url, BROKER.principal)
            await granted(link)
            bridge.forth = Nth(2, lambda data, then: [then] if then else splice(data)[:1])
            for number in range(3):
                link.post(encode(number))
                await asyncio.sleep(0.01)
            await at.ended("session.tampered")
            error = await refused("link.refused", drain(link))
            assert error.fields["reason"] == "session.tampered"

    run(main())


async def drain(link: Link) -> None:
    await gather(link, [])


def parts(record: bytes) -> tuple[bytes, ...]:
    """Take a message of the handshake apart."""
    value = parse_canonical(record[PLAIN_HEAD + HEADER_BYTES :])
    assert isinstance(value, tuple)
    return tuple(part for part in value if isinstance(part, bytes))


def test_somebody_who_runs_two_handshakes_is_found_out(server: NatsServer, far: NatsServer) -> None:
    # She puts her own keys into the handshake, and knows the name of the network.
    own = Exchange(fresh).public

    def with_own(record: bytes) -> list[bytes]:
        if b"challenge" not in record and b"response" not in record:
            return [record]
        label, word, key, _number, _mark, *signature = parts(record)
        mark = hashlib.sha256(canonical((LABEL, own, str(NETWORK).encode()))).digest()
        return [record[:PLAIN_HEAD] + raw_frame(canonical((label, word, key, own, mark, *signature)))]

    async def main() -> None:
        async with between(server, far) as bridge, broker(Nats(far.url)) as at:
            for forth, back in ((with_own, with_own), (with_own, honest), (honest, with_own)):
                at.codes.clear()
                bridge.forth, bridge.back = forth, back
                connecting = connect_nats(endpoint(CLIENT), server.url, BROKER.principal)
                error = await refused("link.refused", connecting)
                assert error.fields["reason"] == "handshake.signature"
                assert at.codes == ["handshake.signature"]
            assert at.served == []

    run(main())


def test_what_is_added_to_the_handshake_is_not_taken_for_the_peers(server: NatsServer, far: NatsServer) -> None:
    forged = frame_of([encode("give me everything")])

    def add(word: bytes, extra: bytes) -> Meddle:
        return lambda data: [data + extra] if data[0] == 0 and word in data else [data]

    async def main() -> None:
        limits = replace(LIMITS, handshake_time=1_000)
        async with between(server, far) as bridge, broker(Nats(far.url), limits) as at:
            for extra in (forged, forged[:-1], b"\0"):
                bridge.forth, bridge.back = add(b"response", extra), honest
                error = await refused("link.refused", connect_nats(endpoint(CLIENT), server.url, BROKER.principal))
                assert error.fields["reason"] == "session.tampered"
                bridge.forth, bridge.back = honest, add(b"proof", extra)
                await refused("session.tampered", connect_nats(endpoint(CLIENT), server.url, BROKER.principal))
            # As records of their own: before the session they are too much, after it they are junk.
            bridge.back = honest
            bridge.forth = lambda data: [data, b"\0\1" + forged] if b"response" in data else [data]
            with suppress(PenstockError):
                link = await connect_nats(endpoint(CLIENT, limits), server.url, BROKER.principal)
                await link.send(encode("hello"))
                assert await link.receive() == ["hello"]
                await link.close()
            assert all("give" not in str(link._channel._inbox) for link in at.served)

    run(main())


def test_a_handshake_that_was_overheard_is_no_use(server: NatsServer) -> None:
    async def main() -> None:
        async with broker(Nats(server.url)) as at:
            async with raw(at, shake=False) as client:
                exchange = Exchange(fresh)
                side = Connecting(nats_terms(CLIENT), lambda _: exchange.public)
                answer = side.receive(await client.frame())
                assert answer is not None
                client.write(raw_frame(answer))
                assert b"proof" in await client.frame()
            for _ in range(2):
                async with raw(at, shake=False) as again:
                    await again.frame()
                    again.write(raw_frame(answer))
                    assert await again.goodbye() == encode("handshake.signature")
            assert at.codes.count("handshake.signature") == 2
            assert at.served == []
            await works(at)

    run(main())


def test_who_has_no_key_of_the_session_is_not_served(server: NatsServer) -> None:
    limits = replace(LIMITS, handshake_time=300)

    async def main() -> None:
        async with broker(Nats(server.url), limits) as at:
            async with raw(at, shake=False) as client:
                exchange = Exchange(fresh)
                await client.introduce(Connecting(nats_terms(CLIENT), lambda _: exchange.public))
                client.write(frame_of([encode("let me in")]))
                await at.ended("handshake.timeout")
            assert at.served == []
            await works(at)

    run(main())


def test_a_key_that_leaves_no_secret_is_refused(server: NatsServer) -> None:
    async def main() -> None:
        async with broker(Nats(server.url)) as at, raw(at, shake=False) as client:
            side = Connecting(nats_terms(CLIENT), lambda _: bytes(32))
            client.write(raw_frame(side.receive(await client.frame()) or b""))
            assert await client.goodbye() == encode("session.weak-key")
            assert at.served == []

    run(main())


def test_a_knock_that_is_repeated_gets_one_link(server: NatsServer, far: NatsServer) -> None:
    limits = replace(LIMITS, handshake_time=300)

    async def main() -> None:
        async with between(server, far) as bridge, broker(Nats(far.url), limits) as at:
            bridge.knocks = 3
            # What another handshake ends with is not for this one.
            bridge.stray = b"\0\1" + raw_frame(encode("handshake.timeout"))
            link = await connect_nats(endpoint(CLIENT), server.url, BROKER.principal)
            await link.send(encode("hello"))
            assert await link.receive() == ["hello"]
            assert len(at.served) == 1
            await link.close()

    run(main())


def test_somebody_else_at_the_door(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        served: list[Link] = []

        async def serve(link: Link) -> None:
            served.append(link)

        monkeypatch.setattr(nats_link, "door_of", lambda *_: DOOR)
        fake = await listen_nats(endpoint(MALLORY), server.url, serve)
        await refused("handshake.peer", connect_nats(endpoint(CLIENT), server.url, BROKER.principal))
        assert served == []
        await fake.close()

    run(main())


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
    limits = replace(LIMITS, handshake_time=100)

    async def main() -> None:
        silent = await nats.connect(server.url)
        heard: list[Msg] = []

        async def hear(message: Msg) -> None:
            heard.append(message)

        await silent.subscribe(DOOR, cb=hear)
        await silent.flush()
        await refused("handshake.timeout", connect_nats(endpoint(CLIENT, limits), server.url, BROKER.principal))
        # A knock may be lost, and is repeated.
        assert len(heard) > 2
        await silent.close()

    run(main())


def test_a_flood_costs_little_and_harms_nobody(server: NatsServer) -> None:
    limits = replace(LIMITS, handshake_pending=8, handshake_time=300)

    async def main() -> None:
        async with broker(Nats(server.url), limits) as at:
            link = await at.link()
            await until(lambda: at.served)
            inbox = transports(at)[0]._inbox
            hostile = await nats.connect(server.url)
            largest = 0
            for number in range(3_000):
                # The subject of a link is no secret to a server.
                await hostile.publish(inbox, bytes((1,)) + number.to_bytes(8, "big") + bytes(200))
                reply = new_inbox(DOOR, fresh) if number % 10 == 0 else ("", "$JS.API.INFO", DOOR)[number % 3]
                await hostile.publish(DOOR, (KNOCK, b"", bytes(2_000))[number % 10 and number % 3], reply=reply)
                if number % 100 == 0:
                    await hostile.flush()
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
            await hostile.flush()
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
    program = "import sys, penstock.broker.link; sys.exit('nats' in sys.modules)"
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

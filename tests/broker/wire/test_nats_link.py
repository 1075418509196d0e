"""Links across NATS servers that nobody has to trust.

Client and broker are on two servers; a bridge between them carries everything, and does to it what a hostile server
could do: it reads, changes, drops, repeats, swaps, adds, and puts in what belongs elsewhere.
"""

import asyncio
import hashlib
import importlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from tests.broker.link_kit import (
    BROKER,
    CLIENT,
    DOOR,
    LIMITS,
    MALLORY,
    NETWORK,
    Nats,
    broker,
    check_useless,
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
from tests.spoiled import flipped

from penstock.broker.wire import nats_link
from penstock.broker.wire.handshake import LABEL, Connecting
from penstock.broker.wire.link import Link
from penstock.broker.wire.nats_link import KNOCK, NatsTransport, connect_nats, listen_nats, new_inbox
from penstock.codec.sexp import canonical, parse_canonical
from penstock.codec.wire import HEADER_BYTES, Wire, encode, raw_frame
from penstock.codec.wire import frame as frame_of
from penstock.crypto.session import KeyExchange
from penstock.errors import FailedError, PenstockError
from penstock.fabric.nats_api import settle
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
    await asyncio.gather(settle(here, 10), settle(there, 10))
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


def bent(data: bytes, then: bytes | None) -> list[bytes]:
    return [then] if then else [flipped(data)]


def dropped(_data: bytes, then: bytes | None) -> list[bytes]:
    return [then] if then else []


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
@pytest.mark.parametrize("act", [bent, dropped, swapped, renumbered])
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


def test_messages_that_come_twice_end_no_session(server: NatsServer, far: NatsServer) -> None:
    async def main() -> None:
        async with between(server, far) as bridge, broker(Nats(far.url)) as at:
            link = await connect_nats(endpoint(CLIENT), server.url, BROKER.principal)
            bridge.forth = bridge.back = lambda data: [data, data]
            for number in range(50):
                await link.send(encode(number))
                assert await link.receive() == [number]
            # All that was ever sent, once more.
            (transport,) = getattr(at.listener, "_transports")  # noqa: B009  # only listeners across NATS have them
            stranger = await nats.connect(far.url)
            records = list(bridge.carried)
            before = transport.dropped
            for record in records:
                await stranger.publish(transport._inbox, record)
            await settle(stranger, 10)
            await until(lambda: transport.dropped >= before + len(records))
            await link.send(encode("still here"))
            assert await link.receive() == ["still here"]
            assert at.codes == []
            await link.close()
            await stranger.close()

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
    own = KeyExchange(fresh).public

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
        limits = replace(LIMITS, handshake_time=3_000)
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
                exchange = KeyExchange(fresh)
                side = Connecting(nats_terms(CLIENT), lambda _: exchange.public)
                answer = side.receive(await client.frame())
                assert answer is not None
                client.write(raw_frame(answer))
                assert b"proof" in await client.frame()
            await check_useless(at, answer)
            assert at.served == []
            await works(at)

    run(main())


def test_who_has_no_key_of_the_session_is_not_served(server: NatsServer) -> None:
    limits = replace(LIMITS, handshake_time=3_000)

    async def main() -> None:
        async with broker(Nats(server.url), limits) as at:
            async with raw(at, shake=False) as client:
                exchange = KeyExchange(fresh)
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
    limits = replace(LIMITS, handshake_time=3_000)

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


@pytest.mark.parametrize("fails", [False, True])
def test_a_link_that_cannot_unsubscribe_ends_with_its_connection(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    async def main() -> None:
        asked = asyncio.Event()

        async def unsubscribe(_self: Subscription) -> None:
            asked.set()
            if fails:
                raise nats.errors.BadSubscriptionError
            await asyncio.Event().wait()

        async with broker(Nats(server.url)) as at:
            link = await at.link()
            transport = link._channel._transport
            assert isinstance(transport, NatsTransport)
            with monkeypatch.context() as patched:
                patched.setattr(Subscription, "unsubscribe", unsubscribe)
                link._channel.abort()
                await asked.wait()
                await transport.over()
            assert transport._client.is_closed
            assert link.ended is not None

    run(main())


def test_without_nats_py_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nats.aio.client", None)
    monkeypatch.delitem(sys.modules, nats_link.__name__)
    with pytest.raises(FailedError) as found:
        importlib.import_module(nats_link.__name__)
    assert found.value.code == "fabric.not-installed"

"""Brokers that echo over real TLS connections or a real NATS server, and clients that keep no rules."""

import asyncio
import hashlib
import itertools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import nats
import pytest

from penstock.broker.limits import BrokerLimits
from penstock.broker.wire.handshake import Connecting, HandshakeTerms
from penstock.broker.wire.link import Endpoint, Link, Listener, Refused, Serve, connect, listen
from penstock.broker.wire.nats_link import (
    KNOCK,
    NatsListener,
    NatsTransport,
    _terms,
    connect_nats,
    door_of,
    listen_nats,
    new_inbox,
)
from penstock.codec.wire import HEADER_BYTES, Wire, encode, raw_frame
from penstock.crypto import Signer, SigningKey
from penstock.crypto.session import KeyExchange
from penstock.crypto.tls import client_context, peer_fingerprint
from penstock.errors import PenstockError
from penstock.fabric.nats_api import shut
from penstock.model import NetworkName, Principal

CLIENT, BROKER, MALLORY = (SigningKey(bytes([n]) * 32) for n in (1, 2, 3))
NETWORK = NetworkName(SigningKey(bytes([9]) * 32).principal, "UK Police Network")
LIMITS = BrokerLimits(link_goodbye=500)
HOST = "127.0.0.1"
DOOR = door_of(NETWORK, BROKER.principal)
LONG = 60.0

_counter = itertools.count(1)


def fresh(size: int) -> bytes:
    # Not the number itself: some bits of a private key do not count.
    return hashlib.sha256(b"%d" % next(_counter)).digest()[:size]


def endpoint(key: Signer, limits: BrokerLimits = LIMITS, network: NetworkName = NETWORK) -> Endpoint:
    return Endpoint(key=key, network=network, limits=limits, random=fresh)


def nats_terms(key: SigningKey) -> HandshakeTerms:
    """Return what one side brings across NATS."""
    return _terms(endpoint(key), DOOR)


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

    way: "Way"
    listener: Listener | NatsListener
    served: list[Link] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    reasons: list[object] = field(default_factory=list)

    @property
    def port(self) -> int:
        assert isinstance(self.listener, Listener)
        return self.listener.port

    async def ended(self, code: str) -> None:
        await until(lambda: code in self.codes)

    async def link(self, key: Signer = CLIENT, limits: BrokerLimits = LIMITS) -> Link:
        """Connect as somebody who keeps to the rules."""
        return await self.way.connect(self, endpoint(key, limits))


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
    way: "Way",
    limits: BrokerLimits = LIMITS,
    serve: Callable[[Link], Awaitable[None]] = echo,
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

    listener = await way.listen(endpoint(BROKER, limits), remember, refused)
    found = Broker(way, listener, served)
    try:
        yield found
    finally:
        await listener.close()


async def works(at: Broker, key: SigningKey = CLIENT) -> None:
    """Check that an honest client is served."""
    link = await at.link(key)
    await link.send(encode("hello"))
    assert await link.receive() == ["hello"]
    await link.close()


@dataclass
class Raw:
    """A client that follows no rules after its handshake."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def frame(self) -> bytes:
        """Return the next frame; the empty ones only say that the broker is there, also while hands are shaken."""
        while not (size := int.from_bytes(await self.reader.readexactly(HEADER_BYTES), "big")):
            pass
        return await self.reader.readexactly(size)

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def introduce(self, side: Connecting) -> None:
        while not side.done:
            if answer := side.receive(await self.frame()):
                self.write(raw_frame(answer))

    async def goodbye(self) -> bytes:
        """Return the bytes that the broker ends with."""
        found = b""
        with suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            while True:
                found = await self.frame()
        return found


class Way(Protocol):
    """How links are made."""

    async def listen(self, own: Endpoint, serve: Serve, refused: Refused) -> Listener | NatsListener: ...

    async def connect(self, at: Broker, own: Endpoint, expected: Principal = BROKER.principal) -> Link: ...

    async def open(self, at: Broker) -> tuple[Raw, Callable[[], Awaitable[None]]]:
        """Return a client without a handshake, and what does that."""
        ...


class Tls:
    """Over TLS."""

    async def listen(self, own: Endpoint, serve: Serve, refused: Refused = lambda _: None) -> Listener:
        return await listen(own, HOST, 0, serve, refused)

    async def connect(self, at: Broker, own: Endpoint, expected: Principal = BROKER.principal) -> Link:
        return await connect(own, HOST, at.port, expected)

    async def open(self, at: Broker) -> tuple[Raw, Callable[[], Awaitable[None]]]:
        streams = await asyncio.open_connection(HOST, at.port, ssl=client_context(), server_hostname="", limit=1 << 16)
        client = Raw(*streams)

        async def shake() -> None:
            shown = peer_fingerprint(client.writer.get_extra_info("ssl_object"))
            await client.introduce(Connecting(HandshakeTerms(CLIENT, NETWORK, shown), fresh))

        return client, shake


class _Streams(asyncio.StreamReaderProtocol):
    """What asyncio's streams lack to stand in for a channel."""

    clean = True
    ended: PenstockError | None = None


@dataclass
class Nats:
    """Across a NATS server."""

    url: str

    async def listen(self, own: Endpoint, serve: Serve, refused: Refused = lambda _: None) -> NatsListener:
        return await listen_nats(own, self.url, serve, refused)

    async def connect(self, at: Broker, own: Endpoint, expected: Principal = BROKER.principal) -> Link:
        return await connect_nats(own, self.url, expected)

    async def open(self, at: Broker) -> tuple[Raw, Callable[[], Awaitable[None]]]:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=1 << 16)
        streams: Any = _Streams(reader)
        client = await nats.connect(self.url)
        inbox = new_inbox(DOOR, fresh)
        transport = NatsTransport(streams, client, inbox, limits=LIMITS, peer=None)
        await transport.open(partial(shut, client))
        await client.publish(DOOR, KNOCK, reply=inbox)
        opened = Raw(reader, asyncio.StreamWriter(transport, streams, reader, loop))

        async def shake() -> None:
            exchange = KeyExchange(fresh)
            side = Connecting(nats_terms(CLIENT), lambda _: exchange.public)
            await opened.introduce(side)
            transport.begin(*exchange.agree(*side.agreed, connects=True))
            transport.grant()

        return opened, shake


@asynccontextmanager
async def raw(at: Broker, *, shake: bool = True) -> AsyncIterator[Raw]:
    client, introduce = await at.way.open(at)
    try:
        if shake:
            before = len(at.served)
            await introduce()
            await until(lambda: len(at.served) > before)
        yield client
    finally:
        client.writer.transport.abort()
        if isinstance(client.writer.transport, NatsTransport):
            await client.writer.transport.over()


async def check_useless(at: Broker, answer: bytes) -> None:
    """Check that a broker does not take what somebody has answered in another handshake."""
    for _ in range(2):
        async with raw(at, shake=False) as again:
            await again.frame()
            again.write(raw_frame(answer))
            assert await again.goodbye() == encode("handshake.signature")
    assert at.codes.count("handshake.signature") == 2


async def refused(code: str, act: Awaitable[object]) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        await act
    assert caught.value.code == code
    return caught.value

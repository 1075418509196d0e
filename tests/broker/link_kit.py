"""Brokers that echo over real TLS connections, and clients that keep no rules."""

import asyncio
import itertools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from penstock.broker.handshake import Connecting, Terms
from penstock.broker.link import Endpoint, Link, Listener, Meter, connect, listen
from penstock.codec.wire import HEADER_BYTES, Wire, encode, raw_frame
from penstock.crypto import SigningKey
from penstock.crypto.tls import client_context, peer_fingerprint
from penstock.errors import PenstockError
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

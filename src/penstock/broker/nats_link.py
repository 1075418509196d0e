"""Links across NATS servers: the handshake and everything after it run from end to end, and the servers carry octets.

    knock -> handshake in plain records -> sealed records (`NatsTransport`) -> `Link`

A broker hears knocks on one subject, its door; each link has two subjects of its own beneath it, one for each side:

    penstock.NETWORK.link.BROKER          a knock: who connects says where he hears
    penstock.NETWORK.link.BROKER.TOKEN    records

NETWORK and BROKER are digests, and tell nothing to those who do not know the names. The random numbers of the handshake
are public keys, what it is bound to is the door, and what both signed gives the keys of the session. The servers see
who talks to whom, how much and when; they can drop everything, and change, add or repeat nothing that anybody takes.
"""

import asyncio
from functools import partial
from typing import Final

from penstock.broker.channel import Channel
from penstock.broker.handshake import Accepting, Connecting, Peer, Terms
from penstock.broker.link import Endpoint, Link, Reception, Refused, Serve, introduce, meet
from penstock.codec.wire import raw_frame
from penstock.crypto.keys import digest
from penstock.crypto.session import Exchange
from penstock.errors import FailedError
from penstock.model.names import NetworkName
from penstock.model.principals import Principal

try:
    from nats.aio.msg import Msg

    from penstock.broker.nats_transport import NatsTransport, is_inbox, new_inbox
    from penstock.fabric.nats_link import Listening, NatsLink, checked
    from penstock.fabric.nats_login import NatsLogin
    from penstock.fabric.qos import Priority
    from penstock.fabric.tasks import waited_for
except ImportError as missing:
    raise FailedError(
        "fabric.not-installed", "links across NATS need nats-py", hint="install `penstock[nats]`"
    ) from missing

KNOCK: Final = b"penstock-knock-1"
_PREFIX: Final = "penstock"
_SUBJECT_BYTES: Final = 16
#: seconds that a NATS server has for an answer
_ANSWER: Final = 2.0


def door_of(network: NetworkName, broker: Principal) -> str:
    """Return the subject at which a broker hears knocks."""
    name = str(network).encode()
    whole = digest((b"penstock-door-1", name))[:_SUBJECT_BYTES].hex()
    part = digest((b"penstock-door-1", name, broker.digest))[:_SUBJECT_BYTES].hex()
    return f"{_PREFIX}.{whole}.link.{part}"


def _terms(endpoint: Endpoint, door: str) -> Terms:
    return Terms(endpoint.key, endpoint.network, digest((b"penstock-door-1", door.encode())))


def _numbers(exchange: Exchange, _size: int) -> bytes:
    """Stand in for a random source: the number of a handshake is the public key."""
    return exchange.public


async def connect_nats(endpoint: Endpoint, login: NatsLogin | str, expected: Principal) -> Link:
    """Open a link to a broker of the network, over a NATS connection of its own that ends with the link.

    Raises `FailedError` (`link.unreachable`, `link.lost`, `handshake.timeout`), `RefusedError` (`link.refused`,
    `session.tampered`, `session.weak-key`), what `Connecting.receive` raises, and for the servers `fabric.unreachable`,
    `fabric.unauthorized`, `fabric.bad-address`, `fabric.credentials` and `fabric.tls`.
    """
    limits, door = endpoint.limits, door_of(endpoint.network, expected)
    server = _server(login)
    channel = Channel(asyncio.get_running_loop(), limits, opening=2)
    try:
        client = await server.client()
        transport = NatsTransport(channel, client, new_inbox(door, endpoint.random), limits=limits, peer=None)
        server.left[transport] = transport.lose
        await transport.open(server.close)
    except BaseException:
        await server.close()
        raise

    async def shake() -> Peer:
        exchange = Exchange(endpoint.random)
        side = Connecting(_terms(endpoint, door), partial(_numbers, exchange), expected)
        knocking = waited_for(transport.knock(door, KNOCK))
        try:
            peer = await introduce(channel, side)
        finally:
            knocking.cancel()
            await asyncio.gather(knocking, return_exceptions=True)
        transport.begin(*exchange.agree(*side.agreed, connects=True))
        transport.grant()
        return peer

    try:
        return await meet(endpoint, channel, shake)
    except BaseException:
        await transport.over()
        raise


class NatsListener(Reception):
    """Accepts links across NATS servers until it is closed. `listen_nats` makes one."""

    def __init__(self, endpoint: Endpoint, server: NatsLink, serve: Serve, refused: Refused) -> None:
        super().__init__(endpoint, serve, refused)
        self._server = server
        self._door = door_of(endpoint.network, endpoint.key.principal)
        self._terms = _terms(endpoint, self._door)
        self._transports: dict[NatsTransport, None] = {}
        # Knocks are short and many may be junk: those that are not heard are repeated.
        pending = endpoint.limits.handshake_pending
        self._listening = Listening(self._door, self._hear, priority=Priority.NORMAL, pending=pending)
        server.left[self] = self._lose

    async def open(self) -> None:
        """Begin to hear. Raises as `listen_nats`."""
        await self._server.listen(self._listening)

    async def close(self) -> None:
        """Accept nobody any more, say goodbye to everybody, and wait until all have gone."""
        await self._server.unlisten(self._listening)
        await self._dismiss()
        await asyncio.gather(*(transport.over() for transport in self._transports))
        await self._server.close()

    async def _hear(self, message: Msg) -> None:
        if message.data == KNOCK and is_inbox(message.reply, self._door):
            channel = self._new_channel()
            self._greet(channel, partial(self._shake, channel, message.reply))

    async def _shake(self, channel: Channel, inbox: str) -> Peer:
        endpoint = self._endpoint
        transport = await self._open(channel, inbox)
        exchange = Exchange(endpoint.random)
        side = Accepting(self._terms, partial(_numbers, exchange))
        channel.write(raw_frame(side.open()))
        proof = side.receive(await channel.take_one())
        self._check_places()
        keys = exchange.agree(*side.agreed, connects=False)
        transport.begin(*keys, last=raw_frame(proof or b""))
        # Whoever stands in the middle knows no key; nobody is served who has not shown that he has it.
        await transport.confirmed()
        self._check_places()
        transport.grant()
        return side.peer

    async def _open(self, channel: Channel, peer: str) -> NatsTransport:
        endpoint = self._endpoint
        client = await self._server.client()
        inbox = new_inbox(self._door, endpoint.random)
        transport = NatsTransport(channel, client, inbox, limits=endpoint.limits, peer=peer)

        async def leave() -> None:
            self._transports.pop(transport, None)

        self._transports[transport] = None
        try:
            await transport.open(leave)
        except BaseException:
            await leave()
            raise
        return transport

    def _lose(self) -> None:
        """End all links: nobody knows what the server has lost with the connection."""
        for transport in list(self._transports):
            transport.lose()


async def listen_nats(
    endpoint: Endpoint, login: NatsLogin | str, serve: Serve, refused: Refused = lambda _error: None
) -> NatsListener:
    """Accept links across NATS servers. `refused` is told of everybody who did not get in.

    A connection to the servers that is lost ends all links, and comes back by itself. Raises for the servers as
    `connect_nats`.
    """
    listener = NatsListener(endpoint, _server(login), serve, refused)
    try:
        await listener.open()
    except BaseException:
        await listener.close()
        raise
    return listener


def _server(login: NatsLogin | str) -> NatsLink:
    return NatsLink(checked(login), prefix=_PREFIX, domain="", timeout=_ANSWER, patience=0)

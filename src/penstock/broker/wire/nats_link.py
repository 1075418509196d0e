"""Links across NATS servers: the handshake and everything after it run from end to end, and the servers carry bytes.

    knock -> handshake in plain records -> sealed records (`NatsTransport`) -> `Link`

A broker listens for knocks on one subject, its door. Each link has two subjects beneath it, one for each side:

    penstock.NETWORK.link.BROKER          a knock: the connecting side names its own subject
    penstock.NETWORK.link.BROKER.TOKEN    records

NETWORK and BROKER are digests, and tell nothing to those who do not know the names. The random numbers of the handshake
are public keys, what it is bound to is the door, and what both signed gives the keys of the session. The servers see
who talks with each other, how much and when; they can drop everything, and change, add or repeat nothing that anybody
takes.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from struct import Struct
from typing import Final

from penstock.broker.limits import BrokerLimits
from penstock.broker.wire.channel import Channel
from penstock.broker.wire.handshake import Accepting, AuthenticatedPeer, Connecting, HandshakeTerms
from penstock.broker.wire.link import Endpoint, Link, Reception, Refused, Serve, introduce, meet
from penstock.codec.wire import BytesLike, raw_frame
from penstock.crypto.keys import RandomBytes, digest
from penstock.crypto.session import OVERHEAD_BYTES, KeyExchange, Opening, RecordSealer
from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.fabric.qos import Priority
from penstock.fabric.tasks import in_background, waited_for
from penstock.model.names import NetworkName
from penstock.model.principals import Principal

try:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from penstock.fabric.nats_api import TRANSIENT
    from penstock.fabric.nats_link import Listening, NatsLink, checked
    from penstock.fabric.nats_login import NatsLogin
except ImportError as missing:
    raise FailedError(
        "fabric.not-installed", "links across NATS need nats-py", hint="pip install 'penstock[nats]'"
    ) from missing

# ----------------------------------------------------------------------------------------------------------------------
# A connection across NATS servers that nobody has to trust: what `Channel` needs of a transport, in sealed records.
#
#     plain    bytes of the handshake, or none where it has failed; says where its sender hears, and nobody believes it
#     data     bytes of the link's frames
#     grant    how many bytes of data the receiver takes, counted from the beginning
#     end      nothing more follows
#
# Servers drop what a connection does not read, so that nobody sends more than he was granted: the sender keeps the rest
# and tells its channel to wait, as a full socket would, and grants follow what the receiver's channel has taken. Who
# sends beyond a grant is cut (`link.flood`).
#
# A session begins when the handshake has ended well. Until then the peer is nobody; what came in plain records beside
# the handshake would be taken for his, and ends the connection. After that plain records are junk, as is everything
# that does not open and every copy of a record that has been: it is dropped and counted, and disturbs nobody. A record
# that was lost shows by the next one: the connection ends with `session.tampered`.


_PLAIN, _DATA, _GRANT, _END = range(4)
_TOTAL: Final = Struct(">Q")
_PLAIN_HEAD: Final = Struct(">BB")
#: bytes of data in a record: two frames of the usual size
_RECORD: Final = 128 << 10
#: what is around the data counts for a server, too
_MARGIN: Final = 1_024
#: what may wait on a subject, in messages and in grants: junk beyond it is dropped, and with it what is none
_PENDING: Final = 1 << 16
_SPARE: Final = 8
_NO_RESPONDERS: Final = "503"
_TOKEN_BYTES: Final = 16
_HEX: Final = frozenset("0123456789abcdef")


def new_inbox(door: str, random: RandomBytes) -> str:
    """Return a subject under a door that nobody can guess."""
    return f"{door}.{random(_TOKEN_BYTES).hex()}"


def is_inbox(subject: str, door: str) -> bool:
    """Whether a subject is one of `new_inbox`: nobody makes us send anything to others."""
    before, _, token = subject.rpartition(".")
    return before == door and len(token) == 2 * _TOKEN_BYTES and frozenset(token) <= _HEX


class NatsTransport(asyncio.Transport):
    """One connection between two subjects: `inbox`, where this side hears, and the inbox of the peer."""

    def __init__(self, channel: Channel, client: Client, inbox: str, *, limits: BrokerLimits, peer: str | None) -> None:
        super().__init__()
        self._channel = channel
        self._client = client
        self._limits = limits
        self._inbox = inbox
        self._door = inbox.rpartition(".")[0]
        self._peer = peer
        self._plain_sent = self._plain_heard = 0
        self._sealing: RecordSealer | None = None
        self._opening: Opening | None = None
        self._confirmed = asyncio.Event()
        # What waits: bytes without a grant, and records on their way.
        self._waiting: deque[memoryview] = deque()
        self._records: deque[bytes] = deque()
        self._buffered = 0
        self._high = _RECORD
        self._full = False
        self._sent = self._allowed = 0
        self._heard = self._granted = 0
        self._reading = True
        self._closing = self._lost = False
        #: messages that were junk, or copies
        self.dropped = 0
        self._wake = asyncio.Event()
        self._carrying: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"NatsTransport(sealed={self._sealing is not None}, closing={self._closing})"

    async def open(self, leave: Callable[[], Awaitable[None]]) -> None:
        """Listen, and be ready to send; `leave` is called at the end. Raises as nats-py."""
        subscription = await self._client.subscribe(
            self._inbox,
            cb=self._hear,
            pending_msgs_limit=_PENDING,
            pending_bytes_limit=_SPARE * max(self._limits.link_inbox, _RECORD),
        )

        async def end() -> None:
            try:
                if not self._client.is_closed:
                    await subscription.unsubscribe()
            finally:
                await leave()

        self._channel.connection_made(self)
        self._carrying = in_background("carrying records", self._carry(end))

    async def knock(self, door: str, label: bytes) -> None:
        """Knock at a door until the peer answers to our inbox. Raises as nats-py."""
        pause = self._limits.handshake_time / 5000
        while self._peer is None and not self._closing:
            await self._client.publish(door, label, reply=self._inbox)
            await asyncio.sleep(pause)

    def begin(self, sealing: RecordSealer, opening: Opening, last: bytes = b"") -> None:
        """Go on in sealed records, after some last bytes in a plain one.

        Raises `RefusedError` (`session.tampered`) if more has come than the handshake.
        """
        if not self._channel.clean:
            raise RefusedError(
                "session.tampered", "somebody has added something to the handshake", hint="try another NATS server"
            )
        self.write(last)
        self._sealing, self._opening = sealing, opening

    def grant(self) -> None:
        """Let the peer send. The connecting side grants immediately, the accepting side after the first record."""
        self._granted = self._heard + self._limits.link_inbox
        self._put(_GRANT, _TOTAL.pack(self._granted))

    async def confirmed(self) -> None:
        """Wait until the peer has sent a record that opens. Raises what the channel ended with."""
        await self._confirmed.wait()
        if self._channel.ended is not None:
            raise self._channel.ended

    async def over(self) -> None:
        """Wait until everything is sent and closed, as long as a goodbye may take."""
        if self._carrying is not None:
            await asyncio.wait((self._carrying,), timeout=self._limits.link_goodbye / 1000)
            self._carrying.cancel()
            await asyncio.wait((self._carrying,))

    # Called by the channel.

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:  # noqa: ARG002  # as asyncio has it
        """Set the number of waiting bytes from which the channel must wait."""
        self._high = high or _RECORD

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that wait."""
        return self._buffered

    def write(self, data: BytesLike) -> None:
        """Send bytes, or keep them until they may go."""
        if self._closing or not data:
            return
        if self._sealing is None:
            self._put_plain(data)
        else:
            self._buffered += len(data)
            self._waiting.append(memoryview(data))
            self._seal()
        if self._buffered > self._high and not self._full:
            self._full = True
            self._channel.pause_writing()

    def pause_reading(self) -> None:
        """Grant no more."""
        self._reading = False

    def resume_reading(self) -> None:
        """Grant what was taken."""
        self._reading = True
        self._renew()

    def is_closing(self) -> bool:
        """Whether the end has begun."""
        return self._closing

    def close(self) -> None:
        """Send what waits, and end."""
        self._closing = True
        self._wake.set()

    def abort(self) -> None:
        """End without what waits for a grant. What is sealed goes, or its number would be missing."""
        self._waiting.clear()
        self.close()

    def lose(self) -> None:
        """End because the peer or the server has gone: what it had not sent is unknown."""
        self._lost = True
        self.abort()

    # Sending.

    def _put(self, kind: int, content: bytes | memoryview) -> None:
        """Send a record, which is in order from now on."""
        if self._sealing is not None:
            self._queue(self._sealing.seal(kind, content))

    def _put_plain(self, content: BytesLike) -> None:
        """Send a plain record; one without content says that no more follows."""
        self._queue(_PLAIN_HEAD.pack(_PLAIN, self._plain_sent & 0xFF) + content)
        self._plain_sent += 1

    def _put_end(self) -> None:
        if self._sealing is None:
            self._put_plain(b"")
        else:
            self._put(_END, b"")

    def _queue(self, record: bytes) -> None:
        self._records.append(record)
        self._buffered += len(record)
        self._wake.set()

    def _seal(self) -> None:
        """Make records of what waits, as far as the grant reaches."""
        # Where a server takes less than a handshake, sending fails and ends the connection.
        largest = max(_MARGIN, min(_RECORD, self._client.max_payload - _MARGIN))
        while self._waiting and (free := self._allowed - self._sent) > OVERHEAD_BYTES:
            size = min(largest, free - OVERHEAD_BYTES)
            parts: list[memoryview] = []
            while self._waiting and size:
                part = self._waiting.popleft()
                if len(part) > size:
                    self._waiting.appendleft(part[size:])
                    part = part[:size]
                parts.append(part)
                size -= len(part)
            content = b"".join(parts) if len(parts) > 1 else parts[0]
            self._sent += len(content) + OVERHEAD_BYTES
            self._buffered -= len(content)
            self._put(_DATA, content)

    async def _carry(self, end: Callable[[], Awaitable[None]]) -> None:
        """Send records as they are queued, and then the end."""
        error: Exception | None = None
        try:
            while not self._lost and not (self._closing and self._idle):
                await self._wake.wait()
                self._wake.clear()
                await self._carry_records()
            if not self._lost:
                self._put_end()
                await self._carry_records()
                # The connection may be closed next, and forgets what it has not sent.
                await self._client.flush(math.ceil(self._limits.link_goodbye / 1000))
        except TRANSIENT as found:
            error = found
        finally:
            self._closing = True
            try:
                with suppress(*TRANSIENT):
                    await end()
            finally:
                # Also where nobody waits any longer for the end.
                self._channel.connection_lost(error)
                self._confirmed.set()

    @property
    def _idle(self) -> bool:
        """Whether nothing waits that can still be sent."""
        return not self._waiting and not (self._records and self._peer)

    async def _carry_records(self) -> None:
        while self._records and self._peer is not None and not self._lost:
            record = self._records.popleft()
            reply = self._inbox if record[0] == _PLAIN else ""
            await self._client.publish(self._peer, record, reply=reply)
            self._buffered -= len(record)
        if self._full and self._buffered <= self._high // 4 and not self._closing:
            self._full = False
            self._channel.resume_writing()

    # Receiving.

    async def _hear(self, message: Msg) -> None:
        if self._lost:
            return
        data = message.data
        if self._opening is None:
            self._hear_plain(message)
            return
        try:
            found = self._opening.open(data)
        except RefusedError as error:
            self._channel.cut(error)
            return
        if found is None:
            self.dropped += 1
        else:
            self._hear_record(len(data), *found)

    def _hear_plain(self, message: Msg) -> None:
        """Handle the next part of a handshake. Everything else is junk, such as a second answer."""
        if self._peer is None and message.headers and message.headers.get("Status") == _NO_RESPONDERS:
            # The server may lie; but it could as well drop everything.
            self._channel.cut(FailedError("link.unreachable", "no such broker listens there", hint="does it run?"))
            return
        data, sender = message.data, message.reply
        head = _PLAIN_HEAD.pack(_PLAIN, self._plain_heard & 0xFF)
        if self._closing or data[: len(head)] != head or not is_inbox(sender, self._door):
            return
        if self._peer is None:
            self._peer = sender
            self._wake.set()
        elif sender != self._peer:
            return
        self._plain_heard += 1
        if len(data) == len(head):
            self.lose()
        else:
            self._channel.data_received(data[len(head) :])

    def _hear_record(self, size: int, kind: int, content: bytes) -> None:
        self._confirmed.set()
        if kind == _DATA:
            self._hear_data(size, content)
        elif kind == _GRANT and len(content) == _TOTAL.size:
            self._allowed = max(self._allowed, _TOTAL.unpack(content)[0])
            self._seal()
        elif kind == _END:
            self.lose()
        else:
            self._channel.cut(MalformedError("wire.malformed", "a record of an unknown kind"))

    def _hear_data(self, size: int, content: bytes) -> None:
        self._heard += size
        if self._closing:
            return
        if self._heard > self._granted:
            self._channel.cut(RefusedError("link.flood", "the peer sends more than it was granted"))
            return
        self._channel.data_received(content)
        self._renew()

    def _renew(self) -> None:
        """Grant again when half of the last grant is used."""
        if self._reading and not self._closing and self._granted - self._heard <= self._limits.link_inbox // 2:
            self.grant()


# ----------------------------------------------------------------------------------------------------------------------
# Links across NATS servers: the handshake and everything after it run from end to end, and the servers carry bytes.


KNOCK: Final = b"penstock-knock-1"
_PREFIX: Final = "penstock"
_SUBJECT_BYTES: Final = 16
#: seconds that a NATS server has for an answer
_ANSWER: Final = 2.0


def door_of(network: NetworkName, broker: Principal) -> str:
    """Return the subject on which a broker listens for knocks."""
    name = str(network).encode()
    whole = digest((b"penstock-door-1", name))[:_SUBJECT_BYTES].hex()
    part = digest((b"penstock-door-1", name, broker.digest))[:_SUBJECT_BYTES].hex()
    return f"{_PREFIX}.{whole}.link.{part}"


def _terms(endpoint: Endpoint, door: str) -> HandshakeTerms:
    return HandshakeTerms(endpoint.key, endpoint.network, digest((b"penstock-door-1", door.encode())))


def _numbers(exchange: KeyExchange, _size: int) -> bytes:
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

    async def shake() -> AuthenticatedPeer:
        exchange = KeyExchange(endpoint.random)
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
        """Start to listen. Raises as `listen_nats`."""
        await self._server.listen(self._listening)

    async def close(self) -> None:
        """Stop accepting, close all links, and wait until they are closed."""
        await self._server.unlisten(self._listening)
        await self._dismiss()
        await asyncio.gather(*(transport.over() for transport in self._transports))
        await self._server.close()

    async def _hear(self, message: Msg) -> None:
        if message.data == KNOCK and is_inbox(message.reply, self._door):
            channel = self._new_channel()
            self._greet(channel, partial(self._shake, channel, message.reply))

    async def _shake(self, channel: Channel, inbox: str) -> AuthenticatedPeer:
        endpoint = self._endpoint
        transport = await self._open(channel, inbox)
        exchange = KeyExchange(endpoint.random)
        side = Accepting(self._terms, partial(_numbers, exchange))
        channel.write(raw_frame(side.open()))
        proof = side.receive(await channel.take_one())
        self._check_places()
        keys = exchange.agree(*side.agreed, connects=False)
        transport.begin(*keys, last=raw_frame(proof or b""))
        # Somebody in the middle does not have the key: serve only a peer that has shown that it has.
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
        """End all links: what the server has lost with the connection is unknown."""
        for transport in list(self._transports):
            transport.lose()


async def listen_nats(
    endpoint: Endpoint, login: NatsLogin | str, serve: Serve, refused: Refused = lambda _error: None
) -> NatsListener:
    """Accept links across NATS servers. `refused` receives everybody who did not get in.

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

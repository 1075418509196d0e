"""A connection across NATS servers that nobody has to trust: what `Channel` needs of a transport, in sealed records.

    plain    octets of the handshake, or none where it has failed; says where its sender hears, and nobody believes it
    data     octets of the link's frames
    grant    how many octets of data the receiver takes, counted from the beginning
    end      nothing more follows

Servers drop what a connection does not read, so that nobody sends more than he was granted: the sender keeps the rest
and tells its channel to wait, as a full socket would, and grants follow what the receiver's channel has taken. Who
sends beyond a grant is cut (`link.flood`).

A session begins when the handshake has ended well. Until then the peer is nobody; what came in plain records beside the
handshake would be taken for his, and ends the connection. After that plain records are junk, as is everything that does
not open and every copy of a record that has been: it is dropped and counted, and disturbs nobody. A record that was
lost shows by the next one: the connection ends with `session.tampered`.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from struct import Struct
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg

from penstock.broker.channel import Channel
from penstock.codec.wire import Octets
from penstock.crypto.keyfile import RandomBytes
from penstock.crypto.session import OVERHEAD_BYTES, Opening, Sealing
from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.fabric.nats_api import TRANSIENT
from penstock.fabric.tasks import in_background
from penstock.model.limits import Limits

_PLAIN, _DATA, _GRANT, _END = range(4)
_TOTAL: Final = Struct(">Q")
_PLAIN_HEAD: Final = Struct(">BB")
#: octets of data in a record: two frames of the usual size
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

    def __init__(self, channel: Channel, client: Client, inbox: str, *, limits: Limits, peer: str | None) -> None:
        super().__init__()
        self._channel = channel
        self._client = client
        self._limits = limits
        self._inbox = inbox
        self._door = inbox.rpartition(".")[0]
        self._peer = peer
        self._plain_sent = self._plain_heard = 0
        self._sealing: Sealing | None = None
        self._opening: Opening | None = None
        self._confirmed = asyncio.Event()
        # What waits: octets without a grant, and records on their way.
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
        """Hear, and be ready to send; `leave` is called at the end. Raises as nats-py."""
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
        """Ask at a door for an answer to our inbox, until there is one. Raises as nats-py."""
        pause = self._limits.handshake_time / 5000
        while self._peer is None and not self._closing:
            await self._client.publish(door, label, reply=self._inbox)
            await asyncio.sleep(pause)

    def begin(self, sealing: Sealing, opening: Opening, last: bytes = b"") -> None:
        """Go on in sealed records, after some last octets in a plain one.

        Raises `RefusedError` (`session.tampered`) if more has come than the handshake.
        """
        if not self._channel.clean:
            raise RefusedError(
                "session.tampered", "somebody has added something to the handshake", hint="try another NATS server"
            )
        self.write(last)
        self._sealing, self._opening = sealing, opening

    def grant(self) -> None:
        """Let the peer send. Who has connected does so at once, who has accepted when he knows that he was heard."""
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

    # What the channel calls.

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:  # noqa: ARG002  # as asyncio has it
        """Say after how many octets the channel has to wait."""
        self._high = high or _RECORD

    def get_write_buffer_size(self) -> int:
        """Return how many octets wait."""
        return self._buffered

    def write(self, data: Octets) -> None:
        """Send octets, or keep them until they may go."""
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
        """End because nobody is there any more: the peer, or the server, and nobody knows what it had not sent."""
        self._lost = True
        self.abort()

    # Sending.

    def _put(self, kind: int, content: bytes | memoryview) -> None:
        """Send a record, which is in order from now on."""
        if self._sealing is not None:
            self._queue(self._sealing.seal(kind, content))

    def _put_plain(self, content: Octets) -> None:
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
        # A server that takes less than a handshake is none to work with: sending fails there, and ends the connection.
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
        """Send records as they come, and at the end say so."""
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
        """Whether nothing waits that could still go."""
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

    # Hearing.

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
        """Take the next part of a handshake. Everything else is junk: a second answer, somebody else's, anything."""
        if self._peer is None and message.headers and message.headers.get("Status") == _NO_RESPONDERS:
            # The server says so, who may lie; but he could as well say nothing.
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
            self._channel.cut(MalformedError("wire.malformed", "a record of no known kind"))

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
        """Grant anew when half of the last grant is used."""
        if self._reading and not self._closing and self._granted - self._heard <= self._limits.link_inbox // 2:
            self.grant()

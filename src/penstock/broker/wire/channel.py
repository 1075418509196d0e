"""Frames over one connection: bounded in both directions, and never silent about its end.

A channel reads no faster than its frames are taken: if more than `link_inbox` bytes wait, it does not read until the
owner takes them. For a peer that is not admitted yet, at most one frame of `hello_bytes` waits. At most `link_outbox`
bytes wait to be sent, for at most `link_stall`; then the peer is a slow reader and is disconnected, so that nobody else
waits for it. Messages that are posted in one turn of the event loop go out together in one frame. A small frame that
arrives alone can be handled while it is read (`take`). Urgent messages overtake all others that wait, on either
side; so that not much waits in between, the system buffers at most `link_buffer` bytes of a connection in each
direction.

Every channel ends with an error: `ended`. A peer that closes in order says goodbye with a code. A connection that ends
without a goodbye was lost or cut off, even if TLS has closed in order.
"""

import asyncio
import re
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from penstock.broker.limits import BrokerLimits
from penstock.codec.wire import (
    KEEPALIVE,
    BytesLike,
    Encoded,
    FrameReader,
    decode,
    encode,
    frame,
    is_urgent,
    raw_frame,
)
from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError

CLOSED: Final = "link.closed"
#: bytes after which a frame is sent without waiting for more messages, and that may wait in a connection. Each frame
#: costs both sides as much as some messages do: what a broker makes in a turn of its loop, sealed and with plaintext
#: beside, is to go out in one.
_BATCH: Final = 256 << 10
_BUFFER: Final = 256 << 10
#: what an array of messages begins with in msgpack, and what a text does; the handshake begins with `(`
_TEXTS: Final = frozenset((*range(0xA0, 0xC0), 0xD9))
_CODE: Final = re.compile(r"[a-z]+(?:\.[a-z][a-z0-9-]*)+", re.ASCII)
_CODE_LENGTH: Final = 64
#: the event that poll() reports if the peer has closed; not all systems report it while data is unread
_HANG_UP: Final = getattr(select, "POLLRDHUP", 0)
#: the option of a connection for how much may wait to be sent, beyond what is under way
_UNSENT: Final = getattr(socket, "TCP_NOTSENT_LOWAT", 0)
#: as much as asyncio reads from a connection in one call
_ARRIVALS: Final = 256 << 10
#: bytes that a frame may have to be handled while the connection is read: others wait for that
_SMALL: Final = 4_096


class _Arrivals(threading.local):
    """The buffer that all channels of a thread read into in turn; what arrives is copied from it.

    A buffer for each read would be mapped and unmapped each time.
    """

    def __init__(self) -> None:
        self.place = memoryview(bytearray(_ARRIVALS))


_HERE: Final = _Arrivals()


class Channel(asyncio.BufferedProtocol):
    """One connection. Its clock is that of the event loop, so that a loop with another clock drives it as well."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: BrokerLimits,
        *,
        opening: int,
        holding: Callable[[], None] | None = None,
    ) -> None:
        self._loop = loop
        self._limits = limits
        #: called whenever more bytes are kept of a peer that is not admitted yet
        self._holding = holding
        most = None if holding is None else limits.hello_bytes
        self._reader = FrameReader(opening=opening, most=most, limits=limits.codec)
        self._transport: asyncio.Transport | None = None
        self._was_connected = False
        self._inbox: deque[memoryview] = deque()
        self._inbox_size = 0
        self._reading = True
        self._arrived = asyncio.Event()
        #: handles a frame that arrives alone, while the owner waits and has handled all that came before (`take`)
        self._alone: Callable[[memoryview], bool] | None = None
        #: what handling one raised: the owner raises it
        self._failure: Exception | None = None
        #: whether urgent messages overtake others
        self._overtaking = False
        self._urgent_in: deque[memoryview] = deque()
        self._outbox: deque[Encoded] = deque()
        self._urgent_out: deque[Encoded] = deque()
        self._outbox_size = 0
        self._flush_planned = False
        self._flushed = False
        self._stalled: float | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._gone = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._heard = self._spoke = loop.time()
        self._keepalives = 0
        self.ended: PenstockError | None = None
        #: whether it ended because of an error of the peer's: nothing more is done for it
        self.was_cut = False

    @property
    def connected(self) -> bool:
        """Whether there ever was a connection."""
        return self._was_connected

    @property
    def open(self) -> bool:
        """Whether there is a connection now, be it one that closes."""
        return self._transport is not None

    @property
    def held(self) -> int:
        """How many bytes that have arrived are kept."""
        return self._inbox_size + self._reader.held

    @property
    def left(self) -> bool:
        """Whether the peer has closed the connection, even if data it sent before is still unread."""
        if self.ended is not None:
            return True
        if self._reading or self._transport is None:
            return False
        connection = self._transport.get_extra_info("socket")
        if connection is None:
            return False
        poll = select.poll()
        poll.register(connection.fileno(), _HANG_UP)
        return bool(poll.poll(0))

    def widen(self) -> None:
        """Accept frames of any permitted size: the peer is admitted."""
        self._holding = None
        self._reader.widen()

    @property
    def clean(self) -> bool:
        """Whether everything that has arrived was taken, to the last byte."""
        return not self._inbox and not self._urgent_in and not self._reader.partial

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up the connection."""
        if not isinstance(transport, asyncio.Transport):  # pragma: no cover  # connections are
            raise TypeError(type(transport).__name__)
        self._transport = transport
        self._was_connected = True
        transport.set_write_buffer_limits(high=_BUFFER)
        self._bound_buffers(transport.get_extra_info("socket"))
        self._heard = self._spoke = self._loop.time()
        self._plan_tick()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # there is always room for that
        """Return where bytes go that arrive now."""
        return _HERE.place

    def buffer_updated(self, nbytes: int) -> None:
        """Take so many bytes from there, before something else is written over them."""
        arrived = _HERE.place[:nbytes]
        # Where a frame has begun, its reader keeps a copy of what follows.
        self.data_received(arrived if self._reader.pending else bytes(arrived))

    def data_received(self, data: BytesLike) -> None:
        """Cut bytes that have arrived into frames."""
        if self.ended is not None:
            return
        self._heard = self._loop.time()
        try:
            frames = self._reader.feed(data)
        except MalformedError as error:
            self.cut(error)
            return
        if (
            len(frames) == 1
            and self._alone is not None
            and 0 < len(frames[0]) <= _SMALL
            and self._handle_alone(frames[0])
        ):
            return
        self._keepalives += frames.count(memoryview(b""))
        if self._keepalives > self._limits.link_keepalives:
            self.cut(RefusedError("link.flood", "the peer sends too many empty frames"))
            return
        for found in filter(None, frames):
            if found[0] in _TEXTS:
                self._take_goodbye(found)
                return
            (self._urgent_in if self._overtaking and is_urgent(found) else self._inbox).append(found)
        if self._inbox or self._urgent_in:
            # A frame is a view on the data it came in, and keeps all of it.
            self._inbox_size += len(data)
            self._arrived.set()
            most = self._limits.link_inbox if self._holding is None else 0
            if self._reading and self._inbox_size > most and self._transport is not None:
                self._reading = False
                self._transport.pause_reading()
        if self._holding is not None:
            self._holding()

    def connection_lost(self, exc: Exception | None) -> None:
        """Record how the connection ended, unless that is known."""
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._reader.close()
        except MalformedError as error:
            self._end(error)
        self._end(FailedError("link.lost", "the connection ended without a goodbye", reason=type(exc).__name__))
        self._outbox.clear()
        self._urgent_out.clear()
        self._outbox_size = 0
        # TLS knows its channel as well: both would wait for the garbage collector, with all buffers.
        self._transport = None
        self._gone.set()

    def pause_writing(self) -> None:
        """Keep data to send: the peer does not read."""
        self._stalled = self._loop.time()
        self._room.clear()

    def resume_writing(self) -> None:
        """Go on sending."""
        self._stalled = None
        self._flush()

    # Called by the owner of the channel.

    async def take(self, alone: Callable[[memoryview], bool] | None = None) -> list[memoryview]:
        """Return all frames that have arrived, one at least; urgent ones come first.

        While it waits, `alone` handles a small frame that arrives alone, or returns False to leave it to the owner.
        Raises what the channel ended with, when it has.
        """
        await self._wait_for_frames(alone)
        frames = [*self.take_urgent(), *self._inbox]
        self._inbox.clear()
        self._taken()
        return frames

    def take_urgent(self) -> list[memoryview]:
        """Return the urgent frames that have arrived, if there are any: before what was taken earlier is done."""
        frames = list(self._urgent_in)
        self._urgent_in.clear()
        return frames

    async def take_one(self) -> memoryview:
        """Return the next frame. Raises what the channel ended with, when it has."""
        await self._wait_for_frames()
        found = (self._urgent_in or self._inbox).popleft()
        if not self._inbox and not self._urgent_in:
            self._taken()
        return found

    def post(self, message: Encoded, *, urgent: bool = False, eager: bool = False) -> None:
        """Send a message as soon as the peer reads; never waits.

        Messages of one turn of the event loop go out together at its end. The first of them goes out immediately if it
        is `eager`: a single event does not wait for others.

        Raises what the channel ended with, and `RefusedError` (`link.slow-reader`) when it ends by this.
        """
        self._check_open()
        (self._urgent_out if urgent and self._overtaking else self._outbox).append(message)
        self._outbox_size += len(message)
        if self._stalled is None:
            if self._outbox_size >= _BATCH:
                self._flushed = True
                self._flush()
            elif not self._flush_planned:
                self._flush_planned = True
                if eager:
                    self._flush()
                self._loop.call_soon(self._planned_flush)
        elif self._outbox_size > self._limits.link_outbox:
            raise self.cut(_slow_reader())

    def let_overtake(self) -> None:
        """Let urgent messages overtake others from now on, here and on their way: those of before stay in order."""
        self.flush()
        self._overtaking = True

    def flush(self) -> None:
        """Send what was posted immediately, as far as the peer reads; otherwise it goes when others had their turn."""
        if self._stalled is None:
            self._flush()

    def try_post(self, message: Encoded) -> bool:
        """Send a message immediately if `room` would not wait, and say whether it was so."""
        if self.ended is not None or self._stalled is not None or self._flushed or not self._room.is_set():
            return False
        self.post(message, eager=True)
        return True

    async def room(self) -> None:
        """Wait until the peer reads what was posted. Raises what the channel ended with, when it has."""
        if self._flushed:
            # A sender in a loop that never has to wait would keep everybody else waiting.
            self._flushed = False
            await asyncio.sleep(0)
        await self._room.wait()
        self._check_open()

    def write(self, data: bytes) -> None:
        """Send bytes that are a frame already: a part of a handshake."""
        if self._transport is not None and self.ended is None:
            self._spoke = self._loop.time()
            self._transport.write(data)

    def cut(self, error: PenstockError) -> PenstockError:
        """End the channel because of a fault of the peer. The peer receives the code, if it reads at all."""
        if self.ended is None:
            self.was_cut = True
            self._inbox.clear()
            self._urgent_in.clear()
            self._leave(error)
        return error

    async def close(self, code: str = CLOSED) -> None:
        """Send what was posted, say goodbye and go; no longer than `link_goodbye` if the peer does not read."""
        deadline = self._loop.time() + self._limits.link_goodbye / 1000
        try:
            async with asyncio.timeout_at(deadline):
                await self._room.wait()
                if self.ended is None:
                    self._flush()
                    self._leave(FailedError(CLOSED, "the link was closed"), code)
                await self._gone.wait()
        except TimeoutError:
            self._end(FailedError(CLOSED, "the link was closed"))
        finally:
            self.abort()

    def abort(self) -> None:
        """End the connection immediately."""
        if self._transport is not None:
            # The first releases of Python 3.11 forget the protocol of a transport that is gone, and then fail here.
            with suppress(AttributeError):
                self._transport.abort()

    # Within.

    def _check_open(self) -> None:
        if self.ended is not None:
            # The same error is raised as often as somebody asks, and must not grow by each of them.
            raise self.ended.with_traceback(None)

    async def _wait_for_frames(self, alone: Callable[[memoryview], bool] | None = None) -> None:
        while not self._inbox and not self._urgent_in:
            if self._failure is not None:
                raise self._failure
            self._check_open()
            self._arrived.clear()
            self._alone = alone
            try:
                await self._arrived.wait()
            finally:
                self._alone = None

    def _handle_alone(self, found: memoryview) -> bool:
        """Let a frame be handled immediately: the owner's task would have to be woken up first."""
        if self._alone is None or found[0] in _TEXTS or self._inbox or self._urgent_in or self._failure:
            return False
        try:
            return self._alone(found)
        except Exception as error:  # noqa: BLE001  # the owner raises it, as if it had handled the frame itself
            self._failure = error
            self._arrived.set()
            return True

    def _taken(self) -> None:
        self._inbox_size = 0
        if not self._reading and self._transport is not None:
            self._reading = True
            self._heard = self._loop.time()
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _planned_flush(self) -> None:
        self._flush_planned = False
        self._flush()

    def _flush(self) -> None:
        """Send what waits, in as few frames as its size asks for, until the connection takes no more."""
        while self._outbox_size and self._stalled is None and self._transport is not None and self.ended is None:
            waiting = self._urgent_out or self._outbox
            batch: list[Encoded] = []
            size = 0
            while waiting and size < _BATCH and len(batch) < self._limits.codec.frame_messages:
                if batch and size + len(waiting[0]) > _BATCH:
                    break
                batch.append(waiting.popleft())
                size += len(batch[-1])
            self._outbox_size -= size
            self.write(frame(batch, urgent=waiting is self._urgent_out))
        if not self._outbox_size and self._stalled is None:
            self._room.set()

    def _leave(self, error: PenstockError, code: str | None = None) -> None:
        """Say goodbye where somebody reads, and end."""
        transport = self._transport
        if transport is not None and self._stalled is None:
            self.write(raw_frame(encode(code or error.code)))
            self._end(error)
            _close(transport)
            self._loop.call_later(self._limits.link_goodbye / 1000, self.abort)
        else:
            self._end(error)
            self.abort()

    def _take_goodbye(self, found: memoryview) -> None:
        try:
            code = decode(found, limits=self._limits.codec)
        except MalformedError as error:
            self.cut(error)
            return
        if not isinstance(code, str) or len(code) > _CODE_LENGTH or not _CODE.fullmatch(code):
            self.cut(MalformedError("link.goodbye", "a goodbye without a code"))
        elif code == CLOSED:
            self._end(FailedError(CLOSED, "the peer has closed the link"))
        else:
            self._end(RefusedError("link.refused", f"the peer has ended the link: `{code}`", reason=code))
        if self._transport is not None:
            _close(self._transport)

    def _end(self, error: PenstockError) -> None:
        if self.ended is None:
            self.ended = error
        self._arrived.set()
        self._room.set()

    def _bound_buffers(self, connection: socket.socket | None) -> None:
        if connection is not None:
            # Where a system does not let it be bounded, urgent messages wait for more of the others.
            with suppress(OSError):
                # asyncio does so for connections that it made or accepted itself; a listener accepts its own.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._limits.link_buffer)
                connection.setsockopt(socket.IPPROTO_TCP, _UNSENT, self._limits.link_buffer)

    def _plan_tick(self) -> None:
        limits = self._limits
        pause = min(limits.link_keepalive, limits.link_idle, limits.link_stall) / 2000
        self._timer = self._loop.call_later(pause, self._tick)

    def _tick(self) -> None:
        now, limits = self._loop.time(), self._limits
        self._keepalives = 0
        if self.ended is not None:
            return
        if self._stalled is not None and now - self._stalled >= limits.link_stall / 1000:
            self.cut(_slow_reader())
        elif self._reading and now - self._heard >= limits.link_idle / 1000:
            self.cut(FailedError("link.idle", "nothing was heard from the peer for too long"))
        else:
            if self._stalled is None and now - self._spoke >= limits.link_keepalive / 1000:
                self.write(KEEPALIVE)
            self._plan_tick()


def _close(transport: asyncio.Transport) -> None:
    """Close a connection once: asyncio forgets one over TLS that is closed twice, and cannot abort it any more."""
    if not transport.is_closing():
        transport.close()


def _slow_reader() -> RefusedError:
    return RefusedError(
        "link.slow-reader", "the peer does not read what it is sent", hint="read faster, or subscribe to less"
    )

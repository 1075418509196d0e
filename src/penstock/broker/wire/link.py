"""Links: messages to and from a peer that has proved who it is, over TLS 1.3.

    connection (TLS) -> handshake -> `Link`

`connect` and `listen` give links over TLS, `penstock.broker.wire.nats_link` gives them across NATS servers, and nothing
else does. Messages go out encoded (`penstock.codec.wire.encode`), so
that one that goes to a thousand peers is encoded once; they come in as batches, as they arrived. `post` never waits and
cuts a peer that does not read, which is what a broker needs; `send` waits for the peer, as a publisher should.

Nobody can keep a listener busy. A peer that has not sent anything costs a socket and nothing else. TLS handshakes start
at a bounded rate, each has a time limit, and the number of peers that are not admitted yet is bounded, as are the bytes
that are kept of them. If there are too many, one is disconnected: a silent one first, and of these, or of all, the
oldest from the address with most connections. A listener that is `guarded` admits nobody before `Link.admit`.
"""

import asyncio
import os
import secrets
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final, TypeAlias, cast
from weakref import WeakSet

from penstock.broker.limits import BrokerLimits
from penstock.broker.wire.channel import CLOSED, Channel
from penstock.broker.wire.handshake import Accepting, AuthenticatedPeer, Connecting, HandshakeTerms
from penstock.broker.wire.tls_transport import TlsTransport
from penstock.codec.wire import Encoded, Wire, decode_messages, raw_frame
from penstock.crypto.keys import RandomBytes, Signer
from penstock.crypto.tls import client_context, new_certificate, peer_fingerprint, server_context
from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError
from penstock.fabric.tasks import in_background, keep_running
from penstock.model.names import NetworkName
from penstock.model.principals import Principal

#: seconds that somebody may be silent before it gives way to others
_PATIENCE: Final = 0.25
#: handshakes that may begin in a burst
_HANDSHAKE_BURST: Final = 8


class Rate:
    """A number of things per second, and in a burst."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._then: float | None = None

    def charge(self, amount: float, now: float) -> float:
        """Count so many; return for how many seconds nothing more is to be done."""
        if self._then is not None:
            self._left = min(self._burst, self._left + (now - self._then) * self._rate)
        self._then = now
        self._left -= amount
        return max(0.0, -self._left / self._rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One side of links: its key, its network, and its limits."""

    key: Signer
    network: NetworkName
    limits: BrokerLimits
    random: RandomBytes = secrets.token_bytes
    #: whether an authenticated peer must show more before it is admitted
    guarded: bool = False


class Link:
    """Messages to and from a peer."""

    def __init__(
        self,
        channel: Channel,
        peer: AuthenticatedPeer,
        endpoint: Endpoint,
        admitted: "Callable[[Link], None]" = lambda _link: None,
    ) -> None:
        self.peer = peer
        self._channel = channel
        self._admitted = admitted
        self._limits = endpoint.limits

    def __repr__(self) -> str:
        return f"Link({self.peer.principal.short}, {self.ended.code if self.ended else 'open'})"

    @property
    def ended(self) -> PenstockError | None:
        """How the link ended, if it has."""
        return self._channel.ended

    @property
    def left(self) -> bool:
        """Whether the peer has closed the link, even if messages it sent before are still unread."""
        return self._channel.left

    def check_not_cut(self) -> None:
        """Raise the error if the peer was cut: its earlier messages are not answered then."""
        if self._channel.was_cut and self.ended is not None:
            raise self.ended.with_traceback(None)

    def admit(self) -> None:
        """Admit the peer: it has shown its right."""
        self._channel.widen()
        self._admitted(self)

    def post(self, message: Encoded, *, urgent: bool = False, eager: bool = False) -> None:
        """Send a message without waiting; a peer that leaves too much unread is cut. An urgent one overtakes others.

        An eager one goes out immediately if it is the first in a turn of the event loop.

        Raises what the link ended with, and `RefusedError` (`link.slow-reader`).
        """
        self._channel.post(message, urgent=urgent, eager=eager)

    def let_overtake(self) -> None:
        """Let urgent messages overtake others from now on; earlier messages stay before them."""
        self._channel.let_overtake()

    def flush(self) -> None:
        """Send what was posted immediately: before work that keeps the event loop busy."""
        self._channel.flush()

    def try_post(self, message: Encoded) -> bool:
        """Send a message immediately if `send` would not wait, and say whether it was so."""
        return self._channel.try_post(message)

    async def send(self, message: Encoded) -> None:
        """Send a message, and wait first while the peer does not read. Raises what the link ended with."""
        await self._channel.room()
        self._channel.post(message)

    async def receive(self, alone: Callable[[Wire], bool] | None = None) -> list[Wire]:
        """Return the messages that have arrived since, in their order, as soon as there are any.

        While it waits, `alone` handles a small message that arrives alone. It returns False, before it has done
        anything, to leave the message to the caller. Whatever it raises is raised here.

        Raises what the link ended with, after everything that came before: `FailedError` (`link.closed`, `link.lost`,
        `link.idle`), `RefusedError` (`link.refused`, `link.flood`, `link.slow-reader`) and `MalformedError` for what is
        not a frame or message.
        """
        handle = None if alone is None else partial(self._handle_alone, alone)
        while True:
            messages = self._read(await self._channel.take(handle))
            if messages:
                return messages

    def _handle_alone(self, handle: Callable[[Wire], bool], found: memoryview) -> bool:
        try:
            messages = decode_messages(found, limits=self._limits.codec)
        except (MalformedError, RefusedError):
            return False
        return len(messages) == 1 and handle(messages[0])

    def urgent(self) -> list[Wire]:
        """Return the urgent messages that have arrived, if any: they go before what was received and is not done."""
        return self._read(self._channel.take_urgent())

    def _read(self, frames: Sequence[memoryview]) -> list[Wire]:
        messages: list[Wire] = []
        try:
            for found in frames:
                messages += decode_messages(found, limits=self._limits.codec)
        except (MalformedError, RefusedError) as error:
            self._channel.cut(error)
        return messages

    async def __aiter__(self) -> AsyncIterator[Wire]:
        """Go through the messages until the link is closed in peace. Raises what else it ends with."""
        while True:
            try:
                batch = await self.receive()
            except FailedError as error:
                if error.code == CLOSED:
                    return
                raise
            for message in batch:
                yield message

    async def close(self, code: str = CLOSED) -> None:
        """Send what was posted, tell the peer the code, and go. A link that has ended already stays as it is."""
        await self._channel.close(code)


async def connect(endpoint: Endpoint, host: str, port: int, expected: Principal | None = None) -> Link:
    """Open a link; with `expected`, to nobody else.

    Raises `FailedError` (`link.unreachable`, `link.tls`, `link.lost`, `handshake.timeout`), `RefusedError`
    (`link.refused`, with the peer's code in `reason`) and what `Connecting.receive` raises.
    """
    loop, limits = asyncio.get_running_loop(), endpoint.limits
    channel = Channel(loop, limits, opening=2)

    async def shake() -> AuthenticatedPeer:
        secured = TlsTransport(channel, client_context(), server_side=False, grace=limits.link_goodbye / 1000)
        await loop.create_connection(lambda: secured, host, port)
        await secured.open()
        shown = peer_fingerprint(secured.get_extra_info("ssl_object"))
        side = Connecting(HandshakeTerms(endpoint.key, endpoint.network, shown), endpoint.random, expected)
        return await introduce(channel, side)

    try:
        return await meet(endpoint, channel, shake, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except PenstockError:
        if channel.connected:
            # It has ended already; what is left of the connection is not to outlive this call.
            await channel.close()
        raise


async def introduce(channel: Channel, side: Connecting) -> AuthenticatedPeer:
    """Run the handshake of the connecting side. Raises as `Connecting.receive` and `Channel.take_one`."""
    while not side.done:
        message = await channel.take_one()
        answer = await asyncio.to_thread(side.receive, bytes(message)) if side.signs_outside else side.receive(message)
        if answer is not None:
            channel.write(raw_frame(answer))
    return side.peer


async def meet(
    endpoint: Endpoint,
    channel: Channel,
    shake: Callable[[], Awaitable[AuthenticatedPeer]],
    address: str = "the peer",
    admitted: Callable[[Link], None] = lambda _link: None,
) -> Link:
    """Run a handshake within its time limit, and return the link.

    Raises what the handshake raises, and `FailedError` (`link.unreachable`, `link.tls`, `handshake.timeout`). The
    channel has ended then.
    """
    try:
        async with asyncio.timeout(endpoint.limits.handshake_time / 1000):
            peer = await shake()
    except (PenstockError, OSError) as error:
        raise _failed(channel, error, address) from None
    except BaseException:
        channel.abort()
        raise
    return Link(channel, peer, endpoint, admitted)


def _failed(channel: Channel, error: PenstockError | OSError, address: str) -> PenstockError:
    """End a channel whose handshake failed, and return the error to raise."""
    reason = type(error).__name__
    match error:
        case PenstockError():
            found = error
        case TimeoutError():
            found = FailedError("handshake.timeout", "the handshake took too long", hint="try again")
        case ssl.SSLError() | ConnectionResetError() | ConnectionAbortedError() | BrokenPipeError():
            hint = "is the peer a Penstock broker, and not too busy?"
            found = FailedError("link.tls", "the connection ended within the TLS handshake", hint=hint, reason=reason)
        case _:
            # A name that cannot be resolved has a negative number; several addresses that fail have none.
            cause = (
                os.strerror(error.errno).lower() if error.errno and error.errno > 0 else error.strerror or "no answer"
            )
            hint = "is the broker running (`penstock up`)? If so, compare the address and the port"
            found = FailedError("link.unreachable", f"cannot connect to {address}: {cause}", hint=hint, reason=reason)
    channel.cut(found)
    return found


Serve: TypeAlias = Callable[[Link], Awaitable[None]]
Refused: TypeAlias = Callable[[PenstockError], None]


@dataclass(slots=True)
class _Guest:
    """A peer that is not admitted yet: its channel, its address, and until when it may be silent."""

    channel: Channel
    source: str
    patience: float


class Reception:
    """Run handshakes with peers that connect, and serve those that succeed, each in its own task."""

    def __init__(self, endpoint: Endpoint, serve: Serve, refused: Refused) -> None:
        self._endpoint = endpoint
        self._serve = serve
        self._refused = refused
        self._greeting: dict[asyncio.Task[None], _Guest] = {}
        self._links: dict[asyncio.Task[None], Link] = {}
        #: including those that are gone except for a connection that is closing
        self._channels: WeakSet[Channel] = WeakSet()

    @property
    def links(self) -> list[Link]:
        """The links that are served now."""
        return list(self._links.values())

    def _new_channel(self) -> Channel:
        loop, limits = asyncio.get_running_loop(), self._endpoint.limits
        channel = Channel(loop, limits, opening=1, holding=self._check_held if self._endpoint.guarded else None)
        self._channels.add(channel)
        return channel

    def _greet(
        self, channel: Channel, shake: Callable[[], Awaitable[AuthenticatedPeer]], source: str = ""
    ) -> asyncio.Task[None]:
        """Start a handshake; if too many are under way, disconnect one peer."""
        if len(self._greeting) >= self._endpoint.limits.handshake_pending:
            self._turn_out(self._least_wanted())
        task = in_background("serving a link", self._attend(channel, shake))
        now = asyncio.get_running_loop().time()
        self._greeting[task] = _Guest(channel, source, now + _PATIENCE)
        task.add_done_callback(self._forget)
        return task

    def _least_wanted(self) -> asyncio.Task[None]:
        """Return the handshake to end: the oldest from the address with most of them; silent peers come first."""
        now, guests = asyncio.get_running_loop().time(), self._greeting
        pool = [task for task, guest in guests.items() if guest.patience <= now] or list(guests)
        sources = Counter(guests[task].source for task in pool)
        busiest = max(sources.values())
        return next(task for task in pool if sources[guests[task].source] == busiest)

    def _speaks(self) -> None:
        """Record that the peer of this task has sent something."""
        guest = self._greeting.get(cast("asyncio.Task[None]", asyncio.current_task()))
        if guest is not None:
            guest.patience = inf

    def _check_held(self) -> None:
        """Disconnect a peer if too much is kept of all that are not admitted yet: the one with most."""
        if sum(one.channel.held for one in self._greeting.values()) > self._endpoint.limits.hello_all_bytes:
            self._turn_out(max(self._greeting, key=lambda task: self._greeting[task].channel.held))

    def _turn_out(self, task: asyncio.Task[None]) -> None:
        self._greeting.pop(task).channel.cut(_busy("too many others want to be let in"))
        task.cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._greeting.pop(task, None)
        self._links.pop(task, None)

    async def _attend(self, channel: Channel, shake: Callable[[], Awaitable[AuthenticatedPeer]]) -> None:
        task = asyncio.current_task()
        try:
            link = await meet(self._endpoint, channel, shake, admitted=partial(self._let_in, task))
            if task in self._greeting and not self._endpoint.guarded:
                link.admit()
            try:
                await self._serve(link)
            except PenstockError as error:
                if error is not link.ended:
                    self._refused(error)
                await link.close(error.code)
            finally:
                await link.close()
        except PenstockError as error:
            self._refused(error)
        except asyncio.CancelledError:
            # A peer that was turned out receives the reason; a listener that closes cancels the others.
            if channel.ended is None or task in self._links:
                raise
            self._refused(channel.ended)
        finally:
            # What an error remembers of where it was raised holds the connection, and its buffers, for long.
            _forget_frames(channel.ended)

    def _let_in(self, task: asyncio.Task[None] | None, link: Link) -> None:
        if task is not None and self._greeting.pop(task, None) is not None:
            self._links[task] = link

    def _check_places(self) -> None:
        """Raise `RefusedError` (`link.busy`) where no more links are taken."""
        if len(self._links) >= self._endpoint.limits.links:
            raise _busy("there are as many links as are allowed")

    async def _dismiss(self) -> None:
        """Close all links, and wait until they are closed."""
        served = list(self._links)
        await asyncio.gather(*(link.close() for link in self.links))
        for task in [*self._greeting, *served]:
            task.cancel()
        await asyncio.gather(*self._greeting, *served, return_exceptions=True)
        # Whoever was turned away may not have gone yet: TLS waits for the other side.
        await asyncio.gather(*(channel.close() for channel in list(self._channels) if channel.open))
        await asyncio.sleep(0)  # what was aborted ends in the next turn of the loop
        await asyncio.sleep(0)


class Listener(Reception):
    """Accepts links over TLS until it is closed. `listen` makes one."""

    def __init__(self, endpoint: Endpoint, listening: socket.socket, serve: Serve, refused: Refused) -> None:
        super().__init__(endpoint, serve, refused)
        certificate = new_certificate(endpoint.random)
        self._socket = listening
        self._context = server_context(certificate)
        self._terms = HandshakeTerms(endpoint.key, endpoint.network, certificate.fingerprint)
        #: until when handshakes have begun, at their rate
        self._begun = 0.0
        self._accepting = keep_running("accepting links", self._accept)

    @property
    def port(self) -> int:
        """The port, for those who asked for any."""
        found: int = self._socket.getsockname()[1]
        return found

    async def close(self) -> None:
        """Stop accepting, close all links, and wait until they are closed."""
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        self._socket.close()
        await self._dismiss()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                # Not `sock_accept`: it forgets a connection, with its socket open, if it is cancelled just then.
                self._take(*self._socket.accept())
            except BlockingIOError:
                await _readable(loop, self._socket)
                continue
            except OSError:
                # The peer has gone again, or there are no more descriptors: those who have one go on.
                await asyncio.sleep(0.01)
                continue
            # While more connections are queued, accepting one does not wait: let other tasks run.
            await asyncio.sleep(0)

    def _take(self, connection: socket.socket, address: tuple[object, ...]) -> None:
        connection.setblocking(False)
        channel = self._new_channel()
        task = self._greet(channel, partial(self._shake, connection, channel), str(address[0]))
        task.add_done_callback(partial(_drop, connection, channel))

    async def _shake(self, connection: socket.socket, channel: Channel) -> AuthenticatedPeer:
        loop = asyncio.get_running_loop()
        # Only a peer that sends something gets the memory and the work that TLS takes, at a bounded rate.
        await _readable(loop, connection)
        if not connection.recv(1, socket.MSG_PEEK):
            raise ConnectionResetError
        self._speaks()
        rate = self._endpoint.limits.handshake_rate
        self._begun = max(self._begun, loop.time()) + 1 / rate
        if (pause := self._begun - loop.time() - _HANDSHAKE_BURST / rate) > 0:
            await asyncio.sleep(pause)
        grace = self._endpoint.limits.link_goodbye / 1000
        secured = TlsTransport(channel, self._context, server_side=True, grace=grace)
        await loop.connect_accepted_socket(lambda: secured, connection)
        await secured.open()
        side = Accepting(self._terms, self._endpoint.random)
        channel.write(raw_frame(side.open()))
        proof = side.receive(await channel.take_one())
        self._check_places()
        channel.write(raw_frame(proof or b""))
        return side.peer


def _forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of an error and of its causes."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


async def _readable(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
    """Wait until there is something to read, or to accept."""
    arrived = asyncio.Event()
    handle = connection.fileno()
    loop.add_reader(handle, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(handle)


def _drop(connection: socket.socket, channel: Channel, _task: asyncio.Task[None]) -> None:
    if not channel.connected:
        # Nobody else closes it: the task was cancelled before it began.
        connection.close()


def _busy(message: str) -> RefusedError:
    return RefusedError("link.busy", message, hint="try again later, or connect to another broker")


async def listen(
    endpoint: Endpoint, host: str, port: int, serve: Serve, refused: Refused = lambda _error: None
) -> Listener:
    """Accept links at an address; port 0 takes any that is free. `refused` receives everybody who did not get in.

    Raises `FailedError` (`link.address`, `tls.context`).
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=endpoint.limits.handshake_pending)
    except OSError as error:
        cause = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else error.strerror or "no answer"
        hint = "stop the program that uses the port, or choose another address"
        raise FailedError("link.address", f"cannot listen at `{host}` port {port}: {cause}", hint=hint) from error
    listening.setblocking(False)
    return Listener(endpoint, listening, serve, refused)

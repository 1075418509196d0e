"""The network of a simulation: messages between processes take time, and are lost, doubled or cut off.

Two kinds of traffic cross it. A datagram (`send`) can be lost, come twice and overtake others. A connection
(`connect`) is reliable and ordered, as TCP is: what would be lost comes later, a partition delays everything until it
is over, and the end of a process ends its connections.

Brokers and clients use connections: `SimulatedAddress` gives links with the real handshake and the real channel, in the
place of TLS. `listener` accepts them.
"""

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from penstock.broker.wire.channel import Channel
from penstock.broker.wire.handshake import Accepting, AuthenticatedPeer, Connecting, HandshakeTerms
from penstock.broker.wire.link import Endpoint, Link, Reception, Refused, Serve, introduce, meet
from penstock.codec.wire import raw_frame
from penstock.model.principals import Principal
from penstock.simulate.loop import SimulatedProcess

if TYPE_CHECKING:
    from contextvars import Context

    from penstock.simulate.simulation import Simulation

#: seconds until something that was lost on a connection is sent again, the first time; then it doubles
_RESEND: Final = 0.2
#: seconds after which something that is under way is waited for when faults have stopped
_SLOW: Final = 1.0
#: bytes that a connection takes from its writer while its reader does not read
_WINDOW: Final = 256 << 10
#: what both sides of a link have in common in the place of a TLS certificate
_BINDING: Final = b"simulated".ljust(32, b".")
#: the standard normal distribution's 99th percentile
_P99: Final = 2.326


#: shapes of the latency
SHAPES: Final = ("uniform", "exponential", "lognormal")


@dataclass(frozen=True, slots=True)
class Latency:
    """How long a message is under way, in seconds: `uniform` between two bounds, or with a tail.

    For `exponential` and `lognormal` (see `SHAPES`), `most` is what 99 of 100 messages stay below.

    >>> Latency(0.001, 0.005).draw(Random(1)) < 0.005
    True
    """

    least: float = 0.0002
    most: float = 0.001
    shape: str = "uniform"

    def draw(self, random: Random) -> float:
        """Return the latency of a message."""
        wide = self.most - self.least
        match self.shape:
            case "exponential":
                return self.least + wide * random.expovariate(math.log(100))
            case "lognormal":
                # Its median is a tenth of the 99th percentile.
                return self.least + wide / 10 * math.exp(random.gauss(0.0, math.log(10) / _P99))
        return self.least + wide * random.random()


@dataclass(frozen=True, slots=True)
class Conditions:
    """What messages meet on their way from one process to another."""

    latency: Latency = field(default_factory=Latency)
    #: the share of messages that are lost, that come twice, and that are delayed so that others overtake them
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    #: seconds that are added to the latency
    delay: float = 0.0


class SimulatedNetwork:
    """See the module."""

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self._loop = simulation.loop
        self.random = simulation.random("network")
        #: conditions between all processes that have none of their own
        self.conditions = Conditions()
        self._between: dict[tuple[str, str], Conditions] = {}
        #: what faults change, and what the conditions are with them
        self._changes: dict[int, tuple[frozenset[str], dict[str, float]]] = {}
        self._current: dict[tuple[str, str], Conditions] = {}
        #: pairs of processes that do not reach each other, and how many faults say so
        self._cut: dict[tuple[str, str], int] = {}
        self._pipes: dict[tuple[str, str], WeakSet[Pipe]] = {}
        #: the numbers of pipes on which something takes more than `_SLOW`, and when it arrives
        self.slow: dict[int, float] = {}
        self._connections: dict[str, dict[_Side, None]] = {}
        self._listening: dict[str, SimulatedListener] = {}
        self._numbers = itertools.count()
        self._contexts: dict[str, tuple[object, Context]] = {}

    @property
    def now(self) -> float:
        """The virtual time."""
        return self._loop.time()

    # --- Conditions ----------------------------------------------------------------------------------------------

    def between(self, one: str, other: str) -> Conditions:
        """Return the conditions from one process to another."""
        found = self._current.get((one, other))
        if found is None:
            found = self._between.get((one, other), self.conditions)
            for processes, changed in self._changes.values():
                if not processes or one in processes or other in processes:
                    found = replace(found, **changed)  # type: ignore[arg-type]  # all are numbers
            self._current[one, other] = found
        return found

    def set_between(self, one: str, other: str, conditions: Conditions) -> None:
        """Set the conditions between two processes, in both directions."""
        self._between[one, other] = self._between[other, one] = conditions
        self._current.clear()

    def set_all(self, conditions: Conditions) -> None:
        """Set the conditions between all processes that have none of their own."""
        self.conditions = conditions
        self._current.clear()

    def change(self, processes: Collection[str], **changed: float) -> Callable[[], None]:
        """Change the conditions of everything to and from some processes, or of all. Return what undoes it."""
        number = next(self._numbers)
        self._changes[number] = frozenset(processes), changed
        self._current.clear()

        def undo() -> None:
            del self._changes[number]
            self._current.clear()

        return undo

    def reaches(self, one: str, other: str) -> bool:
        """Return whether messages get from one process to another."""
        return (one, other) not in self._cut

    def partition(self, one: Collection[str], other: Collection[str]) -> Callable[[], None]:
        """Let no message get from some processes to others, in either direction. Return what heals it."""
        pairs = [pair for a in one for b in other if a != b for pair in ((a, b), (b, a))]
        for pair in pairs:
            self._cut[pair] = self._cut.get(pair, 0) + 1

        def heal() -> None:
            for pair in pairs:
                self._cut[pair] -= 1
                if not self._cut[pair]:
                    del self._cut[pair]
                    for pipe in sorted(self._pipes.get(pair, ()), key=lambda pipe: pipe.number):
                        pipe.healed()

        return heal

    # --- Datagrams -----------------------------------------------------------------------------------------------

    def send(self, source: str, target: str, data: bytes, deliver: Callable[[bytes], object]) -> None:
        """Send a message; `deliver` is called in the target process, at most twice, and not at all if it is lost."""
        self.record(source, target, data)
        conditions, random = self.between(source, target), self.random
        if (source, target) in self._cut or (conditions.loss and random.random() < conditions.loss):
            return
        copies = 2 if conditions.duplicate and random.random() < conditions.duplicate else 1
        for _ in range(copies):
            self.later(target, self._loop.time() + self.latency(source, target), deliver, data)

    def latency(self, source: str, target: str) -> float:
        """Draw how long a message takes."""
        conditions, random = self.between(source, target), self.random
        taken = conditions.latency.draw(random) + conditions.delay
        if conditions.reorder and random.random() < conditions.reorder:
            taken += random.random() * 20 * conditions.latency.most
        return taken

    def record(self, source: str, target: str, data: bytes) -> None:
        """Let a message be part of the trace."""
        simulation = self._simulation
        simulation.messages += 1
        simulation.record(f"{self._loop.time()!r} {source}>{target} ".encode() + data)

    def running(self, target: str) -> SimulatedProcess | None:
        """Return the process of a name, if it runs."""
        return self._simulation.process(target) if self._simulation.runs(target) else None

    def later(self, target: str, when: float, call: Callable[..., object], *args: Any) -> None:
        """Call a function in a process at a time; not at all if the process does not run, or has ended by then."""
        process = self.running(target)
        if process is None:
            return
        known = self._contexts.get(target)
        if known is None or known[0] is not process:
            known = self._contexts[target] = process, self._loop.context_of(process)
        self._loop.call_at(when, call, *args, context=known[1])

    # --- Connections ---------------------------------------------------------------------------------------------

    def pipe(self, source: str, target: str) -> "Pipe":
        """Return one direction of a connection between two processes that run now."""
        made = Pipe(self, source, target, next(self._numbers))
        self._pipes.setdefault((source, target), WeakSet()).add(made)
        return made

    async def connect(self, source: str, target: str, channel: Channel) -> "_Side":
        """Open a connection to a process that listens. Raises `OSError` if none does, or nothing gets there.

        The channel has its transport then.
        """
        await asyncio.sleep(self.latency(source, target) + self.latency(target, source))
        listener = self._listening.get(target)
        if not self.reaches(source, target):
            # As long as a connection is tried; whoever is not patient enough cancels this.
            await asyncio.sleep(_UNREACHED)
            raise TimeoutError(110, "connection timed out")
        if listener is None or not self._simulation.runs(target):
            raise ConnectionRefusedError(111, "connection refused")
        near, far = _Side(self, source, target), _Side(self, target, source)
        near.peer, far.peer = far, near
        for side in (near, far):
            self._connections.setdefault(side.process, {})[side] = None
        self.later(target, self._loop.time(), listener.accept, far, source)
        near.open(channel)
        return near

    def forget(self, side: "_Side") -> None:
        """Forget one side of a connection that has ended."""
        self._connections.get(side.process, {}).pop(side, None)
        self.slow.pop(side.peer.pipe.number, None)

    async def resent(self, seconds: float) -> None:
        """Wait until open connections have sent again what was lost, some seconds at most.

        The longer something is lost, the later it is sent again, as with TCP; whoever hears nothing may connect again.
        """
        end = self.now + seconds
        while self.now < end and any(arrival > self.now for arrival in self.slow.values()):
            await asyncio.sleep(_SLOW)

    def crashed(self, process: str) -> None:
        """End the connections of a process that has ended: the other sides notice it after a while."""
        self._listening.pop(process, None)
        for side in list(self._connections.pop(process, ())):
            self.forget(side)
            side.crashed()

    # --- Links ---------------------------------------------------------------------------------------------------

    def listener(self, process: str) -> Callable[[Endpoint, str, int, Serve, Refused], Any]:
        """Return what makes the listener of a process, as `penstock.broker.wire.link.listen` does on a machine."""

        async def listen(endpoint: Endpoint, _host: str, _port: int, serve: Serve, refused: Refused) -> Any:
            made = self._listening[process] = SimulatedListener(endpoint, serve, refused, partial(self._close, process))
            return made

        return listen

    def _close(self, process: str, listener: "SimulatedListener") -> None:
        if self._listening.get(process) is listener:
            del self._listening[process]

    def address(self, source: str, target: str, principal: Principal | None = None) -> "SimulatedAddress":
        """Return the address at which one process reaches another that listens."""
        return SimulatedAddress(self, source, target, principal)


#: seconds until a connection is given up that nothing answers
_UNREACHED: Final = 20.0


class Pipe:
    """One direction of a connection: what is put in arrives later, in order, unless the target process has ended."""

    def __init__(self, network: SimulatedNetwork, source: str, target: str, number: int) -> None:
        self._network = network
        self._source, self._target = source, target
        self.number = number
        self._process = network.running(target)
        #: when what was put in last arrives
        self._arrival = 0.0
        #: what waits for the end of a partition
        self._stuck: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    @property
    def broken(self) -> bool:
        """Whether the target process has ended since, or did not run."""
        return self._process is None or self._process is not self._network.running(self._target)

    def put(self, data: bytes, call: Callable[..., object], *args: Any) -> None:
        """Send some bytes, which are part of the trace; call a function in the target process when they arrive."""
        network = self._network
        network.record(self._source, self._target, data)
        if not network.reaches(self._source, self._target):
            self._stuck.append((call, args))
            return
        taken, resend = network.latency(self._source, self._target), _RESEND
        loss = network.between(self._source, self._target).loss
        while loss and network.random.random() < loss:
            taken += resend
            resend *= 2
        self._deliver(taken, call, args)

    def _deliver(self, taken: float, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        network = self._network
        if not self.broken:
            # Nothing overtakes on a connection.
            self._arrival = max(self._arrival, network.now + taken)
            if self._arrival > network.now + _SLOW:
                network.slow[self.number] = self._arrival
            network.later(self._target, self._arrival, call, *args)

    def healed(self) -> None:
        """Send what was stuck: the partition is over."""
        stuck, self._stuck = self._stuck, []
        for call, args in stuck:
            self._deliver(_RESEND + self._network.latency(self._source, self._target), call, args)


class _Side(asyncio.Transport):
    """One side of a connection: the transport of a channel."""

    peer: "_Side"

    def __init__(self, network: SimulatedNetwork, process: str, other: str) -> None:
        super().__init__()
        self._network = network
        self.process = process
        self.other = other
        self._channel: Channel | None = None
        self._closing = self._ended = False
        self.pipe = network.pipe(process, other)
        #: what the own channel does not read
        self._unread: deque[bytes | None] = deque()
        self._reading = True
        #: bytes that the other side has not read
        self._unacknowledged = 0
        self._high = _WINDOW
        self._full = False

    def open(self, channel: Channel) -> None:
        """Carry the bytes of a channel."""
        self._channel = channel
        channel.connection_made(self)
        self._read()

    # What the channel calls.

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:  # noqa: ARG002  # as asyncio has it
        """Set the number of waiting bytes from which the channel must wait."""
        self._high = (high or 0) + _WINDOW

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes."""
        if self._closing:
            return
        content = bytes(data)
        self._unacknowledged += len(content)
        self._send(content)
        if self._unacknowledged > self._high and not self._full and self._channel is not None:
            self._full = True
            self._channel.pause_writing()

    def pause_reading(self) -> None:
        """Keep what arrives."""
        self._reading = False

    def resume_reading(self) -> None:
        """Hand on what has arrived."""
        if not self._reading:
            self._reading = True
            asyncio.get_running_loop().call_soon(self._read)

    def is_closing(self) -> bool:
        """Return whether the end has begun."""
        return self._closing

    def close(self) -> None:
        """Send what waits, and end."""
        if not self._closing:
            self._closing = True
            self._send(None)
            asyncio.get_running_loop().call_soon(self._lose, None)

    def abort(self) -> None:
        """End now."""
        self.close()

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ARG002  # there is no socket
        """Return nothing."""
        return default

    # What the network calls.

    def _send(self, data: bytes | None) -> None:
        self.pipe.put(data or b"", self.peer.arrive, data)

    def crashed(self) -> None:
        """End, because the process has: the system closes what it had open."""
        self._closing = self._ended = True
        self._send(None)

    def arrive(self, data: bytes | None) -> None:
        """Take what the other side has sent; None is its end."""
        self._unread.append(data)
        if self._reading:
            self._read()

    def _read(self) -> None:
        while self._unread and self._reading and self._channel is not None and not self._ended:
            data = self._unread.popleft()
            if data is None:
                self._closing = True
                self._lose(None)
                return
            self.peer.read(len(data))
            self._channel.data_received(data)

    def read(self, size: int) -> None:
        """Record that the other side has read so many bytes."""
        self._unacknowledged -= size
        if self._full and self._unacknowledged <= self._high // 4 and not self._ended:
            self._full = False
            self._network.later(
                self.process,
                self._network.now + self._network.latency(self.other, self.process),
                self._resume,
            )

    def _resume(self) -> None:
        if self._channel is not None and not self._ended:
            self._channel.resume_writing()

    def _lose(self, error: Exception | None) -> None:
        if not self._ended:
            self._ended = True
            self._network.forget(self)
            if self._channel is not None:
                self._channel.connection_lost(error)


@dataclass(frozen=True, slots=True)
class SimulatedAddress:
    """The address of a process that listens, as another process uses it (`penstock.broker.wire.transports.Address`)."""

    network: SimulatedNetwork = field(repr=False)
    source: str
    target: str
    principal: Principal | None = None

    def __str__(self) -> str:
        return self.target

    async def call(self, endpoint: Endpoint) -> Link:
        """Open a link. Raises as `penstock.broker.wire.link.connect`."""
        channel = Channel(asyncio.get_running_loop(), endpoint.limits, opening=2)

        async def shake() -> AuthenticatedPeer:
            await self.network.connect(self.source, self.target, channel)
            terms = HandshakeTerms(endpoint.key, endpoint.network, _BINDING)
            return await introduce(channel, Connecting(terms, endpoint.random, self.principal))

        return await meet(endpoint, channel, shake, self.target)


class SimulatedListener(Reception):
    """Accepts links of a simulated process."""

    port = 0

    def __init__(
        self, endpoint: Endpoint, serve: Serve, refused: Refused, closed: Callable[["SimulatedListener"], None]
    ) -> None:
        super().__init__(endpoint, serve, refused)
        self._closed = closed

    def accept(self, side: _Side, source: str) -> None:
        """Begin the handshake with a process that connects."""
        channel = self._new_channel()
        side.open(channel)
        self._greet(channel, partial(self._shake, channel), source)

    async def _shake(self, channel: Channel) -> AuthenticatedPeer:
        self._speaks()
        side = Accepting(HandshakeTerms(self._endpoint.key, self._endpoint.network, _BINDING), self._endpoint.random)
        channel.write(raw_frame(side.open()))
        proof = side.receive(await channel.take_one())
        self._check_places()
        channel.write(raw_frame(proof or b""))
        return side.peer

    async def close(self) -> None:
        """Stop accepting, close all links, and wait until they are closed."""
        self._closed(self)
        await self._dismiss()

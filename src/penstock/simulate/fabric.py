"""A fabric across a simulated network: servers in the process `fabric`, and clients in all others.

The servers are an `EmbeddedFabric`, whose persistent topics are on the disk of their process. Requests of clients and
samples go over ordered connections, as with NATS: what the network loses comes later, and a partition delays it.
Samples of best-effort topics can be lost, and overtake each other.

If the servers crash they lose what only memory had: the samples of topics that are not persistent. When they are back,
clients subscribe again, and get what durable topics have kept since the last sample that they have seen.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import FailedError, PenstockError
from penstock.fabric.embedded import EmbeddedFabric, EmbeddedPublisher, FileKeeper
from penstock.fabric.envelope import WRITER_BYTES, Sample, check
from penstock.fabric.limits import FABRIC_LIMITS, FabricLimits
from penstock.fabric.port import (
    Fabric,
    Handler,
    KeyChoice,
    Publisher,
    SampleReader,
    Service,
    TopicSubscription,
    answer,
    closed,
    no_reply,
    not_owner,
)
from penstock.fabric.qos import Durability, Qos
from penstock.fabric.tasks import in_background
from penstock.simulate.network import Pipe

if TYPE_CHECKING:
    from penstock.simulate.simulation import Simulation

FABRIC: Final = "fabric"
#: seconds that a client waits for an answer of the servers
_PATIENCE: Final = 5.0
#: seconds until a client connects to servers that were restarted, and between two attempts
_NOTICED: Final = (0.05, 0.3)
_AGAIN: Final = 0.25
#: samples of a writer that a client remembers, to recognise copies
_REMEMBERED: Final = 64


class FabricServers:
    """The servers, and the clients of all processes. `start` starts them, also after a crash."""

    def __init__(self, simulation: "Simulation") -> None:
        self.simulation = simulation
        self._clients: dict[str, tuple[object, SimulatedFabric]] = {}
        #: the topics that all servers of a real fabric would know after a restart
        self._topics: dict[str, Qos] = {}
        self.start()

    def start(self) -> None:
        """Start the servers."""
        simulation = self.simulation
        self._embedded = EmbeddedFabric(
            clock=simulation.clock(FABRIC),
            random=simulation.random(FABRIC).randbytes,
            keeper=FileKeeper(simulation.disk(FABRIC).database("topics")),
        )
        self._writers: dict[bytes, EmbeddedPublisher] = {}
        self._readers: dict[_Feed, _RemoteReader] = {}
        self._services: dict[_RemoteService, Service] = {}
        simulation.start(FABRIC, self._declare_again())
        for process, (_, client) in self._clients.items():
            pause = simulation.random(FABRIC).uniform(*_NOTICED)
            simulation.network.later(process, simulation.time + pause, client.reconnect)

    def crashed(self, process: str) -> None:
        """Notice that a process has ended."""
        self._clients.pop(process, None)
        if process != FABRIC and self.simulation.runs(FABRIC):
            self.simulation.start(FABRIC, self.left(process))

    async def _declare_again(self) -> None:
        for topic, qos in self._topics.items():
            if qos.durability is not Durability.PERSISTENT:
                await self._embedded.declare(topic, qos)

    def client(self, process: str) -> "SimulatedFabric":
        """Return the client of a process that runs, always the same one."""
        running = self.simulation.process(process)
        known = self._clients.get(process)
        if known is None or known[0] is not running:
            known = self._clients[process] = running, SimulatedFabric(self, process)
        return known[1]

    # What clients ask for. All of it runs in the process of the servers.

    async def declare(self, topic: str, qos: Qos) -> None:
        """Declare a topic."""
        await self._embedded.declare(topic, qos)
        self._topics[topic] = qos

    async def remove(self, topic: str) -> None:
        """Remove a topic."""
        await self._embedded.remove(topic)
        self._topics.pop(topic, None)

    async def describe(self, topic: str) -> Qos:
        """Return what a topic offers."""
        return await self._embedded.describe(topic)

    async def state(self, topic: str, key: str | None) -> tuple[Sample, ...]:
        """Return what a topic keeps."""
        return await self._embedded.state(topic, key)

    async def discard(self, topic: str, through: Sample) -> None:
        """Delete what a topic keeps up to a sample."""
        await self._embedded.discard(topic, through)

    async def writer(self, topic: str, writer: bytes, strength: int, instance: str, epoch: int) -> EmbeddedPublisher:
        """Return a writer, which has claimed its topic if that has an owner.

        After a restart it goes on with the epoch that its client knows. Raises `RefusedError` (`fabric.not-owner`) if
        another writer has claimed the topic since.
        """
        found = self._writers.get(writer)
        if found is None:
            if epoch not in (0, self._embedded._topic(topic).epoch):  # noqa: SLF001  # of its own kind
                raise not_owner()
            found = await self._embedded.publisher_as(topic, writer, strength=strength, instance=instance)
            self._writers[writer] = found
        return found

    async def open_writer(self, *about: Any) -> int:
        """Make a writer, and return its epoch."""
        return (await self.writer(*about)).claim()

    async def publish(self, sample: Sample, *about: Any) -> Sample:
        """Write a sample, and return it with its position and epoch."""
        return await (await self.writer(*about)).forward(sample)

    async def renew(self, *about: Any) -> None:
        """Renew a writer's lease."""
        await (await self.writer(*about)).alive()

    async def release(self, *about: Any) -> None:
        """End a writer."""
        writer = await self.writer(*about)
        self._writers.pop(writer.writer, None)
        await writer.close()

    async def read(self, feed: "_Feed") -> None:
        """Send the samples of a topic to a client: those after a position, and those that come."""
        await self.leave(feed)
        offered = await self._embedded.describe(feed.topic)
        new = partial(_RemoteReader, feed, self.simulation, reliable=offered.reliable)
        made = await self._embedded._read(feed.topic, offered, feed.qos, new)  # noqa: SLF001  # of its own kind
        if isinstance(made, _RemoteReader):
            self._readers[feed] = made

    async def choose(self, feed: "_Feed", choice: KeyChoice, new: bool) -> None:
        """Let a reader read further keys, or fewer."""
        if feed in self._readers:
            await (self._readers[feed].add(choice) if new else self._readers[feed].drop(choice))

    async def choose_instances(self, feed: "_Feed", instances: frozenset[str]) -> None:
        """Let a reader read other instances."""
        if feed in self._readers:
            self._readers[feed].read_instances(instances)

    async def leave(self, feed: "_Feed") -> None:
        """End a reader."""
        reader = self._readers.pop(feed, None)
        if reader is not None:
            await reader.close()

    async def serve(self, service: "_RemoteService") -> None:
        """Let a client answer requests."""
        await self.unserve(service)

        async def handle(sample: Sample) -> bytes:
            work, process = service.answer(sample), service.client.process
            found: bytes = await _ask(self.simulation, FABRIC, process, sample.data, work, math.inf)
            return found

        self._services[service] = await self._embedded.serve(service.topic, handle)

    async def unserve(self, service: "_RemoteService") -> None:
        """Let a client answer no more."""
        found = self._services.pop(service, None)
        if found is not None:
            await found.close()

    async def left(self, process: str) -> None:
        """End the readers and services of a client whose process has ended."""
        for feed in [feed for feed in self._readers if feed.client.process == process]:
            await self.leave(feed)
        for service in [service for service in self._services if service.client.process == process]:
            await self.unserve(service)

    async def request(self, topic: str, data: bytes, timeout: float, key: str, headers: Mapping[str, str]) -> bytes:
        """Ask a service."""
        return await self._embedded.request(topic, data, timeout=timeout, key=key, headers=headers)


async def _ask(  # noqa: PLR0913, PLR0917  # two processes, and what goes between them
    simulation: "Simulation",
    source: str,
    target: str,
    data: bytes,
    work: Coroutine[Any, Any, Any],
    patience: float,
    there: Pipe | None = None,
) -> Any:
    """Let another process do some work, and return its result. Raises what it raises, and `FailedError`."""
    network, answered = simulation.network, simulation.loop.create_future()

    def begin() -> None:
        in_background("a request of the fabric", do())

    async def do() -> None:
        back = network.pipe(target, source)
        try:
            result = await work
        except PenstockError as error:
            back.put(error.code.encode(), settle, None, error)
        else:
            back.put(result if isinstance(result, bytes) else b"", settle, result, None)

    def settle(result: Any, error: PenstockError | None) -> None:
        if answered.done():
            return
        if error is not None:
            answered.set_exception(error.with_traceback(None))
        else:
            answered.set_result(result)

    (there or network.pipe(source, target)).put(data, begin)
    try:
        async with asyncio.timeout(None if patience == math.inf else patience):
            return await answered
    except TimeoutError:
        raise unreachable() from None
    finally:
        # If the message was lost, nobody has begun with it, and nobody will.
        simulation.loop.keep(work)


def unreachable() -> FailedError:
    """Return the error for servers that do not answer."""
    return FailedError(
        "fabric.unreachable", "the servers of the fabric do not answer", hint="what was asked may have been done or not"
    )


class _RemoteReader(TopicSubscription):
    """The reader of a client, at the servers: everything goes to the client, whose reader has the policies."""

    def __init__(self, feed: "_Feed", simulation: "Simulation", *, reliable: bool, **hooks: Any) -> None:
        wanted = feed.subscription
        super().__init__(
            SampleReader(feed.qos),
            simulation.clock(FABRIC),
            keys=None if wanted.keys is None else list(wanted.keys),
            instances=wanted.instances,
            on_writer=(lambda _writer, _there: None) if wanted.watching else None,
            **hooks,
        )
        self._feed = feed
        self._network = simulation.network
        self._pipe = None if not reliable else simulation.network.pipe(FABRIC, feed.client.process)
        self._words = simulation.network.pipe(FABRIC, feed.client.process)

    def receive(self, sample: Sample, *, wake: bool = True) -> None:  # noqa: ARG002  # of the port
        """Send a sample to the client."""
        if self._closed or (sample.position and sample.position <= self._feed.after):
            return
        if self._pipe is not None:
            self._pipe.put(sample.data, self._feed.arrive, sample)
        else:
            arrive = partial(self._arrive, sample)
            self._network.send(FABRIC, self._feed.client.process, sample.data, arrive)

    def _arrive(self, sample: Sample, _data: bytes) -> None:
        self._feed.arrive(sample)

    def heard(self, writer: bytes) -> None:
        """Tell the client that a writer is there."""
        if self.watching:
            (self._pipe or self._words).put(writer, self._feed.subscription.heard, writer)

    def lost(self, writer: bytes) -> None:
        """Tell the client that a writer is gone."""
        if self.watching:
            (self._pipe or self._words).put(writer, self._feed.subscription.lost, writer)

    def fail(self, error: PenstockError) -> None:
        """Tell the client that the topic is gone."""
        super().fail(error)
        self._words.put(error.code.encode(), self._feed.subscription.fail, error)


class _Feed:
    """A subscription of a client, and how far it has read."""

    def __init__(self, client: "SimulatedFabric", topic: str, qos: Qos, subscription: TopicSubscription) -> None:
        self.client = client
        self.topic = topic
        self.qos = qos
        self.subscription = subscription
        #: the position of the last sample that has arrived
        self.after = 0
        self._seen: dict[bytes, deque[int]] = {}

    def arrive(self, sample: Sample) -> None:
        """Take a sample from the servers; drop a copy."""
        seen = self._seen.setdefault(sample.writer, deque(maxlen=_REMEMBERED))
        if sample.sequence in seen:
            return
        seen.append(sample.sequence)
        self.after = max(self.after, sample.position)
        self.subscription.receive(sample)


class _RemoteService(Service):
    def __init__(self, client: "SimulatedFabric", topic: str, handler: Handler) -> None:
        self.client = client
        self.topic = topic
        self._handler = handler
        self._answering: set[asyncio.Task[Any] | None] = set()

    async def answer(self, sample: Sample) -> bytes:
        """Answer a request."""
        task = asyncio.current_task()
        self._answering.add(task)
        try:
            return await answer(self.topic, self._handler, sample)
        finally:
            self._answering.discard(task)

    async def close(self) -> None:
        for task in self._answering:
            if task is not None:
                task.cancel()
        await self.client.stop_serving(self)


class SimulatedFabric(Fabric):
    """The fabric as one process sees it."""

    MAPPING = MappingProxyType({policy: f"at the servers: {text}" for policy, text in EmbeddedFabric.MAPPING.items()})

    def __init__(self, servers: FabricServers, process: str, limits: FabricLimits = FABRIC_LIMITS) -> None:
        self._servers = servers
        self._simulation = servers.simulation
        self.process = process
        self.clock = servers.simulation.clock(process)
        self.limits = limits
        self._random = servers.simulation.random(f"writers of {process}")
        self._feeds: dict[_Feed, None] = {}
        self._services: dict[_RemoteService, None] = {}
        self._closed = False
        self._pipe = self._simulation.network.pipe(process, FABRIC)

    async def ask(
        self, what: str, work: Coroutine[Any, Any, Any], data: bytes = b"", patience: float = _PATIENCE
    ) -> Any:
        """Let the servers do some work, and return its result. Raises `FailedError` (`fabric.unreachable`)."""
        if self._closed:
            work.close()
            raise closed()
        if self._pipe.broken:
            self._pipe = self._simulation.network.pipe(self.process, FABRIC)
        words = what.encode() + data
        return await _ask(self._simulation, self.process, FABRIC, words, work, patience, self._pipe)

    def reconnect(self) -> None:
        """Subscribe and serve again: the servers have started again."""
        in_background("connecting to the fabric again", self._subscribe_again())

    async def _subscribe_again(self) -> None:
        pending: list[_Feed | _RemoteService] = [*self._feeds, *self._services]
        while pending and not self._closed:
            one = pending[0]
            try:
                if isinstance(one, _Feed):
                    if one.qos.durability is not Durability.PERSISTENT:
                        one.after = 0
                    if one in self._feeds:
                        await self.ask(f"read {one.topic}", self._servers.read(one))
                elif one in self._services:
                    await self.ask(f"serve {one.topic}", self._servers.serve(one))
                pending.pop(0)
            except FailedError:
                await asyncio.sleep(_AGAIN)
            except PenstockError as error:
                # The topic is gone.
                if isinstance(one, _Feed):
                    one.subscription.fail(error)
                pending.pop(0)

    # The port.

    async def declare(self, topic: str, qos: Qos) -> None:
        """Create a topic, or check that it exists with the same quality of service."""
        await self.ask(f"declare {topic}", self._servers.declare(topic, qos))

    async def describe(self, topic: str) -> Qos:
        """Return the policies that a topic offers."""
        found: Qos = await self.ask(f"describe {topic}", self._servers.describe(topic))
        return found

    async def remove(self, topic: str) -> None:
        """Remove a topic and its samples, and end its subscriptions."""
        await self.ask(f"remove {topic}", self._servers.remove(topic))

    async def publisher(self, topic: str, *, strength: int = 0, instance: str = "") -> "SimulatedPublisher":
        """Return a writer of a topic."""
        about = topic, self._random.randbytes(WRITER_BYTES), strength, instance
        epoch: int = await self.ask(f"writer {topic}", self._servers.open_writer(*about, 0))
        return SimulatedPublisher(self, self._servers, about, epoch)

    async def _read(
        self,
        topic: str,
        offered: Qos,  # noqa: ARG002  # of the port
        qos: Qos,
        new: Callable[..., TopicSubscription],
    ) -> TopicSubscription:
        async def leave(_subscription: TopicSubscription) -> None:
            self._feeds.pop(feed, None)
            if not self._closed:
                with suppress(FailedError):
                    await self.ask(f"leave {topic}", self._servers.leave(feed))

        async def choose(_subscription: TopicSubscription, choice: KeyChoice, more: bool) -> None:  # a hook
            await self.ask(f"choose {topic}", self._servers.choose(feed, choice, more))

        def choose_instances(_subscription: TopicSubscription, instances: frozenset[str]) -> None:
            in_background("choosing instances", self._choose_instances(feed, instances))

        made = new(leave=leave, choose=choose, choose_instances=None if qos.durable else choose_instances)
        feed = _Feed(self, topic, qos, made)
        await self.ask(f"read {topic}", self._servers.read(feed))
        self._feeds[feed] = None
        return made

    async def _choose_instances(self, feed: _Feed, instances: frozenset[str]) -> None:
        while feed in self._feeds and feed.subscription.instances == instances:
            try:
                await self.ask(f"choose {feed.topic}", self._servers.choose_instances(feed, instances))
            except FailedError:
                await asyncio.sleep(_AGAIN)
            else:
                return

    async def state(self, topic: str, key: str | None = None) -> tuple[Sample, ...]:
        """Return the samples that a topic keeps now."""
        found: tuple[Sample, ...] = await self.ask(f"state {topic}", self._servers.state(topic, key))
        return found

    async def discard(self, topic: str, through: Sample) -> None:
        """Delete what a topic keeps up to a sample."""
        await self.ask(f"discard {topic}", self._servers.discard(topic, through))

    async def serve(self, topic: str, handler: Handler) -> Service:
        """Answer requests on a topic."""
        made = _RemoteService(self, topic, handler)
        await self.ask(f"serve {topic}", self._servers.serve(made))
        self._services[made] = None
        return made

    async def stop_serving(self, service: _RemoteService) -> None:
        """Answer no more."""
        if self._services.pop(service, 0) is None and not self._closed:
            with suppress(FailedError):
                await self.ask(f"unserve {service.topic}", self._servers.unserve(service))

    async def request(
        self, topic: str, data: bytes, *, timeout: float, key: str = "", headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Send a request on a topic and return the response."""
        check(data, key, headers or {}, self.limits)
        work = self._servers.request(topic, data, timeout, key, dict(headers or {}))
        try:
            found: bytes = await self.ask(f"request {topic}", work, data, timeout)
        except FailedError as error:
            raise (no_reply(topic) if error.code == "fabric.unreachable" else error) from None
        return found

    async def close(self) -> None:
        """Close all subscriptions and services."""
        for feed in list(self._feeds):
            await feed.subscription.close()
        for service in list(self._services):
            await service.close()
        self._closed = True


class SimulatedPublisher(Publisher):
    """Writes to a topic across the network."""

    def __init__(
        self, fabric: SimulatedFabric, servers: FabricServers, about: tuple[str, bytes, int, str], epoch: int
    ) -> None:
        topic, writer, _, instance = about
        super().__init__(topic, writer, fabric.clock, fabric.limits, instance=instance)
        self._fabric = fabric
        self._servers = servers
        #: topic, id, strength and instance, as the servers know it; and the epoch of its claim, if it has one
        self._about = about
        self._epoch = epoch

    async def _send(self, sample: Sample) -> int:
        work = self._servers.publish(sample, *self._about, self._epoch)
        written: Sample = await self._fabric.ask(f"publish {self.topic} {sample.key} ", work, sample.data)
        self._epoch = written.epoch
        return written.position

    async def alive(self) -> None:
        """Renew the lease and the claim."""
        if self._closed:
            raise closed()
        await self._fabric.ask(f"alive {self.topic}", self._servers.renew(*self._about, self._epoch))

    async def _release(self) -> None:
        with suppress(FailedError):
            await self._fabric.ask(f"release {self.topic}", self._servers.release(*self._about, self._epoch))

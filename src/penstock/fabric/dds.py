"""A fabric over DDS (Cyclone DDS): samples go from writers to readers, and a keeper keeps what late readers need.

    volatile                    from writer to reader
    transient or persistent     through the domain's `DdsKeeper`, which hands late readers what it keeps

DDS carries reliability, lifespan, latency budget, priority, ownership and instances (partitions). History, order,
deadline and time-based filter are applied at the reader as on every fabric, because DDS drops samples without counting
them. The domain is not trusted: anyone in it sees topic names, keys, times and bytes, and can write. Seals and
signatures above this port show whether the bytes are what a writer wrote. See docs/adr/0063-dds.md.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar

from penstock.errors import FailedError, LimitError, MalformedError, PenstockError, RefusedError
from penstock.fabric.dds_keeper import CONTROL, GONE, ID_BYTES, KEEPER, NUMBER_BYTES, sample_topic
from penstock.fabric.dds_link import (
    DdsAddress,
    DdsLink,
    DdsReader,
    DdsWriter,
    pack,
    pack_message,
    policies,
    reader_policies,
    unpack,
    unpack_message,
)
from penstock.fabric.envelope import MICROSECONDS, WRITER_BYTES, Sample, check, decode, encode
from penstock.fabric.limits import FABRIC_LIMITS, FabricLimits
from penstock.fabric.port import (
    Clock,
    Fabric,
    Handler,
    Publisher,
    RandomBytes,
    Service,
    SystemClock,
    TopicSubscription,
    answer,
    check_instances,
    check_name,
    closed,
    handler_failed,
    no_reply,
    unknown,
)
from penstock.fabric.qos import FOREVER, Ownership, Qos, check_offer
from penstock.fabric.tasks import in_background, keep_running

_T = TypeVar("_T")
_HELLO: Final = b"\0"  # before a writer's id: it can be heard
_SAMPLE: Final = b"\1"  # before a sample
_PAUSE: Final = 0.02  # seconds until the first repetition; doubles
_LONGEST_PAUSE: Final = 0.2
_FULL: Final = 0.005  # seconds until DDS is asked again whether it takes a sample
_ACKS: Final = 1.0  # seconds that a writer that closes waits for its readers
_ERRORS: Final[Mapping[str, type[PenstockError]]] = {
    each.__name__: each for each in (RefusedError, FailedError, MalformedError, LimitError)
}


@dataclass(eq=False)
class _Pending:
    """A call that waits for its reply."""

    done: asyncio.Future[dict[str, Any]]
    bodies: list[bytes] = field(default_factory=list)


@dataclass(eq=False)
class _Reading:
    """A subscription with its DDS reader."""

    id: bytes
    topic: str
    subscription: TopicSubscription
    entity: DdsReader | None = None
    after: int = 0  # numbers of the keeper that the reader does not want
    heard: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    stir: asyncio.Event = field(default_factory=asyncio.Event)
    #: writer and sequence of what came from the keeper
    seen: OrderedDict[tuple[bytes, int], None] = field(default_factory=OrderedDict)


class DdsFabric(Fabric):
    """The fabric over DDS; `await DdsFabric.connect(address)` opens it. A `DdsKeeper` must run in the domain."""

    MAPPING = MappingProxyType(
        {
            "durability": "transient and persistent: kept by the domain's keeper, the latter in its file",
            "history": "the newest of each key at the keeper and the reader; keep-all: a full topic refuses "
            "(`fabric.full`)",
            "ownership": "exclusive: a claim with an epoch at the keeper, checked at each publishing; the epoch is the "
            "strength in DDS",
            "source_order": "by-source: older samples of a key are dropped, or counted as late if history is keep-all",
            "reliability": "reliable: DDS repeats until readers acknowledge; durable samples are stored before "
            "publishing returns",
            "time_filter": "at the reader: the newest of each period and key",
            "deadline": "at the reader: `on_deadline`, and counted",
            "lifespan": "DDS drops what is over, and checked when a sample arrives and is taken",
            "latency_budget": "DDS may delay so long to batch; later deliveries are counted",
            "priority": "DDS's transport priority",
            "lease": "messages through the keeper, which also reports clients that DDS finds gone; `on_writer` at the "
            "reader",
        }
    )

    def __init__(  # noqa: PLR0913  # what `connect` was given
        self,
        link: DdsLink,
        *,
        prefix: str,
        timeout: float,
        clock: Clock,
        random: RandomBytes,
        limits: FabricLimits,
    ) -> None:
        self._link = link
        self._prefix = prefix
        self.timeout = timeout
        self.clock = clock
        self.limits = limits
        self._random = random
        self._id = random(ID_BYTES)
        self._numbers = 0
        self._pending: dict[int, _Pending] = {}
        self._readings: dict[bytes, _Reading] = {}
        self._publishers: dict[bytes, DdsTopicPublisher] = {}
        self._services: dict[str, _DdsService] = {}
        self._offers: dict[str, Qos] = {}
        self._joined = False
        self._rejoining: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[None]] = set()
        #: messages of the keeper's topic that did not read
        self.malformed = 0
        control = policies(CONTROL, limits)
        self._replies = link.reader(
            f"{prefix}/replies",
            control,
            self._take,
            keyed=True,
            partitions=[self._id.hex()],
            on_gone=self._keeper_gone,
        )
        self._calls = link.writer(f"{prefix}/calls", control, keyed=True)

    @classmethod
    async def connect(  # noqa: PLR0913  # named settings, each with a default
        cls,
        address: DdsAddress | str,
        *,
        prefix: str = "penstock",
        timeout: float = 5.0,
        clock: Clock | None = None,
        random: RandomBytes = secrets.token_bytes,
        limits: FabricLimits = FABRIC_LIMITS,
    ) -> Self:
        """Open a fabric in a DDS domain. `timeout` is for the keeper's answers.

        Raises `MalformedError` (`fabric.bad-address`, `fabric.bad-name`) and `FailedError` (`fabric.unreachable`,
        `fabric.refused`).
        """
        if not (prefix.isascii() and prefix.isalnum()):
            raise MalformedError("fabric.bad-name", "a prefix has letters and digits")
        parsed = DdsAddress.parse(address) if isinstance(address, str) else address
        link = DdsLink(parsed)
        try:
            made = cls(link, prefix=prefix, timeout=timeout, clock=clock or SystemClock(), random=random, limits=limits)
            await made._hello()
        except BaseException:
            await link.close()
            raise
        made._joined = True
        return made

    async def _hello(self) -> None:
        """Repeat a call until the keeper answers one: it and this fabric have to discover each other first.

        Raises `FailedError` (`fabric.unreachable`).
        """
        left, pause = self.timeout, _PAUSE
        number, pending = self._expect()
        try:
            while not pending.done.done():
                if left <= 0:
                    raise _no_keeper()
                self._tell({"op": "hello"}, number=number)
                await asyncio.wait((pending.done,), timeout=pause)
                left -= pause  # not what the clock says: if this process stands still, the answer waits for it
                pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            del self._pending[number]

    # topics

    async def declare(self, topic: str, qos: Qos) -> None:
        """Make a topic, or confirm that it exists with this quality of service."""
        check_name(topic, self.limits)
        check_offer(qos)
        await self.call({"op": "declare", "topic": topic, "qos": qos.as_dict()})
        self._offers[topic] = qos

    async def describe(self, topic: str) -> Qos:
        """Return the policies that a topic offers."""
        check_name(topic, self.limits)
        found = self._read_qos(topic, (await self.call({"op": "describe", "topic": topic}))[0])
        self._offers[topic] = found
        return found

    def _read_qos(self, topic: str, reply: dict[str, Any]) -> Qos:
        try:
            return Qos.from_dict(reply["qos"])
        except (LookupError, TypeError, MalformedError) as error:
            raise FailedError("fabric.registry", f"what the keeper says about `{topic}` does not read") from error

    async def remove(self, topic: str) -> None:
        """Remove a topic and all that it keeps."""
        check_name(topic, self.limits)
        await self.call({"op": "remove", "topic": topic})
        self._offers.pop(topic, None)

    async def state(self, topic: str, key: str | None = None) -> tuple[Sample, ...]:
        """Return the samples that a topic keeps now."""
        check_name(topic, self.limits)
        _, body = await self.call({"op": "state", "topic": topic, "key": key})
        found, at = [], 0
        while at + 4 <= len(body):
            end = at + 4 + int.from_bytes(body[at : at + 4], "big")
            with suppress(MalformedError):
                found.append(_read_kept(body[at + 4 : end]))
            at = end
        return tuple(found)

    async def discard(self, topic: str, through: Sample) -> None:
        """Delete what the keeper keeps up to a sample."""
        check_name(topic, self.limits)
        await self.call({"op": "discard", "topic": topic, "position": through.position})

    async def publisher(self, topic: str, *, strength: int = 0, instance: str = "") -> "DdsTopicPublisher":
        """Return a writer of a topic."""
        check_name(topic, self.limits)
        check_instances((instance,), self.limits)
        made = DdsTopicPublisher(self, topic, self._random(WRITER_BYTES), strength=strength, instance=instance)
        try:
            await made.open()
        except BaseException:
            # It would be made known, and claim the topic, whenever the keeper is started again.
            with suppress(PenstockError):
                await made.close()
            raise
        return made

    async def open_writer(self, publisher: "DdsTopicPublisher", strength: int) -> tuple[Qos, int, DdsWriter | None]:
        """Make a writer known, and wait until the readers that are there hear it (called by publishers)."""
        writer = publisher.writer.hex()
        fields = {"op": "writer", "topic": publisher.topic, "writer": writer, "strength": strength}
        reply, _ = await self.call(fields | {"instance": publisher.instance})
        qos, epoch = self._read_qos(publisher.topic, reply), int(reply.get("epoch", 0))
        self._publishers[publisher.writer] = publisher
        if qos.durable:
            return qos, epoch, None
        real = isinstance(self.clock, SystemClock)
        return (
            qos,
            epoch,
            self._link.writer(
                sample_topic(self._prefix, publisher.topic),
                policies(qos, self.limits, real_time=real, epoch=epoch),
                partition=publisher.instance,
            ),
        )

    async def _read(
        self,
        topic: str,
        offered: Qos,
        qos: Qos,  # noqa: ARG002  # of the port
        new: Callable[..., TopicSubscription],
    ) -> TopicSubscription:
        # Instances are chosen by DDS, keys and the selector here.
        async def leave(_: TopicSubscription) -> None:
            self._readings.pop(reading.id, None)
            if not self._link.closed:
                if reading.entity is not None:
                    reading.entity.close()
                self._tell({"op": "close-reader", "reader": reading.id.hex()})

        made = new(leave=leave)
        reading = _Reading(self._random(ID_BYTES), topic, made)
        try:
            await self._open_reader(reading, offered)
        except BaseException:
            with suppress(PenstockError):
                await made.close()
            raise
        return made

    async def _open_reader(self, reading: _Reading, offered: Qos) -> None:
        made = reading.subscription
        partitions = ("*",) if made.instances is None else tuple(made.instances)
        if not offered.durable:  # it must hear before writers know of it
            reading.entity = self._link.reader(
                sample_topic(self._prefix, reading.topic),
                reader_policies(made.reader.qos, self.limits, kept=False),
                lambda raws: self._receive(reading, raws),
                partitions=partitions,
            )
        self._readings[reading.id] = reading
        reply = await self._register(reading)
        if offered.durable:  # nothing is lost before: DDS hands it what was kept
            reading.after = 0 if made.reader.qos.durable else int(reply.get("number", 0))
            reading.entity = self._link.reader(
                sample_topic(self._prefix, reading.topic),
                reader_policies(made.reader.qos, self.limits, kept=True),
                lambda raws: self._receive_kept(reading, raws),
                keyed=True,
                partitions=partitions,
            )
        else:
            await self._meet(reading, {bytes.fromhex(each) for each in reply.get("writers", ())})

    async def _register(self, reading: _Reading) -> dict[str, Any]:
        made = reading.subscription
        instances = None if made.instances is None else sorted(made.instances)
        fields = {"op": "reader", "topic": reading.topic, "reader": reading.id.hex(), "instances": instances}
        reply, _ = await self.call(fields | {"watching": made.watching})
        return reply

    async def _meet(self, reading: _Reading, writers: set[bytes]) -> None:
        """Wait until a reader hears these writers; some may be gone already."""
        loop = asyncio.get_running_loop()
        end, pause = loop.time() + self.timeout, _PAUSE
        while (missing := writers - reading.heard.keys()) and loop.time() < end and not self._link.closed:
            reading.stir.clear()
            self._poke(missing)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await reading.stir.wait()
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _poke(self, writers: Collection[bytes]) -> None:
        """Let writers say hello, those of this fabric directly."""
        for writer in writers:
            if writer in self._publishers:
                self._publishers[writer].say_hello()
        if elsewhere := [writer.hex() for writer in writers if writer not in self._publishers]:
            self._tell({"op": "poke", "writers": elsewhere})

    def _receive(self, reading: _Reading, raws: list[bytes]) -> None:
        """Take in what writers sent directly."""
        made = reading.subscription
        for raw in raws:
            try:
                data = unpack(raw)
                kind, rest = data[:1], data[1:]
                if kind == _HELLO and len(rest) == WRITER_BYTES:
                    _remember(reading.heard, rest, self.limits.fabric_keys)
                    reading.stir.set()
                elif kind == _SAMPLE:
                    made.receive(decode(rest))
                else:
                    made.counts.malformed += 1
            except MalformedError:
                made.counts.malformed += 1

    def _receive_kept(self, reading: _Reading, raws: list[bytes]) -> None:
        """Take in what the keeper wrote, in its order: DDS gives the samples of each key together."""
        made = reading.subscription
        arrived: list[Sample] = []
        for raw in raws:
            try:
                arrived.append(_read_kept(unpack(raw, keyed=True)))
            except MalformedError:
                made.counts.malformed += 1
        for sample in sorted(arrived, key=lambda one: one.position):
            # A keeper that was started again, or has discarded samples, writes again what it keeps.
            if sample.position > reading.after and (sample.writer, sample.sequence) not in reading.seen:
                _remember(reading.seen, (sample.writer, sample.sequence), self.limits.fabric_history)
                made.receive(sample)

    # requests

    async def serve(self, topic: str, handler: Handler) -> Service:
        """Answer requests on a topic."""
        check_name(topic, self.limits)
        made = _DdsService(self, topic, self._random(ID_BYTES).hex(), handler, self.limits)
        try:
            await self.call({"op": "serve", "topic": topic, "service": made.id})
        except BaseException:
            # The keeper may have carried it out, and would pass requests to a service that nobody has.
            with suppress(PenstockError):
                self._tell({"op": "unserve", "topic": topic, "service": made.id})
            raise
        self._services[made.id] = made
        return made

    async def end_service(self, service: "_DdsService") -> None:
        """Stop answering (called by services)."""
        if self._services.pop(service.id, None) is not None and self.joined:
            await self.call({"op": "unserve", "topic": service.topic, "service": service.id})

    async def request(
        self, topic: str, data: bytes, *, timeout: float, key: str = "", headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Ask on a topic and return the answer; it goes through the keeper."""
        qos = self._offers.get(topic) or await self.describe(topic)
        check(data, key, headers or {}, self.limits)
        now = round(self.clock.now() * MICROSECONDS)
        raw = encode(Sample(data, key, dict(headers or {}), now, self._random(WRITER_BYTES)))
        try:
            reply, body = await self.call({"op": "request", "topic": topic}, raw, timeout=min(timeout, qos.lifespan))
        except FailedError as error:
            if error.code == "fabric.unreachable":
                raise no_reply(topic) from error
            raise
        if not reply.get("ok"):
            raise handler_failed(topic)
        return body

    async def close(self) -> None:
        """End all that was opened here."""
        if self._link.closed:
            return
        for reading in list(self._readings.values()):
            await reading.subscription.close()
        # All together: if there is no keeper any more, none of them is answered.
        closing = [each.close() for each in self._publishers.values()]
        closing += [each.close() for each in self._services.values()]
        await asyncio.gather(*closing, return_exceptions=True)
        tasks = [*self._running, *([self._rejoining] if self._rejoining is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._link.close()
        for pending in self._pending.values():
            if not pending.done.done():
                pending.done.set_exception(closed())

    # the keeper

    async def call(
        self, fields: dict[str, Any], body: bytes = b"", *, timeout: float | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """Call the keeper, and return what it answers (also called by publishers and services).

        Raises `FailedError` (`fabric.unreachable`) if it does not, and what it refuses with.
        """
        number, pending = self._expect()
        try:
            self._tell(fields, body, number)
            left, parts = self.timeout if timeout is None else timeout, 0
            while not pending.done.done():
                if left <= 0:
                    raise _no_keeper()
                pause = min(left, _LONGEST_PAUSE)
                await asyncio.wait((pending.done,), timeout=pause)
                # Each part of a long reply has its own time, and a process that stands still misses none of them.
                left = left - pause if len(pending.bodies) == parts else self.timeout
                parts = len(pending.bodies)
            reply = pending.done.result()
        finally:
            del self._pending[number]
        if "error" in reply:
            kind = _ERRORS.get(str(reply.get("kind")), FailedError)
            raise kind(str(reply["error"]), str(reply.get("text", "")), hint=str(reply.get("hint", "")))
        return reply, b"".join(pending.bodies)

    def _expect(self) -> tuple[int, _Pending]:
        """Return the number of a new call, and where its reply will be."""
        self._numbers = self._numbers % 0xFFFFFFFF + 1
        pending = self._pending[self._numbers] = _Pending(asyncio.get_running_loop().create_future())
        return self._numbers, pending

    def _tell(self, fields: dict[str, Any], body: bytes = b"", number: int = 0) -> None:
        if self._link.closed:
            raise closed()
        raw = pack(self._id + pack_message(number, fields, body), self._id.hex())
        self._calls.write(raw, round(self.clock.now() * MICROSECONDS))

    def _take(self, raws: list[bytes]) -> None:
        for raw in raws:
            try:
                number, fields, body = unpack_message(unpack(raw, keyed=True))
                if number:
                    self._replied(number, fields, body)
                else:
                    self._told(fields, body)
            except (MalformedError, LookupError, TypeError, ValueError):
                self.malformed += 1

    def _replied(self, number: int, fields: dict[str, Any], body: bytes) -> None:
        pending = self._pending.get(number)
        if pending is not None and not pending.done.done():
            pending.bodies.append(body)
            if not fields.get("more"):
                pending.done.set_result(fields)

    def _told(self, fields: dict[str, Any], body: bytes) -> None:
        """Handle what the keeper says without being asked. Raises for what does not read."""
        match fields["op"]:
            case "poke":
                self._poke_own([bytes.fromhex(each) for each in fields["writers"]])
            case "meet":
                writer = bytes.fromhex(fields["writer"])
                for each in fields["readers"]:
                    self._background("meeting a writer", self._introduced(bytes.fromhex(each), writer))
            case "lease":
                for each in fields["readers"]:
                    reading = self._readings.get(bytes.fromhex(each))
                    if reading is not None:
                        change = reading.subscription.heard if fields["there"] else reading.subscription.lost
                        change(bytes.fromhex(fields["writer"]))
            case "removed":
                self._removed(str(fields["topic"]))
            case "ask":
                service = self._services.get(fields["service"])
                if service is not None:
                    self._background(f"answering on {service.topic}", self._answer(service, int(fields["id"]), body))

    def _poke_own(self, writers: list[bytes]) -> None:
        for writer in writers:
            if writer in self._publishers:
                self._publishers[writer].say_hello()

    async def _introduced(self, reader: bytes, writer: bytes) -> None:
        reading = self._readings.get(reader)
        if reading is not None:
            await self._meet(reading, {writer})
            if not self._link.closed:
                self._tell({"op": "met", "reader": reader.hex(), "writer": writer.hex()})

    def _removed(self, topic: str) -> None:
        self._offers.pop(topic, None)
        for reading in list(self._readings.values()):
            if reading.topic == topic:
                reading.subscription.fail(unknown(topic))
        for publisher in self._publishers.values():
            if publisher.topic == topic:
                publisher.removed = True

    async def _answer(self, service: "_DdsService", id_: int, body: bytes) -> None:
        try:
            raw, ok = await service.answer(decode(body)), True
        except (MalformedError, FailedError):
            raw, ok = b"", False
        if not self._link.closed:
            self._tell({"op": "answered", "id": id_, "ok": ok}, raw)

    def _background(self, name: str, work: Any) -> None:
        task = in_background(name, work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _keeper_gone(self, key: str) -> None:
        """Make everything known again as soon as the keeper was started again."""
        if self._joined and key == KEEPER:
            self._joined = False
            self._rejoining = keep_running("joining the DDS keeper again", self._rejoin)

    async def _rejoin(self) -> None:
        while True:
            with suppress(FailedError):
                await self._hello()
                break
        for topic, qos in list(self._offers.items()):
            with suppress(RefusedError):
                await self.call({"op": "declare", "topic": topic, "qos": qos.as_dict()})
        for reading in list(self._readings.values()):
            with suppress(RefusedError, MalformedError):
                await self._register(reading)
        for publisher in list(self._publishers.values()):
            with suppress(RefusedError, MalformedError):
                await publisher.open_again()
        for service in list(self._services.values()):
            with suppress(RefusedError):
                await self.call({"op": "serve", "topic": service.topic, "service": service.id})
        self._joined = True
        self._rejoining = None

    def forget(self, publisher: "DdsTopicPublisher") -> None:
        """Forget a writer that was closed (called by it)."""
        self._publishers.pop(publisher.writer, None)

    @property
    def joined(self) -> bool:
        """Whether the fabric is open and the keeper is there, as far as DDS knows."""
        return self._joined and not self._link.closed

    @property
    def closed(self) -> bool:
        """Whether the fabric was closed."""
        return self._link.closed


class DdsTopicPublisher(Publisher):
    """Writes to a topic over DDS."""

    def __init__(self, fabric: DdsFabric, topic: str, writer: bytes, *, strength: int, instance: str) -> None:
        super().__init__(topic, writer, fabric.clock, fabric.limits, instance=instance)
        self._fabric = fabric
        self._strength = strength
        self._epoch = 0
        self._qos = Qos()
        self._entity: DdsWriter | None = None
        self._hello = pack(_HELLO + writer)
        self.removed = False

    async def open(self) -> None:
        """Make the writer known, and wait until readers hear it. Raises as `DdsFabric.publisher`."""
        self._qos, self._epoch, self._entity = await self._fabric.open_writer(self, self._strength)
        if self._entity is not None:
            await self._fabric.call({"op": "ready", "writer": self.writer.hex()})

    async def open_again(self) -> None:
        """Make the writer known to a keeper that was started again. Raises as `open`."""
        fields = {"op": "writer", "topic": self.topic, "writer": self.writer.hex(), "strength": self._strength}
        reply, _ = await self._fabric.call(fields | {"instance": self.instance})
        self._epoch = int(reply.get("epoch", 0))
        if self._entity is not None:
            await self._fabric.call({"op": "ready", "writer": self.writer.hex()})

    def say_hello(self) -> None:
        """Let readers know that they hear this writer."""
        if self._entity is not None and not self._fabric.closed:
            self._entity.write(self._hello, round(self._clock.now() * MICROSECONDS))

    async def _send(self, sample: Sample) -> int:
        if self._fabric.closed:
            raise closed()
        if self.removed:
            raise unknown(self.topic)
        if self._entity is None:
            return await self._store(encode(sample))
        if self._qos.ownership is Ownership.EXCLUSIVE:
            await self._renew("claim")
            sample = replace(sample, epoch=self._epoch)
        raw = pack(_SAMPLE + encode(sample))
        loop = asyncio.get_running_loop()
        end = loop.time() + self._fabric.timeout
        while not self._entity.write(raw, sample.time):
            if not self._qos.reliable:
                return 0
            if loop.time() > end:
                raise FailedError("fabric.unreachable", "readers do not take the samples", hint="try again later")
            await asyncio.sleep(_FULL)
        await asyncio.sleep(0)  # let readers run: a writer that never waits would starve them
        return 0

    async def _store(self, raw: bytes) -> int:
        try:
            reply, _ = await self._fabric.call({"op": "publish", "writer": self.writer.hex()}, raw)
        except RefusedError as error:
            if error.code != GONE:
                raise
            await self.open_again()
            reply, _ = await self._fabric.call({"op": "publish", "writer": self.writer.hex()}, raw)
        return int(reply.get("position", 0))

    async def _renew(self, how: str) -> None:
        await self._fabric.call({"op": how, "writer": self.writer.hex()})

    async def alive(self) -> None:
        """Renew the lease and the claim."""
        if self._closed:
            raise closed()
        if self._qos.lease != FOREVER:
            await self._renew("alive")

    async def _release(self) -> None:
        self._fabric.forget(self)
        if self._fabric.closed:
            return
        if self._entity is not None:
            if self._qos.reliable:
                await self._entity.wait_for_acks(_ACKS)
            self._entity.close()
        if self._fabric.joined:
            await self._fabric.call({"op": "close-writer", "writer": self.writer.hex()})


class _DdsService(Service):
    def __init__(self, fabric: DdsFabric, topic: str, id_: str, handler: Handler, limits: FabricLimits) -> None:
        self._fabric = fabric
        self.topic = topic
        self.id = id_
        self._handler = handler
        self._room = asyncio.Semaphore(limits.fabric_requests)

    async def answer(self, sample: Sample) -> bytes:
        """Return the answer to a request. Raises `FailedError` (`fabric.handler-failed`)."""
        async with self._room:
            return await answer(self.topic, self._handler, sample)

    async def close(self) -> None:
        await self._fabric.end_service(self)


def _read_kept(data: bytes) -> Sample:
    """Read a sample with its position as the keeper writes it. Raises `MalformedError`."""
    return replace(decode(data[NUMBER_BYTES:]), position=int.from_bytes(data[:NUMBER_BYTES], "big"))


def _no_keeper() -> FailedError:
    return FailedError(
        "fabric.unreachable",
        "no keeper answers in the DDS domain",
        hint="check the address, and run `penstock fabric keep ADDRESS` there",
    )


def _remember(memory: OrderedDict[_T, None], key: _T, bound: int) -> None:
    memory[key] = None
    memory.move_to_end(key)
    if len(memory) > bound:
        memory.popitem(last=False)

"""The fabric over Kafka: a topic of the fabric is a Kafka topic with one partition.

Kafka keeps records in order, and compacts them by key. The rest is done here:

- The topic `PREFIX.registry` is compacted and says which topics there are, who owns them, and who serves them. Its
  entries have revisions, each one above the last. Of two records with the same revision the first counts, so
  that everybody who reads the log comes to the same result. Every client follows it to its end before it uses it.
- A fabric topic is the Kafka topic `PREFIX.NAME.N`. N is the revision of its declaration: a topic that was removed and
  declared again never has old samples.
- The values of records are samples (`penstock.fabric.envelope`), or say that a writer is there.
- Of a durable topic the record key decides what compaction may drop: the instance and key if one sample of each
  is kept, these with the writer and a number that repeats after N samples if N are kept, and nothing if all are kept.
  Readers and `state` count themselves, so that nothing depends on when Kafka compacts.
- One consumer follows all topics of a client that are read. Another reads what topics keep.

`kafka_link` has the clients of librdkafka and the registry, `kafka_records` the records, `kafka_requests` requests and
answers. Needs the extra `penstock[kafka]`.
"""

import asyncio
import json
import secrets
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Self

from confluent_kafka import KafkaException, Message

from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError
from penstock.fabric.envelope import MICROSECONDS, WRITER_BYTES, Sample, check, encode
from penstock.fabric.kafka_link import KafkaLink, RegistryEntry, TopicRegistry, undo
from penstock.fabric.kafka_login import KafkaLogin, parse_kafka
from penstock.fabric.kafka_records import (
    ALIVE,
    DISCARDED,
    HERE,
    POSITION,
    hand_to,
    kept_samples,
    sample_of,
    topic_settings,
)
from penstock.fabric.kafka_requests import KafkaRequests
from penstock.fabric.limits import FABRIC_LIMITS, FabricLimits
from penstock.fabric.nats_login import AddressError, SecretError, UnreadableError
from penstock.fabric.port import (
    ClaimsSeen,
    Clock,
    Fabric,
    Handler,
    Publisher,
    RandomBytes,
    Service,
    SystemClock,
    TopicOwnership,
    TopicSubscription,
    check_instances,
    check_name,
    closed,
    contend,
    differs,
    full,
    not_owner,
    unknown,
)
from penstock.fabric.qos import FOREVER, KEEP_ALL, Ownership, Qos, check_offer

_NUMBER: Final = struct.Struct(">8sQ")
_REGISTRY: Final = "registry"


@dataclass(slots=True)
class _Feed:
    """What is read of one Kafka topic, and from which offset on each reader wants it."""

    readers: dict[TopicSubscription, int] = field(default_factory=dict)
    #: records that arrived while a reader still gets what is kept
    waiting: dict[TopicSubscription, list[Message]] = field(default_factory=dict)


class KafkaFabric(Fabric):
    """The fabric over Kafka; `await KafkaFabric.connect(address)` opens it."""

    MAPPING = MappingProxyType(
        {
            "durability": "transient and persistent: on the servers' disks, with as many replicas as topics have there",
            "history": "compacted by key, and counted by readers; keep-all: a full topic refuses (`fabric.full`)",
            "ownership": "exclusive: a claim with an epoch in the registry topic, read to its end at each publishing",
            "source_order": "by-source: older samples of a key are dropped, or counted as late if history is keep-all",
            "reliability": "reliable: all in-sync replicas have it (`acks=all`), repeated without duplicates; a reader "
            "too far behind is cut off",
            "time_filter": "at the reader: the newest of each period and key",
            "deadline": "at the reader: `on_deadline`, and counted",
            "lifespan": "Kafka's retention, a minute longer, and checked when a sample arrives and is taken",
            "latency_budget": "no sample is delayed; later deliveries are counted",
            "priority": "a producer with connections of its own for each level",
            "lease": "records in the topic; `on_writer` at the reader",
        }
    )

    def __init__(
        self, login: KafkaLogin, *, prefix: str, clock: Clock, random: RandomBytes, limits: FabricLimits
    ) -> None:
        self.link = KafkaLink(login, self._take)
        self.prefix = prefix
        self.clock = clock
        self.limits = limits
        self._random = random
        self.registry = TopicRegistry(self.link, f"{prefix}.{_REGISTRY}", self._changed)
        self._feeds: dict[str, _Feed] = {}
        self._open: dict[TopicSubscription, str] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        #: what best-effort writers of this client have written and the server may not have yet, by Kafka topic
        self.thrown: dict[str, set[asyncio.Future[int]]] = {}
        #: called by publishers
        self.claims = ClaimsSeen(clock)
        self._requests = KafkaRequests(self.link, self.registry, self.exists, clock, limits)
        self.closed = False

    @classmethod
    async def connect(  # noqa: PLR0913  # named settings, each with a default
        cls,
        address: str | KafkaLogin,
        *,
        prefix: str = "penstock",
        timeout: float = 5.0,
        clock: Clock | None = None,
        random: RandomBytes = secrets.token_bytes,
        limits: FabricLimits = FABRIC_LIMITS,
    ) -> Self:
        """Open the fabric of a Kafka cluster: `kafka://HOST:PORT[,HOST:PORT…][?config=FILE]`.

        A server must answer within `timeout` seconds. Raises `MalformedError` (`fabric.bad-address`,
        `fabric.bad-name`), `RefusedError` (`fabric.unauthorized`) and `FailedError` (`fabric.unreachable`,
        `fabric.credentials`, `fabric.refused`).
        """
        if not (prefix.isascii() and prefix.isalnum()):
            raise MalformedError("fabric.bad-name", "a prefix has letters and digits")
        login = _login(address) if isinstance(address, str) else address
        try:
            made = cls(
                login, prefix=prefix, clock=SystemClock() if clock is None else clock, random=random, limits=limits
            )
        except UnreadableError as error:
            raise FailedError(
                "fabric.credentials",
                "the file for `config` cannot be used",
                hint="it must exist with mode 600, with `name=value` lines of security settings",
                option=error.option,
            ) from error
        except KafkaException as error:
            raise FailedError("fabric.credentials", "Kafka does not take a setting of `config`") from error
        try:
            await made.link.reach(timeout)
            await made.registry.open()
        except BaseException:
            await made.close()
            raise
        return made

    def kafka_topic(self, topic: str, revision: int) -> str:
        """Return the Kafka topic of a declaration."""
        return f"{self.prefix}.{topic}.{revision}"

    async def declare(self, topic: str, qos: Qos) -> None:
        """Create a topic, or check that it exists with the same quality of service."""
        self._check_open()
        check_name(topic, self.limits)
        check_offer(qos)
        await self.registry.sync()
        while (known := self.registry.get("topics", topic)) is None:
            await self.registry.put("topics", topic, qos.as_dict(), None)
        if self._offered(topic, known) != qos:
            raise differs(topic)
        await self.link.create(self.kafka_topic(topic, known.revision), topic_settings(qos))

    async def describe(self, topic: str) -> Qos:
        """Return the policies that a topic offers."""
        return (await self._known(topic))[0]

    async def _known(self, topic: str) -> tuple[Qos, str]:
        """Return what a topic offers, and its Kafka topic."""
        self._check_open()
        check_name(topic, self.limits)
        await self.registry.sync()
        known = self.registry.get("topics", topic)
        if known is None:
            raise unknown(topic)
        return self._offered(topic, known), self.kafka_topic(topic, known.revision)

    def exists(self, topic: str, name: str) -> bool:
        """Return whether a Kafka topic is still that of a topic, as far as the registry was read."""
        known = self.registry.get("topics", topic)
        return known is not None and self.kafka_topic(topic, known.revision) == name

    def _offered(self, topic: str, entry: RegistryEntry) -> Qos:
        try:
            return Qos.from_dict(entry.value)
        except (MalformedError, TypeError, ValueError) as error:
            raise FailedError("fabric.registry", f"what the server says about `{topic}` does not read") from error

    async def remove(self, topic: str) -> None:
        """Remove a topic and all that it keeps."""
        _, name = await self._known(topic)
        while (known := self.registry.get("topics", topic)) and self.kafka_topic(topic, known.revision) == name:
            await self.registry.put("topics", topic, None, known)
        for kind in ("owners", "services"):
            if (entry := self.registry.get(kind, topic)) is not None:
                await self.registry.put(kind, topic, None, entry)
        await self.link.delete(name)
        await self.link.delete(f"{name}.requests")

    def _changed(self, name: str) -> None:
        """End the readers of a topic that was removed."""
        kind, _, topic = name.partition("/")
        if kind == "topics":
            for subscription, kafka_topic in list(self._open.items()):
                if kafka_topic.rpartition(".")[0] == f"{self.prefix}.{topic}" and not self.exists(topic, kafka_topic):
                    subscription.fail(unknown(topic))

    async def publisher(self, topic: str, *, strength: int = 0, instance: str = "") -> "KafkaPublisher":
        """Return a writer of a topic."""
        check_instances((instance,), self.limits)
        qos, name = await self._known(topic)
        made = KafkaPublisher(self, topic, name, qos, self._random(WRITER_BYTES), strength=strength, instance=instance)
        await made.begin()
        return made

    async def _read(
        self, topic: str, offered: Qos, qos: Qos, new: Callable[..., TopicSubscription]
    ) -> TopicSubscription:
        # Kafka sends all of it; keys, instances and headers are chosen here.
        known = self.registry.get("topics", topic)
        if known is None:
            raise unknown(topic)
        name = self.kafka_topic(topic, known.revision)
        # What a durable topic keeps, a reader of further instances gets when it subscribes again.
        made = new(leave=self._leave, choose_instances=None if qos.durable else lambda *_: None)
        try:
            await self._join(made, name, offered)
        except BaseException:
            with suppress(PenstockError):
                await made.close()
            raise
        return made

    async def _join(self, reader: TopicSubscription, name: str, offered: Qos) -> None:
        self._open[reader] = name
        async with self._turns.setdefault(name, asyncio.Lock()):
            feed = self._feeds.get(name)
            # A reader does not get what was written before it.
            await asyncio.gather(*self.thrown.get(name, ()), return_exceptions=True)
            end = await self.link.end(name)
            if feed is None:
                feed = self._feeds[name] = _Feed()
                feed.readers[reader] = end
                feed.waiting[reader] = []
                try:
                    await self.link.follow(name, end)
                except BaseException:
                    # Whoever waits for this turn must follow it.
                    del self._feeds[name]
                    raise
            else:
                # What it follows is not past the end, so that nothing is missed between what is kept and what comes.
                feed.readers[reader] = end
                feed.waiting[reader] = []
        if reader.reader.qos.durable and end:
            for sample in kept_samples(await self.link.kept(name, end), offered):
                reader.receive(sample)
        for message in feed.waiting.pop(reader, ()):
            hand_to(reader, message)

    async def _leave(self, reader: TopicSubscription) -> None:
        name = self._open.pop(reader, "")
        async with self._turns.setdefault(name, asyncio.Lock()):
            feed = self._feeds.get(name)
            if feed is not None:
                feed.readers.pop(reader, None)
                feed.waiting.pop(reader, None)
                if not feed.readers:
                    del self._feeds[name]
                    if not self.closed:
                        await self.link.unfollow(name)

    def _take(self, message: Message) -> None:
        """Hand a record to those who read its topic (called in the event loop)."""
        name, offset = message.topic() or "", message.offset()
        if message.error() is not None or offset is None:
            return  # what ends a topic is in the registry, and librdkafka retries the rest
        if name == self.registry.name:
            self.registry.take(message)
        elif name.endswith(".requests"):
            self._requests.take(message)
        elif (feed := self._feeds.get(name)) is not None:
            for reader, start in feed.readers.items():
                if offset >= start:
                    if (waiting := feed.waiting.get(reader)) is not None:
                        waiting.append(message)
                    else:
                        hand_to(reader, message)

    async def kept(self, name: str, qos: Qos) -> list[Sample]:
        """Return what a Kafka topic keeps, also what is over. Raises as `KafkaLink.call`."""
        end = await self.link.end(name)
        return kept_samples(await self.link.kept(name, end), qos) if end else []

    async def state(self, topic: str, key: str | None = None) -> tuple[Sample, ...]:
        """Return the samples that a topic keeps now."""
        qos, name = await self._known(topic)
        if not qos.durable:
            return ()
        now = self.clock.now()
        return tuple(
            sample
            for sample in await self.kept(name, qos)
            if key in (None, sample.key) and now - sample.time / MICROSECONDS <= qos.lifespan
        )

    async def discard(self, topic: str, through: Sample) -> None:
        """Delete what a topic keeps up to a sample: a record says so, and Kafka deletes if no instance keeps any."""
        qos, name = await self._known(topic)
        if not qos.durable or not through.position:
            return
        kept = await self.kept(name, qos)
        if any(sample.position <= through.position and not sample.instance for sample in kept):
            await self.link.produce(qos.priority, name, DISCARDED, POSITION.pack(through.position))
        if not any(sample.position <= through.position and sample.instance for sample in kept):
            await self.link.delete_before(name, through.position)

    async def serve(self, topic: str, handler: Handler) -> Service:
        """Answer requests on a topic."""
        _, name = await self._known(topic)
        return await self._requests.serve(topic, name, handler)

    async def request(
        self, topic: str, data: bytes, *, timeout: float, key: str = "", headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Ask on a topic and return the answer."""
        qos, name = await self._known(topic)
        check(data, key, headers or {}, self.limits)
        now = round(self.clock.now() * MICROSECONDS)
        sample = Sample(data, key, dict(headers or {}), now)
        return await self._requests.ask(topic, name, sample, min(timeout, qos.lifespan))

    async def close(self) -> None:
        """Close all subscriptions and services, and the connections."""
        if self.closed:
            return
        try:
            await self._requests.close()
        finally:
            # Services cannot end properly if the server is away, but threads and consumers can.
            self.closed = True
            for subscription in list(self._open):
                await subscription.close()
            await self.link.close()

    def _check_open(self) -> None:
        if self.closed:
            raise closed()


class KafkaPublisher(Publisher):
    """Writes to a topic over Kafka."""

    def __init__(  # noqa: PLR0913  # a topic, and the settings of a writer
        self, fabric: KafkaFabric, topic: str, name: str, qos: Qos, writer: bytes, *, strength: int, instance: str
    ) -> None:
        super().__init__(topic, writer, fabric.clock, fabric.limits, instance=instance)
        self._fabric = fabric
        self._name = name
        self._qos = qos
        self._strength = strength
        self._epoch = 0
        #: how many samples of each slot were written, for topics that keep a number of each
        self._written: OrderedDict[tuple[str, str], int] = OrderedDict()
        #: below this offset a durable topic cannot be full
        self._full_at = 0
        #: the position of the last sample
        self._stored = 0

    async def begin(self) -> None:
        """Claim the topic, tidy it, and say that this writer is there. Raises as `publish`."""
        await self._claim()
        try:
            if self._qos.durable and self._epoch > 1:
                await self._tidy()
            await self.alive()
        except BaseException:
            # Its claim would keep others from the topic.
            await undo(self.close())
            raise

    async def _tidy(self) -> None:
        """Let Kafka drop what former owners left and no reader gets any more."""
        end = await self._fabric.link.end(self._name)
        if not end:
            return
        messages = await self._fabric.link.kept(self._name, end)
        kept = {(sample.writer, sample.sequence) for sample in kept_samples(messages, self._qos)}
        newest = {message.key(): message for message in messages}
        for key, message in newest.items():
            sample = sample_of(message)
            # A former owner writes nothing more that counts, so this drops nothing new.
            old = sample is not None and sample.epoch < self._epoch
            if key is not None and sample is not None and old and (sample.writer, sample.sequence) not in kept:
                await self._store(key, None)

    async def _claim(self) -> None:
        if self._qos.ownership is not Ownership.EXCLUSIVE:
            return
        registry = self._fabric.registry
        while True:
            await registry.sync()
            now = self._clock.now()
            entry = registry.get("owners", self.topic)
            current = None if entry is None else _owner(self.topic, entry)
            unchanged = self._fabric.claims.unchanged(self.topic, current)
            claim = contend(current, self.writer, self._strength, now, lease=self._qos.lease, unchanged=unchanged)
            if self._epoch not in (0, claim.epoch):
                raise not_owner()
            if current is not None and claim.epoch == current.epoch and current.is_fresh(now, claim.until):
                return  # ours for a while yet
            if await registry.put("owners", self.topic, claim.as_dict(), entry):
                self._epoch = claim.epoch
                return

    async def _send(self, sample: Sample) -> int:
        self._check()
        await self._claim()
        marked = replace(sample, epoch=self._epoch) if self._epoch else sample
        if not self._qos.durable and not self._qos.reliable:
            self._throw(marked)
            return 0
        if self._qos.durable and self._stored >= self._full_at:
            await self._measure()
        self._stored = await self._store(self._key(marked), encode(marked)) + 1
        return self._stored if self._qos.durable else 0

    def _throw(self, sample: Sample) -> None:
        try:
            stored = self._fabric.link.produce(self._qos.priority, self._name, None, encode(sample))
        except BufferError:
            return  # best effort: too much waits already
        thrown = self._fabric.thrown.setdefault(self._name, set())
        thrown.add(stored)
        stored.add_done_callback(thrown.discard)
        stored.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _store(self, key: bytes | None, value: bytes | None) -> int:
        while True:
            try:
                stored = self._fabric.link.produce(self._qos.priority, self._name, key, value)
            except BufferError:
                await asyncio.sleep(0.01)
                continue
            try:
                return await stored
            except RefusedError as error:
                raise unknown(self.topic) if error.code == "fabric.unknown-topic" else error from error

    async def _measure(self) -> None:
        """Refuse if the topic is full. Raises `RefusedError` (`fabric.full`)."""
        end = await self._fabric.link.end(self._name)
        most = self._limits.fabric_history
        count = end
        if count >= most:
            now = self._clock.now()
            samples = await self._fabric.kept(self._name, self._qos)
            count = sum(now - sample.time / MICROSECONDS <= self._qos.lifespan for sample in samples)
        if count >= most:
            raise full(self.topic)
        self._full_at = end + (most - count)

    def _key(self, sample: Sample) -> bytes | None:
        """Return the key of a record: Kafka may drop a record if there is a newer one with its key."""
        if not self._qos.durable:
            return None
        slot = json.dumps(sample.slot).encode()
        if self._qos.history == KEEP_ALL:
            return b"one/" + _NUMBER.pack(sample.writer, sample.sequence)
        if self._qos.history == 1:
            return b"slot/%d/%s" % (sample.epoch, slot)
        count = self._written.pop(sample.slot, 0)
        self._written[sample.slot] = count + 1
        return b"ring/%d/%b/%d/%s" % (sample.epoch, sample.writer.hex().encode(), count % self._qos.history, slot)

    def _check(self) -> None:
        if self._closed:
            raise closed()
        if self._fabric.closed:
            raise closed()
        if not self._fabric.exists(self.topic, self._name):
            raise unknown(self.topic)

    async def alive(self) -> None:
        """Renew the lease and the claim."""
        if self._closed:
            raise closed()
        if self._qos.lease != FOREVER:
            await self._claim()
            await self._say(HERE)

    async def _say(self, what: bytes | None) -> None:
        self._check_topic()
        await self._store(ALIVE + self.writer + self.instance.encode(), what)

    def _check_topic(self) -> None:
        if not self._fabric.exists(self.topic, self._name):
            raise unknown(self.topic)

    async def _release(self) -> None:
        registry = self._fabric.registry
        if self._fabric.closed or not self._fabric.exists(self.topic, self._name):
            return
        if self._epoch:
            await registry.sync()
            entry = registry.get("owners", self.topic)
            current = None if entry is None else _owner(self.topic, entry)
            if current is not None and current.writer == self.writer:
                await registry.put("owners", self.topic, replace(current, until=0.0).as_dict(), entry)
        if self._qos.lease != FOREVER:
            await self._say(None)


def _owner(topic: str, entry: RegistryEntry) -> TopicOwnership:
    try:
        return TopicOwnership.from_dict(entry.value)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise FailedError("fabric.registry", f"who owns `{topic}` does not read") from error


def _login(address: str) -> KafkaLogin:
    try:
        parsed = parse_kafka(address)
    except SecretError as error:
        raise _bad_address("the address of a Kafka server contains a user or a password") from error
    except AddressError as error:
        raise _bad_address("not the address of a Kafka server") from error
    if parsed.topic or parsed.options:
        raise _bad_address("the address of a Kafka fabric has neither a topic nor options other than `config`")
    return parsed.login


def _bad_address(message: str) -> MalformedError:
    return MalformedError(
        "fabric.bad-address",
        message,
        hint="write `kafka://host:port,host:port?config=FILE`; the file has the security settings",
    )

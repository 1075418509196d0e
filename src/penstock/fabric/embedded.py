"""A fabric inside one process: no server, any clock. Good for one machine, for tests and for simulations.

Publishing delivers a sample to every reader directly. The samples of a topic are kept in memory, and those of a
persistent topic also in the file of a `FileKeeper`. Without a `FileKeeper`, persistent topics are refused.
"""

import asyncio
import json
import secrets
import sqlite3
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Final

from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.fabric.envelope import MICROSECONDS, WRITER_BYTES, Sample, check, decode, encode
from penstock.fabric.limits import FABRIC_LIMITS, FabricLimits
from penstock.fabric.port import (
    Clock,
    Fabric,
    Handler,
    KeyChoice,
    KeysUnder,
    Publisher,
    RandomBytes,
    Service,
    SystemClock,
    TopicOwnership,
    TopicSubscription,
    answer,
    check_instances,
    check_name,
    closed,
    contend,
    differs,
    full,
    no_reply,
    no_responder,
    not_owner,
    prefixes,
    unknown,
)
from penstock.fabric.qos import CODES, FOREVER, KEEP_ALL, Durability, Ownership, Priority, Qos, check_offer
from penstock.fabric.tasks import waited_for

# ----------------------------------------------------------------------------------------------------------------------
# Persistent topics: one SQLite file, written before publishing returns.


_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS topic (name TEXT PRIMARY KEY, qos TEXT NOT NULL, epoch INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS sample (at INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, octets BLOB NOT NULL);
"""


class FileKeeper:
    """Keeps persistent topics and their samples in a file, or in a database that somebody else has opened.

    All methods raise `FailedError` (`fabric.keeper`) if the file cannot be used.
    """

    def __init__(self, file: Path | sqlite3.Connection) -> None:
        with _guarded():
            if isinstance(file, Path):
                file = sqlite3.connect(file, isolation_level=None)
            self._database = file
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            self._database.executescript(_SCHEMA)

    def topics(self) -> list[tuple[str, Qos, int]]:
        """Return the name, the quality of service and the last epoch of every topic."""
        with _guarded():
            rows = self._database.execute("SELECT name, qos, epoch FROM topic ORDER BY name").fetchall()
            return [(name, Qos.from_dict(json.loads(text)), epoch) for name, text, epoch in rows]

    def samples(self, topic: str) -> list[tuple[int, Sample]]:
        """Return the stored samples, oldest first, each with its number."""
        with _guarded():
            rows = self._database.execute("SELECT at, octets FROM sample WHERE topic = ? ORDER BY at", (topic,))
            return [(at, decode(octets)) for at, octets in rows]

    def declare(self, topic: str, qos: Qos) -> None:
        """Store a topic."""
        with _guarded():
            self._database.execute("INSERT INTO topic (name, qos) VALUES (?, ?)", (topic, json.dumps(qos.as_dict())))

    def claimed(self, topic: str, epoch: int) -> None:
        """Store the epoch of a topic's owner."""
        with _guarded():
            self._database.execute("UPDATE topic SET epoch = ? WHERE name = ?", (epoch, topic))

    def remove(self, topic: str) -> None:
        """Delete a topic and its samples."""
        with _guarded(), self._whole():
            self._database.execute("DELETE FROM sample WHERE topic = ?", (topic,))
            self._database.execute("DELETE FROM topic WHERE name = ?", (topic,))

    def replace(self, topic: str, sample: Sample, gone: list[int]) -> int:
        """Store a sample and delete others, in one transaction. Return the sample's number."""
        with _guarded(), self._whole():
            self._delete(gone)
            done = self._database.execute("INSERT INTO sample (topic, octets) VALUES (?, ?)", (topic, encode(sample)))
            return int(done.lastrowid or 0)

    def discard(self, gone: list[int]) -> None:
        """Delete samples by their numbers."""
        with _guarded(), self._whole():
            self._delete(gone)

    def _delete(self, gone: list[int]) -> None:
        self._database.executemany("DELETE FROM sample WHERE at = ?", [(at,) for at in gone])

    def close(self) -> None:
        """Close the file."""
        with _guarded():
            self._database.close()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")


@contextmanager
def _guarded() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, MalformedError, ValueError) as error:
        raise FailedError(
            "fabric.keeper", f"the file of persistent topics cannot be used: {type(error).__name__}"
        ) from error


# ----------------------------------------------------------------------------------------------------------------------
# A fabric inside one process: no server, any clock. Good for one machine, for tests and for simulations.


_FIRST: Final = (Priority.HIGH, Priority.NORMAL, Priority.LOW)
_TURN: Final = 64  # best-effort samples that are published before readers run


@dataclass
class _Readers:
    """The readers of one instance: those of all keys, and the others by what they chose."""

    of_all: dict[TopicSubscription, None] = field(default_factory=dict)
    choosers: dict[KeyChoice, dict[TopicSubscription, None]] = field(default_factory=dict)

    def of(self, key: str) -> dict[TopicSubscription, None]:
        """Return the readers of a key."""
        if not self.choosers:
            return self.of_all
        found = dict(self.of_all)
        found.update(self.choosers.get(key, ()))
        for prefix in prefixes(key):
            found.update(self.choosers.get(KeysUnder(prefix), ()))
        return found

    def join(self, reader: TopicSubscription) -> None:
        if reader.keys is None:
            self.of_all[reader] = None
        for choice in reader.keys or ():
            self.choosers.setdefault(choice, {})[reader] = None

    def leave(self, reader: TopicSubscription) -> None:
        self.of_all.pop(reader, None)
        for choice in reader.keys or ():
            self.unchoose(reader, choice)

    def unchoose(self, reader: TopicSubscription, choice: KeyChoice) -> None:
        choosers = self.choosers.get(choice, {})
        choosers.pop(reader, None)
        if not choosers:
            self.choosers.pop(choice, None)


@dataclass
class _Topic:
    name: str
    qos: Qos
    epoch: int = 0
    claim: TopicOwnership | None = None
    kept: OrderedDict[int, Sample] = field(default_factory=OrderedDict)
    of_slot: dict[tuple[str, str], deque[int]] = field(default_factory=dict)
    readers: dict[TopicSubscription, None] = field(default_factory=dict)
    #: the readers of each instance; under None those of all instances
    of_instance: dict[str | None, _Readers] = field(default_factory=dict)
    services: list["_Service"] = field(default_factory=list)
    numbers: int = 0

    @property
    def persistent(self) -> bool:
        return self.qos.durability is Durability.PERSISTENT

    def add(self, number: int, sample: Sample) -> Sample:
        """Keep a sample, and return it with its position."""
        self.numbers = max(self.numbers, number)
        self.kept[number] = sample = replace(sample, position=number)
        self.of_slot.setdefault(sample.slot, deque()).append(number)
        return sample

    def drop(self, number: int) -> None:
        sample = self.kept.pop(number)
        mine = self.of_slot[sample.slot]
        mine.remove(number)
        if not mine:
            del self.of_slot[sample.slot]

    def hearers(self, sample: Sample) -> dict[TopicSubscription, None]:
        """Return the readers of a sample."""
        found: dict[TopicSubscription, None] = {}
        for instance in (sample.instance, None):
            readers = self.of_instance.get(instance)
            if readers is not None:
                found = found | readers.of(sample.key) if found else readers.of(sample.key)
        return found

    def readers_of(self, instance: str) -> list[TopicSubscription]:
        """Return the readers of an instance, whatever keys they chose."""
        return [reader for reader in self.readers if reader.instances is None or instance in reader.instances]

    def audiences(self, reader: TopicSubscription) -> list[_Readers]:
        """Return the groups of readers that a reader is in."""
        instances = (None,) if reader.instances is None else reader.instances
        return [self.of_instance.setdefault(instance, _Readers()) for instance in instances]

    def join(self, reader: TopicSubscription) -> None:
        self.readers[reader] = None
        for readers in self.audiences(reader):
            readers.join(reader)

    def leave(self, reader: TopicSubscription) -> None:
        self.readers.pop(reader, None)
        for readers in self.audiences(reader):
            readers.leave(reader)
        self.of_instance = {name: each for name, each in self.of_instance.items() if each.of_all or each.choosers}

    def change(self, reader: TopicSubscription, instances: frozenset[str]) -> None:
        """Move a reader to other instances."""
        if reader not in self.readers or reader.instances is None:
            return
        for name in reader.instances - instances:
            readers = self.of_instance[name]
            readers.leave(reader)
            if not readers.of_all and not readers.choosers:
                del self.of_instance[name]
        for name in instances - reader.instances:
            self.of_instance.setdefault(name, _Readers()).join(reader)

    def expired(self, now: float) -> list[int]:
        """Return the numbers of expired samples. Samples are nearly in order of time, so that this stops early."""
        over = []
        for number, sample in self.kept.items():
            if now - sample.time / MICROSECONDS <= self.qos.lifespan:
                break
            over.append(number)
        return over


class EmbeddedFabric(Fabric):
    """The fabric inside one process. `clock` and `random` can be those of a simulation."""

    MAPPING = MappingProxyType(
        {
            "durability": "transient: in memory; persistent: in the file of a `FileKeeper`, refused without one",
            "history": "the newest of each key in memory; keep-all: a full topic refuses (`fabric.full`)",
            "ownership": "exclusive: a claim with an epoch, checked at each publishing",
            "source_order": "by-source: older samples of a key are dropped, or counted as late if history is keep-all",
            "reliability": "reliable: handed over before publishing returns; a reader too far behind is cut off",
            "time_filter": "at the reader: the newest of each period and key",
            "deadline": "at the reader: `on_deadline`, and counted",
            "lifespan": "checked when a sample is kept, arrives and is taken",
            "latency_budget": "no sample is delayed; later deliveries are counted",
            "priority": "readers of more urgent topics are woken first",
            "lease": "`on_writer` at the reader; a writer that closes is gone immediately",
        }
    )

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        random: RandomBytes = secrets.token_bytes,
        keeper: FileKeeper | None = None,
        limits: FabricLimits = FABRIC_LIMITS,
    ) -> None:
        self.clock = clock or SystemClock()
        self._random = random
        self._keeper = keeper
        self.limits = limits
        self._topics: dict[str, _Topic] = {}
        self._closed = False
        self._woken: dict[Priority, dict[TopicSubscription, None]] = {}
        self._turns = 0
        for name, qos, epoch in keeper.topics() if keeper is not None else ():
            topic = self._topics[name] = _Topic(name, qos, epoch)
            for number, sample in keeper.samples(name) if keeper is not None else ():
                topic.add(number, sample)

    async def declare(self, topic: str, qos: Qos) -> None:
        """Create a topic, or check that it exists with the same quality of service."""
        self._check_open()
        check_name(topic, self.limits)
        check_offer(qos)
        if qos.durability is Durability.PERSISTENT and self._keeper is None:
            raise RefusedError(
                CODES["durability"],
                "an embedded fabric without a keeper has no persistent topics",
                hint="give it a `FileKeeper`, or declare the topic `transient`",
                policy="durability",
            )
        known = self._topics.get(topic)
        if known is not None and known.qos != qos:
            raise differs(topic)
        if known is None:
            if self._keeper is not None and qos.durability is Durability.PERSISTENT:
                self._keeper.declare(topic, qos)
            self._topics[topic] = _Topic(topic, qos)

    async def describe(self, topic: str) -> Qos:
        """Return the policies that a topic offers."""
        return self._topic(topic).qos

    async def remove(self, topic: str) -> None:
        """Remove a topic and its samples, and end its subscriptions."""
        found = self._topic(topic)
        if self._keeper is not None and found.persistent:
            self._keeper.remove(topic)
        del self._topics[topic]
        for reader in list(found.readers):
            reader.fail(unknown(topic))
            found.leave(reader)

    async def publisher(self, topic: str, *, strength: int = 0, instance: str = "") -> "EmbeddedPublisher":
        """Return a writer of a topic."""
        return await self.publisher_as(topic, self._random(WRITER_BYTES), strength=strength, instance=instance)

    async def publisher_as(self, topic: str, writer: bytes, *, strength: int, instance: str) -> "EmbeddedPublisher":
        """Return a writer of a topic with this id, which may be that of a writer elsewhere."""
        check_instances((instance,), self.limits)
        made = EmbeddedPublisher(self, self._topic(topic), writer, strength=strength, instance=instance)
        await made.alive()
        return made

    async def _read(
        self,
        topic: str,
        offered: Qos,  # noqa: ARG002  # of the port
        qos: Qos,
        new: Callable[..., TopicSubscription],
    ) -> TopicSubscription:
        found = self._topic(topic)

        async def leave(subscription: TopicSubscription) -> None:
            found.leave(subscription)

        async def choose(subscription: TopicSubscription, choice: KeyChoice, new: bool) -> None:  # a hook
            for readers in found.audiences(subscription):
                if not new:
                    readers.unchoose(subscription, choice)
                elif subscription in found.readers:
                    readers.choosers.setdefault(choice, {})[subscription] = None

        def choose_instances(subscription: TopicSubscription, instances: frozenset[str]) -> None:
            found.change(subscription, instances)

        # What a durable topic keeps, a reader of further instances gets when it subscribes again.
        made = new(leave=leave, choose=choose, choose_instances=None if qos.durable else choose_instances)
        if qos.durable:
            for sample in found.kept.values():
                made.receive(sample)
        found.join(made)
        return made

    async def state(self, topic: str, key: str | None = None) -> tuple[Sample, ...]:
        """Return the samples that a topic keeps now."""
        found, now = self._topic(topic), self.clock.now()
        return tuple(
            sample
            for sample in found.kept.values()
            if key in (None, sample.key) and now - sample.time / MICROSECONDS <= found.qos.lifespan
        )

    async def discard(self, topic: str, through: Sample) -> None:
        """Delete what a topic keeps up to a sample."""
        found = self._topic(topic)
        before = takewhile(lambda number: number <= through.position, found.kept)
        gone = [number for number in before if not found.kept[number].instance]
        if self._keeper is not None and found.persistent and gone:
            self._keeper.discard(gone)
        for number in gone:
            found.drop(number)

    async def serve(self, topic: str, handler: Handler) -> Service:
        """Answer requests on a topic."""
        found = self._topic(topic)
        made = _Service(found, handler)
        found.services.append(made)
        return made

    async def request(
        self, topic: str, data: bytes, *, timeout: float, key: str = "", headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Send a request on a topic and return the response."""
        found = self._topic(topic)
        check(data, key, headers or {}, self.limits)
        if not found.services:
            raise no_responder(topic)
        service = found.services.pop(0)
        found.services.append(service)
        now = round(self.clock.now() * MICROSECONDS)
        sample = Sample(data, key, dict(headers or {}), now, self._random(WRITER_BYTES))
        answering = waited_for(answer(topic, service.handler, sample))
        timer = waited_for(self.clock.sleep(min(timeout, found.qos.lifespan)))
        try:
            await asyncio.wait((answering, timer), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise no_reply(topic)
            return answering.result()
        finally:
            for task in (answering, timer):
                task.cancel()
            await asyncio.gather(answering, timer, return_exceptions=True)

    async def close(self) -> None:
        """Close all subscriptions and the keeper."""
        self._closed = True
        for topic in self._topics.values():
            for reader in list(topic.readers):
                await reader.close()
        self._topics.clear()
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

    def _check_open(self) -> None:
        if self._closed:
            raise closed()

    def _topic(self, name: str) -> _Topic:
        self._check_open()
        found = self._topics.get(name)
        if found is None:
            raise unknown(name)
        return found

    def topics(self) -> tuple[str, ...]:
        """Return the names of all topics."""
        return tuple(self._topics)

    def newest(self, topic: str) -> int:
        """Return the position of the newest sample that a topic has kept."""
        return self._topic(topic).numbers

    def claimed(self, topic: _Topic, claim: TopicOwnership) -> None:
        """Record who owns a topic (called by publishers)."""
        if claim.epoch > topic.epoch and self._keeper is not None and topic.persistent:
            self._keeper.claimed(topic.name, claim.epoch)
        topic.claim, topic.epoch = claim, claim.epoch

    async def carry(self, topic: _Topic, sample: Sample) -> Sample:
        """Keep a sample, hand it to the readers, and return it with its position (called by publishers)."""
        self._check_open()
        if self._topics.get(topic.name) is not topic:
            raise unknown(topic.name)
        if topic.qos.durable:
            sample = self._keep(topic, sample)
        hearers = topic.hearers(sample)
        for reader in hearers:
            reader.receive(sample, wake=False)
        if hearers:
            if not self._woken:
                asyncio.get_running_loop().call_soon(self._wake)
            self._woken.setdefault(topic.qos.priority, {}).update(hearers)
        self._turns += 1
        if topic.qos.reliable or self._turns % _TURN == 0:
            await asyncio.sleep(0)  # let readers run: a writer that never waits would starve them
        return sample

    def _wake(self) -> None:
        woken, self._woken = self._woken, {}
        for priority in _FIRST:
            for reader in woken.get(priority, ()):
                reader.wake()

    def _keep(self, topic: _Topic, sample: Sample) -> Sample:
        gone = topic.expired(self.clock.now())
        mine = topic.of_slot.get(sample.slot, ())
        if topic.qos.history != KEEP_ALL:
            oldest = islice(mine, max(0, len(mine) - topic.qos.history + 1))
            gone += [number for number in oldest if number not in gone]
        if len(topic.kept) - len(gone) >= self.limits.fabric_history:
            raise full(topic.name)
        number = topic.numbers + 1
        if self._keeper is not None and topic.persistent:
            number = self._keeper.replace(topic.name, sample, gone)
        for old in gone:
            topic.drop(old)
        return topic.add(number, sample)


class EmbeddedPublisher(Publisher):
    """Writes to a topic of an embedded fabric."""

    def __init__(self, fabric: EmbeddedFabric, topic: _Topic, writer: bytes, *, strength: int, instance: str) -> None:
        super().__init__(topic.name, writer, fabric.clock, fabric.limits, instance=instance)
        self._fabric = fabric
        self._topic = topic
        self._strength = strength
        self._epoch = 0

    def claim(self) -> int:
        """Claim the topic if its ownership is exclusive, and return the epoch, or else 0.

        Raises `RefusedError` (`fabric.not-owner`).
        """
        topic = self._topic
        if topic.qos.ownership is Ownership.EXCLUSIVE:
            now, lease = self._clock.steady(), topic.qos.lease
            claim = contend(topic.claim, self.writer, self._strength, now, epoch=topic.epoch, lease=lease)
            if self._epoch not in (0, claim.epoch):
                raise not_owner()
            self._fabric.claimed(topic, claim)
            self._epoch = claim.epoch
        return self._epoch

    async def _send(self, sample: Sample) -> int:
        return (await self.forward(sample)).position

    async def forward(self, sample: Sample) -> Sample:
        """Write a whole sample, which may be from elsewhere; return it with the owner's epoch and its position.

        Raises as `publish`.
        """
        epoch = self.claim()
        return await self._fabric.carry(self._topic, replace(sample, epoch=epoch) if epoch else sample)

    async def alive(self) -> None:
        """Renew the lease and the claim."""
        if self._closed:
            raise closed()
        self.claim()
        if self._topic.qos.lease != FOREVER:
            for reader in self._topic.readers_of(self.instance):
                reader.heard(self.writer)

    async def _release(self) -> None:
        claim = self._topic.claim
        if claim is not None and claim.writer == self.writer:
            self._topic.claim = replace(claim, until=0)
        if self._topic.qos.lease != FOREVER:
            for reader in self._topic.readers_of(self.instance):
                reader.lost(self.writer)


class _Service(Service):
    def __init__(self, topic: _Topic, handler: Handler) -> None:
        self._topic = topic
        self.handler = handler

    async def close(self) -> None:
        if self in self._topic.services:
            self._topic.services.remove(self)

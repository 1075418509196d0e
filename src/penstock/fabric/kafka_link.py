"""The clients of librdkafka that the fabric over Kafka uses, and the registry of its topics.

confluent-kafka blocks, so each of its clients has a thread. A consumer that waits for records in one thread may not be
called from another: what it has to do is queued.

The registry is a compacted topic. Its entries have revisions, each one above the last. Of two records with the same
revision the first counts, so that everybody who reads the log comes to the same result. Whoever writes a record that
does not count writes the entry again, so that compaction keeps the entry.
"""
# ruff: noqa: SLF001  # confluent-kafka documents its local errors as `KafkaError._NAME`

import asyncio
import json
import secrets
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from logging import Logger
from typing import Any, Final

from penstock.errors import FailedError, PenstockError, RefusedError
from penstock.fabric.kafka_login import KafkaLogin
from penstock.fabric.port import closed, unknown
from penstock.fabric.qos import Priority

try:
    from confluent_kafka import (
        OFFSET_BEGINNING,
        Consumer,
        KafkaError,
        KafkaException,
        Message,
        Producer,
        TopicPartition,
    )
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic
except ImportError as missing:
    raise FailedError(
        "fabric.not-installed", "the fabric over Kafka needs confluent-kafka", hint="pip install 'penstock[kafka]'"
    ) from missing

_PATIENCE: Final = 30.0
_MOMENT: Final = 0.1
_UNDOING: Final = 5.0  # seconds in which a start that failed undoes what it did
_TICK: Final = 0.02
_LAG: Final = 3_600.0  # seconds before the registry is compacted
_GROUP: Final = "penstock"  # librdkafka wants one; nothing is committed
_BATCH: Final = 500
_LEADERLESS: Final = 10.0  # seconds that a topic has at most to find a leader
_NO_LEADER: Final = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)
_GONE_TOPIC: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)


# ----------------------------------------------------------------------------------------------------------------------
# The clients of librdkafka, and their threads.


class KafkaLink:
    """A producer for each priority, a consumer that follows topics, one that reads what they keep, and an admin."""

    def __init__(self, login: KafkaLogin, take: Callable[[Message], None]) -> None:
        settings = login.settings()
        self.servers = login.bootstrap
        self._settings = settings
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._logger = Logger("kafka")  # noqa: LOG001  # failures are raised; the library does not print
        self._logger.disabled = True
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._producers: dict[Priority, Producer] = {}
        self._admin = AdminClient(dict(settings), logger=self._logger)
        self._live = self._consumer(**{"fetch.wait.max.ms": 50})
        #: what the thread of the live consumer has to do: nobody else may call a consumer that waits for records
        self._commands: deque[tuple[Callable[[], None], asyncio.Future[None]]] = deque()
        self._past = self._consumer(**{"enable.partition.eof": True, "fetch.wait.max.ms": 10})
        self._probe = self._consumer()
        self._past_turn = asyncio.Lock()
        self._run("following Kafka topics", self._follow)
        self.producer(Priority.NORMAL)  # it takes half a second until it can write

    def _consumer(self, **more: str | float | bool) -> Consumer:
        mine = {"group.id": _GROUP, "enable.auto.commit": False, "enable.auto.offset.store": False}
        return Consumer({**self._settings, **mine, "auto.offset.reset": "earliest", **more}, logger=self._logger)

    def _run(self, name: str, work: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=work, name=name, daemon=True))
        self._threads[-1].start()

    def producer(self, priority: Priority) -> Producer:
        """Return the producer of a priority."""
        made = self._producers.get(priority)
        if made is None:
            reliable = {"acks": "all", "enable.idempotence": True, "linger.ms": 0}
            soon = {"delivery.timeout.ms": int(_PATIENCE * 1000)}
            made = Producer({**self._settings, **reliable, **soon}, logger=self._logger)
            self._producers[priority] = made
            self._run("writing to Kafka", partial(self._serve_reports, made))
        return made

    def _serve_reports(self, producer: Producer) -> None:
        while not self._ended.is_set():
            try:
                producer.poll(_MOMENT)
            except KafkaException:  # writers get the error with their records
                self._ended.wait(_MOMENT)

    def _follow(self) -> None:
        while not self._ended.is_set():
            while self._commands and not self._ended.is_set():
                self._obey(*self._commands.popleft())
            try:
                first = self._live.poll(_TICK)
                if first is None:
                    continue
                batch = [first, *self._live.consume(_BATCH, 0)]
            except KafkaException:  # librdkafka tries again
                self._ended.wait(_MOMENT)
                continue
            taken = threading.Event()
            try:
                self._loop.call_soon_threadsafe(self._hand_over, batch, taken)
            except RuntimeError:
                return  # the event loop is closed
            # The server waits while this process is busy, and memory stays bounded.
            while not taken.wait(_MOMENT) and not self._ended.is_set():
                pass

    def _obey(self, work: Callable[[], None], done: "asyncio.Future[None]") -> None:
        try:
            work()
        except KafkaException as error:
            self._loop.call_soon_threadsafe(_settle, done, self.failure(error.args[0]))
        else:
            self._loop.call_soon_threadsafe(_settle, done, None)

    def _hand_over(self, batch: list[Message], taken: threading.Event) -> None:
        try:
            for message in batch:
                self._take(message)
        finally:
            taken.set()

    async def call(self, work: Callable[[], Any]) -> Any:
        """Run a blocking call in a thread. Raises `FailedError` (`fabric.unreachable`, `fabric.refused`)."""
        if self._ended.is_set():
            raise closed()
        try:
            return await asyncio.to_thread(work)
        except KafkaException as error:
            raise self.failure(error.args[0]) from error

    def failure(self, error: KafkaError) -> PenstockError:
        """Return the error of Penstock for one of Kafka."""
        refused = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
        if error.code() in (*refused, KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED):
            return RefusedError(
                "fabric.unauthorized", f"{self.servers} refuses this user", hint="check `config` and the servers' ACLs"
            )
        if error.retriable() or error.code() in (
            KafkaError._TRANSPORT,
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._TIMED_OUT,
            KafkaError._MSG_TIMED_OUT,
            KafkaError.REQUEST_TIMED_OUT,
        ):
            return FailedError(
                "fabric.unreachable", f"cannot connect to {self.servers}", hint="check that the server runs"
            )
        return FailedError("fabric.refused", f"the server refused: {error.name()}")

    async def reach(self, timeout: float) -> None:
        """Check that a server answers in so many seconds. Raises as `call`."""
        await self.call(partial(self._admin.list_topics, timeout=timeout))

    async def create(self, name: str, config: Mapping[str, str]) -> None:
        """Create a Kafka topic; one that exists stays as it is. Raises as `call`."""
        made = self._admin.create_topics([NewTopic(name, 1, -1, config=dict(config))])[name]
        try:
            await asyncio.wrap_future(made)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self.failure(error.args[0]) from error

    async def delete(self, name: str) -> None:
        """Delete a Kafka topic, if it exists. Raises as `call`."""
        try:
            await asyncio.wrap_future(self._admin.delete_topics([name])[name])
        except KafkaException as error:
            if error.args[0].code() not in _GONE_TOPIC:
                raise self.failure(error.args[0]) from error

    async def delete_before(self, name: str, offset: int) -> None:
        """Delete the records of a topic before an offset, as far as the server permits it. Raises as `call`."""
        partition = TopicPartition(name, 0, offset)
        try:
            await asyncio.wrap_future(self._admin.delete_records([partition])[partition])
        except KafkaException as error:
            # A compacted topic alone cannot be cut: compaction drops what is superseded.
            if error.args[0].code() not in (KafkaError.POLICY_VIOLATION, KafkaError.OFFSET_OUT_OF_RANGE):
                raise self.failure(error.args[0]) from error

    async def end(self, name: str) -> int:
        """Return the offset after the last record of a topic. Raises as `call`."""
        if self._ended.is_set():
            raise closed()
        asked = partial(self._probe.get_watermark_offsets, TopicPartition(name, 0), timeout=_PATIENCE)
        for _ in range(int(_LEADERLESS / _TICK)):
            try:
                return int((await asyncio.to_thread(asked))[1])
            except KafkaException as error:
                # A topic that was just created has no leader yet.
                if error.args[0].code() not in _NO_LEADER:
                    raise self.failure(error.args[0]) from error
            await asyncio.sleep(_TICK)
            await self.call(partial(_learn, self._probe, name))
        raise FailedError("fabric.unreachable", f"the Kafka topic `{name}` is not there", hint="declare it again")

    async def follow(self, name: str, offset: int) -> None:
        """Take the records of a topic from an offset on; none, if this fails or is cancelled. Raises as `call`."""

        def begin() -> None:
            _learn(self._live, name)
            self._live.incremental_assign([TopicPartition(name, 0, offset)])

        await self._command(begin, reverse=partial(self._unassign, name))

    async def unfollow(self, name: str) -> None:
        """Take no more records of a topic. Raises as `call`."""
        await self._command(partial(self._unassign, name))

    def _unassign(self, name: str) -> None:
        self._live.incremental_unassign([TopicPartition(name, 0)])

    async def _command(self, work: Callable[[], None], reverse: Callable[[], None] | None = None) -> None:
        if self._ended.is_set():
            raise closed()
        done: asyncio.Future[None] = self._loop.create_future()
        self._commands.append((work, done))
        try:
            await done
        except asyncio.CancelledError:
            # The thread carries out what is queued all the same.
            if reverse is not None:
                self._commands.append((reverse, done))
            raise

    async def kept(self, name: str, end: int) -> list[Message]:
        """Return the records of a topic before an offset. Raises as `call`."""
        async with self._past_turn:
            found: list[Message] = await self.call(partial(self._read, name, end))
        return found

    def _read(self, name: str, end: int) -> list[Message]:
        found: list[Message] = []
        _learn(self._past, name)
        self._past.assign([TopicPartition(name, 0, OFFSET_BEGINNING)])
        try:
            while not self._ended.is_set():
                message = self._past.poll(_PATIENCE)
                if message is None:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                offset = message.offset()
                if error is None and offset is not None and offset < end:
                    found.append(message)
                if offset is not None and offset >= end - (error is None):
                    return found
        finally:
            self._past.unassign()
        return found

    def produce(self, priority: Priority, name: str, key: bytes | None, value: bytes | None) -> "asyncio.Future[int]":
        """Write a record; return its offset once it is stored. The future raises as `call`."""
        stored: asyncio.Future[int] = self._loop.create_future()

        def settle(error: KafkaError | None, offset: int | None) -> None:
            if stored.done():
                return
            if error is None:
                stored.set_result(offset or 0)
            else:
                stored.set_exception(unknown(name) if error.code() in _GONE_TOPIC else self.failure(error))

        def reported(error: KafkaError | None, message: Message) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(settle, error, message.offset())

        try:
            self.producer(priority).produce(name, value=value, key=key, partition=0, on_delivery=reported)
        except KafkaException as error:
            stored.set_exception(self.failure(error.args[0]))
        return stored

    async def close(self) -> None:
        """Wait a moment for what was written, and end the threads."""
        for producer in self._producers.values():
            await asyncio.to_thread(producer.flush, _MOMENT)
        self._ended.set()
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        while self._commands:
            _settle(self._commands.popleft()[1], closed())
        for consumer in (self._live, self._past, self._probe):
            await asyncio.to_thread(consumer.close)


async def undo(work: Awaitable[None]) -> None:
    """Undo what a start that failed has done, as far as the server lets it soon: the first error counts."""
    with suppress(PenstockError, TimeoutError):
        async with asyncio.timeout(_UNDOING):
            await work


def _learn(consumer: Consumer, name: str) -> None:
    """Ask where a topic is: librdkafka itself asks for topics that it does not know once a second."""
    consumer.list_topics(name, timeout=_PATIENCE)


def _settle(done: "asyncio.Future[None]", error: PenstockError | None) -> None:
    if not done.done():
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)


# ----------------------------------------------------------------------------------------------------------------------
# The registry: a log of entries with revisions.


@dataclass(slots=True)
class RegistryEntry:
    """The value of a name, or None if it was removed; its revision; and who wrote it."""

    value: Any
    revision: int
    token: str


class TopicRegistry:
    """What the registry says, as far as it was read. `changed` is called with names whose value changed."""

    def __init__(self, link: KafkaLink, name: str, changed: Callable[[str], None]) -> None:
        self._link = link
        self.name = name
        self._changed = changed
        self._entries: dict[str, RegistryEntry] = {}
        self._lost: dict[str, None] = {}  # names whose last record does not count
        self._end = 0
        self._moved = asyncio.Event()

    async def open(self) -> None:
        """Create the registry if there is none, and read it. Raises as `KafkaLink.call`."""
        lag = str(int(_LAG * 1000))
        await self._link.create(self.name, {"cleanup.policy": "compact", "min.compaction.lag.ms": lag})
        await self._link.follow(self.name, OFFSET_BEGINNING)
        await self.sync()
        for name in list(self._lost):
            await self._restore(name)

    def take(self, message: Message) -> None:
        """Apply a record."""
        offset, key, value = message.offset(), message.key(), message.value()
        self._end = max(self._end, (offset or 0) + 1)
        self._moved.set()
        try:
            name = (key or b"").decode()
            fields = json.loads(value or b"")
            entry = RegistryEntry(fields["value"], int(fields["revision"]), str(fields["token"]))
        except (ValueError, TypeError, LookupError, RecursionError):
            return  # a stranger wrote it
        known = self._entries.get(name)
        if known is None or entry.revision == known.revision + 1:
            self._entries[name] = entry
            self._lost.pop(name, None)
            self._changed(name)
        elif entry == known:
            self._lost.pop(name, None)
        else:
            self._lost[name] = None

    def get(self, kind: str, topic: str) -> RegistryEntry | None:
        """Return an entry, as far as the registry was read."""
        found = self._entries.get(f"{kind}/{topic}")
        return None if found is None or found.value is None else found

    async def sync(self) -> None:
        """Read to the end. Raises as `KafkaLink.call`, and `FailedError` (`fabric.unreachable`)."""
        await self._until(await self._link.end(self.name))

    async def _until(self, end: int) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                while self._end < end:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError as error:
            raise FailedError("fabric.unreachable", "the registry of topics does not arrive") from error

    async def put(self, kind: str, topic: str, value: Any, known: RegistryEntry | None) -> bool:
        """Set a value if the entry is still the known one; return whether it was. Raises as `KafkaLink.call`."""
        name = f"{kind}/{topic}"
        before = self._entries.get(name)
        if known is not None and before is not known:
            return False
        token = secrets.token_hex(8)
        mine = RegistryEntry(value, (0 if before is None else before.revision) + 1, token)
        await self._write(name, mine)
        now = self._entries.get(name)
        if now is not None and now.token == token:
            return True
        if name in self._lost:
            await self._restore(name)  # or compaction would keep the record that does not count
        found = self._entries.get(name)
        return found is not None and found.token == token

    async def _restore(self, name: str) -> None:
        await self._write(name, self._entries[name])

    async def _write(self, name: str, entry: RegistryEntry) -> None:
        fields = {"value": entry.value, "revision": entry.revision, "token": entry.token}
        raw = json.dumps(fields).encode()
        await self._until(1 + await self._link.produce(Priority.NORMAL, self.name, name.encode(), raw))

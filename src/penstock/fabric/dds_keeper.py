"""The keeper of a DDS domain: which topics there are, who owns them, and what they keep for late readers.

DDS has no server, and Cyclone DDS accepts the durabilities *transient* and *persistent* without keeping anything once a
writer is gone. So one process of a domain runs a `DdsKeeper`:

- It stores what topics offer, the claims of owners, and the samples of durable topics; with a file, those of persistent
  topics survive it (`EmbeddedFabric` and `FileKeeper` do the work).
- Writers of durable topics send it their samples. It stores each, writes it to the DDS topic, and acknowledges it. Its
  own DDS writers are transient-local, so that DDS hands late readers what is kept.
- Writers of volatile topics write to their readers directly. The keeper introduces them to each other: a new writer or
  reader is open when all that were there before can be heard.
- It passes requests to services, and renewed leases to the readers that watch. When DDS finds a client gone, so are its
  writers.

A second keeper of the same file is a stand-by: it waits until the first one has ended, however that was, and goes on
with what the file has.

Clients send to `PREFIX/calls`; the keeper answers on `PREFIX/replies` in the partition of the client. Anyone in the
domain can send to it: what does not read is refused, and what one client can make it hold is bounded.
"""

import asyncio
import fcntl
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError
from penstock.fabric.dds_link import (
    DdsAddress,
    DdsLink,
    DdsReader,
    DdsWriter,
    pack,
    pack_message,
    policies,
    unpack,
    unpack_message,
)
from penstock.fabric.embedded import EmbeddedFabric, EmbeddedPublisher, FileKeeper
from penstock.fabric.envelope import MICROSECONDS, WRITER_BYTES, Sample, decode, encode
from penstock.fabric.limits import FABRIC_LIMITS, FabricLimits
from penstock.fabric.port import Clock, SystemClock, check_instances, no_responder, unknown
from penstock.fabric.qos import Qos, Reliability
from penstock.fabric.tasks import in_background, keep_running

CONTROL: Final = Qos(history=0, reliability=Reliability.RELIABLE)
ID_BYTES: Final = WRITER_BYTES
NUMBER_BYTES: Final = 8
_INTRODUCED: Final = 2.0  # seconds that a writer waits for readers that do not hear it
_CHUNK: Final = 256 << 10
_PAUSE: Final = 0.005
_FULL: Final = 1.0  # seconds that a DDS writer may stay full
_ACKS: Final = 2.0  # seconds that a replaced DDS writer waits for its readers
_LOOK: Final = 0.1  # seconds after which a stand-by looks again
GONE: Final = "fabric.keeper-restarted"
_MEMORY: Final = ":memory:"  # for tests: a file that nobody shares
KEEPER: Final = "keeper"  # the key of its replies, as a client's id is the key of its calls


def sample_topic(prefix: str, topic: str) -> str:
    """Return the DDS topic of a topic's samples: older versions of DDS take letters, digits, `_` and `/` only."""
    return f"{prefix}/t/{topic.replace('_', '_u').replace('-', '_d')}"


@dataclass(eq=False)
class _KeeperClient:
    """A client: where to answer, and what it has opened."""

    id: bytes
    replies: DdsWriter
    opened: int = 0


@dataclass(eq=False)
class _RemoteWriter:
    client: _KeeperClient
    publisher: EmbeddedPublisher
    ready: bool = False


@dataclass(eq=False)
class _RemoteReader:
    client: _KeeperClient
    topic: str
    instances: frozenset[str] | None
    watching: bool

    def reads(self, topic: str, instance: str) -> bool:
        return self.topic == topic and (self.instances is None or instance in self.instances)


@dataclass(eq=False)
class _Introduction:
    """A new writer that waits until all readers hear it."""

    waiting: set[bytes]
    done: Callable[[], None]
    timer: asyncio.TimerHandle | None = field(default=None)


class DdsKeeper:
    """The keeper of one prefix in a DDS domain; `await DdsKeeper.open(address)` starts it."""

    def __init__(self, link: DdsLink, store: EmbeddedFabric, prefix: str, lock: int | None = None) -> None:
        self._link = link
        self._lock = lock  # the handle of a locked file
        self._store = store
        self._prefix = prefix
        self._limits = store.limits
        #: before the position of the first sample: a keeper that was started again has greater numbers
        self._base = round(store.clock.now() * MICROSECONDS)
        self._clients: dict[bytes, _KeeperClient] = {}
        self._writers: dict[bytes, _RemoteWriter] = {}
        self._readers: dict[bytes, _RemoteReader] = {}
        self._outlets: dict[tuple[str, str], DdsWriter] = {}
        self._services: dict[str, list[tuple[_KeeperClient, str]]] = {}
        self._asked: dict[int, tuple[_KeeperClient, int]] = {}
        self._asking = 0
        self._introductions: dict[bytes, _Introduction] = {}
        self._calls: asyncio.Queue[bytes] = asyncio.Queue(10 * self._limits.fabric_pending)
        self._reader: DdsReader | None = None
        self._task: asyncio.Task[None] | None = None
        #: messages that did not read, or were too many
        self.refused = 0

    @classmethod
    async def open(  # noqa: PLR0913  # named settings, each with a default
        cls,
        address: DdsAddress | str,
        *,
        file: Path | None = None,
        standby: bool = False,
        prefix: str = "penstock",
        clock: Clock | None = None,
        limits: FabricLimits = FABRIC_LIMITS,
    ) -> Self:
        """Start a keeper; `file` is for persistent topics, which are refused without one.

        A file has one keeper. As a stand-by, wait until it has ended.

        Raises `MalformedError` (`fabric.bad-address`) and `FailedError` (`fabric.refused`, `fabric.keeper`).
        """
        parsed = DdsAddress.parse(address) if isinstance(address, str) else address
        if standby and file is None:
            raise FailedError("fabric.keeper", "a stand-by needs the file of the first keeper")
        lock = None if file is None or str(file) == _MEMORY else await _locked(file, wait=standby)
        files: FileKeeper | None = None
        link: DdsLink | None = None
        try:
            files = FileKeeper(file) if file is not None else None
            store = EmbeddedFabric(clock=clock or SystemClock(), keeper=files, limits=limits)
            link = DdsLink(parsed)
            made = cls(link, store, prefix, lock)
            await made._start()
        except BaseException:
            if link is not None:
                await link.close()
            if files is not None:
                with suppress(PenstockError):
                    files.close()
            if lock is not None:
                os.close(lock)
            raise
        return made

    async def _start(self) -> None:
        for topic in self._store.topics():
            for sample in await self._store.state(topic):
                await self._write(await self._store.describe(topic), topic, sample)
        self._reader = self._link.reader(
            f"{self._prefix}/calls", policies(CONTROL, self._limits), self._take, keyed=True, on_gone=self._gone
        )
        self._task = keep_running("keeping DDS topics", self._serve)

    async def close(self) -> None:
        """Stop, and leave the domain. What persistent topics keep is in the file."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for introduction in self._introductions.values():
            if introduction.timer is not None:
                introduction.timer.cancel()
        await self._link.close()
        await self._store.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # calls

    def _take(self, raws: list[bytes]) -> None:
        for raw in raws:
            try:
                self._calls.put_nowait(unpack(raw, keyed=True))
            except (MalformedError, asyncio.QueueFull):
                self.refused += 1

    async def _serve(self) -> None:
        while True:
            message = await self._calls.get()
            try:
                number, fields, body = unpack_message(message[ID_BYTES:])
                client = self._client(message[:ID_BYTES])
            except MalformedError:
                self.refused += 1
                continue
            try:
                result = await self._answer(client, number, fields, body)
            except PenstockError as error:
                result = {"error": error.code, "kind": type(error).__name__, "text": str(error), "hint": error.hint}
            except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
                self.refused += 1
                result = {"error": "fabric.envelope", "kind": "MalformedError", "text": "the call does not read"}
            if result is not None:
                self._reply(client, number, result)

    def _client(self, id_: bytes) -> _KeeperClient:
        """Return a client, known or new. Raises `MalformedError` for an id that is none, and if there are too many."""
        known = self._clients.get(id_)
        if known is None:
            if len(id_) != ID_BYTES or len(self._clients) >= self._limits.fabric_keys:
                raise MalformedError("fabric.envelope", "the caller cannot be answered")
            replies = self._link.writer(
                f"{self._prefix}/replies", policies(CONTROL, self._limits), keyed=True, partition=id_.hex()
            )
            known = self._clients[id_] = _KeeperClient(id_, replies)
        return known

    def _reply(self, client: _KeeperClient, number: int, fields: dict[str, Any], body: bytes = b"") -> None:
        """Send to a client; 0 is the number of what it did not ask for. A client that takes nothing is forgotten."""
        try:
            sent = client.replies.write(pack(pack_message(number, fields, body), KEEPER), self._now())
        except FailedError:
            sent = False
        if not sent and client.id in self._clients:
            self._forget(client)

    def _now(self) -> int:
        return round(self._store.clock.now() * MICROSECONDS)

    async def _answer(
        self, client: _KeeperClient, number: int, fields: dict[str, Any], body: bytes
    ) -> dict[str, Any] | None:
        """Carry out one call, and return the reply; None if it comes later, or never. Raises for what does not read."""
        calls: dict[str, Callable[[], Coroutine[Any, Any, dict[str, Any] | None]]] = {
            "hello": lambda: _nothing({}),
            "declare": lambda: self._declare(fields),
            "describe": lambda: self._describe(fields),
            "remove": lambda: self._remove(fields),
            "writer": lambda: self._open_writer(client, fields),
            "ready": lambda: self._introduce(client, number, fields),
            "claim": lambda: self._renew(fields, beat=False),
            "alive": lambda: self._renew(fields, beat=True),
            "close-writer": lambda: self._close_writer(fields),
            "publish": lambda: self._publish(fields, body),
            "reader": lambda: self._open_reader(client, fields),
            "close-reader": lambda: self._close_reader(fields),
            "poke": lambda: self._poke(fields),
            "met": lambda: self._met(fields),
            "state": lambda: self._state(client, number, fields),
            "discard": lambda: self._discard(fields),
            "serve": lambda: self._add_service(client, fields),
            "unserve": lambda: self._drop_service(client, fields),
            "request": lambda: self._request(client, number, fields, body),
            "answered": lambda: self._answered(fields, body),
        }
        return await calls[fields["op"]]()

    # topics

    async def _declare(self, fields: dict[str, Any]) -> dict[str, Any]:
        await self._store.declare(fields["topic"], Qos.from_dict(fields["qos"]))
        return {}

    async def _describe(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {"qos": (await self._store.describe(fields["topic"])).as_dict()}

    async def _remove(self, fields: dict[str, Any]) -> dict[str, Any]:
        topic = fields["topic"]
        await self._store.remove(topic)
        concerned = {each.client for each in self._readers.values() if each.topic == topic}
        concerned |= {each.client for each in self._writers.values() if each.publisher.topic == topic}
        for client in concerned:
            self._reply(client, 0, {"op": "removed", "topic": topic})
        for id_ in [id_ for id_, reader in self._readers.items() if reader.topic == topic]:
            self._drop_reader(id_)
        for id_ in [id_ for id_, writer in self._writers.items() if writer.publisher.topic == topic]:
            self._drop_writer(id_)
        for place in [place for place in self._outlets if place[0] == topic]:
            self._outlets.pop(place).close()
        self._services.pop(topic, None)
        return {}

    async def _state(self, client: _KeeperClient, number: int, fields: dict[str, Any]) -> dict[str, Any]:
        chunk: list[bytes] = []
        size = 0
        for sample in await self._store.state(fields["topic"], fields["key"]):
            raw = self._numbered(sample)
            chunk += (len(raw).to_bytes(4, "big"), raw)
            size += len(raw)
            if size > _CHUNK:
                self._reply(client, number, {"more": True}, b"".join(chunk))
                chunk, size = [], 0
        self._reply(client, number, {"more": True}, b"".join(chunk))
        return {}

    async def _discard(self, fields: dict[str, Any]) -> dict[str, Any]:
        topic = fields["topic"]
        await self._store.discard(topic, Sample(b"", position=int(fields["position"]) - self._base))
        # DDS hands late readers all that a writer has written: a new one writes what is left. Readers know copies.
        before = self._outlets.pop((topic, ""), None)
        if before is not None:
            qos = await self._store.describe(topic)
            for sample in await self._store.state(topic):
                if not sample.instance:
                    await self._write(qos, topic, sample)
            in_background(f"closing a writer of {topic}", _close_acknowledged(before))
        return {}

    def _numbered(self, sample: Sample) -> bytes:
        return (self._base + sample.position).to_bytes(NUMBER_BYTES, "big") + encode(sample)

    # writers

    async def _open_writer(self, client: _KeeperClient, fields: dict[str, Any]) -> dict[str, Any]:
        topic, instance, id_ = fields["topic"], fields["instance"], bytes.fromhex(fields["writer"])
        if len(id_) != WRITER_BYTES or id_ in self._writers:
            raise ValueError("not the id of a new writer")
        self._make_room(client)
        publisher = await self._store.publisher_as(topic, id_, strength=int(fields["strength"]), instance=instance)
        self._writers[id_] = _RemoteWriter(client, publisher)
        client.opened += 1
        qos = await self._store.describe(topic)
        self._tell_watchers(id_, there=True)
        return {"qos": qos.as_dict(), "epoch": publisher.claim()}

    def _make_room(self, client: _KeeperClient) -> None:
        if client.opened >= self._limits.fabric_keys:
            raise RefusedError("fabric.refused", "a client has too many readers and writers", hint="close some")

    async def _introduce(self, client: _KeeperClient, number: int, fields: dict[str, Any]) -> dict[str, Any] | None:
        """Let the readers that are there say when they hear a new writer; then its client gets the reply."""
        id_ = bytes.fromhex(fields["writer"])
        writer = self._writers[id_]
        writer.ready = True
        readers: dict[_KeeperClient, list[str]] = {}
        for reader_id, reader in self._readers.items():
            if reader.reads(writer.publisher.topic, writer.publisher.instance):
                readers.setdefault(reader.client, []).append(reader_id.hex())
        if not readers:
            return {}

        def done() -> None:
            introduction = self._introductions.pop(id_, None)
            if introduction is not None and introduction.timer is not None:
                introduction.timer.cancel()
            self._reply(client, number, {})

        waiting = {bytes.fromhex(each) for some in readers.values() for each in some}
        introduction = self._introductions[id_] = _Introduction(waiting, done)
        introduction.timer = asyncio.get_running_loop().call_later(_INTRODUCED, done)
        for each, ids in readers.items():
            self._reply(each, 0, {"op": "meet", "writer": fields["writer"], "readers": ids})
        return None

    async def _met(self, fields: dict[str, Any]) -> None:
        introduction = self._introductions.get(bytes.fromhex(fields["writer"]))
        if introduction is not None:
            introduction.waiting.discard(bytes.fromhex(fields["reader"]))
            if not introduction.waiting:
                introduction.done()

    async def _poke(self, fields: dict[str, Any]) -> None:
        """Let writers say hello to their readers."""
        clients: dict[_KeeperClient, list[str]] = {}
        for each in fields["writers"]:
            writer = self._writers.get(bytes.fromhex(each))
            if writer is not None:
                clients.setdefault(writer.client, []).append(each)
        for client, writers in clients.items():
            self._reply(client, 0, {"op": "poke", "writers": writers})

    async def _renew(self, fields: dict[str, Any], *, beat: bool) -> dict[str, Any]:
        id_ = bytes.fromhex(fields["writer"])
        epoch = self._writer(id_).publisher.claim()
        if beat:
            self._tell_watchers(id_, there=True)
        return {"epoch": epoch}

    def _writer(self, id_: bytes) -> _RemoteWriter:
        found = self._writers.get(id_)
        if found is None:
            raise RefusedError(GONE, "the keeper does not know this writer", hint="open it again")
        return found

    async def _close_writer(self, fields: dict[str, Any]) -> dict[str, Any]:
        id_ = bytes.fromhex(fields["writer"])
        writer = self._writers.get(id_)
        if writer is not None:
            await writer.publisher.close()
            self._tell_watchers(id_, there=False)
            self._drop_writer(id_)
        return {}

    def _drop_writer(self, id_: bytes) -> None:
        writer = self._writers.pop(id_, None)
        if writer is not None:
            writer.client.opened -= 1

    def _tell_watchers(self, id_: bytes, *, there: bool) -> None:
        publisher = self._writers[id_].publisher
        clients: dict[_KeeperClient, list[str]] = {}
        for reader_id, reader in self._readers.items():
            if reader.watching and reader.reads(publisher.topic, publisher.instance):
                clients.setdefault(reader.client, []).append(reader_id.hex())
        for client, readers in clients.items():
            self._reply(client, 0, {"op": "lease", "writer": id_.hex(), "there": there, "readers": readers})

    async def _publish(self, fields: dict[str, Any], body: bytes) -> dict[str, Any]:
        writer = self._writer(bytes.fromhex(fields["writer"]))
        sample = decode(body)
        if (sample.writer, sample.instance) != (writer.publisher.writer, writer.publisher.instance):
            raise ValueError("not a sample of this writer")
        topic = writer.publisher.topic
        qos = await self._store.describe(topic)
        kept = await writer.publisher.forward(sample)
        await self._write(qos, topic, kept)
        return {"position": self._base + kept.position}

    async def _write(self, qos: Qos, topic: str, sample: Sample) -> None:
        """Write a sample to the DDS topic, from which late readers get it too. Raises `FailedError`."""
        place = topic, sample.instance
        outlet = self._outlets.get(place)
        if outlet is None:
            real = isinstance(self._store.clock, SystemClock)
            outlet = self._outlets[place] = self._link.writer(
                sample_topic(self._prefix, topic),
                policies(qos, self._limits, real_time=real, kept=True),
                keyed=True,
                partition=sample.instance,
            )
        raw = pack(self._numbered(sample), sample.key)
        for _ in range(round(_FULL / _PAUSE)):
            if outlet.write(raw, sample.time):
                return
            await asyncio.sleep(_PAUSE)
        raise FailedError("fabric.unreachable", "readers do not take the samples", hint="try again later")

    # readers

    async def _open_reader(self, client: _KeeperClient, fields: dict[str, Any]) -> dict[str, Any]:
        topic, id_ = fields["topic"], bytes.fromhex(fields["reader"])
        instances = None if fields["instances"] is None else frozenset(map(str, fields["instances"]))
        check_instances(instances, self._limits)
        if topic not in self._store.topics():
            raise unknown(topic)
        if len(id_) != ID_BYTES or id_ in self._readers:
            raise ValueError("not the id of a new reader")
        self._make_room(client)
        reader = self._readers[id_] = _RemoteReader(client, topic, instances, bool(fields["watching"]))
        client.opened += 1
        writers = [
            writer_id.hex()
            for writer_id, writer in self._writers.items()
            if writer.ready and reader.reads(writer.publisher.topic, writer.publisher.instance)
        ]
        return {"writers": writers, "number": self._base + self._store.newest(topic)}

    async def _close_reader(self, fields: dict[str, Any]) -> dict[str, Any]:
        self._drop_reader(bytes.fromhex(fields["reader"]))
        return {}

    def _drop_reader(self, id_: bytes) -> None:
        reader = self._readers.pop(id_, None)
        if reader is not None:
            reader.client.opened -= 1
            for introduction in list(self._introductions.values()):
                introduction.waiting.discard(id_)
                if not introduction.waiting:
                    introduction.done()

    # requests

    async def _add_service(self, client: _KeeperClient, fields: dict[str, Any]) -> dict[str, Any]:
        topic = fields["topic"]
        if topic not in self._store.topics():
            raise unknown(topic)
        self._make_room(client)
        client.opened += 1
        self._services.setdefault(topic, []).append((client, str(fields["service"])))
        return {}

    async def _drop_service(self, client: _KeeperClient, fields: dict[str, Any]) -> dict[str, Any]:
        services = self._services.get(fields["topic"], [])
        with suppress(ValueError):
            services.remove((client, str(fields["service"])))
            client.opened -= 1
        return {}

    async def _request(self, client: _KeeperClient, number: int, fields: dict[str, Any], body: bytes) -> None:
        topic = fields["topic"]
        if topic not in self._store.topics():
            raise unknown(topic)
        services = self._services.get(topic)
        if not services:
            raise no_responder(topic)
        if len(self._asked) >= self._limits.fabric_pending:
            del self._asked[next(iter(self._asked))]
        service = services.pop(0)
        services.append(service)
        self._asking += 1
        self._asked[self._asking] = client, number
        self._reply(service[0], 0, {"op": "ask", "service": service[1], "id": self._asking}, body)

    async def _answered(self, fields: dict[str, Any], body: bytes) -> None:
        asker = self._asked.pop(int(fields["id"]), None)
        if asker is not None:
            self._reply(*asker, {"ok": bool(fields["ok"])}, body)

    # clients that are gone

    def _gone(self, key: str) -> None:
        """Forget a client that DDS finds gone: closed, or silent for its lease."""
        with suppress(ValueError):
            client = self._clients.get(bytes.fromhex(key))
            if client is not None:
                self._forget(client)

    def _forget(self, client: _KeeperClient) -> None:
        del self._clients[client.id]
        for id_ in [id_ for id_, reader in self._readers.items() if reader.client is client]:
            self._drop_reader(id_)
        for id_ in [id_ for id_, writer in self._writers.items() if writer.client is client]:
            self._tell_watchers(id_, there=False)
            self._drop_writer(id_)
        for services in self._services.values():
            services[:] = [each for each in services if each[0] is not client]
        client.replies.close()


async def _locked(file: Path, *, wait: bool) -> int:
    """Lock the file of a keeper, and return the handle of the lock. The system unlocks it when the process ends."""
    lock = Path(f"{file}.lock")
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise FailedError("fabric.keeper", f"`{lock}` cannot be opened: {error.strerror}") from error
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    hint = "end it, or start this one as a stand-by"
                    raise FailedError("fabric.keeper", f"another keeper uses `{file}`", hint=hint) from None
                await asyncio.sleep(_LOOK)
            else:
                return handle
    except BaseException:
        os.close(handle)
        raise


async def _close_acknowledged(writer: DdsWriter) -> None:
    await writer.wait_for_acks(_ACKS)
    writer.close()


async def _nothing(result: dict[str, Any]) -> dict[str, Any]:
    return result

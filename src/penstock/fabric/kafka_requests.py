"""Requests and answers over Kafka, which has none: services are in the registry, requests in a topic of their own."""

import asyncio
import secrets
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from confluent_kafka import Message

from penstock.errors import FailedError, MalformedError
from penstock.fabric.envelope import WRITER_BYTES, Sample, decode, encode
from penstock.fabric.kafka_link import KafkaLink, RegistryEntry, TopicRegistry, undo
from penstock.fabric.kafka_records import topic_settings
from penstock.fabric.limits import FabricLimits
from penstock.fabric.port import LEASE, Clock, Handler, Service, answer, handler_failed, no_reply, no_responder
from penstock.fabric.qos import Priority, Qos
from penstock.fabric.tasks import in_background, keep_running, waited_for

_ASKED: Final = b"?"
_ANSWERED: Final = b"!"
_FAILED: Final = b"-"
_NUMBER: Final = struct.Struct(">8sQ")


class _KafkaService(Service):
    def __init__(self, requests: "KafkaRequests", topic: str, name: str, handler: Handler) -> None:
        self._requests = requests
        self.id = secrets.token_hex(8)
        self.topic = topic
        self.name = name
        self.handler = handler
        self.renewing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        await self._requests.end(self)


class KafkaRequests:
    """The services and requests of one client."""

    def __init__(
        self,
        link: KafkaLink,
        registry: TopicRegistry,
        exists: Callable[[str, str], bool],
        clock: Clock,
        limits: FabricLimits,
    ) -> None:
        self._link = link
        self._registry = registry
        self._exists = exists
        self._clock = clock
        self._id = secrets.token_bytes(WRITER_BYTES)
        self._numbers = 0
        self._services: dict[str, _KafkaService] = {}
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._followed: dict[str, asyncio.Future[None]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(limits.fabric_requests)

    async def serve(self, topic: str, name: str, handler: Handler) -> Service:
        """Answer requests on a topic, whose Kafka topic is named. Raises as `KafkaLink.call`."""
        made = _KafkaService(self, topic, name, handler)
        await self._link.create(f"{name}.requests", topic_settings(Qos()))
        await self._follow(f"{name}.requests")
        self._services[made.id] = made
        try:
            await self._list(made, there=True)
        except BaseException:
            # It would go on answering, though nobody has it.
            await undo(self.end(made))
            raise
        made.renewing = keep_running(f"serving {topic}", partial(self._renew, made))
        return made

    async def _renew(self, service: _KafkaService) -> None:
        while True:
            await self._clock.sleep(LEASE / 3)
            await self._list(service, there=True)

    async def _list(self, service: _KafkaService, *, there: bool) -> None:
        registry = self._registry
        while True:
            await registry.sync()
            if not self._exists(service.topic, service.name):
                return
            entry = registry.get("services", service.topic)
            listed = self._present(entry)
            listed.pop(service.id, None)
            if there:
                listed[service.id] = self._clock.now() + LEASE
            if await registry.put("services", service.topic, listed, entry):
                return

    def _present(self, entry: RegistryEntry | None) -> dict[str, float]:
        """Return the services whose lease has not run out."""
        found = entry.value if entry is not None and isinstance(entry.value, dict) else {}
        now = self._clock.now()
        return {str(name): end for name, end in found.items() if isinstance(end, float) and end > now}

    async def end(self, service: _KafkaService) -> None:
        """Answer no more requests with a service."""
        if self._services.pop(service.id, None) is None:
            return
        if service.renewing is not None:
            service.renewing.cancel()
            await asyncio.gather(service.renewing, return_exceptions=True)
        await self._list(service, there=False)

    async def _follow(self, name: str) -> None:
        """Follow a topic of requests once, until this client closes."""
        following = self._followed.get(name)
        if following is None:
            following = self._followed[name] = waited_for(self._begin(name))
            following.add_done_callback(partial(self._begun, name))
        # Others wait for it too: a request that is cancelled must not cancel it.
        await asyncio.shield(following)

    def _begun(self, name: str, following: asyncio.Future[None]) -> None:
        """Let the next one try again if it failed, also if nobody waits for it any more."""
        if following.cancelled() or following.exception() is not None:
            del self._followed[name]

    async def _begin(self, name: str) -> None:
        await self._link.follow(name, await self._link.end(name))

    async def ask(self, topic: str, name: str, sample: Sample, timeout: float) -> bytes:
        """Ask one of the services and return its answer. Raises as `Fabric.request`."""
        present = list(self._present(self._registry.get("services", topic)))
        if not present:
            raise no_responder(topic)
        await self._follow(f"{name}.requests")
        self._numbers += 1
        number = self._numbers
        chosen = present[number % len(present)]
        answering: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[number] = answering
        timer = waited_for(self._clock.sleep(timeout))
        raw = encode(replace(sample, writer=self._id, sequence=number, instance=chosen))
        try:
            await self._link.produce(Priority.NORMAL, f"{name}.requests", None, _ASKED + raw)
            await asyncio.wait((answering, timer), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise no_reply(topic)
            reply = answering.result()
        finally:
            self._asked.pop(number, None)
            timer.cancel()
            await asyncio.gather(timer, return_exceptions=True)
        if reply[:1] == _FAILED:
            raise handler_failed(topic)
        return reply[1:]

    def take(self, message: Message) -> None:
        """Take a record of a topic of requests (called in the event loop)."""
        raw, name = message.value() or b"", message.topic() or ""
        if raw[:1] == _ANSWERED and len(raw) > 1 + _NUMBER.size:
            client, number = _NUMBER.unpack_from(raw, 1)
            waiting = self._asked.get(number) if client == self._id else None
            if waiting is not None and not waiting.done():
                waiting.set_result(raw[1 + _NUMBER.size :])
        elif raw[:1] == _ASKED:
            try:
                sample = decode(raw[1:])
            except MalformedError:
                return
            service = self._services.get(sample.instance)
            if service is not None and f"{service.name}.requests" == name and not self._room.locked():
                task = in_background(f"answering on {service.topic}", self._answer(service, sample))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)

    async def _answer(self, service: _KafkaService, sample: Sample) -> None:
        async with self._room:
            try:
                reply = b"+" + await answer(service.topic, service.handler, replace(sample, instance=""))
            except FailedError:
                reply = _FAILED
            raw = _ANSWERED + _NUMBER.pack(sample.writer, sample.sequence) + reply
            await self._link.produce(Priority.NORMAL, f"{service.name}.requests", None, raw)

    async def close(self) -> None:
        """End all services and answers, then raise the first error. Raises as `KafkaLink.call`."""
        services = list(self._services.values())
        try:
            # All together: if the server is away, none of them can be removed from the registry.
            ended = await asyncio.gather(*map(self.end, services), return_exceptions=True)
        finally:
            renewing = [service.renewing for service in services if service.renewing is not None]
            tasks = [*self._answering, *renewing]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if error is not None:
                raise error

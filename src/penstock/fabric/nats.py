"""A fabric over NATS servers: core NATS where a sample may be lost, JetStream where it is kept or acknowledged.

    volatile, best effort       core NATS
    volatile, reliable          a stream that keeps a sample for its lifespan; without one, until every reader there is
                                has acknowledged it
    transient or persistent     a stream in files; as many samples a key as the history says

The servers are not trusted: they see topic names, keys, times and bytes. What they say about a topic is checked when it
is read. Seals above this port show whether the bytes are what a writer wrote.
"""

import asyncio
import json
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Self

from penstock.errors import FailedError, LimitError, MalformedError
from penstock.fabric.envelope import MICROSECONDS, WRITER_BYTES, Sample, check, decode, encode
from penstock.fabric.limits import FABRIC_LIMITS, FabricLimits
from penstock.fabric.nats_login import NatsLogin
from penstock.fabric.port import (
    ClaimsSeen,
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
    handler_failed,
    no_reply,
    no_responder,
    not_owner,
    unknown,
)
from penstock.fabric.qos import FOREVER, KEEP_ALL, Order, Ownership, Qos, check_offer
from penstock.fabric.tasks import in_background

try:
    import nats.errors
    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from penstock.fabric.nats_api import NO_STREAM, NOT_STORED, STREAM_DIFFERS, TRANSIENT, ApiError, settle, store
    from penstock.fabric.nats_feed import StreamFeed, read_all
    from penstock.fabric.nats_link import DirectListening, Listening, NatsLink, checked
except ImportError as missing:
    raise FailedError(
        "fabric.not-installed", "the fabric over NATS needs nats-py", hint="pip install 'penstock[nats]'"
    ) from missing

# ----------------------------------------------------------------------------------------------------------------------
# Answers to requests over NATS: the first byte says whether the handler answered or failed.


_ANSWER, _FAILED = b"\0", b"\1"
_INBOX: Final = "_INBOX."


class NatsService(Service):
    """Answers requests on a topic; `over` is called when it is closed."""

    def __init__(  # noqa: PLR0913  # a topic, the handler, and their settings
        self,
        link: NatsLink,
        topic: str,
        qos: Qos,
        handler: Handler,
        *,
        clock: Clock,
        limits: FabricLimits,
        over: Callable[["NatsService"], None],
    ) -> None:
        self._link = link
        self._topic = topic
        self._qos = qos
        self._handler = handler
        self._clock = clock
        self._limits = limits
        self._over = over
        subject = f"{link.prefix}.ask.{topic}"
        self.listening = Listening(
            subject, self.hear, priority=qos.priority, queue="serve", pending=limits.fabric_pending
        )
        self._running: set[asyncio.Task[None]] = set()

    async def hear(self, message: Msg) -> None:
        """Answer a request as soon as fewer than `fabric_requests` others are being answered."""
        if not message.reply.startswith(_INBOX):
            return  # a stranger must not make this service send to a subject that is not an inbox
        while len(self._running) >= self._limits.fabric_requests:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        task = in_background(f"answering on {self._topic}", self._reply(message))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _reply(self, message: Msg) -> None:
        try:
            sample = decode(message.data)
            if self._clock.now() - sample.time / MICROSECONDS > self._qos.lifespan:
                return  # the requester has given up
            raw = _ANSWER + await answer(self._topic, self._handler, sample)
        except (MalformedError, FailedError):
            raw = _FAILED
        with suppress(*TRANSIENT):
            await message.respond(raw)

    async def close(self) -> None:
        """Stop answering."""
        self._over(self)
        await self._link.unlisten(self.listening)
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


def answered(topic: str, raw: bytes) -> bytes:
    """Return the answer to a request. Raises `FailedError` (`fabric.handler-failed`)."""
    if raw[:1] != _ANSWER:
        raise handler_failed(topic)
    return raw[1:]


# ----------------------------------------------------------------------------------------------------------------------
# A fabric over NATS servers: core NATS where a sample may be lost, JetStream where it is kept or acknowledged.


_SECOND: Final = 1_000_000_000  # JetStream counts in nanoseconds
_WINDOW: Final = 120.0  # seconds in which the server knows a sample that is sent again
_LEAST_AGE: Final = 0.1  # seconds; JetStream takes no less
#: what the server adds to the settings of a stream
_STREAM_DEFAULTS: Final = MappingProxyType(
    {
        "retention": "limits",
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msgs_per_subject": -1,
        "max_msg_size": -1,
        "discard": "old",
        "duplicate_window": int(_WINDOW * _SECOND),
        "compression": "none",
    }
)
_HERE: Final = b"\1"  # what a writer says about itself, before its id
_GONE: Final = b"\0"


class NatsFabric(Fabric):
    """The fabric over NATS; `await NatsFabric.connect(url)` opens it."""

    MAPPING = MappingProxyType(
        {
            "durability": "transient and persistent: a JetStream stream in files",
            "history": "the newest of each key in the stream; keep-all: a full topic refuses (`fabric.full`)",
            "ownership": "exclusive: a claim with an epoch in a stream, checked at each publishing",
            "source_order": "by-source: older samples of a key are dropped, or counted as late if history is keep-all",
            "reliability": "reliable: JetStream acknowledges, and publishing is repeated until then, stored once",
            "time_filter": "at the reader: the newest of each period and key",
            "deadline": "at the reader: `on_deadline`, and counted",
            "lifespan": "the stream's greatest age, and checked when a sample arrives and is taken",
            "latency_budget": "no sample is delayed; later deliveries are counted",
            "priority": "a separate connection for each priority",
            "lease": "messages on core NATS, and `on_writer` at the reader",
        }
    )

    def __init__(self, link: NatsLink, *, clock: Clock, random: RandomBytes, limits: FabricLimits) -> None:
        self.link = link
        self.clock = clock
        self.limits = limits
        self._random = random
        self._open: dict[TopicSubscription, DirectListening | None] = {}  # and how it hears of writers
        self._services: dict[NatsService, None] = {}
        self._asked: dict[str, Qos] = {}
        #: called by publishers
        self.claims = ClaimsSeen(clock)

    @classmethod
    async def connect(  # noqa: PLR0913  # named settings, each with a default
        cls,
        login: NatsLogin | str,
        *,
        prefix: str = "penstock",
        domain: str = "",
        timeout: float = 2.0,
        patience: float = 30.0,
        clock: Clock | None = None,
        random: RandomBytes = secrets.token_bytes,
        limits: FabricLimits = FABRIC_LIMITS,
    ) -> Self:
        """Open a fabric. `timeout` is for one answer of the server, `patience` for all repetitions.

        Raises `MalformedError` (`fabric.bad-address`), and as `NatsLink.client`.
        """
        if not (prefix.isascii() and prefix.isalnum()):
            raise MalformedError("fabric.bad-name", "a prefix has letters and digits")
        link = NatsLink(checked(login), prefix=prefix, domain=domain, timeout=timeout, patience=patience)
        made = cls(link, clock=clock or SystemClock(), random=random, limits=limits)
        try:
            await link.client()  # a wrong address or login is reported immediately
            await made._make_registry()
        except BaseException:
            await link.close()
            raise
        return made

    async def declare(self, topic: str, qos: Qos) -> None:
        """Make a topic, or confirm that it is as said."""
        self._check_open()
        check_name(topic, self.limits)
        check_offer(qos)
        known = await self._known(topic)
        if known is None:
            await self._make_registry()  # a server that lost its store has lost this too
            if not await self.register("topics", topic, qos.as_dict(), 0):
                known = await self._known(topic)
        if known not in (None, qos):
            raise differs(topic)
        if _in_stream(qos):
            await self._make_stream(self.link.stream(topic), [self.link.subject(topic)], **self._shape(qos))

    async def make_instances(self, topic: str, qos: Qos) -> None:
        """Make the stream of a topic's named instances, if it has streams. Raises as `declare`."""
        if _in_stream(qos):
            subjects = [self.link.subject(topic, instance="*")]
            await self._make_stream(self.link.stream(topic, named=True), subjects, **self._shape(qos))

    async def describe(self, topic: str) -> Qos:
        """Return the policies that a topic offers."""
        self._check_open()
        check_name(topic, self.limits)
        known = await self._known(topic)
        if known is None:
            raise unknown(topic)
        return known

    async def remove(self, topic: str) -> None:
        """Remove a topic and all that it keeps."""
        qos = await self.describe(topic)
        self._asked.pop(topic, None)
        if _in_stream(qos):
            for named in (False, True):
                with suppress(ApiError):
                    await self.link.ask(f"STREAM.DELETE.{self.link.stream(topic, named=named)}")
        for kind in ("topics", "owners"):
            purge = {"filter": f"{self.link.prefix}.{kind}.{topic}"}
            try:
                await self.link.ask(f"STREAM.PURGE.{self.link.registry}", purge)
            except ApiError as error:
                raise _refused(topic, error) from error

    async def publisher(self, topic: str, *, strength: int = 0, instance: str = "") -> "NatsPublisher":
        """Return a writer of a topic."""
        check_instances((instance,), self.limits)
        qos = await self.describe(topic)
        if instance:
            await self.make_instances(topic, qos)
        await self.link.client(qos.priority)
        made = NatsPublisher(self, topic, qos, self._random(WRITER_BYTES), strength=strength, instance=instance)
        await made.claim()
        await made.alive()
        return made

    async def _read(
        self, topic: str, offered: Qos, qos: Qos, new: Callable[..., TopicSubscription]
    ) -> TopicSubscription:
        # Instances are chosen by the server, and keys too if there is no stream, or if it is durable and the reader has
        # one key. The selector is used here.
        made = await (self._feed(topic, offered, new) if _in_stream(offered) else self._listen(topic, qos, new))
        self._open[made] = None
        if made.watching:
            names = ("", "*") if made.instances is None else made.instances
            sinks = {self.link.alive(topic, name): partial(_hear_of, made) for name in names}
            self._open[made] = alive = DirectListening(sinks, qos.priority)
            try:
                await self.link.listen(alive)
            except BaseException:
                await made.close()
                raise
        return made

    async def _feed(self, topic: str, offered: Qos, new: Callable[..., TopicSubscription]) -> TopicSubscription:
        feeds: list[StreamFeed] = []

        async def leave(subscription: TopicSubscription) -> None:
            await self._left(subscription)
            for feed in feeds:
                await feed.close()

        def taken() -> None:
            for feed in feeds:
                feed.stir()

        async def choose(_: TopicSubscription, __: KeyChoice, new: bool) -> None:  # a hook
            try:
                for feed in feeds if new else ():
                    await feed.widen()
            except ApiError as error:
                raise _refused(topic, error) from error

        made = new(leave=leave, taken=taken, choose=choose)
        chosen = [] if made.keys is None else [*made.keys]
        # A reader of one key needs no right to read others.
        key = chosen[0] if offered.durable and len(chosen) == 1 and isinstance(chosen[0], str) else None
        wanted: list[Collection[str] | None] = []
        if made.instances is None or "" in made.instances:
            wanted.append(None)
        if made.instances is None or made.instances - {""}:
            await self.make_instances(topic, offered)
            wanted.append((made.instances or frozenset()) - {""})
        of_topic = partial(
            StreamFeed,
            self.link,
            topic,
            volatile=not offered.durable,
            acknowledged=_retention(offered) == "interest",
            name=lambda: self._random(12).hex(),
        )
        try:
            for instances in wanted:
                feed = of_topic(instances=instances, key=key, share=len(wanted))
                await feed.open(made, from_start=made.reader.qos.durable)
                feeds.append(feed)
        except ApiError as error:
            await made.close()
            raise _refused(topic, error) from error
        except BaseException:
            await made.close()  # of two feeds, the first may be open
            raise
        return made

    async def _listen(self, topic: str, qos: Qos, new: Callable[..., TopicSubscription]) -> TopicSubscription:
        async def leave(subscription: TopicSubscription) -> None:
            await self._left(subscription)
            await self.link.unlisten(listening)

        def subjects_of(choice: KeyChoice | None) -> list[str]:
            instances = ("", "*") if made.instances is None else made.instances
            return [self.link.subject_of_parts(topic, choice, instance) for instance in instances]

        async def choose(_: TopicSubscription, choice: KeyChoice, new: bool) -> None:  # a hook
            if not new:
                for subject in subjects_of(choice):
                    await listening.drop(subject)
                return
            client = await self.link.client(qos.priority)
            try:
                for subject in subjects_of(choice):
                    await listening.add(client, subject, partial(hear, choice))
                if isinstance(choice, KeysUnder):
                    await settle(client, 2)  # from now on only this choice hands over what several match
            except TRANSIENT as error:
                raise self.link.unreachable(error) from error

        def hear(choice: KeyChoice | None, data: bytes, *_: bytes) -> None:
            try:
                sample = decode(data)
            except MalformedError:
                made.counts.malformed += 1
                return
            # Of several choices that match the server sends a copy for each.
            if made.keys is None or made.keys.match(sample.key) == choice:
                made.receive(sample)

        made = new(leave=leave, choose=choose)
        choices: Iterable[KeyChoice | None] = (None,) if made.keys is None else made.keys
        subjects = {subject: partial(hear, choice) for choice in choices for subject in subjects_of(choice)}
        listening = DirectListening(subjects, qos.priority)
        await self.link.listen(listening)
        return made

    async def _left(self, subscription: TopicSubscription) -> None:
        alive = self._open.pop(subscription, None)
        if alive is not None:
            await self.link.unlisten(alive)

    async def state(self, topic: str, key: str | None = None) -> tuple[Sample, ...]:
        """Return the samples that a topic keeps now."""
        qos = await self.describe(topic)
        if not qos.durable:
            return ()
        now = self.clock.now()
        try:
            found = await read_all(self.link, topic, key, named=False)
        except ApiError as error:
            raise _refused(topic, error) from error
        try:
            named = await read_all(self.link, topic, key, named=True)
        except ApiError as error:
            if error.number != NO_STREAM:
                raise _refused(topic, error) from error
            named = []
        if named:
            found = sorted(found + named, key=lambda sample: sample.time)
        return tuple(sample for sample in found if now - sample.time / MICROSECONDS <= qos.lifespan)

    async def discard(self, topic: str, through: Sample) -> None:
        """Delete what a topic's stream keeps up to a sample."""
        if not (await self.describe(topic)).durable or not through.position:
            return
        try:
            await self.link.ask(f"STREAM.PURGE.{self.link.stream(topic)}", {"seq": through.position + 1})
        except ApiError as error:
            raise _refused(topic, error) from error

    async def serve(self, topic: str, handler: Handler) -> Service:
        """Answer requests on a topic."""
        qos = await self.describe(topic)
        made = NatsService(self.link, topic, qos, handler, clock=self.clock, limits=self.limits, over=self._forget)
        await self.link.listen(made.listening)
        self._services[made] = None
        return made

    async def request(
        self, topic: str, data: bytes, *, timeout: float, key: str = "", headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Ask on a topic and return the answer."""
        qos = self._asked.get(topic) or await self.describe(topic)
        self._check_open()
        self._asked[topic] = qos  # a topic stays as it is; a removed one has nobody who serves it
        check(data, key, headers or {}, self.limits)
        client = await self.link.client(qos.priority)
        now = round(self.clock.now() * MICROSECONDS)
        raw = encode(Sample(data, key, dict(headers or {}), now, self._random(WRITER_BYTES)))
        try:
            reply = await client.request(f"{self.link.prefix}.ask.{topic}", raw, timeout=min(timeout, qos.lifespan))
        except nats.errors.NoRespondersError as error:
            raise no_responder(topic) from error
        except (TimeoutError, nats.errors.TimeoutError) as error:
            raise no_reply(topic) from error
        except TRANSIENT as error:
            raise self.link.unreachable(error) from error
        return answered(topic, reply.data)

    async def close(self) -> None:
        """End all that was opened here."""
        for subscription in list(self._open):
            await subscription.close()
        for service in list(self._services):
            await service.close()
        await self.link.close()

    def _forget(self, service: NatsService) -> None:
        self._services.pop(service, None)

    def _check_open(self) -> None:
        if self.link.closed:
            raise closed()

    async def registered(self, kind: str, topic: str) -> tuple[bytes, int] | None:
        """Return what the registry says about a topic, and its revision. Raises as `NatsLink.call`, not `ApiError`."""
        try:
            return await self.link.last(self.link.registry, f"{self.link.prefix}.{kind}.{topic}")
        except ApiError as error:
            raise _refused(topic, error) from error

    async def register(self, kind: str, topic: str, value: object, revision: int) -> bool:
        """Put a value into the registry, if it still has this revision; say whether it was stored.

        Raises as `registered`.
        """
        try:
            return await self.link.replace(f"{self.link.prefix}.{kind}.{topic}", value, revision)
        except ApiError as error:
            raise _refused(topic, error) from error
        except FailedError:
            await self.link.clear(self.link.registry)  # then it is made again at the next attempt
            raise

    async def _known(self, topic: str) -> Qos | None:
        found = await self.registered("topics", topic)
        if found is None:
            return None
        try:
            return Qos.from_dict(json.loads(found[0]))
        except (ValueError, TypeError, LookupError, RecursionError, MalformedError) as error:
            raise FailedError("fabric.registry", f"what the server says about `{topic}` does not read") from error

    def _shape(self, qos: Qos) -> dict[str, Any]:
        age = 0.0 if qos.lifespan == FOREVER else max(qos.lifespan, _LEAST_AGE)
        shape: dict[str, Any] = {
            "max_age": int(age * _SECOND),
            "duplicate_window": int(min(_WINDOW, age or _WINDOW) * _SECOND),
        }
        if qos.durable:
            kept = -1 if qos.history == KEEP_ALL else qos.history
            return shape | {"max_msgs": self.limits.fabric_history, "max_msgs_per_subject": kept, "discard": "new"}
        return shape | {"retention": _retention(qos), "max_msgs": self.limits.fabric_pending, "discard": "old"}

    async def _make_registry(self) -> None:
        prefix = self.link.prefix
        subjects = [f"{prefix}.topics.*", f"{prefix}.owners.*"]
        await self._make_stream(self.link.registry, subjects, max_msgs_per_subject=1)

    async def _make_stream(self, stream: str, subjects: list[str], **shape: Any) -> None:
        """Make a stream, or confirm that it is as said, which takes no right to make streams. Raises as `declare`."""
        config = {"name": stream, "subjects": subjects, "storage": "file", "num_replicas": 1} | shape
        try:
            if await self._has_stream(stream, config):
                return
            await self.link.ask(f"STREAM.CREATE.{stream}", config)
        except ApiError as error:
            if error.number == STREAM_DIFFERS:
                raise differs(stream) from error
            raise _refused(stream, error) from error

    async def _has_stream(self, stream: str, config: Mapping[str, Any]) -> bool:
        """Return whether there is a stream with exactly these settings. If in doubt, the server says it at creation."""
        try:
            found = (await self.link.ask(f"STREAM.INFO.{stream}")).get("config")
        except ApiError as error:
            if error.number == NO_STREAM:
                return False
            raise
        if not isinstance(found, dict):
            return False
        wanted = {**_STREAM_DEFAULTS, **config}
        # `metadata` has the versions of the server.
        others = [value for name, value in found.items() if name not in wanted and name != "metadata"]
        return not any(others) and all(found.get(name) == value for name, value in wanted.items())


class NatsPublisher(Publisher):
    """Writes to a topic over NATS."""

    def __init__(  # noqa: PLR0913  # a topic, and the settings of a writer
        self, fabric: NatsFabric, topic: str, qos: Qos, writer: bytes, *, strength: int, instance: str
    ) -> None:
        super().__init__(topic, writer, fabric.clock, fabric.limits, instance=instance)
        self._fabric = fabric
        self._link = fabric.link
        self._qos = qos
        self._strength = strength
        self._epoch = 0
        self._turn = asyncio.Lock()

    async def claim(self) -> None:
        """Own the topic, where ownership is exclusive. Raises `RefusedError` (`fabric.not-owner`)."""
        if self._qos.ownership is not Ownership.EXCLUSIVE:
            return
        while True:
            current, revision = await self._claimed()
            now = self._clock.now()
            unchanged = self._fabric.claims.unchanged(self.topic, current)
            claim = contend(current, self.writer, self._strength, now, lease=self._qos.lease, unchanged=unchanged)
            if self._epoch not in (0, claim.epoch):
                raise not_owner()
            if current is not None and claim.epoch == current.epoch and current.is_fresh(now, claim.until):
                return  # ours for a while yet
            if await self._fabric.register("owners", self.topic, claim.as_dict(), revision):
                self._epoch = claim.epoch
                return

    async def _send(self, sample: Sample) -> int:
        if self._link.closed:
            raise closed()
        if not _in_stream(self._qos):
            await self.claim()
            await self._throw(replace(sample, epoch=self._epoch) if self._epoch else sample)
            return 0
        if self._qos.source_order is Order.BY_SOURCE or self._qos.ownership is Ownership.EXCLUSIVE:
            async with self._turn:  # a repetition must not be overtaken by the next sample
                await self.claim()
                return await self._store(replace(sample, epoch=self._epoch))
        return await self._store(sample)

    async def _throw(self, sample: Sample) -> None:
        client = await self._link.client(self._qos.priority)
        try:
            await client.publish(self._link.subject_of_parts(self.topic, sample.key, self.instance), encode(sample))
        except nats.errors.MaxPayloadError as error:
            raise _too_large() from error
        except TRANSIENT as error:
            raise self._link.unreachable(error) from error

    async def _store(self, sample: Sample) -> int:
        stream = self._link.stream(self.topic, named=bool(self.instance))
        subject = self._link.subject(self.topic, sample.key, self.instance)
        raw = encode(sample)
        headers = {"Nats-Msg-Id": f"{sample.writer.hex()}.{sample.sequence}"}

        async def attempt(client: Client) -> int:
            try:
                return await store(client, subject, raw, stream=stream, timeout=self._link.timeout, headers=headers)
            except (TimeoutError, nats.errors.TimeoutError, nats.errors.NoRespondersError) as error:
                # The topic may have been removed, which says so here; or its stream alone is gone, or its files.
                if not isinstance(error, nats.errors.NoRespondersError):
                    await self._link.clear(stream)
                await self._fabric.declare(self.topic, await self._fabric.describe(self.topic))
                if self.instance:
                    await self._fabric.make_instances(self.topic, self._qos)
                raise

        try:
            # Longer than its lifespan nobody wants a sample, nor does the server know it again.
            patience = min(self._link.patience, self._qos.lifespan)
            return await self._link.call(attempt, priority=self._qos.priority, patience=patience)
        except ApiError as error:
            raise _refused(self.topic, error) from error
        except nats.errors.MaxPayloadError as error:
            raise _too_large() from error

    async def alive(self) -> None:
        """Renew the lease and the claim."""
        if self._closed:
            raise closed()
        if self._qos.lease != FOREVER:
            async with self._turn:
                await self.claim()
            await self._say(_HERE)

    async def _say(self, what: bytes) -> None:
        client = await self._link.client(self._qos.priority)
        try:
            await client.publish(self._link.alive(self.topic, self.instance), what + self.writer)
        except TRANSIENT as error:
            raise self._link.unreachable(error) from error

    async def _release(self) -> None:
        if self._link.closed:
            return
        if self._epoch:
            current, revision = await self._claimed()
            if current is not None and current.writer == self.writer:
                await self._fabric.register("owners", self.topic, replace(current, until=0.0).as_dict(), revision)
        if self._qos.lease != FOREVER:
            await self._say(_GONE)

    async def _claimed(self) -> tuple[TopicOwnership | None, int]:
        found = await self._fabric.registered("owners", self.topic)
        if found is None:
            return None, 0
        try:
            claim = TopicOwnership.from_dict(json.loads(found[0]))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError) as error:
            raise FailedError("fabric.registry", f"who owns `{self.topic}` does not read") from error
        return claim, found[1]


def _retention(qos: Qos) -> str:
    """Return until when a stream keeps a sample: `interest` is until every reader has acknowledged it."""
    # Whether a reader still needs a sample takes the server longer, the more readers there are. A lifespan ends it.
    return "interest" if not qos.durable and qos.lifespan == FOREVER else "limits"


def _hear_of(subscription: TopicSubscription, raw: bytes, *_: bytes) -> None:
    """Record that a writer is there or gone; count anything else as malformed."""
    what, writer = raw[:1], raw[1:]
    if len(writer) != WRITER_BYTES or what not in (_HERE, _GONE):
        subscription.counts.malformed += 1
    elif what == _HERE:
        subscription.heard(writer)
    else:
        subscription.lost(writer)


def _in_stream(qos: Qos) -> bool:
    return qos.reliable or qos.durable


def _too_large() -> LimitError:
    return LimitError(
        "fabric.too-large", "the server takes no message of this size", hint="raise `max_payload` of the server"
    )


def _refused(topic: str, error: ApiError) -> Exception:
    if error.number == NO_STREAM:
        return unknown(topic)
    if error.number == NOT_STORED and error.description.startswith("maximum"):
        return full(topic)
    return FailedError(
        "fabric.refused", f"the server refused for `{topic}`: {error.description}", err_code=error.number
    )

"""Reading a stream into a subscription: in order, each sample once, over restarts of the server.

A feed has its own consumer at the server and pulls no more than its reader has room for. The feed keeps the position:
the sequence of the last sample that arrived, and the time at which the stream was made. Every failure (the connection,
a gap in the consumer's count, a consumer that is gone) is mended in one way: the feed makes a new consumer that starts
after that position, then removes the old one. If the stream was deleted and made again, or restored, the position is
invalid: the subscription ends (`fabric.topic-replaced`), and its reader subscribes again.

Volatile topics keep a sample for its lifespan, or without one until every consumer has acknowledged it, which a feed
does on arrival. Without a lifespan, a gap in the stream's sequence means that the server dropped samples that this
reader had not read, and the reader is cut off.

Anybody who may publish to the feed's inbox can send what looks like a message of the consumer. A message without a
place in the stream is dropped and counted. A second message for one place, with other content, shows that one of them
is forged: the subscription ends (`fabric.forged`), because the feed cannot tell which one is true.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from nats.aio.client import Client

from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError
from penstock.fabric.envelope import Sample, decode
from penstock.fabric.limits import FABRIC_KEYS
from penstock.fabric.nats_api import NO_STREAM, TRANSIENT, AnswerError, ApiError, ask, text, whole
from penstock.fabric.nats_link import UNREACHABLE, DirectListening, NatsLink
from penstock.fabric.port import TopicSubscription, slow_consumer, unknown
from penstock.fabric.qos import FOREVER
from penstock.fabric.tasks import heeding, keep_running

_SECOND: Final = 1_000_000_000  # the API counts in nanoseconds
_BATCH: Final = 512
_EXPIRES: Final = 10.0  # seconds that a pull waits at the server
_GRACE: Final = 2.0  # seconds more until we take the answer for lost
_PROBE: Final = 1.0  # seconds after which a feed to which nothing came looks whether its consumer is there
_PROBED: Final = "-probe"  # after the consumer's name, where the server answers that
_FORGET: Final = 300  # seconds after which the server removes a consumer that nobody asks
_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
#: messages of a consumer whose content is known, to tell copies from forgeries
_REMEMBERED: Final = 2 * _BATCH
#: the statuses that say that there is nothing, or nothing in time
_NO_MORE: Final = ("404", "408")
#: the status that says that nobody listens there
_NOBODY: Final = "503"
_STATUS: Final = re.compile(rb"NATS/1\.0 ([0-9]{3})")
#: how many samples a reader remembers, to recognise one that is stored again
_RECENT: Final = 4_096
#: $JS.ACK.[domain.account.]stream.consumer.delivered.sequence.count.time.pending[.random], the last only after a domain
_PLACE: Final = re.compile(
    r"\$JS\.ACK\.([^.]*\.[^.]*\.)?([^.]*)\.([^.]*)" + 5 * r"\.([0-9]{1,19})" + r"(?(1)(?:\.[^.]*)?)"
)


class _Interrupted(AnswerError):  # noqa: N818  # not an error that leaves this room
    """Start a new consumer after the last sample."""


class StreamPosition(NamedTuple):
    """The position of a message: its stream and consumer, its sequence there, and the consumer's number.

    `time` is when it was stored, in nanoseconds since 1970, and `pending` how many follow.
    """

    stream: str
    consumer: str
    sequence: int
    number: int
    time: int
    pending: int


def read_place(reply: str) -> StreamPosition | None:
    """Read the reply subject of a message that a consumer sent; None for anything else.

    >>> read_place("$JS.ACK.log.c1.1.7.3.1700000000000000000.0")
    StreamPosition(stream='log', consumer='c1', sequence=7, number=3, time=1700000000000000000, pending=0)
    """
    found = _PLACE.fullmatch(reply)
    if found is None:
        return None
    _domain, stream, consumer, _delivered, sequence, number, time, pending = found.groups()
    place = StreamPosition(stream, consumer, int(sequence), int(number), int(time), int(pending))
    return place if place.sequence and place.number else None


class ConsumerDelivery:
    """The deliveries of one consumer: each number once, in order. See the module about forgeries."""

    def __init__(self, stream: str, consumer: str) -> None:
        self._of = (stream, consumer)
        self._known: dict[int, tuple[int, int]] = {}
        self.number = 0

    def is_next(self, place: StreamPosition, data: bytes) -> bool:
        """Return whether a message is the next one of this consumer; junk and copies are not.

        Raises `_Interrupted` if messages before it are missing, and `RefusedError` (`fabric.forged`).
        """
        if place[:2] != self._of:
            return False
        content = place.sequence, hash(data)
        if place.number <= self.number:
            if self._known.get(place.number) == content:
                return False
            raise _forged()
        if place.number != self.number + 1:
            raise _Interrupted
        self.number = place.number
        self._known[place.number] = content
        self._known.pop(place.number - _REMEMBERED, None)
        return True


def _forged() -> RefusedError:
    return RefusedError(
        "fabric.forged",
        "somebody else sends to the inbox of a reader: two different messages came for one place",
        hint="let nobody but the server publish there: docs/how-to/use-nats.md, permissions",
    )


def _replaced(topic: str) -> FailedError:
    return FailedError(
        "fabric.topic-replaced",
        f"the stream of topic `{topic}` was deleted and made again, or restored from an older state",
        hint="subscribe again; what it kept before is gone",
        topic=topic,
    )


class StreamFeed:
    """Reads one topic's stream for one subscription; `name` gives the name of a new consumer.

    With `instances` it reads the stream of named instances: only these, or all if there are none in it. With `key` it
    reads this key only, until `widen` is called. `share` is how many feeds one subscription has.
    """

    def __init__(  # noqa: PLR0913  # a topic, and what to read of it
        self,
        link: NatsLink,
        topic: str,
        *,
        volatile: bool,
        acknowledged: bool,
        name: Callable[[], str],
        instances: Collection[str] | None = None,
        key: str | None = None,
        share: int = 1,
    ) -> None:
        self._link = link
        self._topic = topic
        self._stream = link.stream(topic, named=instances is not None)
        self._volatile = volatile  # the topic, not the reader
        self._acknowledged = acknowledged  # the stream keeps a sample until every consumer has acknowledged it
        self._name = name
        self._instances = instances
        self._key = key
        self._subjects = self._chosen(key)
        self._narrow = key is not None
        self._widened = 0  # up to this place of the stream, only the key is read
        self._share = share
        self._sequences: dict[bytes, int] = {}  # the last of each writer, if only some instances are read
        self._recent: dict[tuple[bytes, int], None] = {}  # samples that the stream may not know any more
        self._consumer = ""
        self._created = ""  # when the stream was made
        self._last = 0
        self._delivery = ConsumerDelivery(self._stream, "")
        self._wanted = 0  # messages that were requested and have not come
        self._probed = False  # one more was requested, to see whether there is a consumer
        self._taking = False  # what the current consumer sends is taken in
        self._fault: AnswerError | PenstockError | None = None  # why that ended
        self._back = False
        self._full = False  # the reader has no room
        # All requested messages came, or no more will; the connection came back; or a full reader has room.
        self._stir = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self, subscription: TopicSubscription, *, from_start: bool) -> None:
        """Start reading: kept samples too if `from_start`, or only new ones. Raises as `NatsLink.call`."""
        self._subscription = subscription
        self._priority = subscription.reader.qos.priority
        self._client = await self._link.client(self._priority)
        self._reply = self._client.new_inbox()
        self._inbox = DirectListening({f"{self._reply}.*": self._hear}, self._priority)
        await self._link.listen(self._inbox)
        start = {"deliver_policy": "all"} if from_start else {"deliver_policy": "new"}
        try:
            await self._link.call(lambda _: self._consume(start))
        except BaseException:
            await self._link.unlisten(self._inbox)
            raise
        self._link.returned[self] = self._returned
        self._task = keep_running(f"reading {self._stream}", self._run)

    async def close(self) -> None:
        """Stop reading and remove the consumer."""
        self._link.returned.pop(self, None)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._link.unlisten(self._inbox)
        if self._client.is_connected:
            await self._remove(self._consumer)

    def _chosen(self, key: str | None) -> list[str]:
        """Return the subjects that are read; none for all."""
        instances = ("*" if self._instances is not None else "",) if key is not None else ()
        return [self._link.subject(self._topic, key, instance) for instance in self._instances or instances]

    async def widen(self) -> None:
        """Read all keys that are written from now on. Raises as `NatsLink.ask`."""
        if self._narrow:
            info = await self._link.ask(f"STREAM.INFO.{self._stream}")
            self._widened = whole(info, "state", "last_seq")
            self._narrow = False
            self._subjects = self._chosen(None)
            self._returned()

    def stir(self) -> None:
        """Look again, if the reader had no room: it has now."""
        if self._full:
            self._stir.set()

    def _returned(self) -> None:
        self._back, self._taking = True, False
        self._stir.set()

    def _hear(self, data: bytes, reply: bytes, headers: bytes, subject: bytes) -> Awaitable[None] | None:
        """Take in what was sent to the inbox, where the connection reads it; return the acknowledgement, if any.

        A sample costs no task of this feed: the feed runs again when all requested messages have come.
        """
        if not reply:
            self._hear_status(headers, subject.decode("utf-8", "replace").removeprefix(f"{self._reply}."))
            return None
        place = read_place(reply.decode("utf-8", "replace"))
        if place is None:
            self._subscription.counts.malformed += 1
            return None
        if not self._taking or place.consumer != self._consumer:
            return None  # junk, or from a consumer that was or will be replaced
        if not self._wanted and not self._probed:
            self._returned()  # more than was requested: some of it is junk
            return None
        try:
            if not self._delivery.is_next(place, data):
                return None
            if self._wanted:
                self._wanted -= 1
            else:
                self._probed = False
            self._take(place, data)
        except (AnswerError, PenstockError) as error:
            self._taking, self._fault = False, error
        if not self._wanted or not self._taking:
            self._stir.set()
        return self._acknowledge(reply) if self._acknowledged and self._taking else None

    def _hear_status(self, headers: bytes, to: str) -> None:
        found = _STATUS.match(headers or b"")
        if found is None:
            self._subscription.counts.malformed += 1
            return
        status = found[1].decode()
        if to == f"{self._consumer}{_PROBED}":
            self._probed = False
            if status == _NOBODY:
                self._returned()
        elif to == self._consumer and self._taking:
            if status in _NO_MORE:
                self._wanted = 0
            else:
                self._taking, self._fault = False, _Interrupted()
            self._stir.set()

    async def _acknowledge(self, reply: bytes) -> None:
        try:
            await self._client.publish(reply.decode(), b"+ACK")
        except TRANSIENT:
            self._returned()

    async def _run(self) -> None:
        pause = _PAUSE
        while True:
            try:
                self._check()
                if self._back:
                    await self._resume()
                await self._pull()
                pause = _PAUSE
            except (*TRANSIENT, PenstockError) as error:
                if isinstance(error, PenstockError) and error.code != UNREACHABLE:
                    self._subscription.fail(error)
                    return
                self._back = True
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _check(self) -> None:
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    async def _consume(self, start: dict[str, Any]) -> None:
        """Make a consumer, and expect its messages from number 1 on."""
        name = self._name()
        config: dict[str, Any] = start | {
            "name": name,
            "ack_policy": "explicit" if self._acknowledged else "none",
            "replay_policy": "instant",
            "inactive_threshold": _FORGET * _SECOND,
            "num_replicas": 0 if self._acknowledged else 1,
        }
        filtered = ""
        if len(self._subjects) == 1:
            # In the subject of the call too, where the server's permissions can allow this filter and no other.
            config["filter_subject"] = self._subjects[0]
            filtered = f".{self._subjects[0]}"
        elif self._subjects:
            config["filter_subjects"] = self._subjects
        if self._acknowledged:
            # After a restart of the server it must still count as a consumer that has not read.
            config |= {"durable_name": name, "max_ack_pending": -1}
        else:
            config["mem_storage"] = True
        body = {"stream_name": self._stream, "config": config}
        subject = f"{self._link.api}.CONSUMER.CREATE.{self._stream}.{name}{filtered}"
        made = await ask(self._client, subject, body, timeout=self._link.timeout)
        # After the consumer was made: a stream that is replaced in between loses the consumer, which is noticed.
        subject = f"{self._link.api}.STREAM.INFO.{self._stream}"
        info = await ask(self._client, subject, timeout=self._link.timeout)
        created = text(info, "created")
        if self._created and (created != self._created or whole(info, "state", "last_seq") < self._last):
            raise _replaced(self._topic)
        self._consumer, self._delivery = name, ConsumerDelivery(self._stream, name)
        self._wanted, self._probed, self._taking, self._fault = 0, False, True, None
        if not self._created:
            self._created, self._last = created, whole(made, "delivered", "stream_seq")

    async def _resume(self) -> None:
        """Go on after the last sample with a new consumer. Raises `RefusedError` (`fabric.unknown-topic`)."""
        old = self._consumer
        self._back = self._taking = False
        self._client = await self._link.client(self._priority)
        await self._inbox.attach(self._client)
        try:
            await self._consume({"deliver_policy": "by_start_sequence", "opt_start_seq": self._last + 1})
        except ApiError as error:
            if error.number == NO_STREAM:
                raise unknown(self._topic) from error
            raise _Interrupted from error
        await self._remove(old)

    async def _remove(self, consumer: str) -> None:
        with suppress(*TRANSIENT, ApiError):
            subject = f"{self._link.api}.CONSUMER.DELETE.{self._stream}.{consumer}"
            await ask(self._client, subject, timeout=self._link.timeout)

    async def _pull(self) -> None:
        """Request as many messages as there is room for, and handle them until the server has sent them all.

        A request that comes while the server deletes the consumer is never answered. So if nothing comes for a while,
        another one that does not wait shows whether there is a consumer.
        """
        room = self._subscription.reader.room // self._share
        wanted = self._wanted = min(_BATCH, room)
        if not wanted:
            self._full = True
            await self._stirred(_EXPIRES)
            self._full = False
            return
        subject = f"{self._link.api}.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        ours = f"{self._reply}.{self._consumer}"
        body = {"batch": wanted, "expires": int(_EXPIRES * _SECOND)}
        await self._client.publish(subject, json.dumps(body).encode(), reply=ours)
        loop = asyncio.get_running_loop()
        end = loop.time() + _EXPIRES + _GRACE
        # What it may bring must have room too.
        probe = loop.time() + _PROBE if room > wanted else end
        while self._wanted:
            self._check()
            if self._back or loop.time() > end:
                raise _Interrupted
            await self._stirred(min(probe, end) - loop.time())
            if probe <= loop.time() < end and self._wanted == wanted:
                self._probed = True
                await self._client.publish(subject, b'{"batch":1,"no_wait":true}', reply=f"{ours}{_PROBED}")
            if probe <= loop.time():
                probe = end

    async def _stirred(self, timeout: float) -> None:
        self._stir.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, timeout)):  # `wait_for` may swallow that the feed is closed
                await self._stir.wait()

    def _take(self, place: StreamPosition, data: bytes) -> None:
        """Take in the next message of the current consumer. Raises `FailedError` (`fabric.slow-consumer`)."""
        if place.sequence <= self._last:
            return  # sent again
        skipped = not self._subjects and place.sequence != self._last + 1
        self._last = place.sequence
        try:
            sample = decode(data)
        except MalformedError:
            self._subscription.counts.malformed += 1
            sample = None
        if sample is not None and self._subjects and self._volatile:
            skipped = self._skipped(sample)
        if self._volatile and skipped and self._subscription.reader.qos.lifespan == FOREVER:
            raise slow_consumer()
        if sample is not None and place.sequence <= self._widened and sample.key != self._key:
            self._subscription.counts.unselected += 1
        elif sample is not None and not (self._acknowledged and self._is_known(sample)):
            self._subscription.receive(sample if self._volatile else replace(sample, position=place.sequence))

    def _is_known(self, sample: Sample) -> bool:
        """Say whether a sample has come before.

        A writer that hears no answer stores its sample again. A server that was killed does not know it if all readers
        had acknowledged it.
        """
        known = sample.writer, sample.sequence
        if known in self._recent:
            return True
        self._recent[known] = None
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]
        return False

    def _skipped(self, sample: Sample) -> bool:
        """Say whether the stream dropped samples of this writer, which writes to one instance only."""
        last = self._sequences.pop(sample.writer, sample.sequence - 1)
        self._sequences[sample.writer] = max(last, sample.sequence)
        if len(self._sequences) > FABRIC_KEYS:
            del self._sequences[next(iter(self._sequences))]
        return sample.sequence > last + 1


async def read_all(link: NatsLink, topic: str, key: str | None, *, named: bool) -> list[Sample]:
    """Return the samples in a topic's stream, or that of its named instances, oldest first.

    Raises as `NatsLink.call`.
    """
    stream = link.stream(topic, named=named)
    subject = link.subject(topic, key, "*" if named else "")

    async def read(client: Client) -> list[Sample]:
        config = {"deliver_policy": "all", "ack_policy": "none", "mem_storage": True, "num_replicas": 1}
        config |= {"inactive_threshold": 10 * _SECOND, "filter_subject": subject}
        body = {"stream_name": stream, "config": config}
        made = await ask(client, f"{link.api}.CONSUMER.CREATE.{stream}", body, timeout=link.timeout)
        name, left = text(made, "name"), whole(made, "num_pending", default=0)
        delivery = ConsumerDelivery(stream, name)
        inbox = await client.subscribe(client.new_inbox(), pending_msgs_limit=0, pending_bytes_limit=0)
        found: list[Sample] = []
        try:
            while left > 0:
                wanted = min(left, _BATCH)
                pull = json.dumps({"batch": wanted, "no_wait": True}).encode()
                await client.publish(f"{link.api}.CONSUMER.MSG.NEXT.{stream}.{name}", pull, reply=inbox.subject)
                left -= wanted
                while wanted:
                    message = await heeding(inbox.next_msg(timeout=link.timeout))
                    status = None if message.reply else (message.headers or {}).get("Status")
                    if status in _NO_MORE:
                        return found  # the rest has expired or was superseded
                    if status:
                        raise AnswerError("the consumer is gone")  # with part of what the topic keeps: read it again
                    place = read_place(message.reply)
                    if place is None or not delivery.is_next(place, message.data):
                        continue
                    wanted -= 1
                    with suppress(MalformedError):
                        found.append(replace(decode(message.data), position=place.sequence))
            return found
        finally:
            with suppress(*TRANSIENT):
                await inbox.unsubscribe()

    return await link.call(read)

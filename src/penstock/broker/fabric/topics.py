"""The topics of a network on a fabric: how they are read and written, over whatever happens to the fabric.

| topic | quality of service | when the fabric was away |
|---|---|---|
| events of a type | reliable, volatile; a reader too far behind is cut off, and knows it | sent again while fresh |
| events, kept | reliable, transient, for so many seconds | the same, and readers go back |
| state: brokers, policies | reliable, transient, the last sample of each key | sent again until it is there |

Readers that are cut off subscribe again, and writers try again. Events that are lost by that, or because too many wait,
are counted and reported to the operator.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol, TypeAlias

from penstock.broker.core.event_path import WriteBudget
from penstock.codec.limits import ROUTE_BLOCK_EVENTS
from penstock.errors import FailedError, LimitError, PenstockError, RefusedError
from penstock.fabric import KEEP_ALL, Durability, Fabric, Publisher, Qos, Reliability, Sample
from penstock.fabric.tasks import in_background, keep_running, report
from penstock.model.events import TransitEvent

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0
#: seconds after which a fabric that does not answer is asked again: it can have lost the question
_PATIENCE: Final = 15.0

STATE: Final = Qos(durability=Durability.TRANSIENT, history=1, reliability=Reliability.RELIABLE)
"""Of topics that keep the current state, with which late readers begin."""

Take: TypeAlias = Callable[[Sample], Awaitable[None]]
Note: TypeAlias = Callable[[PenstockError], None]


def events_qos(fresh: float, durable: float) -> Qos:
    """Return the quality of service of event topics; all brokers of a network must use the same."""
    kept = Durability.TRANSIENT if durable else Durability.VOLATILE
    return Qos(durability=kept, history=KEEP_ALL, reliability=Reliability.RELIABLE, lifespan=durable or fresh)


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    """Raise `FailedError` (`network.silent`) if the fabric takes longer than `_PATIENCE`."""
    try:
        async with asyncio.timeout(_PATIENCE):
            yield
    except TimeoutError:
        raise FailedError(
            "network.silent",
            f"the fabric has not answered within {_PATIENCE:g} s",
            hint="it is asked again; check its servers if this goes on",
        ) from None


class TopicReader:
    """Reads one topic until it is closed. `take` gets every sample, and `note` every error.

    `missed` is called when it reads again after an interruption: samples may have been lost meanwhile.
    """

    def __init__(  # noqa: PLR0913  # what it reads, and who gets it
        self, fabric: Fabric, topic: str, qos: Qos, take: Take, note: Note, *, missed: Callable[[], None] = lambda: None
    ) -> None:
        self._fabric = fabric
        self._topic = topic
        self._qos = qos
        self._take = take
        self._note = note
        self._missed = missed
        self._task: asyncio.Task[None] | None = None
        self._loading: asyncio.Task[None] | None = None
        #: whether samples that are written now will arrive
        self.up = False
        self._interrupted = False

    async def load(self) -> None:
        """Take what the topic keeps now. Raises as `Fabric.state`."""
        for sample in await self.kept():
            await self._heed(sample)

    async def kept(self) -> tuple[Sample, ...]:
        """Return what the topic keeps now. Raises as `Fabric.state`, and `FailedError` (`network.silent`)."""
        async with _in_time():
            await self._fabric.declare(self._topic, self._qos)
            return await self._fabric.state(self._topic)

    def start(self) -> None:
        """Start reading."""
        if self._task is None:
            self._task = keep_running("reading a topic", self._run)

    def again(self) -> None:
        """Take again what the topic keeps, in the background."""
        if self._loading is None or self._loading.done():
            self._loading = in_background("reading a topic again", self._load_quietly())

    async def close(self) -> None:
        """Stop reading."""
        tasks = [task for task in (self._task, self._loading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _load_quietly(self) -> None:
        try:
            await self.load()
        except PenstockError as error:
            self._note(error)

    async def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._fabric.declare(self._topic, self._qos)
                async with await self._fabric.subscribe(self._topic) as samples:
                    if self._interrupted:
                        self._missed()
                    self._interrupted = True
                    self.up, pause = True, _FIRST_PAUSE
                    async for sample in samples:
                        await self._heed(sample)
            except PenstockError as error:
                self._note(error)
            finally:
                self.up = False
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, 2 * pause)

    async def _heed(self, sample: Sample) -> None:
        try:
            await self._take(sample)
        except PenstockError as error:
            self._note(error)
        except Exception as error:  # noqa: BLE001  # a sample that cannot be handled must not stop the reader
            report("a sample of a topic", error)


class _Writing(ABC):
    """Writes to one topic in a background task, and retries what fails."""

    def __init__(self, fabric: Fabric, topic: str, qos: Qos, note: Note) -> None:
        self._fabric = fabric
        self._topic = topic
        self._qos = qos
        self._note = note
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task = keep_running("writing to a topic", self._run)

    async def written(self) -> None:
        """Wait until everything is written. Raises `FailedError` (`network.silent`)."""
        async with _in_time():
            await self._idle.wait()

    async def close(self, patience: float) -> None:
        """Write what waits, for at most `patience` seconds, and stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._idle.wait()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _stir(self) -> None:
        self._idle.clear()
        self._wake.set()

    async def _run(self) -> None:
        pause, publisher = _FIRST_PAUSE, None
        while True:
            # After an unexpected error this task starts again, with what is not written yet.
            if self._idle.is_set():
                await self._wake.wait()
            self._wake.clear()
            try:
                if publisher is None:
                    await self._fabric.declare(self._topic, self._qos)
                    publisher = await self._fabric.publisher(self._topic)
                await self._write(publisher)
                self._idle.set()
                pause = _FIRST_PAUSE
            except PenstockError as error:
                self._note(error)
                publisher = None
                await asyncio.sleep(pause)
                pause = min(_LONGEST_PAUSE, 2 * pause)

    @abstractmethod
    async def _write(self, publisher: Publisher) -> None:
        """Write everything that waits. Raises errors after which to retry."""


class StateWriting(_Writing):
    """Writes the latest sample of each key."""

    def __init__(self, fabric: Fabric, topic: str, note: Note) -> None:
        super().__init__(fabric, topic, STATE, note)
        self._waiting: dict[str, bytes] = {}

    def put(self, key: str, data: bytes) -> None:
        """Write a sample soon. It replaces a waiting sample of the same key."""
        self._waiting.pop(key, None)
        self._waiting[key] = data
        self._stir()

    async def _write(self, publisher: Publisher) -> None:
        while self._waiting:
            key, data = next(iter(self._waiting.items()))
            await publisher.publish(data, key=key)
            if self._waiting.get(key) is data:
                del self._waiting[key]


@dataclass(frozen=True, slots=True)
class Composed:
    """A sample that is ready to be sent: its bytes, how many events it has, and when it was made."""

    data: bytes
    events: int
    time: datetime


class Composer(Protocol):
    """Makes samples of events, and numbers them."""

    def compose(self, events: tuple[TransitEvent, ...]) -> Iterator[Composed]:
        """Yield samples that hold these events."""

    def is_fresh(self, sample: Composed) -> bool:
        """Say whether readers would still accept a sample."""

    def lose(self, events: int) -> None:
        """Count events that will not be sent, so that readers notice that they are missing."""


class EventWriting(_Writing):
    """Writes events, as many in a sample as wait and fit.

    A sample that may have been stored is sent again: readers accept each number once.
    """

    def __init__(  # noqa: PLR0913  # what it writes with
        self, fabric: Fabric, topic: str, qos: Qos, note: Note, *, composer: Composer, room: WriteBudget
    ) -> None:
        super().__init__(fabric, topic, qos, note)
        self._composer = composer
        self._room = room
        self._waiting: deque[TransitEvent] = deque()
        self._composed: deque[Composed] = deque()
        self._full = False

    def put(self, events: Iterable[TransitEvent]) -> None:
        """Send events soon. If the outbox is full, they are lost and an error is noted."""
        events = tuple(events)
        if not self._room.take(len(events)):
            self._composer.lose(len(events))
            if not self._full:
                self._note(
                    LimitError(
                        "network.outbox",
                        "too many events wait for the fabric: events are lost",
                        hint="is the fabric reachable, and fast enough?",
                    )
                )
            self._full = True
            return
        self._waiting.extend(events)
        self._stir()

    async def _write(self, publisher: Publisher) -> None:
        while self._composed or self._waiting:
            if not self._composed:
                most = min(len(self._waiting), ROUTE_BLOCK_EVENTS)
                self._compose(tuple(self._waiting.popleft() for _ in range(most)))
            await self._send(publisher)
        self._full = False

    def _compose(self, events: tuple[TransitEvent, ...]) -> None:
        try:
            self._composed.extend(self._composer.compose(events))
        except PenstockError as error:
            self._drop(len(events), error)
            self._room.give(len(events))

    async def _send(self, publisher: Publisher) -> None:
        while self._composed:
            sample = self._composed[0]
            if not self._composer.is_fresh(sample):
                late = FailedError("network.late", "the fabric was away for too long: events are lost")
                self._drop(sample.events, late)
                self._done(sample)
                continue
            try:
                await publisher.publish(sample.data)
            except (LimitError, RefusedError) as error:
                if isinstance(error, RefusedError) and error.code != "fabric.full":
                    raise
                # A retry would not help.
                self._drop(sample.events, error)
            self._done(sample)

    def _done(self, sample: Composed) -> None:
        self._composed.popleft()
        self._room.give(sample.events)

    def _drop(self, events: int, error: PenstockError) -> None:
        self._composer.lose(events)
        self._note(error)

"""The reading side of quality of service, the same for every adapter.

`SampleReader` is a plain state machine: samples go in with the time of their arrival, and come out as the policies
allow.
`TopicSubscription` puts it behind an async iterator. On arrival, in this order:

 1. ownership: what an owner wrote after a newer owner is dropped
 2. lifespan: what is too old is dropped, now and again when it is taken
 3. source order: what is older than the last of its key is dropped where the history is of states (a number of
    samples), and counted as late where it is a log (keep-all)
 4. time-based filter: of a period only the newest sample of a key is let through
 5. history: of one key no more samples wait than are kept; the oldest give way
 6. the bound on all that wait: best effort drops the oldest; a reliable reader that fell so far behind is cut off
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

from penstock.errors import FailedError, PenstockError
from penstock.fabric.clock import Clock
from penstock.fabric.envelope import MICROSECONDS, Sample
from penstock.fabric.limits import FABRIC_LIMITS, FabricLimits
from penstock.fabric.qos import FOREVER, KEEP_ALL, Order, Ownership, Qos
from penstock.fabric.tasks import waited_for

Callback = Callable[[Sample], Awaitable[None]]
DeadlineMissed = Callable[[str], None]


@dataclass(slots=True)
class ReaderCounts:
    """Counts of one reader's samples by result."""

    taken: int = 0
    usurped: int = 0  #: written by somebody who no longer owned the topic
    expired: int = 0  #: older than their lifespan
    overtaken: int = 0  #: dropped, because a newer one of their key had come
    late: int = 0  #: delivered though a newer one of their key had come: the history is keep-all
    filtered: int = 0  #: by the time-based filter
    superseded: int = 0  #: by a newer one of their key while they waited: the history is no longer
    missed: int = 0  #: dropped because too many waited
    malformed: int = 0  #: the bytes were not a sample
    over_budget: int = 0  #: delivered later than the latency budget
    deadlines: int = 0  #: times that a key had no sample in time


class SampleReader:
    """The queue of one reader, and the policies that filter it."""

    def __init__(self, qos: Qos, limits: FabricLimits = FABRIC_LIMITS) -> None:
        self.qos = qos
        self.counts = ReaderCounts()
        self.cut = False
        self._keys = limits.fabric_keys
        self._bound = max(limits.fabric_pending, limits.fabric_history if qos.durable and qos.reliable else 0)
        self._waiting: OrderedDict[int, Sample] = OrderedDict()
        self._of_key: dict[str, deque[int]] = {}
        self._arrivals = 0
        self._epoch = 0
        self._newest: OrderedDict[str, float] = OrderedDict()  # source time, by key
        self._seen: OrderedDict[str, float] = OrderedDict()  # for the deadline, oldest first
        self._opened: OrderedDict[str, float] = (
            OrderedDict()
        )  # for the time filter: when its period began, oldest first
        self._held: dict[str, Sample] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def room(self) -> int:
        """Return how many samples more may wait."""
        return max(0, self._bound - len(self._waiting))

    def receive(self, sample: Sample, now: float) -> None:
        """Take in a sample that arrived."""
        if self.qos.ownership is Ownership.EXCLUSIVE:
            if sample.epoch < self._epoch:
                self.counts.usurped += 1
                return
            self._epoch = sample.epoch
        if self._expired(sample, now):
            self.counts.expired += 1
            return
        if self.qos.source_order is Order.BY_SOURCE and not self._in_order(sample):
            return
        if self.qos.deadline != FOREVER:
            self._remember(self._seen, sample.key, now)
        if self.qos.time_filter and self._hold(sample, now):
            return
        self._wait(sample, now)

    def take(self, now: float) -> Sample | None:
        """Return the next sample, if there is one."""
        for key in self._due_to_open(now):
            self._remember(self._opened, key, now)
            self._wait(self._held.pop(key), now)
        while self._waiting:
            sample = self._drop(next(iter(self._waiting)))
            if self._expired(sample, now):
                self.counts.expired += 1
                continue
            self.counts.taken += 1
            self.counts.over_budget += now - sample.time / MICROSECONDS > self.qos.latency_budget
            return sample
        return None

    def missed_deadlines(self, now: float) -> list[str]:
        """Return the keys that had no sample in time; each again after another period."""
        if self.qos.deadline == FOREVER:
            return []
        missed = []
        for key, seen in self._seen.items():
            if seen + self.qos.deadline > now:
                break
            missed.append(key)
        for key in missed:
            self._remember(self._seen, key, now)
        self.counts.deadlines += len(missed)
        return missed

    def due(self) -> float | None:
        """Return when something changes though nothing arrives."""
        times = [self._seen[key] + self.qos.deadline for key in islice(self._seen, 1)]
        times += [self._opened.get(key, -FOREVER) + self.qos.time_filter for key in self._held]
        return min(times, default=None)

    def clear(self) -> None:
        """Forget all that waits."""
        self._waiting.clear()
        self._of_key.clear()
        self._held.clear()

    def _expired(self, sample: Sample, now: float) -> bool:
        return now - sample.time / MICROSECONDS > self.qos.lifespan

    def _in_order(self, sample: Sample) -> bool:
        if sample.time >= self._newest.get(sample.key, sample.time):
            self._remember(self._newest, sample.key, sample.time)
            return True
        if self.qos.history == KEEP_ALL:
            self.counts.late += 1
            return True
        self.counts.overtaken += 1
        return False

    def _hold(self, sample: Sample, now: float) -> bool:
        opened = self._opened.get(sample.key)
        if opened is not None and now < opened + self.qos.time_filter and len(self._held) < self._keys:
            self.counts.filtered += sample.key in self._held
            self._held[sample.key] = sample
            return True
        if self._held.pop(sample.key, None) is not None:
            self.counts.filtered += 1
        self._remember(self._opened, sample.key, now)
        return False

    def _due_to_open(self, now: float) -> list[str]:
        period = self.qos.time_filter
        return [key for key in self._held if self._opened.get(key, -FOREVER) + period <= now]

    def _wait(self, sample: Sample, now: float) -> None:
        mine = self._of_key.setdefault(sample.key, deque())
        if self.qos.history != KEEP_ALL and len(mine) >= self.qos.history:
            self._drop(mine[0])
            self.counts.superseded += 1
            mine = self._of_key.setdefault(sample.key, deque())
        if len(self._waiting) >= self._bound:
            self._make_room(now)
            mine = self._of_key.setdefault(sample.key, deque())
        if self.cut:
            return
        self._arrivals += 1
        self._waiting[self._arrivals] = sample
        mine.append(self._arrivals)

    def _make_room(self, now: float) -> None:
        old = [arrival for arrival, sample in self._waiting.items() if self._expired(sample, now)]
        for arrival in old:
            self._drop(arrival)
        self.counts.expired += len(old)
        if len(self._waiting) < self._bound:
            return
        if self.qos.reliable:
            self.cut = True
            self.clear()
        else:
            self._drop(next(iter(self._waiting)))
            self.counts.missed += 1

    def _drop(self, arrival: int) -> Sample:
        sample = self._waiting.pop(arrival)
        mine = self._of_key[sample.key]
        mine.remove(arrival)
        if not mine:
            del self._of_key[sample.key]
        return sample

    def _remember(self, memory: OrderedDict[str, float], key: str, value: float) -> None:
        memory[key] = value
        memory.move_to_end(key)
        if len(memory) > self._keys:
            memory.popitem(last=False)


def slow_consumer() -> FailedError:
    """Return the error for a reliable reader that is so far behind that it would have to miss samples."""
    return FailedError(
        "fabric.slow-consumer",
        "the reader fell too far behind and was cut off",
        hint="read faster, or subscribe again; a durable topic still keeps what was missed",
    )


class TopicSubscription(AsyncIterator[Sample]):
    """The samples of a topic for one reader: an async iterator and a context manager.

    A call of `anext` that is cancelled loses no sample. `leave` is what the adapter does at the end, `taken` what it
    does when there is room again.
    """

    def __init__(
        self,
        reader: SampleReader,
        clock: Clock,
        *,
        leave: Callable[["TopicSubscription"], Awaitable[None]],
        taken: Callable[[], None] = lambda: None,
        on_deadline: DeadlineMissed | None = None,
    ) -> None:
        self.reader = reader
        self._clock = clock
        self._leave = leave
        self._taken = taken
        self._on_deadline = on_deadline
        self._wake = asyncio.Event()
        self._closed = False
        self._error: PenstockError | None = None
        self._task: asyncio.Future[None] | None = None

    @property
    def counts(self) -> ReaderCounts:
        """Return what became of the samples."""
        return self.reader.counts

    def receive(self, sample: Sample, *, wake: bool = True) -> None:
        """Take in a sample (called by the adapter) and wake who waits for it, or let the adapter do so."""
        if self._closed or self._error is not None:
            return
        self.reader.receive(sample, self._clock.now())
        if self.reader.cut:
            self.fail(slow_consumer())
        if wake:
            self._wake.set()

    def wake(self) -> None:
        """Wake who waits (called by the adapter)."""
        self._wake.set()

    def fail(self, error: PenstockError) -> None:
        """End with an error, once what waits has been taken."""
        self._error = self._error or error
        self._wake.set()

    def run(self, callback: Callback) -> None:
        """Hand every sample to a callback; an error that it raises ends the subscription (`finished` raises it)."""
        self._task = waited_for(self._run(callback))

    async def _run(self, callback: Callback) -> None:
        try:
            async for sample in self:
                await callback(sample)
        finally:
            await self._end()

    async def finished(self) -> None:
        """Wait for the end of a subscription with a callback. Raises errors of the callback or the fabric."""
        if self._task is not None:
            await asyncio.wait((self._task,))
            if not self._task.cancelled():
                self._task.result()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Sample:
        while True:
            now = self._clock.now()
            for key in self.reader.missed_deadlines(now):
                if self._on_deadline is not None:
                    self._on_deadline(key)
            sample = None if self._closed else self.reader.take(now)
            if sample is not None:
                self._taken()
                return sample
            if self._error is not None:
                raise self._error
            if self._closed:
                raise StopAsyncIteration
            await self._wait(self.reader.due())

    async def _wait(self, due: float | None) -> None:
        self._wake.clear()
        if due is None:
            await self._wake.wait()
            return
        waits: list[asyncio.Future[Any]] = [
            waited_for(self._wake.wait()),
            waited_for(self._clock.sleep(max(0.0, due - self._clock.now()))),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def close(self) -> None:
        """Stop reading. Iteration ends."""
        await self._end()
        task = self._task
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _end(self) -> None:
        if not self._closed:
            self._closed = True
            self.reader.clear()
            self._wake.set()
            await self._leave(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

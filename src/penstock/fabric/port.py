"""The port for topics, which the rest of Penstock uses with every fabric.

    async with EmbeddedFabric() as fabric:
        await fabric.declare("weather", Qos(durability=Durability.TRANSIENT, history=1))
        writer = await fabric.publisher("weather")
        await writer.publish(b"rain", key="London")
        async with await fabric.subscribe("weather", keys=["London"]) as samples:
            async for message in samples:
                ...

A topic is declared once, with the quality of service that it offers (`Qos`); a reader may request less. Topic names are
opaque here. A reader that joins late begins with the samples that the topic keeps. Samples that a policy drops are
counted in `TopicSubscription.counts`. A reader can choose keys, and headers by a selector; the chosen keys can change
while it reads. A writer can write to a named instance of a topic, which only the readers of that instance receive. If a
topic has a lease, a reader can learn which writers there are and that one is gone.

All times are seconds since 1970 of the clock that the fabric was given; nothing here reads another clock.
"""

import asyncio
import re
import time
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol, Self, TypeAlias, TypeVar

from penstock.errors import EvaluationError, FailedError, MalformedError, PenstockError, RefusedError
from penstock.fabric.envelope import MICROSECONDS, Sample, check
from penstock.fabric.limits import FABRIC_LIMITS, FabricLimits
from penstock.fabric.qos import CODES, FOREVER, KEEP_ALL, Order, Ownership, Qos, agree
from penstock.fabric.tasks import waited_for
from penstock.selector import Selector, compile_selector

# ----------------------------------------------------------------------------------------------------------------------
# Time and randomness: real, or of a simulation.


#: returns this many random bytes, as `secrets.token_bytes` does
RandomBytes = Callable[[int], bytes]


class Clock(Protocol):
    """A clock, real or virtual."""

    def now(self) -> float:
        """Return the seconds since 1970."""
        ...

    def steady(self) -> float:
        """Return seconds that pass evenly, even if somebody sets the clock: waits are measured by them."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait until this many seconds have passed by this clock."""
        ...


def since_boot() -> float:
    """Return seconds of a clock that nobody sets, including the time that the machine sleeps if it can tell."""
    clock: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


#: seconds after which a wait looks whether the machine has slept
_LOOK: Final = 15.0


class SystemClock:
    """The clock of this machine."""

    def now(self) -> float:
        """Return the seconds since 1970."""
        return time.time()

    def steady(self) -> float:
        """Return the seconds of a clock that nobody sets."""
        return since_boot()

    async def sleep(self, seconds: float) -> None:
        """Wait this many steady seconds. The event loop does not count those that the machine sleeps."""
        end = since_boot() + seconds
        await asyncio.sleep(min(seconds, _LOOK))
        while (left := end - since_boot()) > 0:
            await asyncio.sleep(min(left, _LOOK))


# ----------------------------------------------------------------------------------------------------------------------
# Writers: time, bounds and ownership of samples, the same for every adapter.
#
# Where ownership is exclusive one writer holds a claim. A claim has an epoch that only grows. Samples carry it, so that
# readers see who wrote out of turn. A claim lasts for a lease, which publishing renews. A stronger writer takes a topic
# over immediately, an equal one when the lease has run out or the owner has closed. Where a claim has a time of another
# machine, whose clock may be ahead, its lease has run out too if it was not renewed for so long.


LEASE: Final = 10.0  # seconds, for topics without a lease of their own


@dataclass(frozen=True, slots=True)
class TopicOwnership:
    """The owner of a topic, its strength, its epoch, and the end of its lease."""

    writer: bytes
    strength: int
    epoch: int
    until: float

    def is_fresh(self, now: float, until: float) -> bool:
        """Return whether it need not be renewed: over half of a lease that ends then is left, and not more than it."""
        return (until - now) / 2 < self.until - now <= until - now

    def as_dict(self) -> dict[str, object]:
        """Return the claim as plain data."""
        return {"writer": self.writer.hex(), "strength": self.strength, "epoch": self.epoch, "until": self.until}

    @classmethod
    def from_dict(cls, data: Any) -> "TopicOwnership":
        """Read what `as_dict` wrote. Raises `ValueError`, `TypeError` or `LookupError` for anything else."""
        return cls(bytes.fromhex(data["writer"]), int(data["strength"]), int(data["epoch"]), float(data["until"]))


class ClaimsSeen:
    """The claims that a process has seen, and since when each is as it is, by a clock that nobody sets."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[TopicOwnership, float]] = {}

    def unchanged(self, topic: str, claim: TopicOwnership | None) -> float:
        """Return for how many seconds a claim was not renewed, as far as it was seen."""
        now = self._clock.steady()
        if claim is None:
            self._seen.pop(topic, None)
            return 0.0
        known = self._seen.get(topic)
        if known is None or known[0] != claim:
            known = self._seen[topic] = claim, now
        return now - known[1]


def contend(  # noqa: PLR0913  # three named settings, each with a default
    current: TopicOwnership | None,
    writer: bytes,
    strength: int,
    now: float,
    *,
    epoch: int = 0,
    lease: float = FOREVER,
    unchanged: float = 0.0,
) -> TopicOwnership:
    """Return the claim of a writer that wants to own a topic now; `epoch` is the highest that the topic has seen.

    `lease` is the topic's; without one a claim lasts for `LEASE`. For `unchanged` seconds the present claim was not
    renewed. Raises `RefusedError` (`fabric.not-owner`).
    """
    lasts = LEASE if lease == FOREVER else lease
    until = now + lasts
    if current is not None and current.writer == writer:
        return replace(current, until=until)
    if current is not None and current.until > now and unchanged < lasts and current.strength >= strength:
        raise not_owner()
    return TopicOwnership(writer, strength, max(epoch, 0 if current is None else current.epoch) + 1, until)


def not_owner() -> RefusedError:
    """Return the error for a writer of a topic that somebody else owns."""
    return RefusedError(
        "fabric.not-owner",
        "another writer owns the topic",
        hint="wait until it closes or its lease runs out, or claim the topic with a greater strength",
    )


def full(topic: str) -> RefusedError:
    """Return the error for a keep-all topic that is full."""
    return RefusedError(
        "fabric.full",
        f"topic `{topic}` keeps as much as it may",
        hint="keep fewer samples a key, give them a lifespan, or remove the topic",
        topic=topic,
    )


class Publisher(ABC):
    """Writes samples to one topic, in the order of its calls, each with the time of its source."""

    def __init__(
        self, topic: str, writer: bytes, clock: Clock, limits: FabricLimits = FABRIC_LIMITS, *, instance: str = ""
    ) -> None:
        self.topic = topic
        self.instance = instance
        #: its id, which all its samples carry
        self.writer = writer
        self._clock = clock
        self._limits = limits
        self._time = 0
        self._sequence = 0
        self._closed = False
        self._last: tuple[Sample, int] | None = None

    @property
    def last(self) -> Sample | None:
        """The last sample that was written, with its position if the topic is durable."""
        return None if self._last is None else replace(self._last[0], position=self._last[1])

    async def publish(self, data: bytes, *, key: str = "", headers: Mapping[str, str] | None = None) -> None:
        """Write a sample. If the topic is reliable, it is acknowledged when this returns.

        Raises `LimitError` (`fabric.too-large`), `MalformedError` (`fabric.bad-key`, `fabric.bad-header`),
        `RefusedError` (`fabric.not-owner`, `fabric.full`, `fabric.unknown-topic`, `fabric.closed`), and `FailedError`
        (`fabric.unreachable`) when nothing acknowledges it: then it may have been stored or not.
        """
        if self._closed:
            raise closed()
        check(data, key, headers or {}, self._limits)
        self._sequence += 1
        # A clock may stand still or go back; the samples of a writer never do.
        self._time = max(self._time + 1, round(self._clock.now() * MICROSECONDS))
        sample = Sample(data, key, dict(headers or {}), self._time, self.writer, self._sequence)
        if self.instance:
            sample = replace(sample, instance=self.instance)
        self._last = sample, await self._send(sample)

    @abstractmethod
    async def _send(self, sample: Sample) -> int:
        """Bring a sample to the topic's store and readers, with the epoch if ownership is exclusive.

        Return its position, or 0 if it is not kept.
        """

    @abstractmethod
    async def alive(self) -> None:
        """Renew the lease, and the claim if there is one. Without a lease this does nothing.

        Publishing does so too, but only with the readers that get the sample. Raises as `publish`.
        """

    async def close(self) -> None:
        """Stop writing, give up the topic if this writer owns it, and let readers know if there is a lease."""
        if not self._closed:
            self._closed = True
            await self._release()

    @abstractmethod
    async def _release(self) -> None:
        """Give up a claim, if there is one, and say that this writer is gone."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def closed() -> RefusedError:
    """Return the error for using a closed object."""
    return RefusedError("fabric.closed", "the fabric, or this part of it, was closed", hint="open it again")


# ----------------------------------------------------------------------------------------------------------------------
# Readers: quality of service of the samples that arrive, the same for every adapter.
#
# `SampleReader` is a plain state machine: samples go in with the time of their arrival, and come out as the policies
# allow. `TopicSubscription` puts it behind an async iterator. On arrival, in this order:
#
#  1. ownership: what an owner wrote after a newer owner is dropped
#  2. lifespan: what is too old is dropped, now and again when it is taken
#  3. source order: what is older than the last of its key is dropped where the history is of states (a number of
#     samples), and counted as late where it is a log (keep-all)
#  4. time-based filter: of a period only the newest sample of a key is let through
#  5. history: of one key no more samples wait than are kept; the oldest give way
#  6. the bound on all that wait: best effort drops the oldest; a reliable reader that fell so far behind is cut off
#
# History, order, filter and deadline are of each key in each instance. Whoever wants to know which writers there are
# learns of a writer before its first sample, and that it is gone after its last one.


Callback = Callable[[Sample], Awaitable[None]]
DeadlineMissed = Callable[[str], None]
#: called with a writer's id, and whether it is there or gone
WriterChanged = Callable[[bytes, bool], None]
_Slot: TypeAlias = tuple[str, str]
_T = TypeVar("_T")


@dataclass(slots=True)
class ReaderCounts:
    """Counts of one reader's samples by result."""

    taken: int = 0
    unselected: int = 0  #: of keys that the reader did not choose, or not matched by its selector
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
    """The queue of one reader, and the policies that filter it.

    Methods take the time of a clock that nobody sets; `date` is that of the one that samples are dated by.
    """

    def __init__(self, qos: Qos, limits: FabricLimits = FABRIC_LIMITS, *, watching: bool = False) -> None:
        self.qos = qos
        self._watching = watching
        self.counts = ReaderCounts()
        self.cut = False
        self._keys = limits.fabric_keys
        self._bound = max(limits.fabric_pending, limits.fabric_history if qos.durable and qos.reliable else 0)
        self._waiting: OrderedDict[int, Sample] = OrderedDict()
        self._of_slot: dict[_Slot, deque[int]] = {}
        self._arrivals = 0
        self._epoch = 0
        self._newest: OrderedDict[_Slot, float] = OrderedDict()  # source time
        self._seen: OrderedDict[_Slot, float] = OrderedDict()  # for the deadline, oldest first
        # for the time filter: when its period began, oldest first
        self._opened: OrderedDict[_Slot, float] = OrderedDict()
        self._held: dict[_Slot, Sample] = {}
        self._writers: OrderedDict[bytes, float] = OrderedDict()  # when each was heard, oldest first
        self._changed: deque[tuple[int, bytes, bool]] = deque()  # the last arrival before it, the writer, there or gone

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def room(self) -> int:
        """Return how many more samples may wait."""
        return max(0, self._bound - len(self._waiting))

    def receive(self, sample: Sample, now: float, date: float) -> None:
        """Take in a sample that arrived."""
        self.heard(sample.writer, now)
        if self.qos.ownership is Ownership.EXCLUSIVE:
            if sample.epoch < self._epoch:
                self.counts.usurped += 1
                return
            self._epoch = sample.epoch
        if self._expired(sample, date):
            self.counts.expired += 1
            return
        if self.qos.source_order is Order.BY_SOURCE and not self._in_order(sample):
            return
        if self.qos.deadline != FOREVER:
            self._remember(self._seen, sample.slot, now)
        if self.qos.time_filter and self._hold(sample, now):
            return
        self._wait(sample, date)

    def take(self, now: float, date: float) -> Sample | None:
        """Return the next sample, if there is one."""
        for slot in self._due_to_open(now):
            self._remember(self._opened, slot, now)
            self._wait(self._held.pop(slot), date)
        while self._waiting:
            sample = self._drop(next(iter(self._waiting)))
            if self._expired(sample, date):
                self.counts.expired += 1
                continue
            self.counts.taken += 1
            self.counts.over_budget += date - sample.time / MICROSECONDS > self.qos.latency_budget
            return sample
        return None

    def missed_deadlines(self, now: float) -> list[str]:
        """Return the keys that had no sample in time; each again after another period."""
        if self.qos.deadline == FOREVER:
            return []
        missed = []
        for slot, seen in self._seen.items():
            if seen + self.qos.deadline > now:
                break
            missed.append(slot)
        for slot in missed:
            self._remember(self._seen, slot, now)
        self.counts.deadlines += len(missed)
        return [key for _, key in missed]

    def heard(self, writer: bytes, now: float) -> None:
        """Record that a writer is there."""
        if not self._watching:
            return
        if writer not in self._writers:
            if max(len(self._writers), len(self._changed) // 2) >= self._keys:
                return  # who floods a topic with writers does not drive out those that are known
            self._changed.append((self._arrivals, writer, True))
        self._remember(self._writers, writer, now)

    def lost(self, writer: bytes) -> None:
        """Record that a writer is gone."""
        if self._writers.pop(writer, None) is not None:
            self._changed.append((self._arrivals, writer, False))

    def changed_writers(self, now: float) -> list[tuple[bytes, bool]]:
        """Return which writers came or are gone, as far as nothing that arrived before still waits."""
        lease = self.qos.lease
        if self._writers and next(iter(self._writers.values())) + lease * 4 / 3 < now:
            # This process did not run, and what they said may wait for it: they get as long as until their next word.
            for writer, heard in self._writers.items():
                self._writers[writer] = max(heard, now - lease * 2 / 3)
        while self._writers and next(iter(self._writers.values())) + lease <= now:
            self.lost(next(iter(self._writers)))
        changed = []
        taken = next(iter(self._waiting)) - 1 if self._waiting else self._arrivals
        while self._changed and self._changed[0][0] <= taken:
            changed.append(self._changed.popleft()[1:])
        return changed

    def due(self) -> float | None:
        """Return when a deadline, a lease or a time filter ends without a new sample; None if there is none."""
        times = [self._seen[slot] + self.qos.deadline for slot in islice(self._seen, 1)]
        times += [self._opened.get(slot, -FOREVER) + self.qos.time_filter for slot in self._held]
        times += [heard + self.qos.lease for heard in islice(self._writers.values(), 1)]
        end = min(times, default=FOREVER)
        return None if end == FOREVER else end

    def clear(self) -> None:
        """Drop all waiting samples."""
        self._waiting.clear()
        self._of_slot.clear()
        self._held.clear()

    def _expired(self, sample: Sample, date: float) -> bool:
        return date - sample.time / MICROSECONDS > self.qos.lifespan

    def _in_order(self, sample: Sample) -> bool:
        slot = sample.slot
        if sample.time >= self._newest.get(slot, sample.time):
            self._remember(self._newest, slot, sample.time)
            return True
        if self.qos.history == KEEP_ALL:
            self.counts.late += 1
            return True
        self.counts.overtaken += 1
        return False

    def _hold(self, sample: Sample, now: float) -> bool:
        slot = sample.slot
        opened = self._opened.get(slot)
        if opened is not None and now < opened + self.qos.time_filter and len(self._held) < self._keys:
            self.counts.filtered += slot in self._held
            self._held[slot] = sample
            return True
        if self._held.pop(slot, None) is not None:
            self.counts.filtered += 1
        self._remember(self._opened, slot, now)
        return False

    def _due_to_open(self, now: float) -> list[_Slot]:
        period = self.qos.time_filter
        return [slot for slot in self._held if self._opened.get(slot, -FOREVER) + period <= now]

    def _wait(self, sample: Sample, date: float) -> None:
        slot = sample.slot
        mine = self._of_slot.setdefault(slot, deque())
        if self.qos.history != KEEP_ALL and len(mine) >= self.qos.history:
            self._drop(mine[0])
            self.counts.superseded += 1
            mine = self._of_slot.setdefault(slot, deque())
        if len(self._waiting) >= self._bound:
            self._make_room(date)
            mine = self._of_slot.setdefault(slot, deque())
        if self.cut:
            return
        self._arrivals += 1
        self._waiting[self._arrivals] = sample
        mine.append(self._arrivals)

    def _make_room(self, date: float) -> None:
        old = [arrival for arrival, sample in self._waiting.items() if self._expired(sample, date)]
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
        slot = sample.slot
        mine = self._of_slot[slot]
        mine.remove(arrival)
        if not mine:
            del self._of_slot[slot]
        return sample

    def _remember(self, memory: OrderedDict[_T, float], key: _T, value: float) -> None:
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


# ----------------------------------------------------------------------------------------------------------------------
# Choosing samples by key. A key has parts, separated by `/`.


@dataclass(frozen=True, slots=True)
class KeysUnder:
    """All keys that begin with the parts of `prefix` and have more: `a/b` and `a/b/c`, but not `a`, are under `a`."""

    prefix: str


KeyChoice: TypeAlias = str | KeysUnder
"""A key, or all keys under a prefix."""

#: the instance that writers and readers have if they name none
DEFAULT_INSTANCE: Final = ("",)


def prefixes(key: str) -> Iterator[str]:
    """Yield what a key is under, the widest first.

    >>> list(prefixes("a/b/c"))
    ['a', 'a/b']
    """
    at = key.find("/")
    while at >= 0:
        yield key[:at]
        at = key.find("/", at + 1)


class KeyChoices:
    """The keys that a reader has chosen."""

    def __init__(self, choices: Collection[KeyChoice] = ()) -> None:
        self._exact = {choice for choice in choices if isinstance(choice, str)}
        self._under = {choice.prefix for choice in choices if isinstance(choice, KeysUnder)}

    def __iter__(self) -> Iterator[KeyChoice]:
        yield from self._exact
        yield from map(KeysUnder, self._under)

    def __contains__(self, choice: KeyChoice) -> bool:
        return choice.prefix in self._under if isinstance(choice, KeysUnder) else choice in self._exact

    def add(self, choice: KeyChoice) -> None:
        """Choose these keys too."""
        if isinstance(choice, KeysUnder):
            self._under.add(choice.prefix)
        else:
            self._exact.add(choice)

    def drop(self, choice: KeyChoice) -> None:
        """Choose these keys no more, unless another choice has them."""
        if isinstance(choice, KeysUnder):
            self._under.discard(choice.prefix)
        else:
            self._exact.discard(choice)

    def match(self, key: str) -> KeyChoice | None:
        """Return the widest choice that has a key; None if no choice has it."""
        if self._under:
            for prefix in prefixes(key):
                if prefix in self._under:
                    return KeysUnder(prefix)
        return key if key in self._exact else None


class TopicSubscription(AsyncIterator[Sample]):
    """The samples of a topic for one reader: an async iterator and a context manager.

    A cancelled `anext` does not lose a sample. The adapter's `leave` is called at the end, and `taken` when there is
    room again. `choose` is called with a choice of keys and whether it is new or dropped. `choose_instances` is called
    with the instances to read from now on; without it they cannot change.
    """

    def __init__(  # noqa: PLR0913  # named settings, each with a default
        self,
        reader: SampleReader,
        clock: Clock,
        *,
        leave: Callable[["TopicSubscription"], Awaitable[None]],
        taken: Callable[[], None] = lambda: None,
        on_deadline: DeadlineMissed | None = None,
        on_writer: WriterChanged | None = None,
        keys: Collection[KeyChoice] | None = None,
        instances: Collection[str] | None = DEFAULT_INSTANCE,
        selector: Selector | None = None,
        choose: Callable[["TopicSubscription", KeyChoice, bool], Awaitable[None]] | None = None,
        choose_instances: Callable[["TopicSubscription", frozenset[str]], None] | None = None,
    ) -> None:
        self.reader = reader
        self.keys = None if keys is None else KeyChoices(keys)
        self.instances = None if instances is None else frozenset(instances)
        self._matches = None if selector is None else compile_selector(selector)
        self._choose = choose
        self._choose_instances = choose_instances
        self._clock = clock
        self._leave = leave
        self._taken = taken
        self._on_deadline = on_deadline
        self._on_writer = on_writer
        self._wake = asyncio.Event()
        self._closed = False
        self._draining = False
        self._error: PenstockError | None = None
        self._task: asyncio.Future[None] | None = None

    @property
    def watching(self) -> bool:
        """Whether the reader wants to know which writers there are."""
        return self._on_writer is not None

    @property
    def counts(self) -> ReaderCounts:
        """Return the counts of samples by result."""
        return self.reader.counts

    def receive(self, sample: Sample, *, wake: bool = True) -> None:
        """Take in a sample (called by the adapter), and wake the reader unless the adapter does so."""
        if self._closed or self._draining or self._error is not None:
            return
        if not self._wanted(sample):
            self.counts.unselected += 1
            return
        self.reader.receive(sample, self._clock.steady(), self._clock.now())
        if self.reader.cut:
            self.fail(slow_consumer())
        if wake:
            self._wake.set()

    def heard(self, writer: bytes) -> None:
        """Record that a writer is there (called by the adapter)."""
        if self._on_writer is not None:
            self.reader.heard(writer, self._clock.steady())
            self._wake.set()

    def lost(self, writer: bytes) -> None:
        """Record that a writer is gone (called by the adapter)."""
        if self._on_writer is not None:
            self.reader.lost(writer)
            self._wake.set()

    def _wanted(self, sample: Sample) -> bool:
        if self.instances is not None and sample.instance not in self.instances:
            return False
        if self.keys is not None and self.keys.match(sample.key) is None:
            return False
        try:
            return self._matches is None or self._matches(sample.headers) is True
        except EvaluationError:
            return False

    async def add(self, choice: KeyChoice) -> None:
        """Read these keys too. A reader of all keys has them already. Raises as `Fabric.subscribe`."""
        if self.keys is not None and choice not in self.keys and not self._closed:
            if self._choose is not None:
                await self._choose(self, choice, True)
            self.keys.add(choice)

    async def drop(self, choice: KeyChoice) -> None:
        """Stop reading these keys, unless another choice has them."""
        if self.keys is not None and choice in self.keys:
            self.keys.drop(choice)
            if self._choose is not None and not self._closed:
                await self._choose(self, choice, False)

    def read_instances(self, instances: Collection[str]) -> bool:
        """Read other named instances from now on; return whether the adapter can. If not, subscribe again and `drain`.

        Raises `MalformedError` (`fabric.bad-name`).
        """
        if self._choose_instances is None or self.instances is None or self._closed or self._draining:
            return False
        wanted = frozenset(instances)
        check_instances(wanted - self.instances)
        self._choose_instances(self, wanted)
        self.instances = wanted
        return True

    def wake(self) -> None:
        """Wake the reader (called by the adapter)."""
        self._wake.set()

    def fail(self, error: PenstockError) -> None:
        """End with an error after the waiting samples."""
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
            now = self._clock.steady()
            for key in self.reader.missed_deadlines(now):
                if self._on_deadline is not None:
                    self._on_deadline(key)
            for writer, there in self.reader.changed_writers(now):
                if self._on_writer is not None:
                    self._on_writer(writer, there)
            sample = None if self._closed else self.reader.take(now, self._clock.now())
            if sample is not None:
                self._taken()
                return sample
            if self._error is not None:
                raise self._error
            if self._closed or self._draining:
                raise StopAsyncIteration
            await self._wait(self.reader.due())

    async def _wait(self, due: float | None) -> None:
        self._wake.clear()
        if due is None:
            await self._wake.wait()
            return
        waits: list[asyncio.Future[Any]] = [
            waited_for(self._wake.wait()),
            waited_for(self._clock.sleep(max(0.0, due - self._clock.steady()))),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def drain(self) -> None:
        """Receive nothing more. Iteration ends after the samples that wait, and then this is closed."""
        if not self._closed and not self._draining:
            self._draining = True
            await self._leave(self)
            self._wake.set()

    async def close(self) -> None:
        """Stop reading. Iteration ends."""
        try:
            await self._end()
        finally:
            task = self._task
            if task is not None and task is not asyncio.current_task():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _end(self) -> None:
        if not self._closed:
            self._closed = True
            self.reader.clear()
            self._wake.set()
            if not self._draining:
                await self._leave(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def close_all(
    parts: Iterable[Publisher | TopicSubscription | None], note: Callable[[PenstockError], None]
) -> None:
    """Close all of them. One that cannot be closed keeps no other open; its error goes to `note`."""
    for part in parts:
        if part is not None:
            try:
                await part.close()
            except PenstockError as error:
                note(error)


# ----------------------------------------------------------------------------------------------------------------------
# The port.


_NAME: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)

Handler = Callable[[Sample], Awaitable[bytes]]


class Service(ABC):
    """Answers requests on a topic until it is closed."""

    @abstractmethod
    async def close(self) -> None:
        """Stop answering."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Fabric(ABC):
    """Topics with quality of service. Adapters inherit `penstock.testing.fabric_suite.FabricSuite`."""

    #: by policy, in a few words, how this adapter does it; docs/reference/fabric.md shows it
    MAPPING: Mapping[str, str]
    clock: Clock
    limits: FabricLimits

    @abstractmethod
    async def declare(self, topic: str, qos: Qos) -> None:
        """Make a topic, or confirm that it exists with this quality of service.

        Raises `MalformedError` (`fabric.bad-name`), and `RefusedError`: `fabric.topic-differs` when it exists with
        another quality of service, and the code of the policy that this fabric cannot give.
        """

    @abstractmethod
    async def describe(self, topic: str) -> Qos:
        """Return the policies that a topic offers. Raises `RefusedError` (`fabric.unknown-topic`)."""

    @abstractmethod
    async def remove(self, topic: str) -> None:
        """Remove a topic and all that it keeps. Raises `RefusedError` (`fabric.unknown-topic`)."""

    @abstractmethod
    async def publisher(self, topic: str, *, strength: int = 0, instance: str = "") -> Publisher:
        """Return a writer of a topic, or of a named instance of it, which other readers do not receive.

        If ownership is exclusive, the writer claims the topic with all instances; `strength` decides between two
        writers. Raises `RefusedError`: `fabric.unknown-topic`, `fabric.not-owner`; and `MalformedError`
        (`fabric.bad-name`).
        """

    async def subscribe(  # noqa: PLR0913  # named settings, each with a default
        self,
        topic: str,
        requested: Qos | None = None,
        *,
        callback: Callback | None = None,
        on_deadline: DeadlineMissed | None = None,
        on_writer: WriterChanged | None = None,
        keys: Collection[KeyChoice] | None = None,
        instances: Collection[str] | None = DEFAULT_INSTANCE,
        selector: Selector | None = None,
    ) -> TopicSubscription:
        """Read a topic: iterate over the result, or pass a callback.

        Without a request the reader gets what the topic offers. `on_deadline` is called with a key for which no sample
        arrived in time. `on_writer` is called with the id of a writer of these instances and True when it is first
        heard, and with False when it has closed or its lease has run out; a topic without a lease refuses it
        (`fabric.qos.lease`). Both are called while the reader waits for the next sample. `keys` chooses keys, and
        `selector` samples by their headers, which are strings; without them the reader gets all. `instances` names
        instances of the topic: without it the reader gets what is written without a name, and with None all. Raises
        `RefusedError`: `fabric.unknown-topic`, or the code of the policy that is not offered.
        """
        offered = await self.describe(topic)
        check_instances(instances, self.limits)
        check_watch(offered, on_writer)
        qos = agree(offered, offered if requested is None else requested)
        new = partial(
            TopicSubscription,
            SampleReader(qos, self.limits, watching=on_writer is not None),
            self.clock,
            on_deadline=on_deadline,
            on_writer=on_writer,
            keys=keys,
            instances=instances,
            selector=selector,
        )
        made = await self._read(topic, offered, qos, new)
        if callback is not None:
            made.run(callback)
        return made

    @abstractmethod
    async def _read(
        self, topic: str, offered: Qos, qos: Qos, new: Callable[..., TopicSubscription]
    ) -> TopicSubscription:
        """Make a subscription with the adapter's hooks, and begin to read. Raises as `subscribe`.

        `qos` is what the reader and the topic have agreed on.
        """

    @abstractmethod
    async def state(self, topic: str, key: str | None = None) -> tuple[Sample, ...]:
        """Return the samples that a topic keeps now, oldest first, of one key or of all. Raises as `subscribe`."""

    @abstractmethod
    async def discard(self, topic: str, through: Sample) -> None:
        """Delete what a durable topic keeps up to a sample that was read or written here, and the sample itself.

        Samples of named instances stay. Whoever has not read the others gets them no more. Raises as `subscribe`.
        """

    @abstractmethod
    async def serve(self, topic: str, handler: Handler) -> Service:
        """Answer requests on a topic; one of several services gets each request. Raises as `subscribe`."""

    @abstractmethod
    async def request(
        self, topic: str, data: bytes, *, timeout: float, key: str = "", headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Ask on a topic and return the answer. A request is sent once; its answer acknowledges it.

        Waits no longer than the topic's lifespan. Raises `FailedError`: `fabric.no-responder`, `fabric.no-reply` when
        none came in time, `fabric.handler-failed`; and as `Publisher.publish` and `subscribe`.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close everything that was opened here."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def check_name(topic: str, limits: FabricLimits = FABRIC_LIMITS) -> None:
    """Check the name of a topic. Raises `MalformedError` (`fabric.bad-name`)."""
    if len(topic) > limits.fabric_name_length or not _NAME.fullmatch(topic):
        raise MalformedError(
            "fabric.bad-name",
            f"`{topic[:40]}` is not a topic name",
            hint=f"1 to {limits.fabric_name_length} letters, digits, `-` and `_`",
        )


def check_instances(instances: Collection[str] | None, limits: FabricLimits = FABRIC_LIMITS) -> None:
    """Check the names of instances, which are as those of topics, or empty. Raises `MalformedError`."""
    for name in instances or ():
        if name:
            check_name(name, limits)


def check_watch(offered: Qos, on_writer: WriterChanged | None) -> None:
    """Check that a topic whose writers are watched has a lease. Raises `RefusedError` (`fabric.qos.lease`)."""
    if on_writer is not None and offered.lease == FOREVER:
        raise RefusedError(
            CODES["lease"],
            "nobody learns which writers are gone if the topic has no lease",
            hint="declare it with a `lease`",
            policy="lease",
        )


def unknown(topic: str) -> RefusedError:
    """Return the error for a topic that nobody declared."""
    return RefusedError("fabric.unknown-topic", f"there is no topic `{topic}`", hint="declare it first", topic=topic)


def differs(topic: str) -> RefusedError:
    """Return the error for a topic that is declared again with another quality of service."""
    return RefusedError(
        "fabric.topic-differs",
        f"topic `{topic}` exists with another quality of service",
        hint="remove it first, or declare it as it is",
        topic=topic,
    )


async def answer(topic: str, handler: Handler, sample: Sample) -> bytes:
    """Return a handler's answer. Raises `FailedError` (`fabric.handler-failed`) without details."""
    try:
        return await handler(sample)
    except Exception as error:  # a handler may raise anything, and details are not for who asked
        raise handler_failed(topic) from error


def handler_failed(topic: str) -> FailedError:
    """Return the error for a request whose handler raised; only the service's log has the details."""
    return FailedError(
        "fabric.handler-failed", f"the service on `{topic}` failed", hint="see the service's log", topic=topic
    )


def no_responder(topic: str) -> FailedError:
    """Return the error for a request that nobody serves."""
    return FailedError("fabric.no-responder", f"nobody serves `{topic}`", hint="try again later", topic=topic)


def no_reply(topic: str) -> FailedError:
    """Return the error for a request that was not answered in time."""
    return FailedError(
        "fabric.no-reply", f"no answer on `{topic}` in time", hint="it may have been carried out or not", topic=topic
    )

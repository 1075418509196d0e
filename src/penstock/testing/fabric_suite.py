"""The behaviour that every adapter of `penstock.fabric` shows. An adapter's test inherits it:

    class TestMine(FabricSuite):
        async def open(self, clock: Clock) -> Fabric:
            return MyFabric(clock=clock)

`open` returns a fabric without topics. `join` returns a second client of the same one if the adapter has clients, by
default with the same clock. Time stands still until a test moves it, so nothing here waits for a clock; tests wait for
what must come from a server.
"""
# ruff: noqa: D102, S101  # a suite asserts, and the names of its tests say what

import asyncio
import heapq
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from itertools import count
from typing import Any, Final, TypeVar

from penstock.errors import PenstockError
from penstock.fabric.envelope import Sample
from penstock.fabric.limits import FabricLimits
from penstock.fabric.port import Clock, Fabric, KeyChoice, KeysUnder, Publisher, TopicSubscription
from penstock.fabric.qos import KEEP_ALL, Durability, Order, Ownership, Priority, Qos, Reliability
from penstock.fabric.tasks import waited_for
from penstock.selector import parse

# ----------------------------------------------------------------------------------------------------------------------
# A manual clock, and conditions to wait for.


PATIENCE: Final = 60.0
_MOMENT: Final = 0.05

PERSISTENT: Final = Durability.PERSISTENT
RELIABLE: Final = Reliability.RELIABLE
EVENTS: Final = Qos()
STATE: Final = Qos(durability=Durability.TRANSIENT, history=1, reliability=RELIABLE)
LOG: Final = Qos(durability=Durability.TRANSIENT, history=KEEP_ALL, reliability=RELIABLE)
LIVE: Final = Qos(history=KEEP_ALL, reliability=RELIABLE)


#: how much more a manual clock's date is than its steady time, which is rounded in the same way
_STEADY: Final = 500_000_000.0


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._now = start
        self._numbers = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        """Return the seconds since 1970."""
        return self._now

    def steady(self) -> float:
        """Return seconds that are not those since 1970."""
        return self._now - _STEADY

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was moved so far."""
        waking: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._numbers), waking))
        await waking

    async def advance(self, seconds: float) -> None:
        """Move the clock; tasks that slept until then have run when this returns."""
        end = self._now + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            self._now, _, waking = heapq.heappop(self._sleepers)
            if not waking.done():
                waking.set_result(None)
            await self._let_run()
        self._now = end
        await self._let_run()

    async def _let_run(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


class WrongClock:
    """A clock that is wrong by so many seconds. Time passes as on another one."""

    def __init__(self, clock: Clock, wrong: float = 0.0) -> None:
        self._clock = clock
        self.wrong = wrong

    def now(self) -> float:
        """Return the seconds since 1970, as it believes."""
        return self._clock.now() + self.wrong

    def steady(self) -> float:
        """Return the steady seconds of the other clock."""
        return self._clock.steady()

    async def sleep(self, seconds: float) -> None:
        """Wait as the other clock does."""
        await self._clock.sleep(seconds)


@contextmanager
def refused(code: str) -> Iterator[None]:
    """Expect an error of Penstock with this code."""
    try:
        yield
    except PenstockError as error:
        if error.code != code:
            raise AssertionError(f"{error.code} instead of {code}") from error
    else:
        raise AssertionError(f"nothing was refused; expected {code}")


_CaseT = TypeVar("_CaseT", bound="FabricCase")


def scenario(test: Callable[[_CaseT, Fabric], Awaitable[None]]) -> Callable[[_CaseT], None]:
    """Run a test with a fabric of its own, in an event loop of its own, for a bounded time."""

    @wraps(test)
    def run(self: _CaseT) -> None:
        async def whole() -> None:
            self.clock = self.new_clock()
            async with asyncio.timeout(PATIENCE), await self.open(self.clock) as fabric:
                await test(self, fabric)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"tasks are left: {left}"

        self.run(whole())

    del run.__wrapped__  # or pytest looks for a fixture named `fabric`
    return run


async def take(subscription: TopicSubscription, number: int) -> list[bytes]:
    """Return the data of this many samples."""
    return [(await asyncio.wait_for(anext(subscription), PATIENCE)).data for _ in range(number)]


async def nothing(subscription: TopicSubscription) -> None:
    """Expect that no sample comes."""
    try:
        sample = await asyncio.wait_for(anext(subscription), _MOMENT)
    except TimeoutError:
        return
    raise AssertionError(f"unexpected: {sample}")


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    end = asyncio.get_running_loop().time() + PATIENCE
    while not holds():
        assert asyncio.get_running_loop().time() < end, "it never held"
        await asyncio.sleep(0.005)


async def settled(writer: Publisher, fabric: Fabric, topic: str) -> None:
    """Wait until what a writer has said about itself has reached other readers, as far as one reader shows."""
    heard = asyncio.Event()
    async with await fabric.subscribe(topic, on_writer=lambda *_: heard.set(), callback=_ignore):
        await writer.alive()
        await asyncio.wait_for(heard.wait(), PATIENCE)


async def _ignore(_: Sample) -> None:
    pass


@contextmanager
def refused_end() -> Iterator[None]:
    """Expect the end of an iterator."""
    try:
        yield
    except StopAsyncIteration:
        return
    raise AssertionError("the iterator went on")


class FabricCase(ABC):
    """The base of tests of an adapter: how to open a fabric."""

    clock: ManualClock
    new_clock: type[ManualClock] = ManualClock

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        """Run a test in a new event loop."""
        asyncio.run(test)

    @abstractmethod
    async def open(self, clock: Clock) -> Fabric:
        """Return a new fabric without topics. Persistent topics must be possible."""

    async def join(self, fabric: Fabric, clock: Clock | None = None) -> Fabric:  # noqa: ARG002  # for those who override
        """Return a second client of the same fabric, with its own clock; the same object if there are no clients."""
        return fabric

    async def leave(self, first: Fabric, second: Fabric) -> None:
        """Close a second client."""
        if second is not first:
            await second.close()


# ----------------------------------------------------------------------------------------------------------------------
# The eleven policies of quality of service, as every adapter of `penstock.fabric` keeps them.


_AUTHORITY: Final = Qos(reliability=RELIABLE, source_order=Order.BY_SOURCE)
_KEPT: Final = replace(_AUTHORITY, durability=PERSISTENT, history=KEEP_ALL)
#: the columns of Table 3; the levels of budget and priority, and the lifespan of requests, are examples
TABLE_3: Final = {
    "JOIN": replace(_KEPT, latency_budget=1.0, priority=Priority.LOW),
    "CONF": replace(_KEPT, ownership=Ownership.EXCLUSIVE, latency_budget=1.0, priority=Priority.LOW),
    "QPEP": replace(_KEPT, history=1, latency_budget=0.5),
    "DREQ": replace(_AUTHORITY, history=1, lifespan=5.0, latency_budget=0.5),
    "RPDP": replace(_KEPT, latency_budget=0.1, priority=Priority.HIGH),
    "APDP": replace(_KEPT, latency_budget=0.5),
}


class QosSuite(FabricCase):
    """A part of `FabricSuite`."""

    @scenario
    async def test_all_topics_of_table_3_work(self, fabric: Fabric) -> None:
        for name, qos in TABLE_3.items():
            await fabric.declare(name, qos)
            async with await fabric.subscribe(name) as reader, await fabric.publisher(name) as writer:
                await writer.publish(b"1", key="a")
                assert await take(reader, 1) == [b"1"]
            assert [s.data for s in await fabric.state(name)] == ([b"1"] if qos.durable else [])

    @scenario
    async def test_durability_late_readers_get_what_is_kept(self, fabric: Fabric) -> None:
        for topic, qos in (
            ("events", EVENTS),
            ("live", LIVE),
            ("log", LOG),
            ("kept", replace(LOG, durability=PERSISTENT)),
        ):
            await fabric.declare(topic, qos)
            writer = await fabric.publisher(topic)
            await writer.publish(b"before")
            async with await fabric.subscribe(topic) as late:
                await writer.publish(b"after")
                assert await take(late, 1 + qos.durable) == [b"before", b"after"][not qos.durable :]
                await nothing(late)
        volatile = replace(LIVE, durability=Durability.VOLATILE)
        async with await fabric.subscribe("log", volatile) as late:
            await nothing(late)

    @scenario
    async def test_history_keeps_the_newest_of_each_key(self, fabric: Fabric) -> None:
        await fabric.declare("state", replace(STATE, history=2))
        writer = await fabric.publisher("state")
        for number in range(4):
            for key in ("a", "b", ""):
                await writer.publish(f"{key}{number}".encode(), key=key)
        newest = [b"a2", b"b2", b"2", b"a3", b"b3", b"3"]
        assert [s.data for s in await fabric.state("state")] == newest
        assert [s.data for s in await fabric.state("state", "b")] == [b"b2", b"b3"]
        assert await fabric.state("state", "c") == ()
        async with await fabric.subscribe("state") as late:
            assert await take(late, 6) == newest

    @scenario
    async def test_what_a_topic_keeps_can_be_discarded_up_to_a_sample(self, fabric: Fabric) -> None:
        await fabric.declare("log", replace(LOG, durability=PERSISTENT))
        writer = await fabric.publisher("log")
        async with await fabric.subscribe("log") as live:
            for number in range(1, 5):
                await writer.publish(b"%d" % number, key=f"k{number % 2}")
            read = [await anext(live) for _ in range(4)]
            assert [one.position for one in read] == sorted({one.position for one in read})
            await fabric.discard("log", read[1])
            assert [one.data for one in await fabric.state("log")] == [b"3", b"4"]
            async with await fabric.subscribe("log") as late:
                assert await take(late, 2) == [b"3", b"4"]
            async with await fabric.subscribe("log", LIVE) as volatile:
                await writer.publish(b"5")
                assert await take(volatile, 1) == [b"5"]
            assert await take(live, 1) == [b"5"]  # nothing comes twice
            assert writer.last is not None
            await fabric.discard("log", writer.last)
            await fabric.discard("log", read[0])  # it is gone already
            assert await fabric.state("log") == ()
            await writer.publish(b"6")
            assert [one.data for one in await fabric.state("log")] == [b"6"]

    @scenario
    async def test_history_of_a_slow_reader_is_bounded_by_key(self, fabric: Fabric) -> None:
        for topic, qos in (("events", replace(EVENTS, history=2)), ("live", replace(LIVE, history=2))):
            await fabric.declare(topic, qos)
            reader = await fabric.subscribe(topic)
            writer = await fabric.publisher(topic)
            for number in range(10):
                await writer.publish(str(number).encode())
            await until(lambda seen=reader.counts: seen.superseded == 8)  # type: ignore[misc]  # a default binds it
            assert await take(reader, 2) == [b"8", b"9"]

    @scenario
    async def test_ownership_one_writer_until_a_stronger_comes(self, fabric: Fabric) -> None:
        await fabric.declare("conf", replace(STATE, ownership=Ownership.EXCLUSIVE))
        other = await self.join(fabric)
        first = await fabric.publisher("conf", strength=1)
        await first.publish(b"1")
        with refused("fabric.not-owner"):
            await other.publisher("conf", strength=1)
        second = await other.publisher("conf", strength=2)
        await second.publish(b"2")
        with refused("fabric.not-owner"):
            await first.publish(b"3")
        await second.close()
        third = await fabric.publisher("conf")
        await third.publish(b"4")
        await self.clock.advance(60)
        await third.publish(b"5")
        await self.clock.advance(60)
        fourth = await other.publisher("conf")
        await fourth.publish(b"6")
        with refused("fabric.not-owner"):
            await third.publish(b"7")
        assert [(s.data, s.epoch) for s in await fabric.state("conf")] == [(b"6", 4)]
        await self.leave(fabric, other)

    @scenario
    async def test_ownership_by_a_clock_that_is_ahead_lasts_while_it_is_renewed(self, fabric: Fabric) -> None:
        await fabric.declare("conf", replace(STATE, ownership=Ownership.EXCLUSIVE, lease=2.0))
        ahead = WrongClock(self.clock, 3_600.0)
        other = await self.join(fabric, ahead)
        owner = await other.publisher("conf")
        for _ in range(3):
            with refused("fabric.not-owner"):
                await fabric.publisher("conf")
            await self.clock.advance(1.5)
            await owner.alive()
        # Its clock is set right. Nobody waits for the time from before.
        ahead.wrong = 0.0
        await owner.alive()
        await self.clock.advance(1.9)
        with refused("fabric.not-owner"):
            await fabric.publisher("conf")
        await self.clock.advance(0.2)
        second = await fabric.publisher("conf")
        with refused("fabric.not-owner"):
            await owner.alive()
        await second.close()
        # An owner that is gone is waited for as long as one with a right clock.
        ahead.wrong = 3_600.0
        await other.publisher("conf")
        with refused("fabric.not-owner"):
            await fabric.publisher("conf")
        await self.clock.advance(2.1)
        await fabric.publisher("conf")
        await self.leave(fabric, other)

    @scenario
    async def test_source_order_an_older_state_does_not_replace_a_newer(self, fabric: Fabric) -> None:
        for topic, qos in (("state", replace(LIVE, history=5)), ("log", LIVE)):
            await fabric.declare(topic, replace(qos, source_order=Order.BY_SOURCE))
            slow, fast = await fabric.publisher(topic), await fabric.publisher(topic)
            reader = await fabric.subscribe(topic)
            await fast.publish(b"new")
            await fast.publish(b"newer")
            await slow.publish(b"old")  # its clock stands where the other's was
            await slow.publish(b"other", key="k")
            expected = [b"new", b"newer", b"other"] if topic == "state" else [b"new", b"newer", b"old", b"other"]
            assert await take(reader, len(expected)) == expected
            assert (reader.counts.overtaken, reader.counts.late) == ((1, 0) if topic == "state" else (0, 1))

    @scenario
    async def test_reliability_best_effort_drops_for_a_slow_reader_and_others_go_on(self, fabric: Fabric) -> None:
        limit = FabricLimits().fabric_pending
        await fabric.declare("events", replace(EVENTS, history=FabricLimits().fabric_history))
        slow = await fabric.subscribe("events")
        got = 0

        async def callback(_: Sample) -> None:
            nonlocal got
            got += 1

        quick = await fabric.subscribe("events", callback=callback)
        writer = await fabric.publisher("events")
        for number in range(limit + 50):
            await writer.publish(str(number).encode())
            # In small groups: a socket may drop what a busy machine does not read in time.
            if number % 100 == 0:
                await until(lambda sent=number: got > sent)  # type: ignore[misc]  # a default binds it
        await until(lambda: got == limit + 50 and slow.counts.missed == 50)
        assert await take(slow, 1) == [b"50"]
        assert quick.counts.missed == 0

    @scenario
    async def test_time_filter_lets_the_newest_of_a_period_through(self, fabric: Fabric) -> None:
        await fabric.declare("live", LIVE)
        reader = await fabric.subscribe("live", replace(LIVE, time_filter=1.0))
        every = await fabric.subscribe("live")
        writer = await fabric.publisher("live")
        for data in (b"1", b"2", b"3"):
            await writer.publish(data)
        await writer.publish(b"other", key="k")
        assert await take(every, 4) == [b"1", b"2", b"3", b"other"]
        assert await take(reader, 2) == [b"1", b"other"]
        waiting = waited_for(take(reader, 1))
        await until(lambda: reader.counts.filtered == 1)
        await self.clock.advance(0.9)
        assert not waiting.done()
        await self.clock.advance(0.2)
        assert await waiting == [b"3"]

    @scenario
    async def test_time_filter_does_not_wait_for_a_clock_that_was_set_back(self, fabric: Fabric) -> None:
        await fabric.declare("live", LIVE)
        wrong = WrongClock(self.clock)
        other = await self.join(fabric, wrong)
        reader = await other.subscribe("live", replace(LIVE, time_filter=1.0))
        writer = await fabric.publisher("live")
        await writer.publish(b"1")
        assert await take(reader, 1) == [b"1"]
        wrong.wrong = -3_600.0
        await self.clock.advance(1.1)
        await writer.publish(b"2")
        assert await take(reader, 1) == [b"2"]
        await self.leave(fabric, other)

    @scenario
    async def test_deadline_tells_which_key_had_no_sample(self, fabric: Fabric) -> None:
        await fabric.declare("live", replace(LIVE, deadline=1.0))
        missed: list[str] = []
        reader = await fabric.subscribe("live", on_deadline=missed.append)
        writer = await fabric.publisher("live")
        await writer.publish(b"1", key="a")
        await writer.publish(b"2", key="b")
        assert await take(reader, 2) == [b"1", b"2"]
        waiting = waited_for(take(reader, 1))
        await self.clock.advance(0.6)
        await writer.publish(b"3", key="a")
        assert await waiting == [b"3"]
        waiting = waited_for(take(reader, 1))
        await asyncio.sleep(0)
        await self.clock.advance(0.5)
        assert missed == ["b"]
        assert reader.counts.deadlines == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    @scenario
    async def test_lifespan_what_is_over_is_not_delivered(self, fabric: Fabric) -> None:
        for topic, qos in (("events", EVENTS), ("live", LIVE), ("log", LOG)):
            await fabric.declare(topic, replace(qos, lifespan=60.0))
            reader = await fabric.subscribe(topic)
            writer = await fabric.publisher(topic)
            await writer.publish(b"old")
            await until(lambda waiting=reader.reader: len(waiting) == 1)  # type: ignore[misc]  # a default binds it
            await self.clock.advance(50)
            await writer.publish(b"new")
            await self.clock.advance(20)
            assert await take(reader, 1) == [b"new"]
            assert reader.counts.expired == 1
            assert [s.data for s in await fabric.state(topic)] == ([b"new"] if qos.durable else [])

    @scenario
    async def test_latency_budget_late_deliveries_are_counted(self, fabric: Fabric) -> None:
        await fabric.declare("live", replace(LIVE, latency_budget=1.0))
        reader = await fabric.subscribe("live")
        writer = await fabric.publisher("live")
        await writer.publish(b"in time")
        assert await take(reader, 1) == [b"in time"]
        await writer.publish(b"late")
        await until(lambda: len(reader.reader) == 1)
        await self.clock.advance(2)
        assert await take(reader, 1) == [b"late"]
        assert reader.counts.over_budget == 1

    @scenario
    async def test_priority_every_level_carries(self, fabric: Fabric) -> None:
        for level in Priority:
            await fabric.declare(level.value, replace(LIVE, priority=level))
            async with await fabric.subscribe(level.value) as reader, await fabric.publisher(level.value) as writer:
                await writer.publish(level.value.encode())
                assert await take(reader, 1) == [level.value.encode()]

    @scenario
    async def test_lease_readers_learn_which_writers_are_there_and_gone(self, fabric: Fabric) -> None:
        for topic, qos in (("events", EVENTS), ("live", LIVE), ("log", LOG)):
            await fabric.declare(topic, replace(qos, lease=10.0))
            other = await self.join(fabric)
            await self._writers_come_and_go(fabric, other, topic)
            await self.leave(fabric, other)
        await fabric.declare("plain", EVENTS)
        with refused("fabric.qos.lease"):
            await fabric.subscribe("plain", on_writer=lambda *_: None)

    async def _writers_come_and_go(self, fabric: Fabric, other: Fabric, topic: str) -> None:
        seen: list[tuple[bytes, bool] | bytes] = []

        async def note(sample: Sample) -> None:
            seen.append(sample.data)

        def heard(writer: bytes, there: bool) -> None:
            seen.append((writer, there))

        async with await other.subscribe(topic, keys=["k"], callback=note, on_writer=heard):
            first, second = await fabric.publisher(topic), await fabric.publisher(topic)
            await fabric.publisher(topic, instance="elsewhere")
            await first.publish(b"1", key="k")
            await until(lambda: (first.writer, True) in seen and (second.writer, True) in seen and b"1" in seen)
            assert seen.index((first.writer, True)) < seen.index(b"1")
            assert len(seen) == 3
            seen.clear()
            await self.clock.advance(6)
            await first.publish(b"other")  # not for this reader, and no substitute for `alive`
            await second.alive()
            await settled(second, other, topic)
            await self.clock.advance(6)
            await until(lambda: (first.writer, False) in seen)
            await first.alive()
            await until(lambda: (first.writer, True) in seen)
            await second.close()
            await until(lambda: (second.writer, False) in seen)
            assert seen == [(first.writer, False), (first.writer, True), (second.writer, False)]

    @scenario
    async def test_lease_of_an_owner_that_is_gone_frees_the_topic(self, fabric: Fabric) -> None:
        await fabric.declare("conf", replace(STATE, ownership=Ownership.EXCLUSIVE, lease=2.0))
        owner = await fabric.publisher("conf")
        await self.clock.advance(1.5)
        await owner.alive()
        await self.clock.advance(1.5)
        with refused("fabric.not-owner"):
            await fabric.publisher("conf")
        await self.clock.advance(1)
        await fabric.publisher("conf")
        with refused("fabric.not-owner"):
            await owner.alive()

    @scenario
    async def test_a_request_for_more_than_is_offered_names_the_policy(self, fabric: Fabric) -> None:
        await fabric.declare("events", EVENTS)
        for requested, code in (
            (replace(EVENTS, durability=PERSISTENT), "fabric.qos.durability"),
            (replace(EVENTS, reliability=RELIABLE), "fabric.qos.reliability"),
            (replace(EVENTS, deadline=1.0), "fabric.qos.deadline"),
        ):
            with refused(code):
                await fabric.subscribe("events", requested)
        with refused("fabric.qos.time-filter"):
            await fabric.declare("filtered", replace(EVENTS, time_filter=1.0))


# ----------------------------------------------------------------------------------------------------------------------
# The suite.


class FabricSuite(QosSuite):
    """Inherit it as `Test…`, and say how to open a fabric."""

    # topics

    @scenario
    async def test_topics_are_declared_once_and_found_by_everybody(self, fabric: Fabric) -> None:
        await fabric.declare("weather", STATE)
        await fabric.declare("weather", STATE)
        other = await self.join(fabric)
        assert await other.describe("weather") == STATE
        with refused("fabric.topic-differs"):
            await other.declare("weather", EVENTS)
        await self.leave(fabric, other)

    @scenario
    async def test_what_nobody_declared_is_unknown(self, fabric: Fabric) -> None:
        for call in (fabric.describe, fabric.publisher, fabric.subscribe, fabric.state, fabric.remove):
            with refused("fabric.unknown-topic"):
                await call("nowhere")
        with refused("fabric.unknown-topic"):
            await fabric.request("nowhere", b"", timeout=1)

    @scenario
    async def test_names_are_one_plain_word(self, fabric: Fabric) -> None:
        for name in ("", "a.b", "a b", "*", ">", "é", "x" * (FabricLimits().fabric_name_length + 1)):
            with refused("fabric.bad-name"):
                await fabric.declare(name, EVENTS)

    @scenario
    async def test_a_removed_topic_ends_its_readers_and_writers_and_can_be_declared_anew(self, fabric: Fabric) -> None:
        await fabric.declare("gone", STATE)
        writer = await fabric.publisher("gone")
        await writer.publish(b"old")
        reader = await fabric.subscribe("gone")
        assert await take(reader, 1) == [b"old"]
        await fabric.remove("gone")
        with refused("fabric.unknown-topic"):
            await writer.publish(b"more")
        with refused("fabric.unknown-topic"):
            await asyncio.wait_for(anext(reader), PATIENCE)
        await fabric.declare("gone", LOG)
        assert await fabric.state("gone") == ()
        await reader.close()

    @scenario
    async def test_many_topics_do_not_mix(self, fabric: Fabric) -> None:
        names = [f"topic-{number}" for number in range(100)]
        await asyncio.gather(*(fabric.declare(name, EVENTS) for name in names))
        readers = await asyncio.gather(*(fabric.subscribe(name) for name in names))
        writers = await asyncio.gather(*(fabric.publisher(name) for name in names))
        await asyncio.gather(*(w.publish(n.encode()) for w, n in zip(writers, names, strict=True)))
        for name, reader in zip(names, readers, strict=True):
            assert await take(reader, 1) == [name.encode()]
            assert len(reader.reader) == 0

    # publishing and reading

    @scenario
    async def test_a_sample_arrives_whole(self, fabric: Fabric) -> None:
        for topic, qos in (("events", EVENTS), ("live", LIVE), ("log", LOG)):
            await fabric.declare(topic, qos)
            other = await self.join(fabric)
            async with await other.subscribe(topic) as reader, await fabric.publisher(topic) as writer:
                await writer.publish(b"\0data\xff", key="clé.*>/ ", headers={"ce-id": "1", "note": "naïve\r\nX: y"})
                await writer.publish(b"")
                first, second = [await asyncio.wait_for(anext(reader), PATIENCE) for _ in range(2)]
                assert (first.data, first.key) == (b"\0data\xff", "clé.*>/ ")
                assert first.headers == {"ce-id": "1", "note": "naïve\r\nX: y"}
                assert first.time == round(self.clock.now() * 1e6)
                assert (second.data, second.key, second.headers) == (b"", "", {})
                assert (first.writer, first.sequence, second.sequence) == (second.writer, 1, 2)
                assert second.time > first.time
            await self.leave(fabric, other)

    @scenario
    async def test_a_reader_gets_the_keys_that_it_chose_each_sample_once(self, fabric: Fabric) -> None:
        chosen: list[KeyChoice] = ["a/b", "a/b/c", "x", KeysUnder("a"), KeysUnder("p/q"), "clé.*>/ /é"]
        for topic, qos in (("events", EVENTS), ("live", LIVE), ("log", LOG)):
            await fabric.declare(topic, qos)
            other = await self.join(fabric)
            async with await other.subscribe(topic, keys=chosen) as reader, await fabric.publisher(topic) as writer:
                for key in ("a", "b", "a/b", "a/b/c", "ab/c", "x", "x/y", "p/q", "p/q/", "p/q/r/s", "", "clé.*>/ /é"):
                    await writer.publish(key.encode(), key=key)
                await writer.publish(b"end", key="x")
                wanted = ["a/b", "a/b/c", "x", "p/q/", "p/q/r/s", "clé.*>/ /é", "end"]
                assert await take(reader, len(wanted)) == [key.encode() for key in wanted]
                await nothing(reader)
            await self.leave(fabric, other)

    @scenario
    async def test_chosen_keys_change_while_a_reader_reads(self, fabric: Fabric) -> None:
        for topic, qos in (("events", EVENTS), ("live", LIVE)):
            await fabric.declare(topic, qos)
            async with await fabric.subscribe(topic, keys=[]) as reader, await fabric.publisher(topic) as writer:
                await reader.add("a/1")
                await reader.add("a/1")
                # What is chosen later was not written before: it may still be on its way to the reader.
                for key in ("a/1", "c/1"):
                    await writer.publish(b"first", key=key)
                assert [(await anext(reader)).key] == ["a/1"]
                await reader.add(KeysUnder("a"))
                for key in ("a/1", "a/2", "c/1"):
                    await writer.publish(b"second", key=key)
                assert [(await anext(reader)).key for _ in range(2)] == ["a/1", "a/2"]
                await reader.drop(KeysUnder("a"))
                await reader.add("b/1")
                for key in ("a/2", "a/1", "b/1"):
                    await writer.publish(b"third", key=key)
                assert [(await anext(reader)).key for _ in range(2)] == ["a/1", "b/1"]
                await reader.drop("a/1")
                await reader.drop("unknown")
                for key in ("a/1", "b/1"):
                    await writer.publish(b"fourth", key=key)
                assert [(await anext(reader)).key] == ["b/1"]
                await nothing(reader)

    @scenario
    async def test_an_instance_of_a_topic_reaches_its_readers_only(self, fabric: Fabric) -> None:
        for topic, qos in (("events", EVENTS), ("live", LIVE), ("state", replace(STATE, history=1))):
            await fabric.declare(topic, qos)
            other = await self.join(fabric)
            async with (
                await other.subscribe(topic) as plain,
                await other.subscribe(topic, instances=["a"]) as of_a,
                await other.subscribe(topic, instances=["a", "b", ""], keys=["k"]) as of_some,
                await other.subscribe(topic, instances=None) as every,
            ):
                for instance in ("a", "b", "c", ""):
                    writer = await fabric.publisher(topic, instance=instance)
                    await writer.publish(instance.encode(), key="k")
                    await writer.publish(b"end" + instance.encode(), key="end")
                assert await take(plain, 2) == [b"", b"end"]
                assert await take(of_a, 2) == [b"a", b"enda"]
                assert sorted(await take(of_some, 3)) == [b"", b"a", b"b"]
                got = [await asyncio.wait_for(anext(every), PATIENCE) for _ in range(8)]
                assert sorted(sample.slot for sample in got if sample.key == "k") == [(i, "k") for i in ("", *"abc")]
                for reader in (plain, of_a, of_some, every):
                    await nothing(reader)
            if qos.durable:
                # each instance keeps its own newest sample of a key
                assert sorted(s.data for s in await fabric.state(topic, "k")) == [b"", b"a", b"b", b"c"]
                async with await other.subscribe(topic, instances=["b"]) as late:
                    assert await take(late, 2) == [b"b", b"endb"]
            await self.leave(fabric, other)
        for name in ("a.b", "*", "é", "x" * (FabricLimits().fabric_name_length + 1)):
            with refused("fabric.bad-name"):
                await fabric.publisher("live", instance=name)
            with refused("fabric.bad-name"):
                await fabric.subscribe("live", instances=[name])

    @scenario
    async def test_a_selector_chooses_samples_by_their_headers(self, fabric: Fabric) -> None:
        for topic, qos in (("events", EVENTS), ("log", LOG)):
            await fabric.declare(topic, qos)
            kind = parse("kind = 'rain' AND place LIKE 'L%'")
            async with (
                await fabric.subscribe(topic, selector=kind) as reader,
                await fabric.subscribe(topic, selector=parse("kind > 7"), keys=["x"]) as wrong,
                await fabric.publisher(topic) as writer,
            ):
                for place, kind_of in (("London", "rain"), ("London", "sun"), ("Oxford", "rain"), ("Leeds", "rain")):
                    await writer.publish(place.encode(), key="x", headers={"place": place, "kind": kind_of})
                await writer.publish(b"nothing known", key="x")
                await writer.publish(b"end", headers={"place": "L", "kind": "rain"})
                assert await take(reader, 3) == [b"London", b"Leeds", b"end"]
                assert reader.counts.unselected == 3
                await nothing(wrong)

    @scenario
    async def test_every_reader_gets_every_sample_in_order(self, fabric: Fabric) -> None:
        sent = [str(number).encode() for number in range(300)]
        for topic, qos in (("events", EVENTS), ("live", LIVE), ("log", LOG)):
            await fabric.declare(topic, qos)
            readers = [await fabric.subscribe(topic) for _ in range(2)]
            writer = await fabric.publisher(topic)
            for data in sent:
                await writer.publish(data)
            for reader in readers:
                assert await take(reader, 300) == sent
                await reader.close()

    @scenario
    async def test_a_callback_gets_samples_and_its_error_ends_the_subscription(self, fabric: Fabric) -> None:
        await fabric.declare("live", LIVE)
        got: list[bytes] = []

        async def callback(sample: Sample) -> None:
            if sample.data == b"bad":
                raise ValueError("no")
            got.append(sample.data)

        subscription = await fabric.subscribe("live", callback=callback)
        writer = await fabric.publisher("live")
        for data in (b"1", b"2", b"bad", b"3"):
            await writer.publish(data)
        try:
            await asyncio.wait_for(subscription.finished(), PATIENCE)
        except ValueError:
            assert got == [b"1", b"2"]
        else:
            raise AssertionError("the callback's error was lost")

    @scenario
    async def test_cancelled_reading_loses_nothing_and_leaves_nothing(self, fabric: Fabric) -> None:
        await fabric.declare("live", LIVE)
        writer = await fabric.publisher("live")
        got: list[bytes] = []
        begun = asyncio.Event()

        async def read() -> None:
            async with await fabric.subscribe("live") as samples:
                begun.set()
                async for sample in samples:
                    got.append(sample.data)  # noqa: PERF401  # what was read before the cancellation counts

        task = waited_for(read())
        reader = await fabric.subscribe("live")
        await nothing(reader)  # cancels a call that waits
        await begun.wait()
        await writer.publish(b"1")
        await until(lambda: got == [b"1"])
        assert await take(reader, 1) == [b"1"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await writer.publish(b"2")
        assert await take(reader, 1) == [b"2"]
        assert got == [b"1"]
        await reader.close()
        with refused_end():
            await anext(reader)

    @scenario
    async def test_a_reader_that_is_drained_gets_what_waits_and_nothing_more(self, fabric: Fabric) -> None:
        await fabric.declare("live", LIVE)
        old = await fabric.subscribe("live")
        writer = await fabric.publisher("live")
        for data in (b"1", b"2"):
            await writer.publish(data)
        await until(lambda: len(old.reader) == 2)
        async with await fabric.subscribe("live") as new:
            await old.drain()
            await writer.publish(b"3")
            assert [sample.data async for sample in old] == [b"1", b"2"]
            assert await take(new, 1) == [b"3"]
        await old.close()

    @scenario
    async def test_what_is_too_large_is_refused(self, fabric: Fabric) -> None:
        await fabric.declare("live", LIVE)
        writer = await fabric.publisher("live")
        reader = await fabric.subscribe("live")
        largest = b"x" * FabricLimits().fabric_bytes
        await writer.publish(largest)
        assert await take(reader, 1) == [largest]
        with refused("fabric.too-large"):
            await writer.publish(largest + b"x")
        with refused("fabric.bad-key"):
            await writer.publish(b"", key="k" * (FabricLimits().fabric_key_bytes + 1))
        with refused("fabric.bad-header"):
            await writer.publish(b"", headers={"h": "v" * FabricLimits().fabric_header_bytes})
        with refused("fabric.too-large"):
            await fabric.request("live", largest + b"x", timeout=1)

    @scenario
    async def test_what_was_closed_is_refused(self, fabric: Fabric) -> None:
        await fabric.declare("live", LIVE)
        writer = await fabric.publisher("live")
        reader = await fabric.subscribe("live")
        await writer.close()
        with refused("fabric.closed"):
            await writer.publish(b"")
        await fabric.close()
        await fabric.close()
        with refused_end():
            await anext(reader)
        with refused("fabric.closed"):
            await fabric.describe("live")

    # request and reply

    @scenario
    async def test_requests_are_answered_once(self, fabric: Fabric) -> None:
        await fabric.declare("ask", EVENTS)
        other = await self.join(fabric)
        asked: list[str] = []

        async def shout(sample: Sample) -> bytes:
            asked.append(sample.key)
            return sample.data.upper() + sample.headers["mark"].encode()

        async with await other.serve("ask", shout), await other.serve("ask", shout):
            answers = [
                fabric.request("ask", b"a", key=str(n), headers={"mark": "!"}, timeout=PATIENCE) for n in range(10)
            ]
            assert await asyncio.gather(*answers) == [b"A!"] * 10
        assert sorted(asked) == [str(n) for n in range(10)]
        with refused("fabric.no-responder"):
            await fabric.request("ask", b"a", timeout=PATIENCE)
        await self.leave(fabric, other)

    @scenario
    async def test_a_request_that_fails_or_takes_too_long_says_so(self, fabric: Fabric) -> None:
        await fabric.declare("ask", EVENTS)
        never = asyncio.Event()

        async def handler(sample: Sample) -> bytes:
            if sample.data == b"wait":
                await never.wait()
            raise ValueError("a secret")

        async with await fabric.serve("ask", handler):
            with refused("fabric.handler-failed"):
                await fabric.request("ask", b"fail", timeout=PATIENCE)
            asking = waited_for(fabric.request("ask", b"wait", timeout=0.05))
            while not asking.done():
                await self.clock.advance(0.1)
                await asyncio.sleep(0.01)
            with refused("fabric.no-reply"):
                await asking

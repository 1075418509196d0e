"""The ten policies of quality of service, as every adapter of `penstock.fabric` keeps them."""
# ruff: noqa: D102, S101  # a suite asserts, and the names of its tests say what

import asyncio
from dataclasses import replace
from typing import Final

from penstock.fabric.envelope import Sample
from penstock.fabric.port import Fabric
from penstock.fabric.qos import KEEP_ALL, Durability, Order, Ownership, Priority, Qos
from penstock.fabric.tasks import waited_for
from penstock.model.limits import DEFAULT_LIMITS
from penstock.testing.fabric_kit import (
    EVENTS,
    LIVE,
    LOG,
    PERSISTENT,
    RELIABLE,
    STATE,
    FabricCase,
    nothing,
    refused,
    scenario,
    take,
    until,
)

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
        limit = DEFAULT_LIMITS.fabric_pending
        await fabric.declare("events", replace(EVENTS, history=DEFAULT_LIMITS.fabric_history))
        slow = await fabric.subscribe("events")
        got = 0

        async def callback(_: Sample) -> None:
            nonlocal got
            got += 1

        quick = await fabric.subscribe("events", callback=callback)
        writer = await fabric.publisher("events")
        for number in range(limit + 50):
            await writer.publish(str(number).encode())
            if number % 500 == 0:
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

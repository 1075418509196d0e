"""The embedded fabric: the suite of all adapters, persistent topics in a file, urgency, and virtual time."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import FailedError
from penstock.fabric import (
    KEEP_ALL,
    Clock,
    Durability,
    EmbeddedFabric,
    FileKeeper,
    KeysUnder,
    Ownership,
    Priority,
    Qos,
    Reliability,
    Sample,
)
from penstock.fabric.limits import FabricLimits
from penstock.fabric.tasks import waited_for
from penstock.testing.fabric_suite import EVENTS, LIVE, LOG, STATE, FabricSuite, ManualClock, WrongClock, refused, take

PERSISTENT = replace(LOG, durability=Durability.PERSISTENT)


class TestEmbedded(FabricSuite):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "topics"

    async def open(self, clock: Clock) -> EmbeddedFabric:
        return EmbeddedFabric(clock=clock, keeper=FileKeeper(self.path))


def test_leases_deadlines_and_time_filters_do_not_depend_on_the_date() -> None:
    async def whole(step: float) -> None:
        clock = ManualClock()
        wrong = WrongClock(clock)
        async with EmbeddedFabric(clock=wrong) as fabric:
            await fabric.declare("live", replace(LIVE, lease=6.0, deadline=3.0))
            await fabric.declare("conf", replace(STATE, ownership=Ownership.EXCLUSIVE, lease=2.0))
            gone, missed = list[bool](), list[str]()
            qos = replace(LIVE, lease=6.0, deadline=3.0, time_filter=1.0)
            reader = await fabric.subscribe(
                "live", qos, on_deadline=missed.append, on_writer=lambda _, there: gone.append(not there)
            )
            writer = await fabric.publisher("live")
            await fabric.publisher("conf")
            await writer.publish(b"1", key="k")
            assert await take(reader, 1) == [b"1"]
            wrong.wrong = step
            with refused("fabric.not-owner"):
                await fabric.publisher("conf")
            await clock.advance(1.1)
            await writer.publish(b"2", key="k")
            assert (await take(reader, 1), gone, missed) == ([b"2"], [False], [])
            waiting = waited_for(take(reader, 1))
            await clock.advance(3.1)
            assert missed == ["k"]
            await fabric.publisher("conf")
            await clock.advance(3)
            assert gone == [False, True]
            await writer.publish(b"3", key="k")
            assert await waiting == [b"3"]

    for step in (-3_600.0, 3_600.0):
        asyncio.run(whole(step))


def test_without_a_keeper_persistent_topics_are_refused() -> None:
    async def whole() -> None:
        async with EmbeddedFabric() as fabric:
            with refused("fabric.qos.durability"):
                await fabric.declare("kept", PERSISTENT)

    asyncio.run(whole())


def test_persistent_topics_outlive_the_fabric_and_transient_ones_do_not(tmp_path: Path) -> None:
    async def first() -> None:
        async with EmbeddedFabric(clock=ManualClock(), keeper=FileKeeper(tmp_path / "topics")) as fabric:
            await fabric.declare("kept", replace(PERSISTENT, history=1, ownership=Ownership.EXCLUSIVE))
            await fabric.declare("log", PERSISTENT)
            await fabric.declare("state", STATE)
            await fabric.declare("removed", PERSISTENT)
            for topic in ("kept", "log", "state", "removed"):
                writer = await fabric.publisher(topic)
                await writer.publish(b"1", key="k", headers={"a": "b"})
                await writer.publish(b"2", key="k", headers={"a": "b"})
            await fabric.remove("removed")

    async def second() -> list[tuple[Sample, ...]]:
        async with EmbeddedFabric(clock=ManualClock(), keeper=FileKeeper(tmp_path / "topics")) as fabric:
            for topic in ("state", "removed"):
                with refused("fabric.unknown-topic"):
                    await fabric.describe(topic)
            await fabric.declare("log", PERSISTENT)
            owner = await fabric.publisher("kept")
            kept = [await fabric.state("kept"), await fabric.state("log")]
            await owner.publish(b"3", key="k")
            assert [(s.data, s.epoch) for s in await fabric.state("kept")] == [(b"3", 2)]
            return kept

    asyncio.run(first())
    kept, log = asyncio.run(second())
    assert [(s.data, s.headers, s.epoch) for s in kept] == [(b"2", {"a": "b"}, 1)]
    assert [s.data for s in log] == [b"1", b"2"]


def test_a_file_that_is_no_keeper_is_an_error_with_a_code(tmp_path: Path) -> None:
    (tmp_path / "topics").write_bytes(b"not a database at all" * 100)
    with pytest.raises(FailedError) as failed:
        FileKeeper(tmp_path / "topics")
    assert failed.value.code == "fabric.keeper"


def test_keep_all_refuses_when_it_is_full_and_takes_again_when_samples_are_over() -> None:
    async def whole() -> None:
        clock = ManualClock()
        async with EmbeddedFabric(clock=clock, limits=FabricLimits(fabric_history=3)) as fabric:
            await fabric.declare("log", replace(LOG, lifespan=10.0))
            writer = await fabric.publisher("log")
            for _ in range(3):
                await writer.publish(b"x")
            with refused("fabric.full"):
                await writer.publish(b"y")
            await clock.advance(11)
            await writer.publish(b"z")
            assert [s.data for s in await fabric.state("log")] == [b"z"]

    asyncio.run(whole())


def test_a_reliable_reader_that_falls_behind_is_cut_off_and_others_are_not() -> None:
    async def whole() -> None:
        async with EmbeddedFabric(limits=FabricLimits(fabric_pending=5)) as fabric:
            await fabric.declare("live", LIVE)
            slow, quick = await fabric.subscribe("live"), await fabric.subscribe("live")
            writer = await fabric.publisher("live")
            for _ in range(6):
                await writer.publish(b"x")
                assert await take(quick, 1) == [b"x"]
            with refused("fabric.slow-consumer"):
                await anext(slow)

    asyncio.run(whole())


def test_readers_of_urgent_topics_come_first() -> None:
    async def whole() -> list[str]:
        order: list[str] = []
        async with EmbeddedFabric() as fabric:
            writers = []
            for level in (Priority.LOW, Priority.NORMAL, Priority.HIGH):
                await fabric.declare(level.value, Qos(priority=level))

                async def callback(_: Sample, name: str = level.value) -> None:
                    order.append(name)

                await fabric.subscribe(level.value, callback=callback)
                writers.append(await fabric.publisher(level.value))
            await asyncio.sleep(0.01)
            for writer in writers:
                await writer.publish(b"")
            await asyncio.sleep(0.01)
        return order

    assert asyncio.run(whole()) == ["high", "normal", "low"]


def test_the_same_seed_and_clock_give_the_same_samples() -> None:
    async def whole() -> list[Sample]:
        clock = ManualClock()
        async with EmbeddedFabric(clock=clock, random=lambda size: b"\7" * size) as fabric:
            await fabric.declare("log", Qos(durability=Durability.TRANSIENT, history=9))
            writer = await fabric.publisher("log")
            for number in range(5):
                await clock.advance(3600)
                await writer.publish(str(number).encode())
            return list(await fabric.state("log"))

    assert asyncio.run(whole()) == asyncio.run(whole())


def test_a_writer_that_never_waits_leaves_no_reliable_reader_behind() -> None:
    async def whole() -> int:
        async with EmbeddedFabric(limits=FabricLimits(fabric_pending=50)) as fabric:
            await fabric.declare("live", Qos(history=KEEP_ALL, reliability=Reliability.RELIABLE))
            got = []

            async def callback(sample: Sample) -> None:
                got.append(sample)

            await fabric.subscribe("live", callback=callback)
            writer = await fabric.publisher("live")
            for _ in range(1_000):
                await writer.publish(b"x")
            await asyncio.sleep(0.01)
            return len(got)

    assert asyncio.run(whole()) == 1_000


def test_what_nobody_reads_keeps_no_reader_of_another_topic_asleep() -> None:
    async def whole() -> list[bytes]:
        async with EmbeddedFabric() as fabric:
            await fabric.declare("unread", LIVE)
            await fabric.declare("read", LIVE)
            reader = await fabric.subscribe("read")
            taking = asyncio.create_task(take(reader, 1))
            await asyncio.sleep(0)
            await (await fabric.publisher("unread")).publish(b"1")
            await (await fabric.publisher("read")).publish(b"2")
            return await taking

    assert asyncio.run(whole()) == [b"2"]


def test_readers_of_other_keys_cost_nothing() -> None:
    async def whole() -> None:
        async with EmbeddedFabric() as fabric:
            await fabric.declare("requests", EVENTS)
            junk = [await fabric.subscribe("requests", keys=[f"junk/{number}"]) for number in range(300)]
            async with (
                await fabric.subscribe("requests", keys=[KeysUnder("true")]) as reader,
                await fabric.publisher("requests") as writer,
            ):
                for number in range(5):
                    await writer.publish(b"", key=f"true/{number}")
                assert [(await anext(reader)).key for _ in range(5)] == [f"true/{number}" for number in range(5)]
                junk.append(await fabric.subscribe("requests", instances=["junk"]))
                await writer.publish(b"", key="true/5")
            # They did not even see the samples.
            assert {each.counts.unselected for each in junk} == {0}
            for each in junk:
                await each.close()
            assert fabric._topics["requests"].of_instance == {}

    asyncio.run(whole())


def test_a_reader_moves_to_other_instances_without_subscribing_again() -> None:
    async def whole() -> None:
        async with EmbeddedFabric() as fabric:
            await fabric.declare("requests", LIVE)
            writers = {name: await fabric.publisher("requests", instance=name) for name in "abc"}
            async with await fabric.subscribe("requests", instances=["a", "b"]) as reader:
                await writers["a"].publish(b"a1")
                assert reader.read_instances(["b", "c"])
                for name, writer in writers.items():
                    await writer.publish(f"{name}2".encode())
                assert await take(reader, 3) == [b"a1", b"b2", b"c2"], "what has arrived stays"
                assert reader.counts.unselected == 0
                with refused("fabric.bad-name"):
                    reader.read_instances(["not a name"])
            assert fabric._topics["requests"].of_instance == {}
            assert not reader.read_instances(["a"]), "it is closed"
            await fabric.declare("state", STATE)
            async with await fabric.subscribe("state", instances=["a"]) as kept:
                assert not kept.read_instances(["b"]), "what is kept of it would be missing"

    asyncio.run(whole())

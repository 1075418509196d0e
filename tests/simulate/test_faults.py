"""Faults are drawn from a seed, happen, and end; disks lose what was not synced."""

import asyncio
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, cast

import pytest

from penstock.crypto import SigningKey
from penstock.errors import FailedError, MalformedError
from penstock.simulate.disk import DiskKeep
from penstock.simulate.faults import FAULT_KINDS, Fault, apply, draw
from penstock.simulate.simulation import START, Simulation

if TYPE_CHECKING:
    from penstock.simulate.worlds.world import SimulationWorld

# ruff: noqa: S311  # a simulation must be repeatable


class Pair:
    """A world of two processes that send each other a number every 10 ms."""

    name = "pair"
    fault_kinds = FAULT_KINDS
    fault_amounts: Mapping[str, tuple[float, ...]] = {"delay": (7.0,)}
    fault_targets: Mapping[str, tuple[str, ...]] = {}
    processes = ("a", "b")
    seconds = 10.0

    def __init__(self, options: Mapping[str, int] | None = None) -> None:
        del options
        self.simulation = Simulation()
        self.heard: list[tuple[float, str, int]] = []

    async def start(self, simulation: Simulation) -> None:
        self.simulation = simulation
        for name in self.processes:
            simulation.start(name, self.talk(name))

    async def talk(self, name: str) -> None:
        other = "b" if name == "a" else "a"
        for number in range(10_000):
            self.simulation.network.send(
                name,
                other,
                str(number).encode(),
                lambda data: self.heard.append((self.simulation.time, other, int(data))),
            )
            self.simulation.service("sign")
            await asyncio.sleep(0.01)

    async def restart(self, process: str) -> None:
        self.simulation.start(process, self.talk(process))


def heard(fault: str, of: str = "b") -> tuple[Pair, list[tuple[float, int]]]:
    """Return what a process has heard in three seconds with a fault in them."""
    simulation, world = Simulation(5), Pair()

    async def drive() -> None:
        await world.start(simulation)
        parsed = Fault.parse(fault)
        await asyncio.sleep(parsed.at)
        await apply(simulation, cast("SimulationWorld", world), parsed)
        await asyncio.sleep(3 - parsed.at - parsed.seconds)

    simulation.run(drive())
    simulation.close()
    return world, [(at, number) for at, name, number in world.heard if name == of]


def test_every_kind_of_fault_is_drawn_and_written_down() -> None:
    drawn = [draw(Random(seed), cast("SimulationWorld", Pair()), 10.0) for seed in range(100)]
    assert {fault.kind for faults in drawn for fault in faults} == set(FAULT_KINDS)
    assert min(map(len, drawn)) == 5
    assert all(fault.at + fault.seconds <= 10 for faults in drawn for fault in faults)
    assert all(Fault.parse(str(fault)) == fault for faults in drawn for fault in faults)
    for faults in drawn:
        ends = dict.fromkeys(Pair.processes, 0.0)
        for fault in faults:
            if fault.kind in ("slow", "stop", "crash"):
                assert fault.at > ends[fault.where[0]], "it would hit a process that is down"
                ends[fault.where[0]] = fault.at + fault.seconds
    assert draw(Random(3), cast("SimulationWorld", Pair()), 10.0) == drawn[3]
    assert {fault.where[1] for faults in drawn for fault in faults if fault.kind == "delay"} == {"7"}


@pytest.mark.parametrize("fault", ["1 partition 1 b", "1 partition 1 a b", "1 loss 1 a 1"])
def test_messages_do_not_arrive(fault: str) -> None:
    _, found = heard(fault)
    assert [number for at, number in found if 1.01 < at < 2] == []
    assert len([number for at, number in found if at > 2.01]) > 90


def test_messages_come_twice_late_and_in_another_order() -> None:
    numbers = [number for _, number in heard("0.5 duplicate 2 a 1")[1]]
    assert sum(numbers.count(number) == 2 for number in range(60, 200)) == 140
    late = [number for _, number in heard("0.5 reorder 2 a 0.5")[1]]
    assert late != sorted(late)
    assert sorted(late) == sorted(set(late))
    delayed = heard("1 delay 1 b 0.5")[1]
    assert [number for at, number in delayed if 1.01 < at < 1.5] == []
    assert len({number for _, number in delayed}) > 240


def test_processes_are_slow_stop_and_crash() -> None:
    slow = heard("1 slow 1 a 500")[1]
    assert 30 < len([at for at, _ in slow if 1 < at < 2]) < 50
    stopped = heard("1 stop 1 a")[1]
    assert [number for at, number in stopped if 1.01 < at < 2] == []
    world, crashed = heard("1 crash 1 a")
    assert [number for at, number in crashed if 1.01 < at < 2] == []
    assert next(number for at, number in crashed if at > 2) == 0, "it starts again"
    assert [entry.fields.get("fault") for entry in world.simulation.log] == ["crash", None]


def test_clocks_are_wrong_for_a_while() -> None:
    simulation, times = Simulation(), list[float]()

    async def drive() -> None:
        world = cast("SimulationWorld", Pair())
        faults = [
            apply(simulation, world, Fault(0, kind, 2, ("a", by))) for kind, by in (("skew", "0.5"), ("jump", "-9"))
        ]
        running = asyncio.gather(*faults)
        await asyncio.sleep(1)
        times.append(simulation.clock("a").now() - START)
        await running
        times.append(simulation.clock("a").now() - START)

    simulation.run(drive())
    assert [round(at, 6) for at in times] == [-7.5, 2]


@pytest.mark.parametrize("line", ["1 flood 1 a", "1 loss 1 a much", "1 slow 1 a"])
def test_what_is_not_a_fault_is_refused(line: str) -> None:
    with pytest.raises(MalformedError) as refused:
        heard(line)
    assert refused.value.code == "scenario.value"


def test_a_crash_loses_what_was_not_synced_and_tears_what_was_appended() -> None:
    lengths = set()
    for seed in range(40):
        simulation = Simulation(seed)
        simulation.process("p")
        disk = simulation.disk("p")
        disk.replace("state", b"old")
        disk.append("log", b"12345")
        disk.sync("log")
        disk.append("log", b"678")
        disk.write("state", b"new")
        disk.write("fresh", b"x")
        simulation.crash("p")
        assert disk.read("state") == b"old"
        assert b"12345678".startswith(disk.read("log"))
        assert disk.names() == ["log", "state"]
        lengths.add(len(disk.read("log")))
    assert lengths == {5, 6, 7, 8}


def test_a_full_disk_takes_nothing_and_a_broker_is_told() -> None:
    simulation = Simulation()
    disk, owner, told = simulation.disk("p"), SigningKey(b"o" * 32).principal, list[str]()
    keep = DiskKeep(disk)
    keep.save(owner, b"one")

    async def work() -> None:
        background, undo = disk.background(), disk.fill()
        with pytest.raises(FailedError):
            keep.save_brokers(b"seen")
        background(lambda: keep.save(owner, b"two"), lambda error: told.append(str(getattr(error, "code", error))))
        await asyncio.sleep(0.01)
        undo()
        background(lambda: keep.save(owner, b"three"), lambda error: told.append(str(error)))
        simulation.crash("q")
        await asyncio.sleep(0.01)

    simulation.run(work())
    assert told == ["file.unwritable", "None"]
    assert ([*keep.load()], keep.load_brokers(), [*keep.load_statements()]) == ([b"three"], b"", [])

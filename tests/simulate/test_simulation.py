"""One seed, one log and one trace; processes that crash and come back; service times."""

import asyncio
import gc
import os
import subprocess
import sys

from penstock.crypto import SigningKey
from penstock.fabric import Qos
from penstock.simulate.simulation import SERVICES, START, ServiceTimes, Simulation, serving

KEY = SigningKey(b"k" * 32)


async def chat(simulation: Simulation, name: str) -> None:
    """Publish random words on a topic, and note what is read from it."""
    fabric, random = simulation.fabric(name), simulation.random(name)
    await fabric.declare("words", Qos())
    writer = await fabric.publisher("words")
    async with await fabric.subscribe("words") as words:
        for _ in range(3):
            await simulation.clock(name).sleep(random.random())
            await writer.publish(random.randbytes(4))
            async for sample in words:
                simulation.note(name, "read", data=sample.data)
                break


def trace(seed: int) -> str:
    """Let three processes chat, and return the trace."""
    with Simulation(seed) as simulation:
        for name in "abc":
            simulation.start(name, chat(simulation, name))
        simulation.run_for(5)
        assert simulation.loop.reports == []
        assert len(simulation.log) == 9
        return simulation.trace


def test_one_seed_gives_one_trace_in_every_process() -> None:
    own = [trace(seed) for seed in (1, 2, 1)]
    assert own[0] == own[2] != own[1]
    program = "from tests.simulate.test_simulation import trace\nprint(trace(1), trace(2))"
    for hash_seed in ("1", "77"):
        printed = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert printed.split() == own[:2]


def test_a_crashed_process_comes_back_with_its_clock_and_cleans_nothing_up() -> None:
    log: list[str] = []

    async def work(simulation: Simulation) -> None:
        try:
            simulation.note("p", "began", now=simulation.clock("p").now())
            await asyncio.sleep(100)
        finally:
            log.append("cleaned")

    with Simulation() as simulation:
        simulation.clock("p").offset = 5.0
        simulation.start("p", work(simulation))
        simulation.run_for(1)
        simulation.crash("p")
        assert not simulation.runs("p")
        simulation.run_for(1)
        gc.collect()
        assert log == []
        simulation.start("p", work(simulation))
        simulation.run_for(1)
        assert [entry.fields["now"] for entry in simulation.log] == [START + 5, START + 7]
        before = simulation.trace
    assert log == ["cleaned", "cleaned"], "what a simulation leaves is cleaned up when it is closed"
    assert simulation.trace == before


def test_random_sources_of_different_purposes_do_not_change_each_other() -> None:
    one, other = Simulation(4), Simulation(4)
    other.random("b").random()
    assert one.random("a").random() == other.random("a").random() != Simulation(5).random("a").random()


def test_production_code_spends_its_service_times() -> None:
    times = ServiceTimes({"sign": 0.25, "verify": 0.5, "hash": 1.0})
    simulation = Simulation(times=times)

    async def work() -> float:
        KEY.public.verify(b"x", KEY.sign(b"x"))
        simulation.service("hash", 2)
        return simulation.time

    task = simulation.start("p", work())
    assert simulation.run(wait(task)) == 2.75
    assert simulation.process("p").spent == 2.75
    assert KEY.sign.__func__ is SigningKey.sign  # type: ignore[attr-defined]  # it is a method
    assert not hasattr(SigningKey.sign, "__wrapped__")
    simulation.close()


def test_every_service_is_a_function_that_exists() -> None:
    with serving(ServiceTimes()):
        assert hasattr(SigningKey.sign, "__wrapped__")
    assert set(SERVICES) == set(ServiceTimes().seconds)


async def wait(task: "asyncio.Task[float]") -> float:
    """Return the result of a task."""
    return await task

"""The loop in virtual time: asyncio's promises within a process, one trace for one seed."""

import asyncio
import gc
import hashlib
import os
import subprocess
import sys
import textwrap

import pytest

from penstock.errors import FailedError
from penstock.simulate.loop import SimulatedProcess, VirtualLoop, current_process, spend


def run(seed: int = 0) -> tuple[VirtualLoop, list[tuple[float, str]]]:
    """Let three processes write into a common log."""
    loop, log = VirtualLoop(seed), list[tuple[float, str]]()

    async def work(name: str) -> None:
        for number in range(5):
            log.append((loop.time(), f"{name}{number}"))
            await asyncio.sleep(0 if number % 2 else 0.25)

    tasks = [loop.start(loop.process(name), work(name)) for name in "abc"]
    loop.run_until_complete(asyncio.gather(*tasks))
    return loop, log


def test_time_passes_without_waiting() -> None:
    loop = VirtualLoop()

    async def year() -> float:
        await asyncio.sleep(365 * 86_400)
        return loop.time()

    assert loop.run_until_complete(year()) == 365 * 86_400


def test_one_seed_gives_one_trace_and_others_give_others() -> None:
    traces = {seed: run(seed)[1] for seed in range(20)}
    assert all(run(seed)[1] == trace for seed, trace in traces.items())
    assert len({str(trace) for trace in traces.values()}) > 5
    for trace in traces.values():
        for name in "abc":
            own = [text for _, text in trace if text.startswith(name)]
            assert own == sorted(own), "within a process the order is that of asyncio"


def test_the_trace_does_not_depend_on_the_hash_seed() -> None:
    program = textwrap.dedent(
        """
        from tests.simulate.test_loop import run
        import hashlib
        print(hashlib.sha256(repr([run(seed)[1] for seed in range(5)]).encode()).hexdigest())
        """
    )
    own = hashlib.sha256(repr([run(seed)[1] for seed in range(5)]).encode()).hexdigest()
    for hash_seed in ("1", "77"):
        printed = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert printed.strip() == own


def test_work_keeps_the_processor_of_its_process_busy_and_no_other() -> None:
    loop, ended = VirtualLoop(3), dict[str, float]()

    async def request(name: str) -> None:
        spend(0.1)
        ended[name] = loop.time()

    async def serve(name: str, count: int) -> None:
        await asyncio.gather(*(asyncio.ensure_future(request(f"{name}{n}")) for n in range(count)))

    busy, idle = loop.process("busy"), loop.process("idle")
    both = asyncio.gather(loop.start(busy, serve("b", 4)), loop.start(idle, serve("i", 1)))
    loop.run_until_complete(both)
    assert {name: round(at, 6) for name, at in ended.items()} == {"b0": 0.1, "b1": 0.2, "b2": 0.3, "b3": 0.4, "i0": 0.1}
    assert (round(busy.spent, 6), round(idle.spent, 6)) == (0.4, 0.1)


def test_a_killed_process_runs_nothing_more_not_even_its_cleaning() -> None:
    loop, log = VirtualLoop(), list[object]()

    async def work() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                log.append(loop.time())
        finally:
            log.append("cleaned")

    process = loop.process("victim")
    task = loop.start(process, work())
    loop.run_for(2.5)
    loop.kill(process)
    loop.run_for(5)
    assert log == [1.0, 2.0]
    assert not task.done()
    loop.process("victim")
    with pytest.raises(ValueError, match="running"):
        loop.process("victim")


def test_code_that_waits_while_it_cleans_up_is_left_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    reported, left = list[object](), list[object]()
    monkeypatch.setattr(sys, "unraisablehook", reported.append)

    class Slow:
        async def __aenter__(self) -> None:
            pass

        async def __aexit__(self, *_: object) -> None:
            await asyncio.sleep(0)
            left.append(self)

    async def work() -> None:
        async with Slow(), Slow(), Slow():
            await asyncio.sleep(60)

    async def supervise() -> None:
        await work()

    loop = VirtualLoop()
    loop.start(loop.process("tidy"), supervise())
    loop.run_for(1)
    loop.close()
    gc.collect()
    assert reported == []
    assert left == []


def test_a_paused_process_goes_on_where_it_was() -> None:
    loop, log = VirtualLoop(), list[object]()

    async def work() -> None:
        while True:
            await asyncio.sleep(1)
            log.append(round(loop.time(), 3))

    process = loop.process("slow")
    loop.start(process, work())
    loop.run_for(1.5)
    loop.pause(process)
    loop.run_for(3)
    loop.resume(process)
    loop.run_for(1.9)
    assert log == [1.0, 4.5, 5.5]


def test_what_can_never_happen_is_an_error() -> None:
    loop = VirtualLoop()

    async def wait() -> None:
        await loop.create_future()

    with pytest.raises(FailedError) as stalled:
        loop.run_until_complete(wait())
    assert stalled.value.code == "simulate.stalled"


def test_timeouts_locks_and_queues_work_as_in_asyncio() -> None:
    loop = VirtualLoop()

    async def work() -> tuple[float, list[int]]:
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        got: list[int] = []

        async def consume() -> None:
            async with asyncio.timeout(10):
                while True:
                    got.append(await queue.get())

        consumer = asyncio.ensure_future(consume())
        async with asyncio.Lock():
            for number in range(3):
                await queue.put(number)
                await asyncio.sleep(1)
        with pytest.raises(TimeoutError):
            await consumer
        return loop.time(), got

    assert loop.run_until_complete(work()) == (10.0, [0, 1, 2])


def test_a_thread_or_a_socket_is_refused() -> None:
    loop = VirtualLoop()

    async def outside() -> None:
        for work in (
            asyncio.to_thread(int),
            asyncio.open_connection("127.0.0.1", 1),
            asyncio.start_server(print, port=0),
        ):
            with pytest.raises(FailedError) as refused:
                await work
            assert refused.value.code == "simulate.real"
            assert "`p`" in refused.value.message

    process = loop.process("p")
    loop.run_until_complete(loop.start(process, outside()))
    assert loop.steps


def test_code_knows_its_process() -> None:
    loop, found = VirtualLoop(), list[SimulatedProcess | None]()

    async def work() -> None:
        found.append(current_process())
        loop.call_later(1, lambda: found.append(current_process()))
        await asyncio.sleep(2)

    process = loop.process("p")
    loop.run_until_complete(loop.start(process, work()))
    assert found == [process, process]
    assert current_process() is None
    assert isinstance(process, SimulatedProcess)

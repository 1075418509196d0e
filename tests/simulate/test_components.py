"""Real components join a domain in virtual time: one seed, one trace."""

import asyncio
from random import Random

from tests.authority.components.kit import KINDS, PAP_KEY, administration, key_of, memory_fabric, pap

from penstock.authority.components.points.component import Component, ComponentSettings
from penstock.simulate.isolation import isolated
from penstock.simulate.loop import VirtualLoop

START = 1_767_225_600.0


class VirtualClock:
    """The loop's time as a clock of fabrics and components."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return START + self._loop.time()

    def steady(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def joins(seed: int) -> list[tuple[float, str, str]]:
    """Let six components join and leave, and return what happened when."""
    loop, trace = VirtualLoop(seed), list[tuple[float, str, str]]()
    clock, random = VirtualClock(loop), Random(seed).randbytes  # noqa: S311  # a simulation must be repeatable
    fabric = memory_fabric(clock, random=random)
    names = [(f"{role}{number}", f"{role}(1)") for role in ("ER", "DR") for number in range(3)]

    async def administer() -> None:
        async with pap(fabric, administration(*names), clock, random=random):
            await asyncio.sleep(60)

    async def take_part(name: str, role: str) -> None:
        settings = ComponentSettings(
            domain="bank",
            id=name,
            kind=KINDS[role.partition("(")[0]],
            role=role,
            administrators=frozenset({PAP_KEY.principal}),
        )
        async with Component(fabric, key_of(name), settings, clock=clock, random=random):
            trace.append((loop.time(), name, "joined"))
            await asyncio.sleep(5)
        trace.append((loop.time(), name, "left"))

    administering = loop.start(loop.process("pap"), administer())
    for name, role in names:
        loop.start(loop.process(name), take_part(name, role))
    with isolated():
        loop.run_until_complete(administering)
    assert loop.reports == []
    return trace


def test_one_seed_gives_one_trace_of_real_components() -> None:
    traces = [joins(seed) for seed in (1, 1, 2, 3)]
    assert traces[0] == traces[1]
    assert len({str(trace) for trace in traces}) > 1
    for trace in traces:
        assert sorted(name for _, name, what in trace if what == "joined") == ["DR0", "DR1", "DR2", "ER0", "ER1", "ER2"]
        assert len(trace) == 12

"""Hostile parties beside honest ones: how many questions are answered while each attacks, over NATS.

Several questions are under way at any time, so that the honest parties are busy. A process attacks at `RATE` messages a
second, or answers requests that it sees before the decision point can, as often. Its messages are made beforehand.
Windows with and without the attack come in pairs, in changing order, and each figure is the median of the pairs'
ratios. What counts is the throughput per second of processor time that the honest parties (enforcement point and
decision point) use: the attacker's own work, and whatever else the machine does, take nothing from it. Beside it stand
the ratio with the processor time of the NATS server, which anybody can keep busy, and the throughput by the clock.
Every answer is checked: none may come from the attacker.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from decisions_parts import ATTACKS, PEP, POINTS, RATE, rights
from harness import Result, at_least
from penstock.authority.decisions.enforcement_point import EnforcementPoint
from penstock.authority.decisions.questions import AccessQuestion
from penstock.fabric.nats import NatsFabric
from penstock.testing.nats import NatsServer
from processes import Part

PAIRS, SECONDS, TOGETHER = 40, 0.2, 8
NUMBERS = count()


def run() -> list[Result]:
    return [asyncio.run(measure(attack)) for attack in ATTACKS]


@dataclass(frozen=True, slots=True)
class Window:
    """Questions per second, and the microseconds for each: of the honest parties, and together with the server."""

    rate: float
    cost: float
    whole: float


async def measure(attack: str) -> Result:
    """Return the rate under an attack in relation to the rate without it."""
    with ExitStack() as stack, NatsServer() as server:
        point = Part(stack, "decisions_parts.py", "point", server.url, 0, 0)
        attacker = Part(stack, "decisions_parts.py", "attack", server.url, attack)
        point.hear()
        attacker.hear()
        honest = [os.getpid(), point.pid]
        async with (
            await NatsFabric.connect(server.url, prefix="decisions0") as fabric,
            EnforcementPoint(fabric, PEP, rights()) as pep,
        ):
            await window(pep, honest, server.pid)
            pairs: list[dict[bool, Window]] = []
            for number in range(PAIRS):
                found: dict[bool, Window] = {}
                for attacked in (number % 2 == 0, number % 2 == 1):
                    if attacked:
                        attacker.say(SECONDS)
                        attacker.hear()
                    found[attacked] = await window(pep, honest, server.pid)
                pairs.append(found)
    rates, costs = (
        [statistics.median(getattr(one[side], name) for one in pairs) for side in (False, True)]
        for name in ("rate", "cost")
    )
    ratio = statistics.median(one[False].cost / one[True].cost for one in pairs)
    whole = statistics.median(one[False].whole / one[True].whole for one in pairs)
    by_clock = statistics.median(one[True].rate / one[False].rate for one in pairs)
    detail = (
        f"{costs[0]:.0f} and {costs[1]:.0f} µs of honest processors for a question; with the server {whole:.2f}; by "
        f"the clock {by_clock:.2f}, {rates[0]:.0f} and {rates[1]:.0f} questions/s; {RATE} hostile messages/s; "
        f"{dict(pep.counts)}"
    )
    return at_least(f"decisions: throughput under {attack}", ratio, 0.9, detail)


async def window(pep: EnforcementPoint, honest: Sequence[int], server: int | None) -> Window:
    """Ask, some questions at a time."""
    end, number = time.perf_counter() + SECONDS, 0

    async def ask() -> None:
        nonlocal number
        while time.perf_counter() < end:
            decision = await pep.ask(AccessQuestion.of(("user", f"u{next(NUMBERS)}"), "read", ("object", "o0")))
            if not decision.permits() or any(answer.value.point != POINTS[0].principal for answer in decision.answers):
                raise RuntimeError("a decision that no point has made")
            number += 1

    began, before = time.perf_counter(), (processor_time(honest), processor_time([server]))
    await asyncio.gather(*(ask() for _ in range(TOGETHER)))
    took, after = time.perf_counter() - began, (processor_time(honest), processor_time([server]))
    parties, beside = ((end - start) / number * 1e6 for start, end in zip(before, after, strict=True))
    return Window(number / took, parties, parties + beside)


def processor_time(processes: Sequence[int | None]) -> float:
    """Return the seconds that processes have computed."""
    threads = [thread for pid in processes for thread in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9

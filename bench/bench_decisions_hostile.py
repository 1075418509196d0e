"""Hostile parties beside honest ones: how many questions are answered a second while each attacks, over NATS.

Several questions are under way at any time, so that the honest parties are busy. A process attacks at `RATE` messages a
second, or answers requests that it sees before the decision point can, as often. Its messages are made beforehand.
Windows with and without the attack come in pairs, in changing order; the figure is the median of the pairs' ratios.
Beside it stands what a question costs the honest processes (enforcement point, decision point, NATS server) in
processor time, which does not depend on what else the machine does. Every answer is checked: none may come from the
attacker.
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

PAIRS, SECONDS, TOGETHER = 15, 0.5, 8
NUMBERS = count()


def run() -> list[Result]:
    return [asyncio.run(measure(attack)) for attack in ATTACKS]


@dataclass(frozen=True, slots=True)
class Window:
    """Questions per second, and the honest processes' microseconds for each."""

    rate: float
    cost: float


async def measure(attack: str) -> Result:
    """Return the rate under an attack in relation to the rate without it."""
    with ExitStack() as stack, NatsServer() as server:
        point = Part(stack, "decisions_parts.py", "point", server.url, 0, 0)
        attacker = Part(stack, "decisions_parts.py", "attack", server.url, attack)
        point.hear()
        attacker.hear()
        honest = [os.getpid(), point.pid, server.pid]
        async with (
            await NatsFabric.connect(server.url, prefix="decisions0") as fabric,
            EnforcementPoint(fabric, PEP, rights()) as pep,
        ):
            await window(pep, honest)
            pairs: list[dict[bool, Window]] = []
            for number in range(PAIRS):
                found: dict[bool, Window] = {}
                for attacked in (number % 2 == 0, number % 2 == 1):
                    if attacked:
                        attacker.say(SECONDS)
                        attacker.hear()
                    found[attacked] = await window(pep, honest)
                pairs.append(found)
    rates, costs = (
        [statistics.median(getattr(one[side], name) for one in pairs) for side in (False, True)]
        for name in ("rate", "cost")
    )
    detail = (
        f"{rates[0]:.0f} and {rates[1]:.0f} questions/s; {costs[0]:.0f} and {costs[1]:.0f} µs of honest processors "
        f"each; {RATE} hostile messages/s; {dict(pep.counts)}"
    )
    ratio = statistics.median(one[True].rate / one[False].rate for one in pairs)
    return at_least(f"decisions: throughput under {attack}", ratio, 0.9, detail)


async def window(pep: EnforcementPoint, honest: Sequence[int | None]) -> Window:
    """Ask, some questions at a time."""
    end, number = time.perf_counter() + SECONDS, 0

    async def ask() -> None:
        nonlocal number
        while time.perf_counter() < end:
            decision = await pep.ask(AccessQuestion.of(("user", f"u{next(NUMBERS)}"), "read", ("object", "o0")))
            if not decision.permits() or any(answer.value.point != POINTS[0].principal for answer in decision.answers):
                raise RuntimeError("a decision that no point has made")
            number += 1

    began, used = time.perf_counter(), processor_time(honest)
    await asyncio.gather(*(ask() for _ in range(TOGETHER)))
    took = time.perf_counter() - began
    return Window(number / took, (processor_time(honest) - used) / number * 1e6)


def processor_time(processes: Sequence[int | None]) -> float:
    """Return the seconds that processes have computed."""
    threads = [thread for pid in processes for thread in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9

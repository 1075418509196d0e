"""Hostile parties beside honest ones: how many questions are answered a second while each attacks, over NATS.

A process attacks at `RATE` messages a second, or answers every request it sees before the decision point can. Rounds
with and without an attack take turns. Every answer is checked: none may come from the attacker.
"""

import asyncio
import statistics
import time
from contextlib import ExitStack
from itertools import count

from decisions_parts import ATTACKS, PEP, POINTS, RATE, rights
from harness import Result, at_least
from penstock.authority.decisions.enforcement_point import EnforcementPoint
from penstock.authority.decisions.questions import AccessQuestion
from penstock.fabric.nats import NatsFabric
from penstock.testing.nats import NatsServer
from processes import Part

ROUNDS, SECONDS, SETTLE = 12, 0.5, 0.1
NUMBERS = count()


def run() -> list[Result]:
    return [asyncio.run(measure(attack)) for attack in ATTACKS]


async def measure(attack: str) -> Result:
    """Return the rate under an attack in relation to the rate without it."""
    with ExitStack() as stack, NatsServer() as server:
        point = Part(stack, "decisions_parts.py", "point", server.url, 0, 0)
        attacker = Part(stack, "decisions_parts.py", "attack", server.url, attack)
        point.hear()
        attacker.hear()
        async with (
            await NatsFabric.connect(server.url, prefix="decisions0") as fabric,
            EnforcementPoint(fabric, PEP, rights()) as pep,
        ):
            await asked(pep)
            rates: dict[str, list[float]] = {"off": [], "on": []}
            for _ in range(ROUNDS):
                for word, found in rates.items():
                    attacker.say(word)
                    attacker.hear()
                    await asyncio.sleep(SETTLE)
                    found.append(await asked(pep))
    quiet, attacked = (statistics.median(found) for found in rates.values())
    detail = f"{quiet:.0f} and {attacked:.0f} questions/s; {RATE} hostile messages/s; {dict(pep.counts)}"
    return at_least(f"decisions: throughput under {attack}", attacked / quiet, 0.9, detail)


async def asked(pep: EnforcementPoint) -> float:
    """Ask one question after the other, and return how many a second."""
    began, number = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        decision = await pep.ask(AccessQuestion.of(("user", f"u{next(NUMBERS)}"), "read", ("object", "o0")))
        if not decision.permits() or any(answer.value.point != POINTS[0].principal for answer in decision.answers):
            raise RuntimeError("a decision that no point has made")
        number += 1
    return number / (time.perf_counter() - began)

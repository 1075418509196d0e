"""Decisions over NATS: one question at a time, against a NATS request that carries, signs and verifies the same bytes.

All of them take turns in one run: the plain request, the direct path, answers over the fabric, and answers sent
straight back; then several decision points, and points that subscribe to many objects. Points are processes of their
own. A pause after each question lets points that were not first finish, as they would on machines of their own.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from itertools import count

import nats

from decisions_parts import OWNER, PEP, POINTS, POLICY, SIGNATURE, SUBJECT, rights
from harness import Result, at_most, observed
from penstock.apps.answer_links import AnswerLinks
from penstock.authority.decisions.enforcement_point import AskPath, EnforcementPoint, PointAddress
from penstock.authority.decisions.messages import AccessAnswer, AccessRequest, AnswerEffect
from penstock.authority.decisions.questions import AccessQuestion
from penstock.fabric.nats import NatsFabric
from penstock.testing.nats import NatsServer
from penstock.trust.signed import sign_value
from processes import Part

ROUNDS, TURNS, PAUSE = 60, 10, 0.004
PASSING = 10_000
NUMBERS = count()
Ask = Callable[[], Awaitable[object]]


def run() -> list[Result]:
    return asyncio.run(measure())


async def measure() -> list[Result]:
    """Measure in two groups, so that few processes run at once."""
    with ExitStack() as stack, NatsServer() as server:
        results = await paths(server.url, stack)
    for name, sides in (
        ("10,000 objects subscribed / 100", {100: 1, 10_000: 1}),
        ("4 decision points / 1", {0: 1, 1: 4}),
    ):
        with ExitStack() as stack, NatsServer() as server:
            first, second = await compared(server.url, stack, sides)
        detail = f"{first * 1e6:.0f} and {second * 1e6:.0f} µs"
        results.append(at_most(f"decisions: {name}", second / first, 1.2, detail))
    with ExitStack() as stack, NatsServer() as server:
        results.append(await passing(server.url, stack))
    return results


def question(objects: int = 1) -> AccessQuestion:
    """Return a question that was not asked before, about one of so many objects."""
    number = next(NUMBERS)
    return AccessQuestion.of(("user", f"u{number}"), "read", ("object", f"o{number % max(1, objects)}"))


def sizes() -> tuple[int, int]:
    """Return how many bytes a request and an answer have."""
    now, asked = POLICY.changed, question()
    request = AccessRequest(asked, PEP.principal, 2**47, now, 2_000, None)
    answer = AccessAnswer(asked.digest, AnswerEffect.PERMIT, (POLICY,), POINTS[0].principal, now, now)
    return len(sign_value(request, PEP).to_bytes()), len(sign_value(answer, POINTS[0]).to_bytes())


async def paths(url: str, stack: ExitStack) -> list[Result]:
    """Compare the three paths with a plain request."""
    request_size, answer_size = sizes()
    plain, decides = Part(stack, "decisions_parts.py", "raw", url, answer_size), point(stack, url, 0, 0)
    plain.hear()
    address = PointAddress(decides, POINTS[0].principal)
    async with AsyncExitStack() as opened:
        client = await nats.connect(url)
        opened.push_async_callback(client.close)
        body = bytes(request_size - SIGNATURE)

        async def raw() -> None:
            reply = await client.request(SUBJECT, PEP.sign(body) + body, timeout=5)
            POINTS[0].public.verify(reply.data[SIGNATURE:], reply.data[:SIGNATURE])

        asks: dict[str, Ask] = {"raw": raw}
        for path in AskPath:
            fabric = await opened.enter_async_context(await NatsFabric.connect(url, prefix="decisions0"))
            links = await opened.enter_async_context(AnswerLinks(PEP, OWNER.principal, "127.0.0.1"))
            asks[path] = asker(
                await opened.enter_async_context(
                    EnforcementPoint(fabric, PEP, rights(), path=path, links=links, points=[address])
                )
            )
        times = await by_turns(asks)
    detail = ", ".join(f"{name} {value * 1e6:.0f} µs" for name, value in times.items())
    detail += f"; {request_size} and {answer_size} bytes"
    return [
        at_most("decisions: direct / a plain NATS request", times["direct"] / times["raw"], 1.3, detail),
        at_most("decisions: over the fabric / a plain NATS request", times["fabric"] / times["raw"], 2.0, detail),
        observed("decisions: straight back / a plain NATS request", times["straight-back"] / times["raw"], detail),
    ]


async def compared(url: str, stack: ExitStack, sides: Mapping[int, int]) -> list[float]:
    """Return the medians of fabrics, each with a number of points that subscribe to so many objects."""
    async with AsyncExitStack() as opened:
        asks: dict[str, Ask] = {}
        for objects, points in sides.items():
            for number in range(points):
                point(stack, url, number, objects)
            fabric = await opened.enter_async_context(await NatsFabric.connect(url, prefix=f"decisions{objects}"))
            pep = await opened.enter_async_context(EnforcementPoint(fabric, PEP, rights()))
            asks[str(objects)] = asker(pep, objects)
        return [*(await by_turns(asks)).values()]


async def passing(url: str, stack: ExitStack) -> Result:
    """Compare points after many questions, each with its subscription that was ended, with points that are new."""
    asks: dict[str, Ask] = {}
    async with AsyncExitStack() as opened:
        for name, objects in (("aged", 1), ("new", 2)):
            point(stack, url, 0, objects)
            fabric = await opened.enter_async_context(await NatsFabric.connect(url, prefix=f"decisions{objects}"))
            pep = await opened.enter_async_context(EnforcementPoint(fabric, PEP, rights()))
            asks[name] = asker(pep, objects)
            for _ in range(PASSING if name == "aged" else 0):
                await asks[name]()
        times = await by_turns(asks)
    detail = f"{times['new'] * 1e6:.0f} and {times['aged'] * 1e6:.0f} µs, by turns"
    return at_most("decisions: after 10,000 questions / at the beginning", times["aged"] / times["new"], 1.2, detail)


def point(stack: ExitStack, url: str, number: int, objects: int) -> str:
    """Start a decision point, and return its address."""
    part = Part(stack, "decisions_parts.py", "point", url, number, objects)
    return part.hear().split()[1]


def asker(pep: EnforcementPoint, objects: int = 1) -> Ask:
    async def ask() -> None:
        decision = await pep.ask(question(objects))
        if not decision.permits():
            raise RuntimeError("a question was refused")

    return ask


async def timed(ask: Ask) -> float:
    began = time.perf_counter()
    await ask()
    return time.perf_counter() - began


async def by_turns(asks: Mapping[str, Ask]) -> dict[str, float]:
    """Return the median seconds of each."""
    for ask in asks.values():
        for _ in range(ROUNDS):
            await ask()
    times: dict[str, list[float]] = {name: [] for name in asks}
    for _ in range(ROUNDS):
        for name, ask in asks.items():
            for _ in range(TURNS):
                times[name].append(await timed(ask))
                await asyncio.sleep(PAUSE)
    return {name: statistics.median(values) for name, values in times.items()}

"""Authorization components: what decision points cost that filter a request out, and what those cost that answer.

From 1 to 888 decision points join a domain, as in Table 6 of paper 4. All but one decide about other resources, so they
filter the enforcement point out. Its response time and throughput are compared with those in a domain with one decision
point, by turns: within one process, and over NATS and DDS, where the others are whole components in `PROCESSES`
processes. There the turns come in pairs, in changing order, and the median of their ratios counts: what else the
machine does meanwhile concerns both of a pair. The four parts of a response are shown as in the table. Then all
answer, and the time must grow linearly.

Over NATS and DDS, with a process for each component, a decision is compared with signed bytes of the same length that
go the same way and are verified.

Last, a component of the domain attacks the others, `RATE` samples for each second of processor time that the process of
the enforcement point computes, which is a second by the clock where it is never interrupted. Windows with and without
the attack come in pairs, in changing order. What counts are decisions per second of processor time of the honest
components; on the embedded fabric this includes what the attacker's writing costs.
"""

import asyncio
import gc
import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from importlib.util import find_spec
from itertools import count, pairwise
from pathlib import Path

from bench_decisions_hostile import processor_time
from components_parts import (
    DOMAIN,
    LEVELS,
    RAW,
    SIGNATURE,
    Attacker,
    administration,
    connect,
    decision,
    enforcement,
    key_of,
    memory,
    question,
    table,
)
from harness import Result, at_least, at_most, observed
from penstock.authority.components.administration.administration_point import AdministrationComponent
from penstock.authority.components.exchange.samples import (
    ComponentSample,
    DecisionReply,
    DecisionRequest,
    SampleContent,
)
from penstock.authority.components.exchange.topics import TopicKind, qos_of
from penstock.authority.components.exchange.verification import VerifiedSample
from penstock.authority.components.points.component import Component
from penstock.authority.components.points.decision import DecisionComponent
from penstock.authority.components.points.enforcement import EnforcementComponent
from penstock.authority.decisions.decision_point import quiet
from penstock.authority.decisions.messages import AnswerEffect
from penstock.fabric import Fabric, Sample
from penstock.testing.nats import NatsServer
from processes import Part

STEPS = (1, 200, 400, 600, 800, 888)
#: processes for those decision points that filter the enforcement point out
PROCESSES = 4
ROUNDS, TURNS = 20, 20
#: pairs of turns over NATS and DDS
PAIRED = 100
BURST = 64
ALL_ANSWER = (10, 40, 160)
#: hostile samples a second, pairs of windows, seconds of each, and questions that wait at a time
RATE, PAIRS, WINDOW, TOGETHER = 500, 30, 0.2, 8
Ask = Callable[[], Awaitable[object]]
NUMBERS = count()


def run() -> list[Result]:
    results = asyncio.run(embedded()) + asyncio.run(linear())
    with ExitStack() as stack:
        first, second = (stack.enter_context(NatsServer()).url for _ in range(2))
        results += filtered_over("NATS", first, second, stack)
    with ExitStack() as stack, NatsServer() as server:
        results += asyncio.run(trips("NATS", server.url, stack))
    if find_spec("cyclonedds") is not None:
        with ExitStack() as stack:
            results += filtered_over("DDS", dds_address(91), dds_address(92), stack)
        with ExitStack() as stack:
            results += asyncio.run(trips("DDS", dds_address(93), stack))
    return results + attacks()


def dds_address(domain: int) -> str:
    return f"dds://127.0.0.1/{domain}?tag=bench{time.time_ns()}"


def attacks() -> list[Result]:
    results = [asyncio.run(attacked_here())]
    with ExitStack() as stack, NatsServer() as server:
        results.append(asyncio.run(attacked_over_nats(server.url, stack)))
    return results


# ----------------------------------------------------------------------------------------------------------------------
# What is timed.

#: when each part of a response ended
MARKS: list[float] = []


class TimedEnforcement(EnforcementComponent):
    """Marks when its request begins to be written, and when the reply has been verified."""

    async def write(self, kind: TopicKind, record: SampleContent, **named: object) -> ComponentSample:
        if isinstance(record, DecisionRequest):
            MARKS.append(time.perf_counter())
        return await super().write(kind, record, **named)  # type: ignore[arg-type]  # as it was called

    async def received(self, sample: VerifiedSample) -> None:
        MARKS.append(time.perf_counter())
        await super().received(sample)


class TimedDecision(DecisionComponent):
    """Marks when a request has been verified, and when the reply begins to be written."""

    async def received(self, sample: VerifiedSample) -> None:
        if isinstance(sample.record, DecisionRequest):
            MARKS.append(time.perf_counter())
        await super().received(sample)

    async def write(self, kind: TopicKind, record: SampleContent, **named: object) -> ComponentSample:
        if isinstance(record, DecisionReply):
            MARKS.append(time.perf_counter())
        return await super().write(kind, record, **named)  # type: ignore[arg-type]  # as it was called


async def started(processes: ExitStack, role: str, *words: object) -> None:
    """Start a process, and wait in a thread until it is ready: the PAP is in this one."""
    await asyncio.to_thread(Part(processes, "components_parts.py", role, *words).hear)


async def joined(stack: AsyncExitStack, component: Component) -> None:
    """Let a component join; at the end it does not say goodbye, which all others would have to read."""
    await component.join()
    stack.push_async_callback(component.close)


def asks(pep: EnforcementComponent, action: str = "look") -> Ask:
    async def ask() -> None:
        decided = await pep.decide(question(action))
        if decided.effect is not AnswerEffect.PERMIT:
            raise RuntimeError(f"a question was decided otherwise: {decided.effect}")

    return ask


async def timed(ask: Ask) -> float:
    began = time.perf_counter()
    await ask()
    return time.perf_counter() - began


async def by_turns(asked: Mapping[str, Ask], rounds: int = ROUNDS) -> dict[str, float]:
    """Return the median seconds of each."""
    for ask in asked.values():
        for _ in range(TURNS):
            await ask()
    times: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(rounds):
        for name, ask in asked.items():
            for _ in range(TURNS):
                times[name].append(await timed(ask))
    return {name: statistics.median(values) for name, values in times.items()}


async def throughput(asked: Mapping[str, Ask]) -> dict[str, float]:
    """Return the median decisions a second of each, where many questions wait at a time."""
    rates: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(ROUNDS // 2):
        for name, ask in asked.items():
            began = time.perf_counter()
            await asyncio.gather(*(ask() for _ in range(BURST)))
            rates[name].append(BURST / (time.perf_counter() - began))
    return {name: statistics.median(values) for name, values in rates.items()}


# ----------------------------------------------------------------------------------------------------------------------
# Decision points that filter the enforcement point out.


async def embedded() -> list[Result]:
    """Let decision points join a domain in this process, and compare it with a domain that has one."""
    async with AsyncExitStack() as stack:
        fabrics = [await stack.enter_async_context(memory()) for _ in range(2)]
        peps: dict[str, EnforcementComponent] = {}
        for name, fabric in zip(("one", "many"), fabrics, strict=True):
            await stack.enter_async_context(administration(fabric))
            await joined(stack, decision(fabric, of=TimedDecision))
            peps[name] = enforcement(fabric, TimedEnforcement)
            await joined(stack, peps[name])
        rows = []
        present = 1
        for number in STEPS:
            while present < number:
                await joined(stack, decision(fabrics[1], f"pdp{present}", "DR(2)"))
                present += 1
            rows.append((number, *await parts_of(peps["many"])))
        asked = {name: asks(pep) for name, pep in peps.items()}
        gc.collect()
        gc.freeze()  # the other components are in this process only here
        times, rates = await by_turns(asked), await throughput(asked)
        gc.unfreeze()
    shown = "; ".join(
        f"{number}: {' + '.join(f'{part * 1e6:.0f}' for part in parts)} = {sum(parts) * 1e6:.0f} µs"
        for number, *parts in rows
    )
    detail = f"{times['one'] * 1e6:.0f} and {times['many'] * 1e6:.0f} µs"
    rate = f"{rates['one']:.0f} and {rates['many']:.0f} decisions/s"
    first, last = rows[0], rows[-1]
    return [
        at_most("components: response, 888 decision points / 1", times["many"] / times["one"], 1.04, detail),
        at_least("components: throughput, 888 decision points / 1", rates["many"] / rates["one"], 0.87, rate),
        observed("components: Table 6 (request + reply + deciding + rest)", sum(last[1:]) / sum(first[1:]), shown),
    ]


async def parts_of(pep: EnforcementComponent) -> list[float]:
    """Return the medians of the four parts: latencies of request and reply, time to decide, and the rest."""
    ask, parts = asks(pep), []
    for _ in range(ROUNDS * TURNS):
        MARKS.clear()
        whole = await timed(ask)
        request, deciding, reply = (after - before for before, after in pairwise(MARKS[:4]))
        parts.append((request, reply, deciding, whole - request - reply - deciding))
    return [statistics.median(part) for part in zip(*parts, strict=True)]


def filtered_over(name: str, first: str, second: str, processes: ExitStack) -> list[Result]:
    """Compare two domains, one of which has many decision points that filter the enforcement point out."""
    domains: dict[str, Part] = {}
    honest: dict[str, list[int]] = {}
    for many, address in (("one", first), ("many", second)):
        domains[many] = Part(processes, "components_parts.py", "domain", address)
        domains[many].hear()
        point = Part(processes, "components_parts.py", "pdp", address)
        point.hear()
        honest[many] = [domains[many].pid, point.pid]
        domains[many].say("join")
        domains[many].hear()
    others = range(STEPS[-1] - 1)
    ends = [len(others) * part // PROCESSES for part in range(PROCESSES + 1)]
    for part in [Part(processes, "components_parts.py", "loans", second, *ends_) for ends_ in pairwise(ends)]:
        part.hear()

    def in_pairs_of(turns: int, together: int) -> tuple[float, dict[str, float]]:
        """Return the ratio of the seconds for so many questions at a time, many / one, and the median seconds."""
        found: dict[str, list[float]] = {which: [] for which in domains}
        for number in range(PAIRED + 1):
            for which in sorted(domains, reverse=number % 2 == 0):
                before = processor_time(honest[which])
                domains[which].say(turns, together)
                seconds = statistics.median(json.loads(domains[which].hear()))
                if number:  # the first one warms up
                    found[which].append(seconds)
                    computed[which].append((processor_time(honest[which]) - before) / turns / together)
        return _ratio(found), {which: statistics.median(seconds) for which, seconds in found.items()}

    computed: dict[str, list[float]] = {which: [] for which in domains}
    response, times = in_pairs_of(TURNS, 1)
    burst, bursts = in_pairs_of(1, BURST)
    processor = ", ".join(f"{which} {statistics.median(one) * 1e6:.0f} µs" for which, one in computed.items())
    detail = f"{times['one'] * 1e6:.0f} and {times['many'] * 1e6:.0f} µs"
    rate = f"{BURST / bursts['one']:.0f} and {BURST / bursts['many']:.0f} decisions/s"
    return [
        at_most(f"components: response over {name}, 888 decision points / 1", response, 1.04, detail),
        at_least(f"components: throughput over {name}, 888 decision points / 1", 1 / burst, 0.87, rate),
        observed(f"components: processor time over {name}, 888 decision points / 1", _ratio(computed), processor),
    ]


def _ratio(found: Mapping[str, list[float]]) -> float:
    """Return the median ratio of pairs, many / one."""
    return statistics.median(many / one for one, many in zip(found["one"], found["many"], strict=True))


# ----------------------------------------------------------------------------------------------------------------------
# Decision points that all answer.


async def linear() -> list[Result]:
    """Compare the time for one answer of many with that of few."""
    times: dict[int, list[float]] = {number: [] for number in ALL_ANSWER}
    async with AsyncExitStack() as stack:
        asked: dict[int, Ask] = {}
        for number in ALL_ANSWER:
            fabric = await stack.enter_async_context(memory())
            await stack.enter_async_context(administration(fabric, number))
            for place in range(number):
                await joined(stack, decision(fabric, f"pdp{place}"))
            asked[number] = asks(await stack.enter_async_context(enforcement(fabric)))
            await asked[number]()
        for _ in range(ROUNDS):
            for number, ask in asked.items():
                times[number].append(await timed(ask) / number)
    medians = {number: statistics.median(values) for number, values in times.items()}
    detail = ", ".join(f"{number}: {value * 1e6:.0f} µs" for number, value in medians.items())
    few, *_, many = medians.values()
    return [at_most(f"components: an answer of {ALL_ANSWER[-1]} / of {ALL_ANSWER[0]}", many / few, 1.2, detail)]


# ----------------------------------------------------------------------------------------------------------------------
# Against signed bytes that go the same way.


async def trips(name: str, address: str, processes: ExitStack) -> list[Result]:
    """Compare decisions, without and with information, with signed bytes of the same length."""
    async with AsyncExitStack() as stack:
        if name == "DDS":
            from penstock.fabric.dds_keeper import DdsKeeper  # noqa: PLC0415  # it needs an extra

            await stack.enter_async_context(await DdsKeeper.open(address, file=Path(":memory:")))
        fabric = await stack.enter_async_context(await connect(address))
        await stack.enter_async_context(administration(fabric))
        for role in ("pip", "pdp"):
            await started(processes, role, address)
        own = await stack.enter_async_context(await connect(address))
        pep = await stack.enter_async_context(enforcement(own))
        look, withdraw = asks(pep), asks(pep, "withdraw")
        sizes = await sizes_of(fabric, look)
        await started(processes, "raw", address, sizes["DREP_1"])
        raw = await raw_ask(own, sizes["DREQ_1"])
        times = await by_turns({"raw": raw, "decision": look, "with information": withdraw})
    detail = ", ".join(f"{one} {value * 1e6:.0f} µs" for one, value in times.items())
    detail += f"; {sizes['DREQ_1']} and {sizes['DREP_1']} bytes"
    return [
        at_most(f"components: decision over {name} / signed bytes", times["decision"] / times["raw"], 2.0, detail),
        at_most(
            f"components: decision with information over {name} / signed bytes",
            times["with information"] / times["raw"],
            4.0,
            detail,
        ),
    ]


async def sizes_of(fabric: Fabric, ask: Ask) -> dict[str, int]:
    """Return how many bytes a request and a reply have."""
    sizes: dict[str, int] = {}
    readers = [
        await fabric.subscribe(f"{DOMAIN}-{topic}", instances=None, callback=_size(sizes, topic))
        for topic in ("DREQ_1", "DREP_1")
    ]
    while len(sizes) < len(readers):
        await ask()
    for reader in readers:
        await reader.close()
    return sizes


def _size(sizes: dict[str, int], topic: str) -> Callable[[Sample], Awaitable[None]]:
    async def record(sample: Sample) -> None:
        sizes[topic] = len(sample.data)

    return record


async def raw_ask(fabric: Fabric, size: int) -> Ask:
    signs, answers = RAW
    for topic in ("raw-requests", "raw-answers"):
        await fabric.declare(topic, qos_of(TopicKind.DREQ, LEVELS))
    writer, body = await fabric.publisher("raw-requests", instance="raw"), bytes(size - SIGNATURE)
    waiting: dict[str, asyncio.Future[None]] = {}

    async def hear(sample: Sample) -> None:
        answers.public.verify(sample.data[SIGNATURE:], sample.data[:SIGNATURE])
        waiting.pop(sample.key).set_result(None)

    await fabric.subscribe("raw-answers", instances=["raw"], callback=hear)

    async def ask() -> None:
        key = str(next(NUMBERS))
        waiting[key] = answered = asyncio.get_running_loop().create_future()
        await writer.publish(signs.sign(body) + body, key=key)
        await answered

    return ask


# ----------------------------------------------------------------------------------------------------------------------
# A malicious component.

Attack = Callable[[int], Awaitable[None]]


async def attacked_here() -> Result:
    """Measure on the embedded fabric, where all components are in this process."""
    async with AsyncExitStack() as stack:
        fabric = await stack.enter_async_context(memory())
        owner = await stack.enter_async_context(administration(fabric, note=quiet))
        point = decision(fabric, note=quiet)
        await joined(stack, point)
        pep = await ready_to_ask(stack, owner, fabric)
        attacker = Attacker(fabric)
        await attacker.start()
        pairs = await in_pairs(pep, [os.getpid()], attacker.attack)
        return under_attack("on the embedded fabric", pairs, (pep, point, owner))


async def attacked_over_nats(url: str, processes: ExitStack) -> Result:
    """Measure over NATS, where the decision point and the attacker have processes of their own."""
    async with AsyncExitStack() as stack:
        fabric = await stack.enter_async_context(await connect(url))
        owner = await stack.enter_async_context(administration(fabric, note=quiet))
        point = Part(processes, "components_parts.py", "quiet", url)
        await asyncio.to_thread(point.hear)
        pep = await ready_to_ask(stack, owner, await stack.enter_async_context(await connect(url)))
        attacker = Part(processes, "components_parts.py", "attack", url)
        await asyncio.to_thread(attacker.hear)

        async def attack(many: int) -> None:
            attacker.say(many)

        pairs = await in_pairs(pep, [os.getpid(), point.pid], attack)
        return under_attack("over NATS", pairs, (pep, owner))


async def ready_to_ask(stack: AsyncExitStack, owner: AdministrationComponent, fabric: Fabric) -> EnforcementComponent:
    """Return an enforcement point in a domain that has been reconfigured once: the attacker repeats that."""
    pep = enforcement(fabric, note=quiet)
    await joined(stack, pep)
    await owner.base_time(await owner.reconfigure({"DR(1)": table()["DR(1)"]}))
    return pep


async def in_pairs(pep: EnforcementComponent, honest: list[int], attack: Attack) -> list[dict[bool, float]]:
    """Return what a decision costs without and with the attack, pair by pair."""
    await costs(pep, honest, attack, RATE)
    pairs = []
    for number in range(PAIRS):
        order = (number % 2 == 0, number % 2 == 1)
        pairs.append({attacked: await costs(pep, honest, attack, RATE * attacked) for attacked in order})
    return pairs


async def costs(pep: EnforcementComponent, honest: list[int], attack: Attack, rate: float) -> float:
    """Return the seconds of honest processors for a decision. Each must come from the honest decision point.

    Without an attack, the attacker is told as often to write nothing: that costs this process the same.
    """
    honest_point = key_of("pdp").principal
    began, before, decided = time.process_time(), processor_time(honest), 0

    async def ask() -> None:
        nonlocal decided
        while time.process_time() < began + WINDOW:
            found = await pep.decide(question())
            if found.effect is not AnswerEffect.PERMIT or any(one.value.point != honest_point for one in found.answers):
                raise RuntimeError("a decision that no decision point has made")
            decided += 1

    async def strike() -> None:
        sent = 0
        while True:
            due = round((time.process_time() - began) * rate)
            await attack(due - sent)
            sent = due
            await asyncio.sleep(0.002)

    striking = asyncio.ensure_future(strike())
    await asyncio.gather(*(ask() for _ in range(TOGETHER)))
    striking.cancel()
    return (processor_time(honest) - before) / decided


def under_attack(
    where: str, pairs: list[dict[bool, float]], refusing: tuple[Component | AdministrationComponent, ...]
) -> Result:
    peace, war = (statistics.median(pair[side] for pair in pairs) * 1e6 for side in (False, True))
    ratio = statistics.median(pair[False] / pair[True] for pair in pairs)
    refused = sum((one.counts for one in refusing), Counter[str]())
    detail = (
        f"{peace:.0f} and {war:.0f} µs of honest processors for a decision; {RATE} hostile samples/s; {dict(refused)}"
    )
    return at_least(f"components: throughput under attack {where}", ratio, 0.9, detail)

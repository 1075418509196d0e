"""Decision points that fail and are repaired, and how many of an enforcement point's requests fail, in virtual time.

Time is counted in requests, as in paper 3: a point works and fails for times drawn from capped exponential
distributions. A point that has failed is a stopped process: it does not answer, and what it missed is too old when it
goes on. The studied point has all objects that are asked about; each other point has a share of them, drawn for itself.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from contextvars import Context, copy_context
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Final

from penstock.authority.decisions.coverage import Coverage, resources
from penstock.authority.decisions.decision_point import PointDecision, PolicyDecisionPoint
from penstock.authority.decisions.enforcement_point import AskPath, EnforcementPoint, PointAddress
from penstock.authority.decisions.links import LinkReply, TakeMessage
from penstock.authority.decisions.messages import AnswerEffect, PolicyRevision
from penstock.authority.decisions.questions import AccessQuestion
from penstock.authority.decisions.rights import DecisionRights
from penstock.crypto import SigningKey
from penstock.errors import RefusedError
from penstock.fabric import EmbeddedFabric
from penstock.model.principals import Principal
from penstock.policy.language.results import PolicyOutcome, XacmlDecision
from penstock.simulate.experiments.role_policies import RandomRolePolicy
from penstock.simulate.isolation import isolated
from penstock.simulate.loop import VirtualLoop
from penstock.trust.capabilities import DecisionRight, decision_tag
from penstock.trust.certificates import Authorisation, issue
from penstock.trust.credentials import Credentials

#: mean and longest times between failures, and of a repair, in requests
_WORKS, _WORKS_AT_MOST, _FAILS, _FAILS_AT_MOST = 100, 500, 10, 50
#: the share of time that a point works
WORKING: Final = _WORKS / (_WORKS + _FAILS)
#: virtual seconds between two requests, and the time at which the simulation starts
_PAUSE, _START = 0.01, 1_767_225_600.0
_OWNER, _PEP, *_POINTS = (SigningKey(bytes([number]) * 32) for number in range(41, 50))
_POLICY: Final = PolicyRevision("roles", "1", datetime.fromisoformat("2026-01-01T00:00:00+00:00"))


@dataclass(frozen=True, slots=True)
class AvailabilityCase:
    """A number of decision points, the share of the studied point's objects that each other one has, and a seed."""

    points: int
    overlap: float
    seed: int
    requests: int = 5_000
    objects: int = 1_000


def working_times(random: Random, requests: int) -> list[bool]:
    """Return for each request whether a point works."""
    found: list[bool] = []
    works = True
    while len(found) < requests:
        mean, most = (_WORKS, _WORKS_AT_MOST) if works else (_FAILS, _FAILS_AT_MOST)
        found += [works] * max(1, round(min(most, random.expovariate(1 / mean))))
        works = not works
    return found[:requests]


def points_of(case: AvailabilityCase) -> list[tuple[list[str], list[bool]]]:
    """Return the objects of each point, and for each request whether it works; the studied point is the first.

    All cases of one seed have the same failures. Objects that the studied point does not have are not asked about.
    """
    studied = [f"o{number}" for number in range(case.objects)]
    found = []
    for place in range(case.points):
        chance = Random(f"{case.seed} {place} {case.overlap}")  # noqa: S311  # it must be repeatable
        many = round(case.overlap * case.objects) if place else case.objects
        own = [f"p{place}o{number}" for number in range(case.objects - many)]
        works = working_times(Random(f"{case.seed} {place}"), case.requests)  # noqa: S311  # it must be repeatable
        found.append((chance.sample(studied, many) + own, works))
    return found


def failed_requests(case: AvailabilityCase, path: AskPath) -> int:
    """Return how many requests have failed. Point to point, only the studied point is asked."""
    loop = VirtualLoop(case.seed)
    try:
        with isolated():
            return int(loop.run_until_complete(_run(loop, case, path)))
    finally:
        loop.close()


async def _run(loop: VirtualLoop, case: AvailabilityCase, path: AskPath) -> int:
    number = 1 if path is AskPath.DIRECT else case.points
    policy, clock = RandomRolePolicy(case.seed, objects=case.objects), _LoopClock(loop)
    fabric = EmbeddedFabric(clock=clock, random=Random(case.seed).randbytes)  # noqa: S311  # it must be repeatable
    net, rights = _MemoryNet(), _rights()
    points = points_of(case)[:number]
    processes = [loop.process(f"pdp{place}") for place in range(number)]
    failed = 0
    async with AsyncExitStack() as stack:
        for place, (process, (objects, _)) in enumerate(zip(processes, points, strict=True)):
            with loop.within(process):
                links = net.links(_POINTS[place].principal, f"pdp{place}")
                source = _RoleSource(policy, objects)
                point = PolicyDecisionPoint(fabric, _POINTS[place], source, rights=rights, clock=clock, links=links)
                await stack.enter_async_context(point)
        with loop.within(loop.process("pep")):
            pep = await stack.enter_async_context(
                EnforcementPoint(
                    fabric,
                    _PEP,
                    rights,
                    path=path,
                    clock=clock,
                    random=Random(case.seed).randbytes,  # noqa: S311  # it must be repeatable
                    links=net.links(_PEP.principal, "pep"),
                    points=[PointAddress("pdp0", _POINTS[0].principal)],
                )
            )
            for asked, question in zip(range(case.requests), policy.questions(), strict=False):
                for process, (_, works) in zip(processes, points, strict=True):
                    if process.paused is works[asked]:
                        (loop.resume if works[asked] else loop.pause)(process)
                try:
                    await pep.ask(question)
                except RefusedError:
                    failed += 1
                await asyncio.sleep(_PAUSE)
        for process in processes:
            loop.resume(process)
    return failed


def _rights() -> DecisionRights:
    grants = [(point, DecisionRight.DECIDE) for point in _POINTS] + [(_PEP, DecisionRight.ASK)]
    issued = (
        issue(Authorisation(_OWNER.principal, key.principal, decision_tag(_OWNER.principal, rights=[right])), _OWNER)
        for key, right in grants
    )
    return DecisionRights(_OWNER.principal, Credentials.of(*issued))


class _RoleSource:
    """Decides by roles about some objects."""

    def __init__(self, policy: RandomRolePolicy, objects: Sequence[str]) -> None:
        self._policy = policy
        self._coverage = resources(*(("object", name) for name in objects))

    def decide(self, question: AccessQuestion, _now: datetime) -> PointDecision:
        permits = self._policy.effect(question) is AnswerEffect.PERMIT
        return PointDecision(PolicyOutcome(XacmlDecision.PERMIT if permits else XacmlDecision.DENY), (_POLICY,))

    def coverage(self) -> Coverage:
        return self._coverage


class _LoopClock:
    """The loop's time as a clock of fabrics and points."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return _START + self._loop.time()

    def steady(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _MemoryNet:
    """Links between points of one simulation, by address."""

    def __init__(self) -> None:
        self.ends: dict[str, _MemoryLinks] = {}

    def links(self, principal: Principal, address: str) -> "_MemoryLinks":
        """Return the links of a point, which belong to the process that runs."""
        found = self.ends[address] = _MemoryLinks(self, principal, address, copy_context())
        return found


class _MemoryLinks:
    """Links of one point: what is sent arrives in the process of its receiver."""

    def __init__(self, net: _MemoryNet, principal: Principal, address: str, context: Context) -> None:
        self._net, self._context = net, context
        self.principal, self.address = principal, address
        self._take: TakeMessage | None = None

    def listen(self, take: TakeMessage) -> None:
        self._take = take

    def try_send(self, address: str, _principal: Principal, data: bytes) -> bool:
        self._net.ends[address].arrive(self, data)
        return True

    async def send(self, address: str, principal: Principal, data: bytes) -> None:
        self.try_send(address, principal, data)

    def arrive(self, sender: "_MemoryLinks", data: bytes) -> None:
        take = self._take
        if take is not None:
            reply: LinkReply = lambda answer: sender.arrive(self, answer)  # noqa: E731  # a protocol of one call
            asyncio.get_running_loop().call_soon(take, sender.principal, data, reply, context=self._context)

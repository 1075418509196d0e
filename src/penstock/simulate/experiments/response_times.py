"""Response times of decision points in processes of their own, over a NATS server, as paper 3 measures them.

One enforcement point asks one question at a time. Several set-ups take turns within each period of requests, so that
all meet the same noise; each has its own topics and its own decision points.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Final

from penstock.authority.decisions.coverage import Coverage, resources
from penstock.authority.decisions.decision_point import AskRate, PointDecision, PolicyDecisionPoint
from penstock.authority.decisions.enforcement_point import AskPath, EnforcementPoint, PointAddress
from penstock.authority.decisions.messages import AnswerEffect, PolicyRevision, RoleRecycling
from penstock.authority.decisions.policy_feed import PolicyFeed
from penstock.authority.decisions.questions import AccessQuestion
from penstock.authority.decisions.rights import DecisionRights
from penstock.authority.decisions.secondary_point import SecondaryPoint
from penstock.crypto import SigningKey
from penstock.fabric import TopicSubscription
from penstock.policy.language.results import PolicyOutcome, XacmlDecision
from penstock.simulate.experiments.experiment import Laboratory, OpenLinks
from penstock.simulate.experiments.role_policies import RandomRolePolicy
from penstock.trust.capabilities import DecisionRight, decision_tag
from penstock.trust.certificates import Authorisation, issue
from penstock.trust.credentials import Credentials

OWNER, PEP, *POINTS = (SigningKey(bytes([number]) * 32) for number in range(41, 47))
POLICY: Final = PolicyRevision("roles", "1", datetime.fromisoformat("2026-01-01T00:00:00+00:00"))
#: all points decide by this policy
_SEED: Final = 1
#: requests that one set-up makes before the next one has its turn
_TURN: Final = 50
#: requests that do not count, after which all have met each other
_WARM_UP: Final = 50
#: the share of responses that do not count: the slowest ones
_SLOWEST: Final = 0.05
#: seconds until a request has failed: a busy machine must not end the experiment
_TIMEOUT: Final = 30.0
#: seconds for which answers are valid, so that cached ones stay
_LIFETIME: Final = 3_600.0
#: seconds until a cache has received a heartbeat
_HEARTBEAT: Final = 1.5


class Recycling(StrEnum):
    """Which answers an enforcement point reuses."""

    NONE = "none"
    PRECISE = "precise"
    APPROXIMATE = "approximate"


@dataclass(frozen=True, slots=True)
class ResponseSetup:
    """An enforcement point with decision points: how they talk, what these subscribe to, and how long they take."""

    name: str
    path: AskPath = AskPath.FABRIC
    points: int = 1
    objects: int = 1_000
    #: milliseconds that a decision takes in addition
    delay: int = 0
    recycling: Recycling = Recycling.NONE
    unsubscribes: bool = True
    #: milliseconds after each request, in which points that were not first finish, as on machines of their own
    pause: int = 0

    def policy(self) -> RandomRolePolicy:
        """Return the policy of all points."""
        return RandomRolePolicy(_SEED, objects=self.objects)


def decision_rights() -> DecisionRights:
    """Return rights by which all points may decide, and the enforcement point may ask."""
    grants = [(point, DecisionRight.DECIDE) for point in POINTS] + [(PEP, DecisionRight.ASK)]
    issued = (
        issue(Authorisation(OWNER.principal, key.principal, decision_tag(OWNER.principal, rights=[right])), OWNER)
        for key, right in grants
    )
    return DecisionRights(OWNER.principal, Credentials.of(*issued))


# ----------------------------------------------------------------------------------------------------------------------
# A decision point, in a process of its own.


class _SlowRoles:
    """Decides by roles, takes some time for it, and subscribes to each object."""

    def __init__(self, policy: RandomRolePolicy, delay: float, recycling: Recycling) -> None:
        self._policy, self._delay = policy, delay
        self._recycling = RoleRecycling("roles") if recycling is Recycling.APPROXIMATE else None
        self._coverage = resources(*(("object", name) for name in policy.objects))

    def decide(self, question: AccessQuestion, _now: datetime) -> PointDecision:
        if self._delay:
            time.sleep(self._delay)
        permits = self._policy.effect(question) is AnswerEffect.PERMIT
        outcome = PolicyOutcome(XacmlDecision.PERMIT if permits else XacmlDecision.DENY)
        return PointDecision(outcome, (POLICY,), recycling=self._recycling)

    def coverage(self) -> Coverage:
        return self._coverage


async def serve_point(links: OpenLinks, url: str, prefix: str, words: Sequence[str]) -> None:
    """Run a decision point until standard input ends: its number, objects, delay and recycling follow."""
    from penstock.fabric.nats import NatsFabric  # noqa: PLC0415  # an extra

    number, objects, delay, recycling = int(words[0]), int(words[1]), int(words[2]), Recycling(words[3])
    source = _SlowRoles(RandomRolePolicy(_SEED, objects=objects), delay / 1_000, recycling)
    key = POINTS[number]
    async with (
        await NatsFabric.connect(url, prefix=prefix) as fabric,
        links(key, OWNER.principal) as linked,
        PolicyDecisionPoint(
            fabric,
            key,
            source,
            rights=decision_rights(),
            links=linked,
            lifetime=_LIFETIME,
            rate=AskRate(100_000, 100_000),
        ),
        PolicyFeed(fabric, key, [POLICY]),
    ):
        print("ready", linked.address, flush=True)  # noqa: T201  # for the process that started this one
        await asyncio.to_thread(sys.stdin.read)


# ----------------------------------------------------------------------------------------------------------------------
# The enforcement point, in this process.


class _NeverUnsubscribing(EnforcementPoint):
    """Stays subscribed to every answer, for comparison only."""

    async def _unsubscribe(self, reading: TopicSubscription, digest: bytes) -> None:
        """Do nothing."""


Ask = Callable[[AccessQuestion], Awaitable[object]]


def trimmed_mean(times: Sequence[float]) -> float:
    """Return the mean without the slowest times, in which something else had the processor.

    >>> trimmed_mean([1.0] * 19 + [50.0])
    1.0
    """
    return statistics.mean(sorted(times)[: len(times) - round(_SLOWEST * len(times))])


def mean_responses(
    lab: Laboratory, setups: Sequence[ResponseSetup], requests: int, period: int, *, together: bool = False
) -> dict[str, list[float]]:
    """Return the mean response times in seconds for each period of requests, by the names of the set-ups.

    `together` lets all set-ups ask at the same time: where decisions take long, processors wait anyway.
    """
    from penstock.testing.nats import NatsServer  # noqa: PLC0415  # only timed figures need a server

    with ExitStack() as stack:
        server = stack.enter_context(NatsServer())
        addresses = [_start_points(lab, stack, server.url, place, setup) for place, setup in enumerate(setups)]
        both = [*zip(setups, addresses, strict=True)]
        return asyncio.run(_measure(lab, server.url, both, requests=requests, period=period, together=together))


def _start_points(lab: Laboratory, stack: ExitStack, url: str, place: int, setup: ResponseSetup) -> str:
    """Start the decision points of a set-up, and return the address of the first one."""
    words = (setup.objects, setup.delay, setup.recycling)
    parts = [lab.part(stack, "point", url, f"x{place}", number, *words) for number in range(setup.points)]
    addresses = [part.hear().split()[1] for part in parts]
    return addresses[0]


async def _measure(  # noqa: PLR0913  # what `mean_responses` has
    lab: Laboratory,
    url: str,
    setups: Sequence[tuple[ResponseSetup, str]],
    *,
    requests: int,
    period: int,
    together: bool,
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {setup.name: [] for setup, _ in setups}
    async with AsyncExitStack() as stack:
        asks = {
            setup.name: (
                await _opened(stack, lab, url, setup, prefix=f"x{place}", address=address),
                setup.policy().questions(),
                setup.pause / 1_000,
            )
            for place, (setup, address) in enumerate(setups)
        }
        if any(setup.recycling is not Recycling.NONE for setup, _ in setups):
            await asyncio.sleep(_HEARTBEAT)
        for _ in lab.each(range(requests // period)):
            times: dict[str, list[float]] = {name: [] for name in asks}
            for turn in range(0, period, _TURN):
                many = min(_TURN, period - turn)
                jobs = [_ask_some(*how, many, times[name]) for name, how in asks.items()]
                if together:
                    await asyncio.gather(*jobs)
                else:
                    for job in jobs:
                        await job
            for name, taken in times.items():
                found[name].append(trimmed_mean(taken))
    return found


async def _opened(  # noqa: PLR0913  # what a set-up needs
    stack: AsyncExitStack, lab: Laboratory, url: str, setup: ResponseSetup, *, prefix: str, address: str
) -> Ask:
    """Open the enforcement point of a set-up, and return how it is asked."""
    from penstock.fabric.nats import NatsFabric  # noqa: PLC0415  # an extra

    fabric = await stack.enter_async_context(await NatsFabric.connect(url, prefix=prefix))
    links = await stack.enter_async_context(lab.links(PEP, OWNER.principal))
    rights, secondary = decision_rights(), None
    if setup.recycling is not Recycling.NONE:
        secondary = await stack.enter_async_context(SecondaryPoint(fabric, PEP, rights.may_decide, None))
    kind = EnforcementPoint if setup.unsubscribes else _NeverUnsubscribing
    pep = await stack.enter_async_context(
        kind(
            fabric,
            PEP,
            rights,
            path=setup.path,
            links=links,
            points=[PointAddress(address, POINTS[0].principal)],
            secondary=secondary,
            timeout=_TIMEOUT,
        )
    )
    for number in range(_WARM_UP):
        # About subjects that the policy does not have, so that nothing can be reused.
        await pep.ask(AccessQuestion.of(("user", f"warm{number}"), "read", ("object", "o0")))
    return pep.ask


async def _ask_some(ask: Ask, questions: Iterator[AccessQuestion], pause: float, many: int, times: list[float]) -> None:
    for question in islice(questions, many):
        began = time.perf_counter()
        await ask(question)
        times.append(time.perf_counter() - began)
        if pause:
            await asyncio.sleep(pause)

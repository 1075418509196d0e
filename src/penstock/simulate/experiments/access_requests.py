"""The response time of an access request and its parts, as Table 6 of paper 4 has them, with many decision points.

One enforcement point asks about accounts. One decision point decides about them, and all others about something else.
The same components run in virtual time and on this machine.
"""

import statistics
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeVar

from penstock.authority.components.administration.administration_point import AdministrationComponent
from penstock.authority.components.exchange.samples import (
    ComponentSample,
    DecisionReply,
    DecisionRequest,
    SampleContent,
)
from penstock.authority.components.exchange.topics import ComponentKind, TopicKind
from penstock.authority.components.exchange.verification import VerifiedSample
from penstock.authority.components.points.decision import DecisionComponent
from penstock.authority.components.points.enforcement import EnforcementComponent
from penstock.authority.decisions.messages import AnswerEffect
from penstock.authority.decisions.questions import AccessQuestion
from penstock.fabric import EmbeddedFabric, Fabric, FileKeeper
from penstock.simulate.experiments.component_domain import (
    DomainSize,
    administration_settings,
    component_key,
    component_settings,
)
from penstock.simulate.network import Conditions, Latency
from penstock.simulate.simulation import Simulation

_T = TypeVar("_T")
_QUESTION = AccessQuestion.of(("user", "alice"), "look", ("sort1", "7"))


@dataclass(frozen=True, slots=True)
class RequestParts:
    """The parts of a response time in seconds: latencies of request and reply, time to decide, and the rest."""

    request: float
    reply: float
    deciding: float
    rest: float

    @property
    def whole(self) -> float:
        """The response time."""
        return self.request + self.reply + self.deciding + self.rest


class Surroundings(Protocol):
    """Where components run: in virtual time, or on this machine."""

    def fabric(self, process: str) -> Fabric:
        """Return the fabric as a process sees it."""
        ...

    def around(self, process: str) -> dict[str, Any]:
        """Return the clock and the random source of a process, if they are not this machine's."""
        ...

    async def within(self, process: str, work: Coroutine[Any, Any, _T]) -> _T:
        """Do some work in a process."""
        ...

    def timer(self) -> float:
        """Return seconds."""
        ...


class RealSurroundings:
    """This machine: one fabric, and all components in this process."""

    def __init__(self) -> None:
        self._fabric = EmbeddedFabric(keeper=FileKeeper(Path(":memory:")))

    def fabric(self, _process: str) -> Fabric:
        """Return the fabric."""
        return self._fabric

    def around(self, _process: str) -> dict[str, Any]:
        """Return nothing: the system's clock and random source are used."""
        return {}

    async def within(self, _process: str, work: Coroutine[Any, Any, _T]) -> _T:
        """Do some work."""
        return await work

    def timer(self) -> float:
        """Return seconds of this machine."""
        return time.perf_counter()


class SimulatedSurroundings:
    """A simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def latency(self, seconds: float) -> None:
        """Let a sample take so long, one half of it to the fabric, and the other one from there."""
        self._simulation.network.set_all(Conditions(Latency(seconds / 2, seconds / 2)))

    def fabric(self, process: str) -> Fabric:
        """Return the fabric across the network."""
        return self._simulation.fabric(process)

    def around(self, process: str) -> dict[str, Any]:
        """Return what comes from the seed."""
        return {"clock": self._simulation.clock(process), "random": self._simulation.random(process).randbytes}

    async def within(self, process: str, work: Coroutine[Any, Any, _T]) -> _T:
        """Do some work in a simulated process."""
        return await self._simulation.start(process, work)

    def timer(self) -> float:
        """Return virtual seconds."""
        return self._simulation.time


class _TimedEnforcement(EnforcementComponent):
    """Marks when its request begins to be written, and when the reply has been verified."""

    def __init__(self, *args: Any, mark: Callable[[], None], **named: Any) -> None:
        super().__init__(*args, **named)
        self._mark = mark

    async def write(self, kind: TopicKind, record: SampleContent, **named: Any) -> ComponentSample:
        if isinstance(record, DecisionRequest):
            self._mark()
        return await super().write(kind, record, **named)

    async def received(self, sample: VerifiedSample) -> None:
        self._mark()
        await super().received(sample)


class _TimedDecision(DecisionComponent):
    """Marks when a request has been verified, and when the reply begins to be written."""

    def __init__(self, *args: Any, mark: Callable[[], None], **named: Any) -> None:
        super().__init__(*args, **named)
        self._mark = mark

    async def received(self, sample: VerifiedSample) -> None:
        if isinstance(sample.record, DecisionRequest):
            self._mark()
        await super().received(sample)

    async def write(self, kind: TopicKind, record: SampleContent, **named: Any) -> ComponentSample:
        if isinstance(record, DecisionReply):
            self._mark()
        return await super().write(kind, record, **named)


class RequestDomain:
    """A domain with one enforcement point, and as many decision points as there shall be."""

    def __init__(self, place: Surroundings, most: int) -> None:
        self._place, self._most = place, most
        self._size = DomainSize((1, most, 0, 0), (1, 2, 0, 0), rejected=0, left=0, groups=1)
        self._marks: list[float] = []
        self._points = 0
        self._pep: EnforcementComponent | None = None

    async def start(self, stack: AsyncExitStack) -> None:
        """Start the PAP, the decision point that decides, and the enforcement point."""
        place = self._place
        settings = administration_settings(
            self._size,
            [("pep0", ComponentKind.PEP, 1), *((f"pdp{n}", ComponentKind.PDP, _role_of(n)) for n in range(self._most))],
        )
        pap = AdministrationComponent(place.fabric("pap"), component_key("pap"), settings, **place.around("pap"))
        await place.within("pap", pap.join())
        stack.push_async_callback(pap.close)
        await self.grow(stack, 1)
        self._pep = _TimedEnforcement(
            place.fabric("pep0"),
            component_key("pep0"),
            component_settings("pep0", ComponentKind.PEP, 1),
            actions=frozenset({"sort1/*"}),
            mark=self._mark,
            **place.around("pep0"),
        )
        await place.within("pep0", self._pep.join())
        stack.push_async_callback(self._pep.close)

    async def grow(self, stack: AsyncExitStack, points: int) -> None:
        """Let decision points join until there are so many. At the end they do not say goodbye."""
        for number in range(self._points, points):
            name = f"pdp{number}"
            settings = component_settings(name, ComponentKind.PDP, _role_of(number))
            point = _TimedDecision(
                self._place.fabric(name), component_key(name), settings, mark=self._mark, **self._place.around(name)
            )
            await self._place.within(name, point.join())
            stack.push_async_callback(point.close)
        self._points = max(self._points, points)

    async def ask(self) -> RequestParts:
        """Ask once, and return the parts of the response time."""
        self._marks.clear()
        whole = await self._place.within("pep0", self._asked())
        request, deciding, reply = (after - before for before, after in pairwise(self._marks[:4]))
        return RequestParts(request, reply, deciding, whole - request - reply - deciding)

    async def _asked(self) -> float:
        if self._pep is None:
            raise ValueError("the domain has not started")
        began = self._place.timer()
        decided = await self._pep.decide(_QUESTION)
        if decided.effect not in (AnswerEffect.PERMIT, AnswerEffect.DENY):
            raise ValueError(f"a question was not decided: {decided.effect}")
        return self._place.timer() - began

    def _mark(self) -> None:
        self._marks.append(self._place.timer())


def _role_of(point: int) -> int:
    """Return the role of a decision point: the first one decides about what is asked."""
    return 1 if point == 0 else 2


def middle(parts: Sequence[RequestParts]) -> RequestParts:
    """Return the median of each part."""
    columns: Iterator[tuple[float, ...]] = zip(
        *((one.request, one.reply, one.deciding, one.rest) for one in parts), strict=True
    )
    return RequestParts(*(statistics.median(column) for column in columns))

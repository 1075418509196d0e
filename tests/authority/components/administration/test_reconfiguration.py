"""Reconfigurations under load lose no request, and mix no old and new configuration in one decision.

Which configuration serves a request is compared with a model that knows all times. Then components ask and answer while
they are reconfigured, each slow in its own way, and a fault that is planted on purpose is found.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.authority.components.kit import (
    PAP_KEY,
    SECOND_PAP_KEY,
    TABLE,
    administration,
    key_of,
    memory_fabric,
    pap,
)
from tests.budget import examples

from penstock.authority.components.exchange.samples import (
    Configuration,
    DecisionReply,
    DecisionRequest,
    Reconfiguration,
    RoleConfiguration,
    SampleRevision,
)
from penstock.authority.components.exchange.topics import ComponentKind, TopicKind
from penstock.authority.components.exchange.verification import VerifiedSample
from penstock.authority.components.points.component import Component, ComponentSettings
from penstock.authority.components.points.configurations import ConfigurationTimeline
from penstock.authority.decisions.messages import AnswerEffect
from penstock.authority.decisions.questions import AccessQuestion
from penstock.errors import PenstockError, RefusedError
from penstock.testing.fabric_suite import ManualClock

LIFESPAN: Final = 5.0
QUESTION: Final = AccessQuestion.of(("user", "alice"), "read", ("document", "report-7"))


# ----------------------------------------------------------------------------------------------------------------------
# Which configuration serves a request.


def first() -> ConfigurationTimeline:
    return ConfigurationTimeline(Configuration("bank", "pdp1", 1, b"rc", lifespan=LIFESPAN), "DR(1)")


def changed(number: int, expected: float) -> Reconfiguration:
    row = RoleConfiguration("PDP", (), (), {"policy": str(number)})
    return Reconfiguration(number, expected, {"DR(1)": row})


times = st.integers(0, 40).map(lambda tenths: tenths / 10)


@given(st.tuples(times, times, times, times), st.booleans(), st.sampled_from([1, 2, 3]))
def test_the_configuration_of_a_request(
    moments: tuple[float, float, float, float], base_known: bool, number: int
) -> None:
    """The model: what was sent until the base time is old, and only what is certain is served before it is known."""
    expected, slowness, base, sent = moments
    applied = expected + slowness
    base = min(max(base, expected), applied)
    timeline = first()
    old = timeline.current
    assert timeline.plan(changed(2, expected))
    # Before: a request of the number in force waits if it was sent after the expected time.
    assert timeline.serving(1, sent) is (None if sent > expected else old)
    assert timeline.serving(2, sent) is None
    timeline.apply(applied)
    if base_known:
        timeline.base(2, base)
    if number == 3:
        assert timeline.serving(3, sent) is None
    elif number == 2:
        assert timeline.serving(2, sent) is timeline.current
        assert timeline.current.combining == {"policy": "2"}
    else:
        certainly_old = sent <= (base if base_known else expected)
        certainly_new = sent > (base if base_known else applied)
        if certainly_new:
            with pytest.raises(RefusedError, match=r"component\.old-configuration"):
                timeline.serving(1, sent)
        else:
            assert timeline.serving(1, sent) is (old if certainly_old else None)
    # No request of before is valid when the old configuration is dropped.
    timeline.forget(applied + LIFESPAN)
    assert timeline.kept(1) is old
    timeline.forget(applied + LIFESPAN + 0.1)
    assert timeline.kept(1) is None


def test_nothing_is_applied_before_its_expected_time() -> None:
    timeline = first()
    with pytest.raises(ValueError, match="yet"):
        timeline.apply(9.0)
    timeline.plan(changed(2, 10.0))
    with pytest.raises(ValueError, match="yet"):
        timeline.apply(9.9)
    timeline.apply(10.0)
    assert timeline.number == 2


def test_reconfigurations_are_applied_in_order_each_once() -> None:
    timeline = first()
    assert timeline.plan(changed(3, 1.0))
    assert timeline.pending is None
    assert timeline.plan(changed(2, 2.0))
    assert not timeline.plan(changed(2, 2.0))
    for wrong in (changed(2, 2.5), changed(1, 9.0)):
        with pytest.raises(RefusedError, match=r"component\.reconfiguration"):
            timeline.plan(wrong)
    timeline.apply(2.0)
    timeline.apply(2.0)
    assert timeline.number == 3
    with pytest.raises(RefusedError, match=r"component\.reconfiguration"):
        timeline.plan(changed(3, 1.0))
    for number in range(4, 68):
        timeline.plan(changed(number, 9.0))
    with pytest.raises(RefusedError, match=r"component\.reconfiguration"):
        timeline.plan(changed(68, 9.0))


# ----------------------------------------------------------------------------------------------------------------------
# Under load.


class Slow(Component):
    """A component that takes its time to prepare a configuration."""

    seconds = 0.0

    async def prepare(self, _configuration: Configuration) -> None:
        """Be slow."""
        await self._clock.sleep(self.seconds)


class Asker(Slow):
    """A PEP that waits for the replies of all PDPs under the number of its request."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        #: by request: the number under which it was asked, and the versions that PDPs decided by
        self.asked: dict[int, int] = {}
        self.replies: dict[int, dict[str, tuple[int, str]]] = {}

    async def ask(self) -> None:
        """Ask once."""
        number = self.next_number()
        self.replies[number] = {}
        self.asked[number] = 0
        sample = await self.write(TopicKind.DREQ, DecisionRequest.of(QUESTION), number=number)
        if number in self.asked:
            self.asked[number] = sample.configuration

    async def superseded(self, numbers: list[int]) -> None:
        """Ask again."""
        for number in numbers:
            if len(self.replies[number]) < 2:
                del self.asked[number], self.replies[number]
                await self.ask()

    async def received(self, sample: VerifiedSample) -> None:
        """Record a reply."""
        reply = sample.record
        assert isinstance(reply, DecisionReply)
        if reply.number in self.replies:
            self.replies[reply.number][sample.writer.id] = (sample.written_under, reply.rests_on[0].revision)


class Answerer(Slow):
    """A PDP that answers slowly, and says which version it decided by. With a fault, by the one in force then."""

    def __init__(self, *args: Any, answers_after: float, fault: bool, **named: Any) -> None:
        super().__init__(*args, **named)
        self._after, self._fault = answers_after, fault

    async def received(self, sample: VerifiedSample) -> None:
        """Answer in the background."""
        self._begin(f"answer {sample.number}", self._answer(sample))

    async def _answer(self, sample: VerifiedSample) -> None:
        await self._clock.sleep(self._after)
        configuration = self.configuration if self._fault else sample.configuration
        assert configuration is not None
        version = SampleRevision("version", configuration.combining.get("policy", "1"), 1.0)
        reply = DecisionReply("bank", "pep1", sample.number, QUESTION.digest, AnswerEffect.PERMIT, (version,))
        await self.write(TopicKind.DREP, reply, under=sample)


@dataclass
class Load:
    """How slow everybody is, and what happens when, in seconds from the beginning."""

    prepares: tuple[float, float, float] = (0.0, 0.0, 0.0)
    answers: tuple[float, float] = (0.3, 0.1)
    asks: list[float] = field(default_factory=lambda: [0.5, 0.9, 1.0, 1.1, 1.5, 2.0])
    reconfigurations: list[tuple[float, float]] = field(default_factory=lambda: [(0.2, 0.8)])
    fault: bool = False


async def play(load: Load) -> tuple[Asker, list[PenstockError]]:
    """Run a domain under a load, and return what the PEP has seen."""
    clock = ManualClock()
    notes: list[PenstockError] = []
    fabric = memory_fabric(clock)
    names = (("pep1", "ER(1)"), ("pdp1", "DR(1)"), ("pdp2", "DR(1)"))

    def of(name: str, kind: ComponentKind, role: str) -> ComponentSettings:
        administrators = frozenset({PAP_KEY.principal, SECOND_PAP_KEY.principal})
        return ComponentSettings(domain="bank", id=name, kind=kind, role=role, administrators=administrators)

    common: dict[str, Any] = {"clock": clock, "note": notes.append}
    async with fabric, pap(fabric, administration(*names), clock, note=notes.append) as administration_point:
        pep = Asker(fabric, key_of("pep1"), of("pep1", ComponentKind.PEP, "ER(1)"), **common)
        pdps = [
            Answerer(
                fabric, key_of(name), of(name, ComponentKind.PDP, "DR(1)"),
                answers_after=after, fault=load.fault, **common,
            )
            for name, after in zip(("pdp1", "pdp2"), load.answers, strict=True)
        ]  # fmt: skip
        for component in (*pdps, pep):
            joining = asyncio.ensure_future(component.join())
            while not joining.done():
                await clock.advance(0)
            await joining
        slow: Slow
        for slow, seconds in zip((pep, *pdps), load.prepares, strict=True):
            slow.seconds = seconds
        begun = clock.now()
        version = 1
        events = sorted([*((at, None) for at in load.asks), *load.reconfigurations], key=lambda event: event[0])
        asking = []
        for at, notice in events:
            await clock.advance(max(0.0, begun + at - clock.now()))
            if notice is None:
                asking.append(asyncio.ensure_future(pep.ask()))
            else:
                version += 1
                row = {"policy": str(version)}
                await administration_point.reconfigure(
                    {
                        role: msgspec.structs.replace(TABLE[role], combining={"decision": "all", **row})
                        for role in ("DR(1)", "ER(1)")
                    },
                    expected=clock.now() + notice,
                )
            await clock.advance(0)
        for _ in range(40):
            await clock.advance(0.25)
        await asyncio.gather(*asking)
        for component in (pep, *pdps):
            await component.close()
    return pep, notes


def check(pep: Asker, load: Load) -> None:
    """Check that no request was lost, and that each was decided by one configuration: that of its number."""
    assert len(pep.replies) == len(load.asks)
    for number, replies in pep.replies.items():
        assert replies.keys() == {"pdp1", "pdp2"}, "a request was lost"
        under = pep.asked[number]
        assert set(replies.values()) == {(under, str(under))}, "configurations were mixed"


delays = st.sampled_from([0.0, 0.1, 0.3, 0.7, 1.3])
loads = st.builds(
    Load,
    st.tuples(delays, delays, delays),
    st.tuples(delays, delays),
    st.lists(st.integers(0, 40).map(lambda tenths: tenths / 10), min_size=1, max_size=8, unique=True),
    st.lists(
        st.tuples(st.integers(1, 12).map(lambda quarters: quarters / 4), st.sampled_from([-0.3, 0.0, 0.3, 0.8, 1.5])),
        min_size=1,
        max_size=3,
        unique_by=lambda one: one[0],
    ),
)


@settings(max_examples=examples(40))
@example(Load((0.0, 0.0, 0.0), (0.0, 0.7), [0.8], [(0.25, 0.8), (1.0, -0.3), (0.75, -0.3)]))
@given(loads)
def test_a_reconfiguration_under_load_loses_no_request_and_mixes_nothing(load: Load) -> None:
    pep, notes = asyncio.run(play(load))
    check(pep, load)
    assert {error.code for error in notes} <= {"component.old-configuration"}


def test_a_component_that_mixes_configurations_is_found() -> None:
    load = Load(fault=True)
    pep, _ = asyncio.run(play(load))
    with pytest.raises(AssertionError, match="mixed"):
        check(pep, load)
    load = Load()
    pep, _ = asyncio.run(play(load))
    check(pep, load)

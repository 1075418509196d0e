"""A shared cache answers with the decision point's signature, and a secondary point answers without asking."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from tests.authority.decisions.kit import (
    NOW,
    OTHER,
    OWNER,
    PDP,
    PEP,
    POLICY,
    Policies,
    each_fabric,
    grant,
    opened_fabric,
    rights_of,
)
from tests.authority.failing import leaves_nothing

from penstock.authority.decisions.decision_point import TOPICS, PolicyDecisionPoint
from penstock.authority.decisions.enforcement_point import EnforcementPoint
from penstock.authority.decisions.messages import AccessAnswer, AnswerEffect, PolicyRevision
from penstock.authority.decisions.modes import AnswerMode
from penstock.authority.decisions.policy_feed import PolicyFeed
from penstock.authority.decisions.questions import AccessQuestion
from penstock.authority.decisions.secondary_point import RecycledLog, SecondaryPoint, SecondarySettings
from penstock.authority.decisions.shared_cache import SharedCache
from penstock.crypto import SigningKey
from penstock.fabric import EmbeddedFabric, Fabric
from penstock.policy.combining import DecisionTuple
from penstock.policy.language.results import XacmlDecision
from penstock.store.files.appended_lines import AppendedLines
from penstock.testing.fabric_suite import ManualClock, refused, until
from penstock.trust.capabilities import DecisionRight
from penstock.trust.signed import sign_value

CACHE = SigningKey(b"c" * 32)
RIGHTS = rights_of(grant(PDP), grant(PEP, DecisionRight.ASK), grant(OTHER, DecisionRight.ASK))
PERMIT, DENY = AnswerEffect.PERMIT, AnswerEffect.DENY


def asked(item: str = "report-7") -> AccessQuestion:
    return AccessQuestion.of(("user", "alice"), "read", ("document", item))


class Scene:
    """A decision point with its feed, an enforcement point, and what a test adds."""

    def __init__(self, stack: AsyncExitStack, fabric: Fabric, clock: ManualClock, path: Path) -> None:
        self.stack, self.fabric, self.clock, self.path = stack, fabric, clock, path
        self.settings = SecondarySettings(clock=clock, steady=clock.now)
        self.policies = Policies(XacmlDecision.PERMIT)
        self.point = PolicyDecisionPoint(fabric, PDP, self.policies, rights=RIGHTS, clock=clock, lifetime=600)
        self.feed = PolicyFeed(fabric, PDP, [POLICY], clock=clock)

    async def pep(self, key: SigningKey = PEP, secondary: SecondaryPoint | None = None) -> EnforcementPoint:
        made = EnforcementPoint(self.fabric, key, RIGHTS, clock=self.clock, secondary=secondary)
        return await self.stack.enter_async_context(made)

    async def change(self, effect: XacmlDecision) -> None:
        """Let the point decide otherwise."""
        newer = PolicyRevision(POLICY.id, f"{POLICY.revision}+", NOW)
        await self.feed.replace([newer])
        self.policies = Policies(effect, newer)
        await self.point.replace(self.policies)


def scene(test: Callable[[Scene], Awaitable[None]]) -> Callable[[Path, str, pytest.FixtureRequest], None]:
    @each_fabric
    def run(tmp_path: Path, over: str, request: pytest.FixtureRequest) -> None:
        async def whole() -> None:
            clock = ManualClock(NOW.timestamp())
            opened = opened_fabric(over, request, clock)
            async with asyncio.timeout(60), opened as fabric, AsyncExitStack() as stack:
                made = Scene(stack, fabric, clock, tmp_path)
                await stack.enter_async_context(made.point)
                await stack.enter_async_context(made.feed)
                await test(made)

        asyncio.run(whole())

    return run


async def warm(made: Scene, pep: EnforcementPoint, cache: SharedCache) -> None:
    """Let the cache follow the point and keep an answer."""
    await pep.ask(asked("first"))
    await until(lambda: cache.updated.counts["not-learnt"] > 0)
    await made.feed.heartbeat()
    await until(lambda: cache.updated.counts["join"] > 0)
    await pep.ask(asked())
    await until(lambda: cache.updated.counts["learnt"] > 0)


@scene
async def test_another_enforcement_point_gets_the_original_answer(made: Scene) -> None:
    cache = await made.stack.enter_async_context(SharedCache(made.fabric, CACHE, RIGHTS, settings=made.settings))
    await warm(made, await made.pep(), cache)
    await made.point.close()
    decision = await (await made.pep(OTHER)).ask(asked())
    assert decision.effect is PERMIT
    assert [answer.value.point for answer in decision.answers] == [PDP.principal]
    assert cache.counts["hits"] == 1
    assert len(made.policies.asked) == 2


@scene
async def test_a_shared_cache_drops_what_an_update_affects(made: Scene) -> None:
    cache = await made.stack.enter_async_context(SharedCache(made.fabric, CACHE, RIGHTS, settings=made.settings))
    pep = await made.pep()
    await warm(made, pep, cache)
    await made.change(XacmlDecision.DENY)
    await until(lambda: len(cache.updated.cache) == 0)
    assert (await pep.ask(asked())).effect is DENY


@scene
async def test_a_shared_cache_that_is_cut_off_stops(made: Scene) -> None:
    cache = await made.stack.enter_async_context(SharedCache(made.fabric, CACHE, RIGHTS, settings=made.settings))
    await warm(made, await made.pep(), cache)
    await made.feed.__aexit__()
    await made.clock.advance(6)
    before = len(made.policies.asked)
    other = await made.pep(OTHER)
    assert (await other.ask(asked())).effect is PERMIT
    assert (cache.counts["hits"], len(made.policies.asked)) == (0, before + 1)


@scene
async def test_junk_and_forged_answers_are_not_learnt(made: Scene) -> None:
    cache = await made.stack.enter_async_context(SharedCache(made.fabric, CACHE, RIGHTS, settings=made.settings))
    await warm(made, await made.pep(), cache)
    said = cache._kept[asked().digest][0]

    def signed(answer: AccessAnswer, key: SigningKey) -> bytes:
        return sign_value(answer, key).to_bytes()

    denied = sign_value(replace(said, effect=DENY), PDP)
    forged = replace(denied, signature=bytes(64)).to_bytes()
    unasked = signed(replace(said, question=bytes(32)), PDP)
    other = signed(replace(said, point=OTHER.principal), OTHER)
    writer = await made.fabric.publisher(TOPICS.answers)
    for _ in range(30):
        for data in (b"junk", forged, unasked, other):
            await writer.publish(data, key="x")
    counts = cache.counts
    names = ("malformed-answers", "forged-answers", "unwanted", "unauthorized-answers")
    await until(lambda: sum(counts[name] for name in names) >= 120)
    # Of the answers to one request only so many are verified.
    assert (counts["malformed-answers"], counts["forged-answers"]) == (30, 15)
    assert cache._kept[asked().digest][0] == said


@scene
async def test_questions_that_are_remembered_are_bounded(made: Scene) -> None:
    limits = made.settings.limits.__class__(recycling_entries=8)
    settings = SecondarySettings(clock=made.clock, steady=made.clock.now, limits=limits)
    cache = await made.stack.enter_async_context(SharedCache(made.fabric, CACHE, RIGHTS, settings=settings))
    pep = await made.pep()
    await warm(made, pep, cache)
    for number in range(80):
        await pep.ask(asked(f"item-{number}"))
    await until(lambda: cache.updated.counts["learnt"] >= 60)
    assert len(cache._asked) <= 8
    assert len(cache.updated.cache) <= 8
    assert len(cache._kept) <= 2 * 8 + 65


# --- a secondary point beside an enforcement point --------------------------------------------------------------------


@scene
async def test_an_enforcement_point_asks_nobody_for_what_follows(made: Scene) -> None:
    log = RecycledLog(AppendedLines(made.path / "log"), "urn:test", "x")
    secondary = SecondaryPoint(made.fabric, PEP, RIGHTS.may_decide, log, made.settings)
    pep = await made.pep(secondary=await made.stack.enter_async_context(secondary))
    await pep.ask(asked())
    await made.feed.heartbeat()
    await until(lambda: secondary.counts["join"] > 0)
    assert (await pep.ask(asked())).recycled is None
    decision = await pep.ask(asked())
    assert decision.effect is PERMIT
    assert decision.permits()
    assert decision.recycled is not None
    assert [one.question for one in decision.recycled.premises] == [asked()]
    assert (len(made.policies.asked), pep.counts["recycled"]) == (2, 1)
    assert len((made.path / "log").read_text().splitlines()) == 1
    await made.change(XacmlDecision.DENY)
    await until(lambda: len(secondary.cache) == 0)
    assert (await pep.ask(asked())).effect is DENY


@scene
async def test_without_heartbeats_the_point_is_asked(made: Scene) -> None:
    secondary = SecondaryPoint(made.fabric, PEP, RIGHTS.may_decide, None, made.settings)
    pep = await made.pep(secondary=await made.stack.enter_async_context(secondary))
    await pep.ask(asked())
    await made.feed.heartbeat()
    await until(lambda: secondary.counts["join"] > 0)
    await pep.ask(asked())
    await made.feed.__aexit__()
    await made.point.close()
    await made.clock.advance(4)
    assert (await pep.ask(asked())).effect is PERMIT
    await made.clock.advance(2)
    asking = asyncio.ensure_future(pep.ask(asked()))
    while not asking.done():
        await made.clock.advance(1)
        await asyncio.sleep(0)
    with refused("pep.no-answer"):
        asking.result()


MAJORITY = DecisionTuple.of({"P": "#P > #D", "D": "#D >= #P"})


@pytest.mark.parametrize("mode", [AnswerMode(answers=2), AnswerMode(wait=1, answers=None, tuple=MAJORITY)])
def test_answers_of_several_points_are_not_recycled(mode: AnswerMode) -> None:
    fabric = EmbeddedFabric()
    secondary = SecondaryPoint(fabric, PEP, RIGHTS.may_decide, None)
    with refused("pep.mode"):
        EnforcementPoint(fabric, PEP, RIGHTS, mode=mode, secondary=secondary)
    EnforcementPoint(fabric, PEP, RIGHTS, mode=AnswerMode.parse("newest:1"), secondary=secondary)


def test_the_owner_may_decide() -> None:
    assert RIGHTS.may_decide(OWNER.principal, asked().resource, datetime.fromtimestamp(0, NOW.tzinfo))
    assert not RIGHTS.may_decide(OTHER.principal, asked().resource, NOW)


@pytest.mark.parametrize(
    ("make", "calls"),
    [
        (lambda fabric: SharedCache(fabric, CACHE, RIGHTS), 10),
        (lambda fabric: SecondaryPoint(fabric, CACHE, RIGHTS.may_decide, None), 3),
        (lambda fabric: PolicyFeed(fabric, PDP, [POLICY]), 3),
    ],
)
def test_what_cannot_start_leaves_nothing_open(make: Callable[[Fabric], SharedCache], calls: int) -> None:
    assert asyncio.run(leaves_nothing(make)) == calls

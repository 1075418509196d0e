"""The secondary decision point: it follows updates, stops when it is cut off, and records what it answers."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.authority.decisions.kit import NOW, OTHER, PDP, PEP, POLICY, STRANGER, answer, each_fabric, opened_fabric

from penstock.authority.decisions.messages import AccessAnswer, AnswerEffect, PolicyRevision, RoleRecycling
from penstock.authority.decisions.policy_feed import PolicyFeed
from penstock.authority.decisions.questions import AccessQuestion, Entity
from penstock.authority.decisions.recycling import RecyclingRule
from penstock.authority.decisions.secondary_point import (
    AnswerCache,
    RecycledLog,
    SecondaryPoint,
    SecondarySettings,
    explain_recycled,
)
from penstock.authority.decisions.updates import (
    FollowResult,
    PolicyHeartbeat,
    PolicyUpdate,
    ResourceChange,
    RolePermissionChange,
    UpdateAuthor,
    UpdateTopics,
)
from penstock.authority.limits import FEED_CACHES, AuthorityLimits
from penstock.crypto import SigningKey
from penstock.errors import FailedError, PenstockError
from penstock.fabric import Fabric
from penstock.model.principals import Principal
from penstock.store.files.appended_lines import AppendedLines
from penstock.testing.fabric_suite import ManualClock, until
from penstock.trust.signed import SignedValue, sign_value

PERMIT, DENY = AnswerEffect.PERMIT, AnswerEffect.DENY
START = NOW.timestamp()
ROLES = RoleRecycling("roles")


def asked(*roles: str, item: str = "report-7") -> AccessQuestion:
    listed: list[Any] = [*roles]
    return AccessQuestion.of(Entity("user", "alice", {"roles": listed}), "read", ("document", item))


def signed(
    question: AccessQuestion, effect: AnswerEffect = PERMIT, *, key: SigningKey = PDP, **changed: Any
) -> SignedValue[AccessAnswer]:
    values = {"recycling": ROLES, "until": NOW + timedelta(hours=1), **changed}
    return sign_value(answer(question, key=key, effect=effect, **values), key)


class Cached:
    """A cache, clocks, and the authors of two decision points."""

    def __init__(self, **limits: int) -> None:
        self.allowed = {PDP.principal, OTHER.principal}
        self.cache = AnswerCache(self.may_decide, limits=AuthorityLimits(**limits))
        self.now, self.steady = START, 100.0
        self.authors = {key: UpdateAuthor(key, NOW, [POLICY]) for key in (PDP, OTHER)}

    def may_decide(self, point: Principal, resource: Entity, _now: datetime) -> bool:
        return point in self.allowed and resource.id != "secret"

    def join(self, key: SigningKey = PDP) -> None:
        """Let the cache follow a point."""
        assert not self.learn(asked("x"), key=key)
        assert self.beat(key) is FollowResult.JOIN

    def learn(self, question: AccessQuestion, effect: AnswerEffect = PERMIT, **changed: Any) -> bool:
        return self.cache.learn(question, signed(question, effect, **changed), self.now, self.steady).kept

    def beat(self, key: SigningKey = PDP) -> FollowResult:
        author = self.authors[key]
        return self.cache.take(author.heartbeat(datetime.fromtimestamp(self.now, NOW.tzinfo)), self.now, self.steady)[0]

    def wait(self, seconds: float) -> None:
        self.now, self.steady = self.now + seconds, self.steady + seconds

    def __call__(self, question: AccessQuestion) -> AnswerEffect | None:
        found = self.cache.answer(question, self.now, self.steady)
        return None if found is None else found.effect


# --- the cache --------------------------------------------------------------------------------------------------------


def test_answers_are_kept_once_there_is_a_heartbeat() -> None:
    cached = Cached()
    assert not cached.learn(asked("a"))
    assert cached(asked("a")) is None
    cached.beat()
    assert cached.learn(asked("a"))
    assert cached(asked("a", "b")) is PERMIT
    assert cached.cache.policies(PDP.principal) == {POLICY.id: POLICY.revision}


def test_it_stops_when_it_is_cut_off() -> None:
    cached = Cached()
    cached.join()
    cached.learn(asked("a"))
    cached.wait(4.9)
    assert cached(asked("a")) is PERMIT
    cached.wait(0.1)
    assert cached(asked("a")) is None
    assert not cached.learn(asked("b"))
    # Nothing was missed.
    cached.beat()
    assert cached(asked("a")) is PERMIT


def test_an_update_drops_what_it_affects_and_reports_it() -> None:
    cached = Cached()
    cached.join()
    cached.learn(asked("a"))
    cached.learn(asked("b"), DENY)
    change = RolePermissionChange("a", "read", "document", "report-7")
    update = cached.authors[PDP].update(NOW, POLICY.id, replace(POLICY, revision="8"), [change])
    result, report = cached.cache.take(update, cached.now, cached.steady)
    assert result is FollowResult.NEXT
    assert report is not None
    assert (report.dropped, report.kept, report.lost) == (1, 1, False)
    assert (cached(asked("a")), cached(asked("b"))) == (None, DENY)
    # Answers under the old revision, which come late, are not learnt.
    assert not cached.learn(asked("a"))
    assert cached.learn(asked("a"), DENY, rests_on=(replace(POLICY, revision="8"),))
    assert cached.beat() is FollowResult.NOTHING
    assert cached(asked("a", "b")) is DENY


def test_a_gap_drops_everything() -> None:
    cached = Cached()
    cached.join()
    cached.learn(asked("a"))
    author = cached.authors[PDP]
    author.update(NOW, POLICY.id, replace(POLICY, revision="8"), [])
    second = author.update(NOW, POLICY.id, replace(POLICY, revision="9"), [])
    result, report = cached.cache.take(second, cached.now, cached.steady)
    assert (result, report and report.lost) == (FollowResult.LOST, True)
    assert cached(asked("a")) is None
    assert len(cached.cache) == 0
    assert cached.beat() is FollowResult.JOIN
    assert cached.cache.policies(PDP.principal) == {POLICY.id: "9"}


def test_an_update_of_a_policy_that_nobody_knows_is_followed() -> None:
    cached = Cached()
    cached.join()
    cached.learn(asked("a"))
    new = PolicyRevision("other", "1", NOW)
    update = cached.authors[PDP].update(NOW, "other", new, [ResourceChange("image")])
    _, report = cached.cache.take(update, cached.now, cached.steady)
    assert report is not None
    assert (report.dropped, report.kept) == (0, 1)
    assert cached(asked("a")) is PERMIT


def test_strangers_and_copies_are_dropped_before_they_are_verified() -> None:
    cached = Cached()
    cached.join()
    beat = cached.authors[PDP].heartbeat(NOW + timedelta(seconds=1)).value
    assert cached.cache.wants(beat)
    assert not cached.cache.wants(replace(beat, point=STRANGER.principal))
    cached.wait(1)
    cached.beat()
    assert not cached.cache.wants(beat)
    update = PolicyUpdate(PDP.principal, NOW, 1, bytes(32), NOW, POLICY.id, (), "7a", "8")
    assert cached.cache.wants(update)
    assert not cached.cache.wants(replace(update, began=NOW - timedelta(seconds=1)))
    assert not cached.cache.wants(replace(update, point=STRANGER.principal))
    stranger = PolicyHeartbeat(STRANGER.principal, NOW, 0, bytes(32), NOW, ())
    assert cached.cache.take(sign_value(stranger, STRANGER), START, 0) == (FollowResult.NOTHING, None)


def test_a_point_without_the_right_is_not_used() -> None:
    cached = Cached()
    cached.join()
    assert cached.learn(asked("a"), holds_for="\"action.name\" = 'read'")
    assert cached(asked("z")) is PERMIT
    # A set does not extend the right.
    assert cached(asked("z", item="secret")) is None
    cached.allowed.clear()
    cached.wait(1)
    assert cached(asked("a")) is None


def test_a_flood_of_answers_stays_within_bounds() -> None:
    cached = Cached(recycling_entries=50)
    cached.join()
    for number in range(300):
        assert cached.learn(asked("a", item=f"flood-{number}"))
        assert len(cached.cache) <= 50


def test_points_are_bounded() -> None:
    cached = Cached(recycling_points=2)
    keys = [SigningKey(bytes([number]) * 32) for number in range(20, 60)]
    for key in keys:
        cached.learn(asked("a"), key=key)
    assert len(cached.cache._points) == 2


def test_the_point_with_the_newer_policy_answers() -> None:
    cached = Cached()
    newer = PolicyRevision(POLICY.id, "8", NOW)
    cached.authors[OTHER] = UpdateAuthor(OTHER, NOW, [newer])
    cached.join(PDP)
    assert cached.learn(asked("a"))
    assert cached(asked("a")) is PERMIT
    cached.join(OTHER)
    assert cached(asked("a")) is None
    assert cached.learn(asked("a"), DENY, key=OTHER, rests_on=(newer,))
    assert cached(asked("a")) is DENY
    # The same change time and another revision: neither is used.
    twin = replace(newer, revision="9")
    cached.wait(1)
    cached.authors[PDP] = UpdateAuthor(PDP, NOW + timedelta(seconds=1), [twin])
    assert cached.beat(PDP) is FollowResult.JOIN
    assert cached(asked("a")) is None


# --- clocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [-3_600.0, -1.0, 1.0, 3_600.0])
def test_a_jump_of_the_clock_drops_everything(jump: float) -> None:
    cached = Cached()
    cached.join()
    cached.learn(asked("a"))
    cached.now += jump
    assert cached(asked("a")) is None
    assert (len(cached.cache), cached.cache.jumps) == (0, 1)
    # The point's clock is right, and so is this one again.
    cached.now -= jump
    cached.wait(1)
    assert cached(asked("a")) is None
    cached.beat()
    assert cached.learn(asked("a"))
    assert cached(asked("a")) is PERMIT


def test_a_stopped_clock_stops_it() -> None:
    cached = Cached()
    cached.join()
    cached.learn(asked("a"))
    cached.steady += 0.9
    assert cached(asked("a")) is PERMIT
    for _ in range(20):
        cached.steady += 0.9
        cached.cache.answer(asked("a"), cached.now, cached.steady)
    assert cached(asked("a")) is None
    assert len(cached.cache) == 0


def test_a_jump_is_noticed_by_answers_and_heartbeats_too() -> None:
    notices: list[Callable[[Cached], object]] = [lambda cached: cached.learn(asked("b")), Cached.beat]
    for notice in notices:
        cached = Cached()
        cached.join()
        cached.learn(asked("a"))
        cached.now -= 60
        notice(cached)
        assert len(cached.cache) == 0


# --- on a fabric ------------------------------------------------------------------------------------------------------


class Scene:
    """A secondary point and a decision point's feed on a fabric."""

    def __init__(self, fabric: Fabric, clock: ManualClock, path: Path) -> None:
        self.fabric, self.clock, self.path = fabric, clock, path
        self.errors: list[PenstockError] = []
        self.lines = AppendedLines(path)
        settings = SecondarySettings(clock=clock, steady=clock.now, note=self.errors.append)
        log = RecycledLog(self.lines, "urn:test", "x")
        self.point = SecondaryPoint(fabric, PEP, lambda *_: True, log, settings)
        self.feed = PolicyFeed(fabric, PDP, [POLICY], clock=clock)

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.now(), NOW.tzinfo)

    def learn(self, question: AccessQuestion, effect: AnswerEffect = PERMIT, **changed: Any) -> bool:
        values = {"issued": self.now(), "until": self.now() + timedelta(hours=1), **changed}
        return self.point.learn(question, signed(question, effect, **values)).kept

    async def joined(self) -> None:
        """Wait until the point follows the feed."""
        self.learn(asked("x"))
        await self.feed.heartbeat()
        await until(lambda: self.learn(asked("a")))


def scene(test: Callable[[Scene], Awaitable[None]]) -> Callable[[Path, str, pytest.FixtureRequest], None]:
    @each_fabric
    def run(tmp_path: Path, over: str, request: pytest.FixtureRequest) -> None:
        async def whole() -> None:
            clock = ManualClock(START)
            async with asyncio.timeout(60), opened_fabric(over, request, clock) as fabric:
                made = Scene(fabric, clock, tmp_path / "log")
                async with made.point, made.feed:
                    await made.joined()
                    await test(made)

        asyncio.run(whole())

    return run


@scene
async def test_it_answers_and_records(made: Scene) -> None:
    found = made.point.answer(asked("a", "b"))
    assert found is not None
    assert (found.effect, found.rule) == (PERMIT, RecyclingRule.REMAINDER)
    made.point.answer(asked("a"))
    assert made.point.answer(asked("z")) is None
    records = [json.loads(line) for line in made.path.read_text().splitlines()]
    assert [record["data"]["endpoint"] for record in records] == ["recycled/remainder", "recycled/precise"]
    assert records[0]["id"] != records[1]["id"]
    assert records[0]["time"] == "2026-01-01T12:00:00.000+00:00"
    assert records[0]["data"] == {
        "endpoint": "recycled/remainder",
        "decision": "Permit",
        "because": [f"policy:{POLICY.id}"],
        "revision": POLICY.revision,
        "took": 0,
        "subject": {"type": "user", "id": "alice"},
        "action": "read",
        "resource": {"type": "document", "id": "report-7"},
    }


@scene
async def test_nothing_is_answered_that_cannot_be_recorded(made: Scene) -> None:
    assert made.point.answer(asked("a")) is not None
    made.lines.close()
    made.path.unlink()
    made.path.mkdir()
    with pytest.raises(FailedError) as caught:
        made.point.answer(asked("a"))
    assert caught.value.code == "log.write"
    made.path.rmdir()


@scene
async def test_updates_arrive_and_results_return(made: Scene) -> None:
    made.learn(asked("b"), DENY)
    newer = replace(POLICY, revision="8")
    change = RolePermissionChange("a", "read", "document", "report-7")
    (digest,) = await made.feed.replace([newer], [change])
    await until(lambda: bool(made.feed.results(digest)))
    (result,) = made.feed.results(digest).values()
    assert (result.cache, result.dropped, result.kept, result.lost) == (PEP.principal, 1, 1, False)
    assert made.point.answer(asked("a")) is None
    assert made.point.answer(asked("b")) is not None
    assert json.loads(made.path.read_text().splitlines()[-1])["data"]["revision"] == "8"


@scene
async def test_it_stops_without_heartbeats_and_goes_on(made: Scene) -> None:
    assert made.point.answer(asked("a")) is not None
    await made.feed.__aexit__()
    await made.clock.advance(4.9)
    assert made.point.answer(asked("a")) is not None
    await made.clock.advance(0.2)
    assert made.point.answer(asked("a")) is None


@scene
async def test_junk_forgeries_and_replays_change_nothing(made: Scene) -> None:
    writer = await made.fabric.publisher(UpdateTopics().updates)
    author = UpdateAuthor(PDP, made.now(), [POLICY])
    forged = author.heartbeat(made.now() + timedelta(seconds=1))
    bad = replace(forged, signature=bytes(64)).to_bytes()
    stranger = UpdateAuthor(STRANGER, made.now(), [POLICY]).heartbeat(made.now()).to_bytes()
    for _ in range(100):
        for data in (b"junk", bad, stranger):
            await writer.publish(data, key="x")
    counts = made.point.counts
    await until(lambda: counts["malformed"] + counts["forged"] + counts["ignored"] >= 300)
    assert (counts["forged"], counts["malformed"]) == (100, 100)
    assert made.point.answer(asked("a")) is not None
    assert len(made.point.cache._points) == 1


@scene
async def test_a_contradiction_raises_an_alarm(made: Scene) -> None:
    assert not made.learn(asked("a"), DENY)
    assert [error.code for error in made.errors] == ["pep.contradiction"]
    assert made.point.answer(asked("a")) is None


@scene
async def test_missing_updates_raise_an_alarm(made: Scene) -> None:
    made.feed._author.update(made.now(), POLICY.id, replace(POLICY, revision="8"), [])
    await made.feed.replace([replace(POLICY, revision="9")])
    await until(lambda: made.point.counts["join"] == 2)
    assert made.point.counts["alarms"] == 1
    assert made.point.answer(asked("a")) is None
    assert made.learn(asked("a"), rests_on=(replace(POLICY, revision="9"),))


@scene
async def test_results_are_bounded(made: Scene) -> None:
    (digest,) = await made.feed.replace([replace(POLICY, revision="8")])
    await until(lambda: bool(made.feed.results(digest)))
    (known,) = made.feed.results(digest).values()
    strangers = (SigningKey(number.to_bytes(32)).principal for number in range(FEED_CACHES))
    made.feed._results[digest] = dict.fromkeys(strangers, known)
    made.feed.counts.clear()
    made.feed._take(b"junk")
    made.feed._take(made.feed._author.heartbeat(made.now()).to_bytes())
    made.feed._take(sign_value(known, PEP).to_bytes())
    made.feed._take(sign_value(replace(known, update=bytes(32)), PEP).to_bytes())
    assert made.feed.counts == {"malformed": 1, "ignored": 3}


# --- for people -------------------------------------------------------------------------------------------------------


@scene
async def test_a_derivation_is_explained(made: Scene) -> None:
    made.learn(asked("b", "c"), DENY)
    explain = partial(explain_recycled, asked("a", "b"))
    found = made.point.answer(asked("a", "b"))
    assert found is not None
    lines = explain(found)
    assert lines[0] == (
        "Permit: user alice may read document report-7, recycled from one answer: "
        "a role of the subject has the permission"
    )
    assert lines[1] == "  one of these roles has the permission: a"
    assert lines[2].startswith("  Permit for user alice with roles a: read document report-7, by ")
    assert f"under {POLICY.id} {POLICY.revision}, issued 2026-01-01 12:00:00, until 13:00:00" in lines[2]
    denied = made.point.answer(asked("c", "b"))
    assert denied is not None
    assert explain_recycled(asked("c", "b"), denied)[0].startswith("Deny: user alice may not read")

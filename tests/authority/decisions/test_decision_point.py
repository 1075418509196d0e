"""A decision point: it subscribes to what it can resolve, and answers only requests that are authenticated."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.authority.decisions.kit import (
    NOW,
    OTHER,
    PDP,
    PEP,
    POLICY,
    QUESTION,
    STRANGER,
    Policies,
    clock_at,
    grant,
    request,
    rights_of,
)
from tests.authority.failing import FailingFabric, leaves_nothing
from tests.spoiled import flipped

from penstock.authority.decisions.coverage import Coverage, answer_key, request_key, resources, tuples
from penstock.authority.decisions.decision_point import TOPICS, AskRate, PointDecision, PolicyDecisionPoint
from penstock.authority.decisions.links import TakeMessage
from penstock.authority.decisions.messages import AccessAnswer, AccessRequest, AnswerEffect, read_answer
from penstock.authority.decisions.questions import AccessQuestion, Entity
from penstock.crypto import SigningKey
from penstock.errors import FailedError, PenstockError
from penstock.fabric import EmbeddedFabric, Publisher
from penstock.model.principals import Principal
from penstock.policy.language.results import Obligation, XacmlDecision
from penstock.testing.fabric_suite import ManualClock
from penstock.trust.capabilities import DecisionRight
from penstock.trust.signed import sign_value


class Bench:
    """A fabric with somebody who writes requests and reads all answers."""

    def __init__(self, fabric: EmbeddedFabric, clock: ManualClock) -> None:
        self.fabric = fabric
        self.clock = clock
        self.answers: list[tuple[str, AccessAnswer]] = []

    async def open(self) -> None:
        await TOPICS.declare(self.fabric)
        self.writer: Publisher = await self.fabric.publisher(TOPICS.requests)
        self.reading = await self.fabric.subscribe(TOPICS.answers, callback=self._hear)

    async def _hear(self, sample: Any) -> None:
        self.answers.append((sample.key, read_answer(sample.data).verify().value))

    async def send(self, asked: AccessRequest | bytes, key: SigningKey = PEP, at: str | None = None) -> None:
        """Write a request, and wait until nothing moves."""
        data = asked if isinstance(asked, bytes) else sign_value(asked, key).to_bytes()
        question = QUESTION if isinstance(asked, bytes) else asked.question
        await self.writer.publish(data, key=at or request_key(question))
        for _ in range(10):
            await asyncio.sleep(0)


def run(test: Callable[[Bench], Awaitable[None]]) -> None:
    async def whole() -> None:
        clock = clock_at()
        async with asyncio.timeout(60), EmbeddedFabric(clock=clock) as fabric:
            bench = Bench(fabric, clock)
            await bench.open()
            await test(bench)

    asyncio.run(whole())


def asked(kind: str, name: str, number: int = 1) -> AccessRequest:
    return request(AccessQuestion.of(("user", "alice"), "read", (kind, name)), number=number)


def test_a_request_is_answered_under_the_digest_of_its_question() -> None:
    async def test(bench: Bench) -> None:
        source = Policies(XacmlDecision.PERMIT)
        settings: Any = {"rights": rights_of(), "clock": bench.clock, "lifetime": 7}
        async with PolicyDecisionPoint(bench.fabric, PDP, source, **settings) as point:
            await bench.send(request())
            [(key, found)] = bench.answers
            assert key == answer_key(QUESTION.digest)
            assert found == AccessAnswer(
                QUESTION.digest,
                AnswerEffect.PERMIT,
                (POLICY,),
                PDP.principal,
                NOW,
                NOW + timedelta(seconds=7),
            )
            assert point.counts == {"requests": 1, "answers": 1}
        await bench.send(request(number=2))
        assert len(bench.answers) == 1

    run(test)


@pytest.mark.parametrize(
    ("covers", "resolved"),
    [
        (None, [("document", "1"), ("document", "2"), ("invoice", "1")]),
        (resources(("document", None)), [("document", "1"), ("document", "2")]),
        (resources(("document", "2"), ("invoice", None)), [("document", "2"), ("invoice", "1")]),
        (tuples([(Entity("user", "alice"), "read", Entity("document", "1"))]), [("document", "1")]),
        (frozenset(), []),
    ],
)
def test_a_point_reads_the_requests_that_it_can_resolve(covers: Coverage, resolved: list[tuple[str, str]]) -> None:
    async def test(bench: Bench) -> None:
        source = Policies(covers=covers)
        async with PolicyDecisionPoint(bench.fabric, PDP, source, clock=bench.clock) as point:
            for kind, name in (("document", "1"), ("document", "2"), ("invoice", "1")):
                await bench.send(asked(kind, name))
            assert [(each.resource.type, each.resource.id) for each in source.asked] == resolved
            assert point.counts["requests"] == len(resolved)

    run(test)


def test_subscriptions_follow_the_policies() -> None:
    async def test(bench: Bench) -> None:
        covers: list[Coverage] = [
            resources(("document", None)),
            resources(("document", "2"), ("invoice", None)),
            None,
            resources(("invoice", None)),
            resources(("invoice", None)),
            None,
            None,
        ]
        expected = ["d1 d2", "d2 i1", "d1 d2 i1", "i1", "i1", "d1 d2 i1", "d1 d2 i1"]
        sources = [Policies(covers=each) for each in covers]
        async with PolicyDecisionPoint(bench.fabric, PDP, sources[0], clock=bench.clock) as point:
            for number, (source, words) in enumerate(zip(sources, expected, strict=True)):
                if number:
                    await point.replace(source)
                for kind, name in (("document", "1"), ("document", "2"), ("invoice", "1")):
                    await bench.send(asked(kind, name, number))
                assert " ".join(f"{one.resource.type[0]}{one.resource.id}" for one in source.asked) == words

    run(test)


def test_only_authenticated_requests_in_time_are_evaluated() -> None:
    async def test(bench: Bench) -> None:
        source, errors = Policies(), list[PenstockError]()
        rights = rights_of(grant(PEP, DecisionRight.ASK, kind="document"), grant(OTHER, DecisionRight.DECIDE))
        point = PolicyDecisionPoint(bench.fabric, PDP, source, rights=rights, clock=bench.clock, note=errors.append)
        async with point:
            good = sign_value(request(), PEP).to_bytes()
            wrong = flipped(good, -3)
            early, late = NOW + timedelta(seconds=60), NOW - timedelta(seconds=6)
            for sent, why in (
                (b"junk", "malformed"),
                (good[:-1], "malformed"),
                (wrong, "forged"),
                (request(key=STRANGER), "unauthorized"),
                (request(key=OTHER), "unauthorized"),
                (asked("invoice", "1"), "unauthorized"),
                (request(time=late), "late"),
                (request(time=early), "late"),
            ):
                before = point.counts[why]
                keys = {key.principal: key for key in (PEP, STRANGER, OTHER)}
                await bench.send(sent, PEP if isinstance(sent, bytes) else keys[sent.sender])
                assert point.counts[why] == before + 1, why
            assert (source.asked, bench.answers) == ([], [])
            assert {error.code for error in errors} >= {"key.bad-signature"}
            await bench.send(good)
            assert len(bench.answers) == 1
            # A copy costs neither an evaluation nor the sender's rate.
            await bench.send(good)
            await bench.send(good, at=request_key(asked("document", "1").question))
            assert (len(source.asked), point.counts["copies"], point.counts["misdirected"]) == (1, 1, 1)

    run(test)


def test_without_rights_everyone_may_ask_who_signs() -> None:
    async def test(bench: Bench) -> None:
        async with PolicyDecisionPoint(bench.fabric, PDP, Policies(), clock=bench.clock):
            await bench.send(request(key=STRANGER), STRANGER)
            assert len(bench.answers) == 1

    run(test)


def test_a_sender_that_asks_too_often_does_not_slow_others_down() -> None:
    async def test(bench: Bench) -> None:
        source, rate = Policies(), AskRate(per_second=2, burst=3)
        async with PolicyDecisionPoint(bench.fabric, PDP, source, clock=bench.clock, rate=rate) as point:
            for number in range(10):
                await bench.send(request(key=STRANGER, number=number), STRANGER)
            assert (len(source.asked), point.counts["limited"]) == (3, 7)
            await bench.send(request())
            assert len(source.asked) == 4
            await bench.clock.advance(1.0)
            now = datetime.fromtimestamp(bench.clock.now(), UTC)
            for number in range(10, 15):
                await bench.send(request(key=STRANGER, number=number, time=now), STRANGER)
            assert len(source.asked) == 6

    run(test)


def test_nobody_brings_a_request_to_points_that_do_not_cover_it() -> None:
    async def test(bench: Bench) -> None:
        source, rate = Policies({}, covers=resources(("invoice", None))), AskRate(per_second=0, burst=1)
        async with PolicyDecisionPoint(bench.fabric, PDP, source, clock=bench.clock, rate=rate) as point:
            # The answer would be NotApplicable, and the sender would have used up its rate.
            await bench.send(request(), at=request_key(asked("invoice", "1").question))
            assert (source.asked, bench.answers, point.counts["misdirected"]) == ([], [], 1)
            await bench.send(asked("invoice", "1"))
            assert len(source.asked) == 1

    run(test)


def test_a_request_to_one_point_reaches_it_alone() -> None:
    async def test(bench: Bench) -> None:
        mine, others = Policies(covers=resources(("document", None))), Policies()
        bench.writer = await bench.fabric.publisher(TOPICS.to_one)
        async with (
            PolicyDecisionPoint(bench.fabric, PDP, mine, clock=bench.clock) as point,
            PolicyDecisionPoint(bench.fabric, OTHER, others, clock=bench.clock),
        ):
            await bench.send(request(), at=str(PDP.principal))
            assert (len(mine.asked), others.asked) == (1, [])
            # Whoever brings a request to a point that does not cover it gets no answer, which would be NotApplicable.
            await bench.send(asked("invoice", "1", 2), at=str(PDP.principal))
            assert (len(mine.asked), point.counts["misdirected"]) == (1, 1)
            # The same request for all is a copy there, and is new for others.
            bench.writer = await bench.fabric.publisher(TOPICS.requests)
            await bench.send(request())
            assert (len(mine.asked), len(others.asked), point.counts["copies"]) == (1, 1, 1)

    run(test)


def test_new_senders_make_no_point_forget_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.authority.decisions.decision_point.POINT_SENDERS", 2)

    async def test(bench: Bench) -> None:
        source = Policies()
        async with PolicyDecisionPoint(bench.fabric, PDP, source, clock=bench.clock) as point:
            for key in (PEP, OTHER, STRANGER):
                await bench.send(request(key=key), key)
            assert (len(source.asked), point.counts["limited"]) == (2, 1)
            await bench.send(request())
            assert (len(source.asked), point.counts["copies"]) == (2, 1)
            # When the requests of a sender have ended, another takes its place.
            await bench.clock.advance(6.0)
            for key in (PEP, OTHER, STRANGER):
                await bench.send(request(key=key, time=NOW + timedelta(seconds=6)), key)
            assert (len(source.asked), point.counts["limited"]) == (4, 2)

    run(test)


class Heard:
    """Links over which a test speaks to the point."""

    address = "pdp:1"

    def listen(self, take: TakeMessage) -> None:
        """Keep the receiver."""
        self.take = take

    async def send(self, address: str, principal: Principal, data: bytes) -> None:
        """Nothing is sent here."""
        raise AssertionError

    def try_send(self, address: str, principal: Principal, data: bytes) -> bool:
        """Nothing is sent here."""
        raise AssertionError


def test_nobody_uses_up_the_rate_of_others_over_a_link() -> None:
    async def test(bench: Bench) -> None:
        links, rate, replies = Heard(), AskRate(per_second=0, burst=1), list[bytes]()
        settings: Any = {"clock": bench.clock, "rate": rate, "links": links}
        async with PolicyDecisionPoint(None, PDP, Policies(), **settings) as point:
            data = sign_value(request(), PEP).to_bytes()
            links.take(STRANGER.principal, data, replies.append)
            assert (point.counts["misdirected"], replies) == (1, [])
            # It is neither a copy now, nor one too many.
            links.take(PEP.principal, data, replies.append)
            assert len(replies) == 1

    run(test)


def test_copies_are_known_until_the_request_ends() -> None:
    async def test(bench: Bench) -> None:
        source = Policies()
        async with PolicyDecisionPoint(bench.fabric, PDP, source, clock=bench.clock) as point:
            await bench.send(request())
            await bench.clock.advance(5.0)
            await bench.send(request())
            assert point.counts["copies"] == 1
            await bench.clock.advance(0.5)
            await bench.send(request())
            assert (point.counts["late"], len(source.asked)) == (1, 1)

    run(test)


class Failing(Policies):
    """A source that fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def decide(self, question: AccessQuestion, now: datetime) -> PointDecision:
        """Raise."""
        raise self.error


@pytest.mark.parametrize(
    ("source", "status"),
    [
        (Failing(FailedError("pdp.time", "too late")), "pdp.time"),
        (Failing(RuntimeError("a mistake")), "pdp.failed"),
        # An answer that cannot be signed.
        (Policies(XacmlDecision.PERMIT, POLICY, POLICY), "evolution.malformed"),
        (Policies(XacmlDecision.INDETERMINATE_P), "urn:oasis:names:tc:xacml:1.0:status:ok"),
    ],
)
def test_what_goes_wrong_is_indeterminate_and_the_point_goes_on(source: Policies, status: str) -> None:
    async def test(bench: Bench) -> None:
        reported: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        async with PolicyDecisionPoint(bench.fabric, PDP, source, clock=bench.clock):
            for number in range(2):
                await bench.send(request(number=number))
            effects = [(found.effect, found.status) for _, found in bench.answers]
            assert effects == [(AnswerEffect.INDETERMINATE, status)] * 2
            assert len(reported) == (2 if status == "pdp.failed" else 0)

    run(test)


def test_obligations_are_in_the_answer() -> None:
    async def test(bench: Bench) -> None:
        source = Policies(obligations=(Obligation("urn:log"),))
        async with PolicyDecisionPoint(bench.fabric, PDP, source, clock=bench.clock):
            await bench.send(request())
            assert [duty.id for duty in bench.answers[0][1].obligations] == ["urn:log"]

    run(test)


def test_a_point_that_cannot_start_answers_nothing() -> None:
    async def test() -> int:
        source, clock = Policies(), clock_at()
        async with FailingFabric(0, clock=clock) as fabric:
            bench = Bench(fabric, clock)
            await bench.open()
            # The last of its calls fails: it has subscribed to requests already.
            fabric.left = 6
            with pytest.raises(FailedError, match="do not answer"):
                await PolicyDecisionPoint(fabric, PDP, source, clock=clock).__aenter__()
            await bench.send(request())
        assert (source.asked, bench.answers) == ([], [])
        return await leaves_nothing(lambda failing: PolicyDecisionPoint(failing, PDP, source))

    assert asyncio.run(test()) == 6


def test_a_closed_point_does_not_answer_over_links_either() -> None:
    async def test(bench: Bench) -> None:
        links, source, replies = Heard(), Policies(), list[bytes]()
        async with PolicyDecisionPoint(None, PDP, source, clock=bench.clock, links=links):
            pass
        links.take(PEP.principal, sign_value(request(), PEP).to_bytes(), replies.append)
        assert (source.asked, replies) == ([], [])

    run(test)

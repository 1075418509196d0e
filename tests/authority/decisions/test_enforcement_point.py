"""An enforcement point: the ten steps, which points it believes, and that nothing is permitted without an answer."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from tests.authority.decisions.kit import (
    NOW,
    OTHER,
    PDP,
    PEP,
    QUESTION,
    STRANGER,
    Policies,
    answer,
    clock_at,
    grant,
    rights_of,
)
from tests.authority.failing import leaves_nothing
from tests.spoiled import flipped

from penstock.authority.decisions.coverage import answer_key, request_key
from penstock.authority.decisions.decision_point import TOPICS, PolicyDecisionPoint
from penstock.authority.decisions.enforcement_point import AskPath, BlockingPoint, EnforcementPoint, PointAddress
from penstock.authority.decisions.links import TakeMessage
from penstock.authority.decisions.messages import AccessAnswer, AnswerEffect, PolicyRevision, read_request
from penstock.authority.decisions.modes import AnswerMode, AskedDecision
from penstock.authority.decisions.questions import AccessQuestion
from penstock.crypto import SigningKey
from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError
from penstock.fabric import EmbeddedFabric, Publisher, Sample
from penstock.fabric.tasks import waited_for
from penstock.model.principals import Principal
from penstock.policy.combining import DecisionTuple
from penstock.policy.language.results import XacmlDecision
from penstock.testing.fabric_suite import ManualClock, refused
from penstock.trust.signed import sign_value


class Service:
    """A fabric on which a test plays the decision points: it reads requests and writes answers."""

    def __init__(self, fabric: EmbeddedFabric, clock: ManualClock, stack: AsyncExitStack) -> None:
        self.fabric = fabric
        self.clock = clock
        self.stack = stack
        self.requests: list[Sample] = []
        self.alone: list[Sample] = []
        self.errors: list[PenstockError] = []

    async def open(self) -> None:
        await TOPICS.declare(self.fabric)
        self.writer: Publisher = await self.fabric.publisher(TOPICS.answers)
        self.reading = await self.fabric.subscribe(TOPICS.requests, callback=self._hear)
        await self.fabric.subscribe(TOPICS.to_one, callback=self._hear_alone)

    async def _hear(self, sample: Sample) -> None:
        self.requests.append(sample)

    async def _hear_alone(self, sample: Sample) -> None:
        self.alone.append(sample)

    @property
    def sent(self) -> list[Sample]:
        """The requests to all points, then those to one."""
        return [*self.requests, *self.alone]

    async def point(self, **settings: Any) -> EnforcementPoint:
        settings = {"clock": self.clock, "note": self.errors.append, "rights": rights_of(), **settings}
        return await self.stack.enter_async_context(EnforcementPoint(self.fabric, PEP, **settings))

    async def decide(self, key: SigningKey, source: Policies) -> PolicyDecisionPoint:
        return await self.stack.enter_async_context(PolicyDecisionPoint(self.fabric, key, source, clock=self.clock))

    async def say(self, found: AccessAnswer | bytes, key: SigningKey = PDP, at: bytes = QUESTION.digest) -> None:
        """Publish an answer, and wait until nothing moves."""
        data = found if isinstance(found, bytes) else sign_value(found, key).to_bytes()
        await self.writer.publish(data, key=answer_key(at))
        await settled()

    @property
    def chosen(self) -> int:
        """The keys of answers that somebody reads now."""
        return len(self.fabric._topics[TOPICS.answers].of_instance[""].choosers)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def run(test: Callable[[Service], Awaitable[None]]) -> None:
    async def whole() -> None:
        clock = clock_at()
        async with asyncio.timeout(60), EmbeddedFabric(clock=clock) as fabric, AsyncExitStack() as stack:
            service = Service(fabric, clock, stack)
            await service.open()
            await test(service)

    asyncio.run(whole())


@asynccontextmanager
async def asking(
    point: EnforcementPoint, question: AccessQuestion = QUESTION
) -> AsyncIterator["asyncio.Future[AskedDecision]"]:
    """Ask in a task, and let it run until it waits."""
    task = waited_for(point.ask(question))
    await settled()
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_the_ten_steps() -> None:
    async def test(service: Service) -> None:
        point = await service.point()
        assert service.chosen == 0
        async with asking(point) as task:
            [sample] = service.requests
            asked = read_request(sample.data).verify().value
            assert (sample.key, asked.question, asked.sender) == (request_key(QUESTION), QUESTION, PEP.principal)
            assert (asked.time, asked.lifespan, asked.reply_to) == (NOW, 2_000, None)
            assert service.chosen == 1
            await service.say(answer())
            assert service.chosen == 0
            decision = task.result()
            assert (decision.effect, decision.permits()) == (AnswerEffect.PERMIT, True)
            assert [one.value for one in decision.answers] == [answer()]
        # An answer after the first is nobody's.
        await service.say(answer(key=OTHER), OTHER)
        assert point.counts == {"requests": 1, "answered": 1}

    run(test)


def test_who_asks_the_same_question_at_the_same_time_shares_one_request() -> None:
    async def test(service: Service) -> None:
        point = await service.point()
        async with asking(point) as first, asking(point) as second, asking(point) as third:
            third.cancel()
            await service.say(answer())
            assert first.result() is second.result()
            assert (len(service.sent), third.cancelled()) == (1, True)
        async with asking(point) as task:
            assert len(service.sent) == 2
            numbers = [read_request(each.data).value.number for each in service.sent]
            assert numbers[0] < numbers[1]
            # When nobody waits any more, the request is given up, and the next one is another.
            task.cancel()
            async with asking(point) as again:
                assert (service.chosen, len(service.sent)) == (1, 3)
                await service.say(answer())
                assert again.result().permits()
        assert service.chosen == 0

    run(test)


def test_without_an_answer_nothing_is_permitted() -> None:
    async def test(service: Service) -> None:
        point = await service.point(timeout=3.0)
        async with asking(point) as task:
            await service.clock.advance(2.9)
            assert not task.done()
            await service.clock.advance(0.2)
            with refused("pep.no-answer"):
                task.result()
        assert (service.chosen, point.counts["refused"]) == (0, 1)

    run(test)


DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("found", "key", "why"),
    [
        (answer(key=STRANGER), STRANGER, "unauthorized"),
        (answer(key=PEP), PEP, "unauthorized"),
        (answer(issued=NOW - DAY, until=NOW - timedelta(seconds=1)), PDP, "late"),
        (answer(issued=NOW + DAY, until=NOW + DAY), PDP, "early"),
        (answer(rests_on=(PolicyRevision("p", "1", NOW + DAY),)), PDP, "early"),
        (flipped(sign_value(answer(), PDP).to_bytes(), -3), PDP, "forged"),
    ],
)
def test_answers_that_cannot_be_believed_do_not_count(found: AccessAnswer | bytes, key: SigningKey, why: str) -> None:
    async def test(service: Service) -> None:
        point = await service.point()
        async with asking(point) as task:
            await service.say(found, key)
            await service.say(found, key)
            assert (task.done(), point.counts[why], point.counts["copies"]) == (False, 1, 1)
            await service.clock.advance(2.1)
            with refused("pep.not-believed"):
                task.result()
        async with asking(point) as task:
            await service.say(found, key)
            await service.say(answer(effect=AnswerEffect.DENY, issued=NOW, until=NOW + DAY))
            assert task.result().effect is AnswerEffect.DENY

    run(test)


def test_answers_to_other_questions_and_junk_do_not_count() -> None:
    async def test(service: Service) -> None:
        point = await service.point()
        other = AccessQuestion.of(("user", "bob"), "read", ("document", "report-7"))
        async with asking(point) as task:
            await service.say(answer(other))
            await service.say(b"junk")
            await service.say(sign_value(answer(), PDP).to_bytes()[:-1])
            assert (task.done(), point.counts["unasked"], point.counts["malformed"]) == (False, 1, 2)

    run(test)


def test_a_point_is_believed_only_about_its_resources() -> None:
    async def test(service: Service) -> None:
        rights = rights_of(grant(PDP, kind="invoice"), grant(OTHER, kind="document", name="report-*"))
        point = await service.point(rights=rights)
        async with asking(point) as task:
            await service.say(answer())
            assert not task.done()
            await service.say(answer(key=OTHER, effect=AnswerEffect.DENY), OTHER)
            assert task.result().effect is AnswerEffect.DENY

    run(test)


OLD, NEW = (PolicyRevision("p", name, NOW - timedelta(days=age)) for name, age in (("old", 2), ("new", 1)))


def test_newest_waits_and_takes_the_newest() -> None:
    async def test(service: Service) -> None:
        point = await service.point(mode=AnswerMode.parse("newest:0.5"))
        async with asking(point) as task:
            # The older one counts although it comes after the newer.
            await service.say(answer(key=OTHER, rests_on=(NEW,), effect=AnswerEffect.DENY), OTHER)
            await service.say(answer(rests_on=(OLD,)))
            assert not task.done()
            await service.clock.advance(0.6)
            assert (task.result().effect, task.result().disagreed) == (AnswerEffect.DENY, True)
            assert point.counts["disagreements"] == 1
            assert [error.code for error in service.errors] == ["pep.disagreement"]
        # What rests on older policies than were seen is not fresh, also when it comes alone.
        async with asking(point) as task:
            await service.say(answer(rests_on=(OLD,)))
            assert point.counts["stale"] == 1
            await service.clock.advance(0.6)
            assert not task.done()
            await service.say(answer(key=OTHER, rests_on=(NEW,)), OTHER)
            assert task.result().permits()

    run(test)


def test_a_decision_tuple_waits_and_combines_the_effects_of_all() -> None:
    async def test(service: Service) -> None:
        unanimous = DecisionTuple.of({"P": "#P > 0 and #D = 0", "D": "#D > 0"})
        point = await service.point(mode=AnswerMode.parse(f"tuple:0.5:{unanimous.id}"))
        for effect in (AnswerEffect.PERMIT, AnswerEffect.DENY):
            async with asking(point) as task:
                await service.say(answer())
                await service.say(answer(key=OTHER, effect=effect), OTHER)
                assert not task.done()
                await service.clock.advance(0.6)
                assert (task.result().effect, len(task.result().answers)) == (effect, 2)
        assert point.counts["disagreements"] == 1

    run(test)


def test_an_older_answer_of_a_point_does_not_keep_its_newer_one_out() -> None:
    async def test(service: Service) -> None:
        point = await service.point(mode=AnswerMode.parse("newest:0.5"))
        newer = answer(rests_on=(NEW,), effect=AnswerEffect.DENY)
        before = answer(rests_on=(OLD,), issued=NOW - timedelta(seconds=3), until=NOW + timedelta(seconds=2))
        for said in ((before, newer), (newer, before)):
            async with asking(point) as task:
                for one in said:
                    await service.say(one)
                await service.clock.advance(0.6)
                assert task.result().effect is AnswerEffect.DENY
                assert not task.result().disagreed

    run(test)


def test_an_answer_that_ends_while_others_are_waited_for_does_not_count() -> None:
    async def test(service: Service) -> None:
        point = await service.point(mode=AnswerMode.parse("newest:0.5"))
        async with asking(point) as task:
            await service.say(answer(until=NOW + timedelta(seconds=0.2)))
            await service.clock.advance(0.6)
            with refused("pep.not-believed"):
                await task
            assert point.counts["late"] == 1

    run(test)


def test_an_answer_does_not_count_if_newer_policies_are_seen_while_it_waits() -> None:
    async def test(service: Service) -> None:
        point, other = await service.point(mode=AnswerMode.parse("n:2")), AccessQuestion.of(("u", "b"), "r", ("d", "1"))
        async with asking(point) as task:
            await service.say(answer(rests_on=(OLD,)))
            async with asking(point, other) as newer:
                for key in (PDP, OTHER):
                    await service.say(answer(other, key=key, rests_on=(NEW,)), key, other.digest)
                assert newer.result().permits()
            await service.say(answer(key=OTHER, rests_on=(NEW,)), OTHER)
            assert (task.done(), point.counts["stale"]) == (False, 1)
            await service.say(answer(issued=NOW + timedelta(seconds=1), rests_on=(NEW,)))
            assert task.result().permits()

    run(test)


def test_a_point_makes_nothing_stale_about_which_it_may_not_decide() -> None:
    async def test(service: Service) -> None:
        invoice = AccessQuestion.of(("user", "alice"), "read", ("invoice", "1"))
        rights = rights_of(grant(PDP), grant(OTHER, kind="invoice"))
        point = await service.point(mode=AnswerMode.parse("n:1"), rights=rights)
        for question in (invoice, QUESTION, invoice):
            async with asking(point, question) as task:
                # It names a policy of others, and a later change.
                await service.say(answer(question, key=OTHER, rests_on=(NEW,)), OTHER, question.digest)
                assert task.done() is (question is invoice)
                await service.say(answer(question, rests_on=(OLD,)), at=question.digest)
                assert task.result().permits()
        assert point.counts["stale"] == 0
        async with asking(point, invoice) as task:
            await service.say(answer(invoice, rests_on=(OLD,)), at=invoice.digest)
            assert (task.done(), point.counts["stale"]) == (False, 1)

    run(test)


def document(name: str) -> AccessQuestion:
    return AccessQuestion.of(("user", "alice"), "read", ("document", name))


def test_the_point_that_answered_first_is_asked_alone() -> None:
    async def test(service: Service) -> None:
        first, second = Policies({"1": XacmlDecision.PERMIT, "2": XacmlDecision.DENY}), Policies()
        await service.decide(PDP, first)
        point = await service.point()
        assert (await point.ask(document("unknown"))).effect is AnswerEffect.NOT_APPLICABLE
        assert (await point.ask(document("1"))).permits()
        await service.decide(OTHER, second)
        assert (await point.ask(document("2"))).effect is AnswerEffect.DENY
        # Neither NotApplicable nor another resource type makes a point preferred.
        assert ([sample.key for sample in service.alone], second.asked) == ([str(PDP.principal)], [])
        assert (await point.ask(AccessQuestion.of(("user", "alice"), "read", ("invoice", "1")))).answers
        await service.clock.advance(1.1)
        assert (await point.ask(document("2"))).answers
        assert (len(service.alone), len(service.requests), len(second.asked)) == (1, 4, 2)

    run(test)


def test_all_are_asked_when_the_one_that_is_asked_alone_is_silent() -> None:
    async def test(service: Service) -> None:
        gone = await service.decide(PDP, Policies())
        point = await service.point()
        assert (await point.ask(document("1"))).permits()
        await gone.close()
        await service.decide(OTHER, Policies())
        async with asking(point, document("2")) as task:
            assert len(service.requests) == 1
            await service.clock.advance(0.06)
            await settled()
            assert (task.result().permits(), point.counts["asked-again"], len(service.requests)) == (True, 1, 2)
        # Nobody is asked alone for a while.
        for number in range(3):
            assert (await point.ask(document(f"{number}"))).permits()
        assert (len(service.requests), point.counts["asked-again"]) == (5, 1)
        await service.clock.advance(61)
        for number in range(3):
            assert (await point.ask(document(f"{number}"))).permits()
        assert len(service.requests) == 6

    run(test)


def test_without_any_answer_a_question_ends_as_late_as_otherwise() -> None:
    async def test(service: Service) -> None:
        gone = await service.decide(PDP, Policies())
        point = await service.point()
        assert (await point.ask(document("1"))).permits()
        await gone.close()
        async with asking(point, document("2")) as task:
            for seconds in (0.06, 1.9):
                await service.clock.advance(seconds)
                await settled()
                assert not task.done()
            await service.clock.advance(0.06)
            with refused("pep.no-answer"):
                await task

    run(test)


@pytest.mark.parametrize("mode", ["newest:0.5", "n:1", "n:2"])
def test_modes_that_compare_ask_all(mode: str) -> None:
    async def test(service: Service) -> None:
        sources = [Policies(), Policies()]
        for key, source in zip((PDP, OTHER), sources, strict=True):
            await service.decide(key, source)
        point = await service.point(mode=AnswerMode.parse(mode))
        for number in range(3):
            async with asking(point, document(f"{number}")) as task:
                await service.clock.advance(0.6)
                assert (await task).permits()
        assert [len(source.asked) for source in sources] == [3, 3]

    run(test)


def test_first_takes_older_policies_too() -> None:
    async def test(service: Service) -> None:
        point = await service.point()
        for rests_on in (NEW, OLD):
            async with asking(point) as task:
                await service.say(answer(rests_on=(rests_on,)))
                assert task.result().permits()

    run(test)


def test_incomparable_answers_are_refused_with_an_alarm() -> None:
    async def test(service: Service) -> None:
        point = await service.point(mode=AnswerMode.parse("n:2"))
        async with asking(point) as task:
            await service.say(answer(rests_on=(OLD,)))
            await service.say(answer(rests_on=(OLD,), until=NOW + timedelta(seconds=9)))  # the same point again
            assert not task.done()
            await service.say(answer(key=OTHER, rests_on=(), effect=AnswerEffect.DENY), OTHER)
            with refused("pep.incomparable"):
                task.result()
        assert (point.counts["incomparable"], [error.code for error in service.errors]) == (1, ["pep.incomparable"])

    run(test)


def test_too_few_answers_are_refused() -> None:
    async def test(service: Service) -> None:
        point = await service.point(mode=AnswerMode.parse("n:2"))
        async with asking(point) as task:
            await service.say(answer())
            await service.clock.advance(2.1)
            with refused("pep.too-few"):
                task.result()

    run(test)


def test_a_mode_does_not_wait_beyond_the_timeout() -> None:
    async def test(service: Service) -> None:
        point = await service.point(mode=AnswerMode.parse("newest:9"), timeout=1.0)
        for expected in ("Permit", "pep.no-answer"):
            async with asking(point) as task:
                if expected == "Permit":
                    await service.say(answer())
                await service.clock.advance(0.9)
                assert not task.done()
                await service.clock.advance(0.2)
                assert task.done()
                error = task.exception()
                assert (error.code if isinstance(error, RefusedError) else task.result().effect) == expected

    run(test)


class Blocked(EmbeddedFabric):
    """A fabric on which nothing can be sent."""

    async def carry(self, topic: Any, sample: Sample) -> Sample:
        """Wait for good."""
        await asyncio.Event().wait()
        return sample


def test_a_request_that_cannot_be_sent_keeps_nobody() -> None:
    async def whole() -> None:
        async with (
            asyncio.timeout(60),
            Blocked() as fabric,
            EnforcementPoint(fabric, PEP, rights_of(), timeout=0.05) as point,
        ):
            with refused("pep.unreachable"):
                await point.ask(QUESTION)
        async with (
            Blocked() as fabric,
            EnforcementPoint(fabric, PEP, rights_of()) as point,
            asking(point) as first,
            asking(point) as second,
        ):
            first.cancel()
            with refused("pep.unreachable"):
                await second

    asyncio.run(whole())


def test_a_closed_point_refuses() -> None:
    async def test(service: Service) -> None:
        point = await service.point()
        async with asking(point) as task:
            await point.close()
            with refused("pep.closed"):
                await task
        await service.fabric.close()
        with refused("pep.unreachable"):
            await point.ask(QUESTION)

    run(test)


def test_points_on_a_fabric_together() -> None:
    async def test(service: Service) -> None:
        await service.decide(PDP, Policies({"report-7": XacmlDecision.PERMIT}))
        await service.decide(OTHER, Policies({"report-7": XacmlDecision.PERMIT}))
        for mode in ("first", "n:2"):
            point = await service.point(mode=AnswerMode.parse(mode))
            assert (await point.ask(QUESTION)).permits()
            other = AccessQuestion.of(("user", "alice"), "read", ("document", "unknown"))
            assert (await point.ask(other)).effect is AnswerEffect.NOT_APPLICABLE

    run(test)


class Links:
    """Links without sockets: points that are reached by a name."""

    def __init__(self, names: dict[str, "Links"], address: str, principal: Principal) -> None:
        self.names, self.address, self.principal = names, address, principal
        self.take: TakeMessage | None = None
        self.sent = 0
        names[address] = self

    def listen(self, take: TakeMessage) -> None:
        self.take = take

    async def send(self, address: str, principal: Principal, data: bytes) -> None:
        if not self.try_send(address, principal, data):
            raise FailedError("link.unreachable", "nobody is there")

    def try_send(self, address: str, principal: Principal, data: bytes) -> bool:
        found = self.names.get(address)
        if found is None or found.principal != principal or found.take is None:
            return False
        self.sent += 1

        def reply(answered: bytes, to: "Links" = self, by: Principal = found.principal) -> None:
            if to.take is not None:
                to.take(by, answered, _no_reply)

        found.take(self.principal, data, reply)
        return True


def _no_reply(_data: bytes) -> None:
    raise AssertionError


def test_point_to_point_and_straight_back() -> None:
    async def test(service: Service) -> None:
        names: dict[str, Links] = {}
        pep, pdp = Links(names, "pep:1", PEP.principal), Links(names, "pdp:1", PDP.principal)
        source = Policies()
        decider = PolicyDecisionPoint(service.fabric, PDP, source, clock=service.clock, links=pdp)
        await service.stack.enter_async_context(decider)
        there, nowhere = PointAddress("pdp:1", PDP.principal), PointAddress("pdp:2", OTHER.principal)
        direct = await service.point(path=AskPath.DIRECT, links=pep, points=[nowhere, there])
        assert (await direct.ask(QUESTION)).permits()
        assert (service.requests, pep.sent, [error.code for error in service.errors]) == ([], 1, ["link.unreachable"])
        back = await service.point(path=AskPath.STRAIGHT_BACK, links=pep)
        answers = await service.fabric.subscribe(TOPICS.answers)
        assert (await back.ask(QUESTION)).permits()
        assert (len(service.requests), pdp.sent, len(answers.reader)) == (1, 1, 0)
        assert read_request(service.requests[0].data).value.reply_to == "pep:1"
        # A link does not let anybody ask in another's name.
        names["pep:1"].principal = STRANGER.principal
        async with asking(direct) as task:
            assert not task.done()
            assert decider.counts["misdirected"] == 1
        # An answer is not sent to an address at which somebody else is.
        async with asking(back) as task:
            assert not task.done()
            assert decider.counts["unsent"] == 1
        # Of several points the one that answered is asked alone, and all again when it is silent.
        names["pep:1"].principal = PEP.principal
        other, second = Links(names, "pdp:3", OTHER.principal), Policies()
        settings: Any = {"clock": service.clock, "links": other}
        await service.stack.enter_async_context(PolicyDecisionPoint(None, OTHER, second, **settings))
        both = [there, PointAddress("pdp:3", OTHER.principal)]
        direct = await service.point(path=AskPath.DIRECT, links=pep, points=both)
        before = len(source.asked) + len(second.asked)
        for number in range(3):
            assert (await direct.ask(document(f"{number}"))).permits()
        assert len(source.asked) + len(second.asked) == before + 4
        heard: list[bytes] = []
        for links in (pdp, other):
            links.listen(lambda _principal, data, _reply: heard.append(data))
        async with asking(direct, document("4")) as task:
            assert len(heard) == 1
            await service.clock.advance(0.06)
            await settled()
            assert (task.done(), heard) == (False, heard[:1] * 3)
        only = await service.point(path=AskPath.DIRECT, links=pep, points=[nowhere])
        with refused("pep.unreachable"):
            await only.ask(QUESTION)

    run(test)


def test_a_path_needs_what_it_uses() -> None:
    links = Links({}, "", PEP.principal)
    every: list[dict[str, Any]] = [
        {"path": AskPath.DIRECT},
        {"path": AskPath.DIRECT, "links": links},
        {"path": AskPath.FABRIC},
        {"path": AskPath.STRAIGHT_BACK},
        {"path": AskPath.STRAIGHT_BACK, "links": links},
    ]
    for settings in every:
        with pytest.raises(MalformedError, match=r"pep\.path"):
            EnforcementPoint(None, PEP, rights_of(), **settings)


def test_scripts_ask_without_an_event_loop() -> None:
    @asynccontextmanager
    async def opened() -> AsyncIterator[EnforcementPoint]:
        async with (
            EmbeddedFabric() as fabric,
            PolicyDecisionPoint(fabric, PDP, Policies()),
            EnforcementPoint(fabric, PEP, rights_of()) as point,
        ):
            yield point

    with BlockingPoint(opened) as point:
        for name in ("1", "2"):
            assert point.ask(AccessQuestion.of(("user", "alice"), "read", ("document", name))).permits()
    with pytest.raises(RefusedError, match=r"pep\.closed"):
        point.ask(QUESTION)


def test_a_script_that_cannot_open_its_point_ends() -> None:
    def opened() -> EnforcementPoint:
        raise FailedError("fabric.unreachable", "nobody is there")

    with pytest.raises(FailedError, match=r"fabric\.unreachable"), BlockingPoint(opened):
        pass


def test_a_point_that_cannot_start_leaves_nothing_open() -> None:
    assert asyncio.run(leaves_nothing(lambda fabric: EnforcementPoint(fabric, PEP, rights_of(grant(PDP))))) == 6

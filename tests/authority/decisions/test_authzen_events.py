"""AuthZEN over a fabric: our points pass the conformance suites, and points that are wrong on purpose do not."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.authority.decisions.kit import OTHER, PDP, PEP

from penstock.authority.decisions.authzen_conformance import (
    RESOURCE_TYPE,
    CheckResult,
    DecisionPointSuite,
    EnforcementPointSuite,
    question,
)
from penstock.authority.decisions.authzen_events import (
    AuthzenDecision,
    EventDecisionPoint,
    EventEnforcementPoint,
    EventMessage,
    EventReply,
    FabricEvents,
    request_word,
)
from penstock.authority.decisions.cloud_events import CloudEvent, instant_text, read_event, sign_event
from penstock.authority.decisions.decision_point import AskRate
from penstock.authority.decisions.questions import AccessQuestion
from penstock.errors import FailedError, MalformedError
from penstock.fabric import EmbeddedFabric
from penstock.policy.language.results import Obligation, PolicyOutcome, XacmlDecision
from penstock.policy.syntax.json.requests import Json


class LoopClock:
    """A clock without waiting: a sleep ends when everything else in the event loop had its turn many times."""

    def now(self) -> float:
        return 1_800_000_000.0

    def steady(self) -> float:
        return self.now()

    async def sleep(self, _seconds: float) -> None:
        for _ in range(300):
            await asyncio.sleep(0)


CLOCK = LoopClock()


def decide(asked: AccessQuestion, _now: datetime) -> PolicyOutcome:
    if asked.resource.id == "broken":
        raise FailedError("pdp.time", "a secret of the point")
    permitted = asked.resource.type == RESOURCE_TYPE and asked.resource.id == "permit"
    return PolicyOutcome(XacmlDecision.PERMIT if permitted else XacmlDecision.DENY)


@asynccontextmanager
async def events() -> AsyncIterator[FabricEvents]:
    async with EmbeddedFabric() as fabric:
        yield FabricEvents(fabric)


def failed(results: list[CheckResult]) -> set[str]:
    return {one.check for one in results if one.problem is not None}


# --- decision points -------------------------------------------------------------------------------------------------


async def decision_point_fails(made_by: type[EventDecisionPoint], **options: Any) -> set[str]:
    async with events() as transport:
        settings = {"senders": [PEP.public], "clock": CLOCK, **options}
        async with made_by(transport, PDP, decide, **settings):
            suite = DecisionPointSuite(transport, PEP, PDP.public, CLOCK)
            return failed(await suite.results())


def check_decision_point(made_by: type[EventDecisionPoint], **options: Any) -> set[str]:
    return asyncio.run(decision_point_fails(made_by, **options))


def test_our_decision_point_passes() -> None:
    assert check_decision_point(EventDecisionPoint) == set()


class ForgetsCorrelation(EventDecisionPoint):
    def answer(self, request: CloudEvent, now: datetime) -> CloudEvent:
        found = super().answer(request, now)
        return replace(found, extensions={"causationid": request.id})


class AnswersCopies(EventDecisionPoint):
    def _is_new(self, *_: object) -> bool:
        return True


class SaysTwo(EventDecisionPoint):
    """Writes numbers for booleans, the same id for all answers, and no errors."""

    def answer(self, request: CloudEvent, now: datetime) -> CloudEvent:
        found = super().answer(request, now)
        data = found.data.replace(b"true", b"1").replace(b"false", b"0")
        return replace(found, id="same", data=data, type=found.type.replace(".error", ".decision"))


class BelievesAnyone(EventDecisionPoint):
    """Answers whatever it can read, without looking at signatures and times."""

    async def hear(self, message: EventMessage, reply: EventReply) -> None:
        request = read_event(message.headers, message.data).unverified()
        now = datetime.fromtimestamp(CLOCK.now()).astimezone()
        await reply(EventMessage.of(sign_event(self.answer(request, now), PDP)))


class Signs(EventDecisionPoint):
    """Signs with another key than it says."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        transport, _, *rest = arguments
        super().__init__(transport, OTHER, *rest, **named)


@pytest.mark.parametrize(
    ("made_by", "wrong"),
    [
        (ForgetsCorrelation, {"D4", "D5", "D6"}),
        (AnswersCopies, {"D17"}),
        (SaysTwo, {"D1", "D2", "D3", "D7", "D8", "D9", "D10", "D11"}),
        (BelievesAnyone, {"D12", "D13", "D14", "D15", "D16", "D17"}),
        (Signs, {f"D{number}" for number in range(1, 12)}),
    ],
)
def test_wrong_decision_points_are_found(made_by: type[EventDecisionPoint], wrong: set[str]) -> None:
    assert check_decision_point(made_by) == wrong


def test_a_point_that_answers_everyone_must_be_told_so() -> None:
    assert check_decision_point(EventDecisionPoint, unsafe_unsigned=True) == {"D12"}
    assert "D12" in check_decision_point(EventDecisionPoint, senders=[], unsafe_unsigned=True)
    assert "D1" in check_decision_point(EventDecisionPoint, senders=[])


def test_a_silent_point_is_found() -> None:
    async def run() -> list[CheckResult]:
        async with events() as transport:
            return await DecisionPointSuite(transport, PEP, PDP.public, CLOCK).results()

    results = asyncio.run(run())
    assert {"D1", "D17"} <= failed(results)
    assert results[0].as_dict() == {
        "check": "D1",
        "section": "4.1",
        "title": "permits with `decision` true",
        "passed": False,
        "problem": "there was no answer",
    }


def test_only_a_sender_itself_uses_up_its_rate_and_its_ids() -> None:
    async def run() -> list[int]:
        async with events() as transport:
            rate = AskRate(0.0, 2.0)
            senders = [PEP.public, OTHER.public]
            async with EventDecisionPoint(transport, PDP, decide, senders=senders, clock=CLOCK, rate=rate) as point:
                mine, theirs = (DecisionPointSuite(transport, key, PDP.public, CLOCK) for key in (PEP, OTHER))
                request = mine.request(question("permit"))
                # Another sender with the same source and id, before and after.
                asked = [sign_event(request, key) for key in (OTHER, PEP, OTHER)]
                asked += [sign_event(mine.request(question("permit")), PEP) for _ in range(2)]
                found = [len(await theirs.answers(one, most=1, seconds=1)) for one in asked]
                assert point.counts == {"answers": 3, "copies": 1, "limited": 1}
                return found

    assert asyncio.run(run()) == [1, 1, 0, 1, 0]


# --- enforcement points ----------------------------------------------------------------------------------------------


async def enforcement_point_fails(made_by: type[EventEnforcementPoint], **options: Any) -> set[str]:
    async with events() as transport:
        point = made_by(transport, PEP, **{"points": [PDP.public], "clock": CLOCK, **options})

        async def make_ask(asked: Mapping[str, Json]) -> Json:
            return {"decision": (await point.evaluate(asked)).decision}

        return failed(await EnforcementPointSuite(transport, PDP, PEP.public, CLOCK, make_ask=make_ask).results())


def check_enforcement_point(made_by: type[EventEnforcementPoint], **options: Any) -> set[str]:
    return asyncio.run(enforcement_point_fails(made_by, **options))


def test_our_enforcement_point_passes() -> None:
    assert check_enforcement_point(EventEnforcementPoint) == set()


class TakesAnything(EventEnforcementPoint):
    """Takes the first answer, whoever has signed it."""

    def _take(self, message: EventMessage, _request: CloudEvent) -> Any:
        import json  # noqa: PLC0415  # a point of somebody else

        return json.loads(message.data)


class AsksUnsigned(EventEnforcementPoint):
    async def _ask(self, kind: str, word: str, request: Mapping[str, Json]) -> Any:
        now = datetime.fromtimestamp(CLOCK.now()).astimezone()
        until = instant_text(now + timedelta(days=1))
        event = CloudEvent("1", "urn:me", kind, now, b"{}", "other", extensions={"expirytime": until})
        async with self._transport.ask(word, event.id, EventMessage.of(event)) as answers:
            return await self._first(answers, event)


class PermitsWithoutAnswer(EventEnforcementPoint):
    async def evaluate(self, request: Mapping[str, Json]) -> AuthzenDecision:
        found = await super().evaluate(request)
        return AuthzenDecision(True) if found.refused == "authzen.no-answer" else found


@pytest.mark.parametrize(
    ("made_by", "wrong"),
    [
        (TakesAnything, {"E7", "E8", "E9", "E10", "E11", "E12", "E13", "E14"}),
        (AsksUnsigned, {"E1", "E2", "E3"}),
        (PermitsWithoutAnswer, {"E7", "E8", "E9", "E10", "E11", "E12", "E15"}),
    ],
)
def test_wrong_enforcement_points_are_found(made_by: type[EventEnforcementPoint], wrong: set[str]) -> None:
    assert check_enforcement_point(made_by) == wrong


# --- both ------------------------------------------------------------------------------------------------------------


def both(
    ask: Callable[[EventEnforcementPoint], Awaitable[Any]], deciding: Callable[..., PolicyOutcome] = decide
) -> Any:
    async def run() -> Any:
        async with (
            events() as transport,
            EventDecisionPoint(transport, PDP, deciding, senders=[PEP.public], clock=CLOCK),
        ):
            return await ask(EventEnforcementPoint(transport, PEP, points=[PDP.public], clock=CLOCK))

    return asyncio.run(run())


def test_a_batch_has_a_decision_for_each_question() -> None:
    items: list[Json] = [{"resource": question(one)["resource"]} for one in ("permit", "deny", "broken", "permit")]
    batch: dict[str, Json] = {**question("x"), "evaluations": items}
    found = both(lambda point: point.evaluate_all(batch))
    assert [one.decision for one in found] == [True, False, False, True]
    # Askers do not see problems of the point.
    assert found[2].context["error"] == {"code": "pdp.time", "message": "no decision can be made now"}
    ended: dict[str, Json] = {**batch, "options": {"evaluations_semantic": "deny_on_first_deny"}}
    found = both(lambda point: point.evaluate_all(ended))
    assert [one.refused for one in found] == [None, None, "authzen.ended", "authzen.ended"]


def test_obligations_are_in_the_context() -> None:
    def obliged(_asked: AccessQuestion, _now: datetime) -> PolicyOutcome:
        return PolicyOutcome(XacmlDecision.PERMIT, obligations=(Obligation("log"),))

    found = both(lambda point: point.evaluate(question("permit")), obliged)
    assert found == AuthzenDecision(True, {"obligations": [{"id": "log", "attributes": []}]})


def test_a_point_that_cannot_decide_says_so_without_its_secrets() -> None:
    found = both(lambda point: point.evaluate(question("broken")))
    error: Json = {"code": "pdp.time", "message": "no decision can be made now"}
    assert found == AuthzenDecision(False, {"error": error}, "authzen.refused")


def test_what_is_not_a_question_is_not_asked() -> None:
    for wrong in ({}, {**question("x"), "action": {}}, {**question("x"), "context": {"x": object()}}):
        with pytest.raises(MalformedError):
            both(lambda point, wrong=wrong: point.evaluate(wrong))  # type: ignore[misc]
    with pytest.raises(MalformedError):
        both(lambda point: point.evaluate_all({"evaluations": []}))


def test_words_are_tokens_of_subjects() -> None:
    words = [request_word(one) for one in ("", "a", "a.b", "*", ">", "=", "=2E", "é", "a b")]
    assert len({*words}) == len(words)
    assert all(word.replace("=", "").isalnum() or word == "=" for word in words)

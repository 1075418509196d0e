"""Answers of remote decision points: only a permit permits, and only for types of the owners that count."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.guard.london import BILLING, NETWORK, NOW, PITO, V8516

from penstock.guard import Effect, EventRequest, NetworkRequest, decide
from penstock.guard.point_answers import PointAnswer, PointAnswers, PointQuestion
from penstock.model.limits import CACHE_ENTRIES
from penstock.model.names import TypeKey
from penstock.trust.capabilities import Right

LONDON, READER = PITO.principal, BILLING.principal
REQUEST = EventRequest(READER, Right.SUBSCRIBE, V8516, NOW)
QUESTION = PointQuestion(READER, Right.SUBSCRIBE, V8516.event_type.key)
MINUTE = timedelta(minutes=1)
PERMIT, DENY = (PointAnswer(permits, NOW + MINUTE, ("point:p",)) for permits in (True, False))


@pytest.fixture
def answers() -> PointAnswers:
    return PointAnswers({LONDON})


def test_without_an_answer_nothing_is_permitted_and_the_question_is_remembered(answers: PointAnswers) -> None:
    found = decide(REQUEST, [answers])
    assert (found.effect, found.errors[0].code) == (Effect.INDETERMINATE, "pep.unknown")
    assert [*answers.questions] == [QUESTION]


def test_a_permit_is_for_the_whole_type_and_this_request_only(answers: PointAnswers) -> None:
    decide(REQUEST, [answers])
    assert answers.put(QUESTION, PERMIT)
    found = decide(REQUEST, [answers])
    assert (found.effect, found.because) == (Effect.PERMIT, ("point:p",))
    assert [branch.attributes for branch in found.restriction.branches] == [None]
    for other in (replace(REQUEST, principal=LONDON), replace(REQUEST, action=Right.PUBLISH)):
        assert decide(other, [answers]).effect is Effect.INDETERMINATE


def test_an_answer_that_has_ended_permits_nothing(answers: PointAnswers) -> None:
    decide(REQUEST, [answers])
    answers.put(QUESTION, PERMIT)
    for now in (NOW + MINUTE, NOW + 2 * MINUTE, None):
        found = decide(replace(REQUEST, now=now), [answers])
        assert (found.effect, found.errors[0].code) == (Effect.INDETERMINATE, "pep.unknown")


def test_a_denial_is_a_refusal_and_no_error(answers: PointAnswers) -> None:
    decide(REQUEST, [answers])
    assert answers.put(QUESTION, DENY)
    found = decide(REQUEST, [answers])
    assert (found.effect, found.errors[0].code) == (Effect.DENY, "pep.denied")


def test_only_another_permission_is_a_change(answers: PointAnswers) -> None:
    decide(REQUEST, [answers])
    changes = [answers.put(QUESTION, one) for one in (None, PERMIT, replace(PERMIT, by=()), DENY, DENY, None, PERMIT)]
    assert changes == [False, True, False, True, False, True, True]
    # What nobody has asked is not kept.
    assert not answers.put(replace(QUESTION, principal=LONDON), PERMIT)
    assert [*answers.questions] == [QUESTION]


def test_others_types_networks_and_rights_are_not_decided(answers: PointAnswers) -> None:
    requests = (
        replace(REQUEST, action=Right.MANAGE),
        NetworkRequest(READER, Right.CONNECT, NETWORK, NOW),
    )
    for request in requests:
        assert decide(request, [answers]).effect is Effect.DENY
    assert decide(REQUEST, [PointAnswers({READER})]).effect is Effect.DENY
    assert not answers.questions


def test_the_oldest_questions_are_forgotten(answers: PointAnswers) -> None:
    for number in range(CACHE_ENTRIES + 3):
        answers.answer(replace(QUESTION, type=TypeKey(LONDON, f"t{number}")))
    assert len(answers.questions) == CACHE_ENTRIES
    assert next(iter(answers.questions)).type.name == "t3"

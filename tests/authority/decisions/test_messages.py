"""Requests and answers: what was signed is read again, and fields that do not fit each other are refused."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from tests.authority.decisions.kit import NOW, PDP, PEP, POLICY, QUESTION, STRANGER, answer, request
from tests.spoiled import flipped, spoiled

from penstock.authority.decisions.messages import (
    AccessAnswer,
    AnswerDuty,
    AnswerEffect,
    LabelRecycling,
    PolicyRevision,
    RoleRecycling,
    duties_of,
    read_answer,
    read_request,
)
from penstock.authority.limits import ANSWER_ACTIONS, ANSWER_BYTES, ANSWER_DUTIES, ANSWER_PERIOD, ANSWER_POLICIES
from penstock.errors import LimitError, MalformedError, PenstockError, RefusedError
from penstock.policy.language.datatypes import INTEGER
from penstock.policy.language.results import Assigned, Obligation, PolicyOutcome, XacmlDecision
from penstock.trust.signed import sign_value

LABELS = LabelRecycling(frozenset({"read", "list"}), frozenset({"append"}), frozenset({"write"}), AnswerEffect.DENY)
DUTY = AnswerDuty("urn:log", (("text", "string", "seen"),))
ANSWERS = (
    answer(),
    answer(effect=AnswerEffect.DENY, recycling=RoleRecycling("roles"), holds_for="resource.id = 'report-7'"),
    answer(effect=AnswerEffect.DENY, recycling=LABELS, advice=(DUTY,)),
    answer(effect=AnswerEffect.INDETERMINATE, status="pdp.time", rests_on=()),
    answer(effect=AnswerEffect.NOT_APPLICABLE, obligations=(DUTY, AnswerDuty("urn:seal"))),
)
SIGNED = [sign_value(one, PDP).to_bytes() for one in ANSWERS]
ASKED = [sign_value(one, PEP).to_bytes() for one in (request(), request(reply_to="127.0.0.1:7400", number=9))]


@pytest.mark.parametrize(("found", "data"), [*zip(ANSWERS, SIGNED, strict=True)])
def test_an_answer_is_read_as_it_was_signed(found: AccessAnswer, data: bytes) -> None:
    assert read_answer(data).verify().value == found


def test_a_request_is_read_as_it_was_signed() -> None:
    read = read_request(ASKED[1]).verify().value
    assert read == request(reply_to="127.0.0.1:7400", number=9)
    assert (read.question, read.until) == (QUESTION, NOW + timedelta(seconds=5))


@given(spoiled(SIGNED))
def test_a_spoiled_answer_is_refused(data: bytes) -> None:
    try:
        read_answer(data).verify()
    except PenstockError:
        return
    assert data in SIGNED


@given(spoiled(ASKED))
def test_a_spoiled_request_is_refused(data: bytes) -> None:
    try:
        read_request(data).verify()
    except PenstockError:
        return
    assert data in ASKED


def test_each_bit_of_an_answer_counts() -> None:
    for place in range(0, len(SIGNED[0]), 7):
        with pytest.raises(PenstockError):
            read_answer(flipped(SIGNED[0], place)).verify()


def test_a_request_is_not_an_answer() -> None:
    with pytest.raises(MalformedError, match=r"evolution\.malformed"):
        read_answer(ASKED[0])
    with pytest.raises(MalformedError, match=r"evolution\.malformed"):
        read_request(SIGNED[0])
    with pytest.raises(LimitError, match=r"pdp\.limit"):
        read_answer(b" " * (ANSWER_BYTES + 1))


def test_an_answer_in_another_name_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"evolution\.wrong-key"):
        sign_value(answer(), STRANGER)


@pytest.mark.parametrize(
    "changed",
    [
        {"until": NOW - timedelta(microseconds=1)},
        {"until": NOW + timedelta(milliseconds=ANSWER_PERIOD + 1)},
        {"effect": AnswerEffect.INDETERMINATE},
        {"status": "pdp.time"},
        {"obligations": (DUTY,) * (ANSWER_DUTIES + 1)},
        {"rests_on": (POLICY, POLICY)},
        {"rests_on": tuple(PolicyRevision(f"p{number}", "1", NOW) for number in range(ANSWER_POLICIES + 1))},
        {"rests_on": (PolicyRevision("", "1", NOW),)},
        {"rests_on": (PolicyRevision("p" * 1_001, "1", NOW),)},
        {"obligations": (DUTY,), "holds_for": "TRUE"},
        {"effect": AnswerEffect.NOT_APPLICABLE, "recycling": RoleRecycling("roles")},
        {"recycling": LabelRecycling(frozenset({"read"}), frozenset({"append"}), frozenset({"read"}))},
        {"recycling": LabelRecycling(frozenset(), frozenset({"append"}), frozenset({"write"}))},
        {
            "recycling": LabelRecycling(
                frozenset(map(str, range(ANSWER_ACTIONS + 1))), frozenset({"append"}), frozenset({"write"})
            )
        },
        {
            "recycling": LabelRecycling(
                frozenset({"read"}), frozenset({"append"}), frozenset({"write"}), AnswerEffect.INDETERMINATE
            )
        },
    ],
)
def test_fields_that_do_not_fit_each_other_are_refused(changed: Any) -> None:
    with pytest.raises(MalformedError, match=r"evolution\.malformed"):
        sign_value(answer(**changed), PDP)


def test_a_request_must_last_for_a_while() -> None:
    with pytest.raises(MalformedError, match=r"evolution\.malformed"):
        sign_value(request(lifespan=0), PEP)


def test_obligations_are_written_with_their_types() -> None:
    outcome = PolicyOutcome(
        XacmlDecision.PERMIT,
        obligations=(Obligation("urn:count", (Assigned("most", INTEGER, 7),)),),
        advice=(Obligation("urn:say"),),
    )
    assert duties_of(outcome) == (
        (AnswerDuty("urn:count", (("most", "http://www.w3.org/2001/XMLSchema#integer", "7"),)),),
        (AnswerDuty("urn:say"),),
    )
    assert AnswerEffect.of(XacmlDecision.INDETERMINATE_DP) is AnswerEffect.INDETERMINATE

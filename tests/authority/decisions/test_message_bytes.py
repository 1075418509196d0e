"""The quick way of writing and reading messages gives what the general way gives."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.authority.decisions.kit import NOW, PDP, PEP, QUESTION, STRANGER, answer, request
from tests.authority.decisions.test_questions import QUESTIONS
from tests.spoiled import spoiled

from penstock.authority.decisions import message_bytes
from penstock.authority.decisions.message_bytes import (
    answer_bytes,
    answer_from_bytes,
    request_bytes,
    request_from_bytes,
)
from penstock.authority.decisions.messages import (
    AccessAnswer,
    AccessRequest,
    AnswerDuty,
    AnswerEffect,
    PolicyRevision,
    RoleRecycling,
    read_answer,
    read_request,
)
from penstock.authority.limits import REQUEST_LIFESPAN
from penstock.errors import PenstockError
from penstock.trust.limits import POLICY_NUMBER
from penstock.trust.signed import UnverifiedValue, sign_value

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
TIMES = st.datetimes(datetime(1, 1, 1), datetime(9000, 1, 1)).map(lambda time: time.replace(tzinfo=UTC))  # noqa: DTZ001
REQUESTS = st.builds(
    lambda question, number, time, lifespan, reply_to: AccessRequest(
        question, PEP.principal, number, time, lifespan, reply_to
    ),
    QUESTIONS,
    st.integers(-1, POLICY_NUMBER + 1),
    TIMES,
    st.integers(-1, 9) | st.integers(REQUEST_LIFESPAN - 1, REQUEST_LIFESPAN + 1),
    st.none() | TEXTS | st.just("127.0.0.1:7400"),
)
ANSWERS = st.builds(
    lambda effect, policies, time, more, changed: answer(
        effect=effect,
        rests_on=tuple(PolicyRevision(name, revision, moment) for name, revision, moment in policies),
        issued=time,
        until=time + timedelta(microseconds=more),
        **changed,
    ),
    st.sampled_from([AnswerEffect.PERMIT, AnswerEffect.DENY, AnswerEffect.NOT_APPLICABLE, AnswerEffect.INDETERMINATE]),
    st.lists(st.tuples(TEXTS, TEXTS, TIMES), min_size=1, max_size=1) | st.lists(st.tuples(TEXTS, TEXTS, TIMES)),
    TIMES,
    st.integers(-1, 10**8),
    st.sampled_from(
        [
            *({}, {}, {"holds_for": "resource.id = '7'"}, {"holds_for": "é"}, {"holds_for": ""}),
            *({"status": "pdp.time"}, {"recycling": RoleRecycling("roles")}, {"advice": (AnswerDuty("urn:log"),)}),
        ]
    ),
)


def result(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (PenstockError, UnicodeEncodeError) as error:
        return getattr(error, "code", type(error))


def parts(found: Any) -> Any:
    if not isinstance(found, UnverifiedValue):
        return found
    return found.value, found.digest, found.body, found.key, found.signature


@given(REQUESTS)
def test_requests_are_written_and_read_as_in_the_general_way(asked: AccessRequest) -> None:
    written = result(lambda: sign_value(asked, PEP).to_bytes())
    assert result(lambda: request_bytes(asked, PEP)) == written
    if isinstance(written, bytes):
        assert parts(request_from_bytes(written)) == parts(read_request(written))


@given(ANSWERS)
def test_answers_are_written_and_read_as_in_the_general_way(found: AccessAnswer) -> None:
    written = result(lambda: sign_value(found, PDP).to_bytes())
    assert result(lambda: answer_bytes(found, PDP)) == written
    if isinstance(written, bytes):
        assert parts(answer_from_bytes(written)) == parts(read_answer(written))


ASKED = [request_bytes(request(), PEP), request_bytes(request(reply_to="[::1]:7400", number=0), PEP)]
SAID = [answer_bytes(answer(), PDP), answer_bytes(answer(effect=AnswerEffect.DENY, holds_for="(a) = 'b'"), PDP)]


def resigned(data: bytes) -> bytes:
    """Return data whose hash is right, so that not everything ends at the hash."""
    found = re.fullmatch(rb"\(8:sequence(.*)(\(9:signature\(4:hash6:sha25632:)(.{32})(.*)", data, re.DOTALL)
    if found is None:
        return data
    hashed = sha256(found[1]).digest()
    return b"".join((b"(8:sequence", found[1], found[2], hashed, found[4]))


@given(spoiled(ASKED))
def test_spoiled_requests_are_read_as_in_the_general_way(data: bytes) -> None:
    for each in (data, resigned(data)):
        assert parts(result(partial(request_from_bytes, each))) == parts(result(partial(read_request, each)))


@given(spoiled(SAID))
def test_spoiled_answers_are_read_as_in_the_general_way(data: bytes) -> None:
    for each in (data, resigned(data)):
        assert parts(result(partial(answer_from_bytes, each))) == parts(result(partial(read_answer, each)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"(6:number1:1)", b"(6:number2:01)"),
        (b"(6:number1:1)", b"(6:number2:00)"),
        (b"(6:number1:1)", b"(6:number1:12)"),
        (b"(8:lifespan4:5000)", b"(8:lifespan5:60001)"),
        (b"(8:lifespan4:5000)", b"(8:lifespan1:0)"),
        (b"(4:time19:2026-01-01_12:00:00)", b"(4:time26:2026-01-01_12:00:00.000000)"),
        (b"(4:time19:2026-01-01_12:00:00)", b"(4:time19:2026-13-01_12:00:00)"),
        (b"(4:time19:2026-01-01_12:00:00)", b"(4:time10:2026-01-01)"),
        (b"(6:number1:1)", b"(6:number1:1)(6:number1:1)"),
    ],
)
def test_what_has_another_written_form_is_refused(old: bytes, new: bytes) -> None:
    changed = resigned(ASKED[0].replace(old, new))
    assert changed != ASKED[0]
    assert parts(result(lambda: request_from_bytes(changed))) == result(lambda: read_request(changed))


def test_the_quick_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sign_value", "read_request", "read_answer"):
        monkeypatch.delattr(message_bytes, name)
    for data in (request_bytes(request(), PEP), *ASKED):
        assert request_from_bytes(data).verify().value.question == QUESTION
    for data in (answer_bytes(answer(), PDP), *SAID):
        assert answer_from_bytes(data).verify().to_bytes() == data
    with pytest.raises(NameError):
        request_bytes(request(time=NOW), STRANGER)

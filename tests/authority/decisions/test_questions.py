"""Questions are equal if they are written equally, and are read in no other form."""

import hashlib
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.authority.decisions.kit import QUESTION
from tests.spoiled import spoiled

from penstock.authority.decisions.questions import AccessQuestion, Entity, facts_of, read_question
from penstock.authority.limits import QUESTION_BYTES
from penstock.errors import LimitError, MalformedError
from penstock.policy.language.datatypes import INTEGER
from penstock.policy.language.requests import SUBJECT, key_of

ASCII = st.text(st.characters(max_codepoint=127), min_size=1, max_size=6)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | NAMES
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=4
)
PROPERTIES = st.dictionaries(NAMES, VALUES, max_size=2)
ENTITIES = st.builds(Entity, NAMES, NAMES, PROPERTIES)
ACTIONS = st.builds(Entity, st.just(""), NAMES, PROPERTIES)
QUESTIONS = st.builds(AccessQuestion, ENTITIES, ACTIONS, ENTITIES, PROPERTIES)
SAMPLES = (
    QUESTION.written,
    AccessQuestion.of(
        Entity("user", "bob", {"roles": ["clerk", "nurse"], "age": 41, "height": 1.75, "on": True}),
        Entity("", "write", {"why": {"case": "7"}}),
        Entity("record", "é\u2028", {"status": None}),
        {"place": "ward"},
    ).written,
)


@given(QUESTIONS)
def test_a_question_is_read_as_it_was_written(question: AccessQuestion) -> None:
    again = AccessQuestion.from_bytes(question.written)
    assert again == read_question(json.loads(question.written))
    assert (again, hash(again), again.digest) == (question, hash(question), question.digest)
    assert again.written == question.written
    assert question.digest == hashlib.sha256(question.written).digest()


@given(spoiled(SAMPLES))
def test_other_bytes_are_refused_or_another_question(data: bytes) -> None:
    try:
        question = AccessQuestion.from_bytes(data)
    except (MalformedError, LimitError):
        return
    # What was read keeps its bytes: a copy is written again.
    copy = AccessQuestion(question.subject, question.action, question.resource, question.context)
    assert copy.written == question.written == data


@given(st.builds(AccessQuestion.of, st.tuples(ASCII, ASCII), ASCII, st.tuples(ASCII, ASCII)), st.data())
def test_plain_questions_are_read_as_json_is(question: AccessQuestion, data: st.DataObject) -> None:
    written = question.written
    at = data.draw(st.integers(0, len(written)))
    for found in (
        written,
        written[:at] + data.draw(st.sampled_from([b'"', b"\\", b"\x7f", b" ", b"\n"])) + written[at:],
    ):
        try:
            naive = read_question(json.loads(found))
        except (ValueError, MalformedError):
            naive = None
        try:
            read = AccessQuestion.from_bytes(found)
        except MalformedError:
            assert naive is None or naive.written != found
        else:
            assert naive is not None
            assert (naive.written, read.subject, read.action) == (found, naive.subject, naive.action)
            assert (read.resource, read.context) == (naive.resource, naive.context)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"7",
        QUESTION.written + b" ",
        QUESTION.written.replace(b'"alice"', b'"\\u0061lice"'),
        QUESTION.written.replace(b'"id":"alice"', b'"id":"bob","id":"alice"'),
        QUESTION.written.replace(b'"type":"user"', b'"type":"user","unknown":1'),
        QUESTION.written[:-1] + b',"unknown":1}',
        QUESTION.written.replace(b'"name":"read"', b'"name":"read","properties":{}'),
        QUESTION.written.replace(b'"alice"', b'""'),
        QUESTION.written.replace(b'"alice"', b"7"),
        b"[" * 100_000,
    ],
)
def test_only_the_written_form_is_read(data: bytes) -> None:
    with pytest.raises(MalformedError, match=r"pdp\.request"):
        AccessQuestion.from_bytes(data)


def test_numbers_of_different_types_are_different_questions() -> None:
    one, real, true = (
        AccessQuestion.of(Entity("user", "alice", {"level": value}), "read", ("document", "1"))
        for value in (1, 1.0, True)
    )
    assert len({one, real, true, AccessQuestion.from_bytes(one.written)}) == 3
    assert facts_of(one)[key_of(SUBJECT, "level", INTEGER)] == (1,)
    assert key_of(SUBJECT, "level", INTEGER) not in facts_of(real)
    assert one.request().facts() == facts_of(one)


def test_members_in_another_order_and_empty_members_are_the_same_question() -> None:
    found: dict[str, Any] = {
        "resource": {"type": "document", "id": "report-7", "properties": {}},
        "subject": {"id": "alice", "type": "user"},
        "context": {},
        "action": {"name": "read"},
    }
    assert read_question(found) == QUESTION
    assert read_question(found) != object()


@pytest.mark.parametrize("value", [math.nan, math.inf, {"deep": [-math.inf]}, "\ud800", object()])
def test_values_that_json_does_not_have_are_refused(value: Any) -> None:
    question = AccessQuestion.of(("user", "alice"), "read", ("document", "1"), {"value": value})
    with pytest.raises(MalformedError, match=r"pdp\.request"):
        _ = question.written


def test_a_long_question_is_refused() -> None:
    long = AccessQuestion.of(("user", "a" * QUESTION_BYTES), "read", ("document", "1"))
    with pytest.raises(LimitError, match=r"pdp\.limit"):
        _ = long.written
    with pytest.raises(LimitError, match=r"pdp\.limit"):
        AccessQuestion.from_bytes(b" " * (QUESTION_BYTES + 1))

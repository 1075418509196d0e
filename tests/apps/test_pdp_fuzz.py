"""Whatever is asked, the service answers: with a decision, or with what is wrong with the question."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.apps.pdp_kit import ALICE, ASKED, READ, RECORD, TODO

from penstock.apps.http.bundles import load
from penstock.apps.http.places import AUTHORIZE, ENDPOINTS
from penstock.apps.http.server import Asked
from penstock.apps.http.service import DecisionService, Settings

SERVICE = DecisionService(load(TODO), Settings("https://pdp.example.com"))
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["user", "a.b"])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
PARTS: list[Any] = [ALICE, READ, RECORD, {}, {"type": "user"}, {"type": "record"}]
ENTITIES = st.sampled_from(PARTS) | st.fixed_dictionaries(
    {"type": VALUES, "id": VALUES, "name": VALUES, "properties": VALUES}
)
QUESTIONS = st.dictionaries(
    st.sampled_from([*ASKED, "context", "evaluations", "options", "page"]),
    ENTITIES | VALUES | st.lists(st.dictionaries(st.sampled_from([*ASKED]), ENTITIES, max_size=3), max_size=3),
)


def asked(path: str, body: bytes, kind: bytes = b"application/json") -> int:
    answer = SERVICE.answer(Asked(b"POST", path.encode(), {b"content-type": kind, b"x-request-id": b"1"}, body))
    assert b"Traceback" not in answer.body
    assert answer.headers.endswith(b"X-Request-ID: 1\r\n")
    if answer.content_type == "application/json":
        json.loads(answer.body)
    return answer.status.value


@pytest.mark.parametrize("path", ENDPOINTS.values())
@settings(max_examples=60, deadline=None)
@given(question=QUESTIONS)
def test_questions_of_all_kinds(path: str, question: dict[str, Any]) -> None:
    assert asked(path, json.dumps(question).encode()) in (200, 400)


@settings(max_examples=60, deadline=None)
@given(body=st.binary(max_size=40) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_bodies_of_all_kinds(body: bytes) -> None:
    for path in (*ENDPOINTS.values(), AUTHORIZE):
        assert asked(path, body) == 400
    assert asked(AUTHORIZE, body, b"application/xml") == 400

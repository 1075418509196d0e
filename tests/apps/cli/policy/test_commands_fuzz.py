"""Whatever is asked, the service answers: with a decision, or with what is wrong with the question."""

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.apps.pdp_kit import ALICE, ASKED, EVALUATION, READ, RECORD, TODO
from tests.budget import examples
from tests.spoiled import spoiled

from penstock.apps.http.bundles import load
from penstock.apps.http.decisions import Deciding
from penstock.apps.http.limits import ServiceLimits
from penstock.apps.http.server import AUTHORIZE, ENDPOINTS, HttpRequest
from penstock.apps.http.service import DecisionService, ServiceSettings
from penstock.errors import MalformedError
from penstock.policy.syntax.json.requests import read_json

SERVICE = DecisionService(load(TODO), ServiceSettings("https://pdp.example.com"))
NOW = datetime(2026, 5, 1, tzinfo=UTC)
DELETE = {"name": "delete", "properties": {"soft": True}}
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
    answer = SERVICE.answer(HttpRequest(b"POST", path.encode(), {b"content-type": kind, b"x-request-id": b"1"}, body))
    assert b"Traceback" not in answer.body
    assert answer.headers.endswith(b"X-Request-ID: 1\r\n")
    if answer.content_type == "application/json":
        json.loads(answer.body)
    return answer.status.value


@pytest.mark.parametrize("path", ENDPOINTS.values())
@settings(max_examples=examples(25))
@given(question=QUESTIONS)
def test_questions_of_all_kinds(path: str, question: dict[str, Any]) -> None:
    assert asked(path, json.dumps(question).encode()) in (200, 400)


@settings(max_examples=examples(25))
@given(body=st.binary(max_size=40) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_bodies_of_all_kinds(body: bytes) -> None:
    for path in (*ENDPOINTS.values(), AUTHORIZE):
        assert asked(path, body) == 400
    assert asked(AUTHORIZE, body, b"application/xml") == 400


WHOLE = json.dumps(ASKED).encode()
SPOILED = spoiled(
    [
        WHOLE,
        json.dumps({**ASKED, "context": {"soft": True, "n": 1.5, "tags": ["a", "b"]}, "action": DELETE}).encode(),
        json.dumps({**ASKED, "subject": {**ALICE, "properties": {"role": "admin", "n": 10**20, "x": None}}}).encode(),
    ]
)


@settings(max_examples=examples(120))
@given(body=SPOILED)
@example(body=WHOLE.replace(b'"id": "alice"', b'"id": "bob", "id": "alice"'))
@example(body=WHOLE.replace(b'"subject"', b'"subject": null, "subject"'))
@example(body=WHOLE.replace(b'"alice"', b'"alice", "properties": {"role": "x", "role": "admin"}'))
@example(body=WHOLE.replace(b'"alice"', b'"\\u0061lice"'))
@example(body=WHOLE.replace(b'"alice"', b'"alice\\ud800"'))
@example(body=WHOLE.replace(b'"id"', b'"\\u0069d"'))
@example(body=WHOLE.replace(b'"alice"', b'"alice", "properties": {"n": 1e999, "m": ' + b"9" * 400 + b"}"))
@example(body=b"\xef\xbb\xbf" + WHOLE)
def test_a_question_has_one_meaning_whichever_way_it_is_read(body: bytes) -> None:
    sent = HttpRequest(b"POST", EVALUATION.encode(), {b"content-type": b"application/json"}, body)
    answer = SERVICE.answer(sent)
    try:
        found: Any = read_json(body)
        expected = Deciding(SERVICE.bundle, NOW, ServiceLimits(), time.perf_counter).evaluation(found)
    except (MalformedError, AttributeError):
        # What is not an object has no members to ask for.
        assert answer.status == 400
    else:
        assert (answer.status, json.loads(answer.body)) == (200, expected)


@pytest.mark.parametrize(
    ("context", "status"),
    [
        ({"a": [1] * 200_000}, 200),
        ({"a": [1, "x", None] * 50_000}, 200),
        # Each of the names within would be as long as that of the whole.
        ({"a" * 300_000: {f"p{number}": 1 for number in range(30_000)}}, 400),
        ({"a" * 300: {"b" * 300: {"c" * 300: 1}}}, 200),
    ],
)
def test_a_question_takes_no_more_room_and_time_than_its_length(context: dict[str, Any], status: int) -> None:
    assert asked(EVALUATION, json.dumps({**ASKED, "context": context}).encode()) == status


NESTED = {
    "objects": (b'{"a":', b"1", b"}"),
    "lists": (b"[", b"", b"]"),
    "subjects": (b'{"subject":', b"1", b"}"),
    "both": (b'{"context":[', b"", b"]}"),
    "elements": (b"<Request>", b"", b"</Request>"),
}
KINDS = (b"application/json", b"application/xacml+json", b"application/xacml+xml")


@pytest.mark.parametrize("depth", [100, 900, 990, 1_000, 150_000])
@pytest.mark.parametrize("of", NESTED)
def test_what_is_nested_deeply_is_a_bad_question(of: str, depth: int) -> None:
    begin, middle, end = NESTED[of]
    body = (begin * depth + middle + end * depth)[: ServiceLimits().pdp_bytes]
    for path in ENDPOINTS.values():
        assert asked(path, body) == 400
    for kind in KINDS:
        assert asked(AUTHORIZE, body, kind) == 400


@pytest.mark.parametrize("of", ["subject", "resource", "action", "context"])
@pytest.mark.parametrize("depth", [5, 100, 900, 990, 150_000])
def test_properties_that_are_nested_deeply_are_a_bad_question(of: str, depth: int) -> None:
    deep = b'{"a":' * depth + b"1" + b"}" * depth
    whole = {"subject": ALICE, "action": READ, "resource": RECORD}
    if of == "context":
        body = json.dumps(whole).encode()[:-1] + b',"context":' + deep + b"}"
    else:
        body = json.dumps(whole | {of: {**whole[of], "properties": "DEEP"}}).encode().replace(b'"DEEP"', deep)
    assert asked(EVALUATION, body) == (200 if depth == 5 else 400)

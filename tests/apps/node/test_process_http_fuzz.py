"""The decision service over HTTP, asked all that its OpenAPI document allows, much that it does not, and plain rubbish.

Whatever comes, it answers as the document says, with no crash, no traceback and no wait, and goes on.
"""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.apps.pdp_kit import ALICE, ASKED, EVALUATION, READ, RECORD, TODO, Serving, serving
from tests.budget import examples
from tests.policy.syntax.test_parsers_fuzz import JSON_REQUEST, REQUEST
from tests.spoiled import spoiled

from penstock.apps.http.openapi import document
from penstock.apps.http.server import (
    AUTHORIZE,
    DISCOVERY,
    ENDPOINTS,
    HEALTH,
    HOME,
    JSON,
    METRICS,
    OPENAPI,
    XACML_JSON,
    XACML_XML,
)

if TYPE_CHECKING:
    from requests import Session
    from schemathesis import BaseSchema, Case

TOKEN = "0123456789abcdef" * 2
QUESTIONS = [AUTHORIZE, *ENDPOINTS.values()]
PAGES = [DISCOVERY, HOME, HEALTH, METRICS, OPENAPI]
OPERATIONS = [*((path, "POST") for path in QUESTIONS for _ in range(5)), *((path, "GET") for path in PAGES)]
SAMPLES = {
    JSON: [
        json.dumps({**ASKED, "context": {"now": 1.5, "tags": ["a", None]}}).encode(),
        json.dumps({"subject": ALICE, "action": READ, "evaluations": [{"resource": RECORD}, {}, 7]}).encode(),
        json.dumps({"subject": {"type": "user"}, "action": READ, "resource": RECORD, "page": {"limit": 1}}).encode(),
        JSON_REQUEST,
    ],
    XACML_JSON: [JSON_REQUEST],
    XACML_XML: [REQUEST],
}
HEAD = (
    f"POST {EVALUATION} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer {TOKEN}\r\n"
    f"X-Request-ID: 1\r\nContent-Length: {len(json.dumps(ASKED))}\r\n\r\n{json.dumps(ASKED)}"
).encode()
CHUNKED = (
    f"POST {EVALUATION} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer {TOKEN}\r\n"
    f"Transfer-Encoding: chunked\r\n\r\n5\r\n{json.dumps(ASKED)[:5]}\r\n"
    f"{len(json.dumps(ASKED)) - 5:x}\r\n{json.dumps(ASKED)[5:]}\r\n0\r\n\r\n"
).encode()
#: the answer to an unknown coding of a body is not a fault of the service
STATUSES = {status.value for status in HTTPStatus if status < 500 or status is HTTPStatus.NOT_IMPLEMENTED}
#: seconds that `make soak` may ask a service
SOAKED = 4 * 3_600
#: a fixture that starts the service lasts for all examples
usual = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@dataclass(frozen=True)
class Fuzzed:
    """A service, and what asks it."""

    serving: Serving
    session: "Session"


@pytest.fixture(scope="module", params=["fuzzed_pdp"])
def pdp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    """Run a service with callers and a log; in the end it has no unexpected error to tell of."""
    from requests import Session  # noqa: PLC0415  # most processes of a run never need it

    folder = tmp_path_factory.mktemp("fuzzed")
    tokens, told = folder / "tokens", folder / "told"
    tokens.write_text(f"fuzzer {TOKEN}\n")
    how = ("--tokens", str(tokens), "--log", str(folder / "log"))
    with serving(TODO, *how, log=told, longest=SOAKED) as running, Session() as session:
        yield Fuzzed(running, session)
        assert running.ask(EVALUATION, ASKED, Authorization=f"Bearer {TOKEN}").json == {"decision": True}
        assert not re.search(rb'answers_total\{status="50[03]"\}', running.send("GET", "/metrics").body)
    assert "unexpected" not in told.read_text()
    assert_whole(folder / "log")


def assert_whole(log: Path) -> None:
    """Whatever stood in the questions, a line of the log is a record."""
    for line in log.read_bytes().splitlines():
        assert json.loads(line)["data"]["endpoint"] in QUESTIONS


@cache
def schema() -> "BaseSchema":
    """Return what fuzzing uses: the document as the service serves it."""
    import schemathesis  # noqa: PLC0415  # most processes of a run never need it

    made = schemathesis.openapi.from_dict(document("http://127.0.0.1", closed=True))
    # It is OpenAPI.
    made.validate()
    return made


@cache
def cases(path: str, method: str, *, good: bool) -> "st.SearchStrategy[Case[Any]]":
    from schemathesis import GenerationMode  # noqa: PLC0415  # as above

    mode = GenerationMode.POSITIVE if good else GenerationMode.NEGATIVE
    return schema()[path][method].as_strategy(generation_mode=mode)


@settings(usual, max_examples=examples(30))
@given(data=st.data())
def test_answers_are_as_the_document_says(pdp: Fuzzed, data: st.DataObject) -> None:
    path, method = data.draw(st.sampled_from(OPERATIONS))
    # There is no wrong way to ask for a page.
    good = method == "GET" or data.draw(st.booleans())
    answered(pdp, data.draw(cases(path, method, good=good)))


def answered(pdp: Fuzzed, case: "Case[Any]") -> None:
    """Send a case, with the token, and check the answer with all checks of schemathesis that can hold."""
    from schemathesis.checks import load_all_checks  # noqa: PLC0415  # as above
    from schemathesis.specs.openapi.checks import positive_data_acceptance  # noqa: PLC0415  # as above

    load_all_checks()
    # Whether a value is one of its type, and a token that of a page, no schema says.
    page = case.body.get("page") if isinstance(case.body, dict) else None
    beyond = case.path == AUTHORIZE or (isinstance(page, dict) and page.get("token"))
    answer = case.call_and_validate(
        base_url=pdp.serving.url,
        session=pdp.session,
        headers={"Authorization": f"Bearer {TOKEN}"},
        excluded_checks=[positive_data_acceptance] if beyond else [],
        timeout=60,
    )
    assert "Traceback" not in answer.text


@settings(usual, max_examples=examples(60))
@given(data=st.data())
def test_spoiled_questions_are_answered_as_the_document_says(pdp: Fuzzed, data: st.DataObject) -> None:
    path, kind = data.draw(st.sampled_from(QUESTIONS)), data.draw(st.sampled_from([*SAMPLES]))
    body = data.draw(spoiled(SAMPLES[kind]))
    accepted = data.draw(st.sampled_from(["*/*", XACML_XML, XACML_JSON]))
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind, "Accept": accepted}
    answer = pdp.session.post(pdp.serving.url + path, data=body, headers=headers, timeout=60)
    schema()[path]["POST"].validate_response(answer)
    assert answer.status_code < 500
    assert "Traceback" not in answer.text


@settings(usual, max_examples=examples(60))
@given(sent=spoiled([HEAD, HEAD + HEAD, CHUNKED, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"]))
def test_spoiled_requests_are_answered_or_dropped_at_once(pdp: Fuzzed, sent: bytes) -> None:
    where = urlsplit(pdp.serving.url)
    told = b""
    with socket.create_connection((where.hostname, where.port), timeout=60) as connection, suppress(ConnectionError):
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(65_536):
            told += part
    assert b"Traceback" not in told
    if told:
        version, status, _ = told.split(b" ", 2)
        assert version == b"HTTP/1.1"
        assert int(status) in STATUSES


@pytest.mark.long
def test_answers_are_as_the_document_says_for_long(pdp: Fuzzed) -> None:
    for path in QUESTIONS:
        for good in (True, False):
            _long(pdp, path, good=good)


def _long(pdp: Fuzzed, path: str, *, good: bool) -> None:
    @settings(usual, max_examples=examples(25))
    @given(case=cases(path, "POST", good=good))
    def asked(case: "Case[Any]") -> None:
        answered(pdp, case)

    asked()

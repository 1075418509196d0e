"""Whatever fails within the decision service, whoever asked over HTTP is permitted nothing, and told nothing of it."""

import asyncio
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.apps.pdp_kit import ASKED, EVALUATION, EVALUATIONS, TODO, closed
from tests.policy.syntax.test_parsers_fuzz import JSON_REQUEST

from penstock.apps.http import bundles, journal, service
from penstock.apps.http import decisions as deciding
from penstock.apps.http import service as callers
from penstock.apps.http import service as counting
from penstock.apps.http.journal import Journal
from penstock.apps.http.server import AUTHORIZE, Bounds, HttpService
from penstock.apps.http.service import Callers, DecisionService, ServiceSettings
from penstock.errors import FailedError
from penstock.policy.engine import compiler as compiled

SEVERAL = {**ASKED, "evaluations": [{}, {}]}
TOKEN = b"0123456789abcdef" * 2
ERRORS = [
    RuntimeError("a secret"),
    FailedError("store.read", "known"),
    OSError(28, "a secret"),
    KeyError("a secret"),
]
#: what is broken, and the questions that come by it
STAGES: dict[str, tuple[object, str, str]] = {
    "who asks": (callers.Callers, "name", EVALUATION),
    "reading": (service, "read_json", EVALUATIONS),
    "facts": (deciding, "facts_of", EVALUATIONS),
    "deciding": (bundles.Bundle, "ask", EVALUATIONS),
    "deciding XACML": (compiled.CompiledPolicy, "evaluate", AUTHORIZE),
    "the answer": (deciding, "write_decision", EVALUATIONS),
    "the answer of XACML": (service, "write_response", AUTHORIZE),
    "counting": (counting.Counting, "took", EVALUATION),
    "recording": (journal.Journal, "write", EVALUATION),
    "recording several": (journal.Journal, "write", EVALUATIONS),
    "recording XACML": (journal.Journal, "write", AUTHORIZE),
}


def asked_over_http(tmp_path: Path, path: str, *, token: bytes = TOKEN, by_head: bool = True) -> tuple[int, bytes]:
    """Ask a service that has callers and a log; return the status and the body.

    Who asks is settled by the head, as it is in a process, or with the body.
    """
    known = Callers({hashlib.sha256(TOKEN).digest(): "me"})
    settings = ServiceSettings("https://pdp.example.com", known, Journal(tmp_path / "log", "urn:x"))
    served = DecisionService(bundles.load(TODO), settings)
    body = {EVALUATION: json.dumps(ASKED).encode(), EVALUATIONS: json.dumps(SEVERAL).encode()}.get(path, JSON_REQUEST)

    async def ask() -> bytes:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _what: None)
        admit = served.admit if by_head else None
        server = await HttpService(served.answer, Bounds.of_questions(), "pdp.listen", admit).start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer %b\r\n"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), token, len(body), body)
        )
        try:
            return await asyncio.wait_for(reader.read(), 60)
        finally:
            await closed(writer)
            await server.stop()

    head, _, told = asyncio.run(ask()).partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), told


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_fails_permits_nothing(
    stage: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, path = STAGES[stage]
    reached = []

    def fail(*_arguments: object, **_named: object) -> Any:
        reached.append(stage)
        raise error

    monkeypatch.setattr(owner, name, fail)
    for by_head in (True, False):
        reached.clear()
        status, told = asked_over_http(tmp_path, path, by_head=by_head)
        assert reached
        assert status in (200, 500, 503)
        assert b"a secret" not in told
        assert b"Traceback" not in told
        if status == 200:
            assert not any(permissions(json.loads(told)))


@pytest.mark.parametrize("by_head", [True, False])
def test_without_a_token_nobody_is_answered(by_head: bool, tmp_path: Path) -> None:
    assert asked_over_http(tmp_path, EVALUATION, token=b"x" * 20, by_head=by_head)[0] == 401


@pytest.mark.parametrize("path", [EVALUATION, EVALUATIONS])
def test_nothing_of_that_fails_by_itself(path: str, tmp_path: Path) -> None:
    status, told = asked_over_http(tmp_path, path)
    assert status == 200
    assert all(permissions(json.loads(told)))


def permissions(told: dict[str, Any]) -> list[bool]:
    """Return whether each decision of an answer permits."""
    if "Response" in told:
        return [result["Decision"] == "Permit" for result in told["Response"]]
    return [one["decision"] for one in told.get("evaluations", [told])]


def test_a_log_on_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(_file: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    status, told = asked_over_http(tmp_path, EVALUATION)
    assert (status, json.loads(told)["error"]["code"]) == (503, "log.write")

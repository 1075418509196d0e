"""The decision service beside an endpoint of it that does nothing: the same requests to both, by turns.

Both are of one server in a process of its own, and do the same for HTTP: they read the request, look at its headers,
ask whose token it shows, and send a JSON answer of the same length, with an id of its own. The one that does nothing
leaves out the decision: it does not look at what is asked, and counts nothing. Another one has an answer that never
changes, not even its id. What counts is the server's time on the processor for a request, which is what it can do in a
second once it is busy. Questions are about the todos of the AuthZEN scenario: such as were never asked before, a few
again and again, and new ones that are logged. Answers are compared with those of the compiled policy.
"""

import asyncio
import itertools
import json
import random
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

from harness import Result, at_least, microseconds, observed
from penstock.apps.http.bundles import Bundle, load
from penstock.apps.http.journal import Journal
from penstock.apps.http.server import ENDPOINTS, JSON, Bounds, HttpRequest, HttpResponse, HttpService, refused
from penstock.apps.http.service import DecisionService, ServiceSettings, read_callers
from penstock.authority.decisions.questions import facts_of, read_question
from penstock.policy.language.results import XacmlDecision

BUNDLE = Path(__file__).resolve().parents[1] / "examples" / "authzen-todo"
EVALUATION = ENDPOINTS["access_evaluation_endpoint"]
NOTHING, CONSTANT = "/nothing", "/constant"
ROUNDS, REQUESTS, WARMING, SOCKETS, KNOWN = 45, 400, 80, 8, 40
ACTIONS = ("can_read_user", "can_read_todos", "can_create_todo", "can_update_todo", "can_delete_todo")
_JSON = JSON.encode()
PERMITTED = b'{"decision":true}'


def serve(folder: Path) -> None:
    """Serve decisions, and at `/nothing` an answer that never changes; `/cpu` says what it took."""
    bundle, callers = load(BUNDLE), read_callers(folder / "callers")
    service = DecisionService(bundle, ServiceSettings("http://bench", callers))
    logged = DecisionService(bundle, ServiceSettings("http://bench", callers, Journal(folder / "log", "urn:bench")))
    revision, numbers = bundle.revision.encode(), itertools.count(1)

    def nothing(asked: HttpRequest, _caller: str | None) -> HttpResponse:
        if asked.headers.get(b"content-type") != _JSON:
            return refused(HTTPStatus.BAD_REQUEST)
        headers = b"X-Decision-ID: 0-%x\r\nX-Policy-Revision: %b\r\n" % (next(numbers), revision)
        return HttpResponse(PERMITTED, content_type=JSON, headers=headers)

    always = nothing(HttpRequest(b"POST", b"", {b"content-type": _JSON}), None)
    service.posts[NOTHING.encode()] = nothing
    service.posts[CONSTANT.encode()] = lambda _asked, _caller: always
    service.pages[b"/cpu"] = lambda: HttpResponse(str(time.process_time_ns()).encode())

    def answer(asked: HttpRequest) -> HttpResponse:
        return (logged if b"x-logged" in asked.headers else service).answer(asked)

    async def run() -> None:
        server = await HttpService(answer, Bounds.of_questions(), "pdp.listen").start("127.0.0.1", 0)
        print(server.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await server.stop()

    asyncio.run(run())


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and what the compiled policy says to it."""

    body: bytes
    permitted: bool


def questions(bundle: Bundle) -> Iterator[Question]:
    """Yield questions, no two the same."""
    chance = random.Random(7)  # noqa: S311  # the same each time
    users = [one for one in bundle.entities.subjects["user"].items() if "email" in one[1]]
    for number in range(10**9):
        user, _ = chance.choice(users)
        _, owner = chance.choice(users)
        found: dict[str, Any] = {
            "subject": {"type": "user", "id": user},
            "action": {"name": chance.choice(ACTIONS)},
            "resource": {"type": "todo", "id": f"todo-{number:x}", "properties": {"ownerID": owner["email"]}},
        }
        facts = facts_of(read_question(found), bundle.entities)
        permitted = bundle.policy.ask(facts, datetime.now(UTC)).decision is XacmlDecision.PERMIT
        yield Question(json.dumps(found).encode(), permitted)


class Client:
    """Several connections, with one request on the way on each."""

    def __init__(self, port: int, token: str) -> None:
        self._sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(SOCKETS)]
        self._token = token

    def close(self) -> None:
        for one in self._sockets:
            one.close()

    def _request(self, path: str, body: bytes, *headers: str) -> bytes:
        lines = "".join(f"{one}\r\n" for one in headers)
        return (
            f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: {JSON}\r\nUser-Agent: bench\r\nAccept: */*\r\n"
            f"Authorization: Bearer {self._token}\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body

    def _cpu(self) -> int:
        self._sockets[0].sendall(b"GET /cpu HTTP/1.1\r\nHost: bench\r\n\r\n")
        return int(self._sockets[0].recv(65_536).partition(b"\r\n\r\n")[2])

    def round(self, path: str, asked: list[Question], *headers: str) -> float:
        """Return the seconds of the server's processor for a request; some before, which do not count, warm it up."""
        requests = [self._request(path, one.body, *headers) for one in asked]
        said = self._said(requests[:WARMING])
        before = self._cpu()
        said += self._said(requests[WARMING:])
        took = self._cpu() - before
        assert path != EVALUATION or said == [one.permitted for one in asked]
        return took / (len(requests) - WARMING) / 1e9

    def _said(self, requests: list[bytes]) -> list[bool]:
        said: list[bool] = []
        for start in range(0, len(requests), SOCKETS):
            for one, data in zip(self._sockets, requests[start:], strict=False):
                one.sendall(data)
            said += [one.recv(65_536).endswith(PERMITTED) for one in self._sockets]
        return said


@dataclass(frozen=True, slots=True)
class Kind:
    """What is asked, and where."""

    path: str
    known: bool = False
    headers: tuple[str, ...] = ()


KINDS = {
    "nothing": Kind(NOTHING),
    "constant": Kind(CONSTANT),
    "new": Kind(EVALUATION),
    "known": Kind(EVALUATION, known=True),
    "logged": Kind(EVALUATION, headers=("X-Logged: 1",)),
}


def run() -> list[Result]:
    token, new = secrets.token_hex(32), questions(load(BUNDLE))
    count = WARMING + REQUESTS
    known = [next(new) for _ in range(KNOWN)] * (count // KNOWN)
    rounds = [(name, [next(new) for _ in range(count)]) for _ in range(ROUNDS) for name in KINDS]
    # In turns, and none always after the same other.
    chance = random.Random(3)  # noqa: S311  # the same each time
    order = [one for start in range(0, len(rounds), len(KINDS)) for one in _shuffled(rounds, start, chance)]
    took: dict[str, list[float]] = {name: [] for name in KINDS}
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "callers").write_text(f"bench {token}\n")
        command = [sys.executable, __file__, name]
        with subprocess.Popen(  # noqa: S603  # this file
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            client = Client(int(process.stdout.readline()), token)
            for which, asked in order:
                kind = KINDS[which]
                took[which].append(client.round(kind.path, known if kind.known else asked, *kind.headers))
            client.close()
            process.stdin.close()
    of = ", of an endpoint that does nothing"
    beside = {kind: _beside(took, kind) for kind in took}
    constant, detail = _beside(took, "new", of="constant")
    return [
        at_least(f"decision service: a question never asked before{of}", beside["new"][0], 0.7, beside["new"][1]),
        at_least(f"decision service: a question that is known{of}", beside["known"][0], 0.7, beside["known"][1]),
        observed("decision service: a question never asked before, of an answer that never changes", constant, detail),
        observed(f"decision service: a new question that is logged{of}", *beside["logged"]),
    ]


def _shuffled(
    rounds: list[tuple[str, list[Question]]], start: int, chance: random.Random
) -> list[tuple[str, list[Question]]]:
    some = rounds[start : start + len(KINDS)]
    return chance.sample(some, len(some))


def _beside(took: dict[str, list[float]], kind: str, of: str = "nothing") -> tuple[float, str]:
    """Return how much of doing nothing is done, as the middle of all rounds: the machine may be busy in some."""
    ratio = statistics.median(nothing / one for nothing, one in zip(took[of], took[kind], strict=True))
    asked, nothing = statistics.median(took[kind]), statistics.median(took[of])
    return ratio, f"{microseconds(asked)} of the processor a request, {microseconds(nothing)} for nothing"


if __name__ == "__main__":
    serve(Path(sys.argv[1]))

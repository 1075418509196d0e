"""The decision service beside an endpoint of the same server that does nothing: the same question to both, by turns.

The server is a process of its own; what counts is its time on the processor for a request, which is what it can do in a
second once it is busy. The question is one of the AuthZEN todo scenario: the same again and again, once more with
callers that show tokens and decisions that are logged, and one that was never asked before.
"""

import asyncio
import json
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import Result, at_least, microseconds, observed
from penstock.apps.http.bundles import load
from penstock.apps.http.callers import read_callers
from penstock.apps.http.journal import Journal
from penstock.apps.http.places import ENDPOINTS, JSON
from penstock.apps.http.server import Answer, Asked, Bounds, HttpService
from penstock.apps.http.service import DecisionService, Settings

BUNDLE = Path(__file__).resolve().parents[1] / "examples" / "authzen-todo"
EVALUATION = ENDPOINTS["access_evaluation_endpoint"]
ROUNDS, REQUESTS, SOCKETS = 9, 2_000, 8
QUESTION = json.dumps(
    {
        "subject": {"type": "user", "id": "CiRmZDE2MTRkMy1jMzlhLTQ3ODEtYjdiZC04Yjk2ZjVhNTEwMGQSBWxvY2Fs"},
        "action": {"name": "can_update_todo"},
        "resource": {"type": "todo", "id": "7240d0db", "properties": {"ownerID": "morty@the-citadel.com"}},
    }
).encode()


def serve(folder: Path) -> None:
    """Serve decisions, and at `/nothing` an answer that never changes; `/cpu` says what it took."""
    settings = Settings("http://bench", read_callers(folder / "callers"), Journal(folder / "log", "urn:bench"))
    bundle = load(BUNDLE)
    logged, service = DecisionService(bundle, settings), DecisionService(bundle, Settings("http://bench"))
    nothing = Answer(b'{"decision":true}', content_type=JSON)

    def answer(asked: Asked) -> Answer:
        if asked.path == b"/nothing":
            return nothing
        if asked.path == b"/cpu":
            return Answer(str(time.process_time_ns()).encode())
        if b"x-fresh" in asked.headers:
            bundle.answers.clear()
        return (logged if b"authorization" in asked.headers else service).answer(asked)

    async def run() -> None:
        server = await HttpService(answer, Bounds.of_questions(), "pdp.listen").start("127.0.0.1", 0)
        print(server.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await server.stop()

    asyncio.run(run())


class Client:
    """Several connections, with one request on the way on each."""

    def __init__(self, port: int) -> None:
        self._sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(SOCKETS)]

    def close(self) -> None:
        for one in self._sockets:
            one.close()

    def _request(self, path: str, *headers: str) -> bytes:
        lines = "".join(f"{one}\r\n" for one in headers)
        return (
            f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: {JSON}\r\nUser-Agent: bench\r\nAccept: */*\r\n"
            f"{lines}Content-Length: {len(QUESTION)}\r\n\r\n"
        ).encode() + QUESTION

    def _cpu(self) -> int:
        self._sockets[0].sendall(self._request("/cpu"))
        return int(self._sockets[0].recv(65_536).partition(b"\r\n\r\n")[2])

    def round(self, path: str, *headers: str) -> float:
        """Return the seconds of the server's processor for a request."""
        data, before = self._request(path, *headers), self._cpu()
        for _ in range(REQUESTS // SOCKETS):
            for one in self._sockets:
                one.sendall(data)
            for one in self._sockets:
                assert one.recv(65_536).endswith(b'{"decision":true}')
        return (self._cpu() - before) / REQUESTS / 1e9


def run() -> list[Result]:
    token = secrets.token_hex(32)
    kinds = {
        "nothing": ("/nothing",),
        "decided": (EVALUATION,),
        "logged": (EVALUATION, f"Authorization: Bearer {token}"),
        "fresh": (EVALUATION, "X-Fresh: 1"),
    }
    took: dict[str, list[float]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "callers").write_text(f"bench {token}\n")
        command = [sys.executable, __file__, name]
        with subprocess.Popen(  # noqa: S603  # this file
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            client = Client(int(process.stdout.readline()))
            for _ in range(ROUNDS):
                for kind, words in kinds.items():
                    took[kind].append(client.round(*words))
            client.close()
            process.stdin.close()
    base, *others = (statistics.median(took[kind]) for kind in kinds)
    details = [f"{microseconds(one)} of the processor a request, {microseconds(base)} for nothing" for one in others]
    of = ", of an endpoint that does nothing"
    return [
        observed(f"decision service: a question that is known{of}", base / others[0], details[0]),
        observed(f"decision service: the same with tokens and a log{of}", base / others[1], details[1]),
        at_least(f"decision service: a question never asked before{of}", base / others[2], 0.7, details[2]),
    ]


if __name__ == "__main__":
    serve(Path(sys.argv[1]))

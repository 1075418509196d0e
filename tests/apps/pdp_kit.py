"""What the tests of the decision service share: the service as a process, and questions to it."""

import asyncio
import json
import signal
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.apps.node_kit import LONGEST, bounded
from tests.copies import Copy

TODO = Path(__file__).resolve().parents[2] / "examples" / "authzen-todo"
EVALUATION = "/access/v1/evaluation"
EVALUATIONS = "/access/v1/evaluations"
SEARCH = "/access/v1/search/"
ALICE = {"type": "user", "id": "alice"}
BOB = {"type": "user", "id": "bob"}
READ = {"name": "read"}
WRITE = {"name": "write"}
RECORD = {"type": "record", "id": "record-1"}
ASKED = {"subject": ALICE, "action": READ, "resource": RECORD}


@dataclass(frozen=True)
class Said:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] in ("application/json", "application/xacml+json")
        return json.loads(self.body)


@dataclass(frozen=True)
class Serving:
    """A service that runs."""

    process: subprocess.Popen[str]
    url: str
    revision: str
    tls: ssl.SSLContext | None = None

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Said:
        place = urlsplit(self.url)
        assert (place.scheme == "https") == (self.tls is not None)
        connection = (
            HTTPConnection(place.netloc, timeout=60)
            if self.tls is None
            else HTTPSConnection(place.netloc, timeout=60, context=self.tls)
        )
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            return Said(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def ask(self, path: str, question: object, **headers: str) -> Said:
        body = question if isinstance(question, bytes) else json.dumps(question).encode()
        return self.send("POST", path, body, **{"Content_Type": "application/json", **headers})

    def decides(self, question: object) -> Any:
        said = self.ask(EVALUATION, question)
        assert said.status == 200
        return said.json["decision"]


@contextmanager
def serving(
    bundle: Path, *more: str, log: Path | None = None, tls: ssl.SSLContext | None = None, longest: float = LONGEST
) -> Iterator[Serving]:
    """Run `penstock pdp serve` until it is stopped."""
    command = ["pdp", "serve", str(bundle), "--listen", "127.0.0.1:0", "-o", "json", *more]
    with (log or Path("/dev/null")).open("w") as err:
        process = Copy(command, stdout=subprocess.PIPE, stderr=err, text=True)
        with bounded(process, longest):
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, "it did not start"
            yield Serving(process, **json.loads(line), tls=tls)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection, which the server may have done already."""
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()

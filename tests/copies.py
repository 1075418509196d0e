"""Processes of tests that start immediately: a copy of one that has loaded everything, instead of a new Python.

A broker loads for half a second before it runs, and tests start hundreds of them. What starts a Python as its subject
takes `subprocess` itself. `tests.copy_server` makes the copies; it starts when the first is wanted.
"""

import atexit
import fcntl
import marshal
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import AnyStr, Final

from tests.copy_server import MODULE

__all__ = ["MODULE", "Copy", "fork", "prepare", "server"]

_ROOT: Final = Path(__file__).resolve().parents[1]
_TURN: Final = Lock()
_WORD: Final = 16


@dataclass
class _Place:
    """Where copies are asked for, by all processes of a run."""

    folder: Path
    environment: dict[str, str]
    #: the server's standard input, which ends with the last process of the run
    alive: int
    runs: bool = False


_place: _Place | None = None


def prepare() -> None:
    """Choose where copies are asked for. Now is the time: no test has changed anything, and there is one process."""
    global _place  # noqa: PLW0603  # one for all processes of a run
    if _place is None:
        folder = Path(tempfile.mkdtemp(prefix="penstock-copies-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        alive, _ = os.pipe()
        _place = _Place(folder, dict(os.environ), alive)


def server() -> Path:
    """Return the socket at which copies are made. Start the server if no process of the run has done it yet."""
    with _TURN:
        prepare()
        assert _place is not None
        path = _place.folder / "socket"
        if not _place.runs:
            with (_place.folder / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not path.exists():
                    _start(_place, path)
            _place.runs = True
        return path


def _start(place: _Place, path: Path) -> None:
    words = [sys.executable, "-m", "tests.copy_server", str(path)]
    started = subprocess.Popen(
        words, cwd=_ROOT, env=place.environment, stdin=place.alive, stdout=subprocess.PIPE, start_new_session=True
    )
    assert started.stdout is not None
    with started.stdout as said:
        assert said.readline() == b"ready\n"
    # It ends after this process: nobody waits for it.
    started.returncode = 0


class Copy(subprocess.Popen[AnyStr]):
    """`penstock`, with its words, as a copy of a process that has loaded it."""

    _end: int

    def _execute_child(  # as `subprocess` calls it
        self,
        args: Sequence[str],
        _executable: object,
        _preexec: object,
        _close: object,
        _pass: object,
        cwd: str | os.PathLike[str] | None,
        env: Mapping[str, str] | None,
        _startup: object,
        _flags: object,
        _shell: object,
        *pipes_and_more: int,
    ) -> None:
        pipes = pipes_and_more[:6]
        streams: list[int] = [own if own >= 0 else number for number, own in enumerate((pipes[0], pipes[3], pipes[5]))]
        asked = marshal.dumps(([*args], os.fspath(cwd or Path.cwd()), dict(os.environ if env is None else env)))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
            asking.connect(str(server()))
            socket.send_fds(asking, [asked], streams)
            self.pid = int(asking.recv(_WORD))
            self._end = asking.detach()
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # of `subprocess`

    def _try_wait(self, flags: int) -> tuple[int, int]:
        """Stand in for `os.waitpid`: it is another process whose child this is."""
        with selectors.DefaultSelector() as ready:
            ready.register(self._end, selectors.EVENT_READ)
            if not ready.select(0 if flags & os.WNOHANG else None):
                return 0, 0
        status = int(os.read(self._end, _WORD))
        os.close(self._end)
        return self.pid, status

    def _internal_poll(self, *_: object, **_named: object) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self._wait(0)  # type: ignore[attr-defined]  # of `subprocess`
        return self.returncode


def fork() -> int:
    """Make a copy of this process. Return its number, and 0 to the copy itself."""
    with warnings.catch_warnings():
        # Other threads wait for what a run says to this process; the copy has no need of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()

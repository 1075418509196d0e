"""Processes of tests that start immediately: a copy of this one, which has loaded everything, instead of a new Python.

A broker loads for half a second before it runs, and tests start hundreds of them. What starts a Python as its subject
takes `subprocess` itself.
"""

import atexit
import gc
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import AnyStr, Final, NoReturn

from tests.docs.forks import LENGTH, become, load, run, run_module, serve

_NUMBER: Final = struct.Struct("i")
_TURN: Final = Lock()
SERVE: Final = "serve copies at"
"""Stands before the path at which a copy serves others: see `tests.docs.forks`."""
MODULE: Final = "run as a module"
"""Stands before the name of a module that a copy runs instead of `penstock`, as `python -m` would."""
#: the way to the process that makes copies
_maker: socket.socket | None = None


def prepare() -> None:
    """Make the process that will make copies. Now is the time: no test has changed anything yet."""
    global _maker  # noqa: PLW0603  # one for each process of a run
    if _maker is None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if fork() == 0:
            _serve(os.dup2(there.fileno(), 3))
        there.close()
        atexit.register(here.close)
        _maker = here


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
        asked = json.dumps([[*args], os.fspath(cwd or Path.cwd()), dict(os.environ if env is None else env)]).encode()
        self._end, told = os.pipe()
        with _TURN:
            prepare()
            assert _maker is not None
            socket.send_fds(_maker, [asked], [*streams, told])
        os.close(told)
        (self.pid,) = _NUMBER.unpack(os.read(self._end, _NUMBER.size))
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # of `subprocess`

    def _try_wait(self, flags: int) -> tuple[int, int]:
        """Stand in for `os.waitpid`: it is another process whose child this is."""
        with selectors.DefaultSelector() as ready:
            ready.register(self._end, selectors.EVENT_READ)
            if not ready.select(0 if flags & os.WNOHANG else None):
                return 0, 0
        (status,) = _NUMBER.unpack(os.read(self._end, _NUMBER.size))
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


def _serve(asked: int) -> NoReturn:
    """Make copies until the process of the tests ends, and these with it."""
    # What was inherited is neither closed nor collected later, when its number belongs to something else.
    gc.freeze()
    with open(os.devnull, "r+b", buffering=0) as nothing:  # noqa: PTH123  # a number is meant
        for number in range(3):
            os.dup2(nothing.fileno(), number)
    os.closerange(4, 1 << 16)
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        signal.signal(number, handler)
    warnings.resetwarnings()
    for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", kind)
    requests = socket.socket(fileno=asked)
    running: dict[int, int] = {}
    with selectors.DefaultSelector() as ready:
        ready.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is not requests:
                    pid, told = key.data
                    ready.unregister(key.fileobj)
                    os.close(key.fd)
                    status = os.waitpid(pid, 0)[1]
                    with suppress(OSError):
                        os.write(told, _NUMBER.pack(status))
                    os.close(told)
                    del running[key.fd]
                    continue
                message, streams, _, _ = socket.recv_fds(requests, LENGTH, 4)
                if not message:
                    for child in running.values():
                        os.kill(child, signal.SIGKILL)
                    os._exit(0)
                words, folder, environment = json.loads(message)
                load()
                pid = os.fork()
                if pid == 0:
                    become(streams[:3], folder, environment)
                    os.closerange(3, 1 << 16)
                    if words[:1] == [SERVE]:
                        serve(words[1])
                    if words[:1] == [MODULE]:
                        run_module(*words[1:])
                    run(words)
                for stream in streams[:3]:
                    os.close(stream)
                os.write(streams[3], _NUMBER.pack(pid))
                ended = os.pidfd_open(pid)
                running[ended] = pid
                ready.register(ended, selectors.EVENT_READ, (pid, streams[3]))

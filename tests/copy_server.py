"""Makes copies of itself that are `penstock`: all commands are loaded once, and not again for each program of a test.

    python -m tests.copy_server SOCKET    serve at a socket until standard input ends

Who asks connects to the socket, sends the words of a command with its folder and environment, and hands over its
streams. It receives the number of the process, and how the process ended. A byte that it sends is a signal for the
process, which does not outlive the connection.

This is a process of its own and not a copy of the tests' process: to copy that one with everything that it has loaded
takes five times as long.
"""

import gc
import marshal
import os
import runpy
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Final, NoReturn

LENGTH: Final = 1 << 20
MODULE: Final = "run as a module"
"""Stands before the name of a module that a copy runs instead of `penstock`, as `python -m` would."""
#: what commands and processes of tests import when they run
_LATER: Final = (
    "encodings.ascii",
    "encodings.idna",
    "encodings.utf_8_sig",
    "penstock.broker.wire.nats_link",
    "penstock.fabric.nats",
    "penstock.pipeline.sql.statements",
    "penstock.policy.analysis.solver",
    "penstock.store.crash_dumps",
    "sqlalchemy.dialects.sqlite",
    "tests.trust.kit",
)


def load() -> None:
    """Load all commands, but for those that start Spark, and what they import later."""
    cli = import_module("penstock.apps.cli.main").cli
    for noun in cli.nouns.values():
        if not noun.extra:
            noun.load()
    for name in _LATER:
        import_module(name)


class _Server:
    """The copies that run, and who asked for them."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._ready = selectors.DefaultSelector()
        self._ready.register(listener, selectors.EVENT_READ, self._accept)
        self._ready.register(0, selectors.EVENT_READ, self._end)
        self._running: set[int] = set()

    def run(self) -> NoReturn:
        while True:
            for key, _ in self._ready.select():
                key.data()

    def _accept(self) -> None:
        asking, _ = self._listener.accept()
        message, streams, _, _ = socket.recv_fds(asking, LENGTH, 3)
        if not message:
            asking.close()
            return
        child = os.fork()
        if child == 0:
            _become(streams, *marshal.loads(message))  # noqa: S302  # the folder of the socket is ours alone
        for stream in streams:
            os.close(stream)
        with suppress(OSError):
            asking.send(str(child).encode())
        self._running.add(child)
        ended = os.pidfd_open(child)
        self._ready.register(asking, selectors.EVENT_READ, partial(self._signal, asking, child))
        self._ready.register(ended, selectors.EVENT_READ, partial(self._ended, asking, child, ended))

    def _signal(self, asking: socket.socket, child: int) -> None:
        received = asking.recv(1)
        os.kill(child, received[0] if received else signal.SIGKILL)
        if not received:
            self._ready.unregister(asking)

    def _ended(self, asking: socket.socket, child: int, ended: int) -> None:
        status = os.waitpid(child, 0)[1]
        self._running.remove(child)
        self._ready.unregister(ended)
        os.close(ended)
        with suppress(KeyError):
            self._ready.unregister(asking)
        with suppress(OSError):
            asking.send(str(status).encode())
        asking.close()

    def _end(self) -> NoReturn:
        """End with all copies: the tests are over."""
        for child in self._running:
            os.kill(child, signal.SIGKILL)
        os._exit(0)


def _become(streams: list[int], words: list[str], folder: str, environment: dict[str, str]) -> NoReturn:
    """Take over what a command was started with, run it, and end."""
    for stream, number in zip(streams, (0, 1, 2), strict=True):
        os.dup2(stream, number)
    os.closerange(3, 1 << 16)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    by_line = 1 if environment.get("PYTHONUNBUFFERED") else -1
    # These numbers outlive the objects, of which a copy of a copy makes others.
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", by_line, encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", closefd=False)
    if words[:1] == [MODULE]:
        sys.argv = words[1:]
        _end_after(partial(runpy.run_module, words[1], run_name="__main__", alter_sys=True))
    sys.argv = ["penstock", *words]
    _end_after(import_module("penstock.apps.cli.main").main)


def _end_after(program: Callable[[], object]) -> NoReturn:
    status = 1
    try:
        program()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001  # it is shown as Python would show it
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _serve(path: str) -> NoReturn:
    load()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # What is there now is never searched for garbage: a copy would write to all of it.
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(64)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        os.dup2(2, 1)
        _Server(listener).run()


if __name__ == "__main__":
    _serve(sys.argv[1])

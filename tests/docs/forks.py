"""A `penstock` that starts immediately: a process in which all commands are loaded makes a copy of itself for each.

    python -I -S tests/docs/forks.py SOCKET WORD …    one command: it is handed over with its folder, its environment
                                                      and its streams, and ends as the copy ends

Pages have hundreds of commands, and each would load the same for a quarter of a second.
"""

import array
import json
import os
import selectors
import signal
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

_HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LENGTH = 1 << 20


def ask(path: str, *words: str) -> int:
    """Let a command run elsewhere; hand signals on. Return the status that it ended with."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(path)
        asked = json.dumps([words, os.getcwd(), dict(os.environ)]).encode()  # noqa: PTH109  # so it starts immediately
        streams = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
        for number in _HANDED_ON:
            signal.signal(number, lambda number, _: server.send(bytes([number])) and None)
        server.sendmsg([asked], streams)
        status = int(server.recv(16))
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def serve(path: str) -> NoReturn:
    """Make a copy for everybody who asks, until this process is ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(path)
        server.listen(64)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            client, _ = server.accept()
            if os.fork() == 0:
                server.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _attend(client)
                os._exit(0)
            client.close()


def load() -> None:
    """Load all commands, but for those that start Spark."""
    from penstock.apps.cli.main import cli  # noqa: PLC0415  # who asks loads nothing

    for noun in cli.nouns.values():
        if not noun.extra:
            noun.load()


def _attend(client: socket.socket) -> None:
    """Run one command, hand it what signals come, and tell how it ends. It does not outlive who asked."""
    message, ancillary, _, _ = client.recvmsg(LENGTH, socket.CMSG_SPACE(12))
    streams = array.array("i", ancillary[0][2])
    words, folder, environment = json.loads(message)
    child = os.fork()
    if child == 0:
        client.close()
        become(list(streams), folder, environment)
        run(words)
    for stream in (*streams, 0, 1, 2):
        os.close(stream)
    with selectors.DefaultSelector() as ready:
        ended = os.pidfd_open(child)
        ready.register(client, selectors.EVENT_READ)
        ready.register(ended, selectors.EVENT_READ)
        while all(key.fileobj is client for key, _ in ready.select()):
            received = client.recv(1)
            os.kill(child, received[0] if received else signal.SIGKILL)
            if not received:
                ready.unregister(client)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(OSError):
        client.send(str(status).encode())


def become(streams: list[int], folder: str, environment: dict[str, str]) -> None:
    """Take over what a command was started with."""
    for stream, number in zip(streams, (0, 1, 2), strict=True):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    by_line = 1 if environment.get("PYTHONUNBUFFERED") else -1
    # These numbers outlive the objects, of which a copy of a copy makes others.
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", by_line, encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", closefd=False)


def run(words: list[str]) -> NoReturn:
    """Run a command of `penstock`, and end."""
    from penstock.apps.cli.main import main  # noqa: PLC0415  # who asks loads nothing

    sys.argv = ["penstock", *words]
    _end_after(main)


def run_module(name: str, *words: str) -> NoReturn:
    """Run a module as `python -m` does, and end."""
    import runpy  # noqa: PLC0415  # who asks loads nothing

    sys.argv = [name, *words]
    _end_after(lambda: runpy.run_module(name, run_name="__main__", alter_sys=True))


def _end_after(program: "Callable[[], object]") -> NoReturn:
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


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1], *sys.argv[2:]))

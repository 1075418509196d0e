"""`penstock` on pages: `python -I -S tests/docs/ask.py SOCKET WORD…` lets `tests.copy_server` run a command.

Pages have hundreds of commands. So this imports next to nothing: the modules behind `socket` and `signal`, which take
three times as long to load as Python to start, are imported themselves.
"""

import _signal  # type: ignore[import-not-found]  # what is behind `signal`
import _socket
import marshal
import os
import sys

_HANDED_ON = (2, 15, 1)
"""SIGINT, SIGTERM and SIGHUP."""


def ask(path: str, *words: str) -> int:
    """Let a command run elsewhere; hand signals on. Return the status that it ended with."""
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    server.connect(path)
    for number in _HANDED_ON:
        _signal.signal(number, lambda number, _: server.send(bytes([number])) and None)
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
    asked = marshal.dumps(([*words], os.getcwd(), dict(os.environ)))  # noqa: PTH109  # so it starts immediately
    server.sendmsg([asked], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    server.recv(16)
    status = os.waitstatus_to_exitcode(int(server.recv(16)))
    if status < 0:
        _signal.signal(-status, _signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(ask(*sys.argv[1:]))

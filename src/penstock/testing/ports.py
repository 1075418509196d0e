"""Loopback ports for servers that are told their port before they start.

A port that the system picks (port 0) comes from the range for outgoing connections. Between the pick and the start, or
while a server restarts, any outgoing connection on the machine may take it: a flood of connections does so soon. The
ports here lie outside that range.
"""

import random
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from penstock.errors import FailedError

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

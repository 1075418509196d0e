"""How event loops close in tests: with their connections, so that each test answers for its own.

A loop that closes forgets its connections, and the garbage collector finds them when another test runs, which would
fail by the warning. What is closing when a test ends, as connections over TLS are until the other side answers, is
aborted. What nobody has closed is aborted too, and fails the test that it belongs to.
"""

import asyncio
import sys
import warnings
from collections.abc import Iterator
from typing import Any, Final

_CLOSE: Final = asyncio.SelectorEventLoop.close
#: turns that the end of a connection takes at most: TLS takes one, the socket another
_TURNS: Final = 3


def close(loop: asyncio.SelectorEventLoop) -> None:
    """Abort connections and close a loop. Warns (`ResourceWarning`) of open ones, unless something else failed."""
    left: list[str] = []
    if not loop.is_closed() and not loop.is_running():
        left = loop.run_until_complete(_abort_connections(loop))
    _CLOSE(loop)
    if left and sys.exc_info()[0] is None:
        warnings.warn(f"connections that nobody closed: {', '.join(left)}", ResourceWarning, stacklevel=2)


async def _abort_connections(loop: asyncio.SelectorEventLoop) -> list[str]:
    """Abort what is connected; return what nobody has closed."""
    connections = list(_connections(loop))
    left = [repr(each) for each in connections if not _is_closing(each)]
    for each in connections:
        each.abort()
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    return left


def _connections(loop: asyncio.SelectorEventLoop) -> Iterator[asyncio.Transport]:
    # asyncio keeps those as well that have ended, until nobody else does.
    known: Any = getattr(loop, "_transports", {})
    return (each for each in list(known.values()) if each.get_extra_info("socket").fileno() >= 0)


def _is_closing(transport: asyncio.Transport) -> bool:
    # Beneath TLS is a connection that does not know yet that it will be closed.
    protocol: Any = transport.get_protocol()
    secured = getattr(protocol, "_app_transport", None)
    return transport.is_closing() or (secured is not None and secured.is_closing())

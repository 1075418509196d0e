"""Event loops in tests end their connections, and tell of those that nobody closed."""

import asyncio
import gc
import secrets
import warnings
from typing import Any

import pytest

from penstock.crypto.tls import client_context, new_certificate, server_context


async def connected(*, tls: bool) -> tuple[asyncio.StreamWriter, asyncio.StreamWriter]:
    """Return both ends of a connection."""
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accepted.put(writer)

    context = server_context(new_certificate(secrets.token_bytes)) if tls else None
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        more: dict[str, Any] = {"ssl": client_context(), "server_hostname": ""} if tls else {}
        _, writer = await asyncio.open_connection("127.0.0.1", port, **more)
        return writer, await accepted.get()


@pytest.mark.parametrize("tls", [False, True])
def test_a_connection_that_nobody_closed_fails_its_own_test(tls: bool) -> None:
    async def main() -> None:
        kept.extend(await connected(tls=tls))

    kept: list[asyncio.StreamWriter] = []
    with pytest.warns(ResourceWarning, match="nobody closed: .*, "):
        asyncio.run(main())
    kept.clear()
    gc.collect()


def test_a_connection_that_is_closing_ends_with_the_loop() -> None:
    async def main() -> None:
        ours, theirs = await connected(tls=True)
        # The other side would answer, and the end would be in order.
        silent: Any = theirs.transport
        silent._ssl_protocol._transport.pause_reading()
        ours.close()
        theirs.close()

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(main())
        gc.collect()
    assert [str(each.message) for each in found] == []


def test_what_failed_is_told_rather_than_what_was_left_open() -> None:
    async def main() -> None:
        kept.extend(await connected(tls=False))
        raise ZeroDivisionError

    kept: list[asyncio.StreamWriter] = []
    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())
    kept.clear()
    gc.collect()

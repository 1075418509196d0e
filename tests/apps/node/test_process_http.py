"""What a node tells over HTTP: one bounded request, one answer, whoever asks."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus

import pytest
from tests.apps.pdp_kit import closed

from penstock.apps.http.server import HttpResponse, HttpService
from penstock.apps.node.limits import NodeLimits
from penstock.apps.node.process import pages_service
from penstock.errors import FailedError

PAGES = {
    "/health": lambda: HttpResponse(b"alive\n"),
    "/ready": lambda: HttpResponse(b"no\n", HTTPStatus.SERVICE_UNAVAILABLE),
}
#: little room, and as much time as a busy machine takes
TIGHT = NodeLimits(http_bytes=256, http_time=60_000, http_connections=2)
#: less time, for those who say nothing
HASTY = replace(TIGHT, http_time=2_000)


def served(test: Callable[[HttpService], Awaitable[None]], limits: NodeLimits = TIGHT) -> None:
    async def run() -> None:
        server = await pages_service(PAGES, limits).start("127.0.0.1", 0)
        try:
            await test(server)
        finally:
            await server.stop()

    asyncio.run(asyncio.wait_for(run(), 60))


async def say(server: HttpService, request: bytes) -> bytes:
    """Send bytes, and return all that comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(request)
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        await closed(writer)


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        (b"GET /health HTTP/1.1", 200, b"alive\n"),
        (b"GET /health?x=1 HTTP/1.0", 200, b"alive\n"),
        (b"HEAD /health HTTP/1.1", 200, b""),
        (b"GET /ready HTTP/1.1", 503, b"no\n"),
        (b"GET /../etc/passwd HTTP/1.1", 404, b"http.not-found"),
        (b"POST /health HTTP/1.1", 405, b"http.method"),
        (b"GET /health", 400, b"http.request"),
        (b"GET /health HTTP/2", 400, b"http.request"),
        (b"\xff\xfe \x00 HTTP/1.1", 400, b"http.request"),
        (b"DELETE / HTTP/1.1", 405, b"http.method"),
    ],
)
def test_answers(request_line: bytes, status: int, body: bytes) -> None:
    async def test(server: HttpService) -> None:
        answer = await say(server, request_line + b"\r\nHost: x\r\n\r\n")
        head, _, rest = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status)
        if status in (400, 404, 405):
            assert b"Content-Type: application/json\r\n" in head
            assert json.loads(rest)["error"]["code"].encode() == body
        else:
            assert rest == body
        assert b"Connection: close" in head

    served(test)


def test_a_request_that_is_too_long() -> None:
    async def test(server: HttpService) -> None:
        answer = await say(server, b"GET /health HTTP/1.1\r\nX: " + b"x" * 400 + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""
        endless = await say(server, b"x" * 100_000)
        assert endless.startswith(b"HTTP/1.1 431 ") or endless == b""

    served(test)


def test_who_says_nothing_is_cut_and_keeps_nobody_out() -> None:
    async def test(server: HttpService) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(8)]
        # The places are taken: the oldest of those who say nothing gives way.
        assert (await say(server, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")).endswith(b"alive\n")
        for reader, writer in silent:
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            await closed(writer)
        assert (await say(server, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")).endswith(b"alive\n")

    served(test, HASTY)


def test_an_address_that_is_taken() -> None:
    async def test(server: HttpService) -> None:
        with pytest.raises(FailedError) as error:
            await pages_service(PAGES, TIGHT).start("127.0.0.1", server.port)
        assert error.value.code == "node.http"

    served(test)

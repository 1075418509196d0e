"""The HTTP server of the decision service: what is not a request, what takes too long, and answers that fail."""

import asyncio
import gc
import secrets
import warnings
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import pytest
from tests.apps.pdp_kit import closed

from penstock.apps.http.limits import ServiceLimits
from penstock.apps.http.server import Admitting, Bounds, Chunks, HttpRequest, HttpResponse, HttpService, Wrong
from penstock.crypto.tls import client_context, new_certificate, server_context
from penstock.errors import FailedError

TIGHT = ServiceLimits(pdp_bytes=100, pdp_time=200, pdp_idle=400, pdp_connections=2)
#: as few connections, and as much time as a busy machine takes
PATIENT = replace(TIGHT, pdp_time=60_000, pdp_idle=60_000)
HEAD = b"Host: x\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def echo(asked: HttpRequest) -> HttpResponse:
    if asked.path == b"/broken":
        raise ZeroDivisionError("a secret")
    return HttpResponse(asked.method + b" " + asked.path + b" " + asked.body)


def with_server(
    test: Callable[[HttpService], Awaitable[None]], admit: Admitting | None = None, limits: ServiceLimits = PATIENT
) -> None:
    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _what: None)
        server = await HttpService(echo, Bounds.of_questions(limits), "pdp.listen", admit).start("127.0.0.1", 0)
        try:
            await test(server)
        finally:
            await server.stop()

    asyncio.run(run())


async def sent(server: HttpService, *parts: bytes) -> bytes:
    """Send, and read until the server closes, which it does of itself after a while."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0.01)
    try:
        return await asyncio.wait_for(reader.read(), 60)
    except ConnectionResetError:
        return b""
    finally:
        await closed(writer)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no host
        (b"GET / HTTP/2.0\r\n" + HEAD + b"\r\n", 400),
        (b"GET http://x/ HTTP/1.1\r\n" + HEAD + b"\r\n", 400),
        (b"GET /\x01 HTTP/1.1\r\n" + HEAD + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HEAD + b" folded: 1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HEAD + b"a : 1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HEAD + b"a: 1\nb: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HEAD + HEAD + b"\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: +1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 1, 1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\n" + HEAD + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HEAD + CHUNKED + b"\r\n0x1\r\na\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HEAD + CHUNKED + b"\r\n-1\r\na\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HEAD + CHUNKED + b"\r\n1;a=b\r\na\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HEAD + CHUNKED + b"\r\n000000001\r\na\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HEAD + CHUNKED + b"\r\n1\na\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HEAD + CHUNKED + b"\r\n1\r\nab\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HEAD + CHUNKED + b"\r\n0\r\nX-Late: 1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HEAD + CHUNKED + b"\r\n65\r\n", 413),
        (b"POST / HTTP/1.1\r\n" + HEAD + CHUNKED + b"\r\n40\r\n" + b"a" * 64 + b"\r\n25\r\n", 413),
        (b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 101\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\n" + HEAD + b"a: " + b"x" * 9_000 + b"\r\n\r\n", 431),
    ],
)
def test_what_is_no_request(data: bytes, status: int) -> None:
    async def test(server: HttpService) -> None:
        answer = await sent(server, data)
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert b"Connection: close" in answer

    with_server(test)


def test_requests_in_parts_and_several_at_once() -> None:
    async def test(server: HttpService) -> None:
        one = b"POST /a?b HTTP/1.1\r\n" + HEAD + b"Content-Length: 2\r\n\r\nhi"
        answer = await sent(server, one[:10], one[10:-1], one[-1:] + one + b"HEAD /h HTTP/1.0\r\n\r\n")
        assert answer.count(b"HTTP/1.1 200 OK") == 3
        assert answer.count(b"POST /a hi") == 2
        assert answer.endswith(b"Connection: close\r\n\r\n")

    with_server(test)


def test_bodies_in_chunks_however_they_are_cut() -> None:
    async def test(server: HttpService) -> None:
        one = b"POST /a HTTP/1.1\r\n" + HEAD + CHUNKED + b"\r\n2\r\nhi\r\n0a\r\n, and more\r\n000\r\n\r\n"
        for cut in range(60, len(one), 7):
            answer = await sent(server, one[:cut], one[cut:] + b"GET /b HTTP/1.0\r\n\r\n")
            assert answer.count(b"HTTP/1.1 200 OK") == 2
            assert b"POST /a hi, and more" in answer
            assert answer.endswith(b"GET /b ")

    with_server(test)


def test_bodies_in_crumbs_are_refused() -> None:
    chunks, crumbs = Chunks(10_000, 8_192), b"1\r\na\r\n" * 2_000
    with pytest.raises(Wrong) as caught:
        chunks.read(crumbs)
    assert caught.value.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE


def test_who_waits_is_told_to_go_on() -> None:
    async def test(server: HttpService) -> None:
        head = b"POST /a HTTP/1.1\r\n" + HEAD + b"Expect: 100-continue\r\nConnection: close\r\n"
        for length, body in ((b"Content-Length: 2\r\n", b"hi"), (CHUNKED, b"2\r\nhi\r\n0\r\n\r\n")):
            answer = await sent(server, head + length + b"\r\n", body)
            assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")
            assert answer.endswith(b"POST /a hi")

    with_server(test)


def test_slow_and_idle_connections_end() -> None:
    async def test(server: HttpService) -> None:
        assert await sent(server, b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 9\r\n\r\nslow") == b""
        assert server.counts.timed_out == 1
        assert await sent(server) == b""
        assert server.counts.timed_out == 1

    with_server(test, limits=TIGHT)


async def open_idle(server: HttpService, number: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open connections on which nothing is asked; all of them have been accepted when this returns."""
    opened = []
    for _ in range(number):
        before = server.counts.turned_away + len(server.open)
        opened.append(await asyncio.open_connection("127.0.0.1", server.port))
        while server.counts.turned_away + len(server.open) == before:
            await asyncio.sleep(0.001)
    return opened


def test_idle_strangers_give_way_to_whoever_comes() -> None:
    async def test(server: HttpService) -> None:
        idle = await open_idle(server, 5)
        assert len(server.open) == 2
        assert (await sent(server, b"GET / HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert server.counts.turned_away == 4
        # The oldest have gone.
        with suppress(ConnectionResetError):
            assert await idle[0][0].read() == b""
        for _, writer in idle:
            await closed(writer)

    with_server(test)


def test_those_who_have_shown_who_they_are_do_not_give_way() -> None:
    def admit(asked: HttpRequest) -> HttpResponse | str | None:
        if asked.headers.get(b"authorization") == b"good":
            return "app"
        return HttpResponse(b"unauthorized\n", HTTPStatus.UNAUTHORIZED)

    async def test(server: HttpService) -> None:
        one = b"GET /a HTTP/1.1\r\n" + HEAD + b"Authorization: good\r\n\r\n"
        callers = await open_idle(server, 2)
        for reader, writer in callers:
            writer.write(one)
            assert (await reader.readuntil(b"GET /a ")).startswith(b"HTTP/1.1 200 ")
        for _ in range(5):
            assert await sent(server, one) == b""
        for reader, writer in callers:
            writer.write(one)
            assert (await reader.readuntil(b"GET /a ")).startswith(b"HTTP/1.1 200 ")
            await closed(writer)

    with_server(test, admit)


@pytest.mark.parametrize("body", [b"Content-Length: 100\r\n\r\n", CHUNKED + b"\r\n", b"Content-Length: 4\r\n\r\nbody"])
def test_who_asks_is_settled_before_the_body_is_read(body: bytes) -> None:
    async def test(server: HttpService) -> None:
        answer = await sent(server, b"POST /a HTTP/1.1\r\n" + HEAD + b"Expect: 100-continue\r\n" + body)
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"Connection: close" in answer
        assert server.counts.timed_out == 0
        # Without a body the connection goes on.
        ask = b"GET /a HTTP/1.1\r\n" + HEAD
        answer = await sent(server, ask + b"\r\n" + ask + b"Connection: close\r\n\r\n")
        assert answer.count(b"HTTP/1.1 401 ") == 2

    with_server(test, lambda _asked: HttpResponse(b"unauthorized\n", HTTPStatus.UNAUTHORIZED))


def test_a_body_that_comes_byte_by_byte_is_not_copied_for_each() -> None:
    async def test(server: HttpService) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /a HTTP/1.0\r\nContent-Length: 100\r\n\r\n")
        buffers = set()
        for _ in range(100):
            before = sum(len(each._buffer) for each in server.open)
            writer.write(b"x")
            await writer.drain()
            while server.open and sum(len(each._buffer) for each in server.open) == before:
                await asyncio.sleep(0.0001)
            buffers |= {id(each._buffer) for each in server.open}
        assert (await reader.read()).endswith(b"POST /a " + b"x" * 100)
        # One for the first byte, one that grows, and an empty one.
        assert len(buffers) <= 3
        await closed(writer)

    with_server(test)


def test_what_goes_wrong_is_told_to_nobody() -> None:
    async def test(server: HttpService) -> None:
        answer = await sent(server, b"GET /broken HTTP/1.0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert answer.endswith(
            b"\r\n\r\n" + b'{"error":{"code":"http.failed","message":"the request could not be answered"}}'
        )

    with_server(test)


def test_an_address_that_is_taken() -> None:
    async def test(server: HttpService) -> None:
        with pytest.raises(FailedError) as caught:
            await HttpService(echo, Bounds.of_questions(), "pdp.listen").start("127.0.0.1", server.port)
        assert caught.value.code == "pdp.listen"

    with_server(test)


def test_who_does_not_read_does_not_keep_its_connection_when_the_service_stops() -> None:
    async def run() -> None:
        tls = server_context(new_certificate(secrets.token_bytes))
        server = await HttpService(echo, Bounds.of_questions(PATIENT), "pdp.listen").start("127.0.0.1", 0, tls)
        for ask in (b"", b"GET / HTTP/1.0\r\n\r\n"):
            _, writer = await asyncio.open_connection(
                "127.0.0.1", server.port, ssl=client_context(), server_hostname=""
            )
            # It does not say in TLS either that it has read the end.
            secured: Any = writer.transport
            secured._ssl_protocol._transport.pause_reading()
            writer.write(ask)
            writers.append(writer)
        while len(server.open) < 2 or not server.counts.answers:
            await asyncio.sleep(0.01)
        await server.stop()
        assert not server.open
        for writer in writers:
            writer.transport.abort()

    writers: list[asyncio.StreamWriter] = []
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(asyncio.wait_for(run(), 60))
        gc.collect()
    assert [str(one.message) for one in found] == []

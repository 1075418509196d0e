"""What a node tells of itself over HTTP: one answer a connection, to GET and HEAD, and nothing is read but the path.

Whoever can reach the address may ask, so it says nothing about anybody. How much is read, for how long, and from how
many at once is bounded.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Self, TypeAlias

from penstock.errors import FailedError
from penstock.model.limits import DEFAULT_LIMITS, Limits

TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = TEXT


Pages: TypeAlias = Mapping[str, Callable[[], Page]]
"""What is at each path."""


class HttpServer:
    """See the module."""

    def __init__(self, pages: Pages, limits: Limits = DEFAULT_LIMITS) -> None:
        self._pages = pages
        self._limits = limits
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> Self:
        """Listen; port 0 takes any that is free. Raises `FailedError` (`node.http`)."""
        try:
            self._server = await asyncio.start_server(self._accept, host, port, limit=self._limits.http_bytes)
        except OSError as error:
            raise FailedError("node.http", f"cannot listen at `{host}` port {port}", hint="is it taken?") from error
        return self

    @property
    def port(self) -> int:
        """The port that it listens at; 0 while it does not."""
        sockets = () if self._server is None else self._server.sockets
        return int(sockets[0].getsockname()[1]) if sockets else 0

    async def stop(self) -> None:
        """Answer nobody any more."""
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= self._limits.http_connections:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._limits.http_time / 1000):
                writer.write(await self._answer(reader))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _response(_plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
        # RFC 9112, section 3: method, target, version.
        words = head.partition(b"\r\n")[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response(_plain(HTTPStatus.BAD_REQUEST))
        method, target, _ = words
        if method not in (b"GET", b"HEAD"):
            return _response(_plain(HTTPStatus.METHOD_NOT_ALLOWED), b"Allow: GET, HEAD\r\n")
        page = self._pages.get(target.partition(b"?")[0].decode("latin-1"))
        found = _plain(HTTPStatus.NOT_FOUND) if page is None else page()
        return _response(found, with_body=method == b"GET")


def _plain(status: HTTPStatus) -> Page:
    return Page(f"{status.phrase.lower()}\n".encode(), status)


def _response(page: Page, more: bytes = b"", *, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\n"
        f"Content-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n"
    ).encode()
    return head + more + b"\r\n" + (page.body if with_body else b"")

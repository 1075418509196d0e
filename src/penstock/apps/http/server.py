"""An HTTP/1.1 server for short questions: a request is read whole and answered, and the connection stays open.

An answer is there immediately, or is awaited; meanwhile nothing more is read from its connection. A malformed request
(`read_head`, `Chunks`) is answered with an error and ends the connection. The caller is checked by the head alone,
before the body is read. Size, time and concurrent connections are limited: when there are too many connections, a
stranger's connection that has been idle for the longest time gives way. Whatever goes wrong in an answer is a 500. Each
refusal has a code, in JSON.
"""

import asyncio
import json
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Self, TypeAlias

from msgspec import Struct

from penstock.apps.http.limits import HTTP_BYTES, SERVICE_LIMITS, ServiceLimits
from penstock.errors import FailedError
from penstock.fabric.tasks import in_background, keep_running, report

# ----------------------------------------------------------------------------------------------------------------------
# Read a request: its head, and a body in chunks. Nothing is guessed.
#
# Strict where leniency would let two readers see different requests (RFC 9112, sections 5 to 7): lines end with CR LF,
# nothing is folded, headers that matter stand once, a body has a length or chunks and not both, and chunks have neither
# extensions nor trailers.


#: tokens, targets and permitted values of a header (RFC 9110, section 5.5; RFC 9112, section 3)
_START: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (/[\x21-\x7e]*) HTTP/1\.([01])")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\x80-\xff\t]*)")
_ONCE: Final = frozenset(
    {b"host", b"content-length", b"content-type", b"transfer-encoding", b"authorization", b"x-request-id"}
)
_CHUNK: Final = re.compile(rb"[0-9A-Fa-f]{1,8}")
_LINE: Final = b"\r\n"


class Wrong(Exception):  # noqa: N818  # it never leaves the server
    """The input is not a request that this server answers."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status)
        self.status = status


class RequestHead(Struct, gc=False):
    """A request without its body; a body without a size comes in chunks."""

    method: bytes
    path: bytes
    headers: dict[bytes, bytes]
    size: int | None
    #: whether the connection can stay open, and whether the caller waits before it sends the body
    keep: bool
    waits: bool


def read_head(head: bytes, most: int) -> RequestHead:
    """Read a request line and headers, with this limit for the size of the body. Raises `Wrong`."""
    first, *lines = head.split(_LINE)
    start = _START.fullmatch(first)
    if start is None:
        raise Wrong(HTTPStatus.BAD_REQUEST)
    method, target, minor = start.groups()
    headers: dict[bytes, bytes] = {}
    for line in lines:
        found = _HEADER.fullmatch(line)
        if found is None:
            raise Wrong(HTTPStatus.BAD_REQUEST)
        name, value = found.groups()
        name = name.lower()
        if name in headers:
            # A list may be split (RFC 9110, section 5.3); the caller, the length and the kind of content may not.
            if name in _ONCE:
                raise Wrong(HTTPStatus.BAD_REQUEST)
            headers[name] += b", " + value.rstrip(b" \t")
        else:
            headers[name] = value.rstrip(b" \t")
    newer = minor == b"1"
    if newer and b"host" not in headers:
        raise Wrong(HTTPStatus.BAD_REQUEST)
    connection = headers.get(b"connection", b"").lower()
    keep = connection != b"close" if newer else connection == b"keep-alive"
    waits = headers.get(b"expect", b"").lower() == b"100-continue"
    size = _size(headers, most, newer=newer)
    return RequestHead(method, target.partition(b"?")[0], headers, size, keep, waits and size != 0)


def _size(headers: Mapping[bytes, bytes], most: int, *, newer: bool) -> int | None:
    coding = headers.get(b"transfer-encoding")
    text = headers.get(b"content-length")
    if coding is not None:
        # RFC 9112, sections 6.1 and 6.3: a length besides, or an older version, is an attack, or a broken proxy.
        if text is not None or not newer:
            raise Wrong(HTTPStatus.BAD_REQUEST)
        if coding.lower() != b"chunked":
            raise Wrong(HTTPStatus.NOT_IMPLEMENTED)
        return None
    if text is None:
        return 0
    if not text.isdigit() or len(text) > 18:
        raise Wrong(HTTPStatus.BAD_REQUEST)
    if int(text) > most:
        raise Wrong(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    return int(text)


class Chunks:
    """A body in chunks (RFC 9112, section 7.1), as far as it is here.

    It has so many bytes at most, and what is around the chunks no more than a head may have: bodies in crumbs take
    longer to read than they are worth.
    """

    def __init__(self, most: int, around: int) -> None:
        self._most = most
        self._around = around
        self._parts: list[bytes] = []
        #: bytes of the chunk that comes next; none where its size comes next
        self._next: int | None = None
        self.whole = False

    @property
    def body(self) -> bytes:
        """The content of the chunks."""
        return b"".join(self._parts)

    def read(self, data: bytes | bytearray) -> int:
        """Read on, and return how many bytes were read; the others come again, with more. Raises `Wrong`."""
        place = 0
        while not self.whole:
            size = self._next
            if size is None:
                end = data.find(_LINE, place, place + 10)
                if end < 0:
                    if len(data) - place >= 10:
                        raise Wrong(HTTPStatus.BAD_REQUEST)
                    return place
                self._begin(bytes(data[place:end]))
                place = end + 2
                continue
            if len(data) - place < size + 2:
                return place
            end = place + size
            if data[end : end + 2] != _LINE:
                raise Wrong(HTTPStatus.BAD_REQUEST)
            self._parts.append(bytes(data[place:end]))
            self._next, self.whole = None, size == 0
            place = end + 2
        return place

    def _begin(self, line: bytes) -> None:
        if _CHUNK.fullmatch(line) is None:
            raise Wrong(HTTPStatus.BAD_REQUEST)
        self._next = int(line, 16)
        self._most -= self._next
        self._around -= len(line) + 4
        if min(self._most, self._around) < 0:
            raise Wrong(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


# ----------------------------------------------------------------------------------------------------------------------
# The paths of the decision service, and its kinds of content.


JSON: Final = "application/json"
XML: Final = "application/xml"
XACML_XML: Final = "application/xacml+xml"
XACML_JSON: Final = "application/xacml+json"

DISCOVERY: Final = "/.well-known/authzen-configuration"
HOME: Final = "/"
AUTHORIZE: Final = "/authorize"
HEALTH: Final = "/health"
METRICS: Final = "/metrics"
OPENAPI: Final = "/openapi.json"
#: endpoints of AuthZEN by the names that the discovery document has for them
ENDPOINTS: Final[Mapping[str, str]] = {
    "access_evaluation_endpoint": "/access/v1/evaluation",
    "access_evaluations_endpoint": "/access/v1/evaluations",
    "search_subject_endpoint": "/access/v1/search/subject",
    "search_resource_endpoint": "/access/v1/search/resource",
    "search_action_endpoint": "/access/v1/search/action",
}


# ----------------------------------------------------------------------------------------------------------------------
# An HTTP/1.1 server for short questions: a request is read whole, answered immediately, and the connection stays open.


TEXT: Final = "text/plain; charset=utf-8"
_END: Final = b"\r\n\r\n"
#: seconds that connections have to end in good order when a service stops
_GOODBYE: Final = 1.0


class HttpRequest(Struct, frozen=True, gc=False):
    """A request: header names are in lower case."""

    method: bytes
    path: bytes
    headers: Mapping[bytes, bytes]
    body: bytes = b""
    #: whether the head was checked already, and the caller
    admitted: bool = False
    caller: str | None = None


class HttpResponse(Struct, frozen=True, gc=False):
    """An answer; headers are whole lines."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = TEXT
    headers: bytes = b""


Answering: TypeAlias = Callable[[HttpRequest], "HttpResponse | Awaitable[HttpResponse]"]
"""Answers a request, immediately or later. It must not block the event loop."""


Admitting: TypeAlias = Callable[[HttpRequest], "HttpResponse | str | None"]
"""Checks a request without its body: returns the caller, if that matters, or an immediate answer."""


class Refusal(Struct, frozen=True, gc=False):
    """The body of a refusal."""

    code: str
    message: str

    def answer(self, status: HTTPStatus, headers: bytes = b"") -> HttpResponse:
        """Return the answer, which is JSON whatever was asked for."""
        body = json.dumps({"error": {"code": self.code, "message": self.message}}, separators=(",", ":"))
        return HttpResponse(body.encode(), status, JSON, headers)


_REFUSALS: Final = {
    HTTPStatus.BAD_REQUEST: Refusal("http.request", "this is not a request of HTTP/1.1"),
    HTTPStatus.NOT_FOUND: Refusal("http.not-found", "there is nothing at this path"),
    HTTPStatus.METHOD_NOT_ALLOWED: Refusal("http.method", "this method is not answered here; see the header `Allow`"),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: Refusal("http.body", "the body is too long, or is in too many chunks"),
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: Refusal("http.head", "the head of the request is too long"),
    HTTPStatus.NOT_IMPLEMENTED: Refusal("http.coding", "this coding of a body is not supported"),
    HTTPStatus.INTERNAL_SERVER_ERROR: Refusal("http.failed", "the request could not be answered"),
}


def refused(status: HTTPStatus, headers: bytes = b"") -> HttpResponse:
    """Return the answer to input that is not a request for this server."""
    return _REFUSALS[status].answer(status, headers)


@dataclass(slots=True)
class ServerCounts:
    """The counters of a server."""

    answers: dict[int, int] = field(default_factory=dict)
    turned_away: int = 0
    timed_out: int = 0
    #: connections that are open now
    connections: int = 0


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is read of a request, how long it and the rest after it may take, and how many connections there are.

    `once`: a connection ends with its first answer.
    """

    head: int
    body: int
    time: int
    idle: int
    connections: int
    once: bool = False

    @classmethod
    def of_questions(cls, limits: ServiceLimits = SERVICE_LIMITS) -> "Bounds":
        """Return those of a service that is asked again and again."""
        return cls(HTTP_BYTES, limits.pdp_bytes, limits.pdp_time, limits.pdp_idle, limits.pdp_connections)

    @classmethod
    def of_pages(cls, head: int, time: int, connections: int) -> "Bounds":
        """Return those of pages that anybody may look at now and then."""
        return cls(head, 0, time, time, connections, once=True)


class HttpService:
    """See the module. `code` is of the error if it cannot listen; without `admit`, `answer` settles who asks.

    `counts` shows what it has seen to others.
    """

    def __init__(
        self,
        answer: Answering,
        bounds: Bounds,
        code: str,
        admit: Admitting | None = None,
        counts: ServerCounts | None = None,
    ) -> None:
        self.answer = answer
        self.admit = admit
        self.bounds = bounds
        self._code = code
        self.counts = counts or ServerCounts()
        self.open: set[_Connection] = set()
        #: connections without an authenticated caller; the longest idle one is first
        self.strangers: dict[_Connection, None] = {}
        #: set when a connection has ended
        self.left = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self.stopping = False

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> Self:
        """Listen; port 0 takes any that is free. Raises `FailedError` with the code of the service."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: _Connection(self),
                host,
                port,
                ssl=tls,
                backlog=1024,
                ssl_handshake_timeout=None if tls is None else self.bounds.time / 1000,
            )
        except OSError as error:
            raise FailedError(
                self._code, f"cannot listen at `{host}` port {port}", hint="check that no other program uses the port"
            ) from error
        self._sweeper = keep_running("ending idle connections", self._sweep)
        return self

    @property
    def port(self) -> int:
        """The port that it listens at; 0 while it does not."""
        sockets = () if self._server is None else self._server.sockets
        return int(sockets[0].getsockname()[1]) if sockets else 0

    async def stop(self) -> None:
        """Stop listening, and close connections; all requests are answered already."""
        self.stopping = True
        if self._server is not None:
            self._server.close()
        for connection in [*self.open]:
            connection.close()
        try:
            if self._sweeper is not None:
                self._sweeper.cancel()
                await asyncio.gather(self._sweeper, return_exceptions=True)
            # A closing connection sends its buffer, and over TLS it waits for the other side.
            with suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE):
                    while self.open:
                        self.left.clear()
                        await self.left.wait()
        finally:
            for connection in [*self.open]:
                connection.abort()
        # An aborted connection ends in the next turn of the loop, and over TLS in the one after it.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _sweep(self) -> None:
        """Close connections that take too long for a request, or that are idle."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(1.0, self.bounds.time / 4_000))
            now = loop.time()
            for connection in [*self.open]:
                allowed = self.bounds.time if connection.waited_for else self.bounds.idle
                if now - connection.since > allowed / 1000:
                    self.counts.timed_out += connection.waited_for
                    connection.abort()


class _NotAdmitted(Exception):  # noqa: N818  # it never leaves the server
    """A request is answered without its body."""

    def __init__(self, answer: HttpResponse, head: RequestHead) -> None:
        super().__init__(answer.status)
        self.answer = answer
        self.head = head


class _Connection(asyncio.Protocol):
    """One connection: input that is not answered yet, and since when."""

    __slots__ = ("_awaiting", "_buffer", "_caller", "_chunks", "_full", "_head", "_service", "_transport", "since")

    def __init__(self, service: HttpService) -> None:
        self._service = service
        self._transport: asyncio.Transport | None = None
        self._buffer: bytes | bytearray = b""
        self._head: RequestHead | None = None
        self._caller: str | None = None
        self._chunks: Chunks | None = None
        self._full = False
        #: whether an answer is awaited
        self._awaiting = False
        self.since = 0.0

    @property
    def waited_for(self) -> bool:
        """Whether a request is half here, or an answer is not fetched. While an answer is awaited, the caller waits."""
        return not self._awaiting and (bool(self._buffer) or self._head is not None or self._full)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless there are too many."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(type(transport))
        self._transport = transport
        service = self._service
        full = len(service.open) >= service.bounds.connections
        if full and service.strangers and not service.stopping:
            oldest = next(iter(service.strangers))
            service.counts.turned_away += 1
            # Now, and not when the transport says so: others may connect in the same turn of the loop.
            oldest.leave()
            oldest.abort()
        elif full or service.stopping:
            service.counts.turned_away += 1
            transport.abort()
            return
        self.since = asyncio.get_running_loop().time()
        service.open.add(self)
        service.counts.connections = len(service.open)
        service.strangers[self] = None

    def leave(self) -> None:
        """Count no more among the open connections."""
        self._service.open.discard(self)
        self._service.counts.connections = len(self._service.open)
        self._service.strangers.pop(self, None)
        self._service.left.set()

    def connection_lost(self, _error: Exception | None) -> None:
        """Forget it."""
        self.leave()
        self._transport = None

    def close(self) -> None:
        """Close it when all answers are sent."""
        # Once: asyncio forgets a connection over TLS that is closed twice, and cannot abort it any more.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def abort(self) -> None:
        """Close it now."""
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        """Stop answering until the caller has read the answers."""
        self._full = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self._full = False
        if self._transport is not None:
            if not self._awaiting:
                self._transport.resume_reading()
            self._go_on()

    def data_received(self, data: bytes) -> None:
        """Answer all complete requests."""
        if not self.waited_for:
            self.since = asyncio.get_running_loop().time()
        if not self._buffer:
            self._buffer = data
        else:
            # If a caller sends byte by byte, everything must not be copied each time.
            if isinstance(self._buffer, bytes):
                self._buffer = bytearray(self._buffer)
            self._buffer += data
        self._go_on()

    def _go_on(self) -> None:
        transport = self._transport
        try:
            while transport is not None and not self._full and not self._awaiting and not transport.is_closing():
                try:
                    asked = self._next()
                except _NotAdmitted as turned_away:
                    self._refuse(transport, turned_away)
                    continue
                if asked is None:
                    return
                self._send(transport, *asked)
        except Wrong as wrong:
            # The rest cannot be distinguished from the malformed part.
            self._buffer = b""
            if transport is not None:
                self._write(transport, refused(wrong.status), keep=False, with_body=True)

    def _next(self) -> tuple[HttpRequest, bool] | None:
        """Take a request from the input, and return whether the connection stays open after it."""
        head = self._head
        if head is None:
            end = self._buffer.find(_END, 0, self._service.bounds.head)
            if end < 0:
                if len(self._buffer) >= self._service.bounds.head:
                    raise Wrong(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
                return None
            head = self._head = read_head(bytes(self._buffer[:end]), self._service.bounds.body)
            self._buffer = self._buffer[end + 4 :]
            self._admit(head)
            if head.size is None:
                self._chunks = Chunks(self._service.bounds.body, self._service.bounds.head)
            if head.waits and len(self._buffer) < (head.size or 1):
                self._say_continue()
        body = self._in_chunks(self._chunks) if head.size is None and self._chunks is not None else self._as_is(head)
        if body is None:
            return None
        self._head = self._chunks = None
        strangers = self._service.strangers
        if strangers.pop(self, 0) is None and self._caller is None:
            strangers[self] = None
        asked = HttpRequest(head.method, head.path, head.headers, body, self._service.admit is not None, self._caller)
        return asked, head.keep and not self._service.bounds.once

    def _admit(self, head: RequestHead) -> None:
        """Identify the caller. Raises `_NotAdmitted` with the answer."""
        if self._service.admit is None:
            return
        try:
            found = self._service.admit(HttpRequest(head.method, head.path, head.headers))
        except Exception as error:  # whatever `admit` raises, it admits nobody
            report("nobody can be admitted", error)
            raise _NotAdmitted(refused(HTTPStatus.INTERNAL_SERVER_ERROR), head) from error
        if isinstance(found, HttpResponse):
            raise _NotAdmitted(found, head)
        self._caller = found

    def _refuse(self, transport: asyncio.Transport, refused: _NotAdmitted) -> None:
        """Answer a request without its body: if there is one, the connection ends."""
        head, self._head, self._chunks = refused.head, None, None
        keep = head.keep and head.size == 0 and not self._service.bounds.once and not self._service.stopping
        if not keep:
            self._buffer = b""
        self._write(transport, refused.answer, keep=keep, with_body=head.method != b"HEAD")

    def _as_is(self, head: RequestHead) -> bytes | None:
        """Take a body whose length is known, if it is here."""
        size = head.size or 0
        if len(self._buffer) < size:
            return None
        body, self._buffer = self._buffer[:size], self._buffer[size:]
        return bytes(body)

    def _in_chunks(self, chunks: Chunks) -> bytes | None:
        """Read the available part of a body in chunks, and return the body when it is complete."""
        if (read := chunks.read(self._buffer)) > 0:
            self._buffer = self._buffer[read:]
        return chunks.body if chunks.whole else None

    def _say_continue(self) -> None:
        if self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _send(self, transport: asyncio.Transport, asked: HttpRequest, keep: bool) -> None:
        try:
            answer = self._service.answer(asked)
        except Exception as error:  # noqa: BLE001  # the caller learns no more than that
            report("no answer", error)
            answer = refused(HTTPStatus.INTERNAL_SERVER_ERROR)
        if isinstance(answer, HttpResponse):
            self._finish(transport, asked, answer, keep=keep)
            return
        self._awaiting = True
        transport.pause_reading()
        in_background("answering a request", self._await(transport, asked, answer, keep=keep))

    async def _await(
        self, transport: asyncio.Transport, asked: HttpRequest, awaited: Awaitable[HttpResponse], *, keep: bool
    ) -> None:
        try:
            answer = await awaited
        except Exception as error:  # noqa: BLE001  # the caller learns no more than that
            report("no answer", error)
            answer = refused(HTTPStatus.INTERNAL_SERVER_ERROR)
        finally:
            self._awaiting = False
        if transport.is_closing():
            return
        self.since = asyncio.get_running_loop().time()
        self._finish(transport, asked, answer, keep=keep)
        if not transport.is_closing() and not self._full:
            transport.resume_reading()
            self._go_on()

    def _finish(self, transport: asyncio.Transport, asked: HttpRequest, answer: HttpResponse, *, keep: bool) -> None:
        self._write(transport, answer, keep=keep and not self._service.stopping, with_body=asked.method != b"HEAD")
        if self._buffer:
            self.since = asyncio.get_running_loop().time()

    def _write(self, transport: asyncio.Transport, answer: HttpResponse, *, keep: bool, with_body: bool) -> None:
        answers, status = self._service.counts.answers, answer.status
        answers[status] = answers.get(status, 0) + 1
        lines = b"%b%d\r\n%b%b\r\n" % (
            _fixed(answer.status, answer.content_type),
            len(answer.body),
            answer.headers,
            b"" if keep else b"Connection: close\r\n",
        )
        transport.write(lines + answer.body if with_body else lines)
        if not keep:
            transport.close()


_FIXED: dict[tuple[HTTPStatus, str], bytes] = {}


def _fixed(status: HTTPStatus, content_type: str) -> bytes:
    """Return the common beginning of all answers of a kind, up to their length."""
    found = _FIXED.get((status, content_type))
    if found is None:
        found = _FIXED[status, content_type] = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
            "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nContent-Length: "
        ).encode()
    return found

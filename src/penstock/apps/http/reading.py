"""What is read of a request: its head, and a body in chunks. Nothing is guessed.

Strict where leniency would let two readers see different requests (RFC 9112, sections 5 to 7): lines end with CR LF,
nothing is folded, headers that matter stand once, a body has a length or chunks and not both, and chunks have neither
extensions nor trailers.
"""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from msgspec import Struct

#: tokens, targets and what may stand in a header (RFC 9110, section 5.5; RFC 9112, section 3)
_START: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (/[\x21-\x7e]*) HTTP/1\.([01])")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\x80-\xff\t]*)")
_ONCE: Final = frozenset(
    {b"host", b"content-length", b"content-type", b"transfer-encoding", b"authorization", b"x-request-id"}
)
_CHUNK: Final = re.compile(rb"[0-9A-Fa-f]{1,8}")
_LINE: Final = b"\r\n"


class Wrong(Exception):  # noqa: N818  # it never leaves the server
    """What is read is no request that is answered."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status)
        self.status = status


class Head(Struct, gc=False):
    """A request of which the body is still to come; what has no size comes in chunks."""

    method: bytes
    path: bytes
    headers: dict[bytes, bytes]
    size: int | None
    #: whether the connection may stay open, and whether who asks waits before they send the body
    keep: bool
    waits: bool


def read_head(head: bytes, most: int) -> Head:
    """Read a request line and headers, of a body that has so many octets at most. Raises `Wrong`."""
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
            # A list may be split (RFC 9110, section 5.3); who asks, how long and of what kind may not.
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
    return Head(method, target.partition(b"?")[0], headers, size, keep, waits and size != 0)


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

    It has so many octets at most, and what is around the chunks no more than a head may have: bodies in crumbs take
    longer to read than they are worth.
    """

    def __init__(self, most: int, around: int) -> None:
        self._most = most
        self._around = around
        self._parts: list[bytes] = []
        #: octets of the chunk that comes next; none where its size comes next
        self._next: int | None = None
        self.whole = False

    @property
    def body(self) -> bytes:
        """What was in the chunks."""
        return b"".join(self._parts)

    def read(self, data: bytes | bytearray) -> int:
        """Read on, and return how many octets were read; the others come again, with more. Raises `Wrong`."""
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

"""Messages as bytes: bounded trees of values in msgpack, many of them in one length-prefixed frame.

    frame    four bytes of length (big-endian), then that many bytes: one msgpack array of messages, or nothing;
             an urgent frame has the byte c1 before the array
    message  null, boolean, integer (-2^63 to 2^64-1), float, text, bytes, instant, list, or map with keys of text

A message is encoded once (`encode`) and can then go into the frames of any number of links (`frame`). What a peer sends
is cut into frames by `FrameReader`, which believes no length beyond its limit, and read by `decode_messages`. Nothing
here is signed: what signatures cover is an S-expression, which has one written form.

Hostile input costs no more than a small multiple of its own size: an array that claims more items than it has, nesting,
extension types, and keys that are not text or are duplicate, are all refused with a `MalformedError`.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime  # noqa: TC003  # part of a public alias, which programs may look into
from itertools import chain
from struct import Struct
from typing import Any, Final, NewType, TypeAlias, cast

import msgpack

from penstock.codec.limits import CODEC_LIMITS, CodecLimits
from penstock.errors import LimitError, MalformedError
from penstock.model.names import AttributeId

Wire: TypeAlias = "bool | int | float | str | bytes | datetime | list[Wire] | dict[str, Wire] | None"
"""A message, or a part of one, as it is read."""

Writable: TypeAlias = "bool | int | float | str | bytes | datetime | Sequence[Writable] | Mapping[str, Writable] | None"
"""A message, or a part of one, as it may be written: lists or tuples, and dictionaries."""

Encoded = NewType("Encoded", bytes)
"""The bytes of one message, as `encode` makes them."""

BytesLike: TypeAlias = bytes | bytearray | memoryview

_LENGTH: Final = Struct(">I")
HEADER_BYTES: Final = _LENGTH.size
KEEPALIVE: Final = bytes(HEADER_BYTES)
"""The frame of nothing."""

#: the first byte of an urgent frame, which no value in msgpack has
_URGENT: Final = b"\xc1"

Container: TypeAlias = list[object] | tuple[object, ...] | dict[object, object]
_CONTAINERS: Final = frozenset((list, tuple, dict))
#: up to so many lists and maps it is quicker to look at each item than to ask about all
_FEW: Final = 8
_KEYS: Final = frozenset((str, AttributeId))


def encode(value: Writable, *, limits: CodecLimits = CODEC_LIMITS) -> Encoded:
    """Return the bytes of one message. A tuple is written as a list, and an instant in UTC.

    Raises `MalformedError` (`wire.value`) if it is not a message, and `LimitError` (`wire.limit`) as `decode` does.
    """
    try:
        data: bytes = msgpack.packb(value, datetime=True)
    except (TypeError, ValueError, OverflowError):
        raise _no_message() from None
    if type(value) is not bytes:
        _check_items(_check_depth(value, limits.wire_depth), limits.wire_items)
    if len(data) + HEADER_BYTES + 1 > limits.frame_bytes:
        raise LimitError("wire.limit", f"a message of {len(data)} bytes does not fit into a frame", hint="split it")
    return Encoded(data)


def encode_rows(
    head: Sequence[Writable], rows: Sequence[Sequence[Any]], *, limits: CodecLimits = CODEC_LIMITS
) -> Encoded:
    """Return the bytes of a message that ends with rows: lists of values, none of which is a list or a map.

    The rows are not looked into, so that their values must have been checked. Raises as `encode`.
    """
    try:
        data: bytes = msgpack.packb([*head, rows], datetime=True)
    except (TypeError, ValueError, OverflowError):
        raise _no_message() from None
    if len(rows) > limits.wire_items or (rows and len(rows[0]) > limits.wire_items):
        raise LimitError("wire.limit", f"a list of {len(rows)} rows", hint="split it")
    if len(data) + HEADER_BYTES + 1 > limits.frame_bytes:
        raise LimitError("wire.limit", f"a message of {len(data)} bytes fits into no frame", hint="split it")
    return Encoded(data)


def decode(data: BytesLike, *, limits: CodecLimits = CODEC_LIMITS) -> Wire:
    """Read one message, and nothing behind it.

    Raises `MalformedError` (`wire.malformed`) and `LimitError` (`wire.limit`).
    """
    value = _unpack(data, limits)
    _check_depth(value, limits.wire_depth)
    return value


def decode_messages(data: BytesLike, *, limits: CodecLimits = CODEC_LIMITS) -> list[Wire]:
    """Read the messages of a frame.

    Raises `MalformedError` (`wire.malformed`) and `LimitError` (`wire.limit`).
    """
    value = _unpack(data[1:] if is_urgent(data) else data, limits)
    if not isinstance(value, list):
        raise MalformedError("wire.malformed", "a frame holds a list of messages, and this one does not")
    if len(value) > limits.frame_messages:
        raise LimitError("wire.limit", f"a frame of {len(value)} messages", hint="split it")
    _check_depth(value, limits.wire_depth + 1)
    return value


def frame(messages: Sequence[Encoded], *, urgent: bool = False) -> bytes:
    """Return one frame of encoded messages, its length before them. The caller keeps it within the limits.

    One that is `urgent` may be taken before others that were sent earlier.
    """
    header = _URGENT * urgent + _array_header(len(messages))
    length = len(header) + sum(map(len, messages))
    return b"".join((_LENGTH.pack(length), header, *messages))


def is_urgent(found: BytesLike) -> bool:
    """Return whether a frame may be taken before others."""
    return bool(found) and found[0] == _URGENT[0]


def raw_frame(data: bytes) -> bytes:
    """Return one frame of bytes that are not messages: a part of a handshake, a goodbye."""
    return _LENGTH.pack(len(data)) + data


class FrameReader:
    """Splits a stream of bytes, which comes in pieces of any size, into frames. It does not wait or send.

    The first `opening` frames may have no more bytes than the handshake needs: who has not said who he is may not
    make us remember much. The following ones have `most` bytes at most, until `widen` lets them be as large as any.
    """

    __slots__ = ("_largest", "_limit", "_opening", "_opening_limit", "_wanted", "pending")

    def __init__(self, *, opening: int = 0, most: int | None = None, limits: CodecLimits = CODEC_LIMITS) -> None:
        self._largest = limits.frame_bytes
        self._limit = self._largest if most is None else min(most, self._largest)
        self._opening = opening
        self._opening_limit = limits.handshake_bytes
        #: the beginning of a frame that has not ended
        self.pending = bytearray()
        self._wanted = HEADER_BYTES

    @property
    def partial(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self.pending)

    @property
    def held(self) -> int:
        """How many bytes of a frame that has not ended are kept."""
        return len(self.pending)

    def widen(self) -> None:
        """Let frames from the next one on be as large as any."""
        self._limit = self._largest

    def feed(self, data: BytesLike) -> list[memoryview]:
        """Take some bytes and return the frames that are whole now, without their lengths and without copying them.

        The views are on what was fed, which must not change while they are used; unless the reader was `partial`, when
        it copies. Raises `LimitError` (`frame.limit`) as soon as a length is known to be too large; the stream is of no
        use after that.
        """
        if self.pending:
            self.pending += data
            if len(self.pending) < self._wanted:
                return []
            data, self.pending = self.pending, bytearray()
        view = memoryview(data)
        frames: list[memoryview] = []
        start, end, self._wanted = 0, len(view), HEADER_BYTES
        while end - start >= HEADER_BYTES:
            body = start + HEADER_BYTES
            following = body + self._length(view, start)
            if following > end:
                self._wanted = following - start
                break
            frames.append(view[body:following])
            # A keep-alive is not counted as a frame of the handshake, or larger frames would be accepted after it.
            self._opening -= self._opening > 0 and following > body
            start = following
        if start < end:
            self.pending += view[start:]
        return frames

    def close(self) -> None:
        """Say that no more follows. Raises `MalformedError` (`frame.truncated`) inside of a frame."""
        if self.pending:
            raise MalformedError("frame.truncated", "the stream ends inside of a frame")

    def _length(self, view: memoryview, start: int) -> int:
        length: int = _LENGTH.unpack_from(view, start)[0]
        limit = self._opening_limit if self._opening else self._limit
        if length > limit:
            raise LimitError("frame.limit", f"a frame of {length} bytes, where at most {limit} are read")
        return length


def _unpack(data: BytesLike, limits: CodecLimits) -> Wire:
    try:
        # An array is made as long as it claims to be before its items are read: the bound is on every level of nesting.
        value: Wire = msgpack.unpackb(
            data,
            timestamp=3,
            object_pairs_hook=_map,
            ext_hook=_extension,
            max_array_len=min(limits.wire_items, len(data)),
            max_map_len=min(limits.wire_items, len(data)),
        )
    except (ValueError, OverflowError, TypeError, msgpack.exceptions.UnpackException):
        # `from None`: some of these errors contain parts of the input.
        raise MalformedError("wire.malformed", "not a message", hint="the peer does not use this protocol") from None
    return value


def _map(pairs: Sequence[tuple[str, Wire]]) -> dict[str, Wire]:
    found = dict(pairs)
    "".join(found)  # raises TypeError where a key is bytes, which msgpack lets pass; much quicker than asking each
    if len(found) != len(pairs):
        raise MalformedError("wire.malformed", "a key occurs twice in a map")
    return found


def _extension(code: int, _data: bytes) -> Wire:
    raise MalformedError("wire.malformed", f"an extension type {code}, which messages do not have")


def _check_depth(value: object, depth: int) -> list[Container]:
    """Check nesting, level by level, and return all lists and maps. Most hold no other, which is quickly seen."""
    level: list[Container] = [cast("Container", value)] if type(value) in _CONTAINERS else []
    found = level
    while level:
        if not depth:
            raise LimitError("wire.limit", "a message is nested too deep")
        depth -= 1
        if len(level) > _FEW:
            holds: list[Iterable[Any]] = [one.values() if type(one) is dict else one for one in level]
            if _CONTAINERS.isdisjoint(map(type, chain.from_iterable(holds))):
                break
        below: list[Container] = []
        for one in level:
            for item in one.values() if type(one) is dict else one:
                if type(item) in _CONTAINERS:
                    below.append(item)  # type: ignore[arg-type]  # noqa: PERF401  # a list for each takes twice as long
        found = found + below if below else found
        level = below
    return found


def _check_items(containers: Iterable[Container], items: int) -> None:
    """Check, as reading would, the sizes of lists and maps, and that keys are text."""
    for container in containers:
        if len(container) > items:
            raise LimitError("wire.limit", f"a list or map of {len(container)} items", hint="split it")
        if type(container) is dict and not {*map(type, container)} <= _KEYS:
            raise _no_message()


def _array_header(count: int) -> bytes:
    # The three forms of an array's head in msgpack; 16 bits are far more than a frame may hold.
    return bytes((0x90 | count,)) if count < 16 else b"\xdc" + count.to_bytes(2, "big")


def _no_message() -> MalformedError:
    return MalformedError(
        "wire.value",
        "a message holds null, booleans, numbers, text, bytes, instants, lists, and maps with keys of text",
        hint="an integer has 64 bits, an instant has a time zone",
    )

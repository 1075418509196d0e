"""Files of sealed blocks: each with its length (4 octets, big-endian) before it, as frames of a link have.

There is nothing at the beginning or the end, so that files are put together by writing one behind the other.
"""

from collections.abc import Iterator
from struct import Struct
from typing import IO, BinaryIO, Final

from penstock.codec.blocks import VERSION
from penstock.errors import MalformedError
from penstock.model.limits import DEFAULT_LIMITS, Limits

_LENGTH: Final = Struct(">I")
_VERSION: Final = bytes([VERSION])


def write_sealed(stream: IO[bytes], block: bytes) -> int:
    """Write a block, and return how many octets that took. Raises `OSError`."""
    return stream.write(_LENGTH.pack(len(block)) + block)


def read_sealed(stream: BinaryIO, *, limits: Limits = DEFAULT_LIMITS) -> Iterator[bytes]:
    """Yield the blocks of a file, none of them looked into.

    Raises `MalformedError`: `seal.file` for what is no file of blocks, `seal.truncated` where it ends inside of one;
    and `OSError`. Nothing can be read behind that.
    """
    while head := _read(stream, _LENGTH.size):
        if len(head) < _LENGTH.size:
            raise _truncated()
        length: int = _LENGTH.unpack(head)[0]
        if not 0 < length <= limits.block_bytes:
            raise _no_file()
        first = _read(stream, 1)
        if first not in (b"", _VERSION):
            # Before as much is read as some other file happens to say.
            raise _no_file()
        block = first + _read(stream, length - 1)
        if len(block) < length:
            raise _truncated()
        yield block


def _read(stream: BinaryIO, size: int) -> bytes:
    """Read so many octets, or all that are left: a pipe gives what it has."""
    parts: list[bytes] = []
    while size and (part := stream.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _truncated() -> MalformedError:
    return MalformedError(
        "seal.truncated", "the file ends inside of a sealed block", hint="it was cut; what stands before is whole"
    )


def _no_file() -> MalformedError:
    return MalformedError(
        "seal.file", "what stands here is no sealed block", hint="`penstock seal` writes such files, and brokers do"
    )

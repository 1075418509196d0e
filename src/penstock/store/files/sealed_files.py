"""Files of sealed blocks: each block follows its length (4 bytes, big-endian), like frames of a link.

There is no header or trailer, so that files can be concatenated.
"""

from collections import defaultdict, deque
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from struct import Struct
from typing import IO, BinaryIO, Final, NamedTuple

from penstock.codec.blocks import VERSION
from penstock.codec.limits import CODEC_LIMITS, CodecLimits
from penstock.errors import FailedError, MalformedError
from penstock.model.principals import Principal
from penstock.store.files.files import new_file, reason

_LENGTH: Final = Struct(">I")
_VERSION: Final = bytes([VERSION])


def write_sealed(stream: IO[bytes], block: bytes) -> int:
    """Write a block, and return the number of bytes written. Raises `OSError`."""
    return stream.write(_LENGTH.pack(len(block)) + block)


def read_sealed(stream: BinaryIO, *, limits: CodecLimits = CODEC_LIMITS) -> Iterator[bytes]:
    """Yield the blocks of a file without opening them.

    Raises `MalformedError`: `seal.file` if it is not a file of blocks, `seal.truncated` if it ends inside a block; and
    `OSError`. Nothing can be read after that.
    """
    while head := _read(stream, _LENGTH.size):
        if len(head) < _LENGTH.size:
            raise _truncated()
        length: int = _LENGTH.unpack(head)[0]
        if not 0 < length <= limits.block_bytes:
            raise _no_file()
        first = _read(stream, 1)
        if first not in (b"", _VERSION):
            # Checked before reading: another kind of file could announce any length.
            raise _no_file()
        block = first + _read(stream, length - 1)
        if len(block) < length:
            raise _truncated()
        yield block


def _read(stream: BinaryIO, size: int) -> bytes:
    """Read this many bytes, or all that are left; a pipe may return fewer at a time."""
    parts: list[bytes] = []
    while size and (part := stream.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _truncated() -> MalformedError:
    return MalformedError(
        "seal.truncated", "the file ends inside a sealed block", hint="it was truncated; the blocks before are complete"
    )


def _no_file() -> MalformedError:
    return MalformedError(
        "seal.file",
        "this part of the file is not a sealed block",
        hint="`penstock seal` writes such files, and brokers do",
    )


# ----------------------------------------------------------------------------------------------------------------------
# Refused sealed blocks in a folder: one per file, as `penstock open` reads it, with the reason in its name:
#
#     20260501T120000.000000Z-000001-seal.closed-epoch-0a1b2c3d.sealed
#
# contains the arrival time, a number, the error code, and the first digits of the broker that forwarded it. Files sort
# by time, and can be concatenated. Blocks and bytes are limited: above the limit, the oldest block of the broker with
# the most bytes is deleted. So no broker can displace the blocks of others by sending more.
#
# Kept blocks are not synced immediately: a sender of refused blocks must not slow the broker.


SUFFIX: Final = ".sealed"
_DIGITS: Final = 8
_NOBODY: Final = "0" * _DIGITS


class _Kept(NamedTuple):
    file: Path
    size: int


class QuarantineFolder:
    """The folder of refused blocks. It is created with the first block."""

    def __init__(self, path: Path, most_blocks: int, most_bytes: int) -> None:
        self._path, self._most_blocks, self._most_bytes = path, most_blocks, most_bytes
        self._by_peer: defaultdict[str, deque[_Kept]] = defaultdict(deque)
        self._sizes: defaultdict[str, int] = defaultdict(int)
        self._numbers = count(1)
        for file in sorted(path.glob(f"*{SUFFIX}")):
            self._note(file.name.removesuffix(SUFFIX).rpartition("-")[2], _Kept(file, file.stat().st_size))

    def __len__(self) -> int:
        """Return the number of stored blocks."""
        return sum(map(len, self._by_peer.values()))

    def keep(self, when: datetime, code: str, peer: Principal | None, block: bytes, /) -> None:
        """Store a block. Raises `FailedError` (`file.unwritable`)."""
        who = _NOBODY if peer is None else peer.digest.hex()[:_DIGITS]
        time = when.astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        file = self._path / f"{time}-{next(self._numbers):06}-{code}-{who}{SUFFIX}"
        try:
            self._path.mkdir(mode=0o700, exist_ok=True)
            with new_file(file, durable=False) as stream:
                size = write_sealed(stream, block)
            self._note(who, _Kept(file, size))
            self._make_room()
        except OSError as error:
            raise FailedError(
                "file.unwritable",
                f"`{file}` cannot be written: {reason(error)}",
                hint="a block that was refused is not kept: make room",
            ) from error

    def _note(self, who: str, kept: _Kept) -> None:
        self._by_peer[who].append(kept)
        self._sizes[who] += kept.size

    def _make_room(self) -> None:
        while len(self) > self._most_blocks or sum(self._sizes.values()) > self._most_bytes:
            who = max(self._sizes, key=self._sizes.__getitem__)
            gone = self._by_peer[who].popleft()
            self._sizes[who] -= gone.size
            if not self._by_peer[who]:
                del self._by_peer[who], self._sizes[who]
            gone.file.unlink(missing_ok=True)

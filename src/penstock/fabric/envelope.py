"""A sample, and its bytes: what every adapter carries and keeps.

    uint8    version: 1, or 2 if the sample is of a named instance of its topic
    int64    time at the source, microseconds since 1970
    8 bytes  the writer's id, drawn at random
    uint64   the writer's count of samples, from 1
    uint32   the owner's epoch, 0 where ownership is shared
    uint16   length of the key, then the key in UTF-8
    uint16   only in version 2: length of the instance's name, then the name in UTF-8
    uint16   how many headers; of each a uint16 and the name, a uint16 and the value, both in UTF-8
    rest     the data

All numbers are big-endian. The bytes come from servers that nobody has to trust: malformed bytes are refused.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from penstock.errors import LimitError, MalformedError
from penstock.fabric.limits import FABRIC_LIMITS, FabricLimits

_VERSION: Final = 1
_WITH_INSTANCE: Final = 2
_FIXED: Final = struct.Struct(">Bq8sQIH")
_LENGTH: Final = struct.Struct(">H")
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
WRITER_BYTES: Final = 8
MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Sample:
    """One value that was written to a topic; `time` is in microseconds since 1970, by the writer's clock.

    `position` is where a durable topic keeps it: a number that grows, or 0 if it is not known. It is not in the bytes.
    """

    data: bytes = field(repr=False)
    key: str = ""
    headers: Mapping[str, str] = field(default_factory=lambda: _NOTHING, repr=False)
    time: int = 0
    writer: bytes = b"\0" * WRITER_BYTES
    sequence: int = 0
    epoch: int = 0
    instance: str = ""
    position: int = field(default=0, compare=False, repr=False)

    @property
    def slot(self) -> tuple[str, str]:
        """Return the instance and the key: history, order and deadlines apply to each such pair separately."""
        return self.instance, self.key


def encode(sample: Sample) -> bytes:
    """Return a sample's bytes. The sample was checked by `check`."""
    key = sample.key.encode()
    instance = sample.instance.encode()
    version = _WITH_INSTANCE if instance else _VERSION
    parts = [_FIXED.pack(version, sample.time, sample.writer, sample.sequence, sample.epoch, len(key)), key]
    if instance:
        parts += (_LENGTH.pack(len(instance)), instance)
    parts.append(_LENGTH.pack(len(sample.headers)))
    for pair in sample.headers.items():
        for text in pair:
            raw = text.encode()
            parts += (_LENGTH.pack(len(raw)), raw)
    parts.append(sample.data)
    return b"".join(parts)


def decode(raw: bytes) -> Sample:
    """Read a sample. Raises `MalformedError` (`fabric.envelope`)."""
    try:
        version, time, writer, sequence, epoch, length = _FIXED.unpack_from(raw)
        if version not in (_VERSION, _WITH_INSTANCE):
            raise _unreadable()
        key, at = _text(raw, _FIXED.size, length)
        instance, at = _prefixed(raw, at) if version == _WITH_INSTANCE else ("", at)
        (count,), at = _LENGTH.unpack_from(raw, at), at + _LENGTH.size
        headers: dict[str, str] = {}
        for _ in range(count):
            name, at = _prefixed(raw, at)
            headers[name], at = _prefixed(raw, at)
    except (struct.error, UnicodeDecodeError) as error:
        raise _unreadable() from error
    if len(headers) != count or (version == _WITH_INSTANCE and not instance):
        raise _unreadable()
    frozen = MappingProxyType(headers) if headers else _NOTHING
    return Sample(raw[at:], key, frozen, time, writer, sequence, epoch, instance)


def check(data: bytes, key: str, headers: Mapping[str, str], limits: FabricLimits = FABRIC_LIMITS) -> None:
    """Check the data, key and headers of a sample before it is written.

    Raises `LimitError` (`fabric.too-large`) and `MalformedError` (`fabric.bad-key`, `fabric.bad-header`).
    """
    if len(data) > limits.fabric_bytes:
        raise LimitError(
            "fabric.too-large",
            f"{len(data)} bytes are more than a sample may have",
            hint=f"send at most {limits.fabric_bytes}, or a reference to where the rest is",
            octets=len(data),
            limit=limits.fabric_bytes,
        )
    try:
        key_size = len(key.encode())
        header_size = sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())
    except UnicodeEncodeError as error:
        raise MalformedError("fabric.bad-key", "a key or header is not Unicode text") from error
    if key_size > limits.fabric_key_bytes:
        raise MalformedError("fabric.bad-key", "a key is too long", hint=f"at most {limits.fabric_key_bytes} bytes")
    if header_size > limits.fabric_header_bytes or not all(headers):
        raise MalformedError(
            "fabric.bad-header",
            "the headers are too long, or one has no name",
            hint=f"at most {limits.fabric_header_bytes} bytes together",
        )


def _text(raw: bytes, at: int, length: int) -> tuple[str, int]:
    end = at + length
    if end > len(raw):
        raise _unreadable()
    return raw[at:end].decode(), end


def _prefixed(raw: bytes, at: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(raw, at)
    return _text(raw, at + _LENGTH.size, length)


def _unreadable() -> MalformedError:
    return MalformedError("fabric.envelope", "the bytes are not a sample")

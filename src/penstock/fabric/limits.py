"""Bounds on samples and topics. A node file cannot set them: all who share a topic must agree on its shape."""

from dataclasses import dataclass
from typing import Final

#: bytes of the data of a sample
FABRIC_BYTES: Final = 512 << 10
#: samples that a topic can be asked to keep
FABRIC_HISTORY: Final = 100_000
#: keys that a reader remembers
FABRIC_KEYS: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class FabricLimits:
    """Bounds on samples, and on what a topic and its readers keep."""

    #: a sample: bytes of its data, of its key, of all its headers
    fabric_bytes: int = FABRIC_BYTES
    fabric_key_bytes: int = 128
    fabric_header_bytes: int = 16_384
    #: a topic: length of its name, samples it keeps, keys a reader remembers; samples that wait for one reader, and
    #: requests that one service answers at a time
    fabric_name_length: int = 128
    fabric_history: int = FABRIC_HISTORY
    fabric_keys: int = FABRIC_KEYS
    fabric_pending: int = 10_000
    fabric_requests: int = 1_000


FABRIC_LIMITS: Final = FabricLimits()

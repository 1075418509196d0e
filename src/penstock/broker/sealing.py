"""Where events are sealed before they cross a fabric, and opened behind it.

What crosses a fabric is read by everybody who runs or reaches it. A network on a fabric therefore has to be given a
`Sealing`; there is none that lets blocks through as they are but the one that says so in its name.
"""

from typing import Protocol

from penstock.broker.publications import Publications
from penstock.codec.wire import decode, encode


class Sealing(Protocol):
    """Makes octets of a block of events that only brokers read which may carry its type, and back."""

    def seal(self, block: Publications) -> bytes:
        """Return a block as it crosses the fabric. Raises `PenstockError` when it cannot be sealed."""

    def open(self, octets: bytes) -> Publications:
        """Return the block that was sealed. Raises `MalformedError`, `LimitError`, `RefusedError`."""


class UnsafePlaintext:
    """Seals nothing: whoever runs the servers of the fabric, or may read there, reads every event."""

    def seal(self, block: Publications) -> bytes:
        """Return the octets of a block."""
        return encode(block.to_tree())

    def open(self, octets: bytes) -> Publications:
        """Read the octets of a block. Raises `MalformedError`, `LimitError`."""
        return Publications.from_tree(decode(octets))

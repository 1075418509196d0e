"""Where sealed blocks go that a broker does not take: kept as they came, sealed, with the reason.

What does not open today may open tomorrow, for somebody with the right `history`; and what somebody has forged is
evidence. Nothing of a block is looked into here, and no plaintext is ever kept.
"""

from datetime import datetime
from typing import Protocol

from penstock.model.principals import Principal


class Quarantine(Protocol):
    """Keeps refused blocks, not more than so many."""

    def keep(self, when: datetime, code: str, peer: Principal | None, block: bytes, /) -> None:
        """Keep a block that a peer handed on. Raises `FailedError` when it cannot be kept."""

    def __len__(self) -> int:
        """Count what is kept."""


class Nowhere:
    """For brokers without a folder: keeps nothing."""

    def keep(self, when: datetime, code: str, peer: Principal | None, block: bytes, /) -> None:
        """Let a block go."""

    def __len__(self) -> int:
        """Count nothing."""
        return 0

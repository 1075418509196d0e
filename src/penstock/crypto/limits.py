"""Bounds on sealing. A node file sets only `seal_streams`, which the broker hands on."""

from dataclasses import dataclass
from typing import Final

from penstock.codec.limits import CodecLimits


@dataclass(frozen=True, kw_only=True)
class CryptoLimits(CodecLimits):
    """Bounds on a sealer and an opener, and on the blocks that they write and read."""

    #: one incarnation of a sealer: blocks, and bytes of them; less than AES-GCM is good for (ADR 17)
    seal_blocks: int = 1 << 32
    seal_bytes: int = 1 << 36
    #: streams (sender, incarnation, epochs, type) whose derived keys are remembered
    seal_streams: int = 1_024


CRYPTO_LIMITS: Final = CryptoLimits()

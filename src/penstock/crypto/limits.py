"""Bounds on sealing. A node file can set only `seal_streams`."""

from dataclasses import dataclass
from typing import Final

from penstock.codec.limits import CodecLimits


@dataclass(frozen=True, kw_only=True)
class CryptoLimits(CodecLimits):
    """Bounds on sealers, openers and their blocks."""

    #: one incarnation of a sealer: blocks, and their bytes; below the limits of AES-GCM (ADR 17)
    seal_blocks: int = 1 << 32
    seal_bytes: int = 1 << 36
    #: streams (sender, incarnation, epochs, type) whose derived keys are remembered
    seal_streams: int = 1_024


CRYPTO_LIMITS: Final = CryptoLimits()

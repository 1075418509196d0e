"""HKDF-SHA256 (RFC 5869): from one secret to keys for single uses."""

from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from penstock.errors import LimitError

MAX_BYTES: Final = 255 * 32
"""As much as one derivation gives (RFC 5869, 2.3)."""


def hkdf(secret: bytes, info: bytes, size: int, *, salt: bytes = b"") -> bytes:
    """Extract and expand. Raises `LimitError` (`key.derivation`)."""
    _check(size)
    return HKDF(SHA256(), size, salt=salt or None, info=info).derive(secret)


def expand(key: bytes, info: bytes, size: int) -> bytes:
    """Expand what is a key already: uniform, and as long as a digest. Raises `LimitError` (`key.derivation`)."""
    _check(size)
    return HKDFExpand(SHA256(), size, info).derive(key)


def _check(size: int) -> None:
    if not 0 < size <= MAX_BYTES:
        raise LimitError("key.derivation", f"a derived key has 1 to {MAX_BYTES} bytes, not {size}")

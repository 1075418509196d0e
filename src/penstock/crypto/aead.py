"""Authenticated encryption: AES-GCM, AES-GCM-SIV, and the EAX mode that the dissertation used (section 7.5).

All three have the same two methods, and 16 bytes of tag behind the ciphertext. AES-GCM is the default. AES-GCM-SIV
(RFC 8452) forgives a repeated nonce, at the cost of a second pass. EAX is here for comparison; it is written from AES
in counter mode and CMAC, as Bellare, Rogaway and Wagner define it.

Data that cannot be opened raises `InvalidTag` inside this package, and `seal.cannot-open` outside of it. There is only
one such error: an attacker that could distinguish a wrong key from a changed byte or from wrong padding could find out
the plaintext.
"""

from enum import IntEnum
from typing import Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESGCMSIV
from cryptography.hazmat.primitives.cmac import CMAC
from cryptography.hazmat.primitives.constant_time import bytes_eq

from penstock.codec.wire import BytesLike
from penstock.errors import RefusedError

TAG_BYTES: Final = 16
NONCE_BYTES: Final = 12
_BLOCK: Final = 16


class Aead(Protocol):
    """A key for one algorithm. `decrypt` raises `InvalidTag`, whatever the reason."""

    def encrypt(self, nonce: BytesLike, data: BytesLike, associated_data: BytesLike | None, /) -> bytes:
        """Return the ciphertext and its tag."""

    def decrypt(self, nonce: BytesLike, data: BytesLike, associated_data: BytesLike | None, /) -> bytes:
        """Return the plaintext."""


class CipherAlgorithm(IntEnum):
    """The algorithms, by their number in the header of a block."""

    AES_GCM = 1
    AES_GCM_SIV = 2
    AES_EAX = 3

    def cipher(self, key: bytes) -> Aead:
        """Return a key for this algorithm. Sealed blocks use keys of 256 bits, and no others."""
        match self:
            case CipherAlgorithm.AES_GCM:
                return AESGCM(key)
            case CipherAlgorithm.AES_GCM_SIV:
                return AESGCMSIV(key)
            case CipherAlgorithm.AES_EAX:
                return AesEax(key)


class AesEax:
    """EAX over AES: a MAC of the nonce starts the counter, and the tag is the sum of three MACs."""

    __slots__ = ("_aes", "_macs")

    def __init__(self, key: bytes) -> None:
        self._aes = algorithms.AES(key)
        # OMAC^t begins with the block that holds t. The rest differs, so only this part is computed once.
        self._macs = tuple(_begun(self._aes, use) for use in range(3))

    def encrypt(self, nonce: BytesLike, data: BytesLike, associated_data: BytesLike | None, /) -> bytes:
        """Return the ciphertext and its tag."""
        start = self._mac(0, nonce)
        sealed = self._stream(start, data)
        return sealed + self._tag(start, associated_data, sealed)

    def decrypt(self, nonce: BytesLike, data: BytesLike, associated_data: BytesLike | None, /) -> bytes:
        """Return the plaintext. Raises `InvalidTag`; the tag is looked at before anything is decrypted."""
        end = len(data) - TAG_BYTES
        if end < 0:
            raise InvalidTag
        start, sealed = self._mac(0, nonce), data[:end]
        if not bytes_eq(self._tag(start, associated_data, sealed), bytes(data[end:])):
            raise InvalidTag
        return self._stream(start, sealed)

    def _tag(self, start: bytes, associated_data: BytesLike | None, sealed: BytesLike) -> bytes:
        three = (start, self._mac(1, associated_data or b""), self._mac(2, sealed))
        one, two, last = (int.from_bytes(mac, "big") for mac in three)
        return (one ^ two ^ last).to_bytes(_BLOCK, "big")

    def _mac(self, use: int, data: BytesLike) -> bytes:
        mac = self._macs[use].copy()
        mac.update(bytes(data))
        return mac.finalize()

    def _stream(self, start: bytes, data: BytesLike) -> bytes:
        encryptor = Cipher(self._aes, modes.CTR(start)).encryptor()
        return encryptor.update(data) + encryptor.finalize()


def _begun(aes: algorithms.AES, use: int) -> CMAC:
    mac = CMAC(aes)
    mac.update(use.to_bytes(_BLOCK, "big"))
    return mac


def opened(key: Aead, nonce: BytesLike, data: BytesLike, associated_data: BytesLike) -> bytes:
    """Return the plaintext. Raises `RefusedError` (`seal.cannot-open`)."""
    try:
        return key.decrypt(nonce, data, associated_data)
    except InvalidTag:
        raise cannot_open() from None


def cannot_open() -> RefusedError:
    """Return the only error for data that cannot be opened."""
    return RefusedError(
        "seal.cannot-open",
        "the sealed data cannot be opened",
        hint="it was changed or truncated, belongs elsewhere, or was sealed under another key",
    )

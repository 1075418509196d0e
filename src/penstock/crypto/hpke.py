"""Encrypt to a public key: HPKE (RFC 9180), base mode, X25519, HKDF-SHA256 and AES-256-GCM.

It is implemented with the primitives, because randomness is an argument everywhere in Penstock, and the library's own
HPKE draws it itself. The tests verify that each reads what the other writes. A `SealingKey` opens data sealed to its
public half. Each is made for one request.
"""

import hmac
from typing import Final, NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from penstock.crypto.keys import KEY_BYTES, RandomBytes
from penstock.crypto.wrapping import unopened
from penstock.errors import RefusedError

# RFC 9180, 7.1 to 7.3: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM.
_KEM: Final = b"KEM\x00\x20"
_SUITE: Final = b"HPKE\x00\x20\x00\x01\x00\x02"
_VERSION: Final = b"HPKE-v1"
_BASE_MODE: Final = b"\x00"
_NONCE_BYTES: Final = 12
#: used only to check public keys; nothing is sealed with it
_ANYBODY: Final = X25519PrivateKey.from_private_bytes(bytes(range(KEY_BYTES)))


class SealingKey:
    """A fresh X25519 key. Others seal to `public`."""

    __slots__ = ("_private", "public")

    def __init__(self, random: RandomBytes) -> None:
        self._private = X25519PrivateKey.from_private_bytes(random(KEY_BYTES))
        self.public = self._private.public_key().public_bytes_raw()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a private key is neither pickled nor copied")

    def open(self, sealed: bytes, info: bytes) -> bytes:
        """Open data that was sealed to this key for `info`. Raises `RefusedError` (`keys.unopened`)."""
        try:
            return self._opened(sealed[:KEY_BYTES], sealed[KEY_BYTES:], info)
        except (InvalidTag, ValueError):
            raise unopened() from None

    def _opened(self, encapsulated: bytes, box: bytes, info: bytes) -> bytes:
        shared = self._private.exchange(X25519PublicKey.from_public_bytes(encapsulated))
        key, nonce = _schedule(shared, encapsulated + self.public, info)
        return AESGCM(key).decrypt(nonce, box, b"")


def check_public(public: bytes) -> None:
    """Check that data can be sealed to a key. Raises as `seal_to`."""
    try:
        _ANYBODY.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise _weak() from None


def seal_to(public: bytes, content: bytes, info: bytes, random: RandomBytes) -> bytes:
    """Seal content to a public key. Raises `RefusedError` (`keys.weak-key`) for a key that gives no secret."""
    ephemeral = X25519PrivateKey.from_private_bytes(random(KEY_BYTES))
    encapsulated = ephemeral.public_key().public_bytes_raw()
    try:
        # Raises ValueError if the result is zero, whatever our key: a point of small order (RFC 9180, 7.1.4).
        shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise _weak() from None
    key, nonce = _schedule(shared, encapsulated + public, info)
    return encapsulated + AESGCM(key).encrypt(nonce, content, b"")


def _weak() -> RefusedError:
    return RefusedError(
        "keys.weak-key", "data sealed to this key would not be secret", hint="make a new key and repeat the request"
    )


def _schedule(exchanged: bytes, context: bytes, info: bytes) -> tuple[bytes, bytes]:
    """Return key and nonce: ExtractAndExpand of RFC 9180, 4.1, then KeySchedule of 5.1."""
    shared = _expand(_extract(b"", _KEM, b"eae_prk", exchanged), _KEM, b"shared_secret", context, KEY_BYTES)
    about = _BASE_MODE + _extract(b"", _SUITE, b"psk_id_hash", b"") + _extract(b"", _SUITE, b"info_hash", info)
    secret = _extract(shared, _SUITE, b"secret", b"")
    return (
        _expand(secret, _SUITE, b"key", about, KEY_BYTES),
        _expand(secret, _SUITE, b"base_nonce", about, _NONCE_BYTES),
    )


def _extract(salt: bytes, suite: bytes, label: bytes, material: bytes) -> bytes:
    return hmac.digest(salt, _VERSION + suite + label + material, "sha256")


def _expand(key: bytes, suite: bytes, label: bytes, info: bytes, length: int) -> bytes:
    labelled = length.to_bytes(2, "big") + _VERSION + suite + label + info
    return HKDFExpand(SHA256(), length, labelled).derive(key)

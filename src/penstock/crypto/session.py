"""Encrypted sessions: records that only the two ends of a handshake can write and read.

    record = kind (1 byte), number (8 bytes), sealed content (AES-256-GCM; kind and number are authenticated with it)

Each end has a `KeyExchange`, a fresh X25519 key. Its public half is its random number in the handshake, and signed
there by both. One key for each direction is derived from the shared secret, by HKDF-SHA256 over everything that was
signed. The nonce is the record's number, from 0 on. A key encrypts 2^20 records, and then the next one is derived from
it, so that no key exceeds the limits of AES-GCM (RFC 8446, 5.5) and no key opens earlier records.

Data that does not open is ignored (`None`): anyone who can reach a subject can send such data, and must not be able to
harm a session. The same is true for copies of earlier records: anyone who receives one can send it again. A record that
opens and comes before its turn shows that another record was dropped or delayed on its way: the session ends.
"""

from struct import Struct
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from penstock.crypto.keys import KEY_BYTES, RandomBytes
from penstock.crypto.wrapping import expand, hkdf
from penstock.errors import FailedError, RefusedError

_LABEL: Final = b"penstock-session-1 "
_NEXT: Final = _LABEL + b"next key"
_HEAD: Final = Struct(">BQ")
_TAG_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_RECORDS_SHIFT: Final = 20
OVERHEAD_BYTES: Final = _HEAD.size + _TAG_BYTES
"""The overhead of a record over its content, in bytes."""


class _Keys:
    """The keys of one direction: the one in use, and the next one."""

    def __init__(self, key: bytes) -> None:
        self._epoch = 0
        self._now = AESGCM(key)
        self._following = _next(key)
        self._then = AESGCM(self._following)

    def cipher(self, number: int) -> AESGCM | None:
        """Return the key for a record, if it is the one in use or the next."""
        return {0: self._now, 1: self._then}.get((number >> _RECORDS_SHIFT) - self._epoch)

    def go_on(self, number: int) -> None:
        """Forget a key after its last record."""
        if number >> _RECORDS_SHIFT > self._epoch:
            self._epoch += 1
            self._now = self._then
            self._following = _next(self._following)
            self._then = AESGCM(self._following)


class RecordSealer:
    """The records that this end writes."""

    def __init__(self, key: bytes) -> None:
        self._keys = _Keys(key)
        self._number = 0

    def seal(self, kind: int, content: bytes | memoryview) -> bytes:
        """Return the next record."""
        number, self._number = self._number, self._number + 1
        self._keys.go_on(number)
        cipher = self._keys.cipher(number)
        if cipher is None:  # pragma: no cover  # numbers go up by one, and keys with them
            raise _tampered()
        head = _HEAD.pack(kind, number)
        return head + cipher.encrypt(_nonce(number), content, head)


class Opening:
    """The records that the other end writes."""

    def __init__(self, key: bytes) -> None:
        self._keys: _Keys | None = _Keys(key)
        self._number = 0

    def open(self, record: bytes) -> tuple[int, bytes] | None:
        """Return kind and content of the next record, or `None` for junk and for copies of earlier records.

        Raises `RefusedError` (`session.tampered`) for a record of the other end that comes too early. Nothing opens
        after that.
        """
        if self._keys is None or len(record) < OVERHEAD_BYTES:
            return None
        kind, number = _HEAD.unpack_from(record)
        if number < self._number:
            return None
        cipher = self._keys.cipher(number)
        if cipher is None:
            return None
        view = memoryview(record)
        try:
            content = cipher.decrypt(_nonce(number), view[_HEAD.size :], view[: _HEAD.size])
        except InvalidTag:
            return None
        if number != self._number:
            self._keys = None
            raise _tampered()
        self._number += 1
        self._keys.go_on(self._number)
        return kind, content


class KeyExchange:
    """A fresh key for one session. The other end receives `public`."""

    def __init__(self, random: RandomBytes) -> None:
        self._private: X25519PrivateKey | None = X25519PrivateKey.from_private_bytes(random(KEY_BYTES))
        self.public = self._private.public_key().public_bytes_raw()

    def agree(self, theirs: bytes, context: bytes, *, connects: bool) -> tuple[RecordSealer, Opening]:
        """Return the writer and the reader. `context` is what both ends signed. One end connects, the other does not.

        Raises `RefusedError` (`session.weak-key`) for a public key that gives no secret, and `FailedError`
        (`session.used`) on the second call: two sessions would use the same nonces.
        """
        private, self._private = self._private, None
        if private is None:
            raise FailedError("session.used", "a session key can be used only once", hint="begin a new handshake")
        try:
            # Raises ValueError if the result is zero, whatever our key: a point of small order (RFC 7748, 6.1).
            shared = private.exchange(X25519PublicKey.from_public_bytes(theirs))
        except ValueError:
            raise RefusedError(
                "session.weak-key", "the peer's key gives no shared secret", hint="is the peer a Penstock broker?"
            ) from None
        keys = hkdf(shared, _LABEL + context, 2 * KEY_BYTES)
        forth, back = keys[:KEY_BYTES], keys[KEY_BYTES:]
        return (RecordSealer(forth), Opening(back)) if connects else (RecordSealer(back), Opening(forth))


def _next(key: bytes) -> bytes:
    return expand(key, _NEXT, KEY_BYTES)


def _nonce(number: int) -> bytes:
    return number.to_bytes(_NONCE_BYTES, "big")


def _tampered() -> RefusedError:
    return RefusedError(
        "session.tampered",
        "a record is missing, or came too early",
        hint="the servers in between lose or change messages; connect again",
    )

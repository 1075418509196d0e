"""Secrets: derive them, wrap them under other secrets, and store key-encryption keys.

A `Secret` is 32 bytes that are never printed, pickled or copied. Everything derived from it has one purpose:

    derived secret = HKDF-Expand(secret, (penstock-secret-1 <label> <context> …))
    wrapped        = AES-256-GCM of the content; key = HKDF-Expand(secret, a), associated data = a,
                     a = (penstock-secret-1 wrap <salt> <context> …)

So wrapped content opens only in its context (group, epoch, node), and each salt and context has its own key: the nonce,
which is zero, is never used twice with a key. There is only one error for content that cannot be opened.
"""

from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Final, NoReturn, TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from penstock.codec.sexp import SExp, canonical
from penstock.crypto.passphrases import DEFAULT_COST, Cost, PassphraseBox, RandomBytes, wrong_passphrase
from penstock.errors import LimitError, MalformedError, RefusedError

# ----------------------------------------------------------------------------------------------------------------------
# HKDF-SHA256 (RFC 5869): derive keys from a secret.

MAX_BYTES: Final = 255 * 32
"""The maximum size of one derivation (RFC 5869, 2.3)."""


def hkdf(secret: bytes, info: bytes, size: int, *, salt: bytes = b"") -> bytes:
    """Extract and expand. Raises `LimitError` (`key.derivation`)."""
    _check_size(size)
    return HKDF(SHA256(), size, salt=salt or None, info=info).derive(secret)


def expand(key: bytes, info: bytes, size: int) -> bytes:
    """Expand a key, which must be uniform and as long as a digest. Raises `LimitError` (`key.derivation`)."""
    _check_size(size)
    return HKDFExpand(SHA256(), size, info).derive(key)


def _check_size(size: int) -> None:
    if not 0 < size <= MAX_BYTES:
        raise LimitError("key.derivation", f"a derived key has 1 to {MAX_BYTES} bytes, not {size}")


# ----------------------------------------------------------------------------------------------------------------------
# Secrets, and how they are wrapped under other secrets.


SECRET_BYTES: Final = 32
SALT_BYTES: Final = 16
_LABEL: Final = b"penstock-secret-1"
_WRAP: Final = b"wrap"
_NONCE: Final = bytes(12)


class Secret:
    """A secret of 32 bytes. Raises `MalformedError` (`keys.malformed`) for any other size."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        if len(raw) != SECRET_BYTES:
            raise MalformedError("keys.malformed", f"a secret has {SECRET_BYTES} bytes")
        self._raw = raw

    def __repr__(self) -> str:
        return "Secret(…)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and compare_digest(self._raw, other._raw)

    def __hash__(self) -> int:
        return hash(self._raw)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is neither pickled nor copied: wrap it")

    def derive(self, label: bytes, *context: bytes) -> "Secret":
        """Return the secret for one purpose, from which this secret cannot be computed."""
        return Secret(expand(self._raw, canonical((_LABEL, label, *context)), SECRET_BYTES))

    def expose(self) -> bytes:
        """Return the bytes: for immediate sealing or wrapping, and for ciphers."""
        return self._raw


def wrap(under: Secret, content: bytes, salt: bytes, *context: bytes) -> bytes:
    """Encrypt content so that only holders of a secret can read it, and only in its context. Never use a salt twice."""
    about = canonical((_LABEL, _WRAP, salt, *context))
    return AESGCM(expand(under.expose(), about, SECRET_BYTES)).encrypt(_NONCE, content, about)


def unwrap(under: Secret, box: bytes, salt: bytes, *context: bytes) -> bytes:
    """Return the wrapped content. Raises `RefusedError` (`keys.unopened`), whatever the reason."""
    about = canonical((_LABEL, _WRAP, salt, *context))
    try:
        return AESGCM(expand(under.expose(), about, SECRET_BYTES)).decrypt(_NONCE, box, about)
    except InvalidTag:
        raise unopened() from None


def unopened() -> RefusedError:
    """Return the only error for content that cannot be opened."""
    return RefusedError(
        "keys.unopened", "the available keys do not open this secret", hint="request it from the key manager again"
    )


# ----------------------------------------------------------------------------------------------------------------------
# Key-encryption keys, under which key rings and key manager logs are wrapped. Their written forms:
#
#     (kek (id <8 bytes>) (k <32 bytes>))
#     (protected-kek (id <8 bytes>) (argon2id (salt …) (passes …) (memory …)) (secretbox (nonce …) (box …)))
#
# The id is derived from the key and reveals nothing about it. It identifies the key, and detects a mistyped or changed
# file.

ID_BYTES: Final = 8
_ID: Final = b"kek-id"


def kek_id(kek: Secret) -> bytes:
    """Return the id of a key-encryption key."""
    return kek.derive(_ID).expose()[:ID_BYTES]


def new_kek(random: RandomBytes) -> Secret:
    """Make a key-encryption key."""
    return Secret(random(SECRET_BYTES))


def kek_to_sexp(kek: Secret) -> SExp:
    """Return the written form of an unprotected key."""
    return (b"kek", (b"id", kek_id(kek)), (b"k", kek.expose()))


@dataclass(frozen=True, slots=True)
class ProtectedKek:
    """A key-encryption key under a passphrase. `open` returns the key."""

    id: bytes
    box: PassphraseBox = field(repr=False)

    def open(self, passphrase: bytes) -> Secret:
        """Return the key. Raises `RefusedError` (`key.passphrase`), whatever the reason."""
        kek = Secret(self.box.open(passphrase))
        # The passphrase does not protect the id, so it may have been replaced.
        if not compare_digest(kek_id(kek), self.id):
            raise wrong_passphrase()
        return kek

    def to_sexp(self) -> SExp:
        """Return the written form."""
        return (b"protected-kek", (b"id", self.id), *self.box.to_sexps())


StoredKek: TypeAlias = Secret | ProtectedKek


def protect_kek(kek: Secret, passphrase: bytes, random: RandomBytes, cost: Cost = DEFAULT_COST) -> ProtectedKek:
    """Protect a key by a passphrase. Raises `MalformedError` (`key.empty-passphrase`)."""
    return ProtectedKek(kek_id(kek), PassphraseBox.of(kek.expose(), passphrase, random, cost))


def parse_kek(value: SExp) -> StoredKek:
    """Read either form.

    Raises `MalformedError` (`keys.kek`, `key.malformed`) and `LimitError` (`key.cost`). The messages contain nothing of
    the input.
    """
    match value:
        case (b"kek", (b"id", bytes(id_)), (b"k", bytes(raw))) if len(raw) == SECRET_BYTES:
            kek = Secret(raw)
            if not compare_digest(kek_id(kek), id_):
                raise _malformed_kek("the key-encryption key was changed: its id belongs to another key")
            return kek
        case (b"protected-kek", (b"id", bytes(id_)), cost, box):
            return ProtectedKek(id_, PassphraseBox.from_sexps(cost, box))
    raise _malformed_kek("not a key-encryption key")


def _malformed_kek(message: str) -> MalformedError:
    return MalformedError(
        "keys.kek", message, hint="make one with `penstock sealing new-kek`: `(kek …)` or `(protected-kek …)`"
    )

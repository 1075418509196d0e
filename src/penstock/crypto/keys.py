"""Ed25519 keys, and the principals that they are.

The written form of a public key is the S-expression `(public-key (ed25519 (q <32 octets>)))`; the SHA-256 of its
canonical bytes is the principal. A private key never appears in a `repr`, and randomness comes in as an argument.
"""

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import nacl.exceptions
import nacl.signing

from penstock.codec.sexp import SExp, canonical
from penstock.errors import MalformedError, RefusedError
from penstock.model.principals import KEY, Principal

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64


def digest(value: SExp) -> bytes:
    """Return the SHA-256 of a value's canonical bytes: the identity of a key, a quorum or a certificate."""
    return hashlib.sha256(canonical(value)).digest()


@lru_cache(maxsize=4096)
def _verify_key(raw: bytes) -> nacl.signing.VerifyKey:
    return nacl.signing.VerifyKey(raw)


@lru_cache(maxsize=4096)
def _principal(raw: bytes) -> Principal:
    return Principal(digest(_public_sexp(raw)), KEY)


def _public_sexp(raw: bytes) -> SExp:
    return (b"public-key", (b"ed25519", (b"q", raw)))


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key. Raises `MalformedError` (`key.malformed`) when it is not 32 octets."""

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != KEY_BYTES:
            raise MalformedError("key.malformed", f"an Ed25519 public key has {KEY_BYTES} octets, not {len(self.raw)}")

    @property
    def principal(self) -> Principal:
        """The principal that this key is."""
        return _principal(self.raw)

    def to_sexp(self) -> SExp:
        """Return the written form."""
        return _public_sexp(self.raw)

    @classmethod
    def from_sexp(cls, value: SExp) -> "PublicKey":
        """Read the written form. Raises `MalformedError` (`key.malformed`)."""
        match value:
            case (b"public-key", (b"ed25519", (b"q", bytes(raw)))):
                return cls(raw)
        raise MalformedError(
            "key.malformed", "not an Ed25519 public key", hint="expected `(public-key (ed25519 (q …)))`"
        )

    def verify(self, message: bytes, signature: bytes) -> None:
        """Check a signature; returns nothing.

        Raises `RefusedError` (`key.bad-signature`), whatever the reason.
        """
        if len(signature) == SIGNATURE_BYTES:
            try:
                _verify_key(self.raw).verify(message, signature)
            except (nacl.exceptions.BadSignatureError, nacl.exceptions.CryptoError):
                pass
            else:
                return
        raise RefusedError(
            "key.bad-signature",
            f"the signature is not one of {self.principal.short} over these bytes",
            hint="the object was changed, or signed by another key",
        )


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key, made from a 32-octet seed. Raises `MalformedError` (`key.malformed`)."""

    seed: bytes = field(repr=False)
    public: PublicKey = field(init=False)
    _key: nacl.signing.SigningKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.seed) != KEY_BYTES:
            raise MalformedError("key.malformed", f"an Ed25519 seed has {KEY_BYTES} octets")
        key = nacl.signing.SigningKey(self.seed)
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "public", PublicKey(bytes(key.verify_key)))

    @property
    def principal(self) -> Principal:
        """The principal that this key is."""
        return self.public.principal

    def sign(self, message: bytes) -> bytes:
        """Return the 64-octet signature of a message."""
        return bytes(self._key.sign(message).signature)

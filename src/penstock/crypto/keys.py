"""Ed25519 keys and their principals.

The written form of a public key is the S-expression `(public-key (ed25519 (q <32 bytes>)))`. The SHA-256 of its
canonical form is the principal. A private key never appears in a `repr`, and randomness is an argument.
"""

import hashlib
import unicodedata
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Protocol, TypeAlias

import nacl.exceptions
import nacl.signing

from penstock.codec.sexp import SExp, canonical
from penstock.crypto.passphrases import DEFAULT_COST, Cost, PassphraseBox, wrong_passphrase
from penstock.crypto.passphrases import RandomBytes as RandomBytes
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
    """A public key. Raises `MalformedError` (`key.malformed`) unless it has 32 bytes."""

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != KEY_BYTES:
            raise MalformedError("key.malformed", f"an Ed25519 public key has {KEY_BYTES} bytes, not {len(self.raw)}")

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
        """Verify a signature. Returns nothing.

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
            f"the signature is not {self.principal.short}'s signature of these bytes",
            hint="the object was changed, or signed by another key",
        )


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key, made from a 32-byte seed. Raises `MalformedError` (`key.malformed`)."""

    seed: bytes = field(repr=False)
    public: PublicKey = field(init=False)
    _key: nacl.signing.SigningKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.seed) != KEY_BYTES:
            raise MalformedError("key.malformed", f"an Ed25519 seed has {KEY_BYTES} bytes")
        key = nacl.signing.SigningKey(self.seed)
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "public", PublicKey(bytes(key.verify_key)))

    @property
    def principal(self) -> Principal:
        """The principal that this key is."""
        return self.public.principal

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte signature of a message."""
        return bytes(self._key.sign(message).signature)


class Signer(Protocol):
    """Something that signs as one principal: a `SigningKey`, or a key that never enters this process."""

    @property
    def public(self) -> PublicKey:
        """Return the public key."""
        ...

    @property
    def principal(self) -> Principal:
        """Return the principal that the key is."""
        ...

    def sign(self, message: bytes, /) -> bytes:
        """Return the 64-byte signature of a message. A key outside raises `FailedError` if it cannot be used."""
        ...


# ----------------------------------------------------------------------------------------------------------------------
# Keys in files: the S-expressions of a public key, a private key, and a private key under a passphrase.
#
#     (public-key (ed25519 (q <32 bytes>)))
#     (private-key (ed25519 (q <32 bytes>) (d <32 bytes>)))
#     (protected-key (ed25519 (q <32 bytes>)) (argon2id …) (secretbox …))     see `passphrases`
#
# The public key is in the clear, so that no passphrase is needed to see whose file it is. After opening it is compared
# with the public key of the seed.


@dataclass(frozen=True, slots=True)
class ProtectedKey:
    """A private key under a passphrase. `open` returns the key."""

    public: PublicKey
    box: PassphraseBox = field(repr=False)

    @property
    def principal(self) -> Principal:
        """The principal that the file names. `open` verifies it."""
        return self.public.principal

    def open(self, passphrase: bytes) -> SigningKey:
        """Return the key. Raises `RefusedError` (`key.passphrase`), whatever the reason."""
        key = SigningKey(self.box.open(passphrase))
        # The passphrase does not protect the public key, so it may have been replaced.
        if key.public != self.public:
            raise wrong_passphrase()
        return key

    def to_sexp(self) -> SExp:
        """Return the written form."""
        return (b"protected-key", (b"ed25519", (b"q", self.public.raw)), *self.box.to_sexps())


StoredKey: TypeAlias = PublicKey | SigningKey | ProtectedKey


def passphrase_bytes(text: str) -> bytes:
    """Return the bytes of a passphrase. The same letters typed on another machine must give the same bytes."""
    return unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass")


def new_key(random: RandomBytes) -> SigningKey:
    """Make a key."""
    return SigningKey(random(KEY_BYTES))


def private_key_to_sexp(key: SigningKey) -> SExp:
    """Return the written form of an unprotected private key."""
    return (b"private-key", (b"ed25519", (b"q", key.public.raw), (b"d", key.seed)))


def protect(key: SigningKey, passphrase: bytes, random: RandomBytes, cost: Cost = DEFAULT_COST) -> ProtectedKey:
    """Put a key under a passphrase. Raises `MalformedError` (`key.empty-passphrase`)."""
    return ProtectedKey(key.public, PassphraseBox.of(key.seed, passphrase, random, cost))


def read_key(value: SExp) -> StoredKey:
    """Read any of the three forms.

    Raises `MalformedError` (`key.malformed`) and `LimitError` (`key.cost`). The messages contain nothing of the input.
    """
    match value:
        case (b"public-key", *_):
            return PublicKey.from_sexp(value)
        case (b"private-key", (b"ed25519", (b"q", bytes(raw)), (b"d", bytes(seed)))):
            key = SigningKey(seed)
            if key.public.raw != raw:
                raise _malformed("the public and the private half of a key do not belong together")
            return key
        case (b"protected-key", (b"ed25519", (b"q", bytes(raw))), cost, box):
            return ProtectedKey(PublicKey(raw), PassphraseBox.from_sexps(cost, box))
    raise _malformed("not a key")


def _malformed(message: str) -> MalformedError:
    return MalformedError(
        "key.malformed", message, hint="expected `(public-key …)`, `(private-key …)` or `(protected-key …)`"
    )

"""Keys as they are kept: the S-expressions of a public key, a private key, and a private key under a passphrase.

    (public-key (ed25519 (q <32 octets>)))
    (private-key (ed25519 (q <32 octets>) (d <32 octets>)))
    (protected-key (ed25519 (q <32 octets>)) (argon2id …) (secretbox …))     see `passphrases`

The public key stands in the clear, so that nobody needs a passphrase to see whose file it is; after opening it is
compared with the one that the seed gives.
"""

import unicodedata
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.codec.sexp import SExp
from penstock.crypto.keys import KEY_BYTES, PublicKey, SigningKey
from penstock.crypto.passphrases import DEFAULT_COST, Cost, PassphraseBox, wrong_passphrase
from penstock.crypto.passphrases import RandomBytes as RandomBytes
from penstock.errors import MalformedError
from penstock.model.principals import Principal


@dataclass(frozen=True, slots=True)
class ProtectedKey:
    """A private key under a passphrase. `open` gives the key back."""

    public: PublicKey
    box: PassphraseBox = field(repr=False)

    @property
    def principal(self) -> Principal:
        """The principal that this key is, if the file tells the truth; opening it shows."""
        return self.public.principal

    def open(self, passphrase: bytes) -> SigningKey:
        """Return the key. Raises `RefusedError` (`key.passphrase`), whatever the reason."""
        key = SigningKey(self.box.open(passphrase))
        # The public key in the clear was not under the passphrase: somebody may have put another one there.
        if key.public != self.public:
            raise wrong_passphrase()
        return key

    def to_sexp(self) -> SExp:
        """Return the written form."""
        return (b"protected-key", (b"ed25519", (b"q", self.public.raw)), *self.box.to_sexps())


StoredKey: TypeAlias = PublicKey | SigningKey | ProtectedKey


def passphrase_bytes(text: str) -> bytes:
    """Return a passphrase as it protects keys: the same letters typed on another machine must open the key."""
    return unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass")


def new_key(random: RandomBytes) -> SigningKey:
    """Make a key."""
    return SigningKey(random(KEY_BYTES))


def private_key_to_sexp(key: SigningKey) -> SExp:
    """Return the written form of a private key that nothing protects but the file it lies in."""
    return (b"private-key", (b"ed25519", (b"q", key.public.raw), (b"d", key.seed)))


def protect(key: SigningKey, passphrase: bytes, random: RandomBytes, cost: Cost = DEFAULT_COST) -> ProtectedKey:
    """Put a key under a passphrase. Raises `MalformedError` (`key.empty-passphrase`)."""
    return ProtectedKey(key.public, PassphraseBox.of(key.seed, passphrase, random, cost))


def read_key(value: SExp) -> StoredKey:
    """Read any of the three forms.

    Raises `MalformedError` (`key.malformed`) and `LimitError` (`key.cost`). Nothing of the input is in the message.
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

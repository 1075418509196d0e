"""Keys as they are kept: the S-expressions of a public key, a private key, and a private key under a passphrase.

    (public-key (ed25519 (q <32 octets>)))
    (private-key (ed25519 (q <32 octets>) (d <32 octets>)))
    (protected-key (ed25519 (q <32 octets>)) (argon2id (salt <16 octets>) (passes <n>) (memory <octets>))
                   (secretbox (nonce <24 octets>) (box <48 octets>)))

The public key stands in the clear, so that nobody needs a passphrase to see whose file it is; after opening it is
compared with the one that the seed gives. The cost of a passphrase is stored with it, and bounded when it is read: a
file that somebody sends must not occupy the machine. Whether a passphrase was wrong or the file was changed is one
and the same answer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import nacl.exceptions
import nacl.pwhash.argon2id
import nacl.secret

from penstock.codec.sexp import SExp
from penstock.crypto.keys import KEY_BYTES, PublicKey, SigningKey
from penstock.errors import LimitError, MalformedError, RefusedError
from penstock.model.principals import Principal

RandomBytes: TypeAlias = Callable[[int], bytes]
"""A source of that many random octets."""

SALT_BYTES: Final = 16
NONCE_BYTES: Final = 24
BOX_BYTES: Final = KEY_BYTES + 16
MAX_PASSES: Final = 8
MAX_MEMORY: Final = 512 << 20
_MIN_MEMORY: Final = 8 << 10


@dataclass(frozen=True, slots=True)
class Cost:
    """What one guess at a passphrase costs: passes over so much memory, in octets. Raises `LimitError`."""

    passes: int = 3
    memory: int = 256 << 20

    def __post_init__(self) -> None:
        if not 1 <= self.passes <= MAX_PASSES or not _MIN_MEMORY <= self.memory <= MAX_MEMORY:
            raise LimitError(
                "key.cost",
                f"a passphrase that costs {self.passes} passes over {self.memory} octets is out of bounds",
                hint=f"at most {MAX_PASSES} passes over {MAX_MEMORY} octets, at least 1 over {_MIN_MEMORY}",
            )


DEFAULT_COST: Final = Cost()


@dataclass(frozen=True, slots=True)
class ProtectedKey:
    """A private key under a passphrase. `open` gives the key back."""

    public: PublicKey
    cost: Cost
    salt: bytes = field(repr=False)
    nonce: bytes = field(repr=False)
    box: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if (len(self.salt), len(self.nonce), len(self.box)) != (SALT_BYTES, NONCE_BYTES, BOX_BYTES):
            raise _malformed("a protected key has parts of a wrong length")

    @property
    def principal(self) -> Principal:
        """The principal that this key is, if the file tells the truth; opening it shows."""
        return self.public.principal

    def open(self, passphrase: bytes) -> SigningKey:
        """Return the key. Raises `RefusedError` (`key.passphrase`), whatever the reason."""
        try:
            seed = _secret_box(passphrase, self.salt, self.cost).decrypt(self.box, self.nonce)
        except nacl.exceptions.CryptoError:
            raise _wrong_passphrase() from None
        key = SigningKey(bytes(seed))
        # The public key in the clear was not under the passphrase: somebody may have put another one there.
        if key.public != self.public:
            raise _wrong_passphrase()
        return key

    def to_sexp(self) -> SExp:
        """Return the written form."""
        cost: SExp = (
            b"argon2id",
            (b"salt", self.salt),
            (b"passes", str(self.cost.passes).encode()),
            (b"memory", str(self.cost.memory).encode()),
        )
        box: SExp = (b"secretbox", (b"nonce", self.nonce), (b"box", self.box))
        return (b"protected-key", (b"ed25519", (b"q", self.public.raw)), cost, box)


StoredKey: TypeAlias = PublicKey | SigningKey | ProtectedKey


def new_key(random: RandomBytes) -> SigningKey:
    """Make a key."""
    return SigningKey(random(KEY_BYTES))


def private_key_to_sexp(key: SigningKey) -> SExp:
    """Return the written form of a private key that nothing protects but the file it lies in."""
    return (b"private-key", (b"ed25519", (b"q", key.public.raw), (b"d", key.seed)))


def protect(key: SigningKey, passphrase: bytes, random: RandomBytes, cost: Cost = DEFAULT_COST) -> ProtectedKey:
    """Put a key under a passphrase. Raises `MalformedError` (`key.empty-passphrase`)."""
    if not passphrase:
        raise MalformedError("key.empty-passphrase", "an empty passphrase protects nothing", hint="choose a longer one")
    salt, nonce = random(SALT_BYTES), random(NONCE_BYTES)
    box = _secret_box(passphrase, salt, cost).encrypt(key.seed, nonce).ciphertext
    return ProtectedKey(key.public, cost, salt, nonce, box)


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
        case (
            b"protected-key",
            (b"ed25519", (b"q", bytes(raw))),
            (b"argon2id", (b"salt", bytes(salt)), (b"passes", bytes(passes)), (b"memory", bytes(memory))),
            (b"secretbox", (b"nonce", bytes(nonce)), (b"box", bytes(box))),
        ):
            return ProtectedKey(PublicKey(raw), Cost(_number(passes), _number(memory)), salt, nonce, box)
    raise _malformed("not a key")


def _secret_box(passphrase: bytes, salt: bytes, cost: Cost) -> nacl.secret.SecretBox:
    stretched = nacl.pwhash.argon2id.kdf(nacl.secret.SecretBox.KEY_SIZE, passphrase, salt, cost.passes, cost.memory)
    return nacl.secret.SecretBox(stretched)


def _number(written: bytes) -> int:
    # No more than twelve digits: what is larger is out of bounds anyway, and one number has one written form.
    if not written.isdigit() or len(written) > 12 or (written[:1] == b"0" and written != b"0"):
        raise _malformed("the cost of a passphrase is written in decimal numbers")
    return int(written)


def _malformed(message: str) -> MalformedError:
    return MalformedError(
        "key.malformed", message, hint="expected `(public-key …)`, `(private-key …)` or `(protected-key …)`"
    )


def _wrong_passphrase() -> RefusedError:
    return RefusedError(
        "key.passphrase", "the passphrase does not open this key", hint="it is another one, or the file was changed"
    )

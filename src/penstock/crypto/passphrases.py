"""Protect 32 bytes of a secret by a passphrase, for files.

    (argon2id (salt <16 bytes>) (passes <n>) (memory <bytes>)) (secretbox (nonce <24 bytes>) (box <48 bytes>))

The cost of a passphrase is stored with it, and bounded when it is read: a file from a stranger must not occupy the
machine. A wrong passphrase and a changed file give the same error.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import nacl.exceptions
import nacl.pwhash.argon2id
import nacl.secret

from penstock.codec.sexp import SExp
from penstock.errors import LimitError, MalformedError, RefusedError

RandomBytes: TypeAlias = Callable[[int], bytes]
"""Returns that many random bytes."""

SALT_BYTES: Final = 16
NONCE_BYTES: Final = 24
BOX_BYTES: Final = 32 + 16
MAX_PASSES: Final = 8
MAX_MEMORY: Final = 512 << 20
_MIN_MEMORY: Final = 8 << 10


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one guess at a passphrase: passes over so many bytes of memory. Raises `LimitError`."""

    passes: int = 3
    memory: int = 256 << 20

    def __post_init__(self) -> None:
        if not 1 <= self.passes <= MAX_PASSES or not _MIN_MEMORY <= self.memory <= MAX_MEMORY:
            raise LimitError(
                "key.cost",
                f"a passphrase cost of {self.passes} passes over {self.memory} bytes is out of bounds",
                hint=f"use 1 to {MAX_PASSES} passes over {_MIN_MEMORY} to {MAX_MEMORY} bytes",
            )


DEFAULT_COST: Final = Cost()


@dataclass(frozen=True, slots=True)
class PassphraseBox:
    """A secret under a passphrase."""

    cost: Cost
    salt: bytes = field(repr=False)
    nonce: bytes = field(repr=False)
    box: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if (len(self.salt), len(self.nonce), len(self.box)) != (SALT_BYTES, NONCE_BYTES, BOX_BYTES):
            raise _malformed("a protected key has parts of a wrong length")

    @classmethod
    def of(cls, secret: bytes, passphrase: bytes, random: RandomBytes, cost: Cost) -> "PassphraseBox":
        """Protect 32 bytes by a passphrase. Raises `MalformedError` (`key.empty-passphrase`)."""
        if not passphrase:
            raise MalformedError(
                "key.empty-passphrase", "an empty passphrase protects nothing", hint="choose a longer one"
            )
        salt, nonce = random(SALT_BYTES), random(NONCE_BYTES)
        return cls(cost, salt, nonce, _secret_box(passphrase, salt, cost).encrypt(secret, nonce).ciphertext)

    @classmethod
    def from_sexps(cls, cost: SExp, box: SExp) -> "PassphraseBox":
        """Read the written form. Raises `MalformedError` (`key.malformed`) and `LimitError` (`key.cost`)."""
        match cost, box:
            case (
                (b"argon2id", (b"salt", bytes(salt)), (b"passes", bytes(passes)), (b"memory", bytes(memory))),
                (b"secretbox", (b"nonce", bytes(nonce)), (b"box", bytes(sealed))),
            ):
                return cls(Cost(_number(passes), _number(memory)), salt, nonce, sealed)
        raise _malformed("not a key under a passphrase")

    def open(self, passphrase: bytes) -> bytes:
        """Return the secret. Raises `RefusedError` (`key.passphrase`), whatever the reason."""
        try:
            return bytes(_secret_box(passphrase, self.salt, self.cost).decrypt(self.box, self.nonce))
        except nacl.exceptions.CryptoError:
            raise wrong_passphrase() from None

    def to_sexps(self) -> tuple[SExp, SExp]:
        """Return the written form: how the passphrase is stretched, and the box."""
        cost: SExp = (
            b"argon2id",
            (b"salt", self.salt),
            (b"passes", str(self.cost.passes).encode()),
            (b"memory", str(self.cost.memory).encode()),
        )
        return cost, (b"secretbox", (b"nonce", self.nonce), (b"box", self.box))


def wrong_passphrase() -> RefusedError:
    """Return the only error for data that a passphrase does not open."""
    return RefusedError(
        "key.passphrase",
        "the passphrase does not open this key",
        hint="use the right passphrase, or check whether the file was changed",
    )


def _secret_box(passphrase: bytes, salt: bytes, cost: Cost) -> nacl.secret.SecretBox:
    stretched = nacl.pwhash.argon2id.kdf(nacl.secret.SecretBox.KEY_SIZE, passphrase, salt, cost.passes, cost.memory)
    return nacl.secret.SecretBox(stretched)


def _number(written: bytes) -> int:
    # At most twelve digits: larger numbers are out of bounds anyway, and a number has one written form.
    if not written.isdigit() or len(written) > 12 or (written[:1] == b"0" and written != b"0"):
        raise _malformed("the cost of a passphrase must be decimal numbers")
    return int(written)


def _malformed(message: str) -> MalformedError:
    return MalformedError("key.malformed", message, hint="expected `(argon2id …) (secretbox …)`")

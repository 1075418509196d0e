"""Key-encryption keys: what key rings, and the logs of key managers, are wrapped under. Their written forms:

    (kek (id <8 bytes>) (k <32 bytes>))
    (protected-kek (id <8 bytes>) (argon2id (salt …) (passes …) (memory …)) (secretbox (nonce …) (box …)))

The id follows from the key and tells nothing about it. It says which key something lies under, and catches a file that
was mistyped or changed.
"""

from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Final, TypeAlias

from penstock.codec.sexp import SExp
from penstock.crypto.passphrases import DEFAULT_COST, Cost, PassphraseBox, RandomBytes, wrong_passphrase
from penstock.crypto.wrapping import SECRET_BYTES, Secret
from penstock.errors import MalformedError

ID_BYTES: Final = 8
_ID: Final = b"kek-id"


def kek_id(kek: Secret) -> bytes:
    """Return what a key-encryption key is known by."""
    return kek.derive(_ID).expose()[:ID_BYTES]


def new_kek(random: RandomBytes) -> Secret:
    """Make a key-encryption key."""
    return Secret(random(SECRET_BYTES))


def kek_to_sexp(kek: Secret) -> SExp:
    """Return the written form of a key that nothing protects but the file it lies in."""
    return (b"kek", (b"id", kek_id(kek)), (b"k", kek.expose()))


@dataclass(frozen=True, slots=True)
class ProtectedKek:
    """A key-encryption key under a passphrase. `open` gives the key back."""

    id: bytes
    box: PassphraseBox = field(repr=False)

    def open(self, passphrase: bytes) -> Secret:
        """Return the key. Raises `RefusedError` (`key.passphrase`), whatever the reason."""
        kek = Secret(self.box.open(passphrase))
        # The id was not under the passphrase: somebody may have put another one there.
        if not compare_digest(kek_id(kek), self.id):
            raise wrong_passphrase()
        return kek

    def to_sexp(self) -> SExp:
        """Return the written form."""
        return (b"protected-kek", (b"id", self.id), *self.box.to_sexps())


StoredKek: TypeAlias = Secret | ProtectedKek


def protect_kek(kek: Secret, passphrase: bytes, random: RandomBytes, cost: Cost = DEFAULT_COST) -> ProtectedKek:
    """Put a key under a passphrase. Raises `MalformedError` (`key.empty-passphrase`)."""
    return ProtectedKek(kek_id(kek), PassphraseBox.of(kek.expose(), passphrase, random, cost))


def parse_kek(value: SExp) -> StoredKek:
    """Read either form.

    Raises `MalformedError` (`keys.kek`, `key.malformed`) and `LimitError` (`key.cost`). Nothing of the input is in the
    message.
    """
    match value:
        case (b"kek", (b"id", bytes(id_)), (b"k", bytes(octets))) if len(octets) == SECRET_BYTES:
            kek = Secret(octets)
            if not compare_digest(kek_id(kek), id_):
                raise _malformed("a key-encryption key that was changed: its id is that of another one")
            return kek
        case (b"protected-kek", (b"id", bytes(id_)), cost, box):
            return ProtectedKek(id_, PassphraseBox.from_sexps(cost, box))
    raise _malformed("not a key-encryption key")


def _malformed(message: str) -> MalformedError:
    return MalformedError(
        "keys.kek", message, hint="expected what `penstock key new-kek` makes: `(kek …)` or `(protected-kek …)`"
    )

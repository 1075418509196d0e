"""Secrets, and secrets under other secrets.

A `Secret` is 32 bytes that are never printed, pickled or copied. What is made from it is made for one purpose:

    derived secret = HKDF-Expand(secret, (penstock-secret-1 <label> <context> …))
    wrapped        = AES-256-GCM of the content; key = HKDF-Expand(secret, a), associated data = a,
                     a = (penstock-secret-1 wrap <salt> <context> …)

So what was wrapped opens in its context alone (which group, which epoch, which node), and each salt and context has a
key of its own: the nonce, which is zero, never meets a key twice. Whatever fails to open fails with one error.
"""

from hmac import compare_digest
from typing import Final, NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from penstock.codec.sexp import canonical
from penstock.errors import MalformedError, RefusedError

SECRET_BYTES: Final = 32
SALT_BYTES: Final = 16
_LABEL: Final = b"penstock-secret-1"
_WRAP: Final = b"wrap"
_NONCE: Final = bytes(12)


class Secret:
    """See the module. Raises `MalformedError` (`keys.malformed`) when it is not 32 bytes."""

    __slots__ = ("_octets",)

    def __init__(self, octets: bytes) -> None:
        if len(octets) != SECRET_BYTES:
            raise MalformedError("keys.malformed", f"a secret has {SECRET_BYTES} bytes")
        self._octets = octets

    def __repr__(self) -> str:
        return "Secret(…)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and compare_digest(self._octets, other._octets)

    def __hash__(self) -> int:
        return hash(self._octets)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is neither pickled nor copied: wrap it")

    def derive(self, label: bytes, *context: bytes) -> "Secret":
        """Return the secret for one purpose; nobody gets from it to this one."""
        return Secret(_expand(self._octets, canonical((_LABEL, label, *context))))

    def expose(self) -> bytes:
        """Return the bytes themselves: for what is sealed or wrapped immediately, and for ciphers."""
        return self._octets


def wrap(under: Secret, content: bytes, salt: bytes, *context: bytes) -> bytes:
    """Return content that only holders of a secret can read, and only in its context. No salt is used twice."""
    about = canonical((_LABEL, _WRAP, salt, *context))
    return AESGCM(_expand(under.expose(), about)).encrypt(_NONCE, content, about)


def unwrap(under: Secret, box: bytes, salt: bytes, *context: bytes) -> bytes:
    """Return what was wrapped. Raises `RefusedError` (`keys.unopened`), whatever the reason."""
    about = canonical((_LABEL, _WRAP, salt, *context))
    try:
        return AESGCM(_expand(under.expose(), about)).decrypt(_NONCE, box, about)
    except InvalidTag:
        raise unopened() from None


def unopened() -> RefusedError:
    """Return the one error for everything that does not open."""
    return RefusedError(
        "keys.unopened", "something sealed does not open with the keys at hand", hint="ask the key manager again"
    )


def _expand(secret: bytes, info: bytes) -> bytes:
    return HKDFExpand(SHA256(), SECRET_BYTES, info).derive(secret)

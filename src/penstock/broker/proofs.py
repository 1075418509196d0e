"""Why a broker believes that words which went through many hands are those of the broker that they speak for."""

from collections import OrderedDict
from hashlib import sha256
from typing import Final, Protocol

from penstock.codec.sexp import canonical
from penstock.crypto.keys import KEY_BYTES, SIGNATURE_BYTES, PublicKey, SigningKey
from penstock.errors import RefusedError
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import NetworkName
from penstock.model.principals import Principal

LABEL: Final = b"penstock-words-1"


class Proof(Protocol):
    """How announcements and disclosures are believed. The words are a digest of all but the proof."""

    def sign(self, words: bytes) -> bytes:
        """Return this broker's proof of its own words."""
        ...

    def verify(self, broker: Principal, words: bytes, proof: bytes) -> None:
        """Check another broker's proof. Raises `RefusedError`."""
        ...


class TrustingProof:
    """No proof at all: for networks in which every broker believes every other."""

    def sign(self, words: bytes) -> bytes:  # noqa: ARG002  # part of the port
        """Return an empty proof."""
        return b""

    def verify(self, broker: Principal, words: bytes, proof: bytes) -> None:
        """Accept."""


TRUSTING: Final = TrustingProof()


class SignedProof:
    """A broker's public key, and its signature over a label, the network and the words.

    The same words come by several ways; what has been found right is remembered, up to `Limits.cache_entries`.
    """

    def __init__(self, key: SigningKey, network: NetworkName, limits: Limits = DEFAULT_LIMITS) -> None:
        self._key, self._network, self._limits = key, network, limits
        self._right: OrderedDict[bytes, None] = OrderedDict()

    def sign(self, words: bytes) -> bytes:
        """Return the public key and the signature."""
        return self._key.public.raw + self._key.sign(self._message(words))

    def verify(self, broker: Principal, words: bytes, proof: bytes) -> None:
        """Check that the key is that broker's, and the signature that key's.

        Raises `RefusedError` (`network.proof`), whatever the reason.
        """
        name = sha256(broker.digest + sha256(words).digest() + proof).digest()
        if name in self._right:
            self._right.move_to_end(name)
            return
        self._check(broker, words, proof)
        self._right[name] = None
        if len(self._right) > self._limits.cache_entries:
            self._right.popitem(last=False)

    def _check(self, broker: Principal, words: bytes, proof: bytes) -> None:
        problem = RefusedError("network.proof", f"these are not the words of {broker.short}", hint="cut the link")
        if len(proof) != KEY_BYTES + SIGNATURE_BYTES:
            raise problem
        key = PublicKey(proof[:KEY_BYTES])
        if key.principal != broker:
            raise problem
        try:
            key.verify(self._message(words), proof[KEY_BYTES:])
        except RefusedError:
            raise problem from None

    def _message(self, words: bytes) -> bytes:
        return canonical((LABEL, (self._network.owner.digest, self._network.name.encode()), words))

"""How a broker proves that words that others pass on are its own: with its key, for one network."""

from typing import Final

from penstock.crypto.keys import KEY_BYTES, PublicKey, SigningKey, digest
from penstock.errors import MalformedError, RefusedError
from penstock.model.names import NetworkName
from penstock.model.principals import Principal

_LABEL: Final = b"penstock-words-1"


class KeyProof:
    """The key of who speaks, and its signature: what `membership` asks of a proof."""

    def __init__(self, key: SigningKey, network: NetworkName) -> None:
        self._key = key
        self._network = str(network).encode()

    def sign(self, words: bytes) -> bytes:
        """Return this broker's proof of its own words."""
        return self._key.public.raw + self._key.sign(self._in_full(words))

    def verify(self, broker: Principal, words: bytes, proof: bytes) -> None:
        """Check another broker's proof. Raises `RefusedError` (`network.proof`)."""
        try:
            key = PublicKey(proof[:KEY_BYTES])
            if key.principal == broker:
                key.verify(self._in_full(words), proof[KEY_BYTES:])
                return
        except (MalformedError, RefusedError):
            pass
        raise RefusedError("network.proof", f"words that are not those of {broker.short}, for whom they speak")

    def _in_full(self, words: bytes) -> bytes:
        return digest((_LABEL, self._network, words))

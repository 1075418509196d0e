"""Sealed filters: conditions on single attributes, each under the key of its attribute (paper 5, section 7.3).

    hint        which key it is, to those who hold it: the first 16 bytes of HKDF(epoch key, … ‖ scope ‖ "filter hint")
    identity    which content it is: the first 16 bytes of HMAC-SHA256(HKDF(… "filter identity"), content)
    sealed      hint ‖ identity ‖ AES-256-GCM-SIV(HKDF(… "filter AES_GCM_SIV"), content)

Equal filters are sealed to equal bytes, whoever seals them: brokers without keys must find out which subscriptions are
the same (7.3.1). So the keys do not depend on the sender, the nonce is always zero, and the algorithm is one that then
reveals only equality (RFC 8452). In a new epoch all filters are sealed again.

All parts of a filter are bound to each other: the hints and identities of all parts are authenticated with each part.
So a broker on the way can neither remove a part nor combine parts of two filters to see which events match.
"""

import hmac
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag

from penstock.codec.blocks import INCARNATION_BYTES
from penstock.crypto.aead import NONCE_BYTES, TAG_BYTES, CipherAlgorithm, cannot_open
from penstock.crypto.seal_keys import Purpose, derive
from penstock.crypto.wrapping import Secret
from penstock.model.principals import DIGEST_BYTES

HINT_BYTES: Final = 16
IDENTITY_BYTES: Final = 16
NAME_BYTES: Final = HINT_BYTES + IDENTITY_BYTES
"""Bytes of hint and identity, by which parts of filters are distinguished without any key."""
LEAST_BYTES: Final = NAME_BYTES + TAG_BYTES
"""The minimum size of a sealed filter's part."""

_NOBODY: Final = bytes(DIGEST_BYTES)
_NEVER: Final = bytes(INCARNATION_BYTES)
_NONCE: Final = bytes(NONCE_BYTES)
_LABEL: Final = b"penstock-filter-1 "


class FilterKey(NamedTuple):
    """The keys that seal and open conditions on one attribute, or on whole events, in one epoch."""

    hint: bytes
    identity: Callable[[bytes], bytes]
    encrypt: Callable[[bytes, bytes, bytes], bytes]
    decrypt: Callable[[bytes, bytes, bytes], bytes]

    def __repr__(self) -> str:
        return "FilterKey(…)"


def filter_key(key: Secret, scope: str) -> FilterKey:
    """Return the filter keys of a scope, derived from its epoch key."""
    hint, mac, sealing_key = (
        derive(key, _NOBODY, _NEVER, scope, f"{Purpose.FILTER} {use}")
        for use in ("hint", "identity", CipherAlgorithm.AES_GCM_SIV.name)
    )
    cipher = CipherAlgorithm.AES_GCM_SIV.cipher(sealing_key)

    def identity(content: bytes) -> bytes:
        return hmac.digest(mac, content, "sha256")[:IDENTITY_BYTES]

    return FilterKey(hint[:HINT_BYTES], identity, cipher.encrypt, cipher.decrypt)


def seal_filter(parts: Iterable[tuple[FilterKey, bytes]]) -> tuple[bytes, ...]:
    """Return the sealed parts of a filter in canonical order. Each key can occur only once."""
    named = sorted(((key.hint + key.identity(content), key, content) for key, content in parts), key=itemgetter(0))
    bound = _bound([name for name, _, _ in named])
    return tuple(name + key.encrypt(_NONCE, content, bound) for name, key, content in named)


def open_part(key: FilterKey, part: bytes, parts: Sequence[bytes]) -> bytes:
    """Return the content of one of the parts of a filter. Raises `RefusedError` (`seal.cannot-open`)."""
    bound = _bound([each[:NAME_BYTES] for each in parts])
    try:
        content = key.decrypt(_NONCE, part[NAME_BYTES:], bound)
    except InvalidTag:
        raise cannot_open() from None
    # Brokers without keys use the name, so it must match the content.
    if not hmac.compare_digest(key.hint + key.identity(content), part[:NAME_BYTES]):
        raise cannot_open()
    return content


def _bound(names: Sequence[bytes]) -> bytes:
    return _LABEL + b"".join(names)

"""Caches of expensive verifications: signatures of certificates, and event types (paper 5, section 4.5).

A signature does not age, so a verified certificate is kept, and its dates are checked at each use. A verified type
depends on credentials that do age, so it is kept only while they are valid. Both caches are bounded in entries and in
bytes, because anyone can sign something large. They forget the least recently used entry.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Generic, TypeVar

from penstock.codec.sexp import canonical
from penstock.model.limits import CACHE_ENTRIES
from penstock.model.names import NetworkName
from penstock.trust.certificates import Certificate, UnverifiedCertificate, verify_certificate
from penstock.trust.discovery import OnlineChecker, no_online_checker
from penstock.trust.event_types import TypeSource, UnverifiedType, VerifiedType, no_types, verify_type

#: bytes, in canonical form, of all that one cache keeps
CACHE_BYTES: Final = 32 << 20

Key = TypeVar("Key")
Kept = TypeVar("Kept")


class Recent(Generic[Key, Kept]):
    """A mapping that is bounded in entries and in their weight, and forgets the least recently used entry."""

    def __init__(self, entries: int, weight: int = CACHE_BYTES) -> None:
        self._entries = entries
        self._room = weight
        self._kept: OrderedDict[Key, tuple[Kept, int]] = OrderedDict()

    def get(self, key: Key) -> Kept | None:
        """Return the value of a key, or None, and mark it as used."""
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def put(self, key: Key, value: Kept, weight: int = 0) -> None:
        """Set the value of a key, and forget the least recently used entries above the bounds."""
        self.drop(key)
        self._kept[key] = (value, weight)
        self._room -= weight
        while self._kept and (len(self._kept) > self._entries or self._room < 0):
            _, (_, freed) = self._kept.popitem(last=False)
            self._room += freed

    def drop(self, key: Key) -> None:
        """Forget a key, if it is there."""
        found = self._kept.pop(key, None)
        if found is not None:
            self._room += found[1]

    def __contains__(self, key: Key) -> bool:
        return key in self._kept

    def __len__(self) -> int:
        return len(self._kept)


class CertificateCache:
    """Verifies certificates, each signature once. Failures are not kept, so that they cannot fill the cache."""

    def __init__(self, entries: int = CACHE_ENTRIES) -> None:
        self._known: Recent[bytes, Certificate] = Recent(entries)
        self.hits = 0
        self.misses = 0

    def __call__(self, unverified: UnverifiedCertificate) -> Certificate:
        """Return the verified certificate. Raises as `verify_certificate`."""
        # Body, key and signature together: another signature on the same body must be verified too.
        key = unverified.fingerprint
        known = self._known.get(key)
        if known is not None:
            self.hits += 1
            return known
        self.misses += 1
        verified = verify_certificate(unverified)
        self._known.put(key, verified, len(unverified.written))
        return verified

    def __len__(self) -> int:
        return len(self._known)


@dataclass(slots=True)
class TypeCache:
    """Verifies event types, each once while its credentials are valid.

    `types` finds parents and previous versions, `online` checks on-line tests.
    """

    network: NetworkName | None = None
    types: TypeSource = no_types
    online: OnlineChecker = no_online_checker
    certificates: CertificateCache = field(default_factory=CertificateCache)
    entries: int = CACHE_ENTRIES
    hits: int = 0
    misses: int = 0
    _known: Recent[bytes, VerifiedType] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._known = Recent(self.entries)

    def verify(self, unverified: UnverifiedType, now: datetime) -> VerifiedType:
        """Return the verified type. Raises as `verify_type`."""
        known = self._known.get(unverified.fingerprint)
        if known is not None:
            if known.validity.contains(now):
                self.hits += 1
                return known
            self._known.drop(unverified.fingerprint)
        self.misses += 1
        verified = verify_type(
            unverified,
            now,
            types=self.types,
            network=self.network,
            verifier=self.certificates,
            online=self.online,
        )
        self._known.put(unverified.fingerprint, verified, len(canonical(unverified.body)))
        return verified

    def forget(self) -> None:
        """Forget all results."""
        self._known = Recent(self.entries)

    def __len__(self) -> int:
        return len(self._known)

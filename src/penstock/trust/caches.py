"""Caches for what is expensive to verify: signatures of certificates, and event types (paper 5, section 4.5).

A signature does not age, so a verified certificate may be kept; its dates are asked at each use. A verified type rests
on credentials that do age, so it is kept for as long as they are valid, and not an instant longer. Both caches are
bounded and forget what was used least recently.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.names import NetworkName
from penstock.trust.certificates import Certificate, UnverifiedCertificate, verify_certificate
from penstock.trust.discovery import OnlineChecker, no_online_checker
from penstock.trust.event_types import TypeSource, UnverifiedType, VerifiedType, no_types, verify_type

Key = TypeVar("Key")
Kept = TypeVar("Kept")


class Recent(Generic[Key, Kept]):
    """A bounded mapping that forgets what was used least recently."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._kept: OrderedDict[Key, Kept] = OrderedDict()

    def get(self, key: Key) -> Kept | None:
        """Return what is kept under a key, and note that it was used."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def put(self, key: Key, value: Kept) -> None:
        """Keep something, at the cost of what was used least recently."""
        self._kept[key] = value
        self._kept.move_to_end(key)
        if len(self._kept) > self._entries:
            self._kept.popitem(last=False)

    def drop(self, key: Key) -> None:
        """Forget a key; nothing happens when it is not there."""
        self._kept.pop(key, None)

    def __len__(self) -> int:
        return len(self._kept)


class CertificateCache:
    """Verifies certificates, each signature once. Failures are not kept: they cost the one who brings them."""

    def __init__(self, entries: int = DEFAULT_LIMITS.cache_entries) -> None:
        self._known: Recent[bytes, Certificate] = Recent(entries)
        self.hits = 0
        self.misses = 0

    def __call__(self, unverified: UnverifiedCertificate) -> Certificate:
        """Return the verified certificate. Raises what `verify_certificate` raises."""
        # Body, key and signature together: another signature on the same body is another thing to verify.
        key = unverified.fingerprint
        known = self._known.get(key)
        if known is not None:
            self.hits += 1
            return known
        self.misses += 1
        verified = verify_certificate(unverified)
        self._known.put(key, verified)
        return verified

    def __len__(self) -> int:
        return len(self._known)


@dataclass(slots=True)
class TypeCache:
    """Verifies event types, each once while what it rests on is valid.

    `types` finds parents and previous versions, `online` answers on-line tests.
    """

    network: NetworkName | None = None
    types: TypeSource = no_types
    online: OnlineChecker = no_online_checker
    certificates: CertificateCache = field(default_factory=CertificateCache)
    entries: int = DEFAULT_LIMITS.cache_entries
    hits: int = 0
    misses: int = 0
    _known: Recent[bytes, VerifiedType] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._known = Recent(self.entries)

    def verify(self, unverified: UnverifiedType, now: datetime) -> VerifiedType:
        """Return the verified type. Raises what `verify_type` raises."""
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
        self._known.put(unverified.fingerprint, verified)
        return verified

    def __len__(self) -> int:
        return len(self._known)

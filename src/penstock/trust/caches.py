"""Caches for what is expensive to verify: signatures of certificates, and event types (paper 5, section 4.5).

A signature does not age, so a verified certificate may be kept; its dates are asked at each use. A verified type rests
on credentials that do age, so it is kept for as long as they are valid, and not an instant longer. Both caches are
bounded, in entries and in bytes, since anyone can sign something large; they forget what was used least recently.
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
    """A mapping that is bounded in entries and in their weight, and forgets what was used least recently."""

    def __init__(self, entries: int, weight: int = CACHE_BYTES) -> None:
        self._entries = entries
        self._room = weight
        self._kept: OrderedDict[Key, tuple[Kept, int]] = OrderedDict()

    def get(self, key: Key) -> Kept | None:
        """Return what is kept under a key, and note that it was used."""
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def put(self, key: Key, value: Kept, weight: int = 0) -> None:
        """Keep something, at the cost of what was used least recently."""
        self.drop(key)
        self._kept[key] = (value, weight)
        self._room -= weight
        while self._kept and (len(self._kept) > self._entries or self._room < 0):
            _, (_, freed) = self._kept.popitem(last=False)
            self._room += freed

    def drop(self, key: Key) -> None:
        """Forget a key; nothing happens when it is not there."""
        found = self._kept.pop(key, None)
        if found is not None:
            self._room += found[1]

    def __contains__(self, key: Key) -> bool:
        return key in self._kept

    def __len__(self) -> int:
        return len(self._kept)


class CertificateCache:
    """Verifies certificates, each signature once. Failures are not kept: they cost the one who brings them."""

    def __init__(self, entries: int = CACHE_ENTRIES) -> None:
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
        self._known.put(key, verified, len(unverified.written))
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
    entries: int = CACHE_ENTRIES
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
        self._known.put(unverified.fingerprint, verified, len(canonical(unverified.body)))
        return verified

    def __len__(self) -> int:
        return len(self._known)

"""Principals: who acts. A principal is a public key, or a quorum of keys, and never a name (paper 5, section 3.3).

A principal is identified by one digest: the SHA-256 of the canonical S-expression of its Ed25519 public key, or of
its k-of-n threshold subject. It is written `ed25519:<base32>` or `threshold:<base32>`; which of the two it is does
not take part in comparison, because the digest alone decides. In names (`penstock.model.names`) it does: they are text.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from penstock.errors import MalformedError
from penstock.model.limits import CACHE_ENTRIES

DIGEST_BYTES: Final = 32
KEY: Final = "ed25519"
THRESHOLD: Final = "threshold"
_SCHEMES: Final = (KEY, THRESHOLD)


@dataclass(frozen=True, slots=True, order=True)
class Principal:
    """The identity of a key or a quorum. Raises `MalformedError` (`principal.malformed`).

    >>> Principal.parse(str(Principal(bytes(32)))) == Principal(bytes(32))
    True
    """

    digest: bytes
    scheme: str = field(default=KEY, compare=False)

    def __post_init__(self) -> None:
        if len(self.digest) != DIGEST_BYTES or self.scheme not in _SCHEMES:
            raise MalformedError(
                "principal.malformed",
                f"a principal is a digest of {DIGEST_BYTES} bytes under one of the schemes {', '.join(_SCHEMES)}",
            )

    def __hash__(self) -> int:
        # Written out, because names are looked up several times for each event, and bytes remember their hash.
        return hash(self.digest)

    def __str__(self) -> str:
        return _written(self.digest, self.scheme)

    def __repr__(self) -> str:
        return f"Principal({self})"

    @property
    def short(self) -> str:
        """Return the first characters of the text, for people to recognise principals; never use it for decisions."""
        return f"{str(self)[: len(self.scheme) + 11]}…"

    @classmethod
    def parse(cls, text: str) -> "Principal":
        """Read the written form.

        Raises `MalformedError` (`principal.malformed`).
        """
        return _parsed(text)


# Few are named again and again: in every rule of a log, every change, every certificate.
@lru_cache(maxsize=CACHE_ENTRIES)
def _written(digest: bytes, scheme: str) -> str:
    return f"{scheme}:{base64.b32encode(digest).decode().rstrip('=').lower()}"


@lru_cache(maxsize=CACHE_ENTRIES)
def _parsed(text: str) -> Principal:
    scheme, colon, encoded = text.partition(":")
    problem = MalformedError(
        "principal.malformed",
        f"`{text[:80]}` is not a principal",
        hint="write `ed25519:` or `threshold:` and the 52 base32 characters that `penstock key show` prints",
    )
    if not colon or scheme not in _SCHEMES:
        raise problem
    try:
        digest = base64.b32decode(encoded.upper() + "=" * (-len(encoded) % 8))
    except (binascii.Error, ValueError) as error:
        raise problem from error
    if len(digest) != DIGEST_BYTES:
        raise problem
    principal = Principal(digest, scheme)
    # One written form only: base32 has unused bits that must be zero.
    if str(principal) != text:
        raise problem
    return principal


class Petnames(Mapping[Principal, str]):
    """One reader's own names for principals. They are for display; no decision looks at them."""

    def __init__(self, names: Mapping[Principal, str] | None = None) -> None:
        self._names = dict(names or {})

    def __getitem__(self, principal: Principal) -> str:
        return self._names[principal]

    def __iter__(self) -> Iterator[Principal]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def show(self, principal: Principal) -> str:
        """Return the petname if there is one, and the short written form otherwise."""
        return self._names.get(principal) or principal.short


# ----------------------------------------------------------------------------------------------------------------------
# Domains: organisations, each represented by the principal of its access control service (paper 5, chapter 3).
#
# A domain is a broker group or a domain group, never both, so that the brokers of a domain can simply have all the
# rights of their domain (section 5.1.4).


@dataclass(frozen=True, slots=True)
class Domain:
    """A domain with its members, brokers and sub-domains.

    Raises `MalformedError`: `domain.mixed` when it has both brokers and sub-domains, `domain.clients` when a domain
    group has clients (they connect to local brokers), `domain.duplicate` if a principal occurs twice in the tree.
    """

    name: str
    principal: Principal
    brokers: tuple[Principal, ...] = ()
    clients: tuple[Principal, ...] = ()
    subdomains: tuple["Domain", ...] = ()

    def __post_init__(self) -> None:
        if self.brokers and self.subdomains:
            raise MalformedError(
                "domain.mixed",
                f"domain `{self.name}` contains both brokers and sub-domains",
                hint="put the brokers into a sub-domain of their own",
            )
        if self.clients and self.subdomains:
            raise MalformedError(
                "domain.clients",
                f"domain group `{self.name}` has clients but no brokers for them",
                hint="put the clients into the sub-domain whose brokers serve them",
            )
        seen: set[Principal] = set()
        for principal in self.members():
            if principal in seen:
                raise MalformedError("domain.duplicate", f"{principal.short} occurs twice in domain `{self.name}`")
            seen.add(principal)

    @property
    def is_broker_group(self) -> bool:
        """Whether the domain has no sub-domains. Only programs ask this: it is part of the public API."""
        return not self.subdomains

    def members(self) -> Iterator[Principal]:
        """Yield every principal of the domain and its sub-domains, the access control service first."""
        yield self.principal
        yield from self.brokers
        yield from self.clients
        for subdomain in self.subdomains:
            yield from subdomain.members()

    def line(self, principal: Principal) -> "tuple[Domain, ...]":
        """Return the innermost domain that `principal` belongs to, and the domains around it."""
        for subdomain in self.subdomains:
            if found := subdomain.line(principal):
                return (*found, self)
        return (self,) if principal in (self.principal, *self.brokers, *self.clients) else ()

    def home(self, principal: Principal) -> "Domain | None":
        """Return the innermost domain that `principal` belongs to."""
        return next(iter(self.line(principal)), None)

"""Domains: organisations, each represented by the principal of its access control service (paper 5, chapter 3).

A domain is a broker group or a domain group, never both, so that the brokers of a domain can simply have all the
rights of their domain (section 5.1.4).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.errors import MalformedError
from penstock.model.principals import Principal


@dataclass(frozen=True, slots=True)
class Domain:
    """A domain with its members, brokers and sub-domains.

    Raises `MalformedError`: `domain.mixed` when it has both brokers and sub-domains, `domain.clients` when a domain
    group has clients (they connect to local brokers), `domain.duplicate` when a principal stands twice in the tree.
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
                raise MalformedError("domain.duplicate", f"{principal.short} stands twice in domain `{self.name}`")
            seen.add(principal)

    @property
    def is_broker_group(self) -> bool:
        """True unless the domain contains sub-domains."""
        return not self.subdomains

    def members(self) -> Iterator[Principal]:
        """Yield every principal of the domain and its sub-domains, the access control service first."""
        yield self.principal
        yield from self.brokers
        yield from self.clients
        for subdomain in self.subdomains:
            yield from subdomain.members()

    def line(self, principal: Principal) -> "tuple[Domain, ...]":
        """Return the innermost domain that `principal` belongs to, and those that it is part of; none where to none."""
        for subdomain in self.subdomains:
            if found := subdomain.line(principal):
                return (*found, self)
        return (self,) if principal in (self.principal, *self.brokers, *self.clients) else ()

    def home(self, principal: Principal) -> "Domain | None":
        """Return the innermost domain that `principal` belongs to."""
        return next(iter(self.line(principal)), None)

"""Which certificates count no longer, and for whom.

An owner's revocation counts in everything that is decided by that owner's word, whoever issued the certificate; and a
certificate that its own issuer revoked counts nowhere. So nobody takes from others what is not his to give.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from penstock.model.principals import Principal
from penstock.trust.credentials import Credentials


def _nobody() -> Mapping[Principal, frozenset[str]]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Revocations:
    """The ids of revoked certificates by the principal that revoked them."""

    by_owner: Mapping[Principal, frozenset[str]] = field(default_factory=_nobody, repr=False)

    def strike(self, credentials: Credentials, root: Principal) -> Credentials:
        """Return the credentials without those that are revoked where `root` decides; the same where none is."""
        kept = tuple(one for one in credentials.certificates if not self.revoked(one.id, (root, one.statement.issuer)))
        return credentials if len(kept) == len(credentials) else Credentials(kept, credentials.quorums)

    def revoked(self, certificate: str, by: Iterable[Principal]) -> bool:
        """Say whether one of these principals has revoked a certificate."""
        return any(certificate in self.by_owner.get(principal, ()) for principal in by)

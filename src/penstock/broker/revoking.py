"""Capabilities as a source of authority, without what was revoked: also of what clients bring along themselves."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from penstock.guard import CapabilityAuthority, EventRequest, NetworkRequest
from penstock.guard.capability_authority import Role
from penstock.guard.decision import Problem, Request, Ruling
from penstock.model.principals import Principal
from penstock.trust.event_types import VerifiedType
from penstock.trust.revocations import Revocations


@dataclass(frozen=True, slots=True)
class Revoking:
    """What an authority allows by certificates that were not revoked; of a type that rests on one, nothing."""

    authority: CapabilityAuthority
    revocations: Revocations

    def rule(self, request: Request) -> Ruling:
        """Say what is allowed. Raises what the authority raises."""
        if isinstance(request, NetworkRequest):
            return self._without_revoked(request.network.owner).rule(request)
        verified = request.type
        if any(self.revocations.revoked(one, _line(verified)) for one in verified.because):
            problem = Problem("cert.revoked", "the event type rests on a certificate that was revoked", verified.id)
            return Ruling(problems=(problem,))
        return self._without_revoked(verified.event_type.name.owner).rule(request)

    def roles(self, request: EventRequest) -> tuple[Role, ...]:
        """Return the names that certificates give to who asks, without what was revoked."""
        return self._without_revoked(request.type.event_type.name.owner).roles(request)

    def _without_revoked(self, root: Principal) -> CapabilityAuthority:
        left = self.revocations.strike(self.authority.credentials, root)
        return self.authority if left is self.authority.credentials else replace(self.authority, credentials=left)


def _line(verified: VerifiedType) -> Iterator[Principal]:
    """Yield those whose word a type rests on: its owner, those of its ancestors, and that of the network."""
    yield verified.event_type.name.owner
    yield from (key.owner for key in verified.event_type.ancestors)
    if verified.network is not None:
        yield verified.network.owner

"""Capabilities as a source of authority, without what was revoked: also of what clients bring along themselves.

Where it is known when something was revoked, what is allowed by it is allowed until then: so a history is decided.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from penstock.guard.capability_authority import CapabilityAuthority, Role
from penstock.guard.decision import EventRequest, NetworkRequest, Problem, Request, Ruling
from penstock.guard.restriction import When
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
            return _of_no_type(verified)
        ruling = self._without_revoked(verified.event_type.name.owner).rule(request)
        for one in verified.because:
            if (end := self.revocations.end(one, _line(verified))) is not None:
                if request.now is not None and not end.contains(request.now):
                    return _of_no_type(verified)
                ruling = _until(ruling, When(end))
        return ruling

    def roles(self, request: EventRequest) -> tuple[Role, ...]:
        """Return the names that certificates give to who asks, without what was revoked."""
        return self._without_revoked(request.type.event_type.name.owner).roles(request)

    def _without_revoked(self, root: Principal) -> CapabilityAuthority:
        known = self.authority.credentials
        left = self.revocations.strike(known, root)
        ends = self.revocations.ends(left, root)
        return self.authority if left is known and not ends else replace(self.authority, credentials=left, ends=ends)


def _of_no_type(verified: VerifiedType) -> Ruling:
    problem = Problem("cert.revoked", "the event type rests on a certificate that was revoked", verified.id)
    return Ruling(problems=(problem,))


def _until(ruling: Ruling, when: When) -> Ruling:
    """Return what is allowed while the type still counts."""
    found = ((branch, branch.when.intersect(when)) for branch in ruling.branches)
    return replace(ruling, branches=tuple(replace(branch, when=left) for branch, left in found if left is not None))


def _line(verified: VerifiedType) -> Iterator[Principal]:
    """Yield those whose word a type rests on: its owner, those of its ancestors, and that of the network."""
    yield verified.event_type.name.owner
    yield from (key.owner for key in verified.event_type.ancestors)
    if verified.network is not None:
        yield verified.network.owner

"""Who can do what with a type right now, through which chain and until when; and the chain that a client needs.

Both ask `decide()` with the certificates that the domain knows, so that they agree with what brokers accept.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from penstock.authority.domain.domain_state import DomainState
from penstock.errors import RefusedError
from penstock.guard import Effect, EventRequest, NetworkRequest, decide
from penstock.guard.capabilities import CapabilitySurvey
from penstock.guard.decision import Decision, Request
from penstock.guard.restriction import Branch
from penstock.model.names import NetworkName
from penstock.model.principals import Principal
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Certificate
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import VerifiedType
from penstock.trust.validity import Validity

TYPE_RIGHTS: Final = tuple(right for right in Right if not right.on_network)
"""The rights on event types."""


@dataclass(frozen=True, slots=True)
class TypeHolder:
    """A right of a principal on a type: what it permits, and the certificates that lead from the owner to the holder.

    The owner itself has every right through no certificate.
    """

    holder: Principal
    right: Right
    branch: Branch
    chain: tuple[Certificate, ...]

    @property
    def validity(self) -> Validity:
        """When the chain is valid."""
        return self.branch.when.validity


@dataclass(frozen=True, slots=True)
class TypeHolders:
    """All holders of rights on a type at one time. `truncated` says that more were found than are followed."""

    type: VerifiedType
    now: datetime
    holders: tuple[TypeHolder, ...]
    truncated: bool = False


def holders(
    state: DomainState, verified: VerifiedType, now: datetime, rights: Iterable[Right] = TYPE_RIGHTS
) -> TypeHolders:
    """Return who holds which of these rights on a type now, by the certificates that the domain knows."""
    credentials = state.credentials
    by_id = {certificate.id: certificate for certificate in credentials}
    survey = CapabilitySurvey(credentials, state.online, limits=state.limits, now=now)
    found: list[TypeHolder] = []
    truncated = False
    for right in rights:
        owner = verified.event_type.name.owner
        for principal in survey.candidates(EventRequest(owner, right, verified, now)):
            request = EventRequest(principal, right, verified, now)
            decision = decide(request, (survey,))
            truncated |= any(problem.code == "guard.truncated" for problem in decision.errors)
            for branch in decision.restriction.branches:
                # Chains that permit the same are one branch, and are listed one by one.
                apart = [one for one in survey.rule(request).branches if set(one.because) <= set(branch.because)]
                for one in apart or [branch]:
                    chain = tuple(by_id[id_] for id_ in one.because if id_ in by_id)
                    # Its successor is listed.
                    if any(certificate.id in state.renewed for certificate in chain):
                        continue
                    found.append(TypeHolder(principal, right, branch, chain))
    return TypeHolders(verified, now, tuple(found), truncated)


# ----------------------------------------------------------------------------------------------------------------------
# Chain completion (paper 5, section 6.5.1): a client asks for the certificates that lead from the owner to it.


@dataclass(frozen=True, slots=True)
class CompletedChain:
    """The best chain for a request: the certificates that a client presents, and when they are valid."""

    credentials: Credentials
    branch: Branch
    #: how many other chains there are
    others: int = 0


def complete(
    state: DomainState, principal: Principal, right: Right, about: VerifiedType | NetworkName, now: datetime
) -> CompletedChain:
    """Return the chain that is valid longest, and among those the shortest, for a principal's right on a type or
    network.

    Raises `RefusedError` (`acs.no-chain`) if the certificates that the domain knows do not permit it.
    """
    request: Request = (
        NetworkRequest(principal, right, about, now)
        if isinstance(about, NetworkName)
        else EventRequest(principal, right, about, now)
    )
    decision = decide(request, (state.authority(),))
    if decision.effect is not Effect.PERMIT:
        raise RefusedError(
            "acs.no-chain",
            f"no chain of certificates gives {principal.short} the right `{right}`: {_why(decision)}",
            hint="ask the administrator of your domain; `penstock acs holders TYPE` shows who has rights",
        )
    chains = sorted(state.authority().rule(request).branches, key=_preference)
    for branch in chains:
        bag = _bag(state.credentials, branch.because)
        if decide(request, (replace(state.authority(), credentials=bag),)).effect is Effect.PERMIT:
            return CompletedChain(bag, branch, len(chains) - 1)
    # Publishing on a topic needs chains for the topics above it too.
    return CompletedChain(_bag(state.credentials, decision.because), decision.restriction.branches[0], 0)


def _preference(branch: Branch) -> tuple[bytes, int, Sequence[str]]:
    """Sort the branches that are valid longest first, then the shortest."""
    # A later end has the smaller complement; without an end it is `\xff`.
    end = bytes(0xFF - byte for byte in branch.when.validity.end.ljust(32, b"\0"))
    return end, len(branch.because), branch.because


def _bag(credentials: Credentials, because: Iterable[str]) -> Credentials:
    by_id = {certificate.id: certificate for certificate in credentials}
    # In the order of the chain, from the owner to the holder, which is not that in which the domain got them.
    certificates = tuple(by_id[id_] for id_ in dict.fromkeys(because) if id_ in by_id)
    # Quorums that certificates name by their hash are known from the bag only. They are few.
    return Credentials(certificates, credentials.quorums)


def _why(decision: Decision) -> str:
    return decision.errors[0].message if decision.errors else "none leads from the owner to it"

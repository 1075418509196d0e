"""Provide policies with a requester's attributes: its domain, its roles, and its rights (an information port).

Roles and rights come from certificates, which have dates. For one moment those count that are valid then. A question
about all times is asked once for each period in which the same of them are.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from penstock.errors import LimitError
from penstock.guard.capabilities import NamedRole
from penstock.guard.decision import Authority, EventRequest
from penstock.guard.limits import AGREED_BRANCHES
from penstock.model.domains import Domain
from penstock.model.principals import Principal
from penstock.policy.language.event_attributes import (
    SUBJECT_OWNER_ROLE,
    SUBJECT_RIGHT,
    SUBJECT_ROLE,
    action_facts,
    subject_facts,
    type_facts,
)
from penstock.policy.language.requests import Facts
from penstock.trust.capabilities import Right
from penstock.trust.validity import ALWAYS, Validity

_INSTANT: Final = timedelta(microseconds=1)
_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)


class Certified(Authority, Protocol):
    """Certificates as a source of authority: rights, and names that they give."""

    def roles(self, request: EventRequest, /) -> tuple[NamedRole, ...]:
        """Return the names that certificates give to who asks."""


@dataclass(frozen=True, slots=True)
class SubjectFacts:
    """Facts for a request in a period, and the certificates that they depend on."""

    period: Validity
    facts: Facts
    because: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Right:
    """A right that somebody has, while certificates say so."""

    name: str
    validity: Validity
    because: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Subjects:
    """See the module. `asked` has the ids of the attributes that policies ask for: nothing else is looked up."""

    certified: Certified
    domains: tuple[Domain, ...]
    asked: frozenset[str]

    def known(self, request: EventRequest) -> Iterator[SubjectFacts]:
        """Yield the facts: once for a moment, or by periods for all times. Raises `LimitError` (`guard.periods`)."""
        roles = self.certified.roles(request) if self.asked & {SUBJECT_ROLE, SUBJECT_OWNER_ROLE} else ()
        rights = tuple(self._rights(request)) if SUBJECT_RIGHT in self.asked else ()
        event_type, principal = request.type.event_type, request.principal
        owner = event_type.name.owner
        about = {**type_facts(event_type, self._homes(owner)), **action_facts(request.action)}
        dated: tuple[NamedRole | _Right, ...] = (*roles, *rights)
        for period in periods((one.validity for one in dated), request.now):
            held = [role for role in roles if _holds(role.validity, period, request.now)]
            may = [right for right in rights if _holds(right.validity, period, request.now)]
            valid: tuple[NamedRole | _Right, ...] = (*held, *may)
            subject = subject_facts(
                principal,
                domain=self._homes(principal),
                role=dict.fromkeys(f"{role.issuer}/{role.name}" for role in held),
                owner_role=dict.fromkeys(role.name for role in held if role.issuer == owner),
                right=dict.fromkeys(right.name for right in may),
            )
            because = tuple(dict.fromkeys(certificate for one in valid for certificate in one.because))
            yield SubjectFacts(period, {**subject, **about}, because)

    def _homes(self, principal: Principal) -> tuple[str, ...]:
        return tuple(part.name for domain in self.domains for part in domain.line(principal))

    def _rights(self, request: EventRequest) -> Iterator[_Right]:
        """Yield the rights on the type that nothing is left to be asked about."""
        for right in Right:
            if not right.on_network:
                ruling = self.certified.rule(replace(request, action=right))
                for branch in ruling.branches:
                    if branch.action is right and branch.unconditional:
                        yield _Right(str(right), branch.when.validity, branch.because)


def _holds(validity: Validity, period: Validity, now: datetime | None) -> bool:
    return validity.covers(period) if now is None else validity.contains(now)


def periods(validities: Iterable[Validity], now: datetime | None) -> Iterator[Validity]:
    """Yield periods, one after the other, within which the same validities hold; for one moment a single one.

    Raises `LimitError` (`guard.periods`) where they are too many.
    """
    if now is not None:
        yield ALWAYS
        return
    starts: set[datetime] = set()
    for validity in validities:
        if validity.starts is not None and validity.starts > _FIRST:
            starts.add(validity.starts)
        if validity.ends is not None and validity.ends < _LAST:
            starts.add(validity.ends + _INSTANT)
    if len(starts) >= AGREED_BRANCHES:
        raise LimitError("guard.periods", "roles and rights change too often to distinguish them by time")
    before: datetime | None = None
    for start in sorted(starts):
        yield Validity.between(before, start - _INSTANT)
        before = start
    yield ALWAYS if before is None else Validity.between(before)

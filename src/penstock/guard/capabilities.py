"""Capabilities as a source of authority: chains of certificates from the owner to the principal (paper 5)."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from penstock.errors import LimitError, PenstockError
from penstock.guard.decision import DecisionProblem, EventRequest, NetworkRequest, Request, Ruling
from penstock.guard.environment import environment_schema
from penstock.guard.restriction import Branch, TypeScope, When, check_forced, force
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.model.values import Schema
from penstock.selector import conjunction
from penstock.trust.capabilities import network_request, read_terms, type_request
from penstock.trust.credentials import Credentials
from penstock.trust.discovery import (
    NO_ENDS,
    Evidence,
    Findings,
    FiveTuple,
    NameTable,
    OnlineChecker,
    OnlineHistory,
    follow,
    follow_all,
    no_online_checker,
    sift,
)
from penstock.trust.event_types import VerifiedType
from penstock.trust.explain import AuthorityQuestion, Explanation, explain
from penstock.trust.limits import TRUST_LIMITS, TrustLimits
from penstock.trust.policy_state import Revocations
from penstock.trust.tags import Set, Tag
from penstock.trust.validity import Validity


@dataclass(frozen=True, slots=True)
class NamedRole:
    """A name that a principal has, according to its issuer, while certificates say so."""

    issuer: Principal
    name: str
    validity: Validity
    because: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CapabilityAuthority:
    """A source of authority based on a bag of verified credentials.

    `environment` lists the facts that dynamic conditions can use. A right with a condition on anything else grants
    nothing.
    """

    credentials: Credentials
    online: OnlineChecker = no_online_checker
    environment: Schema = field(default_factory=environment_schema)
    limits: TrustLimits = TRUST_LIMITS
    #: the revocation times of revoked credentials, by id
    ends: Mapping[str, Validity] = field(default_factory=lambda: NO_ENDS)
    #: when on-line tests held, for decisions about all times
    history: OnlineHistory | None = None

    def rule(self, request: Request) -> Ruling:
        """Return a branch for each chain that leads from the owner to the principal. Raises `LimitError`."""
        question = self.question(request)
        findings = self._find(question)
        apart = [replace(grant, tag=tag) for grant in findings.grants for tag in _alternatives(grant.tag)]
        # A grant may be narrower than what was asked: `(manage add)` does not answer `(manage)`.
        granted = [grant for grant in apart if _answers(grant.tag, question.request)]
        kept = granted[: self.limits.grants_per_principal]
        problems: list[DecisionProblem] = []
        if findings.truncated or len(kept) < len(granted):
            problems.append(
                DecisionProblem("guard.truncated", "more grants were found than are kept; some are left out")
            )
        if isinstance(request, NetworkRequest):
            branches = tuple(_network_branch(request, grant) for grant in kept if grant.tag == question.request)
            return Ruling(branches, tuple(problems))
        return Ruling(tuple(self._branches(request, kept, problems)), tuple(problems))

    def question(self, request: Request) -> AuthorityQuestion:
        """Return the request as a question about certificates, which can be explained."""
        evidence = sift(self.credentials, request.now, self.online, self.ends, self.history)
        return AuthorityQuestion(self.credentials, evidence, _root(request), request.principal, _asked(request))

    def _find(self, question: AuthorityQuestion) -> Findings:
        return follow(question.evidence, question.root, question.principal, question.request, limits=self.limits)

    def explain(self, request: Request) -> Explanation:
        """Explain why a request is allowed or not, by certificates alone."""
        return explain(self.question(request))

    def roles(self, request: EventRequest) -> tuple[NamedRole, ...]:
        """Return the names that certificates give to the requester, ordered by issuer and name.

        Raises `LimitError` (`chain.limit`) where there are more than are followed: half of them may mean anything.
        """
        evidence = sift(self.credentials, request.now, self.online, self.ends, self.history)
        names = NameTable(evidence.fours, limits=self.limits)
        if names.truncated:
            raise LimitError("chain.limit", "more names are given by certificates than are followed")
        held = names.held(request.principal)
        found = (
            NamedRole(issuer, name.decode("utf-8", "replace"), way.validity, way.because) for issuer, name, way in held
        )
        return tuple(sorted(found, key=lambda role: (role.issuer, role.name, role.because)))

    def _branches(
        self, request: EventRequest, grants: Iterable[FiveTuple], problems: list[DecisionProblem]
    ) -> Iterator[Branch]:
        for grant in grants:
            try:
                branch = _event_branch(request, grant)
                self._check(branch, request.type.event_type)
            except PenstockError as error:
                source = grant.because[-1] if grant.because else ""
                problems.append(DecisionProblem(error.code, error.message, source))
            else:
                yield branch

    def _check(self, branch: Branch, event_type: EventType) -> None:
        """Check a branch against the type and the environment, so that one that cannot be enforced harms no other."""
        schema: Schema = {str(attribute.id): attribute.spec for attribute in event_type.attributes}
        check_forced(branch, event_type)
        # Section 5.2.2: an attribute need not exist in this version. It is then null.
        branch.holds_where().check(schema, missing="null")
        branch.when.condition.check(self.environment)


@dataclass(frozen=True, slots=True)
class CapabilitySurvey(CapabilityAuthority):
    """A source of authority that is asked about many principals at one time: it reduces each request once for all.

    It gives the same rulings as `CapabilityAuthority`.
    """

    now: datetime = field(kw_only=True)
    _evidence: list[Evidence] = field(default_factory=list, init=False, repr=False, compare=False)
    _found: dict[tuple[Principal, Tag], Mapping[Principal, Findings]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def question(self, request: Request) -> AuthorityQuestion:
        """Return the request as a question. Raises `ValueError` if it is about another time."""
        if request.now != self.now:
            raise ValueError("a survey is about one time")
        if not self._evidence:
            self._evidence.append(sift(self.credentials, self.now, self.online, self.ends, self.history))
        return AuthorityQuestion(
            self.credentials, self._evidence[0], _root(request), request.principal, _asked(request)
        )

    def candidates(self, request: Request) -> tuple[Principal, ...]:
        """Return the principals that a chain leads to, whatever else their rulings need."""
        return tuple(self._all(self.question(request)))

    def _find(self, question: AuthorityQuestion) -> Findings:
        found = self._all(question)
        # The root itself has the whole request.
        return found.get(question.principal) or replace(found[question.root], grants=())

    def _all(self, question: AuthorityQuestion) -> Mapping[Principal, Findings]:
        key = (question.root, question.request)
        if key not in self._found:
            self._found[key] = follow_all(question.evidence, question.root, question.request, limits=self.limits)
        return self._found[key]


def _root(request: Request) -> Principal:
    return request.network.owner if isinstance(request, NetworkRequest) else request.type.event_type.name.owner


def _asked(request: Request) -> Tag:
    if isinstance(request, NetworkRequest):
        return network_request(request.network, request.action)
    return type_request(request.type.event_type.name, request.action)


def _alternatives(tag: Tag) -> Iterator[Tag]:
    """Yield the rights of a certificate that grants several; each is a separate branch."""
    if isinstance(tag, Set):
        yield from sorted(tag.members(), key=repr)
    else:
        yield tag


def _answers(tag: Tag, request: Tag) -> bool:
    return isinstance(tag, tuple) and isinstance(request, tuple) and tag[: len(request)] == request


def _event_branch(request: EventRequest, grant: FiveTuple) -> Branch:
    event_type = request.type.event_type
    name = event_type.name
    terms = read_terms(grant.tag, event_type)
    return Branch(
        action=request.action,
        types=TypeScope((str(name.owner).encode(), name.name.encode(), name.version.encode())),
        attributes=terms.attributes,
        forced=force(terms.forced),
        where=conjunction(*terms.where),
        when=When(grant.validity, conjunction(*terms.when)),
        source=terms.source,
        because=grant.because,
    )


def _network_branch(request: NetworkRequest, grant: FiveTuple) -> Branch:
    return Branch(action=request.action, attributes=frozenset(), when=When(grant.validity), because=grant.because)


# ----------------------------------------------------------------------------------------------------------------------
# Capabilities as a source of authority, without revoked certificates. Clients' own certificates are checked too.
#
# If the revocation time is known, a certificate is valid until then. History is decided this way.


@dataclass(frozen=True, slots=True)
class Revoking:
    """A source of authority without revoked certificates; nothing for a type that depends on one."""

    authority: CapabilityAuthority
    revocations: Revocations

    def rule(self, request: Request) -> Ruling:
        """Return the ruling. Raises errors of the authority."""
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

    def roles(self, request: EventRequest) -> tuple[NamedRole, ...]:
        """Return the requester's names by certificates, without revoked ones."""
        return self._without_revoked(request.type.event_type.name.owner).roles(request)

    def _without_revoked(self, root: Principal) -> CapabilityAuthority:
        known = self.authority.credentials
        left = self.revocations.strike(known, root)
        ends = self.revocations.ends(left, root)
        return self.authority if left is known and not ends else replace(self.authority, credentials=left, ends=ends)


def _of_no_type(verified: VerifiedType) -> Ruling:
    problem = DecisionProblem("cert.revoked", "the event type depends on a revoked certificate", verified.id)
    return Ruling(problems=(problem,))


def _until(ruling: Ruling, when: When) -> Ruling:
    """Return the ruling, limited to the type's validity."""
    found = ((branch, branch.when.intersect(when)) for branch in ruling.branches)
    return replace(ruling, branches=tuple(replace(branch, when=left) for branch, left in found if left is not None))


def _line(verified: VerifiedType) -> Iterator[Principal]:
    """Yield the principals that a type depends on: its owner, its ancestors' owners, and the network's."""
    yield verified.event_type.name.owner
    yield from (key.owner for key in verified.event_type.ancestors)
    if verified.network is not None:
        yield verified.network.owner

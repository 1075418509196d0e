"""The state of a domain, and which changes a request leads to. Nothing here reads a clock, a file or a socket.

`plan` answers a request with changes, without making them:

(1) The request was not applied already. (2) The caller may make it: `decide()` says so, by the certificates that the
domain knows, about the network `DOMAIN/NAME`. (3) The request is possible in this state. (4) The domain may pass on
what it issues: it owns the resource, or a chain of certificates that it received leads to it.

`DomainState.apply` makes a change. It checks again what (3) and (4) checked by signatures and ids, so that a ledger
cannot contain a change that no request leads to.

| request | right on the domain's network |
|---|---|
| add and remove members, issue, renew and revoke certificates | `administer` |
| register certificates of others | `administer`; with `connect` those that the caller issued |
"""

import heapq
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Annotated, ClassVar, Final, TypeAlias

from penstock.authority.domain.domain_changes import (
    AddMember,
    DomainChange,
    DomainOperation,
    DomainRecord,
    FoundDomain,
    MemberKind,
    RecordIssued,
    RecordStatement,
    RegisterCertificates,
    RemoveMember,
    RevokeIssued,
    malformed_record,
)
from penstock.authority.domain.role_capabilities import ROLE, RoleCapability
from penstock.authority.limits import AUTHORITY_LIMITS, AuthorityLimits
from penstock.codec.sexp import OMITTED, Form, SExp, canonical
from penstock.crypto import Signer
from penstock.errors import LimitError, MalformedError, RefusedError
from penstock.guard import CapabilityAuthority, NetworkRequest, decide
from penstock.model.names import NetworkName
from penstock.model.principals import Domain, Principal
from penstock.trust.capabilities import EVENT_TYPE, NETWORK, Right, network_tag
from penstock.trust.certificates import Authorisation, Certificate, Statement, Subject, Threshold, issue
from penstock.trust.credentials import Credentials, UnverifiedCredentials, collect_credentials
from penstock.trust.discovery import discover, no_online_checker
from penstock.trust.limits import STATEMENT_BYTES
from penstock.trust.signed import SignedValue
from penstock.trust.statements import (
    ActiveRevocation,
    Heartbeat,
    OneTimeAnswer,
    OneTimeQuestion,
    OnlineKind,
    OnlineTerms,
    Revalidation,
    RevocationList,
    StatementAuthor,
    TimedStatement,
    ValidityClaim,
)
from penstock.trust.tags import Tag
from penstock.trust.validity import ALWAYS, OnlineTest, Validity

#: bytes of successors in a statement, of one id, and of everything else
_STATEMENT_ROOM: Final = 128 << 10
_ID_ROOM: Final = 64
_STATEMENT_REST: Final = 2_048

MEMBER: Final = "member"
"""The purpose of the certificate that every member gets."""


def _read_certificate(value: SExp) -> Certificate:
    found = collect_credentials([value]).verify().certificates
    if len(found) != 1:
        raise malformed_record("not one certificate with its signature")
    return found[0]


CERTIFICATE: Final[Form[Certificate]] = Form(lambda one: (b"sequence", *one.to_sexps()), _read_certificate)
"""How a verified certificate is written in the state. Reading verifies it again."""


@dataclass(frozen=True, slots=True)
class DomainMember(DomainRecord):
    """A member of a domain."""

    HEAD: ClassVar = b"member"
    principal: Principal
    kind: MemberKind
    name: str
    since: datetime


@dataclass(frozen=True, slots=True)
class IssuedCapability(DomainRecord):
    """A certificate that the domain issued, who asked for it, and how it is renewed."""

    HEAD: ClassVar = b"issued"
    certificate: Annotated[Certificate, CERTIFICATE]
    by: Principal
    when: datetime
    lifetime: int | None = None
    until: datetime | None = None
    replaces: str | None = None
    purpose: Annotated[str, OMITTED] = ""
    #: the id of the certificate that was renewed first, if this is a renewal
    origin: str | None = None

    @property
    def id(self) -> str:
        """The id of the certificate."""
        return self.certificate.id

    @property
    def renewal(self) -> datetime | None:
        """When it should be renewed: when a third of its lifetime is left. None if it is not renewed."""
        ends = self.certificate.statement.validity.ends
        if self.lifetime is None or ends is None or (self.until is not None and ends >= self.until):
            return None
        return ends - timedelta(seconds=self.lifetime / 3)


@dataclass(frozen=True, slots=True)
class CapabilityRevocation(DomainRecord):
    """A revoked certificate, and who revoked it when and why."""

    HEAD: ClassVar = b"revoked"
    id: str
    by: Principal
    when: datetime
    why: str


# ----------------------------------------------------------------------------------------------------------------------
# Requests.


@dataclass(frozen=True, slots=True)
class IssueRequest:
    """Issue a certificate. With a lifetime it is short-lived, and renewed until its validity ends."""

    subject: Subject
    tag: Tag
    validity: Validity
    propagate: bool = False
    lifetime: timedelta | None = None
    comment: str = ""
    purpose: str = ""


@dataclass(frozen=True, slots=True)
class RenewRequest:
    """Renew the certificates whose time has come. The service asks for this itself."""


@dataclass(frozen=True, slots=True)
class StatementRequest:
    """Sign the next timed statements that issued certificates need. The service asks for this itself."""

    period: timedelta


@dataclass(frozen=True, slots=True)
class RoleRequest:
    """Issue the capabilities that active roles call for, and revoke those of roles that have ended.

    The service asks for this itself.
    """

    capabilities: tuple[RoleCapability, ...]
    lifetime: timedelta
    #: tests that the certificates need
    online: tuple[OnlineTest, ...] = ()


@dataclass(frozen=True, slots=True)
class RegisterRequest:
    """Register certificates of others, verified already."""

    credentials: Credentials


Operation: TypeAlias = (
    AddMember
    | RemoveMember
    | IssueRequest
    | RenewRequest
    | StatementRequest
    | RoleRequest
    | RegisterRequest
    | RevokeIssued
)
"""What can be asked of a domain."""


@dataclass(frozen=True, slots=True)
class DomainRequest:
    """An operation, and who asks for it. The nonce is unique among the caller's requests."""

    by: Principal
    operation: Operation
    why: str = ""
    nonce: bytes | None = field(default=None, repr=False)


# ----------------------------------------------------------------------------------------------------------------------
# The state.


class DomainState:
    """Everything that a domain keeps. `apply` changes it in place.

    Certificates that have expired are dropped, and so are their revocations. The ledger keeps all.
    """

    def __init__(self, limits: AuthorityLimits = AUTHORITY_LIMITS) -> None:
        self.limits = limits
        self.name = ""
        self.principal: Principal | None = None
        #: the time of the last change
        self.time: datetime | None = None
        self.members: dict[Principal, DomainMember] = {}
        self.issued: dict[str, IssuedCapability] = {}
        #: certificates of others, by id
        self.registered: dict[str, Certificate] = {}
        self.revoked: dict[str, CapabilityRevocation] = {}
        #: the requests that were applied recently, and when
        self.applied: dict[tuple[Principal, bytes], datetime] = {}
        #: ids of certificates that were renewed already
        self.renewed: set[str] = set()
        #: the last validity statement of each kind
        self.statements: dict[bytes, SignedValue[ValidityClaim]] = {}
        self.quorums: dict[Principal, Threshold] = {}
        #: how many changes there were
        self.number = 0
        self._ends: list[tuple[datetime, str]] = []
        self._credentials: Credentials | None = None

    @property
    def network(self) -> NetworkName:
        """The network that rights to administer and audit the domain are about. Raises as `begun`."""
        return NetworkName(self.begun(), self.name)

    def begun(self) -> Principal:
        """Return the principal of the domain. Raises `RefusedError` (`acs.no-domain`)."""
        if self.principal is None:
            raise RefusedError(
                "acs.no-domain", "there is no domain in this ledger", hint="`penstock acs serve` begins one"
            )
        return self.principal

    @property
    def domain(self) -> Domain:
        """The domain as brokers and policies know it."""
        by_kind: dict[MemberKind, list[DomainMember]] = {kind: [] for kind in MemberKind}
        for member in self.members.values():
            by_kind[member.kind].append(member)
        return Domain(
            self.name,
            self.begun(),
            tuple(member.principal for member in by_kind[MemberKind.BROKER]),
            tuple(member.principal for member in by_kind[MemberKind.CLIENT]),
            tuple(Domain(member.name, member.principal) for member in by_kind[MemberKind.SUBDOMAIN]),
        )

    @property
    def credentials(self) -> Credentials:
        """All certificates that count: issued and registered, without revoked ones."""
        if self._credentials is None:
            known = {one.id: one.certificate for one in self.issued.values()} | self.registered
            self._credentials = Credentials(
                tuple(certificate for id_, certificate in known.items() if id_ not in self.revoked),
                tuple(self.quorums.values()),
            )
        return self._credentials

    def authority(self) -> CapabilityAuthority:
        """Return the certificates that count as a source of authority."""
        return CapabilityAuthority(self.credentials, self.online, limits=self.limits)

    def online(self, test: OnlineTest, certificate: str, now: datetime) -> Validity:
        """Answer an on-line test that the domain itself answers: its certificate was not revoked.

        Raises `RefusedError` (`cert.online-test`) for tests that others answer, and for revoked certificates.
        """
        mine = certificate in self.issued and certificate not in self.revoked
        if mine and OnlineTerms.of(test).signer == self.principal:
            return ALWAYS
        return no_online_checker(test, certificate, now)

    def require(self, caller: Principal, right: Right, now: datetime) -> None:
        """Raise `RefusedError` (`acs.not-permitted`) unless `decide()` permits the caller this right on the domain."""
        if not self.permits(caller, right, now):
            raise RefusedError(
                "acs.not-permitted",
                f"{caller.short} does not have the right `{right}` on the domain `{self.name}`",
                hint=f"let an administrator grant it: penstock acs issue --to WHO --network DOMAIN/{self.name}"
                f" --right {right}",
            )

    def permits(self, caller: Principal, right: Right, now: datetime) -> bool:
        """Return whether `decide()` permits the caller this right on the domain."""
        decision = decide(NetworkRequest(caller, right, self.network, now), (self.authority(),))
        return decision.effect == "permit"

    def tests(self) -> set[str]:
        """Return the kinds of on-line tests that issued certificates need."""
        return {test.kind for one in self.issued.values() for test in one.certificate.statement.validity.online}

    def interval(self) -> timedelta | None:
        """Return the shortest interval of heartbeats that an issued certificate needs; None if none needs any."""
        tests = (test for one in self.issued.values() for test in one.certificate.statement.validity.online)
        pauses = (OnlineTerms.of(test).pause for test in tests if test.kind == OnlineKind.ACTIVE)
        return min((pause for pause in pauses if pause is not None), default=None)

    def needing(self, kind: OnlineKind, ids: Iterable[str]) -> set[str]:
        """Return which certificates need statements of a kind: lists are bounded, and the others are not in them."""
        issued = self.issued
        return {
            id_
            for id_ in ids
            if id_ not in issued or any(test.kind == kind for test in issued[id_].certificate.statement.validity.online)
        }

    def author(self, signer: Signer) -> StatementAuthor:
        """Return the author of validity statements, who goes on after the last recorded ones."""
        author = StatementAuthor(signer)
        author.resume(self.statements.values())
        return author

    def heartbeat(self, now: datetime, period: timedelta, signer: Signer) -> SignedValue[Heartbeat]:
        """Sign a heartbeat: all active revocations until now are those that were recorded."""
        return self.author(signer).heartbeat(now, period)

    def answer(
        self, question: OneTimeQuestion, caller: Principal, now: datetime, signer: Signer
    ) -> SignedValue[OneTimeAnswer]:
        """Answer whether a certificate is valid now, to the verifier that asks.

        Raises `RefusedError`: `acs.not-permitted` for another verifier, `acs.not-issued` for a certificate that the
        domain has not issued.
        """
        if question.verifier != caller:
            raise RefusedError("acs.not-permitted", "a verifier asks its own one-time questions")
        if question.issuer != self.begun() or question.certificate not in self.issued:
            raise not_issued(question.certificate)
        revoked, renewed = question.certificate in self.revoked, question.certificate in self.renewed
        last = [id_ for id_ in self.renewals([question.certificate]) if self._renewable(id_)] if renewed else []
        successors = unverified(Credentials.of(*(self.issued[id_].certificate for id_ in last)))
        return self.author(signer).answer(question, now, revoked=revoked, successors=successors)

    def due(self, now: datetime) -> Iterator[IssuedCapability]:
        """Yield the certificates that should be renewed now."""
        for one in self.issued.values():
            renewal = one.renewal
            if renewal is not None and renewal <= now and self._renewable(one.id):
                yield one

    def next_renewal(self) -> datetime | None:
        """Return when the next certificate should be renewed."""
        times = (one.renewal for one in self.issued.values() if self._renewable(one.id))
        return min((time for time in times if time is not None), default=None)

    def renewals(self, ids: Iterable[str]) -> tuple[str, ...]:
        """Return the ids of certificates and of their renewals, as far as they have not expired.

        Raises `RefusedError` (`acs.not-issued`) if there are none for one of them.
        """
        origins = {id_: id_ if id_ not in self.issued else self.issued[id_].origin or id_ for id_ in ids}
        found: dict[str, list[str]] = {origin: [] for origin in origins.values()}
        for one in self.issued.values():
            if (origin := one.origin or one.id) in found:
                found[origin].append(one.id)
        for id_, origin in origins.items():
            if not found[origin]:
                raise not_issued(id_)
        return tuple(id_ for family in found.values() for id_ in family)

    def successors(self, kind: str, room: int, new: tuple[RecordIssued, ...] = ()) -> UnverifiedCredentials:
        """Return the last renewals of certificates with such an on-line test, for a statement of that kind.

        They have so many bytes at most, and the latest ones go first. `new` are renewals that are not recorded yet.
        """
        over = {one.replaces for one in new}
        old = (
            (b"sequence", *one.certificate.to_sexps())
            for one in reversed(self.issued.values())
            if one.replaces is not None
            and one.id not in over
            and self._renewable(one.id)
            and any(test.kind == kind for test in one.certificate.statement.validity.online)
        )
        chosen: list[SExp] = []
        for value in (*(one.certificate.to_sexp() for one in new), *old):
            room -= len(canonical(value))
            if room < 0:
                break
            chosen.append(value)
        return collect_credentials(chosen)

    def _renewable(self, id_: str) -> bool:
        return id_ not in self.renewed and id_ not in self.revoked

    # --- changes --------------------------------------------------------------------------------------------------

    def apply(self, change: DomainChange) -> None:
        """Make a change. Raises `RefusedError` and `MalformedError` if it cannot follow from this state."""
        if self.principal is None:
            if not isinstance(change.change, FoundDomain) or change.by != change.domain:
                raise malformed_record("a domain begins with its founding")
            NetworkName(change.domain, change.change.name)
            self.principal, self.name = change.domain, change.change.name
        elif change.domain != self.principal:
            raise malformed_record("a change of another domain")
        self._check(change)
        self.time, self.number = change.time, self.number + 1
        self._credentials = None
        if change.nonce is not None:
            self.applied[change.by, change.nonce] = change.time
        match change.change:
            case AddMember(principal, kind, name):
                self.members[principal] = DomainMember(principal, kind, name, change.time)
            case RemoveMember(principal):
                del self.members[principal]
            case RegisterCertificates(bag):
                for certificate in bag.verify().certificates:
                    self.registered[certificate.id] = certificate
                    self._expire(certificate)
                self.quorums |= {quorum.principal: quorum for quorum in bag.quorums}
            case RecordIssued() as recorded:
                self._record(recorded, change)
            case RecordStatement(unverified):
                signed = unverified.verify()
                if signed.value.issuer != self.principal:
                    raise malformed_record("a validity statement of another principal")
                self.statements[signed.value.HEAD] = signed
            case RevokeIssued(ids):
                for id_ in ids:
                    self.revoked[id_] = CapabilityRevocation(id_, change.by, change.time, change.why)
        self._forget(change.time)

    def _check(self, change: DomainChange) -> None:
        if change.nonce is not None and (change.by, change.nonce) in self.applied:
            raise repeated(change.by)
        if self.time is not None and change.time < self.time:
            raise malformed_record("a change is older than the one before it")
        match change.change:
            case FoundDomain() if self.time is not None:
                raise RefusedError("acs.domain-exists", "the domain has begun already")
            case AddMember() as adding:
                self.check_member(adding)
            case RemoveMember(principal) if principal not in self.members:
                raise unknown_member(principal)
            case RegisterCertificates(bag):
                self.check_registered(bag)
            case RevokeIssued(ids):
                for id_ in ids:
                    if id_ not in self.issued:
                        raise not_issued(id_)

    def check_member(self, adding: AddMember) -> None:
        """Raise if a member cannot be added."""
        check_domain_name(adding.name, self.limits)
        if adding.principal in self.members or adding.principal == self.principal:
            raise RefusedError(
                "acs.member-exists",
                f"{adding.principal.short} is a member already",
                hint="remove it first to give it another kind or name",
            )
        if any(member.name == adding.name for member in self.members.values()):
            raise RefusedError("acs.member-exists", f"another member is called `{adding.name}`")
        if len(self.members) >= self.limits.domain_members:
            raise LimitError("acs.limit", f"a domain has at most {self.limits.domain_members} members")
        kinds = {member.kind for member in self.members.values()}
        # Paper 5, sections 3.2.1 and 5.1.4: a domain is a group of brokers with their clients, or of sub-domains.
        if kinds and (MemberKind.SUBDOMAIN in kinds) is not (adding.kind is MemberKind.SUBDOMAIN):
            raise RefusedError(
                "domain.mixed",
                f"a domain has sub-domains, or brokers and clients; `{self.name}` has {', '.join(sorted(kinds))}",
                hint="put brokers and clients into a sub-domain of their own",
            )

    def check_registered(self, bag: UnverifiedCredentials) -> None:
        """Raise if certificates cannot be registered."""
        if not bag.certificates and not bag.quorums:
            raise MalformedError("acs.nothing", "there is no certificate to register")
        if len(bag.certificates) > self.limits.domain_batch:
            raise LimitError("acs.limit", f"at most {self.limits.domain_batch} certificates can be registered together")
        if len(self.registered) + len(self.issued) + len(bag.certificates) > self.limits.domain_certificates:
            raise LimitError("acs.limit", f"a domain keeps at most {self.limits.domain_certificates} certificates")
        for certificate in bag.certificates:
            if certificate.statement.issuer == self.principal and certificate.id not in self.issued:
                raise RefusedError(
                    "acs.own-certificate",
                    "a certificate of the domain itself that its service has not issued",
                    hint="issue it with `penstock acs issue`, so that the service can revoke it",
                )

    def _record(self, recorded: RecordIssued, change: DomainChange) -> None:
        [certificate] = recorded.certificate.verify().certificates
        if certificate.statement.issuer != self.principal:
            raise malformed_record("a certificate that the domain has not issued")
        if certificate.id in self.revoked:
            raise malformed_record("a certificate that was revoked cannot be issued again")
        if recorded.replaces is not None:
            self.renewed.add(recorded.replaces)
        before = self.issued.get(recorded.replaces or "")
        self.issued[certificate.id] = IssuedCapability(
            certificate,
            change.by,
            change.time,
            recorded.lifetime,
            recorded.until,
            recorded.replaces,
            recorded.purpose,
            recorded.replaces if before is None or before.origin is None else before.origin,
        )
        self._expire(certificate)

    def restore(self) -> None:
        """Compute what follows from the rest, after a state was read."""
        self._credentials, self._ends = None, []
        for certificate in (*(one.certificate for one in self.issued.values()), *self.registered.values()):
            self._expire(certificate)

    def _expire(self, certificate: Certificate) -> None:
        ends = certificate.statement.validity.ends
        if ends is not None:
            heapq.heappush(self._ends, (ends, certificate.id))

    def _forget(self, now: datetime) -> None:
        """Drop certificates that have expired, and requests that are too old to be repeated."""
        while self._ends and self._ends[0][0] < now:
            _, id_ = heapq.heappop(self._ends)
            self.issued.pop(id_, None)
            self.registered.pop(id_, None)
            self.revoked.pop(id_, None)
            self.renewed.discard(id_)
        # A request can be signed this long before or after the service's clock.
        oldest = now - timedelta(seconds=2 * self.limits.domain_request_age)
        while self.applied and next(iter(self.applied.values())) < oldest:
            del self.applied[next(iter(self.applied))]


# ----------------------------------------------------------------------------------------------------------------------
# Plans.


def plan(state: DomainState, request: DomainRequest, now: datetime, signer: Signer) -> tuple[DomainOperation, ...]:
    """Return the changes that a request leads to now. See the module for the order of the checks.

    Raises `RefusedError`: `acs.repeated`, `acs.not-permitted`, `acs.member-exists`, `acs.unknown-member`,
    `acs.no-authority`, `acs.not-issued`, `acs.own-certificate`, `domain.mixed`; `MalformedError` (`acs.nothing`,
    `acs.name`, `acs.lifetime`, `acs.no-owner`); `LimitError` (`acs.limit`).
    """
    # (1) A request that was captured or sent again has no effect.
    if request.nonce is not None and (request.by, request.nonce) in state.applied:
        raise repeated(request.by)
    operation = request.operation
    # (2) The caller may make it.
    if isinstance(operation, RegisterRequest) and not state.permits(request.by, Right.ADMINISTER, now):
        state.require(request.by, Right.CONNECT, now)
        known = (*state.issued, *state.registered)
        if any(one.statement.issuer != request.by and one.id not in known for one in operation.credentials):
            state.require(request.by, Right.ADMINISTER, now)
    elif request.by != state.begun():
        state.require(request.by, Right.ADMINISTER, now)
    # (3), (4) It is possible.
    match operation:
        case AddMember(principal, _, _):
            state.check_member(operation)
            return (operation, *_issued(state, _membership(state, principal, now), now, signer))
        case RemoveMember(principal):
            if principal not in state.members:
                raise unknown_member(principal)
            held = tuple(
                one.id
                for one in state.issued.values()
                if one.certificate.statement.subject == principal and one.id not in state.revoked
            )
            return (operation, *(_revoked(state, held, now, signer) if held else ()))
        case IssueRequest():
            _check_authority(state, operation.tag, now)
            return _issued(state, operation, now, signer)
        case RenewRequest():
            return _renew(state, now, signer)
        case StatementRequest(period):
            return tuple(_stated(state, period, now, signer))
        case RoleRequest():
            return _of_roles(state, operation, now, signer)
        case RegisterRequest(credentials):
            return _registered(state, credentials)
        case RevokeIssued(ids):
            # Whoever revokes a certificate means its renewals too, and may have the first one only.
            left = tuple(id_ for id_ in state.renewals(ids) if id_ not in state.revoked)
            return _revoked(state, left, now, signer) if left else ()


def _membership(state: DomainState, member: Principal, now: datetime) -> IssueRequest:
    """Return the certificate of a member: it may use the service, and register what it issued."""
    tag = network_tag(state.begun(), state.name, [Right.CONNECT])
    # The number tells it from an earlier one that was revoked in the same second.
    comment = f"member of {state.name}, change {state.number + 1}"
    return IssueRequest(member, tag, Validity.between(now), comment=comment, purpose=MEMBER)


def _issued(state: DomainState, asked: IssueRequest, now: datetime, signer: Signer) -> tuple[RecordIssued, ...]:
    validity, lifetime, until = asked.validity, None, None
    if asked.lifetime is not None:
        lifetime, until = int(asked.lifetime.total_seconds()), validity.ends
        if lifetime < state.limits.domain_shortest or asked.lifetime.microseconds:
            raise MalformedError(
                "acs.lifetime",
                f"a lifetime is {state.limits.domain_shortest} whole seconds or more",
                hint="shorter ones would end before their renewal arrives",
            )
        validity = _period(max(now, validity.starts or now), lifetime, until, validity)
    elif validity.ends is not None and validity.ends < now:
        raise MalformedError("acs.lifetime", "the certificate would have expired already")
    statement = Authorisation(state.begun(), asked.subject, asked.tag, asked.propagate, validity, asked.comment)
    if len(state.registered) + len(state.issued) >= state.limits.domain_certificates:
        raise LimitError("acs.limit", f"a domain keeps at most {state.limits.domain_certificates} certificates")
    recorded = _sign(statement, signer)
    [certificate] = recorded.certificates
    if certificate.id in state.revoked:
        raise RefusedError("acs.revoked", "exactly this certificate was revoked", hint="give it another period")
    if certificate.id in state.issued:
        return ()
    return (RecordIssued(recorded, lifetime, until, None, asked.purpose),)


def _renew(state: DomainState, now: datetime, signer: Signer) -> tuple[RecordIssued | RecordStatement, ...]:
    """Renew what is due. Verifiers of active revocations hear of the successors immediately."""
    made = tuple(_renewed(one, now, signer) for one in state.due(now))
    active = tuple(one for one in made if _has_test(one, OnlineKind.ACTIVE))
    if not active:
        return made
    ids = state.needing(OnlineKind.ACTIVE, state.revoked)
    signed = state.author(signer).revoke(now, ids, state.successors(OnlineKind.ACTIVE, _room(ids), active))
    return (*made, RecordStatement(signed.unverified()))


def _has_test(recorded: RecordIssued, kind: str) -> bool:
    [certificate] = recorded.certificate.certificates
    return any(test.kind == kind for test in certificate.statement.validity.online)


def _room(ids: Collection[str]) -> int:
    """Return how many bytes of successors fit into a statement beside ids of certificates."""
    return min(_STATEMENT_ROOM, STATEMENT_BYTES - _STATEMENT_REST - _ID_ROOM * len(ids))


def _renewed(one: IssuedCapability, now: datetime, signer: Signer) -> RecordIssued:
    statement = one.certificate.statement
    validity = _period(now, one.lifetime or 0, one.until, statement.validity)
    return RecordIssued(
        _sign(replace(statement, validity=validity), signer), one.lifetime, one.until, one.id, one.purpose
    )


def _period(begin: datetime, lifetime: int, until: datetime | None, validity: Validity) -> Validity:
    end = begin + timedelta(seconds=lifetime)
    period = Validity.between(begin, end if until is None else min(end, until))
    return replace(period, online=validity.online)


def _sign(statement: Statement, signer: Signer) -> UnverifiedCredentials:
    return unverified(Credentials.of(issue(statement, signer)))


def unverified(credentials: Credentials) -> UnverifiedCredentials:
    """Return credentials as a record holds them."""
    return collect_credentials([credentials.to_sexp()])


def _of_roles(
    state: DomainState, asked: RoleRequest, now: datetime, signer: Signer
) -> tuple[RecordIssued | RevokeIssued | RecordStatement, ...]:
    held = {
        one.purpose: one
        for one in state.issued.values()
        if one.purpose.startswith(ROLE) and one.id not in state.revoked and not _over(one.certificate, now)
    }
    wanted = {one.purpose: one for one in asked.capabilities if one.until is None or one.until > now}
    made: list[RecordIssued | RevokeIssued | RecordStatement] = []
    for purpose, one in wanted.items():
        if purpose not in held and _may_pass_on(state, one.tag, now):
            until = None if one.until is None else one.until.replace(microsecond=0)
            validity = replace(Validity.between(None, until), online=asked.online)
            request = IssueRequest(one.holder, one.tag, validity, lifetime=asked.lifetime, purpose=purpose)
            # The number tells it from an earlier one that was revoked in the same second.
            made += _issued(state, replace(request, comment=f"{purpose}, change {state.number + 1}"), now, signer)
    gone = tuple(
        one.id
        for one in state.issued.values()
        if one.purpose.startswith(ROLE) and one.purpose not in wanted and one.id not in state.revoked
    )
    return (*made, *(_revoked(state, gone, now, signer) if gone else ()))


def _over(certificate: Certificate, now: datetime) -> bool:
    ends = certificate.statement.validity.ends
    return ends is not None and ends < now


def _may_pass_on(state: DomainState, tag: Tag, now: datetime) -> bool:
    try:
        _check_authority(state, tag, now)
    except RefusedError:
        return False
    return True


def _revoked(
    state: DomainState, ids: tuple[str, ...], now: datetime, signer: Signer
) -> tuple[RevokeIssued | RecordStatement, ...]:
    """Return a revocation, with an active one if a certificate needs it: both are recorded together."""
    if OnlineKind.ACTIVE not in state.tests() and ActiveRevocation.HEAD not in state.statements:
        return (RevokeIssued(ids),)
    all_ids = state.needing(OnlineKind.ACTIVE, (*state.revoked, *ids))
    successors = _without(state.successors(OnlineKind.ACTIVE, _room(all_ids)), ids)
    signed = state.author(signer).revoke(now, all_ids, successors)
    return RevokeIssued(ids), RecordStatement(signed.unverified())


def _without(bag: UnverifiedCredentials, ids: tuple[str, ...]) -> UnverifiedCredentials:
    return replace(bag, certificates=tuple(one for one in bag.certificates if one.id not in ids))


def _stated(state: DomainState, period: timedelta, now: datetime, signer: Signer) -> Iterator[RecordStatement]:
    """Yield the next timed statements, a third of a period before the last ones end."""
    author, tests = state.author(signer), state.tests()
    if OnlineKind.CRL in tests and _ends_soon(state, RevocationList.HEAD, period, now):
        revoked = state.needing(OnlineKind.CRL, state.revoked)
        successors = state.successors(OnlineKind.CRL, _room(revoked))
        yield RecordStatement(author.revocation_list(now, period, revoked, successors).unverified())
    if OnlineKind.REVALIDATION in tests and _ends_soon(state, Revalidation.HEAD, period, now):
        valid = state.needing(OnlineKind.REVALIDATION, (id_ for id_ in state.issued if id_ not in state.revoked))
        successors = state.successors(OnlineKind.REVALIDATION, _room(valid))
        yield RecordStatement(author.revalidation(now, period, valid, successors).unverified())


def _ends_soon(state: DomainState, kind: bytes, period: timedelta, now: datetime) -> bool:
    last = state.statements.get(kind)
    return last is None or not isinstance(last.value, TimedStatement) or last.value.not_after - now < period / 3


def _registered(state: DomainState, credentials: Credentials) -> tuple[RegisterCertificates, ...]:
    fresh = tuple(one for one in credentials if one.id not in state.registered and one.id not in state.issued)
    bag = unverified(Credentials(fresh, credentials.quorums))
    if not fresh and not credentials.quorums and len(credentials):
        return ()
    state.check_registered(bag)
    return (RegisterCertificates(bag),)


def _check_authority(state: DomainState, tag: Tag, now: datetime) -> None:
    """Check that the domain may pass a right on. Raises `RefusedError` (`acs.no-authority`), `MalformedError`."""
    domain = state.begun()
    match tag:
        case (head, bytes(owner), *_) if head in (NETWORK, EVENT_TYPE):
            root = Principal.parse(owner.decode("ascii", "replace"))
        case _:
            raise MalformedError(
                "acs.no-owner",
                "a domain issues rights on networks and event types of one owner",
                hint="name the owner: --type OWNER/NAME, or --network OWNER/NAME",
            )
    if root == domain:
        return
    found = discover(state.credentials, root, domain, tag, now, online=state.online, limits=state.limits)
    if not any(grant.propagate for grant in found.grants):
        raise RefusedError(
            "acs.no-authority",
            f"the domain may not pass this right on: no certificate of {root.short} lets it",
            hint="register the certificate that the owner gave the domain: penstock acs register FILE",
        )


def check_domain_name(name: str, limits: AuthorityLimits = AUTHORITY_LIMITS) -> None:
    """Check the name of a domain or a member. Raises `MalformedError` (`acs.name`)."""
    if not name or not name.isprintable() or len(name) > limits.domain_name_length:
        raise MalformedError(
            "acs.name", f"a name has 1 to {limits.domain_name_length} printable characters", hint="choose another name"
        )


def repeated(who: Principal) -> RefusedError:
    """Return the error for a request that was applied already."""
    return RefusedError(
        "acs.repeated",
        f"this request of {who.short} was applied already",
        hint="if you have repeated it after a failure, it has worked",
    )


def answered(who: Principal) -> RefusedError:
    """Return the error for a request that was answered already, and has changed nothing."""
    return RefusedError(
        "acs.answered",
        f"this request of {who.short} was answered already",
        hint="sign a new request, with a new nonce",
    )


def unknown_member(principal: Principal) -> RefusedError:
    """Return the error for a principal that is not a member."""
    return RefusedError("acs.unknown-member", f"{principal.short} is not a member of the domain")


def not_issued(id_: str) -> RefusedError:
    """Return the error for a certificate that the domain has not issued, or that has expired."""
    return RefusedError(
        "acs.not-issued",
        f"the domain has no valid certificate `{id_[:15]}…` that it issued",
        hint="`penstock acs certs` lists them; a domain revokes only what it issued itself",
    )

"""Sessions, active roles and appointments of one domain: a fold over changes, without I/O (OASIS, paper 2, 3.2.1).

    engine = RoleEngine(read_policy(text), domain, names)   # `names` are the principals of other domains, by petname
    engine.advance(now)                                     # first: time passes, which may revoke roles
    engine.check(change)                                    # raises if the change would be refused; changes nothing
    outcome = engine.apply(change)                          # what was issued, revoked, and which domains to notify
    engine.next_due                                         # call `advance` then; no polling is needed

**Changes** are records with one written form (`change_to_sexp`, `change_from_sexp`), so that a ledger can store them.
Folding the same changes at the same times always gives the same state: ids of credential records are counted, and
nothing depends on hash order. A service first calls `check`, then appends the change to its ledger at the head that it
has read, and calls `apply` when that succeeded. So separation of duty and cardinality are counted over all sessions and
all instances of the service.

**Activation** tries the role's rules in the order of the policy, and for each the credentials in the order of their
issue. The first way that satisfies all conditions is recorded in the credential record: the predicates relied on.

**Revocation**: a role stays active while its session is open and the marked conditions of its record are true: the
same credentials, the same facts. An index from each of them to the records that rely on it makes a revocation cost what
it changes. It is transitive, and domains that have issued on a record are named in the outcome. A role that was revoked
is not activated again by itself.

A fact that is not known is not true. Time does not go back: an earlier `now` changes nothing.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Annotated, ClassVar, Final, TypeAlias

from penstock.codec.sexp import OMITTED, Form, SExp, head
from penstock.codec.values import value_from_sexp, value_to_sexp
from penstock.errors import EvaluationError, LimitError, MalformedError, RefusedError
from penstock.model.instants import in_utc
from penstock.model.names import NetworkName
from penstock.model.principals import Principal
from penstock.model.values import Scalar, Value, canonical
from penstock.roles.language import (
    EVENT,
    MOMENT,
    PRINCIPAL,
    SELF,
    ActivationRule,
    AnyValue,
    AppointingRight,
    AppointPrivilege,
    AuthorisationRule,
    CredentialCondition,
    CredentialDeclaration,
    CredentialKind,
    DomainDeclaration,
    EventAttribute,
    EventPrivilege,
    FactCondition,
    NetworkPrivilege,
    RoleCardinality,
    RoleCondition,
    RoleConstant,
    RoleParameter,
    RolePolicy,
    RolePrivilege,
    RoleTerm,
    RoleVariable,
    SeparationOfDuty,
    WhereCondition,
    format_condition,
    policy_error,
    policy_problems,
    read_policy,
)
from penstock.roles.limits import NOTICES_AHEAD, RECORD_DOMAINS, ROLE_NAME_LENGTH, SEARCH_STEPS
from penstock.selector import ALWAYS, Compiled, Selector, built, compile_selector, conjunction, conjuncts, evaluate
from penstock.selector.ast import AttributeReference, Literal, Node, Term, literal, map_attributes, walk
from penstock.trust.capabilities import Right
from penstock.trust.signed import Claim, StatementRecord

# ----------------------------------------------------------------------------------------------------------------------
# Changes.


_NOTHING: Final[SExp] = (b"nothing",)


def _write_scalar(value: Scalar) -> SExp:
    return _NOTHING if value is None else value_to_sexp(value)


def _read_scalar(value: SExp) -> Scalar:
    return None if value == _NOTHING else value_from_sexp(value)


_VALUE: Final[Form[Value]] = Form(value_to_sexp, value_from_sexp)
_SCALAR: Final[Form[Scalar]] = Form(_write_scalar, _read_scalar)
Arguments: TypeAlias = tuple[Annotated[Value, _VALUE], ...]


class RoleRecord(StatementRecord):
    """The base of changes and their parts."""

    __slots__ = ()

    @staticmethod
    def malformed(message: str) -> MalformedError:
        """Return the error for a malformed record: `role.record`."""
        return MalformedError("role.record", message, hint="see docs/reference/roles.md for the forms")


@dataclass(frozen=True, slots=True)
class OpenSession(RoleRecord):
    """A principal that was authenticated opens a session."""

    HEAD: ClassVar = b"open-session"
    session: str
    principal: Principal


@dataclass(frozen=True, slots=True)
class EndSession(RoleRecord):
    """A session ends, and with it all its active roles."""

    HEAD: ClassVar = b"end-session"
    session: str


@dataclass(frozen=True, slots=True)
class ActivateRole(RoleRecord):
    """A session activates a role. An argument that is None is found from the conditions."""

    HEAD: ClassVar = b"activate"
    session: str
    role: str
    arguments: tuple[Annotated[Scalar, _SCALAR], ...] = ()
    #: other sessions of the same principal, whose active roles can be prerequisites too
    beside: Annotated[tuple[str, ...], OMITTED] = ()


@dataclass(frozen=True, slots=True)
class DeactivateRole(RoleRecord):
    """An active role ends, by the id of its record."""

    HEAD: ClassVar = b"deactivate"
    record: str


@dataclass(frozen=True, slots=True)
class Appoint(RoleRecord):
    """`by` appoints a principal, until a last instant if there is one. `by` need not hold what it confers."""

    HEAD: ClassVar = b"appoint"
    appointment: str
    holder: Principal
    by: Principal
    arguments: Arguments = ()
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class WithdrawAppointment(RoleRecord):
    """`by` withdraws an appointment, by the id of its record."""

    HEAD: ClassVar = b"withdraw"
    record: str
    by: Principal


@dataclass(frozen=True, slots=True)
class SetFact(RoleRecord):
    """A fact changes. A look-up is true, false or, without a value, unknown; other facts have a value or none."""

    HEAD: ClassVar = b"fact"
    fact: str
    value: Annotated[Scalar, _SCALAR]
    arguments: Arguments = ()


@dataclass(frozen=True, slots=True)
class ForeignCredential(RoleRecord):
    """A verified credential of another domain: which record it refers to there, and what it says."""

    HEAD: ClassVar = b"credential"
    issuer: Principal
    record: str
    kind: CredentialKind
    name: str
    principal: Principal
    arguments: Arguments = ()
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class AcceptCredential(RoleRecord):
    """A principal has presented a credential of another domain, and the issuer says that it is valid."""

    HEAD: ClassVar = b"accept"
    credential: ForeignCredential


@dataclass(frozen=True, slots=True)
class DropCredential(RoleRecord):
    """The issuer says that one of its records has ended: a credential on it ends, and none is accepted again."""

    HEAD: ClassVar = b"drop"
    issuer: Principal
    record: str


@dataclass(frozen=True, slots=True)
class RelyOnRecord(RoleRecord):
    """Another domain has issued on one of our records, and is notified when it ends."""

    HEAD: ClassVar = b"rely"
    record: str
    domain: Principal


@dataclass(frozen=True, slots=True)
class NoticesTaken(RoleRecord):
    """Another domain has confirmed notices: it knows that these records have ended."""

    HEAD: ClassVar = b"notified"
    domain: Principal
    records: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReplacePolicy(RoleRecord):
    """Another policy takes effect. What does not fit it ends; see `RoleEngine`."""

    HEAD: ClassVar = b"policy"
    policy: str
    #: the principals of other domains that the policy names
    names: Annotated[tuple[tuple[str, Principal], ...], OMITTED] = ()


RoleChange: TypeAlias = (
    OpenSession
    | EndSession
    | ActivateRole
    | DeactivateRole
    | Appoint
    | WithdrawAppointment
    | SetFact
    | AcceptCredential
    | DropCredential
    | RelyOnRecord
    | NoticesTaken
    | ReplacePolicy
)
_CHANGES: Final[Mapping[bytes, type[RoleChange]]] = {
    kind.HEAD: kind
    for kind in (
        OpenSession,
        EndSession,
        ActivateRole,
        DeactivateRole,
        Appoint,
        WithdrawAppointment,
        SetFact,
        AcceptCredential,
        DropCredential,
        RelyOnRecord,
        NoticesTaken,
        ReplacePolicy,
    )
}


def change_to_sexp(change: RoleChange) -> SExp:
    """Return a change as it is stored."""
    return change.to_sexp()


def change_from_sexp(body: SExp) -> RoleChange:
    """Read a stored change. Raises `MalformedError` (`role.record`, and errors of its parts)."""
    kind = _CHANGES.get(head(body) or b"")
    if kind is None:
        raise RoleRecord.malformed("not a change of roles")
    change = kind.from_sexp(body)
    if change.to_sexp() != body:
        raise RoleRecord.malformed("the change is not in canonical form")
    return change


# ----------------------------------------------------------------------------------------------------------------------
# The state.

CredentialKey: TypeAlias = tuple[CredentialKind, Principal, str]
"""Kind, issuer and name of a role or an appointment."""
SupportKey: TypeAlias = tuple[object, ...]
"""What a record relies on: a credential record, a fact, or a selector with its values."""


@dataclass(frozen=True, slots=True)
class RelianceRecord:
    """One of the predicates that a role membership relies on."""

    key: SupportKey
    #: whether it must stay true while the role is active
    member: bool
    #: the condition as the policy says it
    condition: str


@dataclass(frozen=True, slots=True)
class CredentialRecord:
    """The issuer's record of a role membership or an appointment, or of a foreign credential that was accepted.

    `until` is the last instant at which it can be valid. `domains` are the other domains that have issued on it.
    """

    id: str
    kind: CredentialKind
    issuer: Principal
    name: str
    arguments: tuple[Value, ...]
    principal: Principal
    since: datetime
    until: datetime | None = None
    #: of a role
    session: str = ""
    rule: ActivationRule | None = None
    relies_on: tuple[RelianceRecord, ...] = ()
    #: of an appointment
    appointer: Principal | None = None
    domains: tuple[Principal, ...] = ()

    @property
    def key(self) -> CredentialKey:
        """Return kind, issuer and name."""
        return self.kind, self.issuer, self.name

    @property
    def support(self) -> SupportKey:
        """Return the key under which others rely on it."""
        return "credential", self.issuer, self.id

    def as_dict(self) -> dict[str, object]:
        """Return the record as plain data."""
        return {
            "record": self.id,
            "kind": str(self.kind),
            "issuer": str(self.issuer),
            "name": self.name,
            "arguments": [one.isoformat() if isinstance(one, datetime) else one for one in self.arguments],
            "principal": str(self.principal),
            "session": self.session,
            "since": self.since.isoformat(),
            "until": None if self.until is None else self.until.isoformat(),
            "relies_on": [{"condition": one.condition, "member": one.member} for one in self.relies_on],
            "domains": [str(one) for one in self.domains],
        }


@dataclass(frozen=True, slots=True)
class EndedRecord:
    """A record that has ended: when, and why."""

    record: CredentialRecord
    ended: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class RoleOutcome:
    """The effects of a change."""

    #: the record that was issued, or that was there already
    record: CredentialRecord | None = None
    ended: tuple[EndedRecord, ...] = ()
    #: other domains that issued on a record that has ended, and the record's id
    notices: tuple[tuple[Principal, str], ...] = ()
    #: principals whose privileges may have changed
    affected: frozenset[Principal] = frozenset()


@dataclass(frozen=True, slots=True)
class GroundPredicate:
    """A predicate that brokers evaluate: each parameter is bound to an attribute of the event or to a value."""

    name: str
    arguments: tuple[tuple[str, EventAttribute | Value], ...]


@dataclass(frozen=True, slots=True)
class GroundEventPrivilege:
    """A right on event types with all values filled in. `where` speaks about attributes as `event.NAME`."""

    right: Right
    owner: Principal
    types: str
    below: bool
    attributes: tuple[str, ...] | None
    forced: tuple[tuple[str, Value], ...]
    where: Selector
    #: predicates that only the local broker evaluates
    asks: tuple[GroundPredicate, ...] = ()


@dataclass(frozen=True, slots=True)
class GroundNetworkPrivilege:
    """A right on a network."""

    right: Right
    network: NetworkName


@dataclass(frozen=True, slots=True)
class GroundAppointPrivilege:
    """A right to appoint or to withdraw. None permits any argument."""

    right: AppointingRight
    appointment: str
    arguments: tuple[Scalar, ...]


GroundPrivilege: TypeAlias = GroundEventPrivilege | GroundNetworkPrivilege | GroundAppointPrivilege


@dataclass(frozen=True, slots=True)
class HeldPrivilege:
    """A privilege that an active role has. `when` is what depends on the time of day: TRUE if nothing does."""

    privilege: GroundPrivilege
    record: CredentialRecord
    rule: AuthorisationRule
    when: Selector = ALWAYS


@dataclass(slots=True)
class _Session:
    principal: Principal
    records: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class _Held:
    """A principal's records of one role or appointment: in the order of issue, and by arguments."""

    records: dict[str, None] = field(default_factory=dict)
    by_arguments: dict[tuple[Value, ...], dict[str, None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _CompiledWhere:
    selector: Selector
    ask: Compiled
    #: the variables, facts and names of time that it uses
    variables: tuple[str, ...]
    facts: tuple[str, ...]
    moments: frozenset[str]
    instants: tuple[datetime, ...]


Binding: TypeAlias = dict[str, Value]
_INSTANT: Final = timedelta(microseconds=1)
_QUARTER: Final = timedelta(minutes=15)
_MINUTE: Final = timedelta(minutes=1)
_BEGINNING: Final = datetime(1, 1, 1, tzinfo=UTC)
_END_OF_TIME: Final = datetime.max.replace(tzinfo=UTC)


class RoleEngine:
    """See the module.

    `names` are the principals of other domains that the policy names without saying who they are. `zone` is the time
    zone of `hour`, `minute` and `weekday`. With `history`, ended records are kept.

    When the policy is replaced, sessions stay. Facts and credentials stay if the new policy declares them with the same
    kinds. An active role stays if the new policy has the same rule for it, and everything else still fits.

    Raises `MalformedError`: as `read_policy` for a policy with a mistake, `role.unknown-domain`.
    """

    def __init__(
        self,
        policy: RolePolicy,
        domain: Principal,
        names: Mapping[str, Principal] | None = None,
        *,
        zone: tzinfo = UTC,
        history: bool = False,
    ) -> None:
        for problem in policy_problems(policy):
            raise policy_error(policy.source, problem)
        self.policy = policy
        self.domain = domain
        self.zone = zone
        self.names = _domains(policy, domain, names or {})
        self._declared = {(one.kind, self.names[one.by], one.name): one for one in policy.credentials()}
        self._facts = policy.facts()
        self._predicates = policy.predicates()
        self._activations: dict[str, list[ActivationRule]] = {}
        for rule in policy.activations():
            self._activations.setdefault(rule.role, []).append(rule)
        self._authorisations: dict[str, list[AuthorisationRule]] = {}
        for allowed in policy.authorisations():
            self._authorisations.setdefault(allowed.role, []).append(allowed)
        self._separations: dict[CredentialKey, list[SeparationOfDuty]] = {}
        self._cardinalities: dict[str, list[RoleCardinality]] = {}
        for one in policy.statements:
            if isinstance(one, SeparationOfDuty):
                for member in one.members:
                    self._separations.setdefault(self._key(member), []).append(one)
            elif isinstance(one, RoleCardinality):
                self._cardinalities.setdefault(one.role, []).append(one)
        self._scalars = policy.scalars()
        self._compiled: dict[str, _CompiledWhere] = {}
        # The state.
        self.now = _BEGINNING
        self._count = 0
        self._sessions: dict[str, _Session] = {}
        #: records by issuer and id
        self._records: dict[tuple[Principal, str], CredentialRecord] = {}
        #: by holder and key
        self._held: dict[tuple[Principal, CredentialKey], _Held] = {}
        #: active roles of a principal
        self._active: dict[Principal, dict[str, None]] = {}
        #: true look-ups by name, and by name, position and value
        self._true: dict[tuple[object, ...], dict[tuple[Value, ...], None]] = {}
        self._known: dict[tuple[str, tuple[Value, ...]], bool] = {}
        self._values: dict[str, Scalar] = {}
        #: which records rely on a key and must end with it
        self._dependents: dict[SupportKey, dict[tuple[Principal, str], None]] = {}
        #: selectors that read a fact
        self._readers: dict[str, dict[SupportKey, None]] = {}
        #: principals whose privileges depend on a fact, or on those with one argument: how many rules of each
        self._watchers: dict[tuple[object, ...], dict[Principal, int]] = {}
        #: principals that have a role, per cardinality and group: how many times
        self._counted: dict[tuple[int, tuple[Value, ...]], dict[Principal, int]] = {}
        #: records that have ended and other domains that have issued on them, until these confirm the notice
        self._notices: dict[Principal, dict[str, None]] = {}
        #: records of other domains that have ended there, and how many of each domain were not known here
        self._revoked: dict[tuple[Principal, str], None] = {}
        self._ahead: dict[Principal, int] = {}
        self._due: list[tuple[datetime, int, str, SupportKey]] = []
        self._pushed = 0
        #: when each monitored selector is evaluated next
        self._scheduled: dict[SupportKey, datetime] = {}
        self._ended: list[EndedRecord] | None = [] if history else None
        self._versions: dict[Principal, int] = {}
        self._privileges: dict[Principal, tuple[int, tuple[HeldPrivilege, ...]]] = {}

    # ------------------------------------------------------------------------------------------------------------------
    # Ask.

    def session(self, session: str) -> Principal | None:
        """Return the principal of an open session."""
        found = self._sessions.get(session)
        return None if found is None else found.principal

    def sessions(self) -> Mapping[str, Principal]:
        """Return the open sessions."""
        return {name: one.principal for name, one in self._sessions.items()}

    def record(self, record: str, issuer: Principal | None = None) -> CredentialRecord | None:
        """Return a valid record by its id: of this domain, or of an issuer."""
        return self._records.get((self.domain if issuer is None else issuer, record))

    def records(self) -> Iterator[CredentialRecord]:
        """Yield all valid records in the order of their issue: active roles, appointments, foreign credentials."""
        yield from self._records.values()

    def active(self, principal: Principal) -> tuple[CredentialRecord, ...]:
        """Return the active roles of a principal in all its sessions."""
        return tuple(self._records[self.domain, record] for record in self._active.get(principal, ()))

    def mentions(self, principal: Principal) -> bool:
        """Return whether a principal has a credential, or is an argument of a look-up that is true."""
        written = str(principal)
        return any((principal, key) in self._held for key in self._declared) or any(
            (name, place, written) in self._true
            for name, declared in self._facts.items()
            for place in range(len(declared.parameters))
        )

    def fact(self, name: str, arguments: tuple[Value, ...] = ()) -> Scalar:
        """Return the value of a fact, or None if it is unknown."""
        return self._known.get((name, arguments)) if arguments else self._values.get(name)

    def facts(self, name: str) -> dict[tuple[Value, ...], Scalar]:
        """Return the facts of a name that are known, by their arguments."""
        if name in self._values:
            return {(): self._values[name]}
        return {arguments: value for (fact, arguments), value in self._known.items() if fact == name}

    def notices(self) -> dict[Principal, tuple[str, ...]]:
        """Return the ids of ended records that other domains have issued on and have not confirmed, by domain."""
        return {domain: tuple(records) for domain, records in self._notices.items()}

    def revoked(self, issuer: Principal, record: str) -> bool:
        """Return whether another domain has said that one of its records has ended."""
        return (issuer, record) in self._revoked

    def ended(self) -> tuple[EndedRecord, ...]:
        """Return the records that have ended, if the engine keeps history."""
        return tuple(self._ended or ())

    def version(self, principal: Principal) -> int:
        """Return a number that changes whenever the privileges of a principal may have changed."""
        return self._versions.get(principal, 0)

    @property
    def next_due(self) -> datetime | None:
        """When `advance` must be called next, if nothing else happens before."""
        while self._due and not self._is_due(self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def dependents(self, key: SupportKey) -> tuple[CredentialRecord, ...]:
        """Return the records that end with a credential, a fact or a selector, directly."""
        return tuple(self._records[one] for one in self._dependents.get(key, ()))

    def privileges(self, principal: Principal) -> tuple[HeldPrivilege, ...]:
        """Return the privileges that a principal has by its active roles.

        Conditions that depend on the time are in `when`, not evaluated. All others are true now.
        """
        version = self.version(principal)
        known, found = self._privileges.get(principal, (-1, ()))
        if known != version:
            found = tuple(held for record in self.active(principal) for held in self._allowed(record))
            self._privileges[principal] = (version, found)
        return found

    def may(self, principal: Principal, right: AppointingRight, appointment: str, arguments: tuple[Value, ...]) -> bool:
        """Return whether a principal can appoint, or withdraw, now. The domain itself always can."""
        if principal == self.domain:
            return True
        for held in self.privileges(principal):
            privilege = held.privilege
            if (
                isinstance(privilege, GroundAppointPrivilege)
                and (privilege.right, privilege.appointment) == (right, appointment)
                and all(
                    mine is None or mine == other for mine, other in zip(privilege.arguments, arguments, strict=True)
                )
                and _true(held.when, self.moment())
            ):
                return True
        return False

    def moment(self) -> Mapping[str, Scalar]:
        """Return the names that depend on time, now."""
        return _moment(self.now, self.zone)

    # ------------------------------------------------------------------------------------------------------------------
    # Change.

    def advance(self, now: datetime) -> RoleOutcome:
        """Let time pass. Credentials expire and selectors become false at the instants when they do.

        An earlier time than before changes nothing. Raises `MalformedError` (`value.zone`).
        """
        moment = in_utc(now)
        effects = _Effects()
        while (due := self.next_due) is not None and due <= moment:
            _, _, kind, key = heapq.heappop(self._due)
            self.now = max(self.now, due)
            if kind == "where":
                del self._scheduled[key]
                self._ask_again(key, effects)
            else:
                self._end([(self._record_of(key), "it has expired")], effects)
        self.now = max(self.now, moment)
        return effects.outcome()

    def check(self, change: RoleChange) -> None:
        """Check that a change can be applied now; change nothing.

        Raises `RefusedError`: `role.denied`, `role.session`, `role.separated`, `role.cardinality`,
        `role.not-appointer`, `role.no-record`, `role.revoked`, `MalformedError`: `role.unknown`, `role.arity`,
        `role.kind`, and `LimitError`: `role.limit`, `role.search`.
        """
        self._plan(change)

    def apply(self, change: RoleChange) -> RoleOutcome:
        """Apply a change at the time of the last `advance`. Raises as `check`; then nothing has changed."""
        commit = self._plan(change)
        effects = _Effects()
        effects.record = commit(effects)
        return effects.outcome()

    def retract(self, issuer: Principal, record: str) -> None:
        """Undo that a credential of another domain was accepted, as if nobody had presented it; others may rely on it.

        Raises `RefusedError` (`role.no-record`).
        """
        found = self._records.get((issuer, record))
        if found is None or issuer == self.domain:
            raise _no_record(record)
        self._end([(found, "it was only tried")], _Effects())

    def fold(self, changes: Iterable[tuple[datetime, RoleChange]]) -> None:
        """Apply changes at their times, ignoring what they cause. Raises as `apply`."""
        for now, change in changes:
            self.advance(now)
            self.apply(change)

    def _plan(self, change: RoleChange) -> "_Commit":
        """Check a change and return what carries it out."""
        match change:
            case OpenSession(session, principal):
                if not session or len(session) > ROLE_NAME_LENGTH:
                    raise MalformedError("role.session", f"a session's id has 1 to {ROLE_NAME_LENGTH} characters")
                if session in self._sessions:
                    raise RefusedError("role.session", f"session `{session}` is open already", hint="choose another id")
                return lambda _effects: self._sessions.__setitem__(session, _Session(principal))
            case EndSession(session):
                self._session_of(session)
                return lambda effects: self._end_session(session, effects)
            case ActivateRole():
                return self._plan_activation(change)
            case DeactivateRole(record):
                found = self._own(record, CredentialKind.ROLE)
                return lambda effects: self._end([(found, "it was deactivated")], effects)
            case Appoint():
                return self._plan_appointment(change)
            case WithdrawAppointment(record, by):
                found = self._own(record, CredentialKind.APPOINTMENT)
                if not self.may(by, AppointingRight.WITHDRAW, found.name, found.arguments):
                    raise _not_appointer(by, "withdraw", found.name)
                return lambda effects: self._end([(found, f"it was withdrawn by {by.short}")], effects)
            case SetFact():
                return self._plan_fact(change)
            case AcceptCredential(credential):
                return self._plan_foreign(credential)
            case DropCredential(issuer, record):
                if issuer == self.domain:
                    raise RefusedError("role.own-credential", "a credential of this domain is not revoked from outside")
                return self._plan_drop(issuer, record)
            case RelyOnRecord(record, domain):
                own = self._records.get((self.domain, record))
                if own is None:
                    raise _no_record(record)
                if len(own.domains) >= RECORD_DOMAINS and domain not in own.domains:
                    raise LimitError("role.limit", f"record `{record}` was issued to {RECORD_DOMAINS} domains already")
                return lambda _effects: self._rely(own, domain)
            case NoticesTaken(domain, records):
                return lambda _effects: self._confirm(domain, records)
            case ReplacePolicy(policy, names):
                return self._plan_policy(read_policy(policy), dict(names))

    def _plan_activation(self, change: ActivateRole) -> "_Commit":
        session = self._session_of(change.session)
        declared = self._declaration(CredentialKind.ROLE, self.domain, change.role)
        wanted = _arguments(declared.parameters, change.arguments, change.role)
        for same in self._matching(session.principal, (CredentialKind.ROLE, self.domain, change.role), wanted):
            if same.session == change.session:
                return lambda _effects: same
        for other in change.beside:
            if self._session_of(other).principal != session.principal:
                raise RefusedError("role.session", f"session `{other}` is another principal's")
        found = next(self.ways(change.session, change.role, wanted, change.beside), None)
        if found is None:
            raise RefusedError(
                "role.denied",
                f"{session.principal.short} cannot activate {_written(change.role, wanted)}: no rule is satisfied",
                hint="`explain_activation` and `penstock role explain` show what is missing",
            )
        rule, arguments, relied = found
        key: CredentialKey = (CredentialKind.ROLE, self.domain, change.role)
        self._check_separation(session.principal, key, arguments)
        groups = self._check_cardinality(session.principal, change.role, arguments)
        untils = [self._record_of(one.key).until for one in relied if one.member and one.key[0] == "credential"]
        until = min((one for one in untils if one is not None), default=None)

        def commit(effects: "_Effects") -> CredentialRecord:
            record = CredentialRecord(
                self._next_id(),
                *key,
                arguments,
                session.principal,
                self.now,
                until,
                change.session,
                rule,
                relied,
            )
            self._begin(record, groups, effects)
            return record

        return commit

    def _begin(
        self, record: CredentialRecord, groups: list[tuple[int, tuple[Value, ...]]], effects: "_Effects"
    ) -> None:
        """Keep an active role, count it, and monitor what it relies on."""
        self._keep(record, effects)
        self._sessions[record.session].records[record.id] = None
        for group in groups:
            counted = self._counted.setdefault(group, {})
            counted[record.principal] = counted.get(record.principal, 0) + 1
        for one in record.relies_on:
            if one.member:
                self._dependents.setdefault(one.key, {})[self.domain, record.id] = None
                if one.key[0] == "where":
                    self._watch(one.key)

    def _plan_policy(self, policy: RolePolicy, names: Mapping[str, Principal]) -> "_Commit":
        other = RoleEngine(policy, self.domain, names, zone=self.zone)

        def commit(effects: "_Effects") -> None:
            other.now, other._count, other._ended = self.now, self._count, self._ended
            other._notices, other._revoked, other._ahead = self._notices, self._revoked, self._ahead
            other._versions = {who: number + 1 for who, number in self._versions.items()}
            other._sessions = {name: _Session(one.principal) for name, one in self._sessions.items()}
            facts = [SetFact(name, value, arguments) for (name, arguments), value in self._known.items()]
            for fact in (*facts, *(SetFact(name, value) for name, value in self._values.items())):
                try:
                    other.apply(fact)
                except MalformedError:
                    # It is not declared any longer: unknown.
                    continue
            # In the order of issue: what a record relies on comes before it.
            for record in self._records.values():
                try:
                    other._adopt(record, effects)
                except (MalformedError, RefusedError) as error:
                    ended = EndedRecord(record, self.now, f"the policy has changed: {error.message}")
                    effects.ended.append(ended)
                    other._notify(record, effects)
                    effects.affected[record.principal] = None
                    if self._ended is not None:
                        self._ended.append(ended)
            # Others hold on to this object: it becomes the new one.
            vars(self).update(vars(other))

        return commit

    def _adopt(self, record: CredentialRecord, effects: "_Effects") -> None:
        """Keep a record of an engine with another policy. Raises if it does not fit."""
        declared = self._declaration(*record.key)
        _values(declared.parameters, record.arguments, record.name)
        self._check_separation(record.principal, record.key, record.arguments)
        if record.kind is not CredentialKind.ROLE or record.issuer != self.domain:
            self._keep(record, effects)
            return
        rule = next((one for one in self._activations.get(record.name, ()) if one == record.rule), None)
        if rule is None:
            raise RefusedError(
                "role.denied", f"the rule that activated {_written(record.name, record.arguments)} is gone"
            )
        for condition in rule.conditions:
            if isinstance(condition, WhereCondition):
                self._compile(condition.selector)
        lost = next((one for one in record.relies_on if one.member and not self._stays(one.key)), None)
        if lost is not None:
            raise RefusedError("role.denied", f"`{lost.condition}` is not satisfied")
        groups = self._check_cardinality(record.principal, record.name, record.arguments)
        self._begin(replace(record, rule=rule), groups, effects)

    def _stays(self, key: SupportKey) -> bool:
        """Return whether something that a record relies on is true."""
        match key:
            case ("credential", Principal() as issuer, str(record)):
                return (issuer, record) in self._records
            case ("fact", str(name), tuple(arguments)):
                return self._known.get((name, arguments)) is True
            case _:
                return self._is_true(self._compiled[str(key[1])], selector_values(key))

    def _plan_appointment(self, change: Appoint) -> "_Commit":
        declared = self._declaration(CredentialKind.APPOINTMENT, self.domain, change.appointment)
        arguments = _values(declared.parameters, change.arguments, change.appointment)
        if not self.may(change.by, AppointingRight.APPOINT, change.appointment, arguments):
            raise _not_appointer(change.by, "appoint", change.appointment)
        until = None if change.until is None else in_utc(change.until)
        if until is not None and until < self.now:
            raise RefusedError("role.expired", "the appointment would have ended already", hint="choose a later end")
        key: CredentialKey = (CredentialKind.APPOINTMENT, self.domain, change.appointment)
        self._check_separation(change.holder, key, arguments)

        def commit(effects: "_Effects") -> CredentialRecord:
            record = CredentialRecord(
                self._next_id(), *key, arguments, change.holder, self.now, until, appointer=change.by
            )
            self._keep(record, effects)
            return record

        return commit

    def _plan_foreign(self, credential: ForeignCredential) -> "_Commit":
        if credential.issuer == self.domain:
            raise RefusedError("role.own-credential", "a credential of this domain is not accepted from outside")
        declared = self._declaration(credential.kind, credential.issuer, credential.name)
        arguments = _values(declared.parameters, credential.arguments, credential.name)
        until = None if credential.until is None else in_utc(credential.until)
        if until is not None and until < self.now:
            raise RefusedError("role.expired", "the credential has expired", hint="present a newer one")
        if (credential.issuer, credential.record) in self._revoked:
            raise RefusedError("role.revoked", "the issuer has revoked the credential", hint="present a newer one")
        key: CredentialKey = (credential.kind, credential.issuer, credential.name)
        record = CredentialRecord(credential.record, *key, arguments, credential.principal, self.now, until)
        known = self._records.get((credential.issuer, credential.record))
        if known is not None:
            if replace(record, since=known.since) != known:
                raise RefusedError("role.credential", "another credential with this record's id is known already")
            return lambda _effects: known
        self._check_separation(credential.principal, key, arguments)

        def commit(effects: "_Effects") -> CredentialRecord:
            self._keep(record, effects)
            return record

        return commit

    def _plan_drop(self, issuer: Principal, record: str) -> "_Commit":
        key = (issuer, record)
        # A notice can arrive before the certificate, or after it has expired here.
        foreign = self._records.get(key)
        unknown = foreign is None and key not in self._revoked
        if unknown and self._ahead.get(issuer, 0) >= NOTICES_AHEAD:
            raise LimitError(
                "role.limit", f"{issuer.short} has revoked more than {NOTICES_AHEAD} records that are not known here"
            )

        def commit(effects: "_Effects") -> None:
            self._revoked[key] = None
            if unknown:
                self._ahead[issuer] = self._ahead.get(issuer, 0) + 1
            self._end([] if foreign is None else [(foreign, f"{issuer.short} revoked it")], effects)

        return commit

    def _plan_fact(self, change: SetFact) -> "_Commit":
        declared = self._facts.get(change.fact)
        if declared is None:
            raise MalformedError("role.unknown", f"unknown fact `{change.fact}`", hint="declare it in the policy")
        if declared.kind is not None:
            _values((), change.arguments, change.fact)
            value = None if change.value is None else declared.kind.checked(change.value)
            return lambda effects: self._set_value(change.fact, value, effects)
        arguments = _values(declared.parameters, change.arguments, change.fact)
        if change.value is not None and not isinstance(change.value, bool):
            raise MalformedError("role.kind", f"look-up `{change.fact}` is true, false or unknown")
        known = change.value
        return lambda effects: self._set_lookup(change.fact, arguments, known, effects)

    # ------------------------------------------------------------------------------------------------------------------
    # Search for a way to activate a role.

    def ways(
        self, session: str, role: str, wanted: tuple[Scalar, ...], beside: tuple[str, ...] = ()
    ) -> Iterator[tuple[ActivationRule, tuple[Value, ...], tuple[RelianceRecord, ...]]]:
        """Yield each way to activate a role now: the rule, the role's arguments, and what would be relied on.

        `beside` is as in `ActivateRole`. Raises `LimitError` (`role.search`), `RefusedError` (`role.session`).
        """
        principal = self._session_of(session).principal
        budget = [SEARCH_STEPS]
        for rule in self._activations.get(role, ()):
            binding: Binding = {PRINCIPAL: str(principal)}
            if not all(
                value is None or _unify(term, value, binding)
                for term, value in zip(rule.arguments, wanted, strict=True)
            ):
                continue
            ordered = sorted(enumerate(rule.conditions), key=lambda pair: isinstance(pair[1], WhereCondition))
            for found, relied in self._satisfy(ordered, binding, (session, principal, beside), budget):
                arguments = tuple(_ground(term, found) for term in rule.arguments)
                if None not in arguments:
                    in_order = tuple(one for _, one in sorted(relied.items()))
                    yield rule, tuple(one for one in arguments if one is not None), in_order

    def _satisfy(
        self,
        conditions: list[tuple[int, RoleCondition]],
        binding: Binding,
        where: tuple[str, Principal, tuple[str, ...]],
        budget: list[int],
    ) -> Iterator[tuple[Binding, dict[int, RelianceRecord]]]:
        if not conditions:
            yield binding, {}
            return
        place, condition = conditions[0]
        for found, key in self.satisfied(condition, binding, *where):
            budget[0] -= 1
            if budget[0] < 0:
                raise LimitError(
                    "role.search",
                    f"more than {SEARCH_STEPS} credentials and facts were tried to activate a role",
                    hint="put the condition with the fewest matches first, or name the role's arguments",
                )
            relied = RelianceRecord(key, condition.member, format_condition(condition))
            for rest, others in self._satisfy(conditions[1:], found, where, budget):
                yield rest, {place: relied, **others}

    def satisfied(
        self,
        condition: RoleCondition,
        binding: Binding,
        session: str,
        principal: Principal,
        beside: tuple[str, ...] = (),
    ) -> Iterator[tuple[Binding, SupportKey]]:
        """Yield each way in which one condition is satisfied: the variables with it, and what it relies on."""
        match condition:
            case CredentialCondition():
                for record in self._matching(principal, self._key(condition), _known(condition.arguments, binding)):
                    # A prerequisite role of this domain is active in the same session.
                    if record.session in ("", session, *beside):
                        found = _unified(condition.arguments, record.arguments, binding)
                        if found is not None:
                            yield found, record.support
            case FactCondition():
                for arguments in self._lookups(condition.name, _known(condition.arguments, binding)):
                    found = _unified(condition.arguments, arguments, binding)
                    if found is not None:
                        yield found, ("fact", condition.name, arguments)
            case WhereCondition():
                compiled = self._compile(condition.selector)
                if all(name in binding for name in compiled.variables):
                    row = {name: binding[name] for name in compiled.variables}
                    if self._is_true(compiled, row):
                        yield binding, ("where", compiled.selector.text, *(_typed(name, row[name]) for name in row))

    def _matching(
        self, principal: Principal, key: CredentialKey, wanted: tuple[Scalar, ...]
    ) -> Iterator[CredentialRecord]:
        """Yield a principal's valid records of a role or appointment, with these arguments if they are given."""
        held = self._held.get((principal, key))
        if held is None:
            return
        issuer = key[1]
        if None not in wanted:
            for record in tuple(held.by_arguments.get(wanted, ())):  # type: ignore[arg-type]  # None is not in it
                yield self._records[issuer, record]
            return
        for record in tuple(held.records):
            found = self._records[issuer, record]
            if all(one is None or one == other for one, other in zip(wanted, found.arguments, strict=True)):
                yield found

    def _lookups(self, name: str, wanted: tuple[Scalar, ...]) -> Iterator[tuple[Value, ...]]:
        """Yield the arguments for which a look-up is true, of those that match."""
        if None not in wanted:
            if self._known.get((name, wanted)):  # type: ignore[arg-type]  # None is not in it
                yield wanted  # type: ignore[misc]
            return
        given = [(name, place, value) for place, value in enumerate(wanted) if value is not None]
        candidates = min((self._true.get(key, {}) for key in given), key=len, default=self._true.get((name,), {}))
        for arguments in tuple(candidates):
            if all(one is None or one == other for one, other in zip(wanted, arguments, strict=True)):
                yield arguments

    # ------------------------------------------------------------------------------------------------------------------
    # Selectors in conditions.

    def _compile(self, selector: Selector) -> _CompiledWhere:
        found = self._compiled.get(selector.text)
        if found is None:
            names = selector.attributes
            nodes = [*walk(selector.root)]
            found = self._compiled[selector.text] = _CompiledWhere(
                selector,
                compile_selector(selector),
                tuple(sorted(names - self._scalars.keys() - MOMENT.keys())),
                tuple(sorted(names & self._scalars.keys())),
                frozenset(names & MOMENT.keys()),
                tuple(one.value for one in nodes if isinstance(one, Literal) and isinstance(one.value, datetime)),
            )
        return found

    def _is_true(self, compiled: _CompiledWhere, row: Mapping[str, Scalar]) -> bool:
        facts = {name: self._values.get(name) for name in compiled.facts}
        try:
            return compiled.ask({**self.moment(), **facts, **row}) is True
        except EvaluationError:
            # A selector without a value is not true.
            return False

    def _watch(self, key: SupportKey) -> None:
        """Monitor a selector that a record now relies on."""
        compiled = self._compiled[str(key[1])]
        for name in compiled.facts:
            self._readers.setdefault(name, {})[key] = None
        self._schedule(key)

    def _schedule(self, key: SupportKey) -> None:
        compiled = self._compiled[str(key[1])]
        if compiled.moments:
            instants = [*compiled.instants, *(v for v in selector_values(key).values() if isinstance(v, datetime))]
            due = _next_moment(self.now, self.zone, compiled.moments, instants)
            if due is not None and self._scheduled.get(key) != due:
                self._scheduled[key] = due
                self._push(due, "where", key)

    def _ask_again(self, key: SupportKey, effects: "_Effects") -> None:
        """End the records that rely on a selector if it is not true any longer."""
        compiled = self._compiled[str(key[1])]
        if self._is_true(compiled, selector_values(key)):
            self._schedule(key)
        else:
            self._end_dependents(key, f"`{compiled.selector.text}` is not true", effects)

    # ------------------------------------------------------------------------------------------------------------------
    # Facts.

    def _set_value(self, name: str, value: Scalar, effects: "_Effects") -> None:
        if value is None:
            self._values.pop(name, None)
        else:
            self._values[name] = value
        for key in tuple(self._readers.get(name, ())):
            self._ask_again(key, effects)
        self._touch((name,), effects)

    def _set_lookup(self, name: str, arguments: tuple[Value, ...], value: bool | None, effects: "_Effects") -> None:
        keys = [(name,), *((name, place, one) for place, one in enumerate(arguments))]
        if self._known.get((name, arguments)) is not value:
            # What becomes true comes last, as in `_true`: another policy takes the facts over in this order.
            self._known.pop((name, arguments), None)
        if value is not None:
            self._known[name, arguments] = value
        for key in keys:
            if value:
                self._true.setdefault(key, {})[arguments] = None
            else:
                _discard(self._true, key, arguments)
        if not value:
            self._end_dependents(("fact", name, arguments), f"fact {_written(name, arguments)} is not true", effects)
        for key in keys:
            self._touch(key, effects)

    def _touch(self, key: tuple[object, ...], effects: "_Effects") -> None:
        for principal in self._watchers.get(key, ()):
            self._changed(principal, effects)

    def _changed(self, principal: Principal, effects: "_Effects") -> None:
        self._versions[principal] = self._versions.get(principal, 0) + 1
        effects.affected[principal] = None

    # ------------------------------------------------------------------------------------------------------------------
    # Records.

    def _next_id(self) -> str:
        self._count += 1
        return f"{self._count}"

    def _keep(self, record: CredentialRecord, effects: "_Effects") -> None:
        self._records[record.issuer, record.id] = record
        held = self._held.setdefault((record.principal, record.key), _Held())
        held.records[record.id] = None
        held.by_arguments.setdefault(record.arguments, {})[record.id] = None
        if record.until is not None and record.until < _END_OF_TIME:
            # The last instant belongs to the validity.
            self._push(record.until + _INSTANT, "expiry", record.support)
        if record.kind is CredentialKind.ROLE and record.issuer == self.domain:
            self._active.setdefault(record.principal, {})[record.id] = None
            for key in self._watched(record):
                watchers = self._watchers.setdefault(key, {})
                watchers[record.principal] = watchers.get(record.principal, 0) + 1
            self._changed(record.principal, effects)

    def _end_session(self, session: str, effects: "_Effects") -> None:
        ended = self._sessions.pop(session)
        self._end([(self._records[self.domain, one], "its session has ended") for one in ended.records], effects)

    def _end_dependents(self, key: SupportKey, reason: str, effects: "_Effects") -> None:
        self._end([(self._records[one], reason) for one in self._dependents.get(key, ())], effects)

    def _end(self, records: list[tuple[CredentialRecord, str]], effects: "_Effects") -> None:
        """End records and, transitively, all that must end with them."""
        pending = list(reversed(records))
        while pending:
            record, reason = pending.pop()
            if self._records.pop((record.issuer, record.id), None) is None:
                continue
            ended = EndedRecord(record, self.now, reason)
            effects.ended.append(ended)
            self._notify(record, effects)
            if self._ended is not None:
                self._ended.append(ended)
            self._forget(record, effects)
            cause = f"{record.kind} {_written(record.name, record.arguments)} has ended: {reason}"
            relying = self._dependents.pop(record.support, {})
            pending += [(self._records[one], cause) for one in reversed(relying) if one in self._records]

    def _notify(self, record: CredentialRecord, effects: "_Effects") -> None:
        """Name the domains that have issued on a record, until they confirm the notice."""
        for domain in record.domains:
            effects.notices.append((domain, record.id))
            self._notices.setdefault(domain, {})[record.id] = None

    def _confirm(self, domain: Principal, records: tuple[str, ...]) -> None:
        for record in records:
            _discard(self._notices, domain, record)

    def _forget(self, record: CredentialRecord, effects: "_Effects") -> None:
        held = self._held[record.principal, record.key]
        del held.records[record.id]
        _discard(held.by_arguments, record.arguments, record.id)
        if not held.records:
            del self._held[record.principal, record.key]
        if record.kind is not CredentialKind.ROLE or record.issuer != self.domain:
            return
        _discard(self._active, record.principal, record.id)
        if record.session in self._sessions:
            self._sessions[record.session].records.pop(record.id, None)
        for group in self._groups(record.name, record.arguments):
            _uncount(self._counted, group, record.principal)
        for key in self._watched(record):
            _uncount(self._watchers, key, record.principal)
        for one in record.relies_on:
            if one.member:
                _discard(self._dependents, one.key, (record.issuer, record.id))
                if one.key[0] == "where" and one.key not in self._dependents:
                    self._scheduled.pop(one.key, None)
                    for name in self._compiled[str(one.key[1])].facts:
                        _discard(self._readers, name, one.key)
        self._changed(record.principal, effects)

    def _rely(self, record: CredentialRecord, domain: Principal) -> CredentialRecord:
        if domain not in record.domains:
            record = replace(record, domains=(*record.domains, domain))
            self._records[record.issuer, record.id] = record
        return record

    def _push(self, due: datetime, kind: str, key: SupportKey) -> None:
        self._pushed += 1
        heapq.heappush(self._due, (due, self._pushed, kind, key))

    def _is_due(self, entry: tuple[datetime, int, str, SupportKey]) -> bool:
        """Return whether anything still depends on an entry of the queue."""
        due, _, kind, key = entry
        if kind == "where":
            return key in self._dependents and self._scheduled.get(key) == due
        return (key[1], key[2]) in self._records

    # ------------------------------------------------------------------------------------------------------------------
    # Separation of duty and cardinality.

    def _check_separation(self, principal: Principal, key: CredentialKey, arguments: tuple[Value, ...]) -> None:
        for separation in self._separations.get(key, ()):
            own = next(member for member in separation.members if self._key(member) == key)
            binding = _unified(own.arguments, arguments[: len(own.arguments)], {})
            if binding is None:
                continue
            for member in separation.members:
                other = self._key(member)
                if other == key:
                    continue
                wanted = _known(member.arguments, binding) or (None,) * len(self._declared[other].parameters)
                for held in self._matching(principal, other, wanted):
                    raise RefusedError(
                        "role.separated",
                        f"{principal.short} holds {held.kind} {_written(held.name, held.arguments)}, which is separated"
                        f" from {_written(key[2], arguments)}",
                        hint="end that one first, or let another principal do this",
                        record=held.id,
                    )

    def _groups(self, role: str, arguments: tuple[Value, ...]) -> list[tuple[int, tuple[Value, ...]]]:
        """Return the groups in which a role with these arguments is counted."""
        found: list[tuple[int, tuple[Value, ...]]] = []
        for index, one in enumerate(self._cardinalities.get(role, ())):
            terms = one.arguments
            if _unified(terms, arguments[: len(terms)], {}) is not None:
                values = zip(terms, arguments, strict=False)
                found.append((index, (role, *(v for term, v in values if not isinstance(term, AnyValue)))))
        return found

    def _check_cardinality(
        self, principal: Principal, role: str, arguments: tuple[Value, ...]
    ) -> list[tuple[int, tuple[Value, ...]]]:
        groups = self._groups(role, arguments)
        for group in groups:
            counted = self._counted.get(group, {})
            most = self._cardinalities[role][group[0]].most
            if principal not in counted and len(counted) >= most:
                raise RefusedError(
                    "role.cardinality",
                    f"{len(counted)} principals have {_written(role, arguments)}, and {most} can",
                    hint="wait until one of them has deactivated it",
                )
        return groups

    # ------------------------------------------------------------------------------------------------------------------
    # Privileges.

    def _allowed(self, record: CredentialRecord) -> Iterator[HeldPrivilege]:
        start: Binding = {PRINCIPAL: str(record.principal)}
        for rule in self._authorisations.get(record.name, ()):
            binding = _unified(rule.arguments, record.arguments, start)
            if binding is not None:
                budget = [SEARCH_STEPS]
                for found, when in self._authorised(rule, 0, binding, budget):
                    yield HeldPrivilege(self._privilege(rule.privilege, found), record, rule, when)

    def _authorised(
        self, rule: AuthorisationRule, index: int, binding: Binding, budget: list[int]
    ) -> Iterator[tuple[Binding, Selector]]:
        """Yield how an authorisation rule's facts are satisfied, and what its selectors say about the time."""
        facts = [one for one in rule.conditions if isinstance(one, FactCondition)]
        if index < len(facts):
            fact = facts[index]
            for arguments in self._lookups(fact.name, _known(fact.arguments, binding)):
                budget[0] -= 1
                if budget[0] < 0:
                    raise LimitError(
                        "role.search", f"a privilege of role `{rule.role}` needs more than {SEARCH_STEPS} facts"
                    )
                found = _unified(fact.arguments, arguments, binding)
                if found is not None:
                    yield from self._authorised(rule, index + 1, found, budget)
            return
        left: list[Selector] = []
        for one in rule.conditions:
            if isinstance(one, WhereCondition):
                facts_now = {name: self._values.get(name) for name in self._scalars}
                for part in conjuncts(substitute(one.selector, {**facts_now, **binding})):
                    if part.attributes:
                        left.append(part)
                    elif not _true(part, {}):
                        return
        yield binding, conjunction(*left)

    def _watched(self, record: CredentialRecord) -> Iterator[tuple[object, ...]]:
        """Yield which facts the privileges of an active role depend on."""
        start: Binding = {PRINCIPAL: str(record.principal)}
        for rule in self._authorisations.get(record.name, ()):
            binding = _unified(rule.arguments, record.arguments, start)
            if binding is None:
                continue
            for one in rule.conditions:
                if isinstance(one, FactCondition):
                    known = enumerate(_known(one.arguments, binding))
                    given = next(((place, value) for place, value in known if value is not None), None)
                    yield (one.name,) if given is None else (one.name, *given)
                elif isinstance(one, WhereCondition):
                    yield from ((name,) for name in sorted(one.selector.attributes & self._scalars.keys()))

    def _privilege(self, privilege: RolePrivilege, binding: Binding) -> GroundPrivilege:
        match privilege:
            case AppointPrivilege(right, appointment, arguments):
                declared = self._declared[CredentialKind.APPOINTMENT, self.domain, appointment]
                anything = (None,) * len(declared.parameters)
                return GroundAppointPrivilege(right, appointment, _known(arguments, binding) or anything)
            case NetworkPrivilege(right, owner, network):
                return GroundNetworkPrivilege(right, NetworkName(self.owner(owner), network))
            case EventPrivilege():
                conditions = [] if privilege.where is None else [substitute(privilege.where, binding)]
                asks: list[GroundPredicate] = []
                for call in privilege.matching:
                    predicate = self._predicates[call.name]
                    names = [parameter.name for parameter in predicate.parameters]
                    terms = dict(zip(names, call.arguments, strict=True))
                    if predicate.body is None:
                        asks.append(GroundPredicate(call.name, tuple(_arguments_of(terms, binding))))
                    else:
                        conditions.append(_called(predicate.body, terms, binding))
                forced = [(name, _ground(term, binding)) for name, term in privilege.forced]
                return GroundEventPrivilege(
                    privilege.right,
                    self.owner(privilege.owner),
                    privilege.types,
                    privilege.below,
                    privilege.attributes,
                    tuple((name, value) for name, value in forced if value is not None),
                    conjunction(*conditions),
                    tuple(asks),
                )

    def owner(self, name: str) -> Principal:
        """Return the principal of an owner: a petname, or a principal's written form."""
        return Principal.parse(name) if ":" in name else self.names[name]

    # ------------------------------------------------------------------------------------------------------------------
    # Images.

    def image(self) -> "RoleImage":
        """Return the state, for `RoleImage.engine`."""
        numbers = {rule: number for number, rule in enumerate(self.policy.activations())}
        true = [
            SetFact(name, True, arguments)
            for name, declared in self._facts.items()
            if declared.kind is None
            for arguments in self._true.get((name,), ())
        ]
        false = [SetFact(name, value, arguments) for (name, arguments), value in self._known.items() if not value]
        values = [SetFact(name, value) for name, value in self._values.items() if value is not None]
        records = (
            _StoredCredential(
                one.id,
                one.kind,
                one.issuer,
                one.name,
                one.arguments,
                one.principal,
                one.since,
                one.until,
                one.session,
                None if one.rule is None else numbers[one.rule],
                tuple(map(_StoredReliance.of, one.relies_on)),
                one.appointer,
                one.domains,
            )
            for one in self._records.values()
        )
        return RoleImage(
            self.policy.source,
            tuple((name, principal) for name, principal in self.names.items() if name != SELF),
            self.now,
            self._count,
            tuple(self.sessions().items()),
            (*true, *false, *values),
            tuple(records),
            tuple((domain, record) for domain, found in self._notices.items() for record in found),
            tuple(self._revoked),
            tuple(self._ahead.items()),
        )

    def become(self, other: "RoleEngine") -> None:
        """Take over the whole state of another engine, which is not used any more."""
        before = self._versions
        turn = max(before.values(), default=0) + 1
        vars(self).update(vars(other))
        # Whoever remembers an answer asks again.
        self._versions = {who: turn + self._versions.get(who, 0) for who in (*before, *self._versions)}

    def restore(self, image: "RoleImage") -> None:
        """Take over the state of an image, in a new engine with its policy. Raises `MalformedError`."""
        effects, rules = _Effects(), tuple(self.policy.activations())
        self.now, self._count = image.now, image.count
        self._sessions = {name: _Session(principal) for name, principal in image.sessions}
        for fact in image.facts:
            self._plan_fact(fact)(effects)
        for one in image.records:
            if (one.rule is not None and one.rule >= len(rules)) or (one.session and one.session not in self._sessions):
                raise RoleRecord.malformed("a record of the image does not fit its policy or its sessions")
            self._declaration(one.kind, one.issuer, one.name)
            record = CredentialRecord(
                one.id,
                one.kind,
                one.issuer,
                one.name,
                one.arguments,
                one.principal,
                one.since,
                one.until,
                one.session,
                None if one.rule is None else rules[one.rule],
                tuple(reliance.reliance() for reliance in one.relies_on),
                one.appointer,
                one.domains,
            )
            if record.rule is None:
                self._keep(record, effects)
                continue
            for condition in record.rule.conditions:
                if isinstance(condition, WhereCondition):
                    self._compile(condition.selector)
            self._begin(record, list(self._groups(record.name, record.arguments)), effects)
        for domain, identifier in image.notices:
            self._notices.setdefault(domain, {})[identifier] = None
        self._revoked = dict.fromkeys(image.revoked)
        self._ahead = dict(image.ahead)

    # ------------------------------------------------------------------------------------------------------------------
    # Names.

    def _key(self, condition: CredentialCondition) -> CredentialKey:
        return condition.kind, self.names[condition.by], condition.name

    def _declaration(self, kind: CredentialKind, issuer: Principal, name: str) -> CredentialDeclaration:
        found = self._declared.get((kind, issuer, name))
        if found is None:
            by = "" if issuer == self.domain else f" by {issuer.short}"
            raise MalformedError("role.unknown", f"unknown {kind} `{name}`{by}", hint="declare it in the policy")
        return found

    def _session_of(self, session: str) -> _Session:
        found = self._sessions.get(session)
        if found is None:
            raise RefusedError("role.session", f"there is no open session `{session}`", hint="open one first")
        return found

    def _own(self, record: str, kind: CredentialKind) -> CredentialRecord:
        found = self._records.get((self.domain, record))
        if found is None or found.kind is not kind:
            raise _no_record(record)
        return found

    def _record_of(self, key: SupportKey) -> CredentialRecord:
        return self._records[key[1], key[2]]  # type: ignore[index]  # the key of a credential


@dataclass(frozen=True, slots=True)
class _StoredReliance(RoleRecord):
    """A predicate relied on, as it is written in an image: the kind of its key, and the parts of the key."""

    HEAD: ClassVar = b"reliance"
    kind: str
    condition: str
    member: str
    #: the issuer and the record, or the fact, or the selector
    text: Annotated[str, OMITTED] = ""
    issuer: Principal | None = None
    arguments: Annotated[Arguments, OMITTED] = ()
    #: the names of a selector's values
    names: Annotated[tuple[str, ...], OMITTED] = ()

    @classmethod
    def of(cls, one: RelianceRecord) -> "_StoredReliance":
        member = "yes" if one.member else "no"
        match one.key:
            case ("credential", Principal() as issuer, str(record)):
                return cls("credential", one.condition, member, record, issuer)
            case ("fact", str(name), tuple(arguments)):
                return cls("fact", one.condition, member, name, None, arguments)
            case _:
                values = selector_values(one.key)
                return cls("where", one.condition, member, str(one.key[1]), None, tuple(values.values()), tuple(values))

    def reliance(self) -> RelianceRecord:
        key: SupportKey
        match self.kind:
            case "credential":
                key = ("credential", self.issuer, self.text)
            case "fact":
                key = ("fact", self.text, self.arguments)
            case _:
                pairs = zip(self.names, self.arguments, strict=True)
                key = ("where", self.text, *(_typed(name, value) for name, value in pairs))
        return RelianceRecord(key, self.member == "yes", self.condition)


@dataclass(frozen=True, slots=True)
class _StoredCredential(RoleRecord):
    """A credential record as it is written in an image. `rule` is the number of the activation rule."""

    HEAD: ClassVar = b"record"
    id: str
    kind: CredentialKind
    issuer: Principal
    name: str
    arguments: Arguments
    principal: Principal
    since: datetime
    until: datetime | None = None
    session: Annotated[str, OMITTED] = ""
    rule: int | None = None
    relies_on: Annotated[tuple[_StoredReliance, ...], OMITTED] = ()
    appointer: Principal | None = None
    domains: Annotated[tuple[Principal, ...], OMITTED] = ()


@dataclass(frozen=True, slots=True)
class RoleImage(RoleRecord):
    """The state of an engine: a cache of the fold, so that a long ledger need not be folded again.

    Facts are in the order in which they became true, because activation tries them in this order.
    """

    HEAD: ClassVar = b"role-state"
    policy: str
    names: tuple[tuple[str, Principal], ...]
    now: datetime
    count: int
    sessions: tuple[tuple[str, Principal], ...]
    facts: tuple[SetFact, ...]
    records: tuple[_StoredCredential, ...]
    notices: tuple[tuple[Principal, str], ...]
    revoked: tuple[tuple[Principal, str], ...]
    ahead: tuple[tuple[Principal, int], ...]

    def engine(self, domain: Principal) -> RoleEngine:
        """Return an engine in this state. Raises `MalformedError` if the image does not fit together."""
        engine = RoleEngine(read_policy(self.policy), domain, dict(self.names))
        engine.restore(self)
        return engine


@dataclass(frozen=True, slots=True)
class RoleFounding(RoleRecord):
    """The beginning of a domain's roles: its policy, and the principals of other domains that the policy names."""

    HEAD: ClassVar = b"role-book"
    domain: Principal
    policy: str
    names: Annotated[tuple[tuple[str, Principal], ...], OMITTED] = ()

    def engine(self, *, history: bool = False) -> RoleEngine:
        """Return the state before the first change. Raises as `read_policy` and `RoleEngine`."""
        return RoleEngine(read_policy(self.policy), self.domain, dict(self.names), history=history)


@dataclass(frozen=True, slots=True)
class StoredRoles(Claim):
    """A domain's roles with all changes and their times, signed by the domain, for those without its store."""

    HEAD: ClassVar = b"roles"
    SIGNER: ClassVar = "domain"
    domain: Principal
    founding: RoleFounding
    changes: tuple[tuple[datetime, RoleChange], ...] = ()

    def __post_init__(self) -> None:
        if self.founding.domain != self.domain:
            raise RoleRecord.malformed("a domain signs its own roles")


class _Effects:
    """What a change causes, collected while it is carried out."""

    def __init__(self) -> None:
        self.record: CredentialRecord | None = None
        self.ended: list[EndedRecord] = []
        self.notices: list[tuple[Principal, str]] = []
        self.affected: dict[Principal, None] = {}

    def outcome(self) -> RoleOutcome:
        return RoleOutcome(self.record, tuple(self.ended), tuple(self.notices), frozenset(self.affected))


_Commit: TypeAlias = Callable[[_Effects], CredentialRecord | None]


def _domains(policy: RolePolicy, domain: Principal, names: Mapping[str, Principal]) -> Mapping[str, Principal]:
    found = {SELF: domain}
    for one in policy.statements:
        if isinstance(one, DomainDeclaration):
            principal = one.principal or names.get(one.name)
            if principal is None:
                raise MalformedError(
                    "role.unknown-domain",
                    f"domain `{one.name}` has no principal",
                    hint=f"write `domain {one.name} = ed25519:…;`, or give it a petname",
                )
            found[one.name] = principal
    return found


def _values(parameters: tuple[RoleParameter, ...], values: tuple[Value, ...], what: str) -> tuple[Value, ...]:
    """Check arguments against parameters and return them in canonical form."""
    return tuple(one for one in _arguments(parameters, values, what) if one is not None)


def _arguments(parameters: tuple[RoleParameter, ...], values: tuple[Scalar, ...], what: str) -> tuple[Scalar, ...]:
    """Check arguments, some of which may be left out."""
    if len(values) != len(parameters):
        raise MalformedError("role.arity", f"`{what}` has {len(parameters)} arguments, not {len(values)}")
    try:
        return tuple(
            None if value is None else one.kind.checked(value) for one, value in zip(parameters, values, strict=True)
        )
    except MalformedError as error:
        raise MalformedError("role.kind", f"an argument of `{what}` does not fit: {error.message}") from error


def _ground(term: RoleTerm, binding: Mapping[str, Value]) -> Scalar:
    match term:
        case RoleConstant(value):
            return canonical(value)
        case RoleVariable(name):
            return binding.get(name)
        case AnyValue() | EventAttribute():
            return None


def _known(terms: tuple[RoleTerm, ...], binding: Mapping[str, Value]) -> tuple[Scalar, ...]:
    """Return the values of terms, as far as they are known."""
    return tuple(_ground(term, binding) for term in terms)


def _unify(term: RoleTerm, value: Value, binding: Binding) -> bool:
    """Return whether a term can have a value; bind its variable."""
    match term:
        case RoleConstant(constant):
            return canonical(constant) == value
        case RoleVariable(name):
            return binding.setdefault(name, value) == value
        case AnyValue() | EventAttribute():
            return True


def _unified(terms: tuple[RoleTerm, ...], values: tuple[Value, ...], binding: Binding) -> Binding | None:
    """Return the binding with terms equal to values, or None if they cannot be."""
    found = dict(binding)
    if all(_unify(term, value, found) for term, value in zip(terms, values, strict=True)):
        return found
    return None


def substitute(selector: Selector, values: Mapping[str, Scalar]) -> Selector:
    """Return a selector with names replaced by values. Raises `LimitError` (`selector.limit`)."""

    def change(attribute: AttributeReference) -> Term:
        return literal(values[attribute.name]) if attribute.name in values else attribute

    return _rebuilt(selector, change)


def _arguments_of(
    terms: Mapping[str, RoleTerm], binding: Mapping[str, Value]
) -> Iterator[tuple[str, EventAttribute | Value]]:
    """Yield the arguments of a predicate: attributes stay names, and variables become values."""
    for name, term in terms.items():
        value = term if isinstance(term, EventAttribute) else _ground(term, binding)
        if value is None:
            raise MalformedError("role.unbound", f"parameter `{name}` of a predicate has no value")
        yield name, value


def _called(body: Selector, terms: Mapping[str, RoleTerm], binding: Mapping[str, Value]) -> Selector:
    """Return the body of a predicate with its arguments in place of its parameters."""

    def change(attribute: AttributeReference) -> Term:
        term = terms[attribute.name]
        if isinstance(term, EventAttribute):
            return AttributeReference(EVENT + term.name)
        return literal(_ground(term, binding))

    return _rebuilt(body, change)


def _rebuilt(selector: Selector, change: Callable[[AttributeReference], Term]) -> Selector:
    root: Node = map_attributes(selector.root, change)
    return built(root)  # type: ignore[arg-type]  # a condition stays one


def _true(selector: Selector, row: Mapping[str, Scalar]) -> bool:
    try:
        return evaluate(selector, row) is True
    except EvaluationError:
        return False


def _typed(name: str, value: Value) -> tuple[str, str, Value]:
    # In Python 1, 1.0 and True are equal; as values of a variable they are three.
    return name, type(value).__name__, value


def selector_values(key: SupportKey) -> dict[str, Value]:
    """Return the values of variables in the key of a selector."""
    found: dict[str, Value] = {}
    for one in key[2:]:
        match one:
            case (str(name), _, value) if isinstance(value, Value):
                found[name] = value
    return found


def _moment(now: datetime, zone: tzinfo) -> dict[str, Scalar]:
    local = now.astimezone(zone)
    return {"time": now, "hour": local.hour, "minute": local.minute, "weekday": local.isoweekday()}


def _next_moment(now: datetime, zone: tzinfo, names: frozenset[str], instants: Iterable[datetime]) -> datetime | None:
    """Return when a selector over names of time can next have another value.

    `time` can only be compared with instants, so it matters at those and directly after them. Offsets of time zones are
    multiples of a quarter of an hour.
    """
    found: list[datetime] = []
    if "time" in names:
        for instant in instants:
            found += [one for one in (instant, min(instant, _END_OF_TIME - _INSTANT) + _INSTANT) if one > now]
    clock = names - {"time"}
    if clock:
        step = _MINUTE if "minute" in clock else _QUARTER
        before = _moment(now, zone)
        moment = _BEGINNING + (now - _BEGINNING) // step * step
        while moment < _END_OF_TIME - 2 * step:
            moment += step
            after = _moment(moment, zone)
            if any(before[name] != after[name] for name in clock):
                found.append(moment)
                break
    return min(found, default=None)


def _discard(index: dict, key: object, member: object) -> None:  # type: ignore[type-arg]  # of any index
    """Remove a member from one of an index's sets, and the set if it is empty."""
    found = index.get(key)
    if found is not None:
        found.pop(member, None)
        if not found:
            del index[key]


def _uncount(index: dict, key: object, member: Principal) -> None:  # type: ignore[type-arg]  # of any index
    found = index.get(key)
    if found is not None:
        found[member] -= 1
        if not found[member]:
            _discard(index, key, member)


def _written(name: str, arguments: tuple[Scalar, ...]) -> str:
    listed = ", ".join("_" if one is None else str(one) for one in arguments)
    return f"`{name}({listed})`" if arguments else f"`{name}`"


def _not_appointer(by: Principal, verb: str, appointment: str) -> RefusedError:
    return RefusedError(
        "role.not-appointer",
        f"{by.short} may not {verb} `{appointment}`",
        hint=f"an active role with the privilege to {verb} it is needed",
    )


def _no_record(record: str) -> RefusedError:
    return RefusedError(
        "role.no-record", f"there is no valid record `{record}`", hint="it may have ended; list the valid ones"
    )

"""Active roles as a source of authority: privileges become branches (paper 2, section 4).

`ActiveRoles` answers from an engine: what roles permit now, until the first of the credentials that they rely on
expires. `RoleHistory` folds the changes of a ledger and answers about all times: which privilege was held in which
periods, so that last month's events are judged by last month's roles.

Roles grant rights on types and networks of named owners only: usually of the domain whose roles they are. A privilege
lists attributes by name. Those that a type does not have are left out; if a forced value or a predicate uses such an
attribute, the privilege grants nothing. A condition on the time of day is evaluated for each event, in the time zone of
the broker or job; on a network it cannot be, and grants nothing. A predicate that the policy declares without a
selector is a guard of the local broker (`BoundGuard`): if the broker does not know it, it refuses.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol

from penstock.errors import MalformedError, PenstockError
from penstock.guard.decision import DecisionProblem, EventRequest, NetworkRequest, Request, Ruling
from penstock.guard.enforce import BoundGuard
from penstock.guard.environment import environment_schema
from penstock.guard.restriction import Branch, TypeScope, When, check_forced, force
from penstock.model.limits import CACHE_ENTRIES
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.model.values import Schema
from penstock.roles.engine import (
    GroundEventPrivilege,
    GroundNetworkPrivilege,
    GroundPredicate,
    HeldPrivilege,
    RoleChange,
    RoleEngine,
    RoleOutcome,
)
from penstock.roles.language import EVENT, EventAttribute
from penstock.trust.caches import Recent
from penstock.trust.capabilities import Right
from penstock.trust.limits import GRANTS_PER_PRINCIPAL
from penstock.trust.validity import Validity

_INSTANT: Final = timedelta(microseconds=1)
#: types for which a principal's branches are remembered
_TYPES: Final = 256


@dataclass(frozen=True, slots=True)
class PrivilegePeriod:
    """A privilege, and a period in which it was or is held."""

    held: HeldPrivilege
    validity: Validity


class RoleSource(Protocol):
    """Says which privileges a principal has by its roles."""

    def version(self, principal: Principal, /) -> int:
        """Return a number that changes whenever the answer may have changed."""

    def periods(self, principal: Principal, /) -> tuple[PrivilegePeriod, ...]:
        """Return the privileges of a principal. Raises `LimitError` (`role.search`)."""


@dataclass(frozen=True, slots=True)
class ActiveRoles:
    """The roles that are active now in an engine, which others advance and change."""

    engine: RoleEngine

    def version(self, principal: Principal) -> int:
        """Return the engine's version of the principal's privileges."""
        return self.engine.version(principal)

    def periods(self, principal: Principal) -> tuple[PrivilegePeriod, ...]:
        """Return the privileges, each valid as long as its role can be."""
        return tuple(
            PrivilegePeriod(held, Validity.between(held.record.since, held.record.until))
            for held in self.engine.privileges(principal)
        )


class RoleHistory:
    """The privileges of all principals at all times, from the changes of a ledger.

    Raises as `RoleEngine.apply` for a change that does not fit.
    """

    def __init__(self, engine: RoleEngine, changes: Iterable[tuple[datetime, RoleChange]]) -> None:
        #: since when a privilege is held, in the order in which it began
        self._open: dict[Principal, dict[HeldPrivilege, datetime]] = {}
        self._closed: dict[Principal, list[PrivilegePeriod]] = {}
        self._engine = engine
        for now, change in changes:
            self.advance(now)
            self._note(engine.apply(change))

    def advance(self, now: datetime) -> None:
        """Let time pass up to an instant. Roles that end on the way end at their own times."""
        while (due := self._engine.next_due) is not None and due <= now:
            self._note(self._engine.advance(due))
        self._note(self._engine.advance(now))

    def _note(self, outcome: RoleOutcome) -> None:
        now = self._engine.now
        for principal in sorted(outcome.affected):
            held = dict.fromkeys(self._engine.privileges(principal))
            known = self._open.setdefault(principal, {})
            for one in [one for one in known if one not in held]:
                began = known.pop(one)
                if began < now:
                    period = Validity.between(began, now - _INSTANT)
                    self._closed.setdefault(principal, []).append(PrivilegePeriod(one, period))
            for one in held:
                known.setdefault(one, now)

    def version(self, _principal: Principal) -> int:
        """Return 0: what was does not change. Use a new authority after more changes were folded."""
        return 0

    def periods(self, principal: Principal) -> tuple[PrivilegePeriod, ...]:
        """Return the privileges that a principal has had, and has, with the periods."""
        current = (
            PrivilegePeriod(held, Validity.between(since, held.record.until))
            for held, since in self._open.get(principal, {}).items()
        )
        return (*self._closed.get(principal, ()), *current)


@dataclass(frozen=True, slots=True)
class _Privileges:
    """A principal's privileges, found by what is asked."""

    version: int
    named: Mapping[tuple[object, ...], list[PrivilegePeriod]]
    #: those on several types
    patterns: tuple[PrivilegePeriod, ...]
    #: what they give, by action and type
    made: dict[tuple[Right, str], tuple[tuple[Validity, Branch | DecisionProblem], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoleAuthority:
    """A source of authority based on roles. `owners` are those whose types and networks roles can grant rights on."""

    source: RoleSource
    owners: frozenset[Principal]
    environment: Schema = field(default_factory=environment_schema)
    #: identifies roles that do not change, in logs
    revision: str = ""
    _known: "Recent[Principal, _Privileges]" = field(
        default_factory=lambda: Recent(CACHE_ENTRIES), init=False, repr=False, compare=False
    )

    def rule(self, request: Request) -> Ruling:
        """Return a branch for each privilege that an active role gives. Raises `LimitError` (`role.search`)."""
        owner = request.network.owner if isinstance(request, NetworkRequest) else request.type.event_type.name.owner
        if owner not in self.owners:
            return Ruling()
        problems: list[DecisionProblem] = []
        found = self._on_network(request) if isinstance(request, NetworkRequest) else self._on_type(request, problems)
        branches: list[Branch] = []
        for branch in found:
            if len(branches) == GRANTS_PER_PRINCIPAL:
                message = "more privileges were found than are kept; some are left out"
                problems.append(DecisionProblem("guard.truncated", message))
                break
            branches.append(branch)
        refusals = () if branches else (self._refusal(request),)
        return Ruling(tuple(branches), tuple(problems), refusals)

    def _refusal(self, request: Request) -> DecisionProblem:
        what = request.network if isinstance(request, NetworkRequest) else request.type.event_type.name
        message = f"no active role lets {request.principal.short} {request.action} `{what.name}`"
        return DecisionProblem("role.not-allowed", message)

    def _privileges(self, principal: Principal) -> _Privileges:
        version = self.source.version(principal)
        known = self._known.get(principal)
        if known is None or known.version != version:
            named: dict[tuple[object, ...], list[PrivilegePeriod]] = {}
            patterns: list[PrivilegePeriod] = []
            for period in self.source.periods(principal):
                match period.held.privilege:
                    case GroundEventPrivilege(right, owner, types, below) if not below and not types.endswith("*"):
                        named.setdefault((right, owner, types), []).append(period)
                    case GroundEventPrivilege():
                        patterns.append(period)
                    case GroundNetworkPrivilege(right, network):
                        named.setdefault((right, network), []).append(period)
                    case _:
                        pass
            known = _Privileges(version, named, tuple(patterns))
            self._known.put(principal, known)
        return known

    def _on_network(self, request: NetworkRequest) -> Iterator[Branch]:
        for period in self._privileges(request.principal).named.get((request.action, request.network), ()):
            if period.validity.contains(request.now):
                when = When(period.validity, period.held.when)
                yield Branch(action=request.action, attributes=frozenset(), when=when, because=_because(period.held))

    def _on_type(self, request: EventRequest, problems: list[DecisionProblem]) -> Iterator[Branch]:
        privileges = self._privileges(request.principal)
        key = request.action, request.type.id
        made = privileges.made.get(key)
        if made is None:
            if len(privileges.made) >= _TYPES:
                privileges.made.clear()
            made = privileges.made[key] = tuple(self._branches(request, privileges))
        for validity, found in made:
            if request.now is not None and not validity.contains(request.now):
                continue
            if isinstance(found, Branch):
                yield found
            else:
                problems.append(found)

    def _branches(
        self, request: EventRequest, privileges: _Privileges
    ) -> Iterator[tuple[Validity, Branch | DecisionProblem]]:
        """Yield what privileges give on a type at all times, or why they cannot be used."""
        event_type = request.type.event_type
        name = event_type.name
        exact = (
            one for right in _rights(request.action) for one in privileges.named.get((right, name.owner, name.name), ())
        )
        wide = (one for one in privileges.patterns if _covers(one.held.privilege, request))
        for period in (*exact, *wide):
            privilege = period.held.privilege
            if not isinstance(privilege, GroundEventPrivilege):
                continue
            try:
                branch = _branch(request, period, privilege)
                _check(branch, event_type, self.environment)
            except PenstockError as error:
                yield period.validity, DecisionProblem(error.code, error.message, _because(period.held)[0])
            else:
                yield period.validity, branch


def _rights(action: Right) -> tuple[Right, ...]:
    """Return the rights that include an action: `manage` includes its single operations."""
    return (action, Right.MANAGE) if action.startswith("manage-") else (action,)


def _covers(privilege: object, request: EventRequest) -> bool:
    """Return whether a privilege on several types covers the type of a request."""
    if not isinstance(privilege, GroundEventPrivilege) or privilege.right not in _rights(request.action):
        return False
    event_type = request.type.event_type
    if privilege.below:
        return TypeKey(privilege.owner, privilege.types) in (event_type.key, *event_type.ancestors)
    name = event_type.name
    return name.owner == privilege.owner and name.name.startswith(privilege.types.removesuffix("*"))


def _branch(request: EventRequest, period: PrivilegePeriod, privilege: GroundEventPrivilege) -> Branch:
    event_type = request.type.event_type
    name, by_name = event_type.name, event_type.by_name
    used = [*(attribute for attribute, _ in privilege.forced)]
    used += [attribute.removeprefix(EVENT) for attribute in sorted(privilege.where.attributes)]
    used += [one.name for ask in privilege.asks for _, one in ask.arguments if isinstance(one, EventAttribute)]
    missing = [attribute for attribute in used if attribute not in by_name]
    if missing:
        raise MalformedError(
            "role.unknown-attribute",
            f"a privilege of role `{period.held.record.name}` depends on attribute `{missing[0]}`, which"
            f" `{name.name}` does not have",
            hint="correct the privilege, or split it by type",
        )
    listed = privilege.attributes
    return Branch(
        action=request.action,
        types=TypeScope((str(name.owner).encode(), name.name.encode(), name.version.encode())),
        attributes=None if listed is None else frozenset(by_name[one].id for one in listed if one in by_name),
        forced=force({by_name[attribute].id: value for attribute, value in privilege.forced}),
        where=privilege.where.rename({EVENT + one: str(by_name[one].id) for one in used}),
        guards=frozenset(_guard(one, event_type) for one in privilege.asks),
        when=When(period.validity, period.held.when),
        because=_because(period.held),
    )


def _guard(predicate: GroundPredicate, event_type: EventType) -> BoundGuard:
    arguments = dict(predicate.arguments)
    attributes = {
        name: event_type.by_name[one.name].id for name, one in arguments.items() if isinstance(one, EventAttribute)
    }
    constants = {name: one for name, one in arguments.items() if not isinstance(one, EventAttribute)}
    return BoundGuard(predicate.name, attributes, constants)


def _check(branch: Branch, event_type: EventType, environment: Schema) -> None:
    schema: Schema = {str(attribute.id): attribute.spec for attribute in event_type.attributes}
    check_forced(branch, event_type)
    branch.holds_where().check(schema)
    branch.when.condition.check(environment)


def _because(held: HeldPrivilege) -> tuple[str, ...]:
    """Return the ids of a role's record and of the credentials that it relies on."""
    record = held.record
    relied = (one.key for one in record.relies_on if one.key[0] == "credential")
    return (
        f"role:{record.issuer}/{record.id}",
        *(f"credential:{issuer}/{identifier}" for _, issuer, identifier in relied),
    )

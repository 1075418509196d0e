"""Attribute-based policies as a source of authority, combined with the others (paper 4, section 4.1.1).

Policies decide about every principal that publishes or subscribes: from facts about the requester and the type, for
each event, and for each attribute if a policy distinguishes attributes. The answer becomes branches. If it can be
expressed as a selector (`Residuals`), brokers push it towards publishers, and Spark turns it into columns. If it
cannot, for example because it depends on the current time, the local broker asks the policy about each event, by a
guard.

The domain that runs the policies chooses how they are combined with certificates and agreed rules:

| `PolicyCombining` | allowed is                                                                             |
|-------------------|----------------------------------------------------------------------------------------|
| `BOTH`            | what the others allow and policies permit                                              |
| `RESTRICT`        | what the others allow, unless policies deny it                                         |
| `ALONE`           | what policies permit                                                                   |
| `EITHER`          | what policies permit, and what the others allow unless policies deny it                |

It fails closed. In all four modes, requests that cannot be decided are denied, and so are requests that are permitted
with an obligation that this process cannot meet. The last two modes grant rights without certificates, so they apply
only to types of named owners. A right on a type includes its sub-types, so policies are asked about each known
sub-type, and events of unknown types are in no branch. If owners are named, their types that extend another owner's
type must be requested separately.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import reduce
from itertools import combinations
from operator import and_
from typing import Final, Protocol, TypeAlias, TypeGuard

from penstock.errors import EvaluationError, LimitError, MalformedError, RefusedError
from penstock.guard.capabilities import NamedRole
from penstock.guard.decision import Authority, DecisionProblem, EventRequest, Request, Ruling
from penstock.guard.enforce import OwnGuard
from penstock.guard.environment import ENVIRONMENT
from penstock.guard.limits import AGREED_BRANCHES, BROKER_VIEWS, RESIDUAL_KEPT
from penstock.guard.restriction import Branch, Restriction, When
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Domain, Principal
from penstock.model.types import Attribute, EventType
from penstock.model.values import Scalar, Schema
from penstock.policy.combining import POLICY_COMBINING, RULE_COMBINING, policy_algorithm
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.lookup import PolicySources, Repository, check_policies
from penstock.policy.language.datatypes import STRING, Value
from penstock.policy.language.event_attributes import (
    ATTRIBUTE_ID,
    ATTRIBUTE_NAME,
    EVENT,
    SUBJECT_OWNER_ROLE,
    SUBJECT_RIGHT,
    SUBJECT_ROLE,
    EventNames,
    action_facts,
    environment_facts,
    event_names,
    subject_facts,
    type_facts,
)
from penstock.policy.language.policies import Designator, Policy, PolicySet, Root, Rule, RuleEffect, designators
from penstock.policy.language.requests import ENVIRONMENT as ENVIRONMENT_CATEGORY
from penstock.policy.language.requests import RESOURCE, Facts, Key, key_of
from penstock.policy.language.requests import Request as PolicyRequest
from penstock.policy.language.results import PolicyOutcome, XacmlDecision
from penstock.policy.residual.partial_evaluation import Residual, residual
from penstock.selector import conjunction
from penstock.trust.capabilities import Right
from penstock.trust.event_types import VerifiedType
from penstock.trust.validity import ALWAYS, Validity

# ----------------------------------------------------------------------------------------------------------------------
# Provide policies with a requester's attributes: its domain, its roles, and its rights (an information port).
#
# Roles and rights come from certificates, which have dates. A request at one time uses those that are valid then. A
# request about all times is decided once for each period in which the same certificates are valid.

_INSTANT: Final = timedelta(microseconds=1)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)


class Certified(Authority, Protocol):
    """Certificates as a source of authority: rights, and names that they give."""

    def roles(self, request: EventRequest, /) -> tuple[NamedRole, ...]:
        """Return the names that certificates give to the requester."""


@dataclass(frozen=True, slots=True)
class SubjectFacts:
    """Facts for a request in a period, and the certificates that they depend on."""

    period: Validity
    facts: Facts
    because: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Right:
    """A requester's right, and the validity of the certificates that grant it."""

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
        if validity.starts is not None and validity.starts > _EARLIEST:
            starts.add(validity.starts)
        if validity.ends is not None and validity.ends < _LATEST:
            starts.add(validity.ends + _INSTANT)
    if len(starts) >= AGREED_BRANCHES:
        raise LimitError("guard.periods", "roles and rights change too often to distinguish them by time")
    before: datetime | None = None
    for start in sorted(starts):
        yield Validity.between(before, start - _INSTANT)
        before = start
    yield ALWAYS if before is None else Validity.between(before)


# ----------------------------------------------------------------------------------------------------------------------
# Compute residual policies as restrictions, so that requests are decided once, and events quickly.
#
# Where a policy tells attributes apart (`urn:penstock:attribute:name`, `urn:penstock:attribute:id`) it is asked about
# each attribute of the type: an event is shown where one attribute of it is permitted, with those that are. Other
# policies permit events whole.

#: the attributes that a policy requests if it distinguishes an event's attributes
_WHICH: Final = frozenset(key_of(RESOURCE, name, STRING) for name in (ATTRIBUTE_NAME, ATTRIBUTE_ID))


_Found: TypeAlias = Restriction | RefusedError
_Kept: TypeAlias = dict[tuple[Key, ...], dict[tuple[tuple[Value, ...], ...], _Found]]
"""Results by the requested attributes of the subject, and then by their values."""


@dataclass(frozen=True, slots=True)
class _About:
    """The question, without the subject."""

    action: Right
    event_type: EventType
    names: EventNames
    environment: Schema

    @property
    def key(self) -> tuple[object, ...]:
        """Return the cache key."""
        return self.action, self.event_type, tuple(self.names.attributes.items()), tuple(self.environment.items())


class Residuals:
    """The residual of one policy, cached for all subjects with the same attributes, as far as the policy uses them.

    The policies in `sources` must not depend on the request, nor change. `understood` are the obligations that
    enforcement meets. A permission with any other obligation is refused.
    """

    def __init__(
        self, root: Root, sources: PolicySources | None = None, understood: frozenset[str] = frozenset()
    ) -> None:
        self._root = root
        self._sources = sources
        self._understood = understood
        self._kept: dict[tuple[object, ...], _Kept] = {}
        self._count = 0

    def restriction(
        self,
        known: Facts,
        action: Right,
        event_type: EventType,
        *,
        names: EventNames | None = None,
        environment: Schema | None = None,
    ) -> Restriction:
        """Return what the policy permits of events of a type, given all that is known but the event.

        With `environment`, what brokers know of the moment may be asked for. Raises `RefusedError`:
        `policy.residual-fragment`, `policy.residual-limit`.
        """
        about = _About(action, event_type, names or event_names(event_type), environment or {})
        kept = self._kept.setdefault(about.key, {})
        # What is asked for depends on what is known, but there are few ways to go on.
        known_already = (kept[asked].get(_values(known, asked)) for asked in [*kept])
        found = next((one for one in known_already if one is not None), None) or self._keep(kept, known, about)
        if isinstance(found, RefusedError):
            # Raised once more as it is, it would gather the traces of all who met it.
            raise RefusedError(found.code, found.message, hint=found.hint, **found.fields)
        return found

    def _keep(self, kept: _Kept, known: Facts, about: _About) -> _Found:
        if self._count >= RESIDUAL_KEPT:
            self._kept, self._count = {}, 0
        gathered: set[Key] = set()
        try:
            found: _Found = self._left(known, about, gathered)
        except RefusedError as error:
            found = error
        asked = tuple(sorted(gathered, key=lambda key: (key.category, key.id, key.of.id)))
        kept.setdefault(asked, {})[_values(known, asked)] = found
        self._count += 1
        return found

    def _left(self, known: Facts, about: _About, asked: set[Key]) -> Restriction:
        """Return the residual, and collect the attributes that it used."""

        def left(facts: Facts) -> Residual:
            return residual(
                self._root, facts, about.names, environment=about.environment, sources=self._sources, asked=asked
            )

        found: list[tuple[AttributeId, Residual]] = []
        for attribute in about.event_type.attributes:
            one = left({**known, **about.names.of(attribute)})
            if not one.asked & _WHICH:
                return Restriction.of(_whole(one, about.action, self._understood))
            found.append((attribute.id, one))
        if not found:
            return Restriction.of(_whole(left(known), about.action, self._understood))
        return Restriction.of(_by_attributes(found, about.action, self._understood))


def _values(known: Facts, asked: tuple[Key, ...]) -> tuple[tuple[Value, ...], ...]:
    return tuple(known.get(key, ()) for key in asked)


def _whole(one: Residual, action: Right, understood: frozenset[str]) -> Iterator[Branch]:
    because = _because([one])
    for case in one.cases:
        if all(duty.id in understood for duty in case.obligations):
            yield Branch(action=action, where=case.where, when=When(condition=case.when), because=because)


def _by_attributes(
    found: Iterable[tuple[AttributeId, Residual]], action: Right, understood: frozenset[str]
) -> Iterator[Branch]:
    """Yield a branch for all attributes that are permitted of the same events."""
    alike: dict[Branch, list[tuple[AttributeId, Residual]]] = {}
    for attribute, one in found:
        for branch in _whole(one, action, understood):
            alike.setdefault(branch, []).append((attribute, one))
    for branch, those in alike.items():
        attributes = frozenset(attribute for attribute, _ in those)
        yield replace(branch, attributes=attributes, because=_because(one for _, one in those))


def _because(those: Iterable[Residual]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"policy:{policy.id}" for one in those for policy in one.policies))


# ----------------------------------------------------------------------------------------------------------------------
# Turn policies into branches: by selectors if that is possible, and otherwise by a guard.
#
# A guard asks the policy about each event that comes, and the moment at which it does. Only a local broker can do that:
# a question about all times, which a job on Spark asks, is then not answered, and that is a refusal.

RECORD: Final = "urn:penstock:obligation:record"
"""The obligation to write a decision down, which is met wherever something is decided before anybody has an answer."""

ALL: Final = "urn:penstock:policies"
"""The id of policy sets that are built around the configured policies."""

UNDERSTOOD: Final = frozenset({RECORD})
#: of the ids that an error names
_LONGEST: Final = 400
_ANY_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PolicyGuard:
    """A guard: asks a policy about each event. Raises if it cannot be decided, which refuses the event."""

    policy: CompiledPolicy
    known: Facts
    names: EventNames

    def __call__(self, values: Mapping[str, Scalar], environment: Mapping[str, Scalar]) -> bool:
        """Return whether the policy permits an event. Raises `EvaluationError` (`policies.indeterminate`)."""
        now = environment.get("time")
        if not isinstance(now, datetime):
            return False
        facts = {**self.known, **self.names.facts(values), **environment_facts(environment)}
        outcome = self.policy.ask(facts, now)
        if outcome.decision.indeterminate:
            raise EvaluationError("policies.indeterminate", "policies could not be decided about an event")
        return outcome.decision is XacmlDecision.PERMIT and not _unmet(outcome)


class PolicyBranches:
    """The branches of a policy, computed once for each type. `name` identifies its content.

    `of` are the policies that decide in it, and `asked` the attributes that they, and those they refer to, ask for.
    """

    def __init__(
        self, root: Root, sources: PolicySources, of: Iterable[Root], asked: Iterable[Designator], name: str
    ) -> None:
        ids = dict.fromkeys(one.id for one in of)
        self._because = tuple(f"policy:{one}" for one in ids)
        self._source = " ".join(ids)[:_LONGEST]
        self._left = Residuals(root, sources, UNDERSTOOD)
        self._compiled = CompiledPolicy(root, sources)
        self._name = name
        wanted = tuple(asked)
        #: whether a policy distinguishes an event's attributes
        self._by_attribute = any(one.id in {ATTRIBUTE_NAME, ATTRIBUTE_ID} for one in wanted)
        #: whether its answer depends on the event or on the environment
        self._depends = any(one.category == ENVIRONMENT_CATEGORY or one.id.startswith(EVENT) for one in wanted)

    def rule(self, request: EventRequest, names: EventNames, known: SubjectFacts, environment: Schema) -> Ruling:
        """Return the ruling for the facts that are known in a period."""
        try:
            found = self._branches(request, names, known.facts, environment)
        except RefusedError as error:
            message = f"only a broker can ask these policies, for each event: {error.message}"
            return Ruling(problems=(DecisionProblem("policies.each-event", message, self._source),))
        if request.action is Right.PUBLISH:
            found = tuple(_together(found))
        branches = tuple(
            replace(branch, when=replace(branch.when, validity=known.period), because=(*branch.because, *known.because))
            for branch in found
        )
        return Ruling(branches) if branches else self._why(request, known.facts)

    def _branches(
        self, request: EventRequest, names: EventNames, known: Facts, environment: Schema
    ) -> Sequence[Branch]:
        """Return the permitted branches. Raises `RefusedError` if they cannot be decided for all times."""
        if not self._depends:
            return tuple(self._asked_once(request, names, known))
        try:
            found = self._left.restriction(
                known, request.action, request.type.event_type, names=names, environment=environment
            )
        except RefusedError:
            if request.now is None:
                raise
            return tuple(self._asked_each(request, names, known))
        return tuple(replace(one, because=tuple(filter(_given, one.because))) for one in found.branches)

    def _asked_once(self, request: EventRequest, names: EventNames, known: Facts) -> Iterator[Branch]:
        """Yield branches if they do not depend on the event."""
        permitted: list[Attribute | None] = []
        because: dict[str, None] = {}
        for attribute, facts in self._parts(request, names, known):
            asked = replace(PolicyRequest.of_facts(facts), return_policy_ids=True)
            outcome = self._compiled.ask_request(asked, request.now or _ANY_TIME)
            if outcome.decision is XacmlDecision.PERMIT and not _unmet(outcome):
                permitted.append(attribute)
                because.update(dict.fromkeys(filter(_given, (f"policy:{one.id}" for one in outcome.applicable))))
        if permitted:
            shown = frozenset(attribute.id for attribute in permitted if attribute is not None)
            attributes = None if None in permitted else shown
            yield Branch(action=request.action, attributes=attributes, because=tuple(because))

    def _asked_each(self, request: EventRequest, names: EventNames, known: Facts) -> Iterator[Branch]:
        """Yield branches that the local broker evaluates for each event."""
        for attribute, facts in self._parts(request, names, known):
            yield Branch(
                action=request.action,
                attributes=None if attribute is None else frozenset({attribute.id}),
                guards=frozenset({self._guard(facts, names)}),
                because=self._because,
            )

    def _parts(
        self, request: EventRequest, names: EventNames, known: Facts
    ) -> Iterator[tuple[Attribute | None, Facts]]:
        """Yield the questions: each attribute if a policy distinguishes them, otherwise the event."""
        attributes = request.type.event_type.attributes if self._by_attribute else ()
        yield from ((attribute, {**known, **names.of(attribute)}) for attribute in attributes)
        if not attributes:
            yield None, known

    def _guard(self, facts: Facts, names: EventNames) -> OwnGuard:
        """Return a guard, named by everything that its answers depend on except the event and the environment."""
        about = sorted((key.category, key.id, key.of.id, values) for key, values in facts.items())
        called = sorted((name, attribute.id) for name, attribute in names.attributes.items())
        name = hashlib.sha256(repr((self._name, about, called)).encode()).hexdigest()[:32]
        return OwnGuard(f"policy:{name}", PolicyGuard(self._compiled, facts, names))

    def _why(self, request: EventRequest, known: Facts) -> Ruling:
        """Explain why nothing is permitted whatever the event is; name only a policy's id."""
        about = f"{request.principal.short} {request.action} `{request.type.event_type.name.name}`"
        outcome = self._compiled.ask(known, request.now or _ANY_TIME)
        unmet = _unmet(outcome)
        if outcome.decision is XacmlDecision.PERMIT and unmet:
            message = f"policies let {about} with an obligation that is not known here: `{unmet[0][:120]}`"
            return Ruling(problems=(DecisionProblem("policies.obligation", message, self._source),))
        if outcome.decision.indeterminate:
            missing = ", ".join(f"`{one.id[:120]}`" for one in outcome.status.missing)
            message = f"whether policies let {about} could not be decided{f': {missing} is missing' if missing else ''}"
            return Ruling(problems=(DecisionProblem("policies.indeterminate", message, self._source),))
        message = f"policies do not let {about}"
        return Ruling(refusals=(DecisionProblem("policies.not-permitted", message, self._source),))


def _together(branches: Sequence[Branch]) -> Iterator[Branch]:
    """Yield branches to publish, and their combinations.

    A condition of a right to publish is evaluated on the attributes of that right, and may need another branch's
    attribute.
    """
    yield from branches
    apart = [branch for branch in branches if branch.attributes is not None]
    most = len(apart) if len(apart) <= BROKER_VIEWS else 1
    sizes = {*range(2, most + 1), len(apart)} - {0, 1}
    yield from (reduce(_with, some) for size in sorted(sizes) for some in combinations(apart, size))


def _with(one: Branch, other: Branch) -> Branch:
    """Return a branch with the attributes of two branches, valid if both are."""
    return replace(
        one,
        attributes=(one.attributes or frozenset()) | (other.attributes or frozenset()),
        where=conjunction(one.where, other.where),
        guards=one.guards | other.guards,
        when=replace(one.when, condition=conjunction(one.when.condition, other.when.condition)),
        because=tuple(dict.fromkeys(one.because + other.because)),
    )


def _given(policy: str) -> bool:
    """Return whether a policy was configured, and not only built around others."""
    return not policy.startswith(f"policy:{ALL}")


def _unmet(outcome: PolicyOutcome) -> tuple[str, ...]:
    """Return the obligations that this process cannot meet."""
    return tuple(one.id for one in outcome.obligations if one.id not in UNDERSTOOD)


# ----------------------------------------------------------------------------------------------------------------------
# The source of authority, and how it is combined with the others.


KnownTypes: TypeAlias = Callable[[TypeKey, datetime | None], Iterable[VerifiedType]]
"""Says which versions are known of a type and of all that extends it; where a time is given, those valid then."""

DENY_OVERRIDES: Final = POLICY_COMBINING["deny-overrides"]
_FIRST: Final = POLICY_COMBINING["first-applicable"]
_RULES: Final = RULE_COMBINING["permit-unless-deny"]
_OTHERWISE: Final = Policy(f"{ALL}:otherwise", "1.0", _RULES, (Rule("otherwise", RuleEffect.PERMIT),))
_RIGHTS: Final = frozenset({Right.PUBLISH, Right.SUBSCRIBE})


def no_other_types(_key: TypeKey, _now: datetime | None) -> tuple[VerifiedType, ...]:
    """Know only the type in question."""
    return ()


class PolicyCombining(StrEnum):
    """How policies combine with other sources of authority. See the module."""

    BOTH = "both"
    RESTRICT = "restrict"
    ALONE = "alone"
    EITHER = "either"

    @property
    def grants(self) -> bool:
        """Whether policies grant rights without certificates."""
        return self in (PolicyCombining.ALONE, PolicyCombining.EITHER)


@dataclass(frozen=True, slots=True)
class Policies:
    """Policies that a domain uses. `Policies.of` builds them. Without any, the other sources decide."""

    #: what they permit, what they do not deny, or both, depending on `combining`
    readings: tuple[PolicyBranches, ...] = field(default=(), repr=False)
    combining: PolicyCombining = PolicyCombining.BOTH
    #: the owners whose types they decide about; empty means all owners
    owners: frozenset[Principal] = frozenset()
    #: the domains of principals
    domains: tuple[Domain, ...] = ()
    #: the ids of the attributes that they request
    asked: frozenset[str] = field(default=frozenset(), repr=False)
    #: identifies them in logs
    revision: str = ""

    @classmethod
    def of(
        cls,
        *roots: Root,
        refer: Iterable[Root] = (),
        apply: str = DENY_OVERRIDES,
        combining: PolicyCombining = PolicyCombining.BOTH,
        owners: Iterable[Principal] = (),
        domains: tuple[Domain, ...] = (),
    ) -> "Policies":
        """Combine the policies that decide, by an algorithm if there are several, and the policies that they refer to.

        Raises `MalformedError`: `policies.none`, `policies.owners` if policies would grant rights on all owners' types,
        `xacml.combining`; `xacml.duplicate`, `xacml.unknown` and `xacml.cycle` as `check_policies`.
        """
        concerned, referred = frozenset(owners), tuple(refer)
        if not roots:
            raise MalformedError("policies.none", "there is no policy that decides", hint="name at least one")
        if combining.grants and not concerned:
            raise MalformedError(
                "policies.owners",
                f"policies combined by `{combining}` would grant rights on all owners' types without certificates",
                hint="name the owners whose types they decide about",
            )
        policy_algorithm(apply)
        root = roots[0] if len(roots) == 1 else PolicySet(ALL, "1.0", apply, roots)
        check_policies(roots, referred)
        known = Repository(referred)
        asked = frozenset(one for policy in (*roots, *referred) for one in designators(policy))
        revision = _revision((*roots, *referred), apply, combining, sorted(concerned), domains)
        readings = [root] if combining is not PolicyCombining.RESTRICT else []
        if combining in (PolicyCombining.RESTRICT, PolicyCombining.EITHER):
            # A policy that permits, after the configured ones, permits everything that is not denied.
            readings.append(PolicySet(ALL, "1.0", _FIRST, (root, _OTHERWISE)))
        return cls(
            tuple(PolicyBranches(one, known, roots, asked, f"{revision} {one is root}") for one in readings),
            combining,
            concerned,
            domains,
            frozenset(one.id for one in asked),
            revision,
        )

    def concern(self, request: Request) -> TypeGuard[EventRequest]:
        """Return whether policies decide about a request: to publish or subscribe to a type of these owners."""
        if not isinstance(request, EventRequest) or request.action not in _RIGHTS:
            return False
        return not self.owners or request.type.event_type.name.owner in self.owners

    def over(
        self,
        authority: Authority,
        certified: Certified,
        types: KnownTypes = no_other_types,
        environment: Schema = ENVIRONMENT,
    ) -> Authority:
        """Return a source that combines another one with policies.

        `certified` provides roles and rights, and `environment` says which facts are known when an event passes.
        """
        if not self.readings:
            return authority
        return Governed(authority, self, Subjects(certified, self.domains, self.asked), types, environment)


NO_POLICIES: Final = Policies()


def _revision(policies: Iterable[Root], *more: object) -> str:
    """Return a digest of the policies and of how they are combined."""
    # XML takes a while to import, and most commands have no policies of this kind.
    from penstock.policy.syntax.xml.policies import write_policy  # noqa: PLC0415

    found = hashlib.sha256(repr(more).encode())
    for policy in policies:
        found.update(hashlib.sha256(write_policy(policy)).digest())
    return f"policies:{found.hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class Governed:
    """A source of authority combined with policies. See the module."""

    authority: Authority
    policies: Policies
    subjects: Subjects
    types: KnownTypes
    environment: Schema

    def rule(self, request: Request) -> Ruling:
        """Return the ruling. Raises errors of the source, and `LimitError` (`guard.periods`)."""
        if not self.policies.concern(request):
            return self._beside(request)
        match self.policies.combining, *self.policies.readings:
            case PolicyCombining.BOTH | PolicyCombining.RESTRICT, PolicyBranches() as reading:
                return self._within(request, reading)
            case PolicyCombining.ALONE, PolicyBranches() as permits:
                return self._said(request, permits)
            case PolicyCombining.EITHER, PolicyBranches() as permits, PolicyBranches() as tolerates:
                return self._said(request, permits) | self._within(request, tolerates)
        raise MalformedError("policies.none", "there is no policy that decides")

    def _beside(self, request: Request) -> Ruling:
        """Return the source's ruling on types that policies do not concern.

        A subscription includes sub-types, and some of them may belong to an owner that policies decide about. Those
        sub-types must be requested separately.
        """
        ruling = self.authority.rule(request)
        if not isinstance(request, EventRequest) or request.action is not Right.SUBSCRIBE:
            return ruling
        own = request.type.event_type.key
        known = {own, *(one.event_type.key for one in self.types(own, request.now))}
        others = frozenset(key for key in known if key.owner not in self.policies.owners)
        found = (one.intersect(Branch(action=one.action, only=others)) for one in ruling.branches)
        return replace(ruling, branches=tuple(one for one in found if one is not None))

    def _within(self, request: EventRequest, reading: PolicyBranches) -> Ruling:
        ruling = self.authority.rule(request)
        return ruling & self._said(request, reading) if ruling.branches else ruling

    def _said(self, request: EventRequest, reading: PolicyBranches) -> Ruling:
        """Return the policies' ruling on a type and, for a subscription, on each type that extends it."""
        known = tuple(self.types(request.type.event_type.key, request.now))
        own = request.type.event_type.key
        ruling = self._about(request, [one for one in known if one.event_type.key == own], reading)
        if request.action is Right.PUBLISH:
            return ruling
        found = {own: ruling}
        for key in dict.fromkeys(one.event_type.key for one in known if one.event_type.key != own):
            versions = [one for one in known if one.event_type.key == key]
            # An event's version is not known here, so all versions must be permitted.
            found[key] = reduce(and_, (self._about(replace(request, type=one), versions, reading) for one in versions))
        problems = [problem for one in found.values() for problem in one.problems]
        branches = tuple(_by_types({key: one.branches for key, one in found.items()}))
        return Ruling(branches, tuple(dict.fromkeys(problems)), ruling.refusals)

    def _about(self, request: EventRequest, versions: Sequence[VerifiedType], reading: PolicyBranches) -> Ruling:
        names = event_names(request.type.event_type, [one.event_type for one in versions])
        rulings = [reading.rule(request, names, known, self.environment) for known in self.subjects.known(request)]
        branches = tuple(branch for one in rulings for branch in one.branches)
        problems = tuple(dict.fromkeys(problem for one in rulings for problem in one.problems))
        refusals = () if branches else tuple(dict.fromkeys(problem for one in rulings for problem in one.refusals))
        return Ruling(branches, problems, refusals)


def _by_types(found: dict[TypeKey, tuple[Branch, ...]]) -> Iterator[Branch]:
    """Yield branches that say about which types they are; those that differ in nothing else are one."""
    types: dict[Branch, set[TypeKey]] = {}
    because: dict[Branch, dict[str, None]] = {}
    for key, branches in found.items():
        for branch in branches:
            types.setdefault(branch, set()).add(key)
            because.setdefault(branch, {}).update(dict.fromkeys(branch.because))
    for branch, keys in types.items():
        yield replace(branch, only=frozenset(keys), because=tuple(because[branch]))

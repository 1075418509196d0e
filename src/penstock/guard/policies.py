"""Attribute-based policies as a source of authority, and how it meets the others (paper 4, section 4.1.1).

A policy is asked about everybody who publishes or subscribes: with what is known of who asks and of the type, for each
event, and for each attribute of it where a policy tells them apart. What it says becomes branches: where that can be
said as a selector (`penstock.guard.residuals`) it is pushed towards publishers, and Spark makes columns of it; where it
cannot, because it depends on the moment, say, the local broker asks the policy about each event, by a guard.

What policies mean beside certificates and agreed rules is for the domain to say that runs them:

| `PolicyCombining` | allowed is                                                                             |
|-------------------|----------------------------------------------------------------------------------------|
| `BOTH`            | what the others allow and policies permit                                              |
| `RESTRICT`        | what the others allow, unless policies deny it                                         |
| `ALONE`           | what policies permit                                                                   |
| `EITHER`          | what policies permit, and what the others allow unless policies deny it                |

It fails closed. Whatever cannot be decided is denied, whichever of these it is; and so is what is permitted with an
obligation that nobody here can meet. The last two give rights without certificates, so that they count only for types
of owners who are named. A right on a type brings what extends it; so policies are asked about each type below that is
known, and events of types that are not known are in no branch. Where owners are named, types of theirs that extend
somebody else's have to be asked for by themselves.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import reduce
from operator import and_
from typing import Final, TypeAlias, TypeGuard

from penstock.errors import MalformedError
from penstock.guard.decision import Authority, EventRequest, Request, Ruling
from penstock.guard.environment import ENVIRONMENT
from penstock.guard.policy_branches import ALL, PolicyBranches
from penstock.guard.policy_subjects import Certified, Subjects
from penstock.guard.restriction import Branch
from penstock.model.domains import Domain
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.values import Schema
from penstock.policy.combining.registry import POLICY_COMBINING, RULE_COMBINING, policy_algorithm
from penstock.policy.engine.repository import Repository, check_policies
from penstock.policy.language.event_attributes import event_names
from penstock.policy.language.policies import Policy, PolicySet, Root, Rule, RuleEffect, designators
from penstock.policy.syntax.xml.policy_writer import write_policy
from penstock.trust.capabilities import Right
from penstock.trust.event_types import VerifiedType

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
        """Say whether policies grant rights without certificates."""
        return self in (PolicyCombining.ALONE, PolicyCombining.EITHER)


@dataclass(frozen=True, slots=True)
class Policies:
    """Policies that a domain uses. `Policies.of` builds them. Without any, the other sources decide."""

    #: what they permit, what they do not deny, or both, as it is combined
    readings: tuple[PolicyBranches, ...] = field(default=(), repr=False)
    combining: PolicyCombining = PolicyCombining.BOTH
    #: whose types they are about; without any, everybody's
    owners: frozenset[Principal] = frozenset()
    #: where principals are at home
    domains: tuple[Domain, ...] = ()
    #: the ids of attributes that they ask for
    asked: frozenset[str] = field(default=frozenset(), repr=False)
    #: tells them from all others, for logs
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
        """Put policies together: those that decide, by an algorithm where they are several, and those referred to.

        Raises `MalformedError`: `policies.none`, `policies.owners` where policies would give rights on everybody's
        types, `xacml.combining`; `xacml.duplicate`, `xacml.unknown` and `xacml.cycle` as `check_policies`.
        """
        concerned, referred = frozenset(owners), tuple(refer)
        if not roots:
            raise MalformedError("policies.none", "there is no policy that decides", hint="name one at least")
        if combining.grants and not concerned:
            raise MalformedError(
                "policies.owners",
                f"policies that count by `{combining}` give rights without certificates, on everybody's types",
                hint="say for whose types they do: name their owners",
            )
        policy_algorithm(apply)
        root = roots[0] if len(roots) == 1 else PolicySet(ALL, "1.0", apply, roots)
        check_policies(roots, referred)
        known = Repository(referred)
        asked = frozenset(one for policy in (*roots, *referred) for one in designators(policy))
        revision = _revision((*roots, *referred), apply, combining, sorted(concerned), domains)
        readings = [root] if combining is not PolicyCombining.RESTRICT else []
        if combining in (PolicyCombining.RESTRICT, PolicyCombining.EITHER):
            # What is not denied is what they permit, followed by a policy that permits.
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
        """Say whether policies are asked about a request: to publish or subscribe to a type of these owners."""
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

        `certified` says who has which roles, and `environment` what is known of the moment at which an event passes.
        """
        if not self.readings:
            return authority
        return Governed(authority, self, Subjects(certified, self.domains, self.asked), types, environment)


NO_POLICIES: Final = Policies()


def _revision(policies: Iterable[Root], *more: object) -> str:
    """Return a digest of the policies and of how they are combined."""
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

        Who subscribes to a type gets what extends it too, and that may belong to somebody whose types they are about:
        such types have to be asked for by themselves.
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
        """Return what policies say about a type, and where it is subscribed to, about each that extends it."""
        known = tuple(self.types(request.type.event_type.key, request.now))
        own = request.type.event_type.key
        ruling = self._about(request, [one for one in known if one.event_type.key == own], reading)
        if request.action is Right.PUBLISH:
            return ruling
        found = {own: ruling}
        for key in dict.fromkeys(one.event_type.key for one in known if one.event_type.key != own):
            versions = [one for one in known if one.event_type.key == key]
            # Which version an event is of, nobody asks: it has to be allowed in all of them.
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

"""The oracle: roles of several domains as a fixed point, recomputed from everything after every step.

Nothing is indexed. A credential is valid if it has not expired, its session is open, and each marked condition that it
was issued on is true. What is not valid is removed, until nothing changes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import product

from penstock.model.principals import Principal
from penstock.model.values import Scalar, Value
from penstock.roles.language import (
    ActivationRule,
    AnyValue,
    CredentialCondition,
    CredentialKind,
    EventPrivilege,
    FactCondition,
    RoleCardinality,
    RoleCondition,
    RoleConstant,
    RolePolicy,
    RoleTerm,
    RoleVariable,
    SeparationOfDuty,
    WhereCondition,
)
from penstock.selector import evaluate

QUARTER = timedelta(minutes=15)
INSTANT = timedelta(microseconds=1)


@dataclass
class NaiveCredential:
    id: str
    kind: CredentialKind
    issuer: Principal
    name: str
    arguments: tuple[Value, ...]
    principal: Principal
    until: datetime | None = None
    session: str = ""
    relies_on: tuple[tuple[object, ...], ...] = ()
    rule: ActivationRule | None = None


@dataclass
class NaiveDomain:
    world: "NaiveWorld"
    policy: RolePolicy
    principal: Principal
    names: dict[str, Principal]
    count: int = 0
    sessions: dict[str, Principal] = field(default_factory=dict)
    held: list[NaiveCredential] = field(default_factory=list)
    lookups: dict[tuple[str, tuple[Value, ...]], bool | None] = field(default_factory=dict)
    values: dict[str, Scalar] = field(default_factory=dict)

    def row(self) -> dict[str, Scalar]:
        now = self.world.now
        clock: dict[str, Scalar] = {"time": now, "hour": now.hour, "minute": now.minute, "weekday": now.isoweekday()}
        return {**dict.fromkeys(self.policy.scalars()), **self.values, **clock}

    def valid(self, one: NaiveCredential) -> bool:
        if one.until is not None and one.until < self.world.now:
            return False
        if one.session and one.session not in self.sessions:
            return False
        if one.issuer != self.principal:
            issuer = self.world.domains[one.issuer]
            return any(known.id == one.id for known in issuer.held if known.issuer == one.issuer)
        return all(self.true(key) for key in one.relies_on)

    def true(self, key: tuple[object, ...]) -> bool:
        match key:
            case ("credential", issuer, record):
                return any((one.issuer, one.id) == (issuer, record) for one in self.held)
            case ("fact", str(name), tuple(arguments)):
                return self.lookups.get((name, arguments)) is True
            case ("where", selector, tuple(pairs)):
                return evaluate(selector, {**self.row(), **dict(pairs)}) is True  # type: ignore[arg-type]
        raise AssertionError(key)

    def candidates(self, condition: RoleCondition, principal: Principal, session: str) -> Iterator[object]:
        match condition:
            case CredentialCondition(kind=kind, name=name, by=by):
                for one in self.held:
                    mine = (one.kind, one.issuer, one.name) == (kind, self.names[by], name)
                    if mine and one.principal == principal and one.session in ("", session):
                        yield one
            case FactCondition(name=name):
                yield from (key for key, value in self.lookups.items() if key[0] == name and value is True)
            case WhereCondition():
                yield None

    def activate(
        self, session: str, role: str, wanted: tuple[Scalar, ...]
    ) -> tuple[tuple[Value, ...], list[tuple[bool, tuple[object, ...]]], ActivationRule] | None:
        principal = self.sessions[session]
        for rule in self.policy.activations():
            if rule.role != role:
                continue
            ordered = sorted(rule.conditions, key=lambda one: isinstance(one, WhereCondition))
            for chosen in product(*(self.candidates(one, principal, session) for one in ordered)):
                binding: dict[str, Value] = {"principal": str(principal)}
                known = [v is None or unify(t, v, binding) for t, v in zip(rule.arguments, wanted, strict=True)]
                if not all(known):
                    continue
                keys = [self.key(one, what, binding) for one, what in zip(ordered, chosen, strict=True)]
                if None in keys:
                    continue
                found = tuple(value_of(term, binding) for term in rule.arguments)
                if None not in found:
                    relied = [(one.member, key) for one, key in zip(ordered, keys, strict=True) if key is not None]
                    return tuple(v for v in found if v is not None), relied, rule
        return None

    def replace(self, policy: RolePolicy) -> None:
        """Use another policy: issue everything again in its order, except for what the policy does not permit."""
        before, self.held, self.policy = self.held, [], policy
        for one in before:
            own = one.issuer == self.principal
            if own and self.separated(one.principal, one.kind, one.name, one.arguments):
                continue
            if own and one.kind is CredentialKind.ROLE:
                kept = one.rule in policy.activations() and all(self.true(key) for key in one.relies_on)
                if not kept or self.full(one.principal, one.name, one.arguments):
                    continue
            self.held.append(one)

    def key(self, condition: RoleCondition, what: object, binding: dict[str, Value]) -> tuple[object, ...] | None:
        match condition, what:
            case CredentialCondition(arguments=terms), NaiveCredential():
                pairs = zip(terms, what.arguments, strict=True)
                return ("credential", what.issuer, what.id) if all(unify(t, v, binding) for t, v in pairs) else None
            case FactCondition(name=name, arguments=terms), (_, tuple(arguments)):
                pairs = zip(terms, arguments, strict=True)
                return ("fact", name, arguments) if all(unify(t, v, binding) for t, v in pairs) else None
            case WhereCondition(selector=selector), _:
                values = {name: binding[name] for name in sorted(selector.attributes & binding.keys())}
                if selector.attributes - values.keys() - self.row().keys():
                    return None
                key = ("where", selector, tuple(values.items()))
                return key if self.true(key) else None
        raise AssertionError(condition)

    def separated(self, principal: Principal, kind: CredentialKind, name: str, arguments: tuple[Value, ...]) -> bool:
        for one in self.policy.statements:
            if not isinstance(one, SeparationOfDuty):
                continue
            for mine, other in product(one.members, one.members):
                if mine.name == other.name or (mine.kind, mine.name) != (kind, name):
                    continue
                for held in self.held:
                    key = (other.kind, self.names[other.by], other.name, principal)
                    if (held.kind, held.issuer, held.name, held.principal) != key:
                        continue
                    binding: dict[str, Value] = {}
                    pairs = [*zip(mine.arguments, arguments, strict=False)]
                    pairs += [*zip(other.arguments, held.arguments, strict=False)]
                    if all(unify(term, value, binding) for term, value in pairs):
                        return True
        return False

    def full(self, principal: Principal, role: str, arguments: tuple[Value, ...]) -> bool:
        for one in self.policy.statements:
            if not isinstance(one, RoleCardinality) or one.role != role:
                continue
            if not unifies(one.arguments, arguments):
                continue
            same = {
                held.principal
                for held in self.held
                if held.kind is CredentialKind.ROLE
                and held.issuer == self.principal
                and held.name == role
                and unifies(one.arguments, held.arguments)
                and all(
                    isinstance(term, AnyValue) or a == b
                    for term, a, b in zip(one.arguments, arguments, held.arguments, strict=False)
                )
            }
            if principal not in same and len(same) >= one.most:
                return True
        return False

    def privileges(self, principal: Principal) -> list[tuple[str, tuple[Value, ...]]]:
        """Return the types that active roles permit now, with their forced values."""
        found: list[tuple[str, tuple[Value, ...]]] = []
        for held, rule in product(self.held, self.policy.authorisations()):
            if (held.issuer, held.name, held.principal) != (self.principal, rule.role, principal) or not held.session:
                continue
            for chosen in product(*(self.candidates(one, principal, held.session) for one in rule.conditions)):
                binding: dict[str, Value] = {"principal": str(principal)}
                pairs = zip(rule.arguments, held.arguments, strict=True)
                if not all(unify(term, value, binding) for term, value in pairs):
                    continue
                ordered = sorted(
                    zip(rule.conditions, chosen, strict=True), key=lambda pair: isinstance(pair[0], WhereCondition)
                )
                if None not in [self.key(one, what, binding) for one, what in ordered]:
                    assert isinstance(rule.privilege, EventPrivilege)
                    values = (value_of(term, binding) for _, term in rule.privilege.forced)
                    found.append((rule.privilege.types, tuple(one for one in values if one is not None)))
        return sorted(found)

    def next_id(self) -> str:
        self.count += 1
        return str(self.count)


@dataclass
class NaiveWorld:
    now: datetime
    domains: dict[Principal, NaiveDomain] = field(default_factory=dict)

    def settle(self) -> None:
        changed = True
        while changed:
            changed = False
            for domain in self.domains.values():
                left = [one for one in domain.held if domain.valid(one)]
                changed |= len(left) != len(domain.held)
                domain.held = left

    def advance(self, now: datetime) -> None:
        """Look at every quarter of an hour, and directly after it."""
        while self.now < now:
            beginning = self.now.replace(minute=self.now.minute // 15 * 15, second=0, microsecond=0)
            steps = [beginning + INSTANT, beginning + QUARTER, now]
            self.now = min(step for step in steps if step > self.now)
            self.settle()


def unify(term: RoleTerm, value: Value, binding: dict[str, Value]) -> bool:
    match term:
        case RoleConstant(constant):
            return constant == value
        case RoleVariable(name):
            return binding.setdefault(name, value) == value
        case _:
            return True


def unifies(terms: tuple[RoleTerm, ...], values: tuple[Value, ...]) -> bool:
    binding: dict[str, Value] = {}
    return all(unify(term, value, binding) for term, value in zip(terms, values, strict=False))


def value_of(term: RoleTerm, binding: dict[str, Value]) -> Scalar:
    match term:
        case RoleConstant(value):
            return value
        case RoleVariable(name):
            return binding.get(name)
        case _:
            return None

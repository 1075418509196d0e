"""Explain roles: why one is active, why one cannot be activated, what is missing, and what would be lost with it."""

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.errors import RefusedError
from penstock.model.principals import Petnames, Principal
from penstock.model.values import Scalar, Value
from penstock.roles.engine import ActivateRole, Binding, CredentialRecord, RoleEngine, SupportKey, selector_values
from penstock.roles.language import (
    PRINCIPAL,
    ActivationRule,
    CredentialCondition,
    FactCondition,
    RoleCondition,
    RoleConstant,
    RoleTerm,
    RoleVariable,
    WhereCondition,
    format_condition,
)
from penstock.roles.limits import EXPLAIN_STEPS


@dataclass(frozen=True, slots=True)
class ConditionState:
    """A condition of a rule with the values that are known, and whether it is satisfied."""

    condition: str
    satisfied: bool
    member: bool
    #: what satisfies it, or why it is not satisfied
    reason: str


@dataclass(frozen=True, slots=True)
class RuleAttempt:
    """How far one rule gets: its conditions in the order of the policy, with as few missing as possible."""

    line: int
    conditions: tuple[ConditionState, ...]

    @property
    def missing(self) -> tuple[ConditionState, ...]:
        """The conditions that are not satisfied."""
        return tuple(one for one in self.conditions if not one.satisfied)


@dataclass(frozen=True, slots=True)
class RoleExplanation:
    """The answer about one role of a session."""

    role: str
    arguments: tuple[Scalar, ...]
    #: the active role's record
    record: CredentialRecord | None = None
    #: why it is active, or how far each rule gets
    attempts: tuple[RuleAttempt, ...] = ()
    #: the rules are satisfied, and separation of duty or cardinality prevents it
    refused: str = ""

    def lines(self) -> Iterator[str]:
        """Yield the explanation as text."""
        name = _call(self.role, self.arguments)
        if self.record is not None:
            yield f"{name} is active since {self.record.since.isoformat()} (record {self.record.id})"
        elif self.refused:
            yield f"{name} cannot be activated: {self.refused}"
        elif not self.attempts:
            yield f"{name} cannot be activated: no rule activates it with these arguments"
        elif all(attempt.missing for attempt in self.attempts):
            yield f"{name} cannot be activated: no rule is satisfied"
        else:
            yield f"{name} can be activated"
        for attempt in self.attempts:
            yield f"  rule in line {attempt.line}:"
            for one in attempt.conditions:
                mark = "yes" if one.satisfied else "no "
                yield f"    {mark} {one.condition}{' *' if one.member else ''}: {one.reason}"


def explain_activation(
    engine: RoleEngine, session: str, role: str, arguments: tuple[Scalar, ...], names: Petnames | None = None
) -> RoleExplanation:
    """Explain whether a session has a role active, or can activate it, and what is missing.

    Raises `RefusedError` (`role.session`), `MalformedError` (`role.unknown`, `role.arity`, `role.kind`).
    """
    change = ActivateRole(session, role, arguments)
    refused = ""
    try:
        engine.check(change)
    except RefusedError as error:
        if error.code == "role.session":
            raise
        if error.code != "role.denied":
            refused = error.message
    principal = engine.session(session)
    if principal is None:
        raise RefusedError("role.session", f"there is no open session `{session}`", hint="open one first")
    show = _Shown(engine, names or Petnames())
    for record in engine.active(principal):
        if record.session == session and record.name == role and _matches(arguments, record.arguments):
            return RoleExplanation(role, record.arguments, record, (show.why(record),))
    rules = [rule for rule in engine.policy.activations() if rule.role == role]
    attempts = (show.attempt(rule, arguments, session, principal) for rule in rules)
    return RoleExplanation(role, arguments, None, tuple(one for one in attempts if one is not None), refused)


def lost_with(engine: RoleEngine, key: SupportKey) -> tuple[CredentialRecord, ...]:
    """Return the records that would end with a record's `support`, a fact or a selector: transitively, in order."""
    found: dict[tuple[Principal, str], CredentialRecord] = {}
    pending = [key]
    while pending:
        for record in engine.dependents(pending.pop(0)):
            if (record.issuer, record.id) not in found:
                found[record.issuer, record.id] = record
                pending.append(record.support)
    return tuple(found.values())


class _Shown:
    """Writes conditions and what satisfies them."""

    def __init__(self, engine: RoleEngine, names: Petnames) -> None:
        self.engine = engine
        self.names = names
        self.known = {str(principal): name for principal, name in names.items()}

    def why(self, record: CredentialRecord) -> RuleAttempt:
        """Return what an active role relies on."""
        states = tuple(
            ConditionState(one.condition.removesuffix(" *"), True, one.member, self.support(one.key))
            for one in record.relies_on
        )
        line = 0 if record.rule is None else self.engine.policy.line(record.rule.at)
        return RuleAttempt(line, states)

    def support(self, key: SupportKey) -> str:
        match key:
            case ("credential", Principal() as issuer, str(record)):
                found = self.engine.record(record, issuer)
                by = "" if issuer == self.engine.domain else f" of {self.names.show(issuer)}"
                what = "" if found is None else f" {self.call(found.name, found.arguments)}"
                until = "" if found is None or found.until is None else f", until {found.until.isoformat()}"
                return f"record {record}{by}{what}{until}" if found else f"record {record}{by}, which has ended since"
            case ("fact", str(name), tuple(arguments)):
                return f"{self.call(name, arguments)} is {_truth(self.engine.fact(name, arguments))}"
            case _:
                values = selector_values(key)
                return f"with {values}" if values else "it is true"

    def attempt(
        self, rule: ActivationRule, arguments: tuple[Scalar, ...], session: str, principal: Principal
    ) -> RuleAttempt | None:
        binding: Binding = {PRINCIPAL: str(principal)}
        for term, value in zip(rule.arguments, arguments, strict=True):
            if isinstance(term, RoleConstant) and value is not None and term.value != value:
                return None
            if isinstance(term, RoleVariable) and value is not None and binding.setdefault(term.name, value) != value:
                return None
        search = _Fewest(self.engine, rule, session, principal)
        search.look(0, binding, ())
        known, satisfied = search.best
        states = (
            ConditionState(
                self.written(condition, known),
                index in satisfied,
                condition.member,
                self.support(satisfied[index]) if index in satisfied else self.lack(condition, known),
            )
            for index, condition in enumerate(rule.conditions)
        )
        return RuleAttempt(self.engine.policy.line(rule.at), tuple(states))

    def written(self, condition: RoleCondition, binding: Binding) -> str:
        """Return a condition with the values that are known."""
        if isinstance(condition, WhereCondition):
            return format_condition(condition).removesuffix(" *")
        listed = tuple(_value(term, binding) for term in condition.arguments)
        by = f" by {condition.by}" if isinstance(condition, CredentialCondition) and condition.by != "self" else ""
        kind = condition.kind if isinstance(condition, CredentialCondition) else "fact"
        return f"{kind} {self.call(condition.name, listed)}{by}"

    def call(self, name: str, arguments: tuple[Scalar, ...]) -> str:
        """Return a name with arguments; principals that have petnames are shown by them."""
        return _call(name, tuple(self.known.get(str(one), one) for one in arguments))

    def lack(self, condition: RoleCondition, binding: Binding) -> str:
        match condition:
            case CredentialCondition(kind=kind):
                return (
                    "no such active role in this session" if kind == "role" and condition.by == "self" else "not held"
                )
            case FactCondition(name=name):
                listed = tuple(_value(term, binding) for term in condition.arguments)
                values: tuple[Value, ...] = tuple(one for one in listed if one is not None)
                if len(values) != len(listed):
                    return "true for no such arguments"
                return f"it is {_truth(self.engine.fact(name, values))}"
            case WhereCondition(selector=selector):
                facts = {name: self.engine.fact(name) for name in self.engine.policy.scalars()}
                known = {**self.engine.moment(), **facts, **binding}
                values_now = {
                    name: str(known[name]) for name in sorted(selector.attributes) if known.get(name) is not None
                }
                unknown = sorted(name for name in selector.attributes if known.get(name) is None)
                lacking = f"; unknown: {', '.join(unknown)}" if unknown else ""
                return f"not true with {values_now}{lacking}"


class _Fewest:
    """Searches for the way to satisfy a rule with the fewest conditions missing, within a budget."""

    def __init__(self, engine: RoleEngine, rule: ActivationRule, session: str, principal: Principal) -> None:
        self.engine = engine
        self.session = session
        self.principal = principal
        self.ordered = sorted(enumerate(rule.conditions), key=lambda pair: isinstance(pair[1], WhereCondition))
        self.best: tuple[Binding, dict[int, SupportKey]] = ({}, {})
        self.most = -1
        self.steps = EXPLAIN_STEPS

    def look(self, index: int, binding: Binding, satisfied: tuple[tuple[int, SupportKey], ...]) -> None:
        self.steps -= 1
        if self.steps < 0 or len(satisfied) + len(self.ordered) - index <= self.most:
            return
        if index == len(self.ordered):
            self.most = len(satisfied)
            self.best = (binding, dict(satisfied))
            return
        place, condition = self.ordered[index]
        for found, key in self.engine.satisfied(condition, binding, self.session, self.principal):
            self.look(index + 1, found, (*satisfied, (place, key)))
        self.look(index + 1, binding, satisfied)


def _matches(wanted: tuple[Scalar, ...], found: tuple[Value, ...]) -> bool:
    return all(one is None or one == other for one, other in zip(wanted, found, strict=True))


def _value(term: RoleTerm, binding: Binding) -> Scalar:
    match term:
        case RoleConstant(value):
            return value
        case RoleVariable(name):
            return binding.get(name)
        case _:
            return None


def _call(name: str, arguments: tuple[Scalar, ...]) -> str:
    return f"{name}({', '.join('_' if one is None else str(one) for one in arguments)})" if arguments else name


def _truth(value: Scalar) -> str:
    return "unknown" if value is None else "true" if value else "false"

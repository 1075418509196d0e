"""Scenarios: domains with their policies, steps, and what is expected after each (docs/reference/roles.md).

    title: The numberplate tracker
    start: 2026-03-02T09:00Z
    domains: {met: met.roles, court: court.roles}
    people: [smith, jones]
    steps:
      - {in: met, open: s1, who: smith}
      - {in: court, appoint: court_order, holder: smith, arguments: [C7, AB 1], as: order}
      - {in: met, present: order}
      - {in: met, activate: tracker, session: s1, arguments: [AB 1], expect: {refused: role.denied}}

Domains and people are principals that the scenario names. `at` lets time pass before a step. If a record ends, domains
that have issued on it are notified immediately, as their services would be.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Final

from penstock.errors import MalformedError, PenstockError
from penstock.model.instants import parse_instant
from penstock.model.principals import Principal
from penstock.model.values import Scalar, Value
from penstock.roles.engine import (
    AcceptCredential,
    ActivateRole,
    Appoint,
    CredentialRecord,
    DeactivateRole,
    DropCredential,
    EndSession,
    ForeignCredential,
    GroundAppointPrivilege,
    GroundEventPrivilege,
    GroundNetworkPrivilege,
    GroundPredicate,
    HeldPrivilege,
    OpenSession,
    RelyOnRecord,
    RoleChange,
    RoleEngine,
    RoleOutcome,
    SetFact,
    WithdrawAppointment,
)
from penstock.roles.language import CredentialKind, EventAttribute, ParameterKind, RoleParameter, read_policy
from penstock.selector import ALWAYS

_STEPS: Final[Mapping[str, frozenset[str]]] = {
    "open": frozenset({"who"}),
    "end": frozenset(),
    "activate": frozenset({"session", "arguments", "as"}),
    "deactivate": frozenset(),
    "appoint": frozenset({"holder", "by", "arguments", "until", "as"}),
    "withdraw": frozenset({"by"}),
    "fact": frozenset({"arguments", "value"}),
    "present": frozenset(),
    "advance": frozenset(),
}
_EVERY: Final = frozenset({"in", "at", "expect"})
_EXPECT: Final = frozenset({"refused", "roles", "privileges", "ended"})


def _malformed(message: str, hint: str = "") -> MalformedError:
    return MalformedError("role.scenario", message, hint=hint or "see docs/reference/roles.md")


@dataclass(frozen=True, slots=True)
class RoleStep:
    """One step of a scenario: the verb, its fields, and what is expected."""

    verb: str
    fields: Mapping[str, object]
    expected: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoleScenario:
    """Domains with their policies, people, and steps."""

    title: str
    start: datetime
    policies: Mapping[str, str]
    people: tuple[str, ...]
    steps: tuple[RoleStep, ...]


@dataclass(frozen=True, slots=True)
class RoleStepResult:
    """The result of a step, and how it differs from what is expected: name, expected, found."""

    number: int
    step: RoleStep
    facts: Mapping[str, object]
    differences: tuple[tuple[str, object, object], ...]


def scenario_principal(name: str) -> Principal:
    """Return the principal that a scenario means by a name."""
    return Principal(sha256(f"role scenario {name}".encode()).digest())


def read_role_scenario(data: object, load: Callable[[str], str]) -> RoleScenario:
    """Read a scenario from plain data. `load` returns the text of a policy file that it names.

    Raises `MalformedError` (`role.scenario`, `date.malformed`), and what `load` raises.
    """
    found = _mapping(data, {"title", "start", "domains", "people", "steps"}, "a scenario")
    domains = _mapping(found.get("domains"), None, "`domains`")
    listed, people = found.get("steps"), found.get("people", [])
    if not domains or not isinstance(listed, list) or not isinstance(people, list):
        raise _malformed("a scenario has `domains` and a list of `steps`")
    policies = {name: load(_text(file, "a policy file")) for name, file in domains.items()}
    return RoleScenario(
        _text(found.get("title", ""), "the title"),
        parse_instant(_text(found.get("start"), "`start`")),
        policies,
        tuple(_text(one, "a name") for one in people),
        tuple(_step(one, number, policies) for number, one in enumerate(listed, 1)),
    )


def _step(data: object, number: int, domains: Mapping[str, str]) -> RoleStep:
    found = _mapping(data, None, f"step {number}")
    verbs = [verb for verb in _STEPS if verb in found]
    if len(verbs) != 1:
        raise _malformed(f"step {number} has one of {', '.join(_STEPS)}")
    _mapping(found, _STEPS[verbs[0]] | _EVERY | {verbs[0]}, f"step {number}")
    if found.setdefault("in", next(iter(domains))) not in domains:
        raise _malformed(f"step {number} is in an unknown domain")
    return RoleStep(verbs[0], found, _mapping(found.get("expect", {}), _EXPECT, f"`expect` of step {number}"))


def run_roles(scenario: RoleScenario) -> Iterator[RoleStepResult]:
    """Run a scenario step by step. A refused step changes nothing, and the next one follows.

    Raises what `RoleEngine` raises for a policy, and `MalformedError` (`role.scenario`).
    """
    world = _World(scenario)
    for number, step in enumerate(scenario.steps, 1):
        facts = world.carry_out(step)
        differences = []
        for name, wanted in step.expected.items():
            if facts.get(name) != wanted and not _part(wanted, facts.get(name)):
                differences.append((name, wanted, facts.get(name)))
        if "refused" in facts and "refused" not in step.expected:
            differences.append(("refused", None, facts["refused"]))
        yield RoleStepResult(number, step, facts, tuple(differences))


def _part(wanted: object, found: object) -> bool:
    """Return whether the expected people have what is expected."""
    return (
        isinstance(wanted, dict)
        and isinstance(found, dict)
        and all(found.get(name, []) == value for name, value in wanted.items())
    )


class _World:
    """The engines of all domains, and the records that the scenario has named."""

    def __init__(self, scenario: RoleScenario) -> None:
        names = {name: scenario_principal(name) for name in (*scenario.policies, *scenario.people)}
        self.names = names
        self.shown = {principal: name for name, principal in names.items()}
        self.engines = {
            name: RoleEngine(read_policy(text), names[name], names) for name, text in scenario.policies.items()
        }
        self.named: dict[str, tuple[str, str]] = {}
        for engine in self.engines.values():
            engine.advance(scenario.start)

    def carry_out(self, step: RoleStep) -> dict[str, object]:
        domain = _text(step.fields["in"], "`in`")
        ended: list[str] = []
        facts: dict[str, object] = {}
        if "at" in step.fields:
            ended += self.advance(parse_instant(_text(step.fields["at"], "`at`")))
        try:
            if step.verb == "present":
                ended += self.present(domain, step)
            elif step.verb != "advance":
                outcome = self.engines[domain].apply(self.change(domain, step))
                if outcome.record is not None and "as" in step.fields:
                    self.named[_text(step.fields["as"], "`as`")] = (domain, outcome.record.id)
                ended += self.spread(domain, outcome)
        except PenstockError as error:
            if error.code == "role.scenario":
                raise
            facts["refused"] = error.code
        return {**facts, "ended": ended, "roles": self.roles(domain), "privileges": self.privileges(domain)}

    def advance(self, now: datetime) -> list[str]:
        """Let time pass everywhere, in the order in which things become due."""
        ended: list[str] = []
        while True:
            due = [one.next_due for one in self.engines.values()]
            moments = [one for one in due if one is not None and one <= now]
            moment = min(moments, default=now)
            for name, engine in self.engines.items():
                ended += self.spread(name, engine.advance(moment))
            if not moments:
                return ended

    def spread(self, domain: str, outcome: RoleOutcome) -> list[str]:
        """Notify the domains that have issued on records that ended; return all that ended."""
        ended = [self.call(one.record) for one in outcome.ended]
        for other, record in outcome.notices:
            name = self.shown[other]
            ended += self.spread(name, self.engines[name].apply(DropCredential(self.names[domain], record)))
        return ended

    def present(self, domain: str, step: RoleStep) -> list[str]:
        """Present a record of another domain."""
        issuer, record = self.record(step.fields["present"])
        found = self.engines[issuer].record(record)
        if found is None:
            return []
        credential = ForeignCredential(
            self.names[issuer], found.id, found.kind, found.name, found.principal, found.arguments, found.until
        )
        outcome = self.engines[domain].apply(AcceptCredential(credential))
        self.engines[issuer].apply(RelyOnRecord(found.id, self.names[domain]))
        return self.spread(domain, outcome)

    def change(self, domain: str, step: RoleStep) -> RoleChange:
        given = step.fields
        name = _text(given[step.verb], f"`{step.verb}`")
        match step.verb:
            case "open":
                return OpenSession(name, self.who(given.get("who")))
            case "end":
                return EndSession(name)
            case "activate":
                parameters = self.parameters(domain, CredentialKind.ROLE, name)
                arguments = self.arguments(given, parameters)
                return ActivateRole(_text(given.get("session"), "`session`"), name, arguments)
            case "deactivate":
                return DeactivateRole(self.record(name)[1])
            case "appoint":
                parameters = self.parameters(domain, CredentialKind.APPOINTMENT, name)
                until = None if given.get("until") is None else parse_instant(_text(given["until"], "`until`"))
                by = self.who(given.get("by", domain))
                values = tuple(one for one in self.arguments(given, parameters) if one is not None)
                return Appoint(name, self.who(given.get("holder")), by, values, until)
            case "withdraw":
                return WithdrawAppointment(self.record(name)[1], self.who(given.get("by", domain)))
            case _:
                declared = self.engines[domain].policy.facts().get(name)
                parameters = () if declared is None else declared.parameters
                values = tuple(one for one in self.arguments(given, parameters) if one is not None)
                value = given.get("value", True)
                return SetFact(name, value if isinstance(value, Value) else None, values)

    def parameters(self, domain: str, kind: CredentialKind, name: str) -> tuple[RoleParameter, ...]:
        for one in self.engines[domain].policy.credentials():
            if (one.kind, one.by, one.name) == (kind, "self", name):
                return one.parameters
        return ()

    def arguments(self, given: Mapping[str, object], parameters: tuple[RoleParameter, ...]) -> tuple[Scalar, ...]:
        listed = given.get("arguments", [])
        if not isinstance(listed, list):
            raise _malformed("`arguments` is a list")
        kinds = [one.kind for one in parameters] + [ParameterKind.STRING] * len(listed)
        return tuple(self.value(one, kind) for one, kind in zip(listed, kinds, strict=False))

    def value(self, value: object, kind: ParameterKind) -> Scalar:
        if kind is ParameterKind.PRINCIPAL and value is not None:
            return str(self.who(value))
        if kind is ParameterKind.TIMESTAMP and isinstance(value, str):
            return parse_instant(value)
        if value is None or isinstance(value, Value):
            return value
        raise _malformed("an argument is a text, a number, true or false")

    def who(self, name: object) -> Principal:
        found = self.names.get(_text(name, "a principal"))
        if found is None:
            raise _malformed(f"`{name}` is neither a domain nor one of the people")
        return found

    def record(self, name: object) -> tuple[str, str]:
        found = self.named.get(_text(name, "a record"))
        if found is None:
            raise _malformed(f"no step has named a record `{name}`", "name it with `as`")
        return found

    # Results.

    def call(self, record: CredentialRecord) -> str:
        listed = ", ".join(self.written(one) for one in record.arguments)
        return f"{record.name}({listed})" if record.arguments else record.name

    def written(self, value: Value) -> str:
        return next((name for principal, name in self.shown.items() if str(principal) == value), str(value))

    def roles(self, domain: str) -> dict[str, list[str]]:
        engine = self.engines[domain]
        found = {name: [self.call(one) for one in engine.active(who)] for name, who in self.names.items()}
        return {name: sorted(roles) for name, roles in found.items() if roles}

    def privileges(self, domain: str) -> dict[str, list[str]]:
        engine = self.engines[domain]
        found = {
            name: [describe_privilege(one, self.shown) for one in engine.privileges(who)]
            for name, who in self.names.items()
        }
        return {name: sorted(privileges) for name, privileges in found.items() if privileges}


def describe_privilege(held: HeldPrivilege, names: Mapping[Principal, str]) -> str:
    """Return a privilege with its values as text."""
    when = "" if held.when == ALWAYS else f" when {held.when.text}"
    match held.privilege:
        case GroundNetworkPrivilege(right, network):
            return f"{right} {names.get(network.owner, network.owner.short)}/{network.name}{when}"
        case GroundAppointPrivilege(right, appointment, arguments):
            listed = ", ".join("_" if one is None else str(one) for one in arguments)
            return f"{right} {appointment}{f'({listed})' if arguments else ''}{when}"
        case GroundEventPrivilege(right, owner, types, below, attributes, forced, where, asks):
            values = dict(forced)
            shown = [*values] if attributes is None else attributes
            parts = [f"{name} = {values[name]}" if name in values else name for name in shown]
            listed = ", ".join(["*"] * (attributes is None) + parts)
            condition = "" if where == ALWAYS else f" where {where.text}"
            condition += "".join(f" matching {_asked(one)}" for one in asks)
            scope = f"{'below ' if below else ''}{names.get(owner, owner.short)}/{types}"
            return f"{right} {scope}({listed}){condition}{when}"


def _asked(predicate: GroundPredicate) -> str:
    arguments = (f".{one.name}" if isinstance(one, EventAttribute) else str(one) for _, one in predicate.arguments)
    return f"{predicate.name}({', '.join(arguments)})"


def _mapping(data: object, known: "set[str] | frozenset[str] | None", what: str) -> dict[str, object]:
    if not isinstance(data, dict) or any(not isinstance(key, str) for key in data):
        raise _malformed(f"{what} is a mapping")
    unknown = sorted(key for key in data if known is not None and key not in known)
    if unknown:
        raise _malformed(f"{what} has an unknown field `{unknown[0]}`", f"expected {', '.join(sorted(known or ()))}")
    return dict(data)


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise _malformed(f"{what} must be text")
    return value

"""Check a domain plan before anything runs: `check_domain`. It is pure, and needs what `load_domain_plan` has read.

| code                     | finding                                                                               |
|--------------------------|---------------------------------------------------------------------------------------|
| `role.*`                 | a finding of `penstock.roles.lint` in the role policy                                   |
| `plan.role-undeclared`   | the role policy does not declare a role of the plan, or with other parameters           |
| `plan.role-unreachable`  | no activation rule can give a role to anybody: what is missing is named                 |
| `plan.role-unused`       | no component takes a role (a warning: components of other files can)                    |
| `plan.no-administration` | the plan has no PAP (a warning: it can be in another file)                              |
| `plan.partner-missing`   | the role policy names another domain whose administrators the plan does not name        |
| `plan.topic-unwritten`   | a topic is read and nobody writes it                                                    |
| `plan.topic-unread`      | a topic is written and nobody reads it                                                  |
| `plan.no-decision`       | no PDP reads the requests of an enforcement role and answers it                         |
| `plan.action-undecided`  | a PEP asks about an action that no policy which answers it decides about               |
| `plan.attribute-missing` | a policy uses an attribute that no PIP provides and no PEP gives                        |
| `plan.attribute-cut`     | a PIP provides an attribute, but topics-lists separate it from the PDP that needs it    |
| `plan.policy-unknown`    | a decision role has a policy that is in no file                                         |
| `plan.policy-unused`     | no decision role gets a policy                                                          |
| `plan.no-policies`       | a decision role gets no policies: it would permit nothing                               |
| `plan.combining-missing` | a role lacks a combining algorithm of Table 4                                           |
| `plan.combining`         | a combining algorithm is not known                                                      |
| `plan.priority-missing`  | a decision role has priorities for some policies, and not for others (a warning)        |
| `plan.priority-unknown`  | a role has a priority for a policy that it does not get                                 |

Sensitivity levels are topics-lists: components of different levels share no topic. So a barrier that cuts a dependency
which a policy needs is `plan.no-decision` or `plan.attribute-cut`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from penstock.authority.components.exchange.topics import (
    JOINING_TOPICS,
    TOPICS,
    ComponentKind,
    TopicInstance,
    TopicKind,
)
from penstock.authority.components.exchange.topics_lists import parse_role
from penstock.authority.components.information.combining import InformationMode
from penstock.authority.components.information.dependencies import PolicyNeeds, action_name, actions_meet
from penstock.authority.components.plans.domain_plan import COMBINING, ComponentPlan, DomainPlan, LoadedPlan, RolePlan
from penstock.authority.decisions.modes import AnswerMode
from penstock.errors import MalformedError, PenstockError, did_you_mean
from penstock.model.values import Value
from penstock.policy.combining import POLICY_COMBINING, policy_algorithm
from penstock.policy.engine.lookup import Repository
from penstock.policy.language.policies import PolicyReference, PolicySet, Root
from penstock.roles.language import (
    SELF,
    ActivationRule,
    CredentialCondition,
    CredentialDeclaration,
    CredentialKind,
    DomainDeclaration,
    FactCondition,
    RoleConstant,
    RolePolicy,
    RoleTerm,
    RoleVariable,
    WhereCondition,
    format_condition,
    place,
)
from penstock.roles.lint import lint_policy


class PlanLevel(StrEnum):
    """How serious a finding is. With a problem the domain does not work as planned."""

    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class PlanFinding:
    """What is wrong with a plan, where, and what to do."""

    code: str
    where: str
    message: str
    hint: str = ""
    level: PlanLevel = PlanLevel.PROBLEM

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {
            "level": str(self.level),
            "code": self.code,
            "where": self.where,
            "message": self.message,
            "hint": self.hint,
        }


def check_domain(loaded: LoadedPlan, others: Iterable[LoadedPlan] = ()) -> list[PlanFinding]:
    """Return what is wrong with a plan; `others` are component files of the same domain.

    Raises `MalformedError`: `plan.missing` if the first file does not plan a domain, `plan.value` if another file is of
    another domain, `plan.twice` if two files have a component of the same id.
    """
    if loaded.roles is None:
        raise MalformedError(
            "plan.missing",
            f"{loaded.path} has components, but does not plan a domain",
            hint="name its plan first (`penstock domain check PLAN FILE`), or add `role_policy` and `roles`",
        )
    components = dict(loaded.plan.components)
    sources = dict(loaded.plan.sources)
    for other in others:
        if other.plan.name != loaded.plan.name:
            raise MalformedError("plan.value", f"{other.path} is of another domain, `{other.plan.name}`")
        for id_, one in other.plan.components.items():
            if components.setdefault(id_, one) is not one:
                raise MalformedError("plan.twice", f"two files have a component `{id_}`")
        sources |= other.plan.sources
    return [
        *_PlanChecker(replace(loaded.plan, components=components, sources=sources), loaded.roles, loaded).findings()
    ]


_ANY_ACTION: Final = action_name(None, None).partition("/")[2]


class _PlanChecker:
    def __init__(self, plan: DomainPlan, roles: RolePolicy, loaded: LoadedPlan) -> None:
        self.plan = plan
        self.roles = roles
        self.policies: Mapping[str, Root] = {id_: root for id_, (_, root) in loaded.policies.items()}
        self.files: Mapping[str, str] = {id_: file for id_, (file, _) in loaded.policies.items()}
        self.taken: dict[str, list[ComponentPlan]] = {}
        for component in plan.components.values():
            self.taken.setdefault(component.role, []).append(component)

    def findings(self) -> Iterator[PlanFinding]:
        yield from self.role_policy()
        for role in self.plan.roles.values():
            yield from self.role(role)
        yield from self.topics()
        for role in self.plan.roles.values():
            if role.kind is ComponentKind.PEP:
                yield from self.decisions(role)
            elif role.kind is ComponentKind.PDP:
                yield from self.attributes(role)
        yield from self.unused()

    # Roles.

    def role_policy(self) -> Iterator[PlanFinding]:
        for problem in lint_policy(self.roles):
            line, column = place(self.roles.source, problem.at)
            where = f"{self.plan.role_policy}:{line}:{column}"
            yield PlanFinding(problem.code, where, problem.message, problem.hint)
        for one in self.roles.statements:
            if isinstance(one, DomainDeclaration) and one.name not in self.plan.partners:
                where = f"{self.plan.role_policy}:{self.roles.line(one.at)}"
                message = f"the plan does not say who administers `{one.name}`"
                yield PlanFinding("plan.partner-missing", where, message, "add it to `partners`")
        declared = [
            one.name for one in self.roles.credentials() if one.kind is CredentialKind.APPOINTMENT and one.by == SELF
        ]
        for holder, those in self.plan.appointments.items():
            for name in dict.fromkeys(name for name, _ in map(parse_role, those) if name not in declared):
                hint = did_you_mean(name, declared, f"add `appointment {name}(…);` to {self.plan.role_policy}")
                message = f"the role policy does not declare the appointment `{name}`"
                yield PlanFinding("plan.appointment-undeclared", f"appointments.{holder}", message, hint)

    def role(self, role: RolePlan) -> Iterator[PlanFinding]:
        where = f"roles.{role.role}"
        name, arguments = parse_role(role.role)
        declared = {
            one.name: one for one in self.roles.credentials() if one.kind is CredentialKind.ROLE and one.by == SELF
        }
        if name not in declared:
            hint = did_you_mean(name, [*declared], f"add `role {name}(…);` to {self.plan.role_policy}")
            yield PlanFinding("plan.role-undeclared", where, f"the role policy does not declare `{name}`", hint)
        elif not _fit(declared[name], arguments):
            parameters = ", ".join(f"{one.name}: {one.kind}" for one in declared[name].parameters)
            message = f"`{role.role}` does not fit the declaration `role {name}({parameters})`"
            yield PlanFinding("plan.role-undeclared", where, message)
        elif missing := self.missing(name, arguments, role.role, frozenset()):
            hint = "appoint somebody in `appointments`, or let a component show certificates"
            message = f"nobody can take `{role.role}`: {missing}"
            yield PlanFinding("plan.role-unreachable", where, message, hint)
        elif role.role not in self.taken:
            message = f"no component here takes `{role.role}`"
            hint = "components of other files can; give their files to `penstock domain check` too"
            yield PlanFinding("plan.role-unused", where, message, hint, PlanLevel.WARNING)
        yield from self.table_four(role)

    def missing(self, name: str, arguments: tuple[Value, ...], asked: str, above: frozenset[str]) -> str:
        """Return why no rule can give a role, or nothing if one can. `asked` is the role that a component asks for."""
        reasons: list[str] = []
        for rule in self.roles.activations():
            if rule.role == name and (binding := _unified(rule.arguments, arguments, {})) is not None:
                reason = self.unsatisfied(rule, binding, asked, above | {name})
                if not reason:
                    return ""
                reasons.append(reason)
        return "; ".join(dict.fromkeys(reasons)) or "no rule activates it with these arguments"

    def unsatisfied(self, rule: ActivationRule, binding: Mapping[str, Value], asked: str, above: frozenset[str]) -> str:
        """Return the first condition of a rule that nobody can satisfy. Selectors may be true at some time."""
        shows = any(component.certificates for component in self.taken.get(asked, ()))
        for one in rule.conditions:
            match one:
                case WhereCondition():
                    continue
                case FactCondition():
                    return f"a PAP has no facts, and line {self.roles.line(rule.at)} needs `{format_condition(one)}`"
                case CredentialCondition(by=by) if by != SELF:
                    satisfied = shows
                case CredentialCondition(kind=CredentialKind.APPOINTMENT):
                    satisfied = shows or self.appointed(one, binding)
                case _:
                    satisfied = one.name not in above and self.prerequisite(one, binding, asked, above)
            if not satisfied:
                return f"line {self.roles.line(rule.at)} needs `{format_condition(one)}`"
        return ""

    def appointed(self, condition: CredentialCondition, binding: Mapping[str, Value]) -> bool:
        return any(
            name == condition.name and _unified(condition.arguments, arguments, binding) is not None
            for those in self.plan.appointments.values()
            for name, arguments in map(parse_role, those)
        )

    def prerequisite(
        self, condition: CredentialCondition, binding: Mapping[str, Value], asked: str, above: frozenset[str]
    ) -> bool:
        return any(
            name == condition.name
            and _unified(condition.arguments, arguments, binding) is not None
            and not self.missing(name, arguments, asked, above)
            for name, arguments in self.activated(condition, binding)
        )

    def activated(
        self, condition: CredentialCondition, binding: Mapping[str, Value]
    ) -> Iterator[tuple[str, tuple[Value, ...]]]:
        """Yield the roles that can satisfy a condition: itself if its arguments are known, or those of the plan."""
        known = [binding.get(one.name) if isinstance(one, RoleVariable) else _value(one) for one in condition.arguments]
        arguments = tuple(one for one in known if one is not None)
        if len(arguments) == len(known):
            yield condition.name, arguments
        else:
            yield from map(parse_role, self.plan.roles)

    # Table 4.

    def table_four(self, role: RolePlan) -> Iterator[PlanFinding]:
        where = f"roles.{role.role}"
        for what in COMBINING.get(role.kind, ()):
            if what == "information" and not role.topics.reading(TopicKind.IREP):
                continue
            if what not in role.combining:
                message = f"`{role.role}` has no combining algorithm for {_PLURALS[what]}"
                yield PlanFinding(
                    "plan.combining-missing", where, message, f'add `combining.{what} = "{_EXAMPLES[what]}"`'
                )
                continue
            try:
                _PARSERS[what](role.combining[what])
            except PenstockError as error:
                yield PlanFinding("plan.combining", f"{where}.combining.{what}", error.message, error.hint)
        if role.kind is not ComponentKind.PDP:
            return
        if not role.policies:
            message = f"`{role.role}` gets no policies, so its components permit nothing"
            yield PlanFinding("plan.no-policies", where, message, "add `policies` with the ids of some")
        for id_ in role.policies:
            if id_ not in self.policies:
                hint = did_you_mean(id_, [*self.policies], "add its file to `policies` of the plan")
                yield PlanFinding("plan.policy-unknown", where, f"there is no policy `{id_}`", hint)
        given = [id_ for id_ in role.policies if id_ in role.priorities]
        for id_ in role.policies:
            if given and id_ not in role.priorities:
                message = f"policy `{id_}` has no priority, and others have one: its priority is 0"
                yield PlanFinding("plan.priority-missing", where, message, level=PlanLevel.WARNING)
        for id_ in role.priorities:
            if id_ in self.policies and id_ not in role.policies:
                message = f"`{role.role}` has a priority for policy `{id_}`, and does not get this policy"
                yield PlanFinding("plan.priority-unknown", where, message, f"add `{id_}` to its `policies`")

    # Topics.

    def topics(self) -> Iterator[PlanFinding]:
        """Find topics with only one end. A PAP writes and reads what Table 2 says, without a list."""
        if not any(one.kind is ComponentKind.PAP for one in self.plan.components.values()):
            message, hint = "no component here is a PAP", "components of other files can be"
            yield PlanFinding("plan.no-administration", "components", message, hint, PlanLevel.WARNING)
        written: dict[TopicInstance, list[str]] = {}
        read: dict[TopicInstance, list[str]] = {}
        for role in self.plan.roles.values():
            for instance in role.topics.write:
                written.setdefault(instance, []).append(role.role)
            for instance in role.topics.read:
                read.setdefault(instance, []).append(role.role)
        for instance in sorted(read.keys() - written.keys()):
            if ComponentKind.PAP not in TOPICS[instance.kind].writers and instance.kind not in JOINING_TOPICS:
                message = f"{', '.join(read[instance])} reads {instance}, and nobody writes it"
                hint = f"add it to `write` of a role of {_kinds(TOPICS[instance.kind].writers)}, or leave it out"
                yield PlanFinding("plan.topic-unwritten", str(instance), message, hint)
        for instance in sorted(written.keys() - read.keys()):
            if ComponentKind.PAP not in TOPICS[instance.kind].readers and instance.kind not in JOINING_TOPICS:
                message = f"{', '.join(written[instance])} writes {instance}, and nobody reads it"
                hint = f"add it to `read` of a role of {_kinds(TOPICS[instance.kind].readers)}, or leave it out"
                yield PlanFinding("plan.topic-unread", str(instance), message, hint)

    # Dependencies.

    def decisions(self, role: RolePlan) -> Iterator[PlanFinding]:
        deciding = [one for one in self.plan.roles.values() if one.kind is ComponentKind.PDP and decides_for(one, role)]
        if not deciding:
            asked = ", ".join(map(str, role.topics.writing(TopicKind.DREQ))) or "no DREQ topic"
            message = f"no decision role answers `{role.role}`, which writes {asked}"
            hint = "let a decision role read its QPEP and DREQ topics, and write a DREP topic that it reads"
            yield PlanFinding("plan.no-decision", f"roles.{role.role}", message, hint)
            return
        policies = [self.policies[id_] for one in deciding for id_ in one.policies if id_ in self.policies]
        needs = PolicyNeeds(policies, Repository(self.policies.values()))
        decided, named = needs.actions, {action_name(None, one).partition("/")[2]: one for one in needs.named_actions}
        for component in self.taken.get(role.role, ()):
            for action in component.actions:
                if not actions_meet(frozenset({action}), decided):
                    message = f"no policy that answers `{role.role}` decides about `{action}`"
                    hint = did_you_mean(action, sorted(decided), "add a policy, or leave the action out")
                    yield PlanFinding("plan.action-undecided", f"components.{component.id}.actions", message, hint)
                elif named and (written := action.partition("/")[2]) not in {_ANY_ACTION, *named}:
                    message = f"no policy that answers `{role.role}` names the action `{written}`"
                    otherwise = "policies that name no action decide about it; if this is meant, leave it"
                    hint = did_you_mean(written, sorted(named), otherwise)
                    where = f"components.{component.id}.actions"
                    yield PlanFinding("plan.action-unnamed", where, message, hint, PlanLevel.WARNING)

    def attributes(self, role: RolePlan) -> Iterator[PlanFinding]:
        given = {
            name
            for one in self.plan.roles.values()
            if one.kind is ComponentKind.PEP and decides_for(role, one)
            for component in self.taken.get(one.role, ())
            for name in component.gives
        }
        for id_ in role.policies:
            if id_ in self.policies:
                needs = PolicyNeeds([self.policies[id_]], Repository(self.policies.values()))
                for name in sorted(needs.attributes - given):
                    yield from self.attribute(role, id_, name)

    def attribute(self, role: RolePlan, policy: str, name: str) -> Iterator[PlanFinding]:
        providers = [
            (component, self.plan.roles[component.role])
            for component in self.plan.components.values()
            if component.role in self.plan.roles and name in self.provided(component)
        ]
        if any(informs(other, role) for _, other in providers):
            return
        needs = f"policy `{policy}` of `{role.role}` needs `{name}`"
        where = f"roles.{role.role}"
        if not providers:
            word = name.partition("/")[2]
            known = {one for component in self.plan.components.values() for one in self.provided(component)}
            # The category alone would make any two attributes of resources similar.
            near = sorted(one for one in known if did_you_mean(word, [one.partition("/")[2]]))
            hint = did_you_mean(name, near, "add it to a PIP's source, or to `gives` of the PEPs that ask")
            yield PlanFinding("plan.attribute-missing", where, f"{needs}, and nobody provides it", hint)
            return
        those = ", ".join(f"{component.id} as `{other.role}`" for component, other in providers)
        hint = "share QPDP, IREQ and IREP topics between the two roles, if their sensitivity allows it"
        yield PlanFinding("plan.attribute-cut", where, f"{needs}, and topics-lists separate it from {those}", hint)

    def provided(self, component: ComponentPlan) -> frozenset[str]:
        return frozenset(name for source in component.sources for name in self.plan.sources[source].provides)

    def reached(self, root: Root) -> set[str]:
        """Return the ids of a policy and of those that it refers to."""
        found: set[str] = set()
        pending: list[Root] = [root]
        while pending:
            one = pending.pop()
            found.add(one.id)
            referred = (self.policies.get(reference.id) for reference in _references(one))
            pending += [other for other in referred if other is not None and other.id not in found]
        return found

    def unused(self) -> Iterator[PlanFinding]:
        used: set[str] = set()
        for role in self.plan.roles.values():
            for id_ in role.policies:
                if id_ in self.policies:
                    used |= self.reached(self.policies[id_])
        for id_ in sorted(self.policies.keys() - used):
            message = f"no decision role gets policy `{id_}`"
            yield PlanFinding("plan.policy-unused", self.files[id_], message, "add it to `policies` of a decision role")


# ----------------------------------------------------------------------------------------------------------------------
# Table 4, in words.


_PLURALS: Final = {"decision": "decisions", "policy": "policies", "information": "information"}
_EXAMPLES: Final = {"decision": "first", "policy": "deny-overrides", "information": "compose"}


def policy_combining(text: str) -> str:
    """Return the id of an algorithm for policies, which can be a short name. Raises as `policy_algorithm`."""
    found = POLICY_COMBINING.get(text, text)
    policy_algorithm(found)
    return found


_PARSERS: Final[Mapping[str, Callable[[str], object]]] = {
    "decision": AnswerMode.parse,
    "policy": policy_combining,
    "information": InformationMode.parse,
}


def _kinds(kinds: Iterable[ComponentKind]) -> str:
    return " or ".join(f"{one}s" for one in sorted(kinds))


def _references(root: Root) -> Iterator[PolicyReference]:
    for member in root.members if isinstance(root, PolicySet) else ():
        if isinstance(member, PolicyReference):
            yield member
        else:
            yield from _references(member)


# ----------------------------------------------------------------------------------------------------------------------
# Which roles reach each other, by topics-lists.


def decides_for(decision: RolePlan, enforcement: RolePlan) -> bool:
    """Return whether components of a decision role get the requests of an enforcement role, and can answer them."""
    return (
        _shared(enforcement, decision, TopicKind.QPEP)
        and _shared(enforcement, decision, TopicKind.DREQ)
        and _shared(decision, enforcement, TopicKind.DREP)
    )


def informs(information: RolePlan, decision: RolePlan) -> bool:
    """Return whether components of an information role get the requests of a decision role, and can answer them."""
    return (
        _shared(decision, information, TopicKind.QPDP)
        and _shared(decision, information, TopicKind.IREQ)
        and _shared(information, decision, TopicKind.IREP)
    )


def _shared(writer: RolePlan, reader: RolePlan, kind: TopicKind) -> bool:
    return not set(writer.topics.writing(kind)).isdisjoint(reader.topics.reading(kind))


# ----------------------------------------------------------------------------------------------------------------------
# Terms of activation rules.


def _fit(declared: CredentialDeclaration, arguments: tuple[Value, ...]) -> bool:
    if len(declared.parameters) != len(arguments):
        return False
    try:
        for parameter, value in zip(declared.parameters, arguments, strict=True):
            parameter.kind.checked(value)
    except MalformedError:
        return False
    return True


def _value(term: RoleTerm) -> Value | None:
    return term.value if isinstance(term, RoleConstant) else None


def _unified(
    terms: tuple[RoleTerm, ...], values: tuple[Value, ...], binding: Mapping[str, Value]
) -> dict[str, Value] | None:
    """Return the binding under which terms are these values, or None."""
    if len(terms) != len(values):
        return None
    found = dict(binding)
    for term, value in zip(terms, values, strict=True):
        if isinstance(term, RoleVariable) and found.setdefault(term.name, value) != value:
            return None
        if isinstance(term, RoleConstant) and term.value != value:
            return None
    return found

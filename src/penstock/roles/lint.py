"""Find rules that are allowed but cannot be meant: `lint_policy`.

| code               | finding                                                                                   |
|--------------------|-------------------------------------------------------------------------------------------|
| `role.never`       | conditions that can never be true together; the solver names the smallest such set         |
| `role.cycle`       | a role that is its own prerequisite, directly or through others                            |
| `role.unreachable` | a role that no rule can activate                                                           |
| `role.defeated`    | a separation of duty that another rule defeats                                             |

The mistakes of `policy_problems`, such as unbound parameters, come first: if there are any, only those are returned.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from penstock.model.values import AttributeSpec, Schema
from penstock.roles.language import (
    MOMENT,
    PRINCIPAL,
    SELF,
    ActivationRule,
    AuthorisationRule,
    CredentialCondition,
    CredentialKind,
    EventPrivilege,
    FactCondition,
    ParameterKind,
    PolicyProblem,
    RoleConstant,
    RoleParameter,
    RolePolicy,
    RolePrivilege,
    RoleTerm,
    RoleVariable,
    SeparationOfDuty,
    WhereCondition,
    format_privilege,
    policy_problems,
    selector_text,
)
from penstock.selector import AnalysisVerdict, Selector, conjunction, conjuncts, satisfiable


def lint_policy(policy: RolePolicy) -> list[PolicyProblem]:
    """Return the mistakes in a policy or, if there are none, the findings; in the order of the text."""
    return policy_problems(policy) or sorted(_Linter(policy).findings(), key=lambda finding: finding.at)


class _Linter:
    def __init__(self, policy: RolePolicy) -> None:
        self.policy = policy
        self.rules: dict[str, list[ActivationRule]] = {}
        for rule in policy.activations():
            self.rules.setdefault(rule.role, []).append(rule)
        self.separations = [one for one in policy.statements if isinstance(one, SeparationOfDuty)]
        self.impossible: set[int] = set()
        self.declared = {(one.kind, one.by, one.name): one.parameters for one in policy.credentials()}
        self.facts = policy.facts()
        self.known: Schema = {**policy.scalars(), **MOMENT}

    def findings(self) -> Iterator[PolicyProblem]:
        yield from self.never()
        yield from self.cycles()
        yield from self.unreachable()
        for one in self.separations:
            yield from self.defeated_static(one) if one.static else self.defeated_dynamic(one)

    # Conditions that can never be true.

    def never(self) -> Iterator[PolicyProblem]:
        rules: list[ActivationRule | AuthorisationRule] = [*self.policy.activations(), *self.policy.authorisations()]
        for rule in rules:
            selectors = [one.selector for one in rule.conditions if isinstance(one, WhereCondition)]
            reason = contradiction(selectors, self.schema(rule)) or self.separated(rule)
            if reason:
                self.impossible.add(id(rule))
                yield PolicyProblem("role.never", f"this rule for `{rule.role}` can never apply: {reason}", rule.at)
        for predicate in self.policy.predicates().values():
            if predicate.body is None:
                continue
            reason = contradiction([predicate.body], _schema(predicate.parameters))
            if reason:
                yield PolicyProblem("role.never", f"predicate `{predicate.name}`: {reason}", predicate.at)

    def schema(self, rule: ActivationRule | AuthorisationRule) -> Schema:
        declared = self.declared
        kinds: dict[str, ParameterKind] = {PRINCIPAL: ParameterKind.PRINCIPAL}
        calls: list[tuple[tuple[RoleTerm, ...], tuple[RoleParameter, ...]]] = [
            (rule.arguments, declared[CredentialKind.ROLE, SELF, rule.role])
        ]
        for one in rule.conditions:
            if isinstance(one, CredentialCondition):
                calls.append((one.arguments, declared[one.kind, one.by, one.name]))
            elif isinstance(one, FactCondition):
                calls.append((one.arguments, self.facts[one.name].parameters))
        for terms, parameters in calls:
            for term, parameter in zip(terms, parameters, strict=True):
                if isinstance(term, RoleVariable):
                    kinds[term.name] = parameter.kind
        own = {name: AttributeSpec(kind.kind) for name, kind in kinds.items()}
        return {**self.known, **own}

    def separated(self, rule: ActivationRule | AuthorisationRule) -> str:
        """Return why a rule needs two credentials that a principal cannot hold together."""
        needed = [one for one in rule.conditions if isinstance(one, CredentialCondition)]
        needed.append(CredentialCondition(CredentialKind.ROLE, rule.role, rule.arguments))
        for separation in self.separations:
            for one, other in combinations(needed, 2):
                if _conflict(separation, one, other):
                    return f"`{one.name}` and `{other.name}` are separated in line {self.policy.line(separation.at)}"
        return ""

    # Prerequisites.

    def cycles(self) -> Iterator[PolicyProblem]:
        needs = {
            role: {one.name: None for rule in rules for one in _prerequisites(rule)}
            for role, rules in self.rules.items()
        }
        reported: set[frozenset[str]] = set()
        left = _peeled(needs)
        for role in left:
            path = _way(left, role)
            if path and frozenset(path) not in reported:
                reported.add(frozenset(path))
                message = f"role `{role}` is its own prerequisite: {' needs '.join(f'`{one}`' for one in path)}"
                hint = "remove one of the prerequisites"
                yield PolicyProblem("role.cycle", message, self.rules[role][0].at, hint)

    def unreachable(self) -> Iterator[PolicyProblem]:
        reachable: dict[str, list[ActivationRule]] = {}
        waiting: dict[str, list[ActivationRule]] = {}
        for rule in self.policy.activations():
            for one in _prerequisites(rule):
                waiting.setdefault(one.name, []).append(rule)
        done = set(self.impossible)
        pending = [*self.policy.activations()]
        while pending:
            rule = pending.pop()
            if id(rule) not in done and all(
                any(_can_equal(one.arguments, other.arguments) for other in reachable.get(one.name, ()))
                for one in _prerequisites(rule)
            ):
                done.add(id(rule))
                reachable.setdefault(rule.role, []).append(rule)
                pending += waiting.get(rule.role, ())
        for declared in self.policy.credentials():
            if declared.kind is CredentialKind.ROLE and declared.by == SELF and not reachable.get(declared.name):
                reason = "no rule can be satisfied" if declared.name in self.rules else "no rule activates it"
                yield PolicyProblem("role.unreachable", f"role `{declared.name}` is unreachable: {reason}", declared.at)

    # Separation of duty.

    def defeated_dynamic(self, separation: SeparationOfDuty) -> Iterator[PolicyProblem]:
        """Find roles outside of a separation that have the same privilege as a role in it."""
        members = {member.name for member in separation.members}
        allowed = self.policy.authorisations()
        for rule in allowed:
            if rule.role in members:
                continue
            same = (
                one
                for one in allowed
                if one.role in members
                and _overlap(one.privilege, rule.privilege)
                and not self.requires(rule.role, one.role)
            )
            for one in same:
                yield PolicyProblem(
                    "role.defeated",
                    f"role `{rule.role}` has a privilege of `{one.role}`, {format_privilege(rule.privilege)}, and is"
                    f" not part of the separation in line {self.policy.line(separation.at)}",
                    rule.at,
                    f"add `{rule.role}` to the separation, or remove the privilege",
                )
                break

    def requires(self, role: str, needed: str) -> bool:
        """Return whether every rule of a role needs another role to stay active in the session."""
        seen: set[str] = set()

        def always(name: str) -> bool:
            if name in seen:
                return True
            seen.add(name)
            rules = self.rules.get(name, [])
            return bool(rules) and all(
                any(one.member and (one.name == needed or always(one.name)) for one in _prerequisites(rule))
                for rule in rules
            )

        return always(role)

    def defeated_static(self, separation: SeparationOfDuty) -> Iterator[PolicyProblem]:
        """Find roles that need a separated appointment by one rule and not by another."""
        for member in separation.members:
            for role, rules in self.rules.items():
                with_it = [rule for rule in rules if self.needs(rule, member, frozenset())]
                if not with_it:
                    continue
                for rule in rules:
                    # A rule that needs another member is what the separation is about.
                    free = not any(self.needs(rule, one, frozenset()) for one in separation.members)
                    if free and id(rule) not in self.impossible:
                        others = [f"`{one.name}`" for one in separation.members if one is not member]
                        yield PolicyProblem(
                            "role.defeated",
                            f"this rule activates `{role}` without appointment `{member.name}`, so that a holder of"
                            f" {' or '.join(others)} can have it: the separation in line"
                            f" {self.policy.line(separation.at)} does not prevent that",
                            rule.at,
                            f"require `{member.name}` here too",
                        )

    def needs(self, rule: ActivationRule, member: CredentialCondition, above: frozenset[str]) -> bool:
        for one in rule.conditions:
            if isinstance(one, CredentialCondition):
                if (one.kind, one.by, one.name) == (member.kind, member.by, member.name):
                    return True
                if one.kind is CredentialKind.ROLE and one.by == SELF and one.name not in above:
                    rules = self.rules.get(one.name, [])
                    if rules and all(self.needs(other, member, above | {rule.role, one.name}) for other in rules):
                        return True
        return False


def contradiction(selectors: Sequence[Selector], schema: Schema) -> str:
    """Return why selectors can never be TRUE together, in as few parts as possible; nothing if they can be."""
    parts = [part for selector in selectors for part in conjuncts(selector)]
    if not parts or not _impossible(parts, schema):
        return ""
    # Leave out each part that is not needed for the contradiction.
    for part in tuple(parts):
        rest = [one for one in parts if one is not part]
        if rest and _impossible(rest, schema):
            parts = rest
    written = " and ".join(f"`{selector_text(part)}`" for part in parts)
    return f"{written} can never be true" + (" together" if len(parts) > 1 else "")


def _impossible(parts: Sequence[Selector], schema: Schema) -> bool:
    return satisfiable(conjunction(*parts), schema).verdict is AnalysisVerdict.NO


def _prerequisites(rule: ActivationRule) -> Iterator[CredentialCondition]:
    """Yield the prerequisite roles of this domain."""
    for one in rule.conditions:
        if isinstance(one, CredentialCondition) and one.kind is CredentialKind.ROLE and one.by == SELF:
            yield one


def _peeled(needs: Mapping[str, Mapping[str, None]]) -> dict[str, dict[str, None]]:
    """Return the roles that are in a cycle, or lead from one to another, with what they need of each other."""
    left = {role: dict(needed) for role, needed in needs.items()}
    for _ in range(2):
        # Leave out those that need nothing that is left; then, turned around, those that nothing needs.
        turned: dict[str, dict[str, None]] = {}
        for role, needed in left.items():
            for one in needed:
                turned.setdefault(one, {})[role] = None
        free = [one for one in {**turned, **left} if not left.get(one)]
        while free:
            gone = free.pop()
            left.pop(gone, None)
            for role in turned.get(gone, ()):
                if role in left:
                    left[role].pop(gone, None)
                    if not left[role]:
                        free.append(role)
        left = {one: {role: None for role in roles if role in left} for one, roles in turned.items() if one in left}
    return left


def _way(needs: Mapping[str, Mapping[str, None]], role: str) -> list[str]:
    """Return a way from a role back to itself, or nothing."""
    before: dict[str, str] = {}
    pending = [role]
    while pending:
        current = pending.pop(0)
        for one in needs.get(current, ()):
            if one == role:
                path = [role, current]
                while path[-1] != role:
                    path.append(before[path[-1]])
                return [*reversed(path)] if len(path) > 2 else [role, role]
            if one not in before:
                before[one] = current
                pending.append(one)
    return []


def _can_equal(terms: tuple[RoleTerm, ...], others: tuple[RoleTerm, ...]) -> bool:
    """Return whether no constants contradict each other."""
    return all(
        not (isinstance(one, RoleConstant) and isinstance(other, RoleConstant)) or one.value == other.value
        for one, other in zip(terms, others, strict=True)
    )


def _conflict(separation: SeparationOfDuty, one: CredentialCondition, other: CredentialCondition) -> bool:
    """Return whether two credentials of one principal always conflict: what the separation shares is the same."""
    members = {(member.kind, member.by, member.name): member for member in separation.members}
    mine = members.get((one.kind, one.by, one.name))
    theirs = members.get((other.kind, other.by, other.name))
    if mine is None or theirs is None or mine is theirs:
        return False
    values: dict[str, RoleTerm] = {}
    for member, condition in ((mine, one), (theirs, other)):
        for term, value in zip(member.arguments, condition.arguments, strict=False):
            if isinstance(term, RoleConstant) and term != value:
                return False
            known = isinstance(value, RoleVariable | RoleConstant)
            if isinstance(term, RoleVariable) and not (known and values.setdefault(term.name, value) == value):
                return False
    return True


def _overlap(one: RolePrivilege, other: RolePrivilege) -> bool:
    """Return whether two privileges are the same right on the same things, whatever their conditions."""
    if not isinstance(one, EventPrivilege) or not isinstance(other, EventPrivilege):
        return type(one) is type(other) and format_privilege(one).split("(")[0] == format_privilege(other).split("(")[0]
    if (one.right, one.owner) != (other.right, other.owner):
        return False
    first, second = one.types.removesuffix("*"), other.types.removesuffix("*")
    return (
        one.types == other.types
        or (one.types != first and other.types.startswith(first))
        or (other.types != second and one.types.startswith(second))
    )


def _schema(parameters: tuple[RoleParameter, ...]) -> Schema:
    return {parameter.name: AttributeSpec(parameter.kind.kind) for parameter in parameters}

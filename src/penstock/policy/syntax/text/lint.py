"""Warn about probable mistakes in policies.

These are duplicate ids, rules that are never reached, unused names, algorithms with gaps, and issuers.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.policy.combining import PREFIX, RULE_COMBINING, DecisionTuple, split_priorities
from penstock.policy.language.policies import Policy, PolicyLiteral, Reference, Root, Rule, inner_policies
from penstock.policy.syntax.text.policies import RULE, VARIABLE, Document
from penstock.policy.syntax.text.policy_writer import inner


@dataclass(frozen=True, slots=True)
class Finding:
    """A probable mistake: its kind, policy, subject, and place in the text."""

    code: str
    policy: str
    name: str
    message: str
    line: int | None = None
    column: int | None = None


def lint(root: Root) -> Iterator[Finding]:
    """Yield probable mistakes in a policy or a policy set."""
    inside = [*inner_policies(root)]
    for name, count in Counter((isinstance(one, Policy), one.id) for one in inside).items():
        if count > 1:
            yield Finding("duplicate-policy", root.id, name[1], f"{count} policies have the id `{name[1]}`")
    for one in inside:
        yield from _lint_alone(one)


def _lint_alone(root: Root) -> Iterator[Finding]:
    yield from _combining(root)
    if root.issuer is not None:
        message = "nobody decides by a policy that has an issuer: whether it may issue it, nobody here can say"
        yield Finding("issuer-unknown", root.id, root.id, message)
    if isinstance(root, Policy):
        yield from _rules(root)
        yield from _variables(root)


def lint_document(document: Document) -> Iterator[Finding]:
    """Yield probable mistakes in a text, with their places."""
    for name, at in document.unused:
        yield _placed(Finding("unused-attribute", "", name, f"nobody uses the attribute `{name}`"), document.text, at)
    for root in document.policies:
        for finding in lint(root):
            kind = VARIABLE if finding.code == "unused-variable" else RULE
            places = document.places.get((kind, finding.policy, finding.name))
            yield _placed(finding, document.text, places[-1]) if places else finding


def _placed(finding: Finding, text: str, at: int) -> Finding:
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    return Finding(finding.code, finding.policy, finding.name, finding.message, line, column)


def _combining(root: Root) -> Iterator[Finding]:
    priorities, name = split_priorities(root.combining)
    count = len(root.rules if isinstance(root, Policy) else root.members)
    if priorities and len(priorities) != count:
        message = f"{len(priorities)} priorities for {count}: every decision is Indeterminate"
        yield Finding("combining-priorities", root.id, root.id, message)
    gap = DecisionTuple.of_id(name).gap() if name.startswith(PREFIX) else None
    if gap is not None:
        message = f"no element of the decision tuple accepts: {gap}; that is Indeterminate"
        yield Finding("combining-gap", root.id, root.id, message)


def _rules(policy: Policy) -> Iterator[Finding]:
    for name, count in Counter(rule.id for rule in policy.rules).items():
        if count > 1:
            yield Finding("duplicate-rule", policy.id, name, f"{count} rules have the id `{name}`")
    priorities, name = split_priorities(policy.combining)
    if priorities or name != RULE_COMBINING["first-applicable"]:
        return
    for place, rule in enumerate(policy.rules):
        first = next((one for one in policy.rules[:place] if _before(one, rule)), None)
        if first is not None:
            message = f"rule `{rule.id}` is never reached: wherever it applies, `{first.id}` does before it"
            yield Finding("unreachable-rule", policy.id, rule.id, message)


def _before(one: Rule, other: Rule) -> bool:
    """Return whether a rule applies, or fails, whenever another does: it requires no more, and has no condition."""
    always = one.condition is None or (isinstance(one.condition, PolicyLiteral) and one.condition.value is True)
    return always and all(any_of in other.target for any_of in one.target)


def _variables(policy: Policy) -> Iterator[Finding]:
    parts: list[Policy | Rule] = [policy, *policy.rules]
    said = [
        assigned.expression
        for part in parts
        for duty in (*part.duties.obligations, *part.duties.advice)
        for assigned in duty.assignments
    ]
    said += [rule.condition for rule in policy.rules if rule.condition is not None]
    used = {one.id for one in inner([*said, *policy.variables.values()]) if isinstance(one, Reference)}
    for name in policy.variables:
        if name not in used:
            yield Finding("unused-variable", policy.id, name, f"nobody uses the variable `{name}`")

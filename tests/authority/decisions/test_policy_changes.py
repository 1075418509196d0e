"""Changes of policies are announced exactly: what a cache keeps is what the new policies answer."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.authority.decisions.recycling_worlds import NOW, POLICY, answer, update

from penstock.authority.decisions import policy_changes as module
from penstock.authority.decisions.messages import AnswerEffect, RoleRecycling
from penstock.authority.decisions.policy_changes import bounded, policy_changes
from penstock.authority.decisions.questions import AccessQuestion, Entity, facts_of
from penstock.authority.decisions.recycling import Recycler
from penstock.authority.decisions.updates import EVERYTHING, PolicyChange, ResourceChange, RolePermissionChange
from penstock.policy.combining import POLICY_ALGORITHMS, RULE_ALGORITHMS
from penstock.policy.engine.evaluate import evaluate
from penstock.policy.engine.lookup import Context, NoSources, Repository
from penstock.policy.language.datatypes import DOUBLE
from penstock.policy.language.policies import Policy, PolicyLiteral, PolicyReference, PolicySet, Root, Rule, RuleEffect
from penstock.policy.language.results import PolicyOutcome, XacmlDecision
from penstock.policy.residual.request_sets import AnswerSets
from penstock.policy.syntax.text.policies import read_text_policy

MOMENT = datetime.fromtimestamp(NOW, UTC)
HEAD = """
attribute role { category = subject id = "roles" type = string }
attribute kind { category = resource id = "urn:penstock:authzen:resource-type" type = string }
attribute object { category = resource id = "urn:oasis:names:tc:xacml:1.0:resource:resource-id" type = string }
attribute does { category = action id = "urn:oasis:names:tc:xacml:1.0:action:action-id" type = string }
"""
LISTED = [[], ["a"], ["b"], ["a", "b"]]
QUESTIONS = [
    AccessQuestion.of(Entity("user", "u", {"roles": [*roles]}), action, (kind, name))
    for roles, action, kind, name in product(LISTED, ("read", "write"), ("d", "e"), ("1", "2"))
]


def policy(*rules: str, apply: str = "deny-unless-permit") -> Policy:
    found = read_text_policy(f"{HEAD} policy p {{ apply {apply} {' '.join(rules)} }}")
    assert isinstance(found, Policy)
    return found


def rule(name: str, clause: str, effect: str = "permit") -> str:
    return f"rule {name} {{ {effect} {f'target clause {clause}' if clause else ''} }}"


def may(role: str, action: str = "read", kind: str = "d", item: str = "1") -> str:
    """Return a rule that gives a role a permission."""
    clause = f'role == "{role}" and does == "{action}" and kind == "{kind}" and object == "{item}"'
    return rule(f"{role}{action}{kind}{item}", clause)


def changes(before: Root, after: Root, roles: str | None = "roles") -> tuple[PolicyChange, ...]:
    return policy_changes(before, after, NoSources(), NoSources(), roles)


# --- what is announced ------------------------------------------------------------------------------------------------


def test_a_permission_that_a_role_gets_or_loses() -> None:
    less, more = policy(may("a"), may("b")), policy(may("a"), may("c"), may("b"))
    granted = RolePermissionChange("c", "read", "d", "1", granted=True)
    assert changes(less, more) == (granted,)
    assert changes(more, less) == (replace(granted, granted=False),)
    # Without the declaration, everything about the resource may differ.
    assert changes(less, more, None) == (ResourceChange("d", "1", exact=True),)
    assert changes(less, less) == ()


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('kind == "d"', 'kind == "d" and object == "1"', (ResourceChange("d"), ResourceChange("d", "1", exact=True))),
        ('object == "1"', "", EVERYTHING),
        ('object == "1"', 'object == "2"', (ResourceChange("", "1", exact=True), ResourceChange("", "2", exact=True))),
        ('kind == "d" or kind == "e"', 'object == "1"', (*map(ResourceChange, "de"), ResourceChange("", "1", True))),
    ],
)
def test_a_rule_that_differs_matters_where_its_target_matches(
    before: str, after: str, expected: tuple[PolicyChange, ...]
) -> None:
    assert changes(policy(may("a"), rule("x", before)), policy(may("a"), rule("x", after))) == expected


@pytest.mark.parametrize("apply", ["first-applicable", "deny-overrides"])
def test_only_rules_that_permit_without_obligations_concern_roles(apply: str) -> None:
    pattern = (ResourceChange("d", "1", exact=True),)
    denies = may("b").replace("permit", "deny")
    with_duty = may("b").replace(" }", " on permit { obligation mail } }")
    for added in (denies, with_duty, may("b")):
        found = changes(policy(may("a"), apply=apply), policy(may("a"), added, apply=apply))
        exact = added == may("b") and apply == "deny-overrides"
        assert found == (pattern if not exact else (RolePermissionChange("b", "read", "d", "1", granted=True),))


def test_a_policy_that_is_put_together_differently_differs_as_a_whole() -> None:
    one, other = may("a"), may("b", kind="e")
    both = policy(one, other)
    assert changes(both, policy(other, one)) == EVERYTHING
    assert changes(both, policy(one, other, apply="permit-overrides")) == EVERYTHING
    assert changes(both, replace(both, id="q")) == EVERYTHING
    assert changes(both, replace(both, rules=(*both.rules, both.rules[0]))) == EVERYTHING
    assert changes(both, replace(both, version="7", description="x")) == ()


def test_policies_within_sets_and_references_are_compared() -> None:
    def whole(inner: Policy, combining: str = "deny-overrides") -> PolicySet:
        of_kind = replace(inner, target=policy(rule("x", 'kind == "d"')).rules[0].target)
        other = replace(policy(may("z", kind="e")), id="other")
        name = next(one for one in POLICY_ALGORITHMS if one.endswith(combining) and ":3.0:" in one)
        return PolicySet("s", "1", name, (of_kind, other))

    before, after = policy(rule("x", 'object == "1"')), policy(rule("x", 'object == "2"'))
    both = (ResourceChange("d", "1", exact=True), ResourceChange("d", "2", exact=True))
    assert changes(whole(before), whole(after)) == both
    # Nothing has two types.
    more = replace(before, rules=(*before.rules, *policy(may("a", kind="e")).rules))
    assert changes(whole(before), whole(more)) == ()
    second = "on-permit-apply-second"
    assert changes(whole(before, second), whole(after, second)) == EVERYTHING
    wholly = changes(whole(before), whole(replace(after, variables={"v": after.rules[0].condition})))  # type: ignore[dict-item]  # any
    assert wholly == (ResourceChange("d"),)
    reference = PolicyReference("p", to_set=False)
    refers = replace(whole(before), members=(reference,))
    known = Repository([before]), Repository([after])
    assert policy_changes(refers, refers, *known) == tuple(replace(one, resource_type="") for one in both)
    assert policy_changes(refers, refers, known[0], Repository([])) == EVERYTHING


def test_a_policy_that_asks_about_other_requests_may_always_answer_differently() -> None:
    asking = policy(may("a"), 'rule x { permit condition access-permitted(":a":anyURI, "<x/>") }')
    assert changes(asking, replace(asking, rules=(*asking.rules, *policy(may("b")).rules))) == EVERYTHING


def test_values_that_are_equal_and_written_differently_differ() -> None:
    zero, minus = (
        Rule("x", RuleEffect.PERMIT, policy(may("a")).rules[0].target, PolicyLiteral(value, DOUBLE))
        for value in (0.0, -0.0)
    )
    before = policy(may("a"))
    assert changes(replace(before, rules=(zero,)), replace(before, rules=(minus,)), None)


def test_many_changes_are_announced_by_types_and_more_as_everything() -> None:
    many = [ResourceChange(f"k{number % 3}", str(number), exact=True) for number in range(1_001)]
    assert bounded(many[:1_000] * 2) == tuple(many[:1_000])
    assert bounded(many) == tuple(ResourceChange(f"k{number}") for number in range(3))
    assert bounded(ResourceChange(str(number)) for number in range(1_001)) == EVERYTHING


@pytest.mark.parametrize("text", ["x" * 1_001, "\ud800"])
def test_changes_that_cannot_be_written_are_announced_as_everything(text: str) -> None:
    assert bounded([ResourceChange("d", text)]) == EVERYTHING
    assert bounded([RolePermissionChange("", "read", "d", "1")]) == EVERYTHING
    assert bounded([ResourceChange("d", "")]) == (ResourceChange("d"),)


# --- whatever changes, a cache answers as the new policies do ---------------------------------------------------------


CLAUSES = st.sets(
    st.sampled_from(
        ['role == "a"', 'role == "b"', 'does == "read"', 'does == "write"', 'kind == "d"', 'kind == "e"',
         'object == "1"', 'object == "2"', 'kind == "d" or kind == "e"', 'object == "1" or role == "a"'],
    ),
    max_size=4,
).map(lambda chosen: " clause ".join(sorted(chosen)))  # fmt: skip
EFFECTS = st.sampled_from(["permit", "deny"])
RULES = st.dictionaries(st.sampled_from("wxyz"), st.tuples(CLAUSES, EFFECTS), min_size=1)
SIMPLE = {XacmlDecision.PERMIT: AnswerEffect.PERMIT, XacmlDecision.DENY: AnswerEffect.DENY}


def decided(root: Root, question: AccessQuestion) -> tuple[Context, PolicyOutcome]:
    context = Context(None, MOMENT, NoSources(), facts_of(question))
    return context, evaluate(root, context)


def kept(before: Root, announced: tuple[PolicyChange, ...], roles: str | None) -> Iterator[tuple[AccessQuestion, str]]:
    """Yield what a cache still answers that had all answers of one policy before the changes, with roles or sets."""
    recycler, sets = Recycler(), AnswerSets(before)
    recycler.follow({POLICY: "0"})
    for question in QUESTIONS:
        context, outcome = decided(before, question)
        effect = SIMPLE.get(outcome.decision)
        if effect is not None:
            said = answer(question, effect, None if roles is None else RoleRecycling(roles))
            found = sets.holds_for(context, outcome) if roles is None else None
            recycler.learn(question, replace(said, holds_for=None if found is None else found.text), NOW)
    recycler.change(update(1, announced))
    for question in QUESTIONS:
        recycled = recycler.answer(question, NOW)
        if recycled is not None:
            yield question, recycled.effect


def wrong(before: Root, after: Root, roles: str | None) -> list[str]:
    """Return the questions that a cache answers otherwise than the new policy."""
    found = kept(before, changes(before, after, roles), roles)
    return [question.text for question, effect in found if SIMPLE.get(decided(after, question)[1].decision) != effect]


RULE_IDS = sorted(RULE_ALGORITHMS)
POLICY_IDS = sorted(POLICY_ALGORITHMS)


@given(st.data(), RULES, st.sampled_from(RULE_IDS), st.none() | st.sampled_from(POLICY_IDS), CLAUSES)
@settings(max_examples=30)
def test_what_a_cache_keeps_is_what_changed_policies_answer(
    data: st.DataObject, rules: dict[str, tuple[str, str]], combining: str, around: str | None, clause: str
) -> None:
    def root(rules: dict[str, tuple[str, str]], target: str) -> Root:
        inner = replace(policy(*(rule(name, *rules[name]) for name in sorted(rules))), combining=combining)
        if around is None:
            return inner
        other = replace(policy(rule("o", clause)), id="other")
        return PolicySet("s", "1", around, (replace(inner, target=policy(rule("t", target)).rules[0].target), other))

    target = data.draw(CLAUSES)
    before = root(rules, target)
    changed = data.draw(st.sampled_from("vwxyz!"))
    if changed == "!":
        target = data.draw(CLAUSES)
    elif changed in rules and data.draw(st.booleans()):
        del rules[changed]
    else:
        rules[changed] = (data.draw(CLAUSES), data.draw(EFFECTS))
    assert not wrong(before, root(rules, target), None)


GRANTS = st.sets(st.sampled_from([may(*one) for one in product("ab", ("read", "write"), "de", "12")]), max_size=6)


@given(GRANTS, GRANTS, st.sampled_from(["deny-unless-permit", "permit-overrides"]))
@settings(max_examples=40)
def test_the_same_with_roles(old: set[str], new: set[str], apply: str) -> None:
    everybody = rule("z", "", "deny")
    before, after = (policy(*sorted(grants), everybody, apply=apply) for grants in (old, new))
    assert not wrong(before, after, "roles")
    touched = {one.split()[1] for one in old ^ new}
    answered = {question.text for question, _ in kept(before, changes(before, after), "roles")}
    for question in QUESTIONS:
        permission = f"{question.action.id}{question.resource.type}{question.resource.id}"
        if not touched & {f"a{permission}", f"b{permission}"}:
            assert question.text in answered, "an answer about another permission is kept"


# --- planted faults ---------------------------------------------------------------------------------------------------


def test_a_comparison_that_leaves_out_too_much_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (
        policy(rule("x", "", "deny"), apply="deny-overrides"),
        policy(rule("w", 'kind == "d"'), rule("x", "", "deny"), apply="deny-overrides"),
    )
    first = replace(before, combining=next(one for one in RULE_ALGORITHMS if one.endswith("first-applicable")))
    second = replace(after, combining=first.combining)
    assert not wrong(first, second, None)
    monkeypatch.setattr(module._Comparison, "_differing", lambda *_args, **_named: iter(()))
    assert wrong(first, second, None)


def test_rules_have_no_other_parts() -> None:
    """A part that the comparison does not know of must be thought about."""
    assert [*Rule.__slots__] == ["id", "effect", "target", "condition", "duties", "description"]
    assert {*Policy.__slots__} == {
        "id", "version", "combining", "rules", "target", "variables", "duties", "issuer", "description",
    }  # fmt: skip

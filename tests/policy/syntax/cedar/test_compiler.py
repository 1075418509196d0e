"""Compiled Cedar policies decide as Cedar does: cedarpy is the oracle."""

from collections import Counter

import cedarpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.policy.kit import NOW
from tests.policy.syntax.cedar.random_cedar import PATTERNS, TEXTS, CedarMaker
from tests.policy.syntax.test_round_trips import FORMS

from penstock.authority.decisions.questions import AccessQuestion, Entity
from penstock.errors import PenstockError
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.decide import decide
from penstock.policy.language.policies import Policy
from penstock.policy.language.results import XacmlDecision
from penstock.policy.syntax.cedar.compiler import ANCESTORS, compile_cedar

ANYBODY = "permit (principal, action, resource)"


def decided(policy: Policy, question: AccessQuestion) -> XacmlDecision:
    return decide(CompiledPolicy(policy).evaluate, question.request(), NOW).results[0].decision


def oracle(text: str, maker: CedarMaker, *, wrong: bool = False) -> tuple[XacmlDecision, list[str], AccessQuestion]:
    """Return what Cedar decides on a random request, its errors, and the same request for Penstock."""
    request, entities, question = maker.request(wrong=wrong)
    found = cedarpy.is_authorized(request, text, entities)
    if found.allowed:
        return XacmlDecision.PERMIT, found.diagnostics.errors, question
    forbidden = bool(found.diagnostics.reasons)
    return (
        XacmlDecision.DENY if forbidden else XacmlDecision.NOT_APPLICABLE,
        found.diagnostics.errors,
        question,
    )


@settings(max_examples=examples(120), deadline=None)
@given(st.integers(0, 1 << 40))
@example(0)
def test_the_same_is_decided_as_by_cedar(seed: int) -> None:
    maker = CedarMaker(seed)
    text = maker.policies()
    policy = compile_cedar(text)
    for _ in range(4):
        expected, errors, question = oracle(text, maker)
        assert errors == []
        assert decided(policy, question) is expected, text


OPERATORS = (
    "==", "!=", "<", "<=", ">", ">=", "text", "bool", "entity", "action", "in", "in set", "is", "is in", "like",
    "contains", "numbers", "containsAll", "containsAny", "same", "isEmpty", "unknown", "true",
)  # fmt: skip


@pytest.mark.parametrize("operator", OPERATORS)
def test_each_operator_decides_as_in_cedar(operator: str) -> None:
    seen = set()
    for seed in range(40):
        maker = CedarMaker(seed)
        text = f"{ANYBODY} when {{ {maker.guarded(operator)} }};"
        expected, errors, question = oracle(text, maker)
        assert (decided(compile_cedar(text), question), errors) == (expected, []), text
        seen.add(expected)
    assert len(seen) == 2


def test_patterns_match_as_in_cedar() -> None:
    for pattern in PATTERNS:
        text = f"{ANYBODY} when {{ principal has x && principal.x like {pattern} }};"
        policy = compile_cedar(text)
        asked = {"principal": 'User::"a"', "action": 'Action::"read"', "resource": 'Doc::"d"', "context": {}}
        for value in (*TEXTS, "ba", "abba", "abxba", "b*b"):
            known = [{"uid": {"type": "User", "id": "a"}, "attrs": {"x": value}, "parents": []}]
            question = AccessQuestion.of(Entity("User", "a", {"x": value}), "read", ("Doc", "d"))
            permitted = decided(policy, question) is XacmlDecision.PERMIT
            assert permitted is cedarpy.is_authorized(asked, text, known).allowed, (pattern, value)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 1 << 40))
def test_values_of_other_kinds_permit_nothing_that_cedar_refuses(seed: int) -> None:
    maker = CedarMaker(seed)
    text = maker.policies()
    policy = compile_cedar(text)
    for _ in range(4):
        expected, _, question = oracle(text, maker, wrong=True)
        found = decided(policy, question)
        assert found is expected or found.plain == "Indeterminate", text


def test_random_policies_meet_their_requests() -> None:
    counted: Counter[str] = Counter()
    for seed in range(120):
        maker = CedarMaker(seed)
        text = maker.policies()
        counted[oracle(text, maker)[0].plain] += 1
    assert min(counted[one] for one in ("Permit", "Deny", "NotApplicable")) >= 5, counted


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 1 << 40))
def test_a_compiled_policy_is_written_and_read_in_each_form(seed: int) -> None:
    policy = compile_cedar(CedarMaker(seed).policies())
    for name, again in FORMS.items():
        assert again(policy) == policy, name


# --- what is refused --------------------------------------------------------------------------------------------------

REFUSED = {
    # It can err.
    "principal.x == 1": "cedar.can-err",
    "principal.x has y": "cedar.can-err",
    "principal has x || principal.x == 1": "cedar.can-err",
    "!(principal has x) && principal.x == 1": "cedar.can-err",
    "principal has x && resource.x == 1": "cedar.can-err",
    "(if principal has x then true else principal.x == 1)": "cedar.can-err",
    "context has x.y && context.x.z == 1": "cedar.can-err",
    "context has n && context.n + 1 > 2": "cedar.can-err",
    "context has n && -context.n > 2": "cedar.can-err",
    "9223372036854775807 + 1 > 2": "cedar.can-err",
    "9223372036854775808 > 2": "cedar.can-err",
    # Kinds.
    "context has n && context.n": "",
    "context has n && (context.n || context.n == 1)": "cedar.type",
    'context has n && context.n < 1 && context.n == "a"': "cedar.type",
    "1 == true": "cedar.type",
    '1 + "a" == 1': "cedar.type",
    '[1, "a"].contains(1)': "cedar.type",
    "principal == 1": "cedar.type",
    "principal in 1": "cedar.type",
    "principal in [1]": "cedar.type",
    "context has r.s && context has r && (context.r == 1 || context.r.s == 1)": "cedar.type",
    'action == Do::"x"': "cedar.type",
    'action == Action::"x" || action == Org::Action::"x"': "cedar.type",
    # What a request does not say, or a bag cannot hold.
    "context has r && (context has r.s || true)": "cedar.construct",
    'context has e && context.e in Group::"g"': "cedar.construct",
    'User::"a" in Group::"g"': "cedar.construct",
    'User::"a".name == 1': "cedar.construct",
    "[[1]].contains([1])": "cedar.construct",
    "context has s && context.s.contains(context.s)": "cedar.construct",
    "context == 1": "cedar.construct",
    "{a: 1} == {a: 1}": "cedar.construct",
    "(if true then 1 else 2) == 1": "cedar.construct",
    'principal has "a.b"': "cedar.construct",
    'principal has ""': "cedar.construct",
    'principal has "urn:penstock:cedar:ancestors"': "cedar.construct",
    '"\\0" == "\\0"': "cedar.construct",
    'context has s && context.s like "*' + "a*" * 600 + '"': "cedar.construct",
    # By name.
    'decimal("1.0") == decimal("1.0")': "cedar.construct",
    'ip("10.0.0.1").isLoopback()': "cedar.construct",
    "context has a && context.a.isInRange(context.a)": "cedar.construct",
    'datetime("2026-01-01") == datetime("2026-01-01")': "cedar.construct",
    'principal.hasTag("x")': "cedar.construct",
    "principal == ?principal": "cedar.construct",
    # Syntax.
    "1 == 1 == true": "cedar.syntax",
    "principl == principal": "cedar.syntax",
    "true &": "cedar.syntax",
    '"\\q" == ""': "cedar.syntax",
    "!!!!!true": "cedar.syntax",
    "[1].contains()": "cedar.syntax",
    "": "cedar.syntax",
    "(" * 70 + "true" + ")" * 70: "xacml.limit",
    " || ".join(f"context has a{number}" for number in range(1_001)): "xacml.limit",
}


@pytest.mark.parametrize("condition", REFUSED)
def test_conditions_that_are_refused(condition: str) -> None:
    code = ""
    try:
        compile_cedar(f"{ANYBODY} when {{ {condition} }};")
    except PenstockError as error:
        code = error.code
    assert code == REFUSED[condition]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("permit (principal == ?principal, action, resource);", "cedar.construct"),
        ("permit (principal, action in [], resource);", "cedar.construct"),
        ('@id(" ") permit (principal, action, resource);', "cedar.construct"),
        (
            '@id("a") permit (principal, action, resource); @id("a") forbid (principal, action, resource);',
            "cedar.syntax",
        ),
        ('@id("a") @id("b") permit (principal, action, resource);', "cedar.syntax"),
        ("permit (principal, resource, action);", "cedar.syntax"),
        ("permit (principal, action, resource)", "cedar.syntax"),
        ("// nothing", "cedar.syntax"),
        ('permit (principal, action == Do::"x", resource);', "cedar.type"),
    ],
)
def test_policies_that_are_refused(text: str, code: str) -> None:
    with pytest.raises(PenstockError) as caught:
        compile_cedar(text)
    assert caught.value.code == code


def test_an_error_says_where_and_what_to_write() -> None:
    with pytest.raises(PenstockError) as caught:
        compile_cedar(f"{ANYBODY}\nwhen {{ principal.rank > 3 }};")
    error = caught.value
    assert (error.code, error.fields["line"], error.fields["column"]) == ("cedar.can-err", 2, 8)
    assert "principal has rank" in error.hint


# --- what XACML sees --------------------------------------------------------------------------------------------------


def test_annotations_are_ids_and_descriptions() -> None:
    policy = compile_cedar(
        f'@id("staff") @advice("call \\"us\\"") @seen {ANYBODY}; forbid (principal, action, resource);'
    )
    assert [one.id for one in policy.rules] == ["staff", "policy1"]
    assert policy.rules[0].description == 'advice: call "us"; seen'


def test_the_id_depends_on_the_text_alone() -> None:
    # So two texts can be loaded together.
    text = f"{ANYBODY};"
    assert compile_cedar(text).id == compile_cedar(text).id != compile_cedar(f"{text} ").id


def test_a_bag_of_one_value_is_that_value_and_an_empty_one_is_absent() -> None:
    # A request in XACML cannot say otherwise.
    policy = compile_cedar(f'{ANYBODY} when {{ principal has x && principal.x == "a" }};')
    one, none = Entity("User", "a", {"x": ["a"]}), Entity("User", "a", {"x": []})
    for subject, expected in ((one, XacmlDecision.PERMIT), (none, XacmlDecision.NOT_APPLICABLE)):
        assert decided(policy, AccessQuestion.of(subject, "read", ("Doc", "d"))) is expected


def test_values_say_the_kind_if_nothing_else_does() -> None:
    text = f"{ANYBODY} when {{ principal has x && resource has s && resource.s.contains(principal.x) }};"
    policy = compile_cedar(text)
    for subject, expected in (
        (Entity("User", "a", {"x": "a"}), XacmlDecision.PERMIT),
        (Entity("User", "a", {"x": "c"}), XacmlDecision.NOT_APPLICABLE),
        # None of its strings is missing in the set: it has none.
        (Entity("User", "a", {"x": 1}), XacmlDecision.NOT_APPLICABLE),
    ):
        question = AccessQuestion.of(subject, "read", Entity("Doc", "d", {"s": ["a", "b"]}))
        assert decided(policy, question) is expected


def test_actions_of_a_namespace_are_named_without_it() -> None:
    policy = compile_cedar('permit (principal, action in Org::Action::"all", resource);')
    for action, expected in (
        (Entity("", "all"), XacmlDecision.PERMIT),
        (Entity("", "read", {ANCESTORS: ['Org::Action::"all"']}), XacmlDecision.PERMIT),
        (Entity("", "read", {ANCESTORS: ['Action::"all"']}), XacmlDecision.NOT_APPLICABLE),
    ):
        assert decided(policy, AccessQuestion.of(("User", "a"), action, ("Doc", "d"))) is expected

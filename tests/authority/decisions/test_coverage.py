"""What a decision point subscribes to: no request that its policies could decide is missed."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.authority.decisions.kit import NOW, QUESTION
from tests.policy.kit import IDS, small_policies

from penstock.authority.decisions.coverage import (
    Coverage,
    _kept_part,
    answer_key,
    covered,
    request_key,
    resources,
    tuples,
)
from penstock.authority.decisions.questions import RESOURCE_TYPE, AccessQuestion, Entity, facts_of
from penstock.fabric.port import KeyChoices
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.lookup import Repository
from penstock.policy.language.datatypes import STRING
from penstock.policy.language.functions import V1
from penstock.policy.language.policies import (
    Designator,
    Match,
    Policy,
    PolicySet,
    Rule,
    RuleEffect,
    function_of,
)
from penstock.policy.language.requests import RESOURCE, RESOURCE_ID, SUBJECT
from penstock.policy.language.results import XacmlDecision
from penstock.policy.syntax.forms import read_policies

KINDS, NAMES = ("document", "invoice", "other"), ("1", "2", "3")


def has(coverage: Coverage, question: AccessQuestion) -> bool:
    return coverage is None or KeyChoices(coverage).match(request_key(question)) is not None


def ask(kind: str, name: str) -> AccessQuestion:
    return AccessQuestion.of(("user", "alice"), "read", (kind, name))


def test_long_texts_are_not_kept() -> None:
    before = _kept_part.cache_info().misses
    keys = {request_key(AccessQuestion.of(("user", "a" * 600), "read", ("d" * 600, f"{n}" * 600))) for n in range(3)}
    assert (len(keys), _kept_part.cache_info().misses) == (3, before)


def test_keys_fit_into_a_topic_whatever_the_texts() -> None:
    long = AccessQuestion.of(("u/*" * 500, "é" * 900), "read>" * 90, (".", "/" * 500))
    key = request_key(long)
    assert (key.isascii(), len(key) <= 128, key.count("/")) == (True, True, 2)
    assert len(answer_key(QUESTION.digest)) == 43
    # A longer type with a shorter id is another subject.
    assert request_key(AccessQuestion.of(("ab", "c"), "read", ("d", "e"))) != request_key(
        AccessQuestion.of(("a", "bc"), "read", ("d", "e"))
    )


def test_patterns_and_tuples() -> None:
    some = resources(("document", None), ("invoice", "2"))
    assert {one for one in product(KINDS, NAMES) if has(some, ask(*one))} == {
        *(("document", name) for name in NAMES),
        ("invoice", "2"),
    }
    exact = tuples([(Entity("user", "alice"), "read", Entity("document", "1"))])
    assert has(exact, ask("document", "1"))
    assert not has(exact, AccessQuestion.of(("user", "alice"), "write", ("document", "1")))


TYPE = Designator(RESOURCE, RESOURCE_TYPE, STRING)
ID = Designator(RESOURCE, RESOURCE_ID, STRING)
ROLE = Designator(SUBJECT, "role", STRING)
EQUAL, ABOVE = (function_of(f"{V1}string-{name}") for name in ("equal", "greater-than"))
matches = st.one_of(
    st.builds(Match, st.just(EQUAL), st.sampled_from(KINDS), st.just(STRING), st.just(TYPE)),
    st.builds(Match, st.just(EQUAL), st.sampled_from(NAMES), st.just(STRING), st.just(ID)),
    st.builds(Match, st.just(ABOVE), st.sampled_from(KINDS), st.just(STRING), st.just(TYPE)),
    st.builds(Match, st.just(EQUAL), st.just("clerk"), st.just(STRING), st.just(ROLE)),
)
all_of = st.lists(matches, min_size=1, max_size=3).map(tuple)
targets = st.lists(st.lists(all_of, min_size=1, max_size=2).map(tuple), max_size=2).map(tuple)
rules = st.builds(Rule, IDS, st.sampled_from(RuleEffect), targets)
small, sets = small_policies(rules, targets)


@given(small | sets, small)
def test_no_request_outside_of_the_coverage_of_a_policy_is_applicable(root: Policy | PolicySet, other: Policy) -> None:
    sources = Repository([replace(other, id="referred")])
    coverage, policy = covered(root, sources), CompiledPolicy(root, sources)
    for kind, name in product(KINDS, NAMES):
        question = AccessQuestion.of(Entity("user", "alice", {"role": "clerk"}), "read", (kind, name))
        if not has(coverage, question):
            assert policy.ask(facts_of(question), NOW).decision is XacmlDecision.NOT_APPLICABLE


def of(text: str) -> Coverage:
    head = f"""namespace t {{
        attribute sort {{ category = resource id = "{RESOURCE_TYPE}" type = string }}
        attribute number {{ category = resource id = "{RESOURCE_ID}" type = string }}
    """
    root, *others = read_policies(f"{head}{text}}}".encode()).policies
    return covered(root, Repository(others))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('policy a { apply deny-overrides target clause sort == "document" rule r { permit } }', [("document", None)]),
        (
            """policy a { apply deny-unless-permit target clause sort == "document" or sort == "invoice"
                rule r { permit } }""",
            [("document", None), ("invoice", None)],
        ),
        (
            """policy a { apply permit-overrides target clause sort == "document" clause number == "1"
                rule r { permit } }""",
            [("document", "1")],
        ),
        (
            """policy a { apply first-applicable
                rule r { permit target clause sort == "document" and number == "1" }
                rule s { deny target clause sort == "invoice" } }""",
            [("document", "1"), ("invoice", None)],
        ),
        # Whatever no rule applies to is denied.
        ('policy a { apply deny-unless-permit rule r { permit target clause sort == "document" } }', None),
        ('policy a { apply deny-overrides rule r { permit target clause number == "1" } }', None),
        (
            """policyset all { apply deny-overrides reference policy b }
               policy b { apply deny-overrides target clause sort == "document" rule r { permit } }""",
            [("document", None)],
        ),
        ("policyset all { apply deny-overrides reference policy unknown }", None),
    ],
)
def test_coverage_is_as_narrow_as_targets_say(text: str, expected: list[tuple[str, str | None]] | None) -> None:
    assert of(text) == (None if expected is None else resources(*expected))

"""Dependencies: filter lists follow changes, and no attribute that a decision uses is left out of what is required."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policy.kit import IDS, small_policies

from penstock.authority.components.information.dependencies import (
    DependencyList,
    FilterChange,
    Names,
    PolicyNeeds,
    action_name,
    actions_meet,
    attribute_name,
    attributes_meet,
    check_action_name,
    check_levels,
    read_attribute_name,
)
from penstock.authority.decisions.questions import RESOURCE_TYPE, AccessQuestion, facts_of
from penstock.errors import EvaluationError, MalformedError
from penstock.policy.combining import POLICY_COMBINING, RULE_COMBINING
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.lookup import Context, NoSources, Repository
from penstock.policy.language.datatypes import STRING, Value
from penstock.policy.language.functions import V1
from penstock.policy.language.policies import (
    Designator,
    Match,
    Policy,
    PolicyLiteral,
    PolicySet,
    Root,
    Rule,
    RuleEffect,
    Target,
    apply,
    function_of,
)
from penstock.policy.language.requests import ACTION, ACTION_ID, RESOURCE, SUBJECT, Request
from penstock.policy.language.results import XacmlDecision
from penstock.policy.syntax.forms import read_policies

NOW = datetime(2026, 5, 1, tzinfo=UTC)
PEP, OTHER = ("bank", "pep1"), ("bank", "pep2")


@pytest.mark.parametrize("attribute", ["rank", "urn:a:b", "a/b*%", "ä ö", "*"])
def test_names_of_attributes_round_trip(attribute: str) -> None:
    name = attribute_name(SUBJECT, attribute)
    assert name is not None
    assert read_attribute_name(name) == (SUBJECT, attribute)
    assert attribute_name("urn:some:category", attribute) is None
    check_action_name(action_name(attribute, attribute))
    assert not actions_meet(frozenset({action_name("*", "*")}), frozenset({action_name("a", "*")}))


@pytest.mark.parametrize("name", ["", "rank", "subject/", "subject/a/b", "subject/%61", "other/rank", "subject/a b"])
def test_malformed_attributes(name: str) -> None:
    with pytest.raises(MalformedError, match=r"component\.required"):
        read_attribute_name(name)


@pytest.mark.parametrize("name", ["", "a", "a/", "/b", "a/b/c", "a b/c", "%61/b", "**/b"])
def test_malformed_actions(name: str) -> None:
    with pytest.raises(MalformedError, match=r"component\.required"):
        check_action_name(name)


parts = st.sampled_from(["a", "b", None])
actions = st.frozensets(st.builds(action_name, parts, parts), max_size=3)


@given(actions, actions)
def test_actions_meet_if_some_action_is_in_both(required: Names, provided: Names) -> None:
    every = [*product("abc", "abc")]

    def meant(names: Names) -> set[tuple[str, str]]:
        return {
            pair
            for pair, name in product(every, names)
            if all(one in ("*", word) for one, word in zip(name.split("/"), pair, strict=True))
        }

    assert actions_meet(required, provided) is bool(meant(required) & meant(provided))


# ----------------------------------------------------------------------------------------------------------------------
# Filter lists.


def test_a_filter_list_follows_changes_and_departures() -> None:
    deposit, withdraw = frozenset({"account/deposit"}), frozenset({"account/withdraw"})
    listed = DependencyList(deposit, actions_meet)
    assert listed.require(PEP, withdraw) == FilterChange()
    assert ({*listed.filtered}, {*listed.read}) == ({PEP}, set[object]())
    assert listed.require(PEP, deposit | withdraw) == FilterChange(read=frozenset({PEP}))
    assert listed.require(OTHER, deposit) == FilterChange(read=frozenset({OTHER}))
    assert listed.provide(withdraw) == FilterChange(drop=frozenset({OTHER}))
    assert ({*listed.filtered}, {*listed.read}) == ({OTHER}, {PEP})
    # Leaving, or a lease that ran out: what was required is forgotten.
    assert listed.require(PEP, frozenset()) == FilterChange(drop=frozenset({PEP}))
    assert listed.require(OTHER, frozenset()) == FilterChange()
    assert listed.provide(deposit | withdraw) == FilterChange()
    assert (listed.filtered, listed.read) == (frozenset(), frozenset())


names = st.frozensets(st.sampled_from(["subject/a", "subject/b", "resource/c"]))
steps = st.lists(st.tuples(st.sampled_from([None, PEP, OTHER, ("tax", "pep1")]), names), max_size=12)


@given(names, steps)
def test_filter_lists_are_what_a_comparison_of_everything_gives(
    provided: Names, taken: Sequence[tuple[tuple[str, str] | None, Names]]
) -> None:
    listed, required, read = DependencyList(provided, attributes_meet), dict[tuple[str, str], Names](), set[Any]()
    for requester, those in taken:
        if requester is None:
            provided, change = those, listed.provide(those)
        else:
            required[requester] = those
            change = listed.require(requester, those)
        assert change.read.isdisjoint(read)
        assert change.drop <= read
        read = (read | change.read) - change.drop
        assert read == listed.read == {one for one, wanted in required.items() if wanted & provided}
        assert listed.filtered == {one for one, wanted in required.items() if wanted and not wanted & provided}


def test_levels_share_no_topic() -> None:
    one, other, third = ("bank", "a"), ("bank", "b"), ("tax", "a")
    levels = {one: 0, other: 1, third: 0}
    check_levels(levels, {one: ["DREQ_1", "DREP_1"], other: ["DREQ_2"], third: ["DREQ_1"]})
    with pytest.raises(MalformedError, match=r"share topic DREQ_1 \[component\.barrier\]"):
        check_levels(levels, {one: ["DREQ_1"], other: ["DREQ_2", "DREQ_1"]})


# ----------------------------------------------------------------------------------------------------------------------
# What policies require.

HEAD = f"""namespace t {{
    attribute sort {{ category = resource id = "{RESOURCE_TYPE}" type = string }}
    attribute does {{ category = action id = "{ACTION_ID}" type = string }}
    attribute rank {{ category = subject id = "rank" type = integer }}
    attribute owner {{ category = resource id = "owner" type = string }}
    attribute load {{ category = environment id = "load" type = double }}
"""


def needs(text: str) -> PolicyNeeds:
    root, *others = read_policies(f"{HEAD}{text}}}".encode()).policies
    return PolicyNeeds([root], Repository(others))


TWO = """policyset all { apply deny-overrides reference policy b
    policy a { apply first-applicable target clause sort == "account"
        rule r { permit target clause does == "deposit" or does == "look" condition rank > 3 }
        rule s { deny target clause does == "withdraw" condition owner == "nobody" } } }
    policy b { apply deny-overrides target clause sort == "loan" and does == "sign"
        rule r { permit condition load < 1.0 } }
"""


def test_what_policies_decide_about_and_require_follows_from_them() -> None:
    found = needs(TWO)
    assert found.actions == {"account/deposit", "account/look", "account/withdraw", "loan/sign"}
    assert found.attributes == {"subject/rank", "resource/owner", "environment/load"}
    facts = facts_of(AccessQuestion.of(("user", "alice"), "deposit", ("account", "1")))
    assert found.of("account", "deposit").missing(facts) == {"subject/rank"}
    assert found.of("loan", "sign").missing(facts) == {"environment/load"}
    assert found.of("loan", "deposit") == found.of("other", "sign")
    assert found.of("other", "sign").missing(facts) == frozenset()


def test_what_a_question_says_is_not_missing() -> None:
    found = needs(TWO).of("account", "deposit")
    said = {key: (4,) for _, keys in found.attributes for key in keys}
    assert found.missing(said) == frozenset()


@pytest.mark.parametrize(
    ("text", "actions"),
    [
        ('policy a { apply deny-overrides rule r { permit target clause sort == "account" } }', {"account/*"}),
        ('policy a { apply deny-overrides rule r { permit target clause does == "look" } }', {"*/look"}),
        ("policy a { apply deny-overrides rule r { permit } }", {"*/*"}),
        # Whatever no rule applies to is denied.
        ('policy a { apply deny-unless-permit rule r { permit target clause sort == "account" } }', {"*/*"}),
        ("policyset a { apply deny-overrides reference policy unknown }", {"*/*"}),
        (
            """policy a { apply deny-overrides target clause sort == "account"
                 rule r { permit target clause sort == "loan" } }""",
            set(),
        ),
    ],
)
def test_actions_are_as_narrow_as_targets_say(text: str, actions: set[str]) -> None:
    assert needs(text).actions == actions


KINDS, DOES, ATTRIBUTES = ("account", "loan"), ("look", "sign"), ("x", "y", "z")
DESIGNATED = [Designator(SUBJECT, name, STRING, must_be_present=must) for name in ATTRIBUTES for must in (False, True)]
EQUAL, ONE = function_of(f"{V1}string-equal"), f"{V1}string-one-and-only"


def _tests(attribute: Designator, among: Sequence[str]) -> st.SearchStrategy[Match]:
    return st.builds(Match, st.just(EQUAL), st.sampled_from(among), st.just(STRING), st.just(attribute))


matches = st.one_of(
    _tests(Designator(RESOURCE, RESOURCE_TYPE, STRING), KINDS),
    _tests(Designator(ACTION, ACTION_ID, STRING), DOES),
    st.sampled_from(DESIGNATED).flatmap(lambda one: _tests(one, "pq")),
)
all_of = st.lists(matches, min_size=1, max_size=2).map(tuple)
targets = st.lists(st.lists(all_of, min_size=1, max_size=2).map(tuple), max_size=2).map(tuple)
conditions = st.none() | st.builds(
    lambda one, word: apply(f"{V1}string-equal", [apply(ONE, [one]), PolicyLiteral(word, STRING)]),
    st.sampled_from(DESIGNATED),
    st.sampled_from("pq"),
)
rules = st.builds(Rule, IDS, st.sampled_from(RuleEffect), targets, conditions)
policies, sets = small_policies(rules, targets)


class _Told(Repository):
    """Knows some attributes, and fails for others."""

    def __init__(self, policies: Sequence[Root], known: Mapping[str, Sequence[str]], names: Names | None) -> None:
        super().__init__(policies)
        self._told, self._names = known, names

    def attribute(self, wanted: Designator, _request: Request, /) -> Sequence[Value]:
        if self._names is not None and attribute_name(wanted.category, wanted.id) not in self._names:
            raise EvaluationError("xacml.processing", "it was not asked for")
        return self._told[wanted.id]


known_values = st.fixed_dictionaries({name: st.lists(st.sampled_from("pq"), max_size=2) for name in ATTRIBUTES})


def test_a_target_that_fails_is_enough_for_only_one_applicable() -> None:
    def equal(attribute: Designator, word: str) -> Target:
        return (((Match(function_of(f"{V1}string-equal"), word, STRING, attribute),),),)

    kind = Designator(RESOURCE, RESOURCE_TYPE, STRING)
    rule = Rule("r", RuleEffect.PERMIT, equal(kind, "account"))
    one = Policy("p", "1.0", RULE_COMBINING["deny-overrides"], (rule,), equal(DESIGNATED[0], "p"))
    for algorithm, actions in (("deny-overrides", {"account/*"}), ("only-one-applicable", {"*/*"})):
        root = PolicySet("s", "1.0", POLICY_COMBINING[algorithm], (one,))
        assert PolicyNeeds([root], Repository([])).actions == actions


@given(policies | sets, policies, known_values)
def test_nothing_that_decides_is_left_out(root: Root, other: Policy, known: Mapping[str, Sequence[str]]) -> None:
    others = [replace(other, id="referred")]
    found = PolicyNeeds([root], Repository(others))
    policy = CompiledPolicy(root, NoSources())
    for kind, does in product(KINDS, DOES):
        facts = facts_of(AccessQuestion.of(("user", "alice"), does, (kind, "1")))
        wanted = found.of(kind, does).missing(facts)
        assert wanted <= found.attributes
        whole, asked = (
            policy.evaluate(Context(None, NOW, _Told(others, known, names), facts)) for names in (None, wanted)
        )
        assert asked.decision is whole.decision
        if not actions_meet(frozenset({action_name(kind, does)}), found.actions):
            assert whole.decision is XacmlDecision.NOT_APPLICABLE

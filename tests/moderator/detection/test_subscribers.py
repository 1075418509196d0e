"""Whether a publisher and a subscriber suit each other."""

import pytest
from tests.moderator.kit import MAKERS, P1, P2, PEOPLE, WORKFLOW, event, rule, tree, words
from tests.trust.kit import refused, who

from penstock.model.principals import Principal
from penstock.model.tree import TreeScope
from penstock.moderator.detection.subscribers import Allowance, Failure, PublishRules, Subscriptions
from penstock.moderator.rules.rules import Mode, PublishRule, RuleFunction, SubscribeRule
from penstock.selector import parse

ANN, BOB = who(21), who(22)
PROFILES = {
    P1: MAKERS.profile({"company": "A", "licensed": True}),
    P2: MAKERS.profile({"company": "B"}),
    ANN: PEOPLE.profile({"role": "engineer", "age": 40}),
    BOB: PEOPLE.profile({"role": "worker"}),
}


def wish(name: str, about: str, fnc_p: str = "TRUE", of: Principal = ANN) -> SubscribeRule:
    return SubscribeRule(name, event(about), of, of, parse(fnc_p))


def ask(
    *rules: PublishRule | SubscribeRule,
    about: str = "A1",
    scope: TreeScope = TreeScope.UPWARD,
    mode: Mode = Mode.SCOPED,
) -> Allowance:
    chosen = WORKFLOW if scope is TreeScope.UPWARD else tree({"X": None, "A1": "X", "A10": "A1"}, scope)
    return Subscriptions(words(chosen), rules, PROFILES, mode=mode).allow(event(about), P1, ANN)


def test_both_ways() -> None:
    assert ask(rule("p", "A1", "role = 'engineer'"), wish("s", "A1", "licensed")).allowed
    found = ask(rule("p", "A1", "role = 'worker' AND age > 18 AND company = 'A'"), wish("s", "A1", "company = 'B'"))
    assert found.failures == (
        Failure("p", RuleFunction.S, ANN, ("company", "role")),
        Failure("s", RuleFunction.P, P1, ("company",)),
    )
    assert not found.allowed
    assert found.reasons == (
        f"the profile of {ANN.short} does not satisfy fnc_s of rule `p`: `company`, `role`",
        f"the profile of {P1.short} does not satisfy fnc_p of rule `s`: `company`",
    )


def test_a_publisher_that_may_not_publish_is_not_received() -> None:
    demanding = rule("d", "A1", fnc_p="licensed AND company = 'B'", of=[P2])
    rules = (rule("p", "A1"), demanding)
    pair = ask(*rules)
    assert pair.allowed
    restricted = PublishRules(words(WORKFLOW), rules, PROFILES).restrict(pair)
    assert restricted.failures == (Failure("d", RuleFunction.P, P1, ("company",)),)
    assert (restricted.allowed, restricted.periods) == (False, ())
    alone = PublishRules(words(WORKFLOW), rules[:1], PROFILES)
    assert alone.restrict(pair) == pair
    unpublished = ask(rule("p", "A2"))
    assert alone.restrict(unpublished) == unpublished


def test_who_publishes_nothing_is_not_subscribed_to() -> None:
    for rules in ([], [rule("p", "A1", of=[P2])], [rule("p", "A2")], [rule("p", "ActivityX")]):
        found = ask(*rules)
        assert (found.allowed, found.published, len(found.reasons)) == (False, False, 1)


def test_who_has_no_wishes_takes_all() -> None:
    assert ask(rule("p", "A1")).allowed


def test_rights_that_reach_upwards() -> None:
    # The right on A1 is one on ActivityX too, so that what is asked there must hold.
    assert [f.rule for f in ask(rule("p", "A1"), rule("x", "ActivityX", "role = 'worker'")).failures] == ["x"]
    # A rule below says who may receive what is below.
    assert ask(rule("p", "A1"), rule("b", "A10", "role = 'worker'")).allowed
    # Without a rule on A1 those below decide, and one that holds is enough.
    assert not ask(rule("b", "A10", "role = 'worker'")).allowed
    assert ask(rule("b", "A10", "role = 'worker'"), rule("c", "A11", "role = 'engineer'")).allowed


def test_rights_that_reach_downwards() -> None:
    down = TreeScope.DOWNWARD
    assert [f.rule for f in ask(rule("p", "A1"), rule("b", "A10", "role = 'worker'"), scope=down).failures] == ["b"]
    assert ask(rule("p", "A1"), rule("x", "X", "role = 'worker'"), scope=down).allowed
    assert not ask(rule("x", "X", "role = 'worker'"), scope=down).allowed
    assert ask(rule("x", "X", "role = 'engineer'"), scope=down).allowed
    assert not ask(rule("x", "X"), wish("s", "X", "company = 'B'"), scope=down).allowed


def test_definition_2_takes_all_related_types() -> None:
    rules = (rule("p", "A1"), rule("b", "A10", "role = 'worker'"), rule("far", "A2", "role = 'worker'"))
    assert [f.rule for f in ask(*rules, mode=Mode.LITERAL).failures] == ["b"]


def test_all_pairs_of_an_event_type() -> None:
    rules: list[PublishRule | SubscribeRule] = [
        rule("p", "A1", "role = 'engineer'", of=[P1, P2]),
        wish("ann", "A1", "licensed"),
        wish("bob", "A1", of=BOB),
        wish("far", "A2", of=who(23)),
    ]
    report = Subscriptions(words(WORKFLOW), rules, PROFILES).report(event("A1"))
    assert [(pair.publisher, pair.subscriber) for pair in report.allowed] == [(P1, ANN)]
    refused_pairs = {(pair.publisher, pair.subscriber): [f.rule for f in pair.failures] for pair in report.refused}
    assert refused_pairs == {(P2, ANN): ["ann"], (P1, BOB): ["p"], (P2, BOB): ["p"]}


def test_what_is_not_known_is_not_assumed() -> None:
    # An overflow, and a profile that says nothing about an attribute.
    assert [f.attributes for f in ask(rule("p", "A1", "age * 9223372036854775807 > 0")).failures] == [("age",)]
    assert not ask(rule("p", "A1", "NOT company = 'A'")).allowed
    subscriptions = Subscriptions(words(WORKFLOW), [rule("p", "A1", "badge IS NULL")], PROFILES)
    with refused("moderator.unknown-profile"):
        subscriptions.allow(event("A1"), P1, who(99))
    with refused("moderator.unknown-type"):
        subscriptions.allow(event("nowhere"), P1, ANN)
    with pytest.raises(TypeError):
        bool(subscriptions.allow(event("A1"), P1, ANN))

"""Who may publish what: one's own rule gives the right, and what everybody demands binds."""

import pytest
from tests.moderator.kit import MAKERS, P1, P2, P3, WORKFLOW, event, rule, tree, words
from tests.trust.kit import refused

from penstock.model.tree import TreeScope
from penstock.moderator.detection.subscribers import Failure, PublishEntitlement, PublishRules
from penstock.moderator.rules.rules import Mode, PublishRule, RuleFunction

PROFILES = {P1: MAKERS.profile({"company": "A", "licensed": True}), P2: MAKERS.profile({"company": "B"})}
DOWN = tree({"X": None, "A1": "X", "A10": "A1"}, TreeScope.DOWNWARD)


def ask(
    *rules: PublishRule, about: str = "A1", scope: TreeScope = TreeScope.DOWNWARD, mode: Mode = Mode.SCOPED
) -> PublishEntitlement:
    chosen = DOWN if scope is TreeScope.DOWNWARD else WORKFLOW
    return PublishRules(words(chosen), rules, PROFILES, mode=mode).allow(event(about), P2)


MINE, LICENSED = rule("mine", "A1", of=[P2]), "licensed"


def test_who_states_a_rule_publishes() -> None:
    found = ask(MINE, rule("other", "A1"))
    assert (found.allowed, [one.id for one in found.rules]) == (True, ["mine"])
    with pytest.raises(TypeError):
        bool(found)


def test_who_states_none_does_not() -> None:
    for rules in ([], [rule("other", "A1")], [rule("below", "A10", of=[P2])]):
        found = ask(*rules)
        assert (found.allowed, found.rules, found.failures) == (False, (), ())


def test_what_others_demand_of_publishers_binds() -> None:
    found = ask(MINE, rule("other", "A1", fnc_p=LICENSED))
    assert not found.allowed
    assert found.failures == (Failure("other", RuleFunction.P, P2, ("licensed",)),)


def test_downwards_what_is_demanded_below_binds_and_above_does_not() -> None:
    assert not ask(MINE, rule("below", "A10", fnc_p=LICENSED)).allowed
    assert ask(MINE, rule("above", "X", fnc_p=LICENSED)).allowed
    # Unless the right comes from there.
    above = rule("mine", "X", of=[P2])
    assert ask(above).allowed
    assert [failure.rule for failure in ask(above, rule("other", "X", fnc_p=LICENSED)).failures] == ["other"]
    assert ask(above, rule("other", "X", fnc_p=LICENSED), rule("here", "A1", of=[P2])).allowed


def test_upwards_it_is_the_other_way_round() -> None:
    up = TreeScope.UPWARD
    assert not ask(MINE, rule("above", "ActivityX", fnc_p=LICENSED), scope=up).allowed
    assert ask(MINE, rule("below", "A10", fnc_p=LICENSED), scope=up).allowed
    assert ask(rule("mine", "A10", of=[P2]), scope=up).allowed
    assert not ask(rule("mine", "ActivityX", of=[P2]), scope=up).allowed


def test_by_definition_2_all_related_types_bind() -> None:
    literal = Mode.LITERAL
    assert not ask(MINE, rule("above", "X", fnc_p=LICENSED), mode=literal).allowed
    assert ask(rule("mine", "A10", of=[P2]), mode=literal).allowed


def test_who_is_not_known() -> None:
    found = PublishRules(words(DOWN), [rule("r", "A1", of=[P3]), MINE], PROFILES)
    with refused("moderator.unknown-profile"):
        found.allow(event("A1"), P3)
    assert [one.publisher for one in found.publishers(event("A1"))] == [P2]
    with refused("moderator.unknown-type"):
        found.allow(event("nowhere"), P2)

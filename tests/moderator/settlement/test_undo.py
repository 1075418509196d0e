"""Undoing: what depends on a step is named, what would conflict is refused, and nothing is done blindly."""

import pytest
from tests.moderator.kit import P2, P3, event, rule
from tests.moderator.life import add, ask, base_of, in_force, resolve

from penstock.errors import PenstockError
from penstock.moderator.base.base import RuleBase
from penstock.moderator.rules.rules import SubscribeRule
from penstock.moderator.rules.steps import (
    AddType,
    Leave,
    MoveType,
    RemoveType,
    Return,
    StateSubscriberRule,
    Undo,
    WithdrawRule,
)
from penstock.moderator.settlement.undo import undone


def refused(base: RuleBase, request: Undo) -> PenstockError:
    before = base.image()
    with pytest.raises(PenstockError) as raised:
        ask(base, request)
    assert base.image() == before
    return raised.value


def test_later_steps_that_depend_on_one_are_named() -> None:
    base = base_of()
    add(base, rule("a", "A1", "role = 'manager'"), rule("n", "A2"), rule("b", "A1", "company = 'A'", of=[P2]))
    resolve(base, "b")
    assert refused(base, Undo(1)).fields["steps"] == (4,)
    assert refused(base, Undo(3)).fields["steps"] == (4,)
    ask(base, Undo(2))
    assert [*in_force(base)] == ["a", "b"]


def test_rules_on_a_new_type_depend_on_it() -> None:
    base = base_of()
    ask(base, AddType(event("A19"), event("A3")))
    add(base, rule("a", "A19", "role = 'manager'"))
    assert refused(base, Undo(1)).fields["steps"] == (2,)
    assert refused(base, Undo(1, replay=True)).code == "moderator.replay"
    ask(base, Undo(2))
    ask(base, Undo(1))
    assert event("A19") not in base.tree


def test_what_would_collide_is_refused_though_nobody_touched_it() -> None:
    base = base_of()
    add(base, rule("a", "A1", "role = 'manager'"))
    ask(base, WithdrawRule("a"))
    add(base, rule("b", "A10", "role = 'worker'", of=[P2]))
    assert refused(base, Undo(2)).code == "moderator.conflict"
    ask(base, MoveType(event("A10"), event("A2")))
    ask(base, Undo(2))
    assert [*in_force(base)] == ["a", "b"]
    # Now the move has become what the rules need.
    assert refused(base, Undo(4)).code == "moderator.conflict"


def test_a_replay_asks_again_for_all_that_came_later() -> None:
    base = base_of()
    add(base, rule("a", "A1", "role = 'manager'"), rule("b", "A1", "company = 'A'", of=[P2]))
    add(base, rule("c", "A10", "company = 'A'", of=[P3]))
    assert [*in_force(base)] == ["a"]
    ask(base, Undo(1, replay=True))
    assert [*in_force(base)] == ["b", "c"]
    assert not [*base.history]
    assert [*undone(base)] == [1]
    ask(base, Undo(4))
    assert [*in_force(base)] == ["a"]
    assert [*undone(base)] == [4]


def test_nobody_is_away_again_while_its_rules_are_in_force() -> None:
    base = base_of()
    ask(base, Leave(P2))
    ask(base, Return(P2))
    add(base, rule("b", "A1", "role = 'worker'", of=[P2]))
    assert refused(base, Undo(2)).code == "moderator.away"
    ask(base, WithdrawRule("b"))
    ask(base, Undo(2))
    assert base.away == {P2}


def test_a_plan_is_taken_back_though_the_type_of_a_subscribers_rule_has_gone() -> None:
    base = base_of()
    ask(base, StateSubscriberRule(SubscribeRule("s", event("A18"), P2, P2)), who=P2)
    ask(base, RemoveType(event("A18")))
    before = base.image()
    ask(base, Undo(1, replay=True))
    assert not base.wishes
    ask(base, Undo(3))
    assert base.image() == before

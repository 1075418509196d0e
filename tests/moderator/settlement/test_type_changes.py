"""Changes of the tree: rules go, stay and follow."""

import pytest
from tests.moderator.kit import P1, P2, P3, event, rule
from tests.moderator.life import add, ask, base_of, in_force
from tests.trust.kit import refused

from penstock.errors import PenstockError
from penstock.moderator.base.base import RuleBase
from penstock.moderator.base.records import from_record, to_record
from penstock.moderator.detection.detector import find_conflicts
from penstock.moderator.rules.steps import (
    AddType,
    MoveType,
    RemoveType,
    RenameType,
    Request,
    Strategy,
    Undo,
    WithdrawRule,
)
from penstock.moderator.settlement.type_changes import move_conflicts, propose_move


def test_a_type_goes_with_its_rules_and_those_below_hang_on_its_parent() -> None:
    base = base_of()
    add(base, rule("a", "A1", "role = 'engineer'"), rule("k", "A10", "role = 'engineer'"))
    before = base.image()
    ask(base, RemoveType(event("A1")))
    assert in_force(base) == {"k": "{(role, engineer)}"}
    assert base.tree.parents[event("A10")] == event("ActivityX")
    ask(base, Undo(3))
    assert base.image() == before


def test_rules_in_force_and_in_the_log_follow_a_new_name() -> None:
    base = base_of()
    add(base, rule("a", "A1", "role = 'engineer'"), rule("b", "A1", "role = 'worker'", of=[P2]))
    ask(base, RenameType(event("A1"), event("B1")))
    assert [each.event for each in base.detector.rules.values()] == [event("B1")]
    assert [entry.event for entry in base.history] == [event("B1")]
    assert base.tree.parents[event("A10")] == event("B1")


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (AddType(event("A1")), "moderator.known-type"),
        (AddType(event("B"), event("Nowhere")), "moderator.unknown-type"),
        (MoveType(event("Nowhere")), "moderator.unknown-type"),
        (MoveType(event("A1"), event("Nowhere")), "moderator.unknown-type"),
        (MoveType(event("A1"), event("A10")), "type.cycle"),
        (RenameType(event("A1"), event("A2")), "moderator.known-type"),
        (RenameType(event("Nowhere"), event("B")), "moderator.unknown-type"),
        (RemoveType(event("Nowhere")), "moderator.unknown-type"),
    ],
)
def test_what_is_refused(request_: Request, code: str) -> None:
    base = base_of()
    before = base.image()
    with pytest.raises(PenstockError) as raised:
        ask(base, request_)
    assert raised.value.code == code
    assert base.image() == before


ENGINEERS, AT_A = "role = 'engineer'", "company = 'A'"
MOVE = MoveType(event("A1"), event("A2"))


def test_collisions_are_those_of_the_subtree_with_its_new_path() -> None:
    base = base_of()
    add(base, rule("a", "A1", "role = 'engineer'"), rule("k", "A10", "role = 'engineer' AND company = 'B'"))
    add(base, rule("b", "A2", "company = 'A'", of=[P2]))
    before = base.image()
    found = move_conflicts(base, MoveType(event("A1"), event("A2")))
    assert [(moving.id, [each.rules for each in conflicts]) for moving, conflicts in found] == [
        ("a", [("b",)]),
        ("k", [("b",)]),
    ]
    assert base.image() == before
    assert move_conflicts(base, MoveType(event("A1"), event("A3"))) == ()
    assert move_conflicts(base, MoveType(event("A1"))) == ()


def colliding() -> RuleBase:
    """A rule on A1, one below it, and one on A2 where they would move to."""
    base = base_of()
    add(base, rule("a", "A1", ENGINEERS), rule("k", "A10", f"{ENGINEERS} AND company = 'A'", of=[P3]))
    add(base, rule("b", "A2", AT_A, of=[P2]))
    return base


def test_a_move_that_would_collide_is_refused_with_ways_out() -> None:
    base = colliding()
    before = base.image()
    with refused("moderator.conflict") as found:
        ask(base, MOVE)
    assert found.value.fields["conflicts"] == tuple(each for _, rows in move_conflicts(base, MOVE) for each in rows)
    assert found.value.fields["proposals"] == propose_move(base, MOVE)
    assert base.image() == before
    by_strategy = {each.strategy: each for each in propose_move(base, MOVE)}
    assert [*by_strategy] == [Strategy.FOLLOW, Strategy.DELETE]
    follow, delete = by_strategy.values()
    assert {key: form.fnc_s.text for key, form in follow.forms.items()} == {"a": f"{AT_A} AND {ENGINEERS}"}
    assert (follow.touched, follow.relaxed) == (1, frozenset())
    assert delete.relaxed == {P2}
    assert [*delete.forms] == ["b"]


@pytest.mark.parametrize("strategy", [Strategy.FOLLOW, Strategy.ADD])
def test_a_way_out_is_chosen_and_can_be_undone(strategy: Strategy) -> None:
    base = colliding()
    before = base.image()
    planned = ask(base, MoveType(MOVE.event, MOVE.parent, strategy))
    assert planned.resolution is not None
    assert len(planned.conflicts) == 1
    assert base.tree.parents[event("A1")] == event("A2")
    both = "{(company, A), (role, engineer)}"
    assert in_force(base) == {"a": both, "k": both, "b": "{(company, A)}"}
    assert base.standings["a"].stated == rule("a", "A1", ENGINEERS)
    step = planned.step
    assert from_record(step.number, step.note, to_record(step)) == step
    ask(base, Undo(step.number))
    assert base.image() == before


def test_what_was_demanded_comes_back_when_the_reason_is_gone() -> None:
    base = colliding()
    ask(base, MoveType(MOVE.event, MOVE.parent, Strategy.FOLLOW))
    assert [(entry.kind, [each.id for each in entry.rules]) for entry in base.history] == [("modified", ["a"])]
    ask(base, WithdrawRule("b"))
    assert in_force(base)["a"] == "{(role, engineer)}"


def test_to_relax_needs_consent() -> None:
    base = colliding()
    with refused("moderator.consent"):
        ask(base, MoveType(MOVE.event, MOVE.parent, Strategy.DELETE))
    ask(base, MoveType(MOVE.event, MOVE.parent, Strategy.DELETE, frozenset({P2})))
    assert in_force(base)["b"] == "TRUE"


def test_a_way_that_leads_nowhere() -> None:
    base = base_of()
    add(base, rule("a", "A1", ENGINEERS), rule("b", "A2", "role = 'worker'", of=[P2]))
    with refused("moderator.unresolved") as found:
        ask(base, MoveType(MOVE.event, MOVE.parent, Strategy.ADD))
    assert found.value.fields["proposals"] == propose_move(base, MOVE)
    assert [each.strategy for each in propose_move(base, MOVE)] == [Strategy.DELETE]


def test_several_rules_on_several_types() -> None:
    base = base_of()
    add(base, rule("a", "A1", ENGINEERS), rule("a2", "A1", ENGINEERS, of=[P2]))
    add(base, rule("k", "A10", ENGINEERS, of=[P3]), rule("b", "A2", AT_A, of=[P2]))
    for strategy in (Strategy.FOLLOW, Strategy.ADD):
        planned = ask(base, MoveType(MOVE.event, MOVE.parent, strategy))
        rules = list(base.detector.rules.values())
        assert not any(find_conflicts(each, rules, base.detector.vocabulary, base.mode) for each in rules)
        assert {each.fnc_s.text for each in rules if each.id != "b"} == {f"{AT_A} AND {ENGINEERS}"}
        assert [tuple(each.id for each in entry.rules) for entry in planned.step.delta.logged] == [("a", "a2"), ("k",)]
        ask(base, Undo(planned.step.number))
    assert base.on(event("A1")) == (rule("a", "A1", ENGINEERS), rule("a2", "A1", ENGINEERS, of=[P2]))
    assert P1 not in base.away


def test_where_nothing_collides_a_way_out_changes_nothing() -> None:
    base = colliding()
    planned = ask(base, MoveType(event("A1"), event("A3"), Strategy.ADD))
    assert (planned.conflicts, planned.step.delta.rules) == ((), {})

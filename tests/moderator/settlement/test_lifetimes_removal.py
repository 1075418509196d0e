"""What comes back when rules go, and in which order."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.moderator.kit import P1, P2, P3, P4, PEOPLE, event, rule
from tests.moderator.life import NOW, add, ask, base_of, in_force, resolve

from penstock.errors import RefusedError
from penstock.moderator.base.base import RuleBase
from penstock.moderator.rules.steps import Leave, MoveType, Pass, Request, RuleStatus, Strategy, Undo, WithdrawRule
from penstock.moderator.settlement.addition import Customs
from penstock.moderator.settlement.lifetimes import candidates
from penstock.moderator.settlement.proposals import HEURISTICS, PAPER
from penstock.trust.validity import Validity


def three_rejected() -> RuleBase:
    base = base_of()
    add(
        base,
        rule("a", "A1", "role = 'manager'"),
        rule("old", "A1", "role = 'engineer' AND company = 'A'", of=[P2]),
        rule("middle", "A1", "age >= 18", of=[P3]),
        rule("new", "A1", "role = 'worker'", of=[P4]),
    )
    return base


@pytest.mark.parametrize(
    ("heuristic", "back"),
    [
        ("newest", "new"),
        ("oldest", "old"),
        ("most-subscribers", "middle"),
        ("fewest-changes", "new"),
        ("paper", "new"),
    ],
)
def test_the_heuristic_says_what_comes_back_first(heuristic: str, back: str) -> None:
    base = three_rejected()
    people = [PEOPLE.profile({"age": 20}), PEOPLE.profile({"age": 30, "role": "worker"})]
    planned = ask(base, WithdrawRule("a"), Customs(heuristic=HEURISTICS[heuristic], subscribers=people))
    assert [entry.rules[0].id for entry in planned.step.restored] == [back]
    assert [*in_force(base)] == [back]


def test_a_form_that_several_agreed_on_comes_back_to_all_of_them() -> None:
    base = base_of()
    add(base, rule("a", "A1", "role = 'manager'"), rule("b", "A1", "company = 'A'", of=[P2]))
    resolve(base, "b")
    add(base, rule("c", "A1", "machine = 'M'", of=[P3]))
    resolve(base, "c")
    planned = ask(base, WithdrawRule("c"))
    assert [len(entry.rules) for entry in planned.step.restored] == [2]
    assert in_force(base) == dict.fromkeys("ab", "{(company, A), (role, manager)}")


@pytest.mark.parametrize("heuristic", ["newest", "paper"])
def test_what_only_the_rule_that_went_had_stated_goes_below_as_well(heuristic: str) -> None:
    base = base_of()
    add(base, rule("a", "A1", "role = 'manager'"), rule("k", "A10", "role = 'manager'", of=[P4]))
    add(base, rule("b", "A1", "company = 'A'", of=[P2]))
    resolve(base, "b")
    add(base, rule("c", "A1", "machine = 'M'", of=[P3]))
    resolve(base, "c")
    # Nothing in the log fits beside c, so that the company is deleted from what a, c and k demand.
    assert not ask(base, WithdrawRule("b"), Customs(heuristic=HEURISTICS[heuristic])).step.restored
    assert in_force(base) == dict.fromkeys("ack", "{(machine, M), (role, manager)}")


@pytest.mark.parametrize("about", ["A1", "ActivityX"])
@pytest.mark.parametrize("going", ["withdraw", "leave", "end"])
def test_no_restriction_outlives_everyone_who_asked_for_it(about: str, going: str) -> None:
    base = base_of()
    add(base, rule("p", "A1", "role = 'manager'"))
    for rule_id, where, fnc_s, who in (("q", "A1", "role = 'manager'", P2), ("r", about, "company = 'A'", P3)):
        end = NOW + timedelta(2 if rule_id == "q" else 4) if going == "end" else None
        add(base, replace(rule(rule_id, where, fnc_s, of=[who]), validity=Validity.between(None, end)))
    resolve(base, "r")
    assert in_force(base)["p"] == "{(company, A), (role, manager)}"
    for rule_id, who, day in (("q", P2, 3), ("r", P3, 5)):
        ways: dict[str, Request] = {"withdraw": WithdrawRule(rule_id), "leave": Leave(who), "end": Pass()}
        ask(base, ways[going], day=day)
    assert in_force(base) == {"p": "{(role, manager)}"}


def test_a_demand_that_was_deleted_comes_back_to_those_who_are_left() -> None:
    base = base_of()
    add(base, *(rule(rule_id, "A1", "role = 'manager' AND company = 'A'", of=[P1]) for rule_id in "pq"))
    add(base, rule("r", "A1", "role = 'manager'", of=[P3]))
    resolve(base, "r", Strategy.DELETE, P1)
    ask(base, WithdrawRule("q"))
    ask(base, WithdrawRule("r"))
    assert in_force(base) == {"p": "{(company, A), (role, manager)}"}


def test_what_a_rule_was_undone_for_is_not_demanded_of_others() -> None:
    base = base_of()
    add(base, rule("p", "A1", "role = 'manager'"), rule("r", "A1", "company = 'A'", of=[P3]))
    resolve(base, "r")
    add(base, rule("s", "A1", "role = 'manager' AND company = 'A'", of=[P2]))
    stated = base.next_number - 1
    ask(base, WithdrawRule("r"))
    assert in_force(base)["p"] == "{(company, A), (role, manager)}"
    ask(base, Undo(stated))
    assert in_force(base) == {"p": "{(role, manager)}"}


def test_what_a_type_was_moved_away_from_is_not_demanded_of_its_rules() -> None:
    base = base_of()
    add(base, *(rule(rule_id, "A10", "role = 'manager'", of=[P1]) for rule_id in "pq"))
    add(base, rule("r", "A1", "company = 'A'", of=[P3]))
    resolve(base, "r")
    ask(base, WithdrawRule("q"))
    ask(base, MoveType(event("A10"), event("A2")))
    assert in_force(base) == {"p": "{(role, manager)}", "r": "{(company, A)}"}


def test_the_heuristic_of_the_paper_adds_attributes_that_were_rejected() -> None:
    base = base_of()
    add(base, rule("a", "A1", "role = 'manager'"), rule("b", "A1", "role = 'manager'", of=[P2]))
    add(base, rule("c", "A1", "machine = 'M'", of=[P3]))
    ask(base, WithdrawRule("b"), Customs(heuristic=PAPER))
    assert in_force(base) == dict.fromkeys("ac", "{(machine, M), (role, manager)}")


def test_what_was_withdrawn_is_no_candidate() -> None:
    base = base_of()
    add(base, rule("a", "A1", "role = 'manager'"), rule("b", "A1", "company = 'A'", of=[P2]))
    resolve(base, "b")
    assert [entry.rules[0].id for entry in candidates(base, NOW)] == ["b", "a"]
    ask(base, WithdrawRule("a"))
    ask(base, WithdrawRule("b"))
    assert base.standing("a").status is RuleStatus.WITHDRAWN
    assert [*candidates(base, NOW)] == []
    assert [*base.history] != []
    with pytest.raises(RefusedError) as raised:
        ask(base, WithdrawRule("a"))
    assert raised.value.code == "moderator.gone"


def test_what_others_state_too_stays() -> None:
    base = base_of()
    add(base, rule("a", "A1", "role = 'manager'"), rule("b", "A1", "company = 'A'", of=[P2]))
    resolve(base, "b", Strategy.ADD)
    add(base, rule("c", "A1", "role = 'manager' AND company = 'A'", of=[P3]))
    ask(base, WithdrawRule("b"))
    assert in_force(base) == dict.fromkeys("ac", "{(company, A), (role, manager)}")
    ask(base, WithdrawRule("c"), who=P3)
    assert in_force(base) == {"a": "{(role, manager)}"}
    assert base.standing("a").stated.stated_by == P1


def test_orders_do_not_depend_on_how_the_log_is_read() -> None:
    base = three_rejected()
    for name, first in (("newest", "new"), ("oldest", "old")):
        for entries in ([*base.history], [*base.history][::-1]):
            assert HEURISTICS[name].ordered(base, entries)[0].rules[0].id == first


def test_what_fits_above_and_below_comes_back_and_elsewhere_nothing_is_tried() -> None:
    base = base_of()
    add(base, rule("a", "A1", "role = 'manager'"), rule("k", "A10", "role = 'worker'", of=[P2]))
    add(base, rule("x", "ActivityX", "company = 'A'", of=[P3]), rule("n", "A2"))
    ask(base, WithdrawRule("n"))
    assert not base.unsettled
    ask(base, WithdrawRule("a"))
    # Of the two, the newer one is tried first, and then the other one conflicts with it.
    assert in_force(base) == {"x": "{(company, A)}"}
    ask(base, WithdrawRule("x"))
    assert in_force(base) == {"k": "{(role, worker)}"}


def test_a_move_lets_rules_come_back_where_the_type_was() -> None:
    base = base_of()
    add(base, rule("k", "A10", "role = 'worker'"), rule("x", "A1", "company = 'A'", of=[P2]), rule("n", "A3"))
    ask(base, WithdrawRule("n"))
    planned = ask(base, MoveType(event("A10"), event("A2")))
    assert [entry.rules[0].id for entry in planned.step.restored] == ["x"]
    assert in_force(base) == {"k": "{(role, worker)}", "x": "{(company, A)}"}
    assert not base.unsettled


def test_what_has_ended_or_whose_publisher_is_away_is_no_candidate() -> None:
    base = base_of()
    ending = replace(rule("b", "A1", "company = 'A'", of=[P2]), validity=Validity.between(None, NOW + timedelta(1)))
    add(base, rule("a", "A1", "role = 'manager'"), ending, rule("c", "A1", "role = 'worker'", of=[P3]))
    ask(base, Leave(P3))
    assert [entry.rules[0].id for entry in candidates(base, NOW)] == ["b"]
    assert [*candidates(base, NOW + timedelta(2))] == []
    ask(base, WithdrawRule("a"), day=2)
    assert in_force(base) == {}


def test_what_a_leaf_had_kept_out_above_comes_back() -> None:
    base = base_of()
    add(base, rule("k", "A10", "role = 'worker'"), rule("x", "A1", "company = 'A'", of=[P2]), rule("n", "A3"))
    ask(base, WithdrawRule("n"))
    ask(base, WithdrawRule("k"))
    assert in_force(base) == {"x": "{(company, A)}"}

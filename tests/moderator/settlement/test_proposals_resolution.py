"""Proposals of a conflict: the whole subtree or nothing, in both scopes, with lists and formulas."""

import pytest
from tests.moderator.kit import P1, P2, P3, P4, listing, rule, tree
from tests.moderator.life import add, base_of

from penstock.model.tree import TreeScope
from penstock.moderator.base.base import RuleBase
from penstock.moderator.rules.conflicts import Mode
from penstock.moderator.rules.rules import PublishRule
from penstock.moderator.rules.steps import Strategy
from penstock.moderator.settlement.proposals import resolve

ENGINEER = listing(("role", "engineer"))


def functions(base: RuleBase, candidate: PublishRule, strategy: Strategy) -> dict[str, str] | None:
    forms = resolve(base, candidate, strategy)
    return None if forms is None else {rule_id: form.fnc_s.text for rule_id, form in sorted(forms.items())}


def test_adding_reaches_all_below_in_an_upward_tree() -> None:
    base = base_of()
    add(base, rule("a", "A1", ENGINEER), rule("b", "A10", ENGINEER), rule("c", "A2", ENGINEER))
    candidate = rule("m", "ActivityX", "machine = 'M'", of=[P2])
    assert functions(base, candidate, Strategy.ADD) == {
        "a": "machine = 'M' AND role = 'engineer'",
        "b": "machine = 'M' AND role = 'engineer'",
        "c": "machine = 'M' AND role = 'engineer'",
        "m": "machine = 'M'",
    }


def test_adding_reaches_all_above_in_a_downward_tree() -> None:
    base = base_of(tree({"X": None, "A": "X", "AA": "A", "B": "X"}, TreeScope.DOWNWARD))
    add(base, rule("x", "X", ENGINEER), rule("a", "A"), rule("b", "B"))
    candidate = rule("m", "AA", "machine = 'M'", of=[P2])
    assert functions(base, candidate, Strategy.ADD) == {
        "a": "machine = 'M'",
        "m": "machine = 'M'",
        "x": "machine = 'M' AND role = 'engineer'",
    }


def test_adding_is_no_way_if_one_rule_of_the_subtree_cannot_take_it() -> None:
    base = base_of()
    add(base, rule("a", "A1"), rule("b", "A10", ENGINEER), rule("c", "A11", "role = 'worker'", of=[P4]))
    before = base.image()
    assert functions(base, rule("m", "A1", ENGINEER, of=[P2]), Strategy.ADD) is None
    assert base.image() == before


def test_adding_formulas_keeps_only_what_is_missing() -> None:
    base = base_of()
    add(base, rule("a", "A1", "age >= 21 AND (role = 'engineer' OR company = 'A')"))
    candidate = rule("m", "A10", "age >= 30 AND company = 'A'", of=[P2])
    assert functions(base, candidate, Strategy.ADD) == {"m": "age >= 30 AND company = 'A'"}
    candidate = rule("m", "A10", "age >= 18", of=[P2])
    assert functions(base, candidate, Strategy.ADD) == {
        "m": "age >= 18 AND age >= 21 AND (role = 'engineer' OR company = 'A')"
    }


def test_deleting_leaves_what_is_common() -> None:
    base = base_of()
    add(base, rule("x", "ActivityX", "company = 'A'"), rule("a", "A1", "role = 'engineer' AND company = 'A'", of=[P2]))
    candidate = rule("m", "A1", "role = 'engineer' AND machine = 'M'", of=[P3])
    assert functions(base, candidate, Strategy.DELETE) == {
        "a": "role = 'engineer'",
        "m": "role = 'engineer'",
        "x": "TRUE",
    }


def test_following_takes_over_what_is_in_force_on_the_event_type() -> None:
    base = base_of()
    add(base, rule("a", "A1", ENGINEER, "company = 'A'"))
    forms = resolve(base, rule("m", "A1", "machine = 'M'", of=[P2]), Strategy.FOLLOW)
    assert forms is not None
    assert (forms["m"].fnc_s.text, forms["m"].fnc_p.text) == ("role = 'engineer'", "company = 'A'")


def test_following_between_what_is_above_and_what_is_below() -> None:
    base = base_of()
    add(base, rule("x", "ActivityX", "company = 'A'"), rule("b", "A10", "company = 'A' AND age >= 18", of=[P2]))
    candidate = rule("m", "A1", "machine = 'M' AND age >= 16", of=[P3])
    assert functions(base, candidate, Strategy.FOLLOW) == {"m": "age >= 16 AND company = 'A'"}


def test_functions_about_publishers_are_resolved_too() -> None:
    base = base_of()
    add(base, rule("a", "A1", fnc_p="licensed"))
    forms = resolve(base, rule("m", "A1", fnc_p="company = 'A'", of=[P2]), Strategy.ADD)
    assert forms is not None
    assert {form.fnc_p.text for form in forms.values()} == {"company = 'A' AND licensed = TRUE"}


def test_bounds_that_differ_have_no_common_list_in_the_mode_of_the_algorithm() -> None:
    base = base_of(mode=Mode.ALGORITHM)
    add(base, rule("a", "A1", "age >= 18"))
    assert functions(base, rule("m", "A10", "age >= 21", of=[P2]), Strategy.ADD) is None
    assert functions(base, rule("m", "A1", "age BETWEEN 18 AND 65", of=[P2]), Strategy.DELETE) == {
        "a": "age >= 18",
        "m": "age >= 18",
    }


@pytest.mark.parametrize("strategy", [*Strategy])
def test_in_the_literal_mode_a_way_out_is_one_or_is_none(strategy: Strategy) -> None:
    base = base_of(mode=Mode.LITERAL)
    add(base, rule("a", "A1", ENGINEER, "company = 'A'", of=[P1]))
    candidate = rule("m", "A10", "machine = 'M'", "licensed", of=[P2])
    forms = resolve(base, candidate, strategy)
    assert base.detector.conflicts(candidate)
    assert forms is None or not base.detector.conflicts(forms["m"]) or len(forms) > 1

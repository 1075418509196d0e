"""Proposals: what changes least comes first, each as a diff, with those who have to agree."""

from datetime import timedelta

import pytest
from tests.moderator.kit import P1, P2, P3, P4, PEOPLE, event, listing, rule, tree
from tests.moderator.life import NOW, add, base_of
from tests.trust.kit import key, refused

from penstock.model.tree import TreeScope
from penstock.moderator.base.base import RuleBase
from penstock.moderator.rules.rules import Mode, PublishRule
from penstock.moderator.rules.steps import Add, Forward, MoveType, Note, Resolve, Strategy, WithdrawRule
from penstock.moderator.settlement.proposals import (
    Consent,
    find,
    propose,
    request_digest,
    resolution_digest,
    resolve,
    subject_of,
)
from penstock.moderator.settlement.undo import plan
from penstock.trust.signed import parse_signed, sign_value


def test_what_changes_fewest_rules_comes_first() -> None:
    base = base_of()
    add(base, rule("a", "A1", "role = 'engineer'"), rule("b", "A10", "role = 'engineer'", of=[P2]))
    candidate = rule("m", "A1", "machine = 'M'", of=[P3])
    found = propose(base, candidate)
    assert [(each.strategy, each.touched) for each in found] == [
        (Strategy.FOLLOW, 0),
        (Strategy.ADD, 2),
        # Nothing is common to them: it opens the type to everybody, and comes last.
        (Strategy.DELETE, 1),
    ]
    assert [each.relaxed for each in found] == [frozenset({P3}), frozenset(), frozenset({P1, P3})]
    assert [each.wider for each in found] == [{"m"}, frozenset(), {"a", "m"}]
    assert found[1].diff().splitlines() == [
        "A1 m",
        "  + fnc_s: role = 'engineer'",
        "A1 a",
        "  + fnc_s: machine = 'M'",
        "A10 b",
        "  + fnc_s: machine = 'M'",
    ]


def test_subscribers_that_gain_and_lose_are_counted_where_they_are_known() -> None:
    base = base_of()
    add(base, rule("a", "A1", "age >= 18"))
    people = [PEOPLE.profile({"age": age}) for age in (10, 20, 30, 40)]
    found = {each.strategy: each for each in propose(base, rule("m", "A1", "age >= 25", of=[P2]), people)}
    # Either the rule loses the one of 20, or the candidate gets him; that is what deleting comes to, too.
    assert (found[Strategy.ADD].gained, found[Strategy.ADD].lost) == (0, 1)
    assert (found[Strategy.FOLLOW].gained, found[Strategy.FOLLOW].lost) == (1, 0)
    assert Strategy.DELETE not in found


def test_nothing_is_proposed_where_all_ways_are_closed_and_nothing_is_changed() -> None:
    base = base_of()
    add(base, rule("a", "A1", "role = 'engineer'"))
    before = base.image()
    found = propose(base, rule("m", "A1", "role = 'worker'", of=[P2]))
    assert Strategy.ADD not in {each.strategy for each in found}
    assert base.image() == before


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


ENGINEERS, AT_A = "role = 'engineer'", "company = 'A'"
ALL = frozenset({P1, P2})


def colliding(*more: str) -> RuleBase:
    base = base_of()
    add(base, rule("a", "A1", ENGINEERS), *(rule(rule_id, "A1", ENGINEERS) for rule_id in more))
    add(base, rule("b", "A1", AT_A, of=[P2]), rule("c", "A2", AT_A, of=[P2]))
    return base


def subject(base: RuleBase, request: Forward) -> bytes:
    return subject_of(plan(base, request, Note(P1, NOW)).step)


@pytest.mark.parametrize("poll", [None, bytes(range(1, 33))])
def test_it_is_read_back(poll: bytes | None) -> None:
    consent = Consent(bytes(32), key(11).principal, bytes(range(32)), 7, NOW + timedelta(days=1), poll)
    read = parse_signed(sign_value(consent, key(11)).to_bytes(), Consent).verify()
    assert read.value == consent
    with refused("evolution.wrong-key"):
        sign_value(consent, key(12))


def test_it_is_to_the_forms_that_a_proposal_shows() -> None:
    base = colliding()
    proposed = find(base, base.standings["b"].stated, Strategy.DELETE)
    assert proposed is not None
    asked = Resolve("b", Strategy.DELETE, ALL)
    assert subject(base, asked) == resolution_digest("b", Strategy.DELETE, proposed.forms)


def test_who_agrees_is_no_part_of_what_is_agreed_to() -> None:
    base = colliding()
    assert subject(base, Resolve("b", Strategy.ADD)) == subject(base, Resolve("b", Strategy.ADD, ALL))
    moved = [MoveType(event("A1"), event("A2"), Strategy.ADD, consents) for consents in (frozenset(), ALL)]
    assert len({subject(base, each) for each in moved}) == 1


def test_what_comes_of_it_is() -> None:
    one, other = colliding(), colliding("d")
    for request in (Resolve("b", Strategy.DELETE, ALL), MoveType(event("A1"), event("A2"), Strategy.ADD)):
        assert subject(one, request) != subject(other, request)
    ways = [Resolve("b", Strategy.DELETE, ALL), Resolve("b", Strategy.ADD), Resolve("b", Strategy.FOLLOW, ALL)]
    assert len({subject(one, way) for way in ways}) == len(ways)


def test_other_requests_are_what_they_say() -> None:
    base = colliding()
    stated = Add(rule("e", "A3"))
    assert subject(base, stated) == request_digest(stated)
    assert request_digest(WithdrawRule("a")) != request_digest(WithdrawRule("b"))

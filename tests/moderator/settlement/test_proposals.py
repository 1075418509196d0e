"""Proposals: what changes least comes first, each as a diff, with those who have to agree."""

from tests.moderator.kit import P1, P2, P3, PEOPLE, rule
from tests.moderator.life import add, base_of

from penstock.moderator.rules.steps import Strategy
from penstock.moderator.settlement.proposals import propose


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

"""All conflicts within a set of rules: each pair that conflicts is named once, as the reference finds it."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.moderator.kit import FORMULAS, PEOPLE, WORKFLOW, rule, words

from penstock.moderator.detection.detector import check_rules
from penstock.moderator.detection.naive import find_conflicts
from penstock.moderator.rules.conflicts import Conflict, Mode
from penstock.selector import Selector
from penstock.trust.validity import Validity

WORDS = words(WORKFLOW)
PERIODS = (Validity(), Validity(None, b"2026-06-30"), Validity(b"2026-07-01"), Validity(b"2026-06-15", b"2026-07-15"))
drawn = st.lists(
    st.tuples(
        st.sampled_from(["ActivityX", "A1", "A10", "A2"]), st.sampled_from(FORMULAS[:9]), st.sampled_from(PERIODS)
    ),
    max_size=6,
)


@given(drawn)
@settings(max_examples=examples(40), deadline=None)
def test_each_pair_that_collides_is_named_once(stated: list[tuple[str, Selector, Validity]]) -> None:
    rules = [
        replace(rule(f"r{number}", event, function), validity=validity)
        for number, (event, function, validity) in enumerate(stated)
    ]
    for place, checked in enumerate(check_rules(WORDS, Mode.SCOPED, rules)):
        before = [each for each in rules[:place] if each.validity.intersect(checked.rule.validity) is not None]
        assert checked.rule == rules[place]
        assert _told(checked.conflicts) == _told(find_conflicts(checked.rule, before, WORDS))


def _told(conflicts: tuple[Conflict, ...]) -> list[tuple[object, ...]]:
    return [(each.kind, each.event, each.rules, each.function, each.missing, each.extra) for each in conflicts]


def test_a_rule_that_is_wrong_is_compared_with_nothing() -> None:
    rules = [
        rule("r1", "A1", "role = 'engineer'"),
        rule("r2", "A1", "role = 'boss'"),
        rule("r1", "A1"),
        rule("r3", "A1", "role = 'worker'"),
    ]
    assert "role" in PEOPLE.attributes
    checked = [*check_rules(WORDS, Mode.SCOPED, rules)]
    assert [None if each.problem is None else each.problem.code for each in checked] == [
        None,
        "moderator.domain",
        "moderator.duplicate-id",
        None,
    ]
    assert [each.rules for each in checked[3].conflicts] == [("r1",)]

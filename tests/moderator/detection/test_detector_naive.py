"""The paper's own examples, in the three modes."""

import pytest
from tests.moderator.kit import P1, P2, P3, P4, WORKFLOW, listing, rule, tree, words
from tests.trust.kit import refused

from penstock.model.principals import Principal
from penstock.model.tree import TreeScope
from penstock.moderator.detection.detector import find_conflicts
from penstock.moderator.limits import ModeratorLimits
from penstock.moderator.rules.rules import Bound, Conflict, ConflictKind, Mode, Party, RuleFunction

FIGURE_2 = words(WORKFLOW)
#: Figure 1, rights reach downwards
CHANNELS = words(tree({"all": None, "soccer": "all", "national": "soccer", "movies": "all"}, TreeScope.DOWNWARD))
ENGINEER, WORKER, OF_A = ("role", "engineer"), ("role", "worker"), ("company", "A")
#: Example 1, in its order, and what becomes of each rule
EXAMPLE_1 = (
    (rule("1", "A1", listing(ENGINEER), of=[P1]), None),
    (rule("2", "A1", listing(OF_A), of=[P2]), ConflictKind.SAME),
    (rule("3", "ActivityX", listing(OF_A), of=[P2]), ConflictKind.DOWN),
    (rule("4", "A12", listing(WORKER), of=[P2]), ConflictKind.UP),
    (rule("5", "A10", listing(ENGINEER, OF_A), of=[P2]), None),
)


def said(conflict: Conflict) -> tuple[ConflictKind, tuple[str, ...], list[str], list[str]]:
    missing, extra = ([part.text for part in found] for found in (conflict.missing, conflict.extra))
    return conflict.kind, conflict.rules, missing, extra


@pytest.mark.parametrize("mode", [Mode.SCOPED, Mode.ALGORITHM])
def test_example_1(mode: Mode) -> None:
    active = [EXAMPLE_1[0][0]]
    for candidate, kind in EXAMPLE_1[1:]:
        found = find_conflicts(candidate, active, FIGURE_2, mode)
        assert [(conflict.kind, conflict.rules) for conflict in found] == ([(kind, ("1",))] if kind else [])
        if not found:
            active.append(candidate)
    assert [rule.id for rule in active] == ["1", "5"]


def test_who_shows_the_conflicts_of_example_1() -> None:
    active = [EXAMPLE_1[0][0]]
    same, down, up = (find_conflicts(EXAMPLE_1[n][0], active, FIGURE_2)[0] for n in (1, 2, 3))
    assert said(same) == (ConflictKind.SAME, ("1",), ["role = 'engineer'"], ["company = 'A'"])
    assert (same.admitted_by, same.attributes) == (Party.CANDIDATE, ("company", "role"))
    # Whoever may receive A1 and is not of company A would lose ActivityX.
    assert said(down) == (ConflictKind.DOWN, ("1",), [], ["company = 'A'"])
    assert down.witness is not None
    assert (down.admitted_by, dict(down.witness.values)) == (Party.RULE, {"company": "B", "role": "engineer"})
    # A worker who may receive A12 would not receive A1 above it.
    assert said(up) == (ConflictKind.UP, ("1",), ["role = 'engineer'"], [])
    assert up.witness is not None
    assert (up.admitted_by, dict(up.witness.values), up.function) == (
        Party.CANDIDATE,
        {"role": "worker"},
        RuleFunction.S,
    )


def test_none_of_the_examples_conflicts_by_definition_1() -> None:
    # They say nothing about publishers, so that no publisher satisfies one function and not the other.
    active = [candidate for candidate, _ in EXAMPLE_1]
    assert all(not find_conflicts(candidate, active, FIGURE_2, Mode.LITERAL) for candidate in active)


def test_example_2() -> None:
    active = [
        rule("x", "ActivityX", listing(OF_A), of=[P1]),
        rule("a1", "A1", listing(ENGINEER, OF_A), of=[P2]),
        rule("a12", "A12", listing(ENGINEER, OF_A), of=[P4]),
    ]
    requested = rule("new", "A1", listing(("machine", "M")), of=[P3])
    for mode in (Mode.SCOPED, Mode.ALGORITHM):
        assert [said(found) for found in find_conflicts(requested, active, FIGURE_2, mode)] == [
            (ConflictKind.SAME, ("a1",), ["company = 'A'", "role = 'engineer'"], ["machine = 'M'"]),
            (ConflictKind.UP, ("x",), ["company = 'A'"], []),
            (ConflictKind.DOWN, ("a12",), [], ["machine = 'M'"]),
        ]


@pytest.mark.parametrize("mode", [Mode.SCOPED, Mode.ALGORITHM])
def test_scenario_a_reaches_downwards(mode: Mode) -> None:
    # Soccer to all, the national league below it to few: who has soccer would not have all of it.
    everybody, few = rule("s", "soccer"), rule("n", "national", listing(ENGINEER), of=[P2])
    (found,) = find_conflicts(few, [everybody], CHANNELS, mode)
    assert said(found) == (ConflictKind.UP, ("s",), [], ["role = 'engineer'"])
    (found,) = find_conflicts(everybody, [few], CHANNELS, mode)
    assert said(found) == (ConflictKind.DOWN, ("n",), ["role = 'engineer'"], [])
    # The other way round all is well; and the movies are another matter.
    assert find_conflicts(rule("n2", "national"), [rule("s2", "soccer", listing(ENGINEER))], CHANNELS, mode) == ()
    assert find_conflicts(rule("m", "movies", listing(WORKER)), [everybody, few], CHANNELS, mode) == ()


def test_the_algorithm_compares_entries_where_profiles_are_meant() -> None:
    adult, older = listing(("age", Bound.MIN, 18)), listing(("age", Bound.MIN, 21))
    above, below = rule("above", "A1", adult), rule("below", "A12", older)
    assert find_conflicts(below, [above], FIGURE_2) == ()
    (found,) = find_conflicts(below, [above], FIGURE_2, Mode.ALGORITHM)
    assert said(found) == (ConflictKind.UP, ("above",), ["age >= 18"], [])
    # Nobody shows it, because there is nobody; certain it is.
    assert (found.witness, found.admitted_by, found.certain) == (None, None, True)


def test_definition_1_asks_for_a_publisher_and_a_subscriber_and_for_two_publishers() -> None:
    standing = rule("r", "A1", "role = 'engineer'", "company = 'A'", of=[P1])

    def literal(fnc_s: str, fnc_p: str, *of: Principal) -> list[RuleFunction]:
        candidate = rule("c", "ActivityX", fnc_s, fnc_p, of=of or [P2])
        return [found.function for found in find_conflicts(candidate, [standing], FIGURE_2, Mode.LITERAL)]

    assert literal("role = 'worker'", "company = 'B'") == [RuleFunction.P, RuleFunction.S]
    assert literal("role = 'worker'", "company = 'A'") == []
    assert literal("role = 'engineer'", "company = 'B'") == []
    # By the scope an ancestor may admit more; by Definition 1 it may not.
    assert literal("TRUE", "TRUE") == [RuleFunction.P, RuleFunction.S]
    assert literal("TRUE", "TRUE", P1) == []
    assert literal("TRUE", "TRUE", P1, P2) == [RuleFunction.P, RuleFunction.S]


def test_rules_that_state_the_same_stand_together() -> None:
    active = [rule(name, "A1", listing(ENGINEER), of=[P1]) for name in "cab"] + [rule("d", "A1", listing(WORKER))]
    found = find_conflicts(rule("new", "A1", listing(OF_A)), active, FIGURE_2)
    assert [conflict.rules for conflict in found] == [("a", "b", "c"), ("d",)]


def test_a_rule_does_not_collide_with_itself_or_with_strangers() -> None:
    active = [rule("r", "A1", listing(ENGINEER)), rule("far", "A2", listing(WORKER))]
    assert find_conflicts(rule("r", "A1", listing(OF_A)), active, FIGURE_2) == ()


def test_what_is_not_decided_in_time_is_a_conflict_and_says_so() -> None:
    # Each of the two implies the other, which is not found out with so little effort.
    active = [rule("r", "A1", "age * age >= 100")]
    (found,) = find_conflicts(
        rule("c", "A1", "age >= 10"), active, FIGURE_2, limits=ModeratorLimits(solver_time=100, solver_effort=1)
    )
    assert (found.certain, found.witness, found.admitted_by, found.attributes) == (False, None, None, ("age",))


def test_the_algorithm_reads_lists_only() -> None:
    with refused("moderator.not-a-list"):
        find_conflicts(rule("c", "A1", "age > 3"), [rule("r", "A1")], FIGURE_2, Mode.ALGORITHM)

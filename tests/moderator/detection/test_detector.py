"""The detector for many rules: what changes it, and what leaves it as it was."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.moderator.kit import FORMULAS, PEOPLE, WORKFLOW, event, listing, rule, tree, words
from tests.trust.kit import refused

from penstock.model.tree import TreeScope
from penstock.moderator.detection.detector import STEP, Detector, TypePlaces, after, check_rules, find_conflicts
from penstock.moderator.detection.judge import Implication, QuickJudge
from penstock.moderator.limits import ModeratorLimits
from penstock.moderator.rules.rules import Conflict, ConflictKind, Mode, PublishRule, RuleFunction
from penstock.selector import ALWAYS, Selector
from penstock.trust.validity import Validity

ENGINEER, WORKER, OF_A = ("role", "engineer"), ("role", "worker"), ("company", "A")
PARENTS: dict[str, str | None] = {"root": None, "a": "root", "b": "root", "c": "b"}


def detector(mode: Mode = Mode.SCOPED) -> Detector:
    return Detector(words(WORKFLOW), mode)


def test_a_rule_that_collides_does_not_come_into_force() -> None:
    found = detector()
    assert found.add(rule("1", "A1", listing(ENGINEER))) == ()
    (conflict,) = found.add(rule("2", "A1", listing(OF_A)))
    assert (conflict.kind, conflict.rules) == (ConflictKind.SAME, ("1",))
    assert list(found.rules) == ["1"]
    assert found.on(event("A1")) == (found.rules["1"],)
    assert found.on(event("A2")) == found.on(event("nowhere")) == ()


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (rule("1", "A2"), "moderator.duplicate-id"),
        (rule("2", "A99"), "moderator.unknown-type"),
        (rule("2", "A1", "height > 1"), "moderator.unknown-attribute"),
        (rule("2", "A1", "role = 'cook'"), "moderator.domain"),
        (rule("2", "A1", "age > 5 AND age < 5"), "moderator.contradiction"),
    ],
)
def test_bad_rules_change_nothing(bad: PublishRule, code: str) -> None:
    found = detector()
    found.add(rule("1", "A1", listing(ENGINEER)))
    for change in (found.add, found.put):
        with refused(code):
            change(bad)
    assert list(found.rules) == ["1"]
    assert found.add(rule("2", "A2", listing(WORKER))) == ()


def test_formulas_change_nothing_where_lists_are_compared() -> None:
    found = detector(Mode.ALGORITHM)
    for change in (found.add, found.put):
        with refused("moderator.not-a-list"):
            change(rule("1", "A1", "age > 3"))
    assert not found.rules
    assert found.add(rule("1", "A1", "age >= 3")) == ()


def test_removing_a_rule_gives_way() -> None:
    found = detector()
    found.add(rule("1", "A1", listing(ENGINEER)))
    assert found.remove("1") == rule("1", "A1", listing(ENGINEER))
    assert found.add(rule("2", "A1", listing(OF_A))) == ()
    with refused("moderator.unknown-rule"):
        found.remove("1")


def test_a_rule_may_be_asked_about_in_another_form() -> None:
    found = detector()
    found.add(rule("1", "A1", listing(ENGINEER)))
    found.add(rule("2", "ActivityX", listing(ENGINEER)))
    assert found.conflicts(rule("1", "A1", listing(ENGINEER, OF_A))) == ()
    (conflict,) = found.conflicts(rule("1", "A1", listing(WORKER)))
    assert (conflict.kind, conflict.rules) == (ConflictKind.UP, ("2",))
    # Also where it stood elsewhere: it stops nobody from looking further up.
    (conflict,) = found.conflicts(rule("1", "A10", listing(WORKER)))
    assert (conflict.kind, conflict.rules) == (ConflictKind.UP, ("2",))


def test_rules_of_others_are_put_in_force_unseen_and_reviewed() -> None:
    found = detector()
    found.put(rule("1", "A1", listing(ENGINEER)))
    found.put(rule("2", "A10", listing(WORKER)))
    found.put(rule("3", "A2", listing(WORKER)))
    seen = {rule.id: [(conflict.kind, conflict.rules) for conflict in conflicts] for rule, conflicts in found.review()}
    assert seen == {"1": [(ConflictKind.DOWN, ("2",))], "2": [(ConflictKind.UP, ("1",))], "3": []}
    assert [rule.id for rule, _ in found.review()] == ["1", "2"]
    found.remove("2")
    assert [rule.id for rule, conflicts in found.review() if not conflicts] == ["1"]
    assert list(found.review()) == []


@pytest.mark.parametrize("scope", TreeScope)
def test_types_may_be_added_and_moved(scope: TreeScope) -> None:
    found = Detector(words(tree(PARENTS, scope)))
    wide, narrow = rule("a", "a"), rule("c", "c", listing(ENGINEER))
    assert found.add(wide) == found.add(narrow) == ()
    found.follow(tree({**PARENTS, "d": "c"}, scope))
    assert list(found.review()) == []
    assert found.conflicts(rule("d", "d", listing(WORKER)))
    # Now c is below a: by a scope that reaches upwards that is well, by the other one it is not.
    found.follow(tree({**PARENTS, "d": "c", "c": "a"}, scope))
    ((moved, conflicts),) = found.review()
    assert moved == narrow
    assert [conflict.rules for conflict in conflicts] == ([] if scope is TreeScope.UPWARD else [("a",)])


def test_a_tree_that_does_not_suit_changes_nothing() -> None:
    found = Detector(words(tree(PARENTS)))
    found.add(rule("c", "c", listing(ENGINEER)))
    with refused("moderator.unknown-type"):
        found.follow(tree({"root": None, "a": "root"}))
    with refused("moderator.scope"):
        found.follow(tree(PARENTS, TreeScope.DOWNWARD))
    assert found.conflicts(rule("b", "b", listing(WORKER)))[0].rules == ("c",)


def test_what_is_not_decided_keeps_a_rule_out() -> None:
    found = Detector(words(WORKFLOW), limits=ModeratorLimits(solver_time=100, solver_effort=1))
    assert found.add(rule("1", "A1", "age * age >= 100")) == ()
    (conflict,) = found.add(rule("2", "A1", "age >= 10"))
    assert not conflict.certain
    assert list(found.rules) == ["1"]


@pytest.mark.parametrize("scope", TreeScope)
@pytest.mark.parametrize("mode", [Mode.SCOPED, Mode.ALGORITHM])
def test_above_a_thousand_rules_only_those_that_collide_are_looked_at(
    scope: TreeScope, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{n}" for n in range(1_000)]
    found = Detector(words(tree({"root": None} | dict.fromkeys(names, "root"), scope)), mode)
    fitting, other = listing(ENGINEER, OF_A), listing(WORKER, OF_A)
    for number, name in enumerate(names):
        assert found.add(rule(f"r{number}", name, other if number in (17, 500) else fitting)) == ()
    looked: list[str] = []
    asked = QuickJudge.implies

    def counted(judge: QuickJudge, function: RuleFunction, one: Selector, other: Selector) -> Implication:
        looked.append(other.text)
        return asked(judge, function, one, other)

    monkeypatch.setattr(QuickJudge, "implies", counted)
    candidate = listing(ENGINEER) if scope is TreeScope.UPWARD else listing(ENGINEER, OF_A, ("machine", "M"))
    conflicts = found.conflicts(rule("top", "root", candidate))
    assert [conflict.rules for conflict in conflicts] == [("r17",), ("r500",)]
    assert len(looked) < 200
    looked.clear()
    assert (found.conflicts(rule("top", "root", ALWAYS)) == ()) is (scope is TreeScope.UPWARD)
    assert scope is TreeScope.DOWNWARD or not looked
    looked.clear()
    # What has gone is not looked at either.
    for gone in ("r17", "r500"):
        found.add(replace(found.remove(gone), fnc_s=fitting))
    assert found.conflicts(rule("top", "root", candidate)) == ()
    assert not looked


def test_what_nobody_states_any_more_is_forgotten() -> None:
    found = Detector(words(WORKFLOW), limits=ModeratorLimits(moderator_answers=4))
    found.add(rule("1", "A1", "age >= 7"))
    for least in range(50):
        found.conflicts(rule("2", "A2", f"age >= {least}"))
    assert len(found._statements) <= 8  # what it takes is not to be seen from outside
    assert found.conflicts(rule("3", "A10", "age >= 7")) == ()
    assert found.conflicts(rule("3", "A10", "age >= 6"))[0].rules == ("1",)


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


@given(st.lists(st.integers(0, 30), max_size=30))
def test_a_subtree_is_an_interval(choices: list[int]) -> None:
    parents: dict[str, str | None] = {"t0": None, "other": None}
    for number, choice in enumerate(choices, start=1):
        parents[f"t{number}"] = f"t{choice % number}"
    chosen = tree(parents)
    places: TypePlaces[str] = TypePlaces(chosen)
    spots = {key: places.spot(key) for key in reversed(list(chosen.parents))}
    at = {key: spot.place for key, spot in spots.items()}
    assert len(set(at.values())) == len(at)
    for key, place in at.items():
        parent = chosen.parents[key]
        assert place[:-STEP] == (b"" if parent is None else at[parent])
        assert spots[key].above is (None if parent is None else spots[parent])
        assert {other for other in at if place <= at[other] < after(place)} == set(chosen.subtree(key))


def test_new_types_move_nobody() -> None:
    before = tree({"a": None, "b": "a", "c": "a"})
    places: TypePlaces[str] = TypePlaces(before)
    known = {key: places.spot(key) for key in before.parents}
    after_it = tree({"a": None, "aa": "a", "b": "a", "bb": "b", "c": "a", "z": None})
    assert places.follow(after_it) == []
    assert {key: places.spot(key) for key in known} == known
    assert len({places.spot(key).place for key in after_it.parents}) == 6


def test_what_moves_takes_all_below_along() -> None:
    places: TypePlaces[str] = TypePlaces(tree({"a": None, "b": "a", "c": "b", "d": "a", "e": "a"}))
    known = {name: places.spot(event(name)) for name in "abcde"}
    moved = places.follow(tree({"a": None, "d": "a", "b": "d", "c": "b"}))
    assert moved == [known[name] for name in "bce"]
    assert places.spot(event("c")).place[: 2 * STEP] == known["d"].place


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=40))
def test_it_is_known_whether_there_are_rules_below(changes: list[tuple[int, bool]]) -> None:
    chosen = tree({"t0": None} | {f"t{number}": f"t{(number - 1) // 2}" for number in range(1, 10)})
    places: TypePlaces[str] = TypePlaces(chosen)
    for number, stated in changes:
        spot = places.spot(event(f"t{number}"))
        if stated and not spot.stated:
            spot.begin()
            spot.stated["x"] = ["r"]
        elif not stated and spot.stated:
            spot.stated.clear()
            spot.end()
    for key in chosen.parents:
        below = [places.spot(child) for child in chosen.children[key]]
        assert places.spot(key).below == sum(bool(spot.stated or spot.below) for spot in below)

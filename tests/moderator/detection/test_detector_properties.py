"""The detector for many rules answers as the reference does, whatever the tree, the rules and the mode."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.moderator.kit import FORMULAS, LISTS, P1, P2, listing, rule, tree, words

from penstock.model.tree import TreeScope, TypeTree
from penstock.model.values import Schema
from penstock.moderator.detection import judge
from penstock.moderator.detection.detector import Detector, find_conflicts
from penstock.moderator.limits import MODERATOR_ANSWERS, ModeratorLimits
from penstock.moderator.rules.rules import Conflict, Mode, Party, PublishRule, RuleFunction
from penstock.selector import ALWAYS, Selector, SelectorAnalysis, covers, evaluate, parse

Drawing: TypeAlias = st.SearchStrategy[tuple[TypeTree, list[PublishRule]]]
#: how many answers a detector remembers
ANSWERS = st.sampled_from([1, 3, MODERATOR_ANSWERS])
PUBLISHERS = (ALWAYS, listing(("company", "A")), listing(("company", "A"), ("licensed", True)), parse("company <> 'B'"))


@pytest.fixture(scope="module", autouse=True)
def asked_once() -> Iterator[None]:
    """Remember what the reference asks, which would ask the same questions in each example."""
    with pytest.MonkeyPatch.context() as patch:
        answers: dict[tuple[str, str, tuple[str, ...]], SelectorAnalysis] = {}

        def remembered(a: Selector, b: Selector, schema: Schema, *, limits: ModeratorLimits) -> SelectorAnalysis:
            asked = (a.text, b.text, tuple(schema))
            if asked not in answers:
                answers[asked] = covers(a, b, schema, limits=limits)
            return answers[asked]

        patch.setattr(judge, "covers", remembered)
        yield


@st.composite
def trees(draw: st.DrawFn) -> TypeTree:
    size = draw(st.integers(1, 9))
    parents: dict[str, str | None] = {"t0": None}
    for number in range(1, size):
        above = draw(st.integers(-1 if number % 4 == 0 else 0, number - 1))
        parents[f"t{number}"] = None if above < 0 else f"t{above}"
    return tree(parents, draw(st.sampled_from(TreeScope)))


@st.composite
def moved(draw: st.DrawFn, before: TypeTree) -> TypeTree:
    """Hang a type, with all below it, on one that stands before it; or let it be a root."""
    events = [*before.parents]
    number = draw(st.integers(0, len(events) - 1))
    parents = dict(before.parents) | {events[number]: draw(st.sampled_from([None, *events[:number]]))}
    return TypeTree.of(parents, before.scope)


@st.composite
def rule_sets(
    draw: st.DrawFn, functions: tuple[Selector, ...], makers: tuple[Selector, ...]
) -> tuple[TypeTree, list[PublishRule]]:
    chosen = draw(trees())
    events = sorted(chosen.parents)
    rules = [
        rule(
            f"r{number}",
            draw(st.sampled_from(events)),
            draw(st.sampled_from(functions)),
            draw(st.sampled_from(makers)),
            of=draw(st.sampled_from([(P1,), (P2,), (P1, P2)])),
        )
        for number in range(draw(st.integers(1, 12)))
    ]
    return chosen, rules


def plain(conflicts: tuple[Conflict, ...]) -> list[tuple[Conflict, bool]]:
    """Leave out who shows a conflict, and keep whether anybody does."""
    return [(replace(found, witness=None), found.witness is not None) for found in conflicts]


def check_witnesses(candidate: PublishRule, rules: list[PublishRule], conflicts: tuple[Conflict, ...]) -> None:
    by_id = {rule.id: rule for rule in rules}
    for found in conflicts:
        if found.witness is None:
            continue
        for other in (by_id[id_] for id_ in found.rules):
            mine, theirs = (
                evaluate(of.fnc_p if found.function is RuleFunction.P else of.fnc_s, found.witness.values) is True
                for of in (candidate, other)
            )
            assert (mine, theirs) == (found.admitted_by is Party.CANDIDATE, found.admitted_by is Party.RULE)


def compare(drawn: st.DataObject, drawing: Drawing, mode: Mode, *, consistent: bool) -> None:
    chosen, rules = drawn.draw(drawing)
    vocabulary = words(chosen)
    # What is remembered may be forgotten at any time.
    detector = Detector(vocabulary, mode, limits=ModeratorLimits(moderator_answers=drawn.draw(ANSWERS)))
    for candidate in rules:
        others = list(detector.rules.values())
        expected = find_conflicts(candidate, others, vocabulary, mode)
        found = detector.conflicts(candidate)
        assert plain(found) == plain(expected)
        check_witnesses(candidate, others, found)
        check_witnesses(candidate, others, expected)
        if consistent:
            assert detector.add(candidate) == found
            assert (candidate.id in detector.rules) == (not found)
        else:
            detector.put(candidate)
    for gone in rules[::2]:
        if gone.id in detector.rules:
            detector.remove(gone.id)
    compare_all(detector, rules, mode)
    detector.follow(drawn.draw(moved(chosen)))
    compare_all(detector, rules, mode)
    for candidate, found in detector.review():
        expected = find_conflicts(candidate, detector.rules.values(), detector.vocabulary, mode)
        assert plain(found) == plain(expected)
    compare_all(detector, rules, mode)


def compare_all(detector: Detector, rules: list[PublishRule], mode: Mode) -> None:
    for candidate in rules:
        expected = find_conflicts(candidate, detector.rules.values(), detector.vocabulary, mode)
        assert plain(detector.conflicts(candidate)) == plain(expected)


@pytest.mark.parametrize("consistent", [True, False])
@pytest.mark.parametrize("mode", Mode)
@given(drawn=st.data())
@settings(max_examples=examples(25), deadline=None)
def test_lists_collide_as_in_the_reference(drawn: st.DataObject, mode: Mode, *, consistent: bool) -> None:
    makers = PUBLISHERS[:3]
    compare(drawn, rule_sets(LISTS, makers), mode, consistent=consistent)


@pytest.mark.parametrize("consistent", [True, False])
@pytest.mark.parametrize("mode", [Mode.SCOPED, Mode.LITERAL])
@given(drawn=st.data())
@settings(max_examples=examples(15), deadline=None)
def test_formulas_collide_as_in_the_reference(drawn: st.DataObject, mode: Mode, *, consistent: bool) -> None:
    compare(drawn, rule_sets(FORMULAS, PUBLISHERS), mode, consistent=consistent)

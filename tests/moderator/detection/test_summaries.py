"""A summary never says more than is known about each function; of lists it says all."""

from functools import reduce
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.moderator.kit import FORMULAS, LISTS, WORKFLOW, words

from penstock.model.profiles import ProfileSchema, numeric
from penstock.model.tree import TreeScope
from penstock.moderator.detection.judge import QuickJudge
from penstock.moderator.detection.summaries import summarise
from penstock.moderator.rules.conflicts import ConflictKind, Mode, RuleFunction, demands
from penstock.moderator.rules.vocabulary import Vocabulary
from penstock.selector import Selector, parse

JUDGES = {mode: QuickJudge(words(WORKFLOW), mode) for mode in Mode}


def suits(candidate: Selector, stated: Selector, scope: TreeScope, mode: Mode) -> bool:
    wanted = demands(ConflictKind.DOWN, scope, mode)
    judge = JUDGES[mode]
    return (not wanted.candidate_implies or judge.implies(RuleFunction.S, candidate, stated).holds) and (
        not wanted.rule_implies or judge.implies(RuleFunction.S, stated, candidate).holds
    )


def compare(candidate: Selector, stated: list[Selector], scope: TreeScope, mode: Mode) -> tuple[bool, bool]:
    """Return what the summary says, and what is the case."""
    judge = JUDGES[mode]
    forms = judge.forms[RuleFunction.S]
    each = [summarise(scope, mode)(forms.form(selector)) for selector in stated]
    summary = reduce(lambda one, other: one.merged(other), each)
    return summary.fits(forms.form(candidate), judge.side(RuleFunction.S)), all(
        suits(candidate, one, scope, mode) for one in stated
    )


@pytest.mark.parametrize(("scope", "mode"), [*product(TreeScope, (Mode.SCOPED, Mode.ALGORITHM))])
@given(st.sampled_from(LISTS), st.lists(st.sampled_from(LISTS), min_size=1, max_size=4))
@settings(max_examples=examples(60), deadline=None)
def test_of_lists_all_is_known(scope: TreeScope, mode: Mode, candidate: Selector, stated: list[Selector]) -> None:
    said, case = compare(candidate, stated, scope, mode)
    assert said is case


@pytest.mark.parametrize(("scope", "mode"), [*product(TreeScope, (Mode.SCOPED, Mode.LITERAL))])
@given(st.sampled_from(FORMULAS[:-1]), st.lists(st.sampled_from(FORMULAS[:-1]), min_size=1, max_size=3))
@settings(max_examples=examples(100), deadline=None)
def test_of_formulas_no_more_than_is_so(
    scope: TreeScope, mode: Mode, candidate: Selector, stated: list[Selector]
) -> None:
    said, case = compare(candidate, stated, scope, mode)
    assert case or not said


@pytest.mark.parametrize("scope", TreeScope)
def test_parts_that_all_have_are_passed_over(scope: TreeScope) -> None:
    either, turned = "(role = 'engineer' OR company = 'A')", "(company = 'A' OR role = 'engineer')"
    stated = [parse(f"{either} AND age >= {least}") for least in (18, 21)]
    for written in (either, turned):
        candidate = parse(written if scope is TreeScope.UPWARD else f"{written} AND age >= 60")
        assert compare(candidate, stated, scope, Mode.SCOPED) == (True, True)


@pytest.mark.parametrize("scope", TreeScope)
def test_what_is_too_much_to_keep_is_not_passed_over(scope: TreeScope) -> None:
    ages = ProfileSchema({"age": numeric(0, 1_000)})
    judge = QuickJudge(Vocabulary(WORKFLOW, ages, ages), Mode.SCOPED)
    form = judge.forms[RuleFunction.S].form
    stated = [parse(f"age {'=' if scope is TreeScope.UPWARD else '<>'} {number}") for number in range(0, 200, 5)]
    each = [summarise(scope, Mode.SCOPED)(form(selector)) for selector in stated]
    few, many = (reduce(lambda a, b: a.merged(b), some) for some in (each[:9], each))
    candidate = form(parse("age <= 900" if scope is TreeScope.UPWARD else "age = 901"))
    side = judge.side(RuleFunction.S)
    assert (few.fits(candidate, side), many.fits(candidate, side)) == (True, False)


def test_merging_what_is_known_changes_nothing() -> None:
    for scope, mode, selector in product(TreeScope, Mode, LISTS):
        form = JUDGES[mode].forms[RuleFunction.S].form(selector)
        one, same = (summarise(scope, mode)(form) for _ in range(2))
        assert one.merged(same) is one

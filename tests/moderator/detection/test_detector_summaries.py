"""A summary never says more than is known about each function; of lists it says all."""

from dataclasses import dataclass
from functools import reduce
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.moderator.kit import FORMULAS, LISTS, WORKFLOW, words

from penstock.model.profiles import ProfileSchema, numeric
from penstock.model.tree import TreeScope
from penstock.moderator.detection.detector import SummaryTree, Walk, after, summarise
from penstock.moderator.detection.judge import QuickJudge
from penstock.moderator.rules.rules import ConflictKind, Mode, RuleFunction, demands
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


@dataclass(frozen=True)
class Least:
    """The least number of some."""

    number: int

    def merged(self, other: "Least") -> "Least":
        return self if self.number <= other.number else other


#: so many that there are branches of branches
STANDING = 1_500
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "replace", "drop"]),
        st.one_of(st.integers(0, 2_002), st.sampled_from([0, 1_900])),
        st.integers(0, 9),
    ),
    max_size=40,
)


@given(STEPS, st.integers(0, 2_002), st.integers(0, 2_002))
@settings(max_examples=examples(40), deadline=None)
def test_the_first_that_is_doubtful_is_found(steps: list[tuple[str, int, int]], start: int, end: int) -> None:
    found: SummaryTree[Least] = SummaryTree()
    model: dict[bytes, Least] = {}
    for what, number, value in [("add", n * 7 % 2_003, 9) for n in range(STANDING)] + steps:
        place = number.to_bytes(2, "big")
        if what == "add":
            model[place] = model[place].merged(Least(value)) if place in model else Least(value)
            found.add(place, Least(value))
        elif what == "replace" and place in model:
            model[place] = Least(value)
            found.replace(place, Least(value))
        elif what == "drop":
            # A hundred together, so that nodes become empty.
            for gone in [near for near in model if place <= near < (number + 100).to_bytes(2, "big")]:
                del model[gone]
                found.replace(gone, None)
    some = (start.to_bytes(2, "big"), end.to_bytes(2, "big"))
    for (low, high), bound in product([some, (b"", b"\xff\xff")], range(1, 6)):
        expected = [place for place, least in sorted(model.items()) if low <= place < high and least.number < bound]
        assert doubtful(found, low, high, bound) == expected
        assert doubtful(found, low, high, bound, skip=40) == passing_over(expected, 40)


def doubtful(found: SummaryTree[Least], low: bytes, high: bytes, bound: int, *, skip: int = 0) -> list[bytes]:
    """Walk from place to place, and pass over so many numbers after each."""
    walk = Walk[Least](low, high, lambda least: least.number < bound)
    seen: list[bytes] = []
    for place in found.walk(walk):
        seen.append(place)
        if skip:
            walk.start = (int.from_bytes(place, "big") + skip).to_bytes(2, "big")
    return seen


def passing_over(places: list[bytes], skip: int) -> list[bytes]:
    kept: list[bytes] = []
    for place in places:
        if not kept or int.from_bytes(place, "big") >= int.from_bytes(kept[-1], "big") + skip:
            kept.append(place)
    return kept


def test_an_empty_map_may_be_filled_again() -> None:
    found: SummaryTree[Least] = SummaryTree()
    found.replace(b"a", None)
    for _ in range(2):
        for number in range(200):
            found.add(bytes([number]), Least(number))
        for number in range(200):
            found.replace(bytes([number]), None)
        assert doubtful(found, b"", b"\xff", 1_000) == []


def test_a_place_is_before_the_end_of_its_beginnings() -> None:
    place = b"\0\0\0\1\0\0\0\2\0\0\0\3"
    assert place < place + b"\0\0\0\0" < after(place) < b"\0\0\0\1\0\0\0\2\0\0\0\4"


def test_one_among_many_is_found_from_wherever_one_looks() -> None:
    for wanted in range(0, 200, 7):
        found: SummaryTree[Least] = SummaryTree()
        for number in range(200):
            found.add(bytes([number]), Least(0 if number == wanted else 1))
        for start, end in product(range(0, wanted + 1, 5), (wanted + 1, min(wanted + 20, 255), 255)):
            assert doubtful(found, bytes([start]), bytes([end]), 1) == [bytes([wanted])]
        assert doubtful(found, b"", bytes([wanted]), 1) == []
        assert doubtful(found, bytes([wanted, 0]), b"\xff", 1) == []

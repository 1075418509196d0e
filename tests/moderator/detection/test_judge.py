"""The quick judge answers as the plain one does, for every pair of functions."""

from itertools import product

import pytest
from tests.moderator.kit import FORMULAS, LISTS, WORKFLOW, words

from penstock.moderator.detection.judge import Implication, PlainJudge, QuickJudge
from penstock.moderator.rules.rules import Mode, RuleFunction
from penstock.selector import Selector, evaluate, parse

VOCABULARY = words(WORKFLOW)
#: lists that say something twice, the stricter of which counts
TWICE = (parse("age >= 18 AND age >= 21"), parse("role = 'engineer' AND age BETWEEN 0 AND 65 AND age >= 18"))


def said(answer: Implication) -> tuple[tuple[Selector, ...], bool, bool]:
    return answer.missing, answer.witness is not None, answer.certain


@pytest.mark.parametrize(
    ("mode", "functions"), [(Mode.SCOPED, FORMULAS), (Mode.SCOPED, LISTS), (Mode.ALGORITHM, (*LISTS, *TWICE))]
)
def test_all_pairs(mode: Mode, functions: tuple[Selector, ...]) -> None:
    plain, quick = PlainJudge(VOCABULARY, mode), QuickJudge(VOCABULARY, mode)
    for one, other in product(functions, functions):
        expected = plain.implies(RuleFunction.S, one, other)
        # Asked again it is remembered.
        for answer in (expected, quick.implies(RuleFunction.S, one, other), quick.implies(RuleFunction.S, one, other)):
            assert said(answer) == said(expected), (one, other)
            if answer.witness is not None:
                assert evaluate(one, answer.witness.values) is True
                assert evaluate(other, answer.witness.values) is not True


def test_somebody_is_shown_in_full() -> None:
    # As the other function would have him, but for what is at fault.
    quick = QuickJudge(VOCABULARY, Mode.SCOPED)
    answer = quick.implies(RuleFunction.S, LISTS[1], LISTS[5])
    assert [part.text for part in answer.missing] == ["age >= 18", "company = 'A'"]
    assert answer.witness is not None
    assert dict(answer.witness.values) == {"age": 0, "company": "A", "role": "engineer"}

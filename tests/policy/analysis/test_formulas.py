"""Combining algorithms as formulas say what the algorithms say, of every few children."""

from dataclasses import dataclass
from itertools import product

import pytest

from penstock.policy.analysis.formulas import EncodedChild, TruthFormula, algorithm
from penstock.policy.combining import POLICY_ALGORITHMS, RULE_ALGORITHMS
from penstock.policy.language.results import PolicyOutcome, XacmlDecision

ALGORITHMS = {**RULE_ALGORITHMS, **POLICY_ALGORITHMS}


@dataclass
class Fixed:
    """Says what the test says; its target matches, does not, or fails."""

    decision: XacmlDecision
    matches: bool | None

    def evaluate(self, _context: None, /) -> PolicyOutcome:
        return PolicyOutcome(self.decision)

    def applies(self, _context: None, /) -> bool | PolicyOutcome:
        return PolicyOutcome(XacmlDecision.INDETERMINATE_DP) if self.matches is None else self.matches

    def formulas(self) -> EncodedChild:
        says = {decision: decision is self.decision for decision in XacmlDecision}
        return EncodedChild(says, TruthFormula(self.matches is True, self.matches is False))


#: where a target does not match nothing is said, and where it fails, no decision is made
POSSIBLE = [
    *(Fixed(decision, matches=True) for decision in XacmlDecision),
    Fixed(XacmlDecision.NOT_APPLICABLE, matches=False),
    *(Fixed(decision, matches=None) for decision in XacmlDecision if decision.indeterminate),
]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_formulas_say_what_the_algorithm_says(name: str) -> None:
    combine = algorithm(name)
    assert combine is not None
    # Rules cannot say that both were possible, for which the old algorithms have no place.
    rules = "rule-combining" in name
    possible = [one for one in POSSIBLE if not (rules and one.decision is XacmlDecision.INDETERMINATE_DP)]
    for children in (some for count in range(4) for some in product(possible, repeat=count)):
        expected = ALGORITHMS[name].combine(children, None).decision
        found = combine([child.formulas() for child in children])
        assert [decision for decision, holds in found.items() if holds] == [expected], children


def test_others_are_not_known() -> None:
    assert algorithm("urn:example:mine") is None

"""Terms are kept with what was found by them, and are read as what they were."""

import json
from datetime import UTC, datetime

import pytest

from penstock.errors import MalformedError
from penstock.model.profiles import alphabetic, numeric
from penstock.model.tree import TreeScope
from penstock.model.values import AttributeSpec, Enumerated, Kind, Ranged
from penstock.moderator.rules.rules import Mode
from penstock.pipeline.conflicts.forms import RuleTerms

YEAR = Ranged(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 12, 31, tzinfo=UTC))
TERMS = RuleTerms(
    TreeScope.DOWNWARD,
    {"company": alphabetic("acme", "bolt"), "licensed": AttributeSpec(Kind.BOOLEAN)},
    {
        "age": numeric(16, 70),
        "share": numeric(0.0, 1.0),
        "grade": AttributeSpec(Kind.INTEGER, Enumerated(frozenset({1, 2, 5}))),
        "since": AttributeSpec(Kind.TIMESTAMP, YEAR),
        "name": AttributeSpec(Kind.STRING),
    },
    Mode.ALGORITHM,
)


@pytest.mark.parametrize("terms", [TERMS, RuleTerms(TreeScope.UPWARD, {}, {})])
def test_terms_are_read_as_what_they_were(terms: RuleTerms) -> None:
    assert RuleTerms.from_dict(json.loads(json.dumps(terms.as_dict()))) == terms


def test_what_are_no_terms_is_refused() -> None:
    with pytest.raises(MalformedError) as refused:
        RuleTerms.from_dict(None)
    assert refused.value.code == "moderator.file"

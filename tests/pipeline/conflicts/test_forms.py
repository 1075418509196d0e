"""Functions as intervals: which texts mean the same, what is wrong with others, and how lists are put together."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from tests.moderator.kit import FORMULAS, LISTS
from tests.pipeline.conflicts_kit import terms

from penstock.errors import PenstockError
from penstock.model.profiles import alphabetic, numeric
from penstock.model.tree import TreeScope
from penstock.model.values import AttributeSpec, Kind
from penstock.moderator.detection.judge import QuickJudge
from penstock.moderator.rules.rules import Mode, RuleFunction
from penstock.pipeline.conflicts.forms import FunctionReader, RuleTerms, read_text
from penstock.selector import parse

SCOPED = FunctionReader(terms(TreeScope.UPWARD))
NUMBERS = RuleTerms(
    TreeScope.UPWARD,
    {},
    {
        "load": AttributeSpec(Kind.FLOAT),
        "share": numeric(0.0, 1.0),
        "count": AttributeSpec(Kind.INTEGER),
        "since": AttributeSpec(Kind.TIMESTAMP),
        "grade": alphabetic("a", "b", "c", "d"),
        "ready": AttributeSpec(Kind.BOOLEAN),
    },
)
SPANS = [
    "load >= 0.0",
    "load > 0.0",
    "load < 0.5 AND load >= -0.0",
    "load <= 0.5",
    "load BETWEEN -1.5 AND 0.25",
    "share >= 0.0",
    "share <= 0.5",
    "count > 3",
    "count >= 4",
    "count = 7",
    "count <> 7",
    "grade IN ('a', 'b')",
    "grade <> 'd'",
    "grade IN ('a', 'c')",
    "grade >= 'b'",
    "ready",
    "NOT ready",
    "since >= TIMESTAMP '2026-01-01 00:00:00'",
    "since < TIMESTAMP '2026-01-01 00:00:00'",
]


def implies(one: dict[str, object], other: dict[str, object]) -> bool:
    """Say by intervals whether one function implies another, as the job does."""
    known = {demand.of: demand for demand in one["demands"]}  # type: ignore[attr-defined]  # a list of demands
    return all(
        wanted.low is None
        or (
            (has := known.get(wanted.of)) is not None
            and has.least is not None
            and wanted.low <= has.least
            and has.most <= wanted.high
        )
        for wanted in other["demands"]  # type: ignore[attr-defined]  # a list of demands
    )


def test_texts_that_mean_the_same_have_one_word() -> None:
    word = [SCOPED.row(RuleFunction.S, text)["word"] for text in ("age >= 18", "18 <= age", "age > 17", "age >= 19")]
    assert word[0] == word[1] == word[2] != word[3]
    assert SCOPED.row(RuleFunction.S, "badge LIKE 'x%'")["exact"] is False
    assert (
        SCOPED.row(RuleFunction.S, "{(role, engineer), (age, min, 18)}")["stated"] == "age >= 18 AND role = 'engineer'"
    )


@pytest.mark.parametrize("mode", [Mode.SCOPED, Mode.ALGORITHM])
@pytest.mark.parametrize("function", LISTS, ids=lambda function: function.text)
def test_lists_are_put_together_as_they_are_read(function: object, mode: Mode) -> None:
    text = str(getattr(function, "text", ""))
    reader = FunctionReader(terms(TreeScope.UPWARD, mode))
    whole = reader._read(RuleFunction.S, text)
    quick = reader._put_together(RuleFunction.S, text)
    assert quick is None or (quick.exact, sorted(quick.demands)) == (whole.exact, sorted(whole.demands))
    # In that mode what two entries about one attribute leave is looked at as a whole.
    assert (quick is None) == (text == "TRUE" or (mode is Mode.ALGORITHM and text.count("age") > 1))


@settings(deadline=None)
@given(one=st.sampled_from(FORMULAS + LISTS), other=st.sampled_from(FORMULAS + LISTS))
def test_intervals_never_say_too_much(one: object, other: object) -> None:
    compare(TERMS, str(getattr(one, "text", "")), str(getattr(other, "text", "")))


@settings(deadline=None)
@given(one=st.lists(st.sampled_from(SPANS), min_size=1, max_size=2), other=st.sampled_from(SPANS))
def test_intervals_of_all_kinds(one: list[str], other: str) -> None:
    compare(NUMBERS, " AND ".join(one), other)


TERMS = terms(TreeScope.UPWARD)
KNOWN = {id(of): (FunctionReader(of), QuickJudge(of.vocabulary, of.mode)) for of in (TERMS, NUMBERS)}


def compare(of: RuleTerms, one: str, other: str) -> None:
    reader, judge = KNOWN[id(of)]
    rows = [reader.row(RuleFunction.S, text) for text in (one, other)]
    if any("reason" in row for row in rows):
        assert {row.get("reason") for row in rows} <= {None, "moderator.contradiction"}
        return
    holds = judge.implies(RuleFunction.S, parse(one), parse(other)).holds
    if rows[0]["exact"] and rows[1]["exact"]:
        assert implies(*rows) == holds
    assert holds or not implies(*rows)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("role = 'king'", "moderator.domain"),
        ("role = 'king' AND age >= 18", "moderator.domain"),
        ("age >= 30 AND age <= 20", "moderator.contradiction"),
        ("colour = 'red'", "moderator.unknown-attribute"),
        ("role >= 3", "selector.type"),
        ("((", "selector.syntax"),
        ("{}", "moderator.empty-list"),
        ('{"role": []}', "moderator.list"),
        ('{"role"', "moderator.list"),
    ],
)
def test_what_no_rule_may_state_gets_its_reason(text: str, code: str) -> None:
    row = SCOPED.row(RuleFunction.S, text)
    assert row["reason"] == code
    assert row["text"] == text
    assert "`r`" not in str(row["words"])


def test_lists_that_nobody_can_satisfy_are_none_in_any_mode() -> None:
    for mode in Mode:
        row = FunctionReader(terms(TreeScope.UPWARD, mode)).row(RuleFunction.S, "age <= 18 AND age >= 21")
        assert row["reason"] == "moderator.contradiction"


def test_formulas_have_no_place_in_the_mode_algorithm() -> None:
    row = FunctionReader(terms(TreeScope.UPWARD, Mode.ALGORITHM)).row(RuleFunction.S, "role = 'engineer' OR age >= 18")
    assert row["reason"] == "moderator.not-a-list"


@given(st.text(max_size=40))
def test_no_text_fails_otherwise(text: str) -> None:
    try:
        read_text(text)
    except PenstockError:
        assert "reason" in SCOPED.row(RuleFunction.S, text)


def test_terms_travel_to_tasks() -> None:
    assert cloudpickle.loads(cloudpickle.dumps(NUMBERS)) == NUMBERS  # type: ignore[no-untyped-call]  # it has no types
    assert math.isfinite(FunctionReader(NUMBERS)._read(RuleFunction.S, "load <= 1.5").demands[0].high or math.inf)

"""Patterns: those that are walked find what `re` finds, and none takes longer than it should."""

import re

import pytest
from elementpath.regex import RegexError, translate_pattern
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.errors import EvaluationError
from penstock.policy.language.patterns import read_pattern

ATOMS = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", r"\d", r"\.", r"\p{Lu}", "^", "$", "c-", "[a-c-[b]]", r"\s", "é"]
)
TIMES = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{0,2}", "{1,}", "{0}"])
PATTERNS = st.recursive(
    st.tuples(ATOMS, TIMES).map("".join),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.tuples(st.lists(inner, min_size=1, max_size=3).map("|".join), TIMES).map(lambda two: f"({two[0]}){two[1]}"),
    ),
    max_leaves=6,
)
TEXTS = st.text("abcA1. \né-", max_size=8)


@settings(max_examples=examples(150))
@given(PATTERNS, st.lists(TEXTS, min_size=1, max_size=4))
def test_what_is_walked_is_what_re_finds(text: str, tried: list[str]) -> None:
    try:
        pattern = read_pattern(text)
    except EvaluationError:
        return
    for one in tried:
        assert pattern._walked(one) is (pattern.quick.search(one) is not None), (text, one)


@settings(max_examples=examples(60))
@given(st.text("ab(|)*+?{}1,[]^$-\\dpL.", max_size=12))
def test_whatever_re_reads_is_read(text: str) -> None:
    try:
        re.compile(translate_pattern(text, anchors=True, back_references=False))
    except (RegexError, re.error):
        with pytest.raises(EvaluationError):
            read_pattern(text)
    else:
        read_pattern(text)


@pytest.mark.parametrize(
    "pattern",
    [
        "^(a+)+$",
        "^(a|a)*$",
        "^(a|ab|b)*$",
        "^(a*)*$",
        "^(a?){25}a{25}$",
        "^a*a*a*a*a*a*a*a*$",
        "^((a*)+)*$",
        "^(a.?)*a$",
    ],
)
def test_ways_to_match_do_not_multiply(pattern: str) -> None:
    found = read_pattern(pattern)
    assert found.found_in("a" * 60 + "!") is False
    assert found.found_in("a" * 29) is True


def test_what_takes_too_long_has_no_answer() -> None:
    with pytest.raises(EvaluationError):
        read_pattern("(a|b|ab){90}$").found_in("a" * 10_000)
    with pytest.raises(EvaluationError):
        read_pattern("a").found_in("a" * 10_001)
    with pytest.raises(EvaluationError):
        read_pattern("((a{99}){99}){99}")
    with pytest.raises(EvaluationError):
        read_pattern("(" * 100 + ")" * 100)


def test_few_ways_are_left_to_re() -> None:
    assert [read_pattern(one).power for one in ("abc", "a*", "a.*b+", "(ab)*", "a|b", "(ab?)+")] == [
        0,
        1,
        2,
        1,
        1,
        None,
    ]

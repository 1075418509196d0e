"""LIKE patterns against a brute-force matcher, in both implementations."""

import re
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.selector.like import PatternError, compile_pattern, parse_pattern


def naive(pattern: str, text: str) -> bool:
    """The definition, by recursion."""

    @cache
    def match(i: int, j: int) -> bool:
        if i == len(pattern):
            return j == len(text)
        if pattern[i] == "%":
            return match(i + 1, j) or (j < len(text) and match(i, j + 1))
        return j < len(text) and pattern[i] in ("_", text[j]) and match(i + 1, j + 1)

    return match(0, 0)


def compiled(pattern: str, escape: str | None, text: str) -> bool:
    shape, argument = compile_pattern(pattern, escape)
    if callable(argument):
        return argument(text) is not None
    assert isinstance(argument, str)
    return {
        "equal": text == argument,
        "prefix": text.startswith(argument),
        "suffix": text.endswith(argument),
        "part": argument in text,
    }[shape]


@settings(deadline=None, max_examples=examples(300))
@given(
    st.text(alphabet="ab%%_", max_size=8), st.text(alphabet="ab", max_size=8) | st.text(alphabet="ab\né", max_size=9)
)
def test_matches_as_defined(pattern: str, text: str) -> None:
    assert parse_pattern(pattern, None).matches(text) is naive(pattern, text)
    assert compiled(pattern, None, text) is naive(pattern, text)


SHORT_TEXTS = ["".join(text) for length in range(6) for text in product("abc", repeat=length)]


@settings(deadline=None, max_examples=examples(100))
@given(st.text(alphabet="ab%%_", max_size=5), st.text(alphabet="ab%%_", max_size=5))
def test_a_pattern_covers_only_what_fits_it(general: str, special: str) -> None:
    if parse_pattern(general, None).covers(parse_pattern(special, None)):
        assert all(naive(general, text) for text in SHORT_TEXTS if naive(special, text))


@pytest.mark.parametrize(
    ("general", "special", "covers"),
    [("%a%", "b_a%", True), ("%", "", True), ("a_", "a%", False), ("%a%", "%_%", False), ("_%", "%_", False)],
)
def test_a_pattern_is_seen_to_cover(general: str, special: str, *, covers: bool) -> None:
    # Of the last pair each covers the other; that is not seen.
    assert parse_pattern(general, None).covers(parse_pattern(special, None)) is covers


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("50!%", "50%", True),
        ("50!%", "500", False),
        ("!!!_%", "!_x", True),
        ("a!_b", "axb", False),
        ("", "", True),
        ("%", "\n", True),
        ("_", "\U0001f600", True),
        ("A%", "a", False),
        ("a.c", "abc", False),
        ("a%a", "a", False),
        ("%ab%b%", "ab", False),
        ("%aa%a%", "aa", False),
        ("%aa%a%", "aaa", True),
        ("%_a%_b%", "xab", False),
    ],
)
def test_examples(pattern: str, text: str, *, matches: bool) -> None:
    assert parse_pattern(pattern, "!").matches(text) is matches
    assert compiled(pattern, "!", text) is matches


@pytest.mark.parametrize(("pattern", "escape"), [("a!b", "!"), ("a!", "!"), ("a", ""), ("a", "!!")])
def test_escapes_stand_before_wildcards_only(pattern: str, escape: str) -> None:
    with pytest.raises(PatternError):
        parse_pattern(pattern, escape)


def test_the_escape_may_be_a_wildcard() -> None:
    assert parse_pattern("%%a", "%").matches("%a")
    assert not parse_pattern("%%a", "%").matches("xa")


def test_hostile_patterns_take_no_longer_than_length_times_length() -> None:
    # With backtracking this would outlive the test run.
    pattern, text = "%a" * 200 + "%b", "a" * 5_000
    assert not parse_pattern(pattern, None).matches(text)
    assert not compiled(pattern, None, text)
    assert not compiled("%a_" * 100 + "%b", None, text)
    assert re.fullmatch("a*", text)

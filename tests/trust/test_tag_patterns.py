"""Globs and ranges: decided exactly where they claim to be, by brute force over short strings."""

import re
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.trust.tags_model import VALUES, ranges

from penstock.codec.sexp import SExp
from penstock.trust.tag_patterns import AllPatterns, Glob, Prefix, Range
from penstock.trust.tags import covers, intersect, matches, parse_tag

patterns = st.text(alphabet="ab*", max_size=5).map(str.encode)
#: `c` occurs in no pattern; the longest two patterns together are shorter than the longest strings
STRINGS = [bytes(octets) for length in range(8) for octets in product(b"abc", repeat=length)]


def plain(pattern: bytes, string: bytes) -> bool:
    return re.fullmatch(pattern.replace(b"*", b".*"), string) is not None


def glob(pattern: bytes) -> SExp:
    return (b"*", b"glob", pattern)


@given(patterns, patterns)
@example(b"*a*a", b"*a")
@example(b"a*a*", b"a*")
@example(b"*a*b*", b"*b*a*")
@example(b"*ab*", b"*a*b*")
@settings(deadline=None, max_examples=examples(150))
def test_inclusion_of_globs_is_exact(a: bytes, b: bytes) -> None:
    outer, inner = parse_tag(glob(a)), parse_tag(glob(b))
    included = all(plain(a, s) for s in STRINGS if plain(b, s))
    assert covers(outer, inner) == included


@given(patterns, patterns)
@settings(deadline=None, max_examples=examples(150))
def test_emptiness_of_globs_is_exact(a: bytes, b: bytes) -> None:
    s, t = parse_tag(glob(a)), parse_tag(glob(b))
    # The shortest atom of both has at most the literal bytes of both, so ten; strings of seven are the cheap part.
    shared = any(plain(a, string) and plain(b, string) for string in STRINGS)
    both = intersect(s, t)
    if shared:
        assert both is not None
    elif both is not None:
        witness = longest(a, b, 0) + b"".join(a.split(b"*")[1:-1] + b.split(b"*")[1:-1]) + longest(a, b, -1)
        assert matches(witness, both)
        assert len(witness) > 7


def longest(a: bytes, b: bytes, index: int) -> bytes:
    return max(a.split(b"*")[index], b.split(b"*")[index], key=len)


@given(st.sampled_from(sorted(VALUES)).flatmap(lambda ordering: st.tuples(ranges(ordering), ranges(ordering))))
@settings(deadline=None, max_examples=examples(400))
def test_coverage_of_ranges_of_one_ordering_is_exact(pair: tuple[tuple[SExp, ...], tuple[SExp, ...]]) -> None:
    ordering = pair[0][2]
    assert isinstance(ordering, bytes)
    outer, inner = (parse_tag(sexp) for sexp in pair)
    included = all(matches(atom, outer) for atom in probes(ordering) if matches(atom, inner))
    assert covers(outer, inner) == included


def probes(ordering: bytes) -> list[bytes]:
    """Return values of an ordering with at least one between, below and above each two of the model."""
    more: dict[bytes, list[bytes]] = {
        b"alpha": b"\0|a\0\0|a\1|aa\0|aa\1|aaa|aab\0|aab\1|aac|ab\0|b\0|c|\xff\0|\xff\xff".split(b"|"),
        b"binary": [b"\1", b"`", b"c", b"aa\0", b"a`", b"ab", b"\xfe", b"\1\0"],
        b"numeric": [b"-3", b"0", b"1.2", b"2", b"5", b"11", b"1.50001"],
        b"time": [b"00:00:00", b"08:00:00.2", b"09:00:00", b"23:59:59.9"],
        b"date": [b"1999", b"2005-05", b"2005-11-01_04", b"2005-11-01_08:15", b"2005-11-01_08:30:00.3", b"2006"],
    }
    return VALUES[ordering] + more[ordering]


@pytest.mark.parametrize(
    ("ordering", "inside", "outside"),
    [
        (
            b"numeric ge -1.5 l 10",
            [b"-1.5", b"-1.50", b"0", b"+9.99", b"0009"],
            [b"-1.51", b"10", b"10.0", b"", b"1e1"],
        ),
        (b"numeric", [b"0", b"-0"], [b"x", b"1.", b".5", b"--1", b"1_0", b" 1", b"1\n", b"9" * 200, "٣".encode()]),
        (b"time ge 08:00:00 le 17:30:00", [b"08:00:00", b"17:30:00.000", b"12:00:00.5"], [b"17:30:00.001", b"8:00:00"]),
        (b"time", [b"23:59:59"], [b"24:00:00", b"12:60:00", b"12:00:60", b"12:00", b"12:00:00."]),
        (b"date ge 2005-11 l 2006", [b"2005-11-01_00:00:00", b"2005-12"], [b"2006-01-01", b"2005-10-31_23:59:59.9"]),
        (b"date", [b"2004-02-29", b"2000-02-29", b"0000"], [b"2005-02-29", b"1900-02-29", b"2005-13", b"2005-1", b"x"]),
        (b"date", [b"2005-11-01_08"], [b"2005-04-31", b"2005-00-01", b"2005-01-00", b"2005-11-01T08", b"05"]),
        (b"binary g \x01 le \x01\x00", [b"\x02", b"\xff", b"\x00\x00\x02", b"\x01\x00"], [b"\x01", b"", b"\x01\x01"]),
        (b"alpha ge ab l b", [b"ab", b"ab\x00", b"az"], [b"aa", b"b", b"", b"a"]),
    ],
)
def test_ranges(ordering: bytes, inside: list[bytes], outside: list[bytes]) -> None:
    tag = parse_tag((b"*", b"range", *ordering.split(b" ")))
    assert isinstance(tag, Range)
    assert [atom for atom in inside + outside if matches(atom, tag)] == inside


def test_patterns_meet_in_closed_form_where_there_is_one() -> None:
    def meet(a: SExp, b: SExp) -> object:
        return intersect(parse_tag(a), parse_tag(b))

    prefix = (b"*", b"prefix", b"uk.gov.")
    assert meet(glob(b"uk.*"), glob(b"uk.gov.*")) == parse_tag(glob(b"uk.gov.*"))
    assert meet(prefix, glob(b"uk.gov.*")) == meet(glob(b"uk.gov.*"), prefix)
    assert meet(prefix, glob(b"uk.*.pito")) == AllPatterns(frozenset((Prefix(b"uk.gov."), Glob(b"uk.*.pito", ()))))
    assert meet(prefix, glob(b"fr.*")) is None
    assert meet(glob(b"*a"), glob(b"*b")) is None
    assert meet(glob(b"*"), prefix) == Prefix(b"uk.gov.")
    assert meet(glob(b"*"), (b"foo",)) is None
    assert meet(prefix, (b"*", b"range", b"alpha", b"ge", b"uk", b"l", b"ul")) == Prefix(b"uk.gov.")
    assert meet(prefix, (b"*", b"range", b"alpha", b"l", b"uk")) is None
    assert meet(prefix, (b"*", b"range", b"alpha", b"ge", b"uk.gov/")) is None
    assert meet(prefix, (b"*", b"range", b"alpha", b"g", b"uk.gov.p")) is not None
    assert meet((b"*", b"range", b"alpha", b"ge", b"x"), (b"*", b"range", b"alpha", b"le", b"x")) == b"x"
    assert meet((b"*", b"range", b"binary", b"g", b"\1"), (b"*", b"range", b"binary", b"l", b"\2")) is None
    bounds = meet((b"*", b"range", b"numeric", b"ge", b"1.0"), (b"*", b"range", b"numeric", b"g", b"0", b"l", b"05"))
    assert bounds == parse_tag((b"*", b"range", b"numeric", b"ge", b"1.0", b"l", b"05"))


def test_the_ends_of_a_glob_do_not_overlap() -> None:
    assert not matches(b"aba", parse_tag(glob(b"ab*ba")))
    assert matches(b"abba", parse_tag(glob(b"ab*ba")))
    assert not matches(b"a", parse_tag(glob(b"a*a")))
    assert not matches(b"aba", parse_tag(glob(b"a*b*ba")))


def test_matching_a_hostile_glob_is_quick() -> None:
    # A backtracking matcher would need a number of steps with thousands of digits here.
    tag = parse_tag(glob(b"*a" * 127 + b"b*"))
    assert not matches(b"a" * 100_000, tag)
    assert matches(b"a" * 100_000 + b"b", tag)

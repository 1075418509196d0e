"""Validity: dates at both ends, what two periods share, and on-line tests that nothing drops."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trust.kit import DAY, NOW, refused

from penstock.codec.sexp import SExp, parse
from penstock.model.instants import format_date, instant_key
from penstock.trust.validity import ALWAYS, OnlineTest, State, Validity, parse_validity, validity_to_sexp

TICK = timedelta(microseconds=1)
CRL = OnlineTest("crl", (b"online", b"crl", b"http://here"))
REVAL = OnlineTest("reval", (b"online", b"reval", b"http://there"))


def read(text: str) -> Validity:
    value = parse(text.encode())
    assert isinstance(value, tuple)
    return parse_validity(value[1:])


moments = st.integers(0, 20).map(lambda hours: NOW + timedelta(hours=hours))
tests = st.lists(st.sampled_from([CRL, REVAL]), unique=True, max_size=2).map(tuple)


@st.composite
def validities(draw: st.DrawFn) -> Validity:
    first, last = sorted((draw(moments), draw(moments)))
    return Validity(
        draw(st.sampled_from([None, format_date(first)])),
        draw(st.sampled_from([None, format_date(last)])),
        draw(tests),
    )


def test_both_dates_are_included() -> None:
    validity = Validity.between(NOW, NOW + DAY)
    at = {moment: validity.state(instant_key(moment)) for moment in (NOW - TICK, NOW, NOW + DAY, NOW + DAY + TICK)}
    assert list(at.values()) == [State.NOT_YET, State.VALID, State.VALID, State.EXPIRED]
    assert [validity.contains(moment) for moment in at] == [False, True, True, False]


def test_open_ends() -> None:
    assert ALWAYS.contains(NOW)
    assert Validity.between(None, NOW).contains(datetime.min.replace(tzinfo=NOW.tzinfo))
    assert Validity.between(NOW).contains(datetime.max.replace(tzinfo=NOW.tzinfo))
    assert (ALWAYS.starts, ALWAYS.ends) == (None, None)
    validity = Validity.between(NOW, NOW + DAY)
    assert (validity.starts, validity.ends) == (NOW, NOW + DAY)


def test_a_date_cut_short_is_the_beginning_of_the_period() -> None:
    validity = read('(valid (not-before "2026-05-01") (not-after "2026-05-02_12"))')
    assert validity.starts == NOW.replace(hour=0)
    assert validity.ends == NOW + DAY
    assert not validity.contains(NOW + DAY + TICK)
    assert read('(valid (not-after "2026-05-01_12:00:00.1"))').end == b"2026-05-01_12:00:00.100000"


@given(validities(), validities(), moments)
@settings(deadline=None)
def test_the_intersection_holds_exactly_when_both_do(one: Validity, other: Validity, now: datetime) -> None:
    both = one.intersect(other)
    assert (both is not None and both.contains(now)) == (one.contains(now) and other.contains(now))
    back = other.intersect(one)
    assert (both is None) == (back is None)
    if both is not None and back is not None:
        assert (both.begin, both.end, set(both.online)) == (back.begin, back.end, set(back.online))
        assert set(both.online) == set(one.online) | set(other.online)
        assert one.covers(both)
        assert other.covers(both)


@given(validities(), validities())
@settings(deadline=None)
def test_covers_is_what_intersection_leaves_as_it_is(one: Validity, other: Validity) -> None:
    both = one.intersect(other)
    unchanged = both is not None and (both.begin, both.end, set(both.online)) == (
        other.begin,
        other.end,
        set(other.online),
    )
    assert one.covers(other) == unchanged


@given(validities())
@settings(deadline=None)
def test_the_written_form_is_read_back(validity: Validity) -> None:
    written = validity_to_sexp(validity)
    if written is None:
        assert validity == ALWAYS
    else:
        assert parse_validity(written[1:]) == validity


def test_many_online_tests_are_joined_without_repeating_any() -> None:
    def many(first: int) -> Validity:
        return Validity(online=tuple(OnlineTest("crl", (b"online", b"crl", b"%d" % i)) for i in range(first, 20_000)))

    both = many(0).intersect(many(5_000))
    assert both is not None
    assert len(both.online) == 20_000


def test_one_bare_date_means_then() -> None:
    validity = read('(valid "2026-05-01_12:00:00")')
    assert validity.starts == validity.ends == NOW


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ('(valid (not-before "2026-05-02") (not-after "2026-05-01"))', "validity.empty"),
        ('(valid (not-before "2026-05-01") (not-before "2026-05-01"))', "validity.malformed"),
        ('(valid (not-after "2026-05-01") (not-after "2027-05-01"))', "validity.malformed"),
        ('(valid "2026-05-01" (not-after "2027-05-01"))', "validity.malformed"),
        ('(valid (not-after "2027-05-01") "2026-05-01")', "validity.malformed"),
        ('(valid "2026-05-01" "2026-05-01")', "validity.malformed"),
        ("(valid (not-after))", "validity.malformed"),
        ('(valid (not-after "2026-05-01" "2027-05-01"))', "validity.malformed"),
        ("(valid (not-after (a)))", "validity.malformed"),
        ("(valid ())", "validity.malformed"),
        ("(valid (online))", "validity.malformed"),
        ("(valid (online maybe))", "validity.malformed"),
        ("(valid (not-ever x))", "validity.malformed"),
        ("(valid (not-after tomorrow))", "date.malformed"),
        ('(valid (not-after "2026-13-01"))', "date.malformed"),
        ('(valid (not-after "2026-05-01T12:00:00"))', "date.malformed"),
        ('(valid (not-after "0000-01-01"))', "date.malformed"),
        ('(valid (not-after "2026-05-01_12:00:00.1234567"))', "date.malformed"),
    ],
)
def test_what_is_no_validity(written: str, code: str) -> None:
    with refused(code):
        read(written)


def test_periods_from_instants() -> None:
    with refused("validity.empty"):
        Validity.between(NOW, NOW - TICK)
    with refused("value.zone"):
        Validity.between(NOW.replace(tzinfo=None))
    assert str(ALWAYS) == "always … without end"
    assert str(Validity.between(NOW)).startswith("2026-05-01_12:00:00")


@given(st.lists(st.recursive(st.binary(max_size=12), lambda inner: st.lists(inner, max_size=3).map(tuple)), max_size=3))
@settings(deadline=None)
def test_nothing_but_our_own_errors(parts: list[SExp]) -> None:
    if parts:
        with refused("validity.malformed", "date.malformed"):
            parse_validity(parts)

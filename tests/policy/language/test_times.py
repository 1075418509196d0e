from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MalformedError
from penstock.policy.language.times import (
    date_of,
    days_of,
    last_day,
    read_date,
    read_date_time,
    read_day_time_duration,
    read_time,
    read_year_month_duration,
)

zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
instants = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=zones)  # noqa: DTZ001  # the zones come with them


@given(instants, instants)
def test_moments_compare_as_instants_do(one: datetime, other: datetime) -> None:
    a, b = read_date_time(one.isoformat()), read_date_time(other.isoformat())
    assert (a < b, a == b, a > b) == (one < other, one == other, one > other)


@given(instants, st.integers(-(10**9), 10**9))
def test_seconds_are_counted(one: datetime, seconds: int) -> None:
    try:
        later = one + timedelta(seconds=seconds)
    except OverflowError:
        return
    duration = read_day_time_duration(f"{'-' if seconds < 0 else ''}PT{abs(seconds)}S")
    assert read_date_time(one.isoformat()).later(duration.seconds) == read_date_time(later.isoformat())


def test_seconds_are_counted_before_the_calendar_begins() -> None:
    begun = read_date_time("-0044-03-15T00:00:00Z")
    assert str(begun.later(read_day_time_duration("-PT1H").seconds)) == "-0044-03-14T23:00:00Z"
    assert str(begun.later(read_day_time_duration("P1DT1H").seconds)) == "-0044-03-16T01:00:00Z"


@given(st.dates())
def test_days_are_those_of_the_calendar(day: date) -> None:
    number = days_of(day.year, day.month, day.day)
    assert date_of(number) == (day.year, day.month, day.day)
    assert number - days_of(1, 1, 1) == day.toordinal() - 1


@given(st.integers(-(10**6), 10**6))
def test_any_day_has_a_date(number: int) -> None:
    year, month, day = date_of(number)
    assert days_of(year, month, day) == number
    assert 1 <= day <= last_day(year, month)


@pytest.mark.parametrize(
    ("begun", "months", "ended"),
    [
        ("2024-01-31", "P1M", "2024-02-29"),
        ("2023-01-31", "P1M", "2023-02-28"),
        ("2024-02-29", "-P1Y", "2023-02-28"),
        ("2000-12-15Z", "P1Y1M", "2002-01-15Z"),
        ("-0001-12-31", "P1M", "0000-01-31"),
    ],
)
def test_months_are_counted(begun: str, months: str, ended: str) -> None:
    assert str(read_date(begun).months_later(read_year_month_duration(months).months)) == ended


@pytest.mark.parametrize(
    "text",
    ["2026-05-01T12:00:00Z", "2026-05-01T12:00:00.125+05:30", "12026-05-01T00:00:00", "-0044-03-15T11:00:00-01:00"],
)
def test_moments_are_written_as_they_are_read(text: str) -> None:
    assert str(read_date_time(text)) == text


def test_midnight_is_the_next_day() -> None:
    assert read_date_time("2026-04-30T24:00:00Z") == read_date_time("2026-05-01T00:00:00Z")
    assert read_time("24:00:00") == read_time("00:00:00")


@pytest.mark.parametrize("text", ["P1DT2H3M4.5S", "-P3D", "PT0S", "PT36M"])
def test_durations_are_written_as_they_are_read(text: str) -> None:
    assert str(read_day_time_duration(text)) == text


def test_what_has_no_zone_is_in_utc() -> None:
    assert read_date_time("2026-05-01T12:00:00") == read_date_time("2026-05-01T14:00:00+02:00")
    assert datetime(2026, 5, 1, tzinfo=UTC).isoformat() != str(read_date_time("2026-05-01T00:00:00"))


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (read_date, "2026-02-30"),
        (read_date, "2026-5-1"),
        (read_date_time, "2026-05-01T24:00:01Z"),
        (read_date_time, "2026-05-01T12:00:00-14:30"),
        (read_date_time, "2026-05-01 12:00:00"),
        (read_time, "12:00"),
        (read_day_time_duration, "P1Y"),
        (read_day_time_duration, "P1DT"),
        (read_day_time_duration, "P"),
        (read_year_month_duration, "P"),
        (read_year_month_duration, "P1D"),
        (read_date, "9" * 100),
    ],
)
def test_what_is_none_is_refused(read: object, text: str) -> None:
    assert callable(read)
    with pytest.raises(MalformedError) as caught:
        read(text)
    assert caught.value.code == "xacml.value"

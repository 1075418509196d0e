"""Instants: certificates' dates in all their lengths, ISO 8601, time zones, and bytes that order as time does."""

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.errors import MalformedError
from penstock.model.instants import date_key, format_date, in_utc, instant_key, parse_date, parse_instant

# Hypothesis wants naive bounds.
instants = st.datetimes(timezones=st.just(UTC))
zoned = st.datetimes(
    min_value=datetime(1, 1, 3),  # noqa: DTZ001  # the zone is drawn
    max_value=datetime(9999, 12, 29),  # noqa: DTZ001  # the zone is drawn
    timezones=st.timezones() | st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone),
)


@st.composite
def dates(draw: st.DrawFn) -> bytes:
    """Return a date of any permitted length."""
    text = draw(instants).strftime("%Y").zfill(4) + draw(instants).strftime("-%m-28_%H:%M:%S.%f")
    return text[: draw(st.sampled_from([10, 13, 16, 19, 21, 22, 23, 24, 25, 26]))].encode()


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        (b"2000-05-05", datetime(2000, 5, 5, tzinfo=UTC)),
        (b"2000-05-05_17", datetime(2000, 5, 5, 17, tzinfo=UTC)),
        (b"2000-05-05_17:20", datetime(2000, 5, 5, 17, 20, tzinfo=UTC)),
        (b"2000-05-05_17:20:59", datetime(2000, 5, 5, 17, 20, 59, tzinfo=UTC)),
        (b"2000-05-05_17:20:59.5", datetime(2000, 5, 5, 17, 20, 59, 500_000, tzinfo=UTC)),
        (b"2000-05-05_17:20:59.05", datetime(2000, 5, 5, 17, 20, 59, 50_000, tzinfo=UTC)),
        (b"2000-05-05_17:20:59.000001", datetime(2000, 5, 5, 17, 20, 59, 1, tzinfo=UTC)),
        (b"2000-05-05_17:20:59.000000", datetime(2000, 5, 5, 17, 20, 59, tzinfo=UTC)),
        (b"0001-01-01_00:00:00", datetime(1, 1, 1, tzinfo=UTC)),
        (b"9999-12-31_23:59:59.999999", datetime.max.replace(tzinfo=UTC)),
        (b"2024-02-29", datetime(2024, 2, 29, tzinfo=UTC)),
        (b"2000-02-29", datetime(2000, 2, 29, tzinfo=UTC)),
    ],
)
def test_dates(text: bytes, instant: datetime) -> None:
    found = parse_date(text)
    assert found == instant
    assert found.tzinfo is UTC
    assert parse_date(format_date(found)) == instant
    assert date_key(text) == instant_key(instant)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"2000",
        b"2000-05",
        b"2000-05-",
        b"2000-05-05_",
        b"2000-05-05_17:",
        b"2000-05-05_17:20:",
        b"2000-05-05_17:20:59.",
        b"2000-05-05_17:20:59.1234567",
        b"2000-05-05_17:20.5",
        b"2000-05-05_1",
        b"2000-5-5",
        b"02000-05-05",
        b"20000505",
        b"2000-05-05T17:20:59",
        b"2000-05-05 17:20:59",
        b"2000-05-05_17:20:59Z",
        b"2000-05-05_17:20:59+01:00",
        b"2000-05-05\n",
        b"2000-05-05_17:20:59\n",
        b" 2000-05-05",
        b"2000-05-05\0",
        "٢٠٠٠-05-05".encode(),
        b"+200-05-05",
        b"0000-01-01",
        b"2000-00-01",
        b"2000-13-01",
        b"2000-01-00",
        b"2000-01-32",
        b"2000-04-31",
        b"1900-02-29",
        b"2023-02-29",
        b"2100-02-29",
        b"2000-05-05_24",
        b"2000-05-05_24:00:00",
        b"2000-05-05_23:60",
        b"2016-12-31_23:59:60",
        b"2000-05-05" * 1000,
    ],
)
def test_no_dates(text: bytes) -> None:
    for read in (parse_date, date_key):
        with pytest.raises(MalformedError) as error:
            read(text)
        assert error.value.code == "date.malformed"
        assert len(error.value.message) < 200


@given(instants)
@settings(deadline=None)
def test_a_written_instant_reads_back(instant: datetime) -> None:
    text = format_date(instant)
    assert parse_date(text) == instant
    assert len(text) == (26 if instant.microsecond else 19)
    assert date_key(text) == instant_key(instant)
    assert parse_instant(text.decode()) == instant
    assert parse_instant(instant.isoformat()) == instant


@given(dates(), dates())
@example(b"2000-05-05", b"2000-05-05_00:00:00.000000")
@example(b"2000-05-05_17:20:59", b"2000-05-05_17:20:59.0")
@example(b"2000-05-05_17:20:59.1", b"2000-05-05_17:20:59.09")
@example(b"0001-01-01", b"9999-12-31")
@settings(deadline=None, max_examples=examples(300))
def test_keys_order_as_datetimes_do(one: bytes, other: bytes) -> None:
    assert len(date_key(one)) == 26
    assert (date_key(one) < date_key(other)) == (parse_date(one) < parse_date(other))
    assert (date_key(one) == date_key(other)) == (parse_date(one) == parse_date(other))


@given(instants, dates())
@settings(deadline=None)
def test_instants_order_with_dates(instant: datetime, text: bytes) -> None:
    assert (instant_key(instant) < date_key(text)) == (instant < parse_date(text))


@given(zoned)
@settings(deadline=None)
def test_the_zone_does_not_change_the_instant(instant: datetime) -> None:
    there = in_utc(instant)
    assert there.tzinfo is UTC
    assert there.timestamp() == instant.timestamp()
    assert format_date(instant) == format_date(there)
    assert instant_key(instant) == instant_key(there)


def test_the_hour_that_occurs_twice_is_two_hours() -> None:
    first = datetime(2026, 10, 25, 1, 30, tzinfo=ZoneInfo("Europe/London"))
    assert format_date(first) == b"2026-10-25_00:30:00"
    assert format_date(first.replace(fold=1)) == b"2026-10-25_01:30:00"


def test_an_instant_needs_a_zone() -> None:
    for write in (format_date, instant_key, in_utc):
        with pytest.raises(MalformedError) as error:
            write(datetime(2026, 1, 31))  # noqa: DTZ001  # the mistake under test
        assert error.value.code == "value.zone"


@pytest.mark.parametrize(
    "instant",
    [
        datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
    ],
)
def test_an_instant_that_utc_cannot_name(instant: datetime) -> None:
    for write in (format_date, instant_key, in_utc):
        with pytest.raises(MalformedError) as error:
            write(instant)
        assert error.value.code == "value.range"
    with pytest.raises(MalformedError) as error:
        parse_instant(instant.isoformat())
    assert error.value.code == "date.malformed"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("2026-01-31T09:00:00Z", b"2026-01-31_09:00:00"),
        ("2026-01-31T09:00:00", b"2026-01-31_09:00:00"),
        ("2026-01-31T09:00:00+01:00", b"2026-01-31_08:00:00"),
        ("2026-01-31T09:00:00.25-05:30", b"2026-01-31_14:30:00.250000"),
        ("2026-01-31", b"2026-01-31_00:00:00"),
        ("2026-01-31 09:00", b"2026-01-31_09:00:00"),
        ("2026-01-31T09:00+00:00", b"2026-01-31_09:00:00"),
        ("2026-01-31T09:00:00.123456789Z", b"2026-01-31_09:00:00.123456"),
        ("2026-01-31_09:00:00", b"2026-01-31_09:00:00"),
        ("2026-01-31_09", b"2026-01-31_09:00:00"),
        ("0001-01-01T00:00:00Z", b"0001-01-01_00:00:00"),
        ("9999-12-31T23:59:59.999999Z", b"9999-12-31_23:59:59.999999"),
        ("0001-01-01T00:00:00-01:00", b"0001-01-01_01:00:00"),
    ],
)
def test_people_write_either_form(text: str, written: bytes) -> None:
    found = parse_instant(text)
    assert found.tzinfo is UTC
    assert format_date(found) == written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "_",
        "now",
        "2026",
        "2026-W05",
        "20260131",
        "10000-01-01",
        "0000-01-01",
        "2026-02-30",
        "2026-01-31T",
        "2026-01-31T09",
        "2026-01-31T24:00",
        "2026-01-31T25:00",
        "2026-01-31T09:60",
        "2026-01-31T23:59:60Z",
        "2026-01-31T09:00:00,5Z",
        "2026-01-31T09:00:00.Z",
        "2026-01-31T09:00:00.0123456789Z",
        "2026-01-31T09:00:00+0100",
        "2026-01-31T09:00:00+24:00",
        "2026-01-31T09:00:00Z\n",
        "2026-01-31\n09:00:00Z",
        "2026-01-31\ud80009:00:00Z",
        "2026-01-31_9",
        "2026-01-31_09:00:00Z",
        "٢٠٢٦-01-31",
        "٢٠٢٦-01-31_09",
        "\ud800",
        "\ud800_",
        "1" * 10_000,
    ],
)
def test_what_people_cannot_write(text: str) -> None:
    with pytest.raises(MalformedError) as error:
        parse_instant(text)
    assert error.value.code == "date.malformed"
    assert len(error.value.message) < 200

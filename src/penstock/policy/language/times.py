"""Dates, times and durations as XML Schema has them: any year, with a zone or without, seconds to any digit.

A value without a zone is compared and counted as UTC.
"""

import re
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from functools import total_ordering
from typing import Final, Self

from penstock.errors import MalformedError

DAY: Final = 86_400
_LONGEST: Final = 64
#: in minutes
_HALF_DAY: Final = 720
_ZONE: Final = r"(?P<zone>Z|[+-](?:(?:0[0-9]|1[0-3]):[0-5][0-9]|14:00))?"
_DATE: Final = r"(?P<year>-?(?:[1-9][0-9]{4,8}|[0-9]{4}))-(?P<month>0[1-9]|1[0-2])-(?P<day>0[1-9]|[12][0-9]|3[01])"
_CLOCK: Final = r"(?P<hour>[01][0-9]|2[0-4]):(?P<minute>[0-5][0-9]):(?P<second>[0-5][0-9](?:\.[0-9]+)?)"
_DATE_ONLY: Final = re.compile(_DATE + _ZONE, re.ASCII)
_TIME_ONLY: Final = re.compile(_CLOCK + _ZONE, re.ASCII)
_DATE_TIME: Final = re.compile(_DATE + "T" + _CLOCK + _ZONE, re.ASCII)
_DAY_TIME: Final = re.compile(
    r"(?P<sign>-)?P(?:(?P<days>[0-9]+)D)?"
    r"(?P<clock>T(?:(?P<hours>[0-9]+)H)?(?:(?P<minutes>[0-9]+)M)?(?:(?P<seconds>[0-9]+(?:\.[0-9]+)?)S)?)?",
    re.ASCII,
)
_YEAR_MONTH: Final = re.compile(r"(?P<sign>-)?P(?:(?P<years>[0-9]+)Y)?(?:(?P<months>[0-9]+)M)?", re.ASCII)


def days_of(year: int, month: int, day: int) -> int:
    """Return the number of a day in the Gregorian calendar, counted from 0000-03-01; years can be negative."""
    years = year - (month <= 2)
    era, of_era = divmod(years, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year


def parts_of(instant: datetime) -> tuple[int, Decimal]:
    """Return the day number of an instant, in its zone, and the seconds since the day began."""
    seconds = Decimal(instant.hour * 3600 + instant.minute * 60 + instant.second)
    return days_of(instant.year, instant.month, instant.day), seconds + Decimal(instant.microsecond) / 1_000_000


def date_of(days: int) -> tuple[int, int, int]:
    """Return the year, the month and the day of a day number."""
    era, of_era = divmod(days, 146_097)
    years = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * years + years // 4 - years // 100)
    shifted = (5 * of_year + 2) // 153
    month = shifted + (3 if shifted < 10 else -9)
    return years + era * 400 + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1


def last_day(year: int, month: int) -> int:
    """Return the number of days of a month."""
    following = (year + 1, 1) if month == 12 else (year, month + 1)
    return days_of(*following, 1) - days_of(year, month, 1)


def into_days(seconds: Decimal) -> tuple[int, Decimal]:
    """Return seconds as whole days, rounded down, and the remaining seconds."""
    days = int(seconds // DAY)
    # Decimal division rounds towards zero.
    days -= seconds < days * DAY
    return days, seconds - days * DAY


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class XmlDateTime:
    """A date, a time of day or both: a day, seconds into it, and its zone's offset from UTC in minutes."""

    days: int
    seconds: Decimal
    zone: int | None = None

    @property
    def order(self) -> Decimal:
        """The position in time."""
        return self.days * DAY + self.seconds - (self.zone or 0) * 60

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.order == other.order

    def __lt__(self, other: Self) -> bool:
        return self.order < other.order

    def __hash__(self) -> int:
        return hash(self.order)

    def later(self, seconds: Decimal) -> Self:
        """Return the value that is some seconds later, in the same zone."""
        days, rest = into_days(self.seconds + seconds)
        return replace(self, days=self.days + days, seconds=rest)

    def months_later(self, months: int) -> Self:
        """Return the value that is some months later; a day that the month does not have becomes its last one."""
        year, month, day = date_of(self.days)
        year, shifted = divmod(year * 12 + month - 1 + months, 12)
        return replace(self, days=days_of(year, shifted + 1, min(day, last_day(year, shifted + 1))))


class DateTime(XmlDateTime):
    """`xs:dateTime`."""

    def __str__(self) -> str:
        return f"{_date_text(self.days)}T{_clock_text(self.seconds)}{_zone_text(self.zone)}"


class Date(XmlDateTime):
    """`xs:date`."""

    def __str__(self) -> str:
        return f"{_date_text(self.days)}{_zone_text(self.zone)}"


class Time(XmlDateTime):
    """`xs:time`: all on the same day."""

    def __str__(self) -> str:
        return f"{_clock_text(self.seconds)}{_zone_text(self.zone)}"


def canonical(moment: XmlDateTime) -> XmlDateTime:
    """Return the value in XML Schema's canonical form: in UTC, if it has a zone.

    A date begins at the same instant as before: its zone is within twelve hours of UTC.

    >>> str(canonical(read_date_time("2026-05-01T01:00:00+02:00"))), str(canonical(read_date("2026-05-01+13:00")))
    ('2026-04-30T23:00:00Z', '2026-04-30-11:00')
    """
    if not moment.zone:
        return moment
    if isinstance(moment, Date):
        days = (moment.zone > _HALF_DAY) - (moment.zone <= -_HALF_DAY)
        return replace(moment, days=moment.days - days, zone=moment.zone - 2 * _HALF_DAY * days)
    days, seconds = into_days(moment.seconds - moment.zone * 60)
    return replace(moment, days=0 if isinstance(moment, Time) else moment.days + days, seconds=seconds, zone=0)


@dataclass(frozen=True, slots=True, order=True)
class DayTimeDuration:
    """`xs:dayTimeDuration`."""

    seconds: Decimal

    def __str__(self) -> str:
        sign, seconds = ("-", -self.seconds) if self.seconds < 0 else ("", self.seconds)
        days, rest = divmod(seconds, DAY)
        hours, rest = divmod(rest, 3600)
        minutes, rest = divmod(rest, 60)
        parts = [(hours, "H"), (minutes, "M"), (rest, "S")]
        clock = "".join(f"{_plain(amount)}{unit}" for amount, unit in parts if amount)
        date = f"{_plain(days)}D" if days else ""
        return f"{sign}P{date}{'T' + clock if clock else ''}" if date or clock else "PT0S"


@dataclass(frozen=True, slots=True, order=True)
class YearMonthDuration:
    """`xs:yearMonthDuration`."""

    months: int

    def __str__(self) -> str:
        years, months = divmod(abs(self.months), 12)
        text = (f"{years}Y" if years else "") + (f"{months}M" if months or not years else "")
        return f"{'-' if self.months < 0 else ''}P{text}"


def read_date_time(text: str) -> DateTime:
    """Read `2026-05-01T12:00:00Z`. Raises `MalformedError` (`xacml.value`)."""
    found = _matched(_DATE_TIME, text, "dateTime")
    seconds = _seconds(found)
    days = _days(found)
    return DateTime(days, seconds, _zone(found)) if seconds < DAY else DateTime(days + 1, Decimal(0), _zone(found))


def read_date(text: str) -> Date:
    """Read `2026-05-01Z`. Raises `MalformedError` (`xacml.value`)."""
    found = _matched(_DATE_ONLY, text, "date")
    return Date(_days(found), Decimal(0), _zone(found))


def read_time(text: str) -> Time:
    """Read `12:00:00Z`. Raises `MalformedError` (`xacml.value`)."""
    found = _matched(_TIME_ONLY, text, "time")
    return Time(0, _seconds(found) % DAY, _zone(found))


def read_day_time_duration(text: str) -> DayTimeDuration:
    """Read `P1DT2H`. Raises `MalformedError` (`xacml.value`)."""
    found = _matched(_DAY_TIME, text, "dayTimeDuration")
    amounts = [found["days"], found["hours"], found["minutes"], found["seconds"]]
    if all(amount is None for amount in amounts) or found["clock"] == "T":
        raise _malformed(text, "dayTimeDuration")
    scales = (DAY, 3600, 60, 1)
    total = sum((Decimal(amount or 0) * scale for amount, scale in zip(amounts, scales, strict=True)), Decimal(0))
    return DayTimeDuration(-total if found["sign"] else total)


def read_year_month_duration(text: str) -> YearMonthDuration:
    """Read `P1Y2M`. Raises `MalformedError` (`xacml.value`)."""
    found = _matched(_YEAR_MONTH, text, "yearMonthDuration")
    if found["years"] is None and found["months"] is None:
        raise _malformed(text, "yearMonthDuration")
    months = int(found["years"] or 0) * 12 + int(found["months"] or 0)
    return YearMonthDuration(-months if found["sign"] else months)


def _matched(pattern: re.Pattern[str], text: str, name: str) -> re.Match[str]:
    found = pattern.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        raise _malformed(text, name)
    return found


def _malformed(text: str, name: str) -> MalformedError:
    return MalformedError("xacml.value", f"`{text[:80]}` is not a valid {name}")


def _days(found: re.Match[str]) -> int:
    year, month, day = int(found["year"]), int(found["month"]), int(found["day"])
    if day > last_day(year, month):
        raise _malformed(found[0], "date")
    return days_of(year, month, day)


def _seconds(found: re.Match[str]) -> Decimal:
    seconds = int(found["hour"]) * 3600 + int(found["minute"]) * 60 + Decimal(found["second"])
    if seconds > DAY:
        raise _malformed(found[0], "time")
    return seconds


def _zone(found: re.Match[str]) -> int | None:
    text = found["zone"]
    if text is None or text == "Z":
        return None if text is None else 0
    minutes = int(text[1:3]) * 60 + int(text[4:6])
    return -minutes if text[0] == "-" else minutes


def _date_text(days: int) -> str:
    year, month, day = date_of(days)
    return f"{'-' if year < 0 else ''}{abs(year):04}-{month:02}-{day:02}"


def _clock_text(seconds: Decimal) -> str:
    whole = int(seconds)
    part = _plain(seconds - whole)[1:]
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{part}"


def _zone_text(zone: int | None) -> str:
    if not zone:
        return "" if zone is None else "Z"
    return f"{'-' if zone < 0 else '+'}{abs(zone) // 60:02}:{abs(zone) % 60:02}"


def _plain(number: Decimal) -> str:
    return f"{number.normalize():f}" if number else "0"

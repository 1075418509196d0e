"""Instants: aware `datetime`s, and the two texts they are written in.

Certificates use the date of RFC 2693, `2026-01-31_09:00:00`, in UTC; people and JSON use the ISO 8601 of RFC 3339.
Both may be shortened from the right, down to the day, or carry a fraction; what is left out is the beginning of the
period.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from penstock.errors import MalformedError

_DATE: Final = re.compile(rb"(\d{4})-(\d\d)-(\d\d)(?:_(\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?)?)?", re.ASCII)
# Narrower than `datetime.fromisoformat`, which takes any character for the `T` and differs between Python versions.
_ISO: Final = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ](?:[01]\d|2[0-3]):\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:\d\d)?)?", re.ASCII
)
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_EARLIEST: Final = b"0001-01-01_00:00:00.000000"


def parse_date(text: bytes) -> datetime:
    """Read a certificate's date.

    >>> parse_date(b"2000-05-05_17:20")
    datetime.datetime(2000, 5, 5, 17, 20, tzinfo=datetime.timezone.utc)

    Raises `MalformedError` (`date.malformed`).
    """
    found = _DATE.fullmatch(text)
    if not found:
        raise _not_a_date(text)
    year, month, day, hour, minute, second, fraction = found.groups()
    try:
        return datetime(
            int(year),
            int(month),
            int(day),
            int(hour or 0),
            int(minute or 0),
            int(second or 0),
            int((fraction or b"0").ljust(6, b"0")),
            UTC,
        )
    except ValueError as error:
        raise _not_a_date(text) from error


def _not_a_date(text: bytes) -> MalformedError:
    return MalformedError(
        "date.malformed", f"`{text[:40]!r}` is not a date", hint="write it in UTC as `2026-01-31_09:00:00`"
    )


def date_key(text: bytes) -> bytes:
    """Return a date padded to microseconds, so that bytes compare as instants do.

    Raises `MalformedError` (`date.malformed`).
    """
    parse_date(text)
    return text + _EARLIEST[len(text) :]


def format_date(instant: datetime) -> bytes:
    """Write an instant as a certificate's date; a fraction only where there is one.

    Raises `MalformedError` as `in_utc`.
    """
    return in_utc(instant).replace(tzinfo=None).isoformat("_").encode()


def instant_key(instant: datetime) -> bytes:
    """Return an instant in the form that `date_key` gives dates.

    Raises `MalformedError` as `in_utc`.
    """
    return in_utc(instant).replace(tzinfo=None).isoformat("_", "microseconds").encode()


def in_utc(instant: datetime) -> datetime:
    """Return the same instant in UTC.

    Raises `MalformedError`: `value.zone` when it has no time zone, `value.range` when UTC needs a year before 1 or
    after 9999.
    """
    if instant.tzinfo is UTC:
        return instant
    if instant.utcoffset() is None:
        raise MalformedError("value.zone", "an instant has no time zone", hint="attach one, for example datetime.UTC")
    try:
        return instant.astimezone(UTC)
    except OverflowError as error:
        raise MalformedError("value.range", "an instant is outside the years 1 to 9999 of UTC") from error


def parse_instant(text: str) -> datetime:
    """Read ISO 8601 or a certificate's date; without a zone it is UTC, and nanoseconds are cut off.

    >>> parse_instant("2026-01-31T09:00+01:00")
    datetime.datetime(2026, 1, 31, 8, 0, tzinfo=datetime.timezone.utc)

    Raises `MalformedError` (`date.malformed`).
    """
    if "_" in text:
        return parse_date(text.encode("ascii", "replace"))
    problem = MalformedError(
        "date.malformed", f"`{text[:40]}` is not a date", hint="write it as `2026-01-31T09:00:00Z`"
    )
    if not _ISO.fullmatch(text):
        raise problem
    try:
        instant = datetime.fromisoformat(text)
        return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise problem from error


def parse_end(text: str) -> datetime:
    """Read the last instant of something, as `parse_instant` does; a day alone means its last second.

    >>> parse_end("2026-01-31").isoformat(), parse_end("2026-01-31T12:00Z").isoformat()
    ('2026-01-31T23:59:59+00:00', '2026-01-31T12:00:00+00:00')

    Raises `MalformedError` (`date.malformed`).
    """
    found = parse_instant(text)
    return found + timedelta(days=1, seconds=-1) if _DAY.fullmatch(text) else found

"""Instants: aware `datetime`s, and the two texts they are written in.

Certificates use the date of RFC 2693, `2026-01-31_09:00:00`, in UTC; people and JSON use ISO 8601. Certificates may
shorten a date from the right or carry a fraction; what is left out is the beginning of the period.
"""

import re
from datetime import UTC, datetime
from typing import Final

from penstock.errors import MalformedError

_DATE: Final = re.compile(rb"(\d{4})-(\d\d)-(\d\d)(?:_(\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?)?)?", re.ASCII)
_EARLIEST: Final = b"0001-01-01_00:00:00.000000"


def parse_date(text: bytes) -> datetime:
    """Read a certificate's date.

    >>> parse_date(b"2000-05-05_17:20")
    datetime.datetime(2000, 5, 5, 17, 20, tzinfo=datetime.timezone.utc)

    Raises `MalformedError` (`date.malformed`).
    """
    found = _DATE.fullmatch(text)
    problem = MalformedError(
        "date.malformed", f"`{text[:40]!r}` is no date", hint="write it in UTC as `2026-01-31_09:00:00`"
    )
    if not found:
        raise problem
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
        raise problem from error


def date_key(text: bytes) -> bytes:
    """Return a checked date padded to microseconds, so that bytes compare as instants do."""
    parse_date(text)
    return text + b"." * (len(text) == 19) + _EARLIEST[len(text) + (len(text) == 19) :]


def format_date(instant: datetime) -> bytes:
    """Write an instant as a certificate's date; a fraction only where there is one.

    Raises `MalformedError` (`value.zone`) for an instant without a time zone.
    """
    moment = in_utc(instant)
    text = f"{moment.year:04}-{moment:%m-%d_%H:%M:%S}"
    if moment.microsecond:
        text += f".{moment.microsecond:06}"
    return text.encode()


def instant_key(instant: datetime) -> bytes:
    """Return an instant in the form that `date_key` gives dates."""
    moment = in_utc(instant)
    return f"{moment.year:04}-{moment:%m-%d_%H:%M:%S}.{moment.microsecond:06}".encode()


def in_utc(instant: datetime) -> datetime:
    """Return the same instant in UTC. Raises `MalformedError` (`value.zone`) when it has no time zone."""
    if instant.utcoffset() is None:
        raise MalformedError("value.zone", "an instant has no time zone", hint="attach one, for example datetime.UTC")
    return instant.astimezone(UTC)


def parse_instant(text: str) -> datetime:
    """Read ISO 8601 or a certificate's date; without a zone it is UTC.

    Raises `MalformedError` (`date.malformed`).
    """
    if "_" in text:
        return parse_date(text.encode("ascii", "replace"))
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise MalformedError(
            "date.malformed", f"`{text[:40]}` is no date", hint="write it as `2026-01-31T09:00:00Z`"
        ) from error
    return instant.replace(tzinfo=UTC) if instant.utcoffset() is None else instant.astimezone(UTC)

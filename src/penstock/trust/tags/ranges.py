"""Ranges of atoms under the five orderings of RFC 2693: `(* range ORDERING [g|ge LOW] [l|le HIGH])`.

    alpha     any bytes, compared byte by byte
    binary    any bytes, as an unsigned big-endian number, so that leading zero bytes do not count
    numeric   decimal digits with an optional sign and fraction, compared exactly
    time      HH:MM:SS with an optional fraction
    date      YYYY-MM-DD_HH:MM:SS with an optional fraction; cut short it means the first instant: 2005 is
              2005-01-01_00:00:00

An atom that is not a value of the ordering is in none of its ranges. TrustLimits keep the bytes they were written with.
"""

import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, TypeAlias

from penstock.errors import MalformedError

#: the longest number or date
VALUE_BYTES: Final = 128

#: A place on the scale of an ordering. The second part places limits beside their value: for the lower limit 1 is
#: just above it (`g`), for the upper one 0 is just below (`l`).
Place: TypeAlias = tuple[Any, int]  # keys of one ordering compare with each other; mypy cannot know which

_NUMERIC = re.compile(rb"[+-]?[0-9]+(?:\.[0-9]+)?")
_CLOCK = rb"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_TIME = re.compile(_CLOCK + rb"(?:\.[0-9]+)?")
_DATE = re.compile(rb"([0-9]{4})-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])_" + _CLOCK + rb"(?:\.[0-9]+)?")
_DATE_REST = b"0000-01-01_00:00:00"
#: where a date may be cut short: behind the year, month, day, hour and minute
_DATE_CUTS = frozenset((4, 7, 10, 13, 16))
_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@dataclass(frozen=True, slots=True)
class Range:
    """Atoms between `low` and `high` under an ordering. Made by `make_range`, never empty."""

    ordering: bytes
    low: bytes | None
    low_open: bool
    high: bytes | None
    high_open: bool
    floor: Place | None = field(compare=False, repr=False)
    ceiling: Place | None = field(compare=False, repr=False)


def key(ordering: bytes, atom: bytes) -> Any:  # see Place
    """Return what an atom is compared by, or None where it is not a value of the ordering."""
    if ordering == b"alpha":
        return atom
    if ordering == b"binary":
        return int.from_bytes(atom, "big")
    if len(atom) > VALUE_BYTES:
        return None
    if ordering == b"numeric":
        return Decimal(atom.decode("ascii")) if _NUMERIC.fullmatch(atom) else None
    if ordering == b"time":
        return _fraction(atom) if _TIME.fullmatch(atom) else None
    return _date(atom)


def make_range(
    ordering: bytes, low: bytes | None, low_open: bool, high: bytes | None, high_open: bool
) -> Range | bytes | None:
    """Return the range in normal form: an atom where it holds just one that is known, None where it is empty.

    Raises MalformedError `tag.range` for an unknown ordering or a limit that is not a value of it.
    """
    if ordering not in (b"alpha", b"binary", b"date", b"numeric", b"time"):
        raise MalformedError(
            "tag.range",
            f"`{ordering.decode('ascii', 'backslashreplace')}` is not an ordering",
            hint="use alpha, binary, date, numeric or time",
        )
    floor = None if low is None else (_limit(ordering, low), int(low_open))
    ceiling = None if high is None else (_limit(ordering, high), int(not high_open))
    # Bytes and whole numbers have neighbours: each place gets one spelling, so that equal ranges compare equal.
    if ordering == b"alpha":
        if floor and floor[1]:
            floor = (floor[0] + b"\0", 0)
        if ceiling and not ceiling[1]:
            if not ceiling[0]:
                return None
            if ceiling[0].endswith(b"\0"):
                ceiling = (ceiling[0][:-1], 1)
    elif ordering == b"binary":
        if floor and floor[1]:
            floor = (floor[0] + 1, 0)
        if ceiling and not ceiling[1]:
            if not ceiling[0]:
                return None
            ceiling = (ceiling[0] - 1, 1)
    if floor in ((b"", 0), (0, 0)) and ordering in (b"alpha", b"binary"):
        floor = None
    if nothing_between(floor, ceiling):
        return None
    if ordering == b"alpha" and ceiling and ceiling[1] and (floor[0] if floor else b"") == ceiling[0]:
        single: bytes = ceiling[0]
        return single
    return Range(ordering, low, low_open, high, high_open, floor, ceiling)


def nothing_between(floor: Place | None, ceiling: Place | None) -> bool:
    """Say whether no value lies from `floor` to `ceiling`."""
    if floor is None or ceiling is None:
        return False
    if floor[0] == ceiling[0]:
        return bool(floor[1]) or not ceiling[1]
    return bool(floor[0] > ceiling[0])


def within(floor: Place | None, ceiling: Place | None, outer_floor: Place | None, outer_ceiling: Place | None) -> bool:
    """Say whether one stretch of an ordering lies inside another."""
    return (outer_floor is None or (floor is not None and floor >= outer_floor)) and (
        outer_ceiling is None or (ceiling is not None and ceiling <= outer_ceiling)
    )


def in_range(range_: Range, atom: bytes) -> bool:
    """Say whether an atom lies in a range."""
    place = key(range_.ordering, atom)
    if place is None:
        return False
    return (range_.floor is None or range_.floor <= (place, 0)) and (
        range_.ceiling is None or range_.ceiling >= (place, 1)
    )


def meet_ranges(a: Range, b: Range) -> Range | bytes | None:
    """Return what two ranges of one ordering share, with the limits of the tighter of them; None if nothing."""
    low = max((a, b), key=lambda r: (r.floor is not None, r.floor or (), r.low_open, _spelling(r.low)))
    high = min((a, b), key=lambda r: (r.ceiling is None, r.ceiling or (), r.high_open, _spelling(r.high)))
    return make_range(a.ordering, low.low, low.low_open, high.high, high.high_open)


def _spelling(limit: bytes | None) -> tuple[int, bytes]:
    """Order the ways to write one limit, so that the order of the operands does not show in the result."""
    return (0, b"") if limit is None else (len(limit), limit)


def _limit(ordering: bytes, atom: bytes) -> Any:  # see Place
    place = key(ordering, atom)
    if place is None:
        name = ordering.decode("ascii")
        shown = atom[:VALUE_BYTES].decode("ascii", "backslashreplace")
        raise MalformedError(
            "tag.range",
            f"`{shown}` is not a value of the ordering {name}",
            hint="numeric: -1.5; time: 08:30:00; date: 2005-11-01_08:30:00 or a beginning of it",
            ordering=name,
        )
    return place


def _date(atom: bytes) -> bytes | None:
    whole = atom + _DATE_REST[len(atom) :] if len(atom) in _DATE_CUTS else atom
    match = _DATE.fullmatch(whole)
    if match is None:
        return None
    year, month, day = (int(part) for part in match.groups())
    leap = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return _fraction(whole) if day <= _DAYS[month - 1] + leap else None


def _fraction(atom: bytes) -> bytes:
    """Drop zeros that end a fraction, so that equal instants are equal bytes."""
    return atom.rstrip(b"0").removesuffix(b".") if b"." in atom else atom

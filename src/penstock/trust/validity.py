"""When a certificate is valid: two dates, both included, and on-line tests (RFC 2693).

Dates keep the bytes they were written in, because reduction copies the tighter of two dates as it is. A padded form is
kept beside them, whose bytes compare as instants do.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

from penstock.codec.sexp import OMITTED, ListForm, Named, SExp
from penstock.errors import MalformedError
from penstock.model.instants import date_key, format_date, instant_key, parse_date

#: for how long a certificate is valid unless its issuer says otherwise
DEFAULT_LIFETIME: Final = timedelta(days=365)
_BEGIN: Final = b""
_END: Final = b"\xff"
_ONLINE_KINDS: Final = (b"crl", b"reval", b"one-time", b"active")


class State(StrEnum):
    """Whether an instant is before, within or after a validity."""

    VALID = "valid"
    NOT_YET = "not-yet-valid"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class OnlineTest:
    """An on-line test as the issuer wrote it: `(online crl|reval|one-time|active …)`; `trust.statements` reads it."""

    kind: str
    body: SExp


@dataclass(frozen=True, slots=True)
class Validity:
    """A period, open where a date is missing, and the on-line tests that must pass within it."""

    not_before: bytes | None = None
    not_after: bytes | None = None
    online: tuple[OnlineTest, ...] = ()
    begin: bytes = field(init=False, repr=False, compare=False)
    end: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "begin", _BEGIN if self.not_before is None else date_key(self.not_before))
        object.__setattr__(self, "end", _END if self.not_after is None else date_key(self.not_after))

    @classmethod
    def between(cls, not_before: datetime | None = None, not_after: datetime | None = None) -> "Validity":
        """Build a validity from instants. Raises `MalformedError` (`value.zone`, `validity.empty`)."""
        validity = cls(
            None if not_before is None else format_date(not_before),
            None if not_after is None else format_date(not_after),
        )
        if validity.begin > validity.end:
            raise MalformedError("validity.empty", "the period would end before it begins")
        return validity

    @property
    def starts(self) -> datetime | None:
        """The first valid instant, if there is one."""
        return None if self.not_before is None else parse_date(self.not_before)

    @property
    def ends(self) -> datetime | None:
        """The last valid instant, if there is one."""
        return None if self.not_after is None else parse_date(self.not_after)

    def state(self, now: bytes) -> State:
        """Return whether an instant is before, within or after the two dates; `now` is an `instant_key`."""
        if now < self.begin:
            return State.NOT_YET
        return State.EXPIRED if now > self.end else State.VALID

    def contains(self, now: datetime) -> bool:
        """Return whether an instant is within the two dates."""
        return self.state(instant_key(now)) is State.VALID

    def covers(self, other: "Validity") -> bool:
        """Return whether everything that satisfies `other` satisfies this validity."""
        return self.begin <= other.begin and other.end <= self.end and set(self.online) <= set(other.online)

    def intersect(self, other: "Validity") -> "Validity | None":
        """Return the later beginning, the earlier end and all on-line tests, or None if no instant is left."""
        if other is ALWAYS or self is other:
            return self
        if self is ALWAYS:
            return other
        late = self if self.begin >= other.begin else other
        soon = self if self.end <= other.end else other
        if late.begin > soon.end:
            return None
        online = self.online
        if other.online:
            online = tuple(dict.fromkeys(online + other.online))
        # Most reductions narrow nothing: give back the narrower operand as it is.
        for one in (self, other):
            if one.begin == late.begin and one.end == soon.end and one.online == online:
                return one
        return Validity(late.not_before, soon.not_after, online)

    def __str__(self) -> str:
        begin = "always" if self.not_before is None else self.not_before.decode()
        end = "without end" if self.not_after is None else self.not_after.decode()
        return f"{begin} … {end}"


ALWAYS: Final = Validity()
"""No date and no test: how root authority is delegated (paper 5, section 5.4)."""


def parse_validity(parts: Iterable[SExp]) -> Validity:
    """Read the elements of a `(valid …)` behind its head: dates and tests, or one bare date that means "then".

    Raises `MalformedError`: `validity.malformed`, `validity.empty`, `date.malformed`.
    """
    not_before: bytes | None = None
    not_after: bytes | None = None
    online: list[OnlineTest] = []
    for part in parts:
        match part:
            case bytes(instant) if not_before is None and not_after is None:
                not_before = not_after = instant
            case (b"not-before", bytes(date)) if not_before is None:
                not_before = date
            case (b"not-after", bytes(date)) if not_after is None:
                not_after = date
            case (b"online", bytes(kind), *_) if kind in _ONLINE_KINDS:
                online.append(OnlineTest(kind.decode(), part))
            case _:
                raise MalformedError(
                    "validity.malformed",
                    "a `valid` field holds something else than not-before, not-after and on-line tests",
                    hint="expected `(valid (not-before …) (not-after …) (online crl|reval|one-time|active …))`",
                )
    validity = Validity(not_before, not_after, tuple(online))
    if validity.begin > validity.end:
        raise MalformedError("validity.empty", "a validity ends before it begins")
    return validity


def validity_to_sexp(validity: Validity) -> tuple[SExp, ...] | None:
    """Return the `(valid …)` field, or None if nothing is restricted."""
    parts: list[SExp] = []
    if validity.not_before is not None:
        parts.append((b"not-before", validity.not_before))
    if validity.not_after is not None:
        parts.append((b"not-after", validity.not_after))
    parts += [test.body for test in validity.online]
    return (b"valid", *parts) if parts else None


ValidityField = Annotated[
    Validity,
    ListForm(lambda validity: (validity_to_sexp(validity) or ())[1:], parse_validity),
    Named(b"valid"),
    OMITTED,
]
"""The `(valid …)` of a record, which is not there if nothing is restricted."""


# ----------------------------------------------------------------------------------------------------------------------
# Unions and intersections of validities.
#
# `Periods` are a union: valid within any of them. They are as few as possible, so that the union of many rules' periods
# stays short. Validities with on-line tests are not merged, because only the checker of the test can tell.


Periods: TypeAlias = tuple[Validity, ...]
"""A union of validities. Without any it is never valid."""

ANY_TIME: Final[Periods] = (ALWAYS,)


def either(validities: Iterable[Validity]) -> Periods:
    """Return when one of some holds at least.

    >>> str(either([Validity(None, b"2026-03-01_00:00:00"), Validity(b"2026-02-01_00:00:00", None)])[0])
    'always … without end'
    """
    found = dict.fromkeys(validities)
    if ALWAYS in found:
        return ANY_TIME
    if len(found) <= 1:
        return tuple(found)
    plain: list[Validity] = []
    for one in sorted((one for one in found if not one.online), key=lambda one: (one.begin, one.end)):
        if plain and one.begin <= plain[-1].end:
            plain[-1] = _joined(plain[-1], one)
        else:
            plain.append(one)
    tested: list[Validity] = []
    for one in (one for one in found if one.online):
        if not any(other.covers(one) for other in (*plain, *tested)):
            tested = [*(other for other in tested if not one.covers(other)), one]
    return (*plain, *sorted(tested, key=lambda one: (one.begin, one.end)))


def both(one: Periods, other: Periods) -> Periods:
    """Return when both hold."""
    if one in (ANY_TIME, other):
        return other
    if other == ANY_TIME:
        return one
    met = (mine.intersect(theirs) for mine in one for theirs in other)
    return either(validity for validity in met if validity is not None)


def _joined(first: Validity, second: Validity) -> Validity:
    """Return two periods that meet, the first of which begins first, as one."""
    if second.end <= first.end:
        return first
    return second if second.begin == first.begin else Validity(first.not_before, second.not_after)


_INSTANT: Final = timedelta(microseconds=1)


def earliest(one: datetime | None, other: datetime | None) -> datetime | None:
    """Return the earlier of two instants; None is never."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def turning_point(validities: Iterable[Validity], now: datetime) -> datetime | None:
    """Return when the first of these begins or has ended, after now."""
    found: datetime | None = None
    for validity in validities:
        starts, ends = validity.starts, validity.ends
        if starts is not None and starts > now:
            found = earliest(found, starts)
        if ends is not None and ends >= now:
            # The last instant belongs to a validity. At the end of time there is no later one.
            found = earliest(found, ends + _INSTANT if ends < datetime.max.replace(tzinfo=ends.tzinfo) else None)
    return found

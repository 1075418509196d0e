"""When one of several things holds, and when all of some do: validities taken together.

`Periods` say when something holds: within any of them. They are as few as can be, so that those of many rules stay few
when they are put together; those with on-line tests stand by themselves, since only whoever answers the test can tell.
"""

from collections.abc import Iterable
from typing import Final, TypeAlias

from penstock.trust.validity import ALWAYS, Validity

Periods: TypeAlias = tuple[Validity, ...]
"""When something holds: within any of these; never, where there is none."""

ANY_TIME: Final[Periods] = (ALWAYS,)


def either(validities: Iterable[Validity]) -> Periods:
    """Return when one of some holds at least.

    >>> str(either([Validity(None, b"2026-03-01_00:00:00"), Validity(b"2026-02-01_00:00:00", None)])[0])
    'always … forever'
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

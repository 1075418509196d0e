"""The patterns over atoms that tags contain: prefixes, globs, ranges, and intersections of them."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, TypeAlias

from penstock.codec.sexp import SExp, canonical
from penstock.errors import LimitError, MalformedError

# ----------------------------------------------------------------------------------------------------------------------
# Patterns with wildcards: `(* prefix s)` and our `(* glob p)`.
#
# Both are runs of literal bytes with a wildcard between them: `a*b*` has the parts `a`, `b` and the empty one. Two such
# patterns share an atom exactly if the first part of one begins with the first part of the other, and the last part of
# one ends with the last part of the other: write the longer first part, all the middle parts of both, and the longer
# last part. This is true pairwise for any number of patterns. Inclusion is a match of one against the other, with the
# other's wildcards as symbols that only a wildcard can match. It is exact if some byte does not occur in the including
# pattern, which `GLOB_BYTES` ensures.


#: the longest glob: at least one byte is a `*`, so at most 255 of 256 can occur
GLOB_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class Prefix:
    """Atoms that begin with `start`."""

    start: bytes


@dataclass(frozen=True, slots=True)
class Glob:
    """Atoms that a pattern with at least one `*` matches. Made by `make_glob`."""

    pattern: bytes
    parts: tuple[bytes, ...] = field(compare=False, repr=False)


def make_glob(pattern: bytes) -> Glob | bytes:
    """Return the pattern in normal form: runs of `*` are one, and without any it is the literal."""
    if b"*" not in pattern:
        return pattern
    while b"**" in pattern:
        pattern = pattern.replace(b"**", b"*")
    return Glob(pattern, tuple(pattern.split(b"*")))


def parts_of(pattern: Prefix | Glob) -> tuple[bytes, ...]:
    """Return the literal parts, with a wildcard between each two."""
    return pattern.parts if isinstance(pattern, Glob) else (pattern.start, b"")


def glob_matches(glob: Glob, atom: bytes) -> bool:
    """Return whether the pattern matches an atom, in time linear in the atom for each part."""
    parts = glob.parts
    first, last = parts[0], parts[-1]
    end = len(atom) - len(last)
    if len(first) > end or not atom.startswith(first) or not atom.endswith(last):
        return False
    position = len(first)
    for part in parts[1:-1]:
        position = atom.find(part, position, end)
        if position < 0:
            return False
        position += len(part)
    return True


def glob_includes(outer: tuple[bytes, ...], inner: tuple[bytes, ...]) -> bool:
    """Return whether `outer` matches every atom that `inner` matches. Both are given by their parts."""
    if not inner[0].startswith(outer[0]) or not inner[-1].endswith(outer[-1]):
        return False
    # The middle parts must be found in order, each whole inside one part of the inner pattern.
    index, position = 0, len(outer[0])
    last = len(inner) - 1
    for part in outer[1:-1]:
        while True:
            end = len(inner[index]) - (len(outer[-1]) if index == last else 0)
            found = inner[index].find(part, position, end)
            if found >= 0:
                position = found + len(part)
                break
            if index == last:
                return False
            index, position = index + 1, 0
    return True


def globs_disjoint(a: tuple[bytes, ...], b: tuple[bytes, ...]) -> bool:
    """Return whether no atom matches both patterns. Both are given by their parts."""
    return not ((a[0].startswith(b[0]) or b[0].startswith(a[0])) and (a[-1].endswith(b[-1]) or b[-1].endswith(a[-1])))


# ----------------------------------------------------------------------------------------------------------------------
# Ranges of atoms under the five orderings of RFC 2693: `(* range ORDERING [g|ge LOW] [l|le HIGH])`.
#
#     alpha     any bytes, compared byte by byte
#     binary    any bytes, as an unsigned big-endian number, so that leading zero bytes do not count
#     numeric   decimal digits with an optional sign and fraction, compared exactly
#     time      HH:MM:SS with an optional fraction
#     date      YYYY-MM-DD_HH:MM:SS with an optional fraction; cut short it means the first instant: 2005 is
#               2005-01-01_00:00:00
#
# An atom that is not a value of the ordering is in none of its ranges. The limits of a range keep the bytes they were
# written with.

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
    """Return the comparison key of an atom, or None if it is not a value of the ordering."""
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
    """Return the range in normal form: an atom if it contains exactly one known atom, None if it is empty.

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
    """Return whether there is no value from `floor` to `ceiling`."""
    if floor is None or ceiling is None:
        return False
    if floor[0] == ceiling[0]:
        return bool(floor[1]) or not ceiling[1]
    return bool(floor[0] > ceiling[0])


def within(floor: Place | None, ceiling: Place | None, outer_floor: Place | None, outer_ceiling: Place | None) -> bool:
    """Return whether one interval of an ordering is inside another."""
    return (outer_floor is None or (floor is not None and floor >= outer_floor)) and (
        outer_ceiling is None or (ceiling is not None and ceiling <= outer_ceiling)
    )


def in_range(range_: Range, atom: bytes) -> bool:
    """Return whether an atom is in a range."""
    place = key(range_.ordering, atom)
    if place is None:
        return False
    return (range_.floor is None or range_.floor <= (place, 0)) and (
        range_.ceiling is None or range_.ceiling >= (place, 1)
    )


def meet_ranges(a: Range, b: Range) -> Range | bytes | None:
    """Return the intersection of two ranges of one ordering, with the tighter limits; None if it is empty."""
    low = max((a, b), key=lambda r: (r.floor is not None, r.floor or (), r.low_open, _spelling(r.low)))
    high = min((a, b), key=lambda r: (r.ceiling is None, r.ceiling or (), r.high_open, _spelling(r.high)))
    return make_range(a.ordering, low.low, low.low_open, high.high, high.high_open)


def _spelling(limit: bytes | None) -> tuple[int, bytes]:
    """Order the spellings of one limit, so that the result does not depend on the order of the operands."""
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


# ----------------------------------------------------------------------------------------------------------------------
# Compare and intersect patterns of any kind. Intersections are in normal form.
#
# The intersection of two patterns is the narrower one if one includes the other, a range if both are ranges of one
# ordering, nothing if they are certainly disjoint, and otherwise `(* and …)` of both. So an `AllPatterns` can be empty
# without our knowing it (for example a glob and a numeric range). It then matches nothing.

#: patterns in one conjunction
AND_MEMBERS: Final = 64


@dataclass(frozen=True, slots=True)
class AllPatterns:
    """Atoms that all members match: two or more patterns. Of a few, none includes another."""

    members: frozenset[Prefix | Glob | Range]


Simple: TypeAlias = Prefix | Glob | Range
Pattern: TypeAlias = Simple | AllPatterns
PATTERN: Final = (Prefix, Glob, Range, AllPatterns)


def contains(pattern: Pattern, atom: bytes) -> bool:
    """Return whether a pattern matches an atom."""
    if isinstance(pattern, Glob):
        return glob_matches(pattern, atom)
    if isinstance(pattern, Prefix):
        return atom.startswith(pattern.start)
    if isinstance(pattern, Range):
        return in_range(pattern, atom)
    return all(contains(member, atom) for member in pattern.members)


def includes(outer: Pattern, inner: Pattern) -> bool:
    """Return whether `outer` matches every atom that `inner` matches.

    True is certain. False is certain for two prefixes or globs, two ranges of one ordering, a prefix and an alpha
    range. For other pairs False can mean that inclusion was not found.
    """
    if isinstance(outer, AllPatterns):
        return all(includes(member, inner) for member in outer.members)
    if isinstance(inner, AllPatterns):
        return any(includes(outer, member) for member in inner.members)
    if isinstance(outer, Range):
        if isinstance(inner, Range) and inner.ordering == outer.ordering:
            return within(inner.floor, inner.ceiling, outer.floor, outer.ceiling)
        if outer.ordering != b"alpha":
            return False
        # Of another ordering we only know that its values are bytes.
        floor, ceiling = _stretch(b"" if isinstance(inner, Range) else parts_of(inner)[0])
        return within(floor, ceiling, outer.floor, outer.ceiling)
    parts = parts_of(outer)
    if isinstance(inner, Range):
        if any(parts[1:]) or len(parts) > 2:
            return False
        floor, ceiling = _stretch(parts[0])
        if inner.ordering == b"alpha":
            return within(inner.floor, inner.ceiling, floor, ceiling)
        return floor is None
    return glob_includes(parts, parts_of(inner))


def meet_patterns(a: Pattern, b: Pattern) -> Pattern | bytes | None:
    """Return the intersection of two patterns in normal form, which can be an atom, or None if it is empty.

    Raises LimitError `tag.limit` above `AND_MEMBERS`.
    """
    if isinstance(a, AllPatterns) or isinstance(b, AllPatterns):
        return conjoin((a, b))
    return _closed(a, b)


def conjoin(patterns: Iterable[Pattern]) -> Pattern | bytes | None:
    """Return the intersection of all patterns in normal form, which can be an atom, or None if it is empty.

    Raises LimitError `tag.limit` above `AND_MEMBERS`.
    """
    pending: list[Simple] = []
    for pattern in patterns:
        pending.extend(pattern.members if isinstance(pattern, AllPatterns) else (pattern,))
    # A fixed order, so that the result does not depend on operand order or hashing. Last first, because pop takes the
    # last.
    pending.sort(key=spelled, reverse=True)
    kept: list[Simple] = []
    while pending:
        one = pending.pop()
        for index, other in enumerate(kept):
            closed = _closed(one, other)
            if closed is None:
                return None
            if isinstance(closed, bytes):
                return closed if all(contains(rest, closed) for rest in (*pending, *kept)) else None
            if not isinstance(closed, AllPatterns):
                del kept[index]
                pending.append(closed)
                break
        else:
            kept.append(one)
            check_members(kept)
    return kept[0] if len(kept) == 1 else AllPatterns(frozenset(kept))


def check_members(patterns: Collection[Simple]) -> None:
    """Check that patterns are not too many for one intersection. Raises LimitError `tag.limit`."""
    if len(patterns) > AND_MEMBERS:
        raise LimitError(
            "tag.limit",
            f"more than {AND_MEMBERS} patterns in one intersection",
            hint="grant fewer patterns in one certificate",
            limit=AND_MEMBERS,
        )


def form(pattern: Pattern) -> tuple[SExp, ...]:
    """Return a pattern as an S-expression."""
    if isinstance(pattern, Prefix):
        return (b"*", b"prefix", pattern.start)
    if isinstance(pattern, Glob):
        return (b"*", b"glob", pattern.pattern)
    if isinstance(pattern, AllPatterns):
        return (b"*", b"and", *sorted((form(member) for member in pattern.members), key=canonical))
    low = () if pattern.low is None else (b"g" if pattern.low_open else b"ge", pattern.low)
    high = () if pattern.high is None else (b"l" if pattern.high_open else b"le", pattern.high)
    return (b"*", b"range", pattern.ordering, *low, *high)


def spelled(pattern: Pattern) -> bytes:
    """Return the canonical bytes of a pattern, by which patterns are put in order."""
    return canonical(form(pattern))


def _closed(a: Simple, b: Simple) -> Pattern | bytes | None:
    if includes(a, b):
        # Each can include the other, as `(* prefix a)` and `(* glob a*)` do. Then the spelling decides.
        return min(a, b, key=spelled) if includes(b, a) else b
    if includes(b, a):
        return a
    if isinstance(a, Range) and isinstance(b, Range):
        return meet_ranges(a, b) if a.ordering == b.ordering else AllPatterns(frozenset((a, b)))
    return None if _disjoint(a, b) else AllPatterns(frozenset((a, b)))


def _disjoint(a: Simple, b: Simple) -> bool:
    if isinstance(b, Range):
        a, b = b, a
    if isinstance(b, Range):
        return False
    if isinstance(a, Range):
        if a.ordering != b"alpha":
            return False
        floor, ceiling = _stretch(parts_of(b)[0])
        return nothing_between(a.floor, ceiling) or nothing_between(floor, a.ceiling)
    return globs_disjoint(parts_of(a), parts_of(b))


def _stretch(prefix: bytes) -> tuple[Place | None, Place | None]:
    """Return the interval of the alpha ordering with all atoms that have a prefix."""
    stem = prefix.rstrip(b"\xff")
    ceiling = (stem[:-1] + bytes((stem[-1] + 1,)), 0) if stem else None
    return ((prefix, 0) if prefix else None), ceiling

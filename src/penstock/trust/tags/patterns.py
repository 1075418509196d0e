"""Patterns over atoms, of any kind, against each other: inclusion, and intersection kept in normal form.

What two patterns share is the narrower one where one includes the other, a range where both are ranges of one
ordering, nothing where that is certain, and otherwise `(* and …)` of both. So an `AllPatterns` may be empty without
being known to be (a glob and a numeric range, say); it then simply matches nothing.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock.codec.sexp import SExp, canonical
from penstock.errors import LimitError
from penstock.trust.tags.globs import Glob, Prefix, glob_includes, glob_matches, globs_disjoint, parts_of
from penstock.trust.tags.ranges import Place, Range, in_range, meet_ranges, nothing_between, within

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
    """Say whether a pattern matches an atom."""
    if isinstance(pattern, Glob):
        return glob_matches(pattern, atom)
    if isinstance(pattern, Prefix):
        return atom.startswith(pattern.octets)
    if isinstance(pattern, Range):
        return in_range(pattern, atom)
    return all(contains(member, atom) for member in pattern.members)


def includes(outer: Pattern, inner: Pattern) -> bool:
    """Say whether every atom of `inner` is one of `outer`.

    A yes is certain. A no is certain for two prefixes or globs, two ranges of one ordering, a prefix and an alpha
    range; elsewhere it may be a yes that was not found.
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
        # Of another ordering nothing is known but that its values are bytes.
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
    """Return what two patterns share, in normal form: an atom or None where it comes to that.

    Raises LimitError `tag.limit` above `AND_MEMBERS`.
    """
    if isinstance(a, AllPatterns) or isinstance(b, AllPatterns):
        return conjoin((a, b))
    return _closed(a, b)


def conjoin(patterns: Iterable[Pattern]) -> Pattern | bytes | None:
    """Return what all patterns share, in normal form: an atom or None where it comes to that.

    Raises LimitError `tag.limit` above `AND_MEMBERS`.
    """
    pending: list[Simple] = []
    for pattern in patterns:
        pending.extend(pattern.members if isinstance(pattern, AllPatterns) else (pattern,))
    # A fixed order, so that neither operand order nor hashing shows in the result; last first, as pop takes them.
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
        return (b"*", b"prefix", pattern.octets)
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
        # Each may include the other, as `(* prefix a)` and `(* glob a*)` do: the spelling decides.
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
    """Return the stretch of the alpha ordering that the atoms with a prefix fill."""
    stem = prefix.rstrip(b"\xff")
    ceiling = (stem[:-1] + bytes((stem[-1] + 1,)), 0) if stem else None
    return ((prefix, 0) if prefix else None), ceiling

"""Tags: what a certificate grants, as sets of requests that can be intersected (RFC 2693, 6.3 and our extensions).

A tag is the `x` of `(tag x)`. It stands for the set of requests that match it:

    atom                      that atom, with the same display hint
    (a b …)                   every list at least as long whose leading elements match: shorter is more general
    (*)                       everything
    (* set x …)               what any member matches
    (* prefix s)              atoms that begin with s
    (* range ORDERING …)      atoms between two limits, compared as alpha, binary, date, numeric or time
    (* glob p)                atoms that the pattern matches; each `*` in it stands for any run of bytes
    (* and x …)               atoms that all of these patterns match: an intersection without a closed form
    (* where conjunct …)      a predicate on the event; a request has `EVENT` in its place

The law: `matches(r, intersect(s, t))` exactly when `matches(r, s)` and `matches(r, t)`. Everything here is pure, and
nothing recurses deeper than `TAG_DEPTH`. Reading a tag takes time linear in its size.

A tag in memory is immutable, hashable, and in the normal form that `parse_tag` gives. Atoms and lists are themselves,
so that the common case costs a comparison of bytes. Star forms are small classes. Patterns over atoms are in
`tag_patterns`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal, TypeAlias, cast

from penstock.codec.sexp import Hinted, SExp, canonical, text
from penstock.errors import LimitError, MalformedError
from penstock.trust.limits import TAG_SET, TRUST_LIMITS, TrustLimits
from penstock.trust.tag_patterns import (
    GLOB_BYTES,
    PATTERN,
    AllPatterns,
    Glob,
    Pattern,
    Prefix,
    Range,
    Simple,
    check_members,
    conjoin,
    contains,
    form,
    includes,
    make_glob,
    make_range,
    meet_patterns,
)

Atom: TypeAlias = bytes | Hinted
ATOM: Final = (bytes, Hinted)
#: a list of nothing but atoms; most members of sets are, and they can be looked up instead of compared one by one
Flat: TypeAlias = tuple[Atom, ...]


class Everything(Enum):
    """The one value `ANY`, compared by identity."""

    ANY = "*"


ANY: Final = Everything.ANY

#: What a request holds in the place of a `(* where …)`. No other tag but `(*)` matches it, which is what keeps the
#: law: a predicate on the event shares nothing with a tag on the request.
EVENT: Final[SExp] = ()


@dataclass(frozen=True, slots=True)
class Set:
    """A union: two or more members, or no member (`NOTHING`). In a small set no member covers another."""

    atoms: frozenset[Atom]
    flats: frozenset[Flat]
    rest: frozenset["Tag"]
    #: the lengths that occur in `flats`
    lengths: tuple[int, ...] = field(compare=False, repr=False)

    def members(self) -> Iterator["Tag"]:
        """Iterate over all members, in no particular order."""
        yield from self.atoms
        yield from self.flats
        yield from self.rest


@dataclass(frozen=True, slots=True)
class Where:
    """A predicate on the event: all conjuncts hold. Each is `(is ID VALUE)` or `(sql TEXT (NAME ID) …)`."""

    conjuncts: frozenset[SExp]


Tag: TypeAlias = Atom | tuple["Tag", ...] | Literal[Everything.ANY] | Set | Pattern | Where

#: The tag that no request matches, as `parse_tag` returns it; `intersect` returns None instead.
NOTHING: Final = Set(frozenset(), frozenset(), frozenset(), ())


def is_flat(tag: tuple[Tag, ...]) -> bool:
    """Return whether a list has nothing but atoms."""
    return all(type(element) is bytes or type(element) is Hinted for element in tag)


# ----------------------------------------------------------------------------------------------------------------------
# Matching, intersection and coverage of tags.
#
# Lists are intersected place by place and sets member by member, so that sets in several places never multiply.
# Within sets, atoms and lists of atoms are looked up. Only the other members meet pairwise, and their number is bounded
# (`SET_COMPLEX`), as are the members of any result (`TrustLimits.tag_set`) and the steps of one question (`STEPS`).
#
# Members that another one covers are removed by comparing pairs. Reading does this for small sets only, so that it
# takes time linear in the input. A large set keeps such members, which does not change its meaning.

#: members of one set that are neither atoms nor lists of atoms
SET_COMPLEX: Final = 128
#: comparisons for one intersection of two tags, or one question about coverage
STEPS: Final = 100_000
#: the cost of intersecting two such members, in comparisons
PAIR_STEPS = 8

Holds = Callable[[SExp], bool]


class TagBudget:
    """The remaining bounds of one question: `steps` to take, and `tag_set` members in any one set.

    A question about many tags has one room for all of its intersections and comparisons.
    """

    __slots__ = ("steps", "tag_set")

    def __init__(self, tag_set: int = TAG_SET, steps: int = STEPS) -> None:
        self.steps = steps
        self.tag_set = tag_set

    def spend(self, steps: int) -> None:
        """Take steps. Raises LimitError `tag.limit` if none are left."""
        self.steps -= steps
        if self.steps < 0:
            raise _above("comparisons of members", STEPS)


def matches(request: SExp, tag: Tag, holds: Holds | None = None) -> bool:
    """Return whether a request matches a tag.

    `holds` says whether the event matches a conjunct of a `(* where …)`. Without it no such tag matches.
    What `holds` raises is passed on.

    >>> matches((b"foo", b"bar"), (b"foo",)), matches((b"foo",), (b"foo", b"bar"))
    (True, False)
    """
    if isinstance(tag, ATOM):
        return request == tag
    if isinstance(tag, tuple):
        return (
            isinstance(request, tuple)
            and len(request) >= len(tag)
            and all(matches(request[i], element, holds) for i, element in enumerate(tag))
        )
    if tag is ANY:
        return True
    if isinstance(tag, Set):
        if not isinstance(request, tuple):
            if request in tag.atoms:
                return True
        elif any(_start(request, length) in tag.flats for length in tag.lengths):
            return True
        return any(matches(request, member, holds) for member in tag.rest)
    if isinstance(tag, Where):
        return request == EVENT and holds is not None and all(holds(conjunct) for conjunct in tag.conjuncts)
    return isinstance(request, bytes) and contains(tag, request)


def intersect(a: Tag, b: Tag, *, limits: TrustLimits = TRUST_LIMITS, room: TagBudget | None = None) -> Tag | None:
    """Return the tag of the requests that match both tags, or None if there are none.

    None is certain; a tag that is returned may still match nothing where a `(* and …)` in it does. Raises LimitError
    `tag.limit` where the result, or the work for it, would be above its bound, or above what is left in `room`.

    >>> intersect((b"foo",), (b"foo", b"bar"))
    (b'foo', b'bar')
    """
    if a is b:
        return None if a == NOTHING else a
    if a is ANY or b is ANY:
        other = b if a is ANY else a
        return None if other == NOTHING else other
    return _meet(a, b, TagBudget(limits.tag_set) if room is None else room)


def covers(a: Tag, b: Tag, *, room: TagBudget | None = None) -> bool:
    """Return whether every request that matches `b` matches `a`.

    A yes is certain. A no is certain for atoms, lists, prefixes, globs, ranges of one ordering, and sets of them as
    far as single members cover (a list with sets in it is taken apart). It may be a yes that was not
    found where only several patterns together cover one, where `b` has an `(* and …)`, across kinds of patterns, and
    for selectors, whose text is opaque here. After `STEPS` comparisons, or where `room` has none left, the answer is
    no.
    """
    try:
        return _covers(a, b, TagBudget() if room is None else room)
    except LimitError:
        return False


def make_set(members: Iterable[Tag], room: TagBudget) -> Tag | None:
    """Return the union of tags: flat, without members twice or longer than a list of atoms that they begin with.

    None without any. This is linear in the size of the members. Raises LimitError `tag.limit` above `tag_set` members,
    or `SET_COMPLEX` that are not of atoms alone.
    """
    atoms: set[Atom] = set()
    flats: set[Flat] = set()
    complex_: set[Tag] = set()
    for member in members:
        if member is ANY:
            return ANY
        if isinstance(member, Set):
            atoms |= member.atoms
            flats |= member.flats
            complex_ |= member.rest
        elif isinstance(member, ATOM):
            atoms.add(member)
        elif isinstance(member, tuple) and is_flat(member):
            flats.add(cast("Flat", member))  # is_flat has just said so
        else:
            complex_.add(member)
    if len(complex_) > SET_COMPLEX:
        raise _above("members of a set that are not plain", SET_COMPLEX)
    total = len(atoms) + len(flats) + len(complex_)
    if total > room.tag_set:
        raise _above("members of a set", room.tag_set)
    if flats:
        beginnings = _beginnings(flats)
        flats = {flat for flat in flats if not _extends(beginnings, flat, len(flat) - 1)}
        complex_ = {
            member
            for member in complex_
            if not (isinstance(member, tuple) and _extends(beginnings, member, len(member)))
        }
    return _as_set(atoms, flats, complex_)


def _as_set(atoms: set[Atom], flats: set[Flat], rest: Collection[Tag]) -> Tag | None:
    """Return members as a set. A single member is returned as it is, and None if there is none."""
    if len(atoms) + len(flats) + len(rest) > 1:
        return Set(frozenset(atoms), frozenset(flats), frozenset(rest), tuple(sorted({len(flat) for flat in flats})))
    return next(iter((*atoms, *flats, *rest)), None)


def _beginnings(flats: set[Flat]) -> dict[Atom | None, Any]:
    """Return lists of atoms as a tree of their elements, with None at the end of a list."""
    root: dict[Atom | None, Any] = {}
    for flat in flats:
        place = root
        for atom in flat:
            place = place.setdefault(atom, {})
        place[None] = {}
    return root


def _extends(beginnings: dict[Atom | None, Any], member: tuple[Tag, ...], most: int) -> bool:
    """Return whether a list begins with one of the lists of atoms, which have at most `most` elements."""
    place = beginnings
    for element in member[:most]:
        # An element that is not an atom is not found there.
        found = place.get(cast("Atom", element))
        if found is None:
            return False
        if None in found:
            return True
        place = found
    return False


def _tidy(tag: Tag | None, room: TagBudget) -> Tag | None:
    """Return a set without members that another one covers. Raises LimitError `tag.limit` when `room` is used up."""
    if not isinstance(tag, Set) or not tag.rest:
        return tag
    rest = _widest(tag.rest, room)
    atoms = {atom for atom in tag.atoms if not any(_covers(member, atom, room) for member in rest)}
    flats = {flat for flat in tag.flats if not any(_covers(member, flat, room) for member in rest)}
    return _as_set(atoms, flats, rest)


def make_where(conjuncts: frozenset[SExp]) -> Where | None:
    """Return the conjunction; None if two conjuncts require different values of one attribute."""
    values: dict[SExp, SExp] = {}
    for conjunct in conjuncts:
        if isinstance(conjunct, tuple) and conjunct[0] == b"is":
            _, attribute, value = conjunct
            if values.setdefault(attribute, value) != value:
                return None
    return Where(conjuncts)


def to_sexp(tag: Tag) -> SExp:
    """Return a tag as an S-expression, sets in the order of their canonical bytes; `parse_tag` gives it back."""
    if isinstance(tag, ATOM):
        return tag
    if isinstance(tag, tuple):
        return tuple([to_sexp(element) for element in tag])
    if tag is ANY:
        return (b"*",)
    if isinstance(tag, Set):
        return (b"*", b"set", *sorted(map(to_sexp, tag.members()), key=canonical))
    if isinstance(tag, Where):
        return (b"*", b"where", *sorted(tag.conjuncts, key=canonical))
    return form(tag)


def _meet(a: Tag, b: Tag, room: TagBudget) -> Tag | None:
    """Intersect two tags. `room` bounds the work and the sets."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return _meet_lists(a, b, room)
    if a is ANY:
        return b
    if b is ANY:
        return a
    if isinstance(a, Set):
        return _meet_set(a, b, room)
    if isinstance(b, Set):
        return _meet_set(b, a, room)
    if isinstance(a, bytes):
        if isinstance(b, bytes):
            return a if a == b else None
        return a if isinstance(b, PATTERN) and contains(b, a) else None
    if isinstance(b, bytes):
        return b if isinstance(a, PATTERN) and contains(a, b) else None
    if isinstance(a, Where) and isinstance(b, Where):
        if a.conjuncts >= b.conjuncts:
            return a
        return make_where(a.conjuncts | b.conjuncts)
    if isinstance(a, PATTERN) and isinstance(b, PATTERN):
        return meet_patterns(a, b)
    return a if isinstance(a, Hinted) and a == b else None


def _meet_lists(a: tuple[Tag, ...], b: tuple[Tag, ...], room: TagBudget) -> tuple[Tag, ...] | None:
    shared: list[Tag] = []
    for x, y in zip(a, b, strict=False):
        # The cases that make up nearly all of a chain first: equal atoms, and `(*)` on one side.
        if x is y or y is ANY:
            shared.append(x)
        elif x is ANY:
            shared.append(y)
        elif type(x) is bytes and type(y) is bytes:
            if x != y:
                return None
            shared.append(x)
        else:
            both = _meet(x, y, room)
            if both is None:
                return None
            shared.append(both)
    # The shorter list leaves the places behind its end open.
    longer = a if len(a) > len(b) else b
    return (*shared, *longer[len(shared) :])


def _meet_set(a: Set, b: Tag, room: TagBudget) -> Tag | None:
    if isinstance(b, ATOM):
        return b if b in a.atoms or any(_covers(member, b, room) for member in a.rest) else None
    if not isinstance(b, Set):
        flat = isinstance(b, tuple) and is_flat(b)
        alone = frozenset((b,))
        # Only lists of atoms are `flat`.
        flats, rest = (cast("frozenset[Flat]", alone), frozenset[Tag]()) if flat else (frozenset[Flat](), alone)
        b = Set(frozenset(), flats, rest, tuple(len(member) for member in flats))
    elif not a.rest and not b.rest and a.lengths == b.lengths and len(a.lengths) < 2:
        return _meet_plain(a, b)
    found: list[Tag] = list(a.atoms & b.atoms)
    for one, other in ((a, b), (b, a)):
        found.extend(member for member in one.flats if any(_start(member, n) in other.flats for n in other.lengths))
        for member in one.rest:
            plain: frozenset[Tag] = other.flats if isinstance(member, tuple) else other.atoms
            room.spend(PAIR_STEPS * len(plain))
            found.extend(both for simple in plain if (both := _meet(member, simple, room)) is not None)
    room.spend(PAIR_STEPS * len(a.rest) * len(b.rest))
    found.extend(both for x in a.rest for y in b.rest if (both := _meet(x, y, room)) is not None)
    return _tidy(make_set(found, room), room)


def _meet_plain(a: Set, b: Set) -> Tag | None:
    """Intersect two sets of atoms and lists of atoms of one length: what they share, they share as it is."""
    atoms, flats = a.atoms & b.atoms, a.flats & b.flats
    total = len(atoms) + len(flats)
    if total > 1:
        if total == len(a.atoms) + len(a.flats):
            return a
        return Set(atoms, flats, frozenset(), a.lengths if flats else ())
    return next(iter((*atoms, *flats)), None)


def _covers(a: Tag, b: Tag, room: TagBudget) -> bool:
    room.spend(1)
    if a is ANY or a == b:
        return True
    if isinstance(b, Set):
        return all(_covers(a, member, room) for member in b.members())
    if isinstance(a, tuple):
        return (
            isinstance(b, tuple) and len(b) >= len(a) and all(_covers(x, y, room) for x, y in zip(a, b, strict=False))
        )
    if isinstance(a, Set):
        return _set_covers(a, b, room)
    if isinstance(a, Where):
        return isinstance(b, Where) and a.conjuncts <= b.conjuncts
    if isinstance(a, ATOM):
        return False
    if isinstance(b, bytes):
        return contains(a, b)
    return isinstance(b, PATTERN) and includes(a, b)


def _set_covers(a: Set, b: Tag, room: TagBudget) -> bool:
    if isinstance(b, ATOM) and b in a.atoms:
        return True
    if isinstance(b, tuple) and any(_start(b, length) in a.flats for length in a.lengths):
        return True
    if any(_covers(member, b, room) for member in a.rest):
        return True
    if isinstance(b, tuple):
        # No member covers the whole list; perhaps several do, each for some members of a set in it.
        for place, element in enumerate(b):
            if isinstance(element, Set):
                apart = [(*b[:place], member, *b[place + 1 :]) for member in element.members()]
                return all(_covers(a, list_, room) for list_ in apart)
    return False


def tidy_if_cheap(tag: Tag, room: TagBudget) -> Tag:
    """Drop members of a set that another one covers, where `room` is enough for that; return it as it is elsewhere."""
    if not isinstance(tag, Set) or len(tag.rest) * (len(tag.rest) + len(tag.atoms) + len(tag.flats)) > room.steps:
        return tag
    try:
        return _tidy(tag, room) or tag
    except LimitError:
        room.steps = 0
        return tag


def _widest(members: frozenset[Tag], room: TagBudget) -> list[Tag]:
    """Drop members that another one covers."""
    kept: list[Tag] = []
    # Of two that cover each other the first in this order stays, whatever order they came in.
    for member in sorted(members, key=lambda tag: canonical(to_sexp(tag))):
        if not any(_covers(other, member, room) for other in kept):
            kept = [other for other in kept if not _covers(member, other, room)]
            kept.append(member)
    return kept


def _start(value: tuple[SExp, ...] | tuple[Tag, ...], length: int) -> Flat:
    """Return the beginning of a list, to be looked up among lists of atoms."""
    # A list that is not of atoms alone is simply not found there.
    return cast("Flat", value[:length]) if length <= len(value) else ()


def _above(what: str, limit: int) -> LimitError:
    return LimitError("tag.limit", f"more than {limit} {what}", hint="grant less in one certificate", limit=limit)


# ----------------------------------------------------------------------------------------------------------------------
# Read the S-expression of a tag into its normal form.

#: nesting of a tag
TAG_DEPTH: Final = 32
#: comparisons that each element that is read makes room for: reading takes time linear in what is read
ELEMENT_STEPS: Final = 4


def parse_tag(sexp: SExp, *, limits: TrustLimits = TRUST_LIMITS) -> Tag:
    """Read the body of a tag, the `x` of `(tag x)`, into its normal form, in time linear in its size.

    A tag that no request can match becomes `NOTHING`. Raises MalformedError `tag.unknown-form` for a `*` form that
    is not known, `tag.malformed` for a wrong shape, `tag.range` for a wrong ordering or limit, `sexp.text` where
    text is not UTF-8, and LimitError `tag.limit` above `TAG_DEPTH`, `GLOB_BYTES` or `limits.tag_set`.

    >>> parse_tag((b"foo", (b"*", b"set", b"bar")))
    (b'foo', b'bar')
    """
    return _parse(sexp, TagBudget(limits.tag_set, steps=0), TAG_DEPTH)


def _parse(sexp: SExp, room: TagBudget, depth: int) -> Tag:
    if isinstance(sexp, ATOM):
        return sexp
    if depth == 0:
        raise LimitError(
            "tag.limit", f"more than {TAG_DEPTH} lists inside each other", hint="nest less", limit=TAG_DEPTH
        )
    room.steps += ELEMENT_STEPS * len(sexp)
    # RFC 2693, 6.3.2: a list begins with an byte string, which says what the rest is about.
    if not sexp or not isinstance(sexp[0], bytes):
        raise _malformed("a list in a tag must begin with an atom")
    if sexp[0] != b"*":
        elements = tuple([_parse(element, room, depth - 1) for element in sexp])
        return NOTHING if any(element is NOTHING for element in elements) else elements
    if len(sexp) == 1:
        return ANY
    name = sexp[1]
    if name == b"set":
        members = make_set((_parse(member, room, depth - 1) for member in sexp[2:]), room)
        return NOTHING if members is None else tidy_if_cheap(members, room)
    if name == b"and":
        shared = _and(sexp[2:], room)
        return NOTHING if shared is None else shared
    read = _FORMS.get(name) if isinstance(name, bytes) else None
    if read is None:
        shown = name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else "(…)"
        raise MalformedError(
            "tag.unknown-form",
            f"unknown form `(* {shown} …)` in a tag",
            hint="known are (*), set, prefix, range, glob, and, where",
            form=shown,
        )
    tag = read(sexp[2:])
    return NOTHING if tag is None else tag


def _prefix(rest: tuple[SExp, ...]) -> Prefix:
    return Prefix(_single(rest, "prefix"))


def _glob(rest: tuple[SExp, ...]) -> Glob | bytes:
    pattern = _single(rest, "glob")
    if len(pattern) > GLOB_BYTES:
        raise LimitError(
            "tag.limit", f"a pattern of more than {GLOB_BYTES} bytes", hint="write a prefix", limit=GLOB_BYTES
        )
    return make_glob(pattern)


def _range(rest: tuple[SExp, ...]) -> Range | bytes | None:
    words = [word for word in rest if isinstance(word, bytes)]
    if len(words) != len(rest) or len(words) not in (1, 3, 5):
        raise _malformed("a range is `(* range ORDERING [g|ge LOW] [l|le HIGH])`")
    low = high = None
    low_open = high_open = False
    limits = words[1:]
    if limits and limits[0] in (b"g", b"ge"):
        low, low_open = limits[1], limits[0] == b"g"
        limits = limits[2:]
    if limits and limits[0] in (b"l", b"le"):
        high, high_open = limits[1], limits[0] == b"l"
        limits = limits[2:]
    if limits:
        raise _malformed("a range has at most one lower limit (g, ge) and then at most one upper limit (l, le)")
    return make_range(words[0], low, low_open, high, high_open)


def _and(rest: tuple[SExp, ...], room: TagBudget) -> Pattern | bytes | None:
    if not rest:
        raise _malformed("`(* and)` needs at least one pattern")
    atom: bytes | None = None
    patterns: list[Simple] = []
    empty = False
    for member in rest:
        # The normal form is flat: it has no `and` inside an `and`.
        name = member[1] if isinstance(member, tuple) and len(member) > 1 and member[0] == b"*" else None
        read = _PATTERNS.get(name) if isinstance(name, bytes) else None
        if read is None or not isinstance(member, tuple):
            raise _malformed("members of `(* and …)` are prefix, range and glob forms")
        pattern = read(member[2:])
        if isinstance(pattern, bytes):
            empty = empty or (atom is not None and atom != pattern)
            atom = pattern
        elif pattern is None:
            empty = True
        else:
            patterns.append(pattern)
    if empty:
        return None
    if atom is not None:
        return atom if all(contains(pattern, atom) for pattern in patterns) else None
    different = frozenset(patterns)
    if len(different) ** 2 <= room.steps or len(different) == 1:
        room.steps -= len(different) ** 2
        return conjoin(different)
    # So many are not compared in pairs: they mean the same as they are.
    check_members(different)
    return AllPatterns(different)


def _where(rest: tuple[SExp, ...]) -> Where | None:
    # An empty conjunction would match everything: write `(*)` for that.
    if not rest:
        raise _malformed("`(* where)` needs at least one conjunct")
    return make_where(frozenset(_conjunct(conjunct) for conjunct in rest))


def _conjunct(conjunct: SExp) -> SExp:
    if isinstance(conjunct, tuple) and conjunct:
        if conjunct[0] == b"is" and len(conjunct) == 3 and all(_is_list(part) for part in conjunct[1:]):
            return conjunct
        if conjunct[0] == b"sql" and len(conjunct) >= 2:
            text(conjunct[1])
            names: dict[str, SExp] = {}
            for binding in conjunct[2:]:
                if not isinstance(binding, tuple) or len(binding) != 2 or not _is_list(binding[1]):
                    break
                names[text(binding[0])] = binding
            # Sorted by name, so that the order in which names were bound makes no second predicate.
            if len(names) == len(conjunct) - 2:
                return (b"sql", conjunct[1], *(names[name] for name in sorted(names)))
    raise _malformed("a conjunct is `(is ID VALUE)` or `(sql TEXT (NAME ID) …)`, each NAME once, ID and VALUE lists")


def _is_list(value: SExp) -> bool:
    return isinstance(value, tuple) and len(value) > 0


def _single(rest: tuple[SExp, ...], form: str) -> bytes:
    if len(rest) != 1 or not isinstance(rest[0], bytes):
        raise _malformed(f"`(* {form} …)` takes exactly one atom, without a display hint")
    return rest[0]


def _malformed(message: str) -> MalformedError:
    return MalformedError("tag.malformed", message, hint="see docs/reference/sexp-and-tags.md")


_PATTERNS: Final[dict[bytes, Callable[[tuple[SExp, ...]], Simple | bytes | None]]] = {
    b"prefix": _prefix,
    b"range": _range,
    b"glob": _glob,
}
_FORMS: Final[dict[bytes, Callable[[tuple[SExp, ...]], Simple | bytes | Where | None]]] = {
    **_PATTERNS,
    b"where": _where,
}

"""From the S-expression of a tag to its normal form."""

from collections.abc import Callable
from typing import Final

from penstock.codec.sexp import SExp, text
from penstock.errors import LimitError, MalformedError
from penstock.trust.limits import TRUST_LIMITS, TrustLimits
from penstock.trust.tags.algebra import TagBudget, make_set, make_where, tidy_if_cheap
from penstock.trust.tags.globs import GLOB_BYTES, Glob, Prefix, make_glob
from penstock.trust.tags.patterns import AllPatterns, Pattern, Simple, check_members, conjoin, contains
from penstock.trust.tags.ranges import Range, make_range
from penstock.trust.tags.values import ANY, ATOM, NOTHING, Tag, Where

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
        # An `and` inside an `and` is written by nobody: the normal form is flat.
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

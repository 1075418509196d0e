"""The naive model of tags: what each form means, said once more on plain S-expressions, and random ones to try."""

import re
from decimal import Decimal
from itertools import product

from hypothesis import strategies as st

from penstock.codec.sexp import Hinted, SExp
from penstock.trust.tags import EVENT

#: what is true for the only event of the model
ATTRIBUTES: dict[SExp, SExp] = {(b"attr", b"0"): (b"string", b"x"), (b"attr", b"1"): (b"int", b"7")}
SELECTORS = {b"true": True, b"false": False}


def holds(conjunct: SExp) -> bool:
    assert isinstance(conjunct, tuple)
    if conjunct[0] == b"is":
        return ATTRIBUTES[conjunct[1]] == conjunct[2]
    text = conjunct[1]
    assert isinstance(text, bytes)
    return SELECTORS[text]


def naive(request: SExp, tag: SExp) -> bool:
    """Say whether a request matches the S-expression of a tag, by the meaning of each form alone."""
    if not isinstance(tag, tuple):
        return request == tag
    if tag[0] != b"*":
        return (
            isinstance(request, tuple)
            and len(request) >= len(tag)
            and all(naive(r, t) for r, t in zip(request, tag, strict=False))
        )
    if len(tag) == 1:
        return True
    form, rest = tag[1], tag[2:]
    if form == b"set":
        return any(naive(request, member) for member in rest)
    if form == b"where":
        return request == EVENT and all(holds(conjunct) for conjunct in rest)
    if not isinstance(request, bytes):
        return False
    if form == b"and":
        return all(naive(request, member) for member in rest)
    words = [word for word in rest if isinstance(word, bytes)]
    if form == b"prefix":
        return request[: len(words[0])] == words[0]
    if form == b"glob":
        pattern = b".*".join(re.escape(part) for part in words[0].split(b"*"))
        return re.fullmatch(pattern, request, re.DOTALL) is not None
    assert form == b"range"
    return naive_range(request, words)


def naive_range(request: bytes, words: list[bytes]) -> bool:
    ordering, limits = words[0], words[1:]
    value = naive_value(ordering, request)
    if value is None:
        return False
    for comparison, limit in zip(limits[::2], limits[1::2], strict=True):
        bound = naive_value(ordering, limit)
        assert bound is not None
        if not {
            b"g": value > bound,
            b"ge": value >= bound,
            b"l": value < bound,
            b"le": value <= bound,
        }[comparison]:
            return False
    return True


def naive_value(ordering: bytes, atom: bytes) -> tuple[object, ...] | None:
    if ordering == b"alpha":
        return tuple(atom)
    if ordering == b"binary":
        stripped = atom.lstrip(b"\0")
        return (len(stripped), *stripped)
    if ordering == b"numeric":
        return (Decimal(atom.decode()),) if re.fullmatch(rb"[+-]?\d+(\.\d+)?", atom) else None
    if ordering == b"time":
        match = re.fullmatch(rb"(\d\d):(\d\d):(\d\d)(\.\d+)?", atom)
        return tuple(Decimal((part or b"0").decode()) for part in match.groups()) if match else None
    match = re.fullmatch(rb"(\d{4})(?:-(\d\d))?(?:-(\d\d))?(?:_(\d\d))?(?::(\d\d))?(?::(\d\d)(\.\d+)?)?", atom)
    if match is None:
        return None
    default = (b"0", b"1", b"1", b"0", b"0", b"0", b"0")
    return tuple(Decimal((part or other).decode()) for part, other in zip(match.groups(), default, strict=True))


VALUES: dict[bytes, list[bytes]] = {
    b"alpha": [b"", b"a", b"aa", b"aab", b"ab", b"a\0", b"b", b"\xff"],
    b"binary": [b"", b"\0", b"a", b"\0a", b"b", b"aa", b"\xff"],
    b"numeric": [b"1", b"01", b"1.0", b"1.5", b"-2", b"10", b"+3"],
    b"time": [b"08:00:00", b"08:00:00.5", b"23:59:59"],
    b"date": [b"2005", b"2005-01-01", b"2005-11", b"2005-11-01_08", b"2005-11-01_08:30:00.25"],
}
ATOMS: list[bytes] = sorted({atom for values in VALUES.values() for atom in values} | {b"ba", b"abab", b"baa", b"*"})
HINTED = Hinted(b"text", b"a")

_elements: list[SExp] = [b"", b"a", b"ab", b"aab", b"b", b"1.0", b"1.5", b"2005-11", HINTED, EVENT, (b"f", b"a")]
#: all requests of the model: every atom, and lists of up to three elements
REQUESTS: list[SExp] = [
    *ATOMS,
    HINTED,
    EVENT,
    (b"*",),
    *((head,) for head in (b"f", b"g")),
    *((head, one) for head, one in product((b"f", b"g"), _elements)),
    *((b"f", one, two) for one, two in product(_elements, repeat=2)),
    (b"f", (b"f", b"a", EVENT), b"a"),
    (b"f", (b"g", b"ab"), b"a"),
    (b"f", b"a", (b"f", b"a", b"b"), b"b"),
]

small = st.sampled_from([b"a", b"b", b"aa", b"ab", b"ba", b"aab"])
prefixes = st.sampled_from([b"", b"a", b"ab", b"b", b"a\xff", b"\xff", b"1"]).map(lambda s: (b"*", b"prefix", s))
globs = st.text(alphabet="ab*", max_size=5).map(lambda text: (b"*", b"glob", text.encode()))


@st.composite
def ranges(draw: st.DrawFn, ordering: bytes | None = None) -> tuple[SExp, ...]:
    ordering = ordering or draw(st.sampled_from(sorted(VALUES)))
    limit = st.sampled_from(VALUES[ordering])
    low = draw(st.just(()) | st.tuples(st.sampled_from([b"g", b"ge"]), limit))
    high = draw(st.just(()) | st.tuples(st.sampled_from([b"l", b"le"]), limit))
    return (b"*", b"range", ordering, *low, *high)


conjuncts = st.sampled_from(
    [
        (b"is", (b"attr", b"0"), (b"string", b"x")),
        (b"is", (b"attr", b"0"), (b"string", b"y")),
        (b"is", (b"attr", b"1"), (b"int", b"7")),
        (b"sql", b"true", (b"p", (b"attr", b"0"))),
        (b"sql", b"false"),
    ]
)
wheres = st.lists(conjuncts, min_size=1, max_size=3).map(lambda items: (b"*", b"where", *items))
simple = prefixes | globs | ranges()
ands = st.lists(simple, min_size=1, max_size=4).map(lambda items: (b"*", b"and", *items))
literals: st.SearchStrategy[SExp] = st.sampled_from([*ATOMS, HINTED])
everything: st.SearchStrategy[SExp] = st.just((b"*",))
leaves: st.SearchStrategy[SExp] = st.one_of(literals, everything, simple, simple, ands, wheres)


def _wider(inner: st.SearchStrategy[SExp]) -> st.SearchStrategy[SExp]:
    lists = st.tuples(st.sampled_from([b"f", b"f", b"g"]), st.lists(inner, max_size=3)).map(
        lambda pair: (pair[0], *pair[1])
    )
    sets = st.lists(inner, max_size=4).map(lambda items: (b"*", b"set", *items))
    return lists | lists | sets


#: S-expressions of tags; the lists and atoms of the model overlap often
tags: st.SearchStrategy[SExp] = st.recursive(leaves, _wider, max_leaves=10)
lists_of_tags: st.SearchStrategy[SExp] = st.lists(tags, max_size=3).map(lambda items: (b"f", *items))

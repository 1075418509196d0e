"""Tags by examples: those of RFC 2693, of Penstock's vocabulary, and what is refused."""

import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.trust.tags_model import naive

from penstock.codec.sexp import SExp, canonical, field, parse, parse_canonical
from penstock.errors import LimitError, MalformedError
from penstock.trust.limits import TrustLimits
from penstock.trust.tags import ANY, EVENT, NOTHING, Set, Where, covers, intersect, matches, parse_tag, to_sexp

OWNER = "ed25519:" + "a" * 52
PLATE = f"{OWNER} uk.gov.pito.Numberplate"
DETECTIVE = (
    f'(event-type {PLATE} (*) subscribe (* set (attr {PLATE} "0") (attr {PLATE} "1"))'
    f' (* where (is (attr {PLATE} "0") (string "AE05 XYZ"))))'
)

#: a tag, another, and what both grant, "" where that is nothing
MEETINGS = [
    ("(foo)", "(foo)", "(foo)"),
    ("(foo)", "(foo bar)", "(foo bar)"),
    ("(foo bar)", "(foo bla)", ""),
    ("(foo (*))", "(foo)", "(foo (*))"),
    ("(foo (*))", "(foo bar)", "(foo bar)"),
    ("(foo)", "(foo (* prefix ba))", "(foo (* prefix ba))"),
    ("(foo bar)", "(foo (* prefix ba))", "(foo bar)"),
    ("(foo bar)", "(foo (* prefix bar))", "(foo bar)"),
    ("(foo bar)", "(foo (* prefix barmore))", ""),
    ("(foo (* set b1 b2 b3 bar more stuff))", "(foo bar)", "(foo bar)"),
    ("(foo (* set b1 b2 bar))", "(foo (* set bar b2 x))", "(foo (* set b2 bar))"),
    ("(foo (* set b1 b2))", "(foo (* set b3 b4))", ""),
    ("(* set (foo a) (bar b))", "(foo)", "(foo a)"),
    ("(* set (foo a) (foo b c) bar)", "(* set (foo) bar)", "(* set (foo a) (foo b c) bar)"),
    ("(* set (foo a) (foo b))", "(* set (foo a x) (foo b y) (foo c))", "(* set (foo a x) (foo b y))"),
    ("(* prefix a)", "(* set ab ba (* prefix ac))", "(* set (* prefix ac) ab)"),
    ("(foo [hint]bar)", "(foo bar)", ""),
    ("(foo [hint]bar)", "(foo (* set bar [hint]bar))", "(foo [hint]bar)"),
    ("(foo [hint]bar)", "(foo (* prefix ba))", ""),
    ('(* range numeric ge "1" le "10")', '(* range numeric g "5")', '(* range numeric g "5" le "10")'),
    ('(* range numeric ge "1")', '(* range alpha ge "2")', '(* and (* range alpha ge "2") (* range numeric ge "1"))'),
    ('(* and (* range alpha ge "2") (* range numeric ge "1"))', '"3"', '"3"'),
    ('(* and (* range alpha ge "2") (* range numeric ge "1"))', '"11"', ""),
    ('(* and (* glob "*a") (* glob "b*"))', "(* set ba bab b-a)", "(* set ba b-a)"),
    ("(* where (is (a) (v)))", "(* where (is (b) (w)))", "(* where (is (a) (v)) (is (b) (w)))"),
    ("(* where (is (a) (v)))", "(* where (is (a) (w)))", ""),
    ("(* where (is (a) (v)))", "(* where (sql x) (is (a) (v)))", "(* where (is (a) (v)) (sql x))"),
    ("(* where (is (a) (v)))", "(*)", "(* where (is (a) (v)))"),
    ("(* where (is (a) (v)))", "foo", ""),
    ("(* where (is (a) (v)))", "(foo)", ""),
    ("(* where (is (a) (v)))", "(* glob *)", ""),
    (
        f"(event-type {OWNER} (* glob uk.gov.pito.*) (*) (* set publish subscribe))",
        DETECTIVE,
        DETECTIVE,
    ),
]

#: what is written, and its normal form
NORMAL = [
    ("(* set a)", "a"),
    ("(* set)", "(* set)"),
    ("(foo (* set) bar)", "(* set)"),
    ("(* set b (* set a b) a)", "(* set a b)"),
    ("(* set (*) a)", "(*)"),
    ("(* set (foo bar) (foo))", "(foo)"),
    ("(* set (foo (* prefix b)) (foo bar) (foo a))", "(* set (foo (* prefix b)) (foo a))"),
    ("(* set ab (* prefix a) (* prefix ab) (* glob a*))", "(* glob a*)"),
    ("(* glob abc)", "abc"),
    ("(* glob a**b***)", "(* glob a*b*)"),
    ("(* glob *)", "(* glob *)"),
    ("(* and (* glob *) (* prefix a))", "(* prefix a)"),
    ("(* and (* glob a*) (* glob b*))", "(* set)"),
    ("(* and (* glob abc) (* prefix a))", "abc"),
    ('(* range numeric ge "5" le "3")', "(* set)"),
    ("(* range alpha ge x le x)", "x"),
    ("(* where (sql q (b (x)) (a (y))) (sql q (a (y)) (b (x))))", "(* where (sql q (a (y)) (b (x))))"),
    ("(* where (is (a) (v)) (is (a) (w)))", "(* set)"),
]

REFUSED = [
    ("()", "tag.malformed"),
    ("((foo) bar)", "tag.malformed"),
    ("([hint]foo bar)", "tag.malformed"),
    ("(foo ())", "tag.malformed"),
    ("(* prefix)", "tag.malformed"),
    ("(* prefix a b)", "tag.malformed"),
    ("(* prefix (a))", "tag.malformed"),
    ("(* prefix [hint]a)", "tag.malformed"),
    ("(* glob)", "tag.malformed"),
    ("(* range)", "tag.malformed"),
    ("(* range alpha ge)", "tag.malformed"),
    ("(* range alpha ge (a))", "tag.malformed"),
    ("(* range alpha xx a)", "tag.malformed"),
    ("(* range alpha le a ge b)", "tag.malformed"),
    ("(* range alpha ge a ge b)", "tag.malformed"),
    ("(* range alpha ge a le b l c)", "tag.malformed"),
    ("(* range wrong)", "tag.range"),
    ("(* range numeric ge x)", "tag.range"),
    ('(* range time ge "08:00")', "tag.range"),
    ('(* range date ge "2005-02-30")', "tag.range"),
    ("(* and)", "tag.malformed"),
    ("(* and a)", "tag.malformed"),
    ("(* and (*))", "tag.malformed"),
    ("(* and (foo))", "tag.malformed"),
    ("(* and (* set a b))", "tag.malformed"),
    ("(* where)", "tag.malformed"),
    ("(* where a)", "tag.malformed"),
    ("(* where ())", "tag.malformed"),
    ("(* where (is (a)))", "tag.malformed"),
    ("(* where (is a (v)))", "tag.malformed"),
    ("(* where (is (a) v))", "tag.malformed"),
    ("(* where (is (a) ()))", "tag.malformed"),
    ("(* where (sql))", "tag.malformed"),
    ("(* where (sql q a))", "tag.malformed"),
    ("(* where (sql q (a (x)) (a (y))))", "tag.malformed"),
    ("(* where (sql #ff#))", "sexp.text"),
    ("(* where (other (a) (v)))", "tag.malformed"),
    ("(* numeric range)", "tag.unknown-form"),
    ("(* suffix a)", "tag.unknown-form"),
    ("(* (set) a)", "tag.unknown-form"),
    ("(foo (bar (* new)))", "tag.unknown-form"),
]


def read(text: str) -> SExp:
    return parse(text.encode())


@pytest.mark.parametrize(("a", "b", "both"), MEETINGS)
def test_what_two_tags_grant(a: str, b: str, both: str) -> None:
    s, t = parse_tag(read(a)), parse_tag(read(b))
    expected = canonical(read(both)) if both else None
    for found in (intersect(s, t), intersect(t, s)):
        assert (None if found is None else canonical(to_sexp(found))) == expected


@pytest.mark.parametrize(("written", "normal"), NORMAL)
def test_normal_form(written: str, normal: str) -> None:
    assert canonical(to_sexp(parse_tag(read(written)))) == canonical(read(normal))


@pytest.mark.parametrize(("written", "code"), REFUSED)
def test_what_is_refused(written: str, code: str) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_tag(read(written))
    assert caught.value.code == code
    assert caught.value.hint


def test_matching() -> None:
    tag = parse_tag(read("(event-type owner (* glob uk.*.Plate) (*) (* set publish subscribe))"))
    assert matches(read("(event-type owner uk.gov.Plate 1:0 subscribe extra)"), tag)
    assert not matches(read("(event-type owner uk.gov.Plate 1:0 manage)"), tag)
    assert not matches(read("(event-type owner uk.gov.Plate 1:0)"), tag)
    assert not matches(read("(event-type owner (uk.gov.Plate) 1:0 publish)"), tag)
    assert not matches(read("(event-type)"), NOTHING)


def test_a_predicate_asks_for_evidence() -> None:
    conjunct = read("(is (attr a) (string x))")
    tag = parse_tag((b"t", (b"*", b"where", conjunct, (b"sql", b"speed > 30"))))
    assert isinstance(tag, tuple)
    assert isinstance(tag[1], Where)
    asked: list[SExp] = []

    def holds(one: SExp) -> bool:
        asked.append(one)
        return True

    assert matches((b"t", EVENT), tag, holds)
    assert sorted(asked, key=canonical) == [conjunct, (b"sql", b"speed > 30")]
    assert not matches((b"t", EVENT), tag)
    assert not matches((b"t", EVENT), tag, lambda one: one == conjunct)
    assert not matches((b"t",), tag, holds)
    assert not matches((b"t", b"x"), tag, holds)


def test_covers() -> None:
    def does(a: str, b: str) -> bool:
        return covers(parse_tag(read(a)), parse_tag(read(b)))

    assert does("(foo)", "(foo bar)")
    assert not does("(foo bar)", "(foo)")
    assert not does("(foo (*))", "(foo)")
    assert does("(foo (* prefix b))", "(foo (* set bar b))")
    assert not does("(foo (* prefix b))", "(foo (* set bar a))")
    assert does("(* set (foo a) (foo b))", "(foo (* set a b))")
    assert does("(* set (foo a (*)) (foo b (*)))", "(foo (* set a b) (* set c d))")
    assert not does("(* set (foo a) (foo b))", "(foo (* set a b c))")
    assert does('(* range numeric ge "1")', '(* range numeric g "1.0" l "2")')
    assert does("(* where (is (a) (v)))", "(* where (is (a) (v)) (sql x))")
    assert not does("(* where (is (a) (v)) (sql x))", "(* where (is (a) (v)))")
    assert does("(* prefix a)", "(* and (* glob ab*) (* glob *b))")


def test_limits() -> None:
    def refused(tag: SExp, limits: TrustLimits | None = None) -> None:
        with pytest.raises(LimitError) as caught:
            parse_tag(tag, limits=limits or TrustLimits())
        assert caught.value.code == "tag.limit"

    members = tuple(b"%d" % i for i in range(4_096))
    assert parse_tag((b"*", b"set", *members))
    refused((b"*", b"set", *members, b"x"))
    refused((b"*", b"set", b"a", b"b"), TrustLimits(tag_set=1))
    refused((b"*", b"glob", b"*" + b"a" * 256))
    refused((b"*", b"set", *((b"f", (b"*", b"prefix", member)) for member in members[:129])))
    refused((b"*", b"set", *members[:4000], *((b"f", (b"*", b"prefix", member)) for member in members[:100])))
    refused((b"*", b"and", *((b"*", b"glob", b"*%b*" % member) for member in (b"x%dx" % i for i in range(65)))))
    deep: SExp = b"a"
    for _ in range(32):
        deep = (b"f", deep)
    assert parse_tag(deep)
    for _ in range(100_000):
        deep = (b"f", deep)
    refused(deep)


def test_intersections_do_not_grow_without_bound() -> None:
    def stars(letter: bytes) -> SExp:
        return (b"*", b"set", *((b"f", (b"*", b"glob", b"*%b%d%b*" % (letter, i, letter))) for i in range(100)))

    with pytest.raises(LimitError) as caught:
        intersect(parse_tag(stars(b"x")), parse_tag(stars(b"y")))
    assert caught.value.code == "tag.limit"
    # Sets in several places stay in their places: nothing multiplies.
    wide = parse_tag((b"f", *([(b"*", b"set", *(b"%d" % i for i in range(100)))] * 20)))
    other = parse_tag((b"f", *([(b"*", b"set", *(b"%d" % i for i in range(50, 150)))] * 20)))
    both = intersect(wide, other)
    assert isinstance(both, tuple)
    assert all(isinstance(place, Set) and len(place.atoms) == 50 for place in both[1:])


def test_nested_sets_share_one_bound_on_the_work() -> None:
    def nested(letter: bytes) -> SExp:
        tag: SExp = (b"*", b"glob", b"*%b*" % letter)
        for level in range(3):
            lists = (((b"f%d" % level), (b"*", b"glob", b"*%b%d*" % (letter, i)), tag) for i in range(10))
            tag = (b"*", b"set", *lists)
        return tag

    s, t = parse_tag(nested(b"x")), parse_tag(nested(b"y"))
    with pytest.raises(LimitError) as caught:
        intersect(s, t)
    assert caught.value.code == "tag.limit"
    assert not covers(s, t)


def test_large_sets_meet_quickly() -> None:
    def attributes(start: int) -> SExp:
        return (b"*", b"set", *((b"attr", b"owner", b"type", b"%d" % i) for i in range(start, start + 4_000)))

    both = intersect(parse_tag(attributes(0)), parse_tag(attributes(2_000)))
    assert isinstance(both, Set)
    assert len(both.flats) == 2_000


def test_tags_survive_pickling() -> None:
    tag = parse_tag(read("(foo (*) (* set a (* prefix b)) (* glob a*b) (* where (sql x)))"))
    again = pickle.loads(pickle.dumps(tag))  # noqa: S301  # our own bytes
    assert again == tag
    assert again[1] is ANY


def test_the_tags_of_the_reduction_suite(suites: Path) -> None:
    cases = 0
    for file in sorted((suites / "spki-reduction").glob("*.in")):
        case = parse_canonical(file.read_bytes().strip())
        acl, asked = field(case, b"acl"), field(case, b"tag")
        assert acl is not None
        entry = acl[1]
        granted = field(entry, b"tag")
        if asked is None or granted is None or field(case, b"sequence") is not None:
            continue
        cases += 1
        answer = file.with_suffix(".out").read_bytes().strip()
        both = intersect(parse_tag(granted[1]), parse_tag(asked[1]))
        if both is None:
            assert answer == b"(3:acl)"
        else:
            assert canonical((b"tag", to_sexp(both))) in answer
    assert cases >= 10


def patterns(number: int) -> tuple[SExp, ...]:
    """Return lists that are not of atoms alone, and that cover one another in part."""
    return tuple((b"f", (b"*", b"prefix", b"%d" % (i * 7919 % 1009)), b"%d" % i) for i in range(number))


def nested_sets(number: int) -> SExp:
    """Return a set of lists with sets in them: taking these apart multiplies."""
    inner: SExp = (b"*", b"set", b"a", b"b", (b"*", b"prefix", b"q"))
    return (b"*", b"set", *((b"f", b"%d" % i, inner, inner, inner) for i in range(number)))


GROWING: dict[str, Callable[[int], SExp]] = {
    "patterns": lambda size: (b"*", b"set", *patterns(size)),
    "atoms and patterns": lambda size: (b"*", b"set", *(b"%d" % i for i in range(size)), *patterns(size)),
    "sets within lists": nested_sets,
    "lists of all lengths": lambda size: (b"*", b"set", *((*[b"a"] * i, b"b") for i in range(size))),
    "globs": lambda size: (b"*", b"and", *((b"*", b"glob", b"*%dx*y" % i) for i in range(size // 2))),
}


@pytest.mark.parametrize("name", GROWING)
def test_reading_a_tag_takes_steps_in_proportion_to_its_size(name: str) -> None:
    """Steps are calls of Python functions, of which no clock and no other process can change the number."""

    def calls(sexp: SExp) -> int:
        found = 0

        def count(_frame: object, event: str, _argument: object) -> None:
            nonlocal found
            found += event in {"call", "c_call"}

        sys.setprofile(count)
        try:
            parse_tag(sexp)
        finally:
            sys.setprofile(None)
        return found

    small, large = GROWING[name](16), GROWING[name](128)
    size = len(canonical(large)) / len(canonical(small))
    assert calls(large) <= 3 * size * calls(small)


def test_large_sets_and_conjunctions_mean_what_was_written() -> None:
    """Members that another one covers stay in sets that are too large to compare all pairs; that changes nothing."""
    written = (b"*", b"set", *patterns(128), *(b"%d" % i for i in range(500)))
    tag = parse_tag(written)
    requests: list[SExp] = [(b"f", b"%d" % i, b"%d" % j) for i in range(0, 1_009, 7) for j in range(0, 128, 9)]
    requests += [b"%d" % i for i in range(0, 600, 7)]
    for request in requests:
        assert matches(request, tag) == naive(request, written)
    assert parse_tag(to_sexp(tag)) == tag
    globs: SExp = (b"*", b"and", *((b"*", b"glob", b"*%d*" % i) for i in range(40)))
    every = b"".join(b"%d" % i for i in range(40))
    for atom in (every, every[:-1], every[1:], b""):
        assert matches(atom, parse_tag(globs)) == naive(atom, globs)
    assert parse_tag(to_sexp(parse_tag(globs))) == parse_tag(globs)

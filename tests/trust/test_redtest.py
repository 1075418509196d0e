"""Reduction cases as data: ours in `cases/`, and those that SPKI implementations share (`PENSTOCK_SUITES`)."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.trust.kit import refused

from penstock.codec.sexp import SExp, canonical, parse
from penstock.codec.sexp import field as sexp_field
from penstock.crypto import digest
from penstock.errors import PenstockError
from penstock.trust.limits import TrustLimits
from penstock.trust.redtest import reduce_case

CASES = sorted((Path(__file__).parent / "cases").glob("*.in"))


def read(path: Path) -> SExp:
    return parse(path.read_bytes())


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_our_cases(path: Path) -> None:
    assert reduce_case(read(path)) == read(path.with_suffix(".out"))


def test_there_are_cases() -> None:
    assert len(CASES) >= 19


def test_shared_cases(suites: Path) -> None:
    cases = sorted((suites / "spki-reduction").glob("*.in"))
    assert len(cases) == 26
    wrong = []
    for case in cases:
        accepted = [case.with_suffix(ending) for ending in (".out", ".ou1")]
        expected = [canonical(parse(path.read_bytes())) for path in accepted if path.exists()]
        if canonical(reduce_case(parse(case.read_bytes()))) not in expected:
            wrong.append(case.name)
    assert not wrong


ENTRY = "(entry (subject (public-key k1)) (propagate) (tag (foo)))"


@pytest.mark.parametrize(
    ("case", "code"),
    [
        ("red-test", "redtest.malformed"),
        ("()", "redtest.malformed"),
        ("(acl)", "redtest.malformed"),
        ("(red-test)", "redtest.malformed"),
        ("(red-test acl)", "redtest.malformed"),
        ("(red-test ())", "redtest.malformed"),
        ("(red-test (acl) (acl))", "sexp.duplicate"),
        ("(red-test (acl) (result))", "redtest.malformed"),
        ("(red-test (acl entry))", "redtest.malformed"),
        ("(red-test (acl (entry)))", "redtest.malformed"),
        ("(red-test (acl (entry (subject))))", "redtest.malformed"),
        ("(red-test (acl (entry (subject bob))))", "redtest.malformed"),
        ("(red-test (acl (entry (subject (hash crc32 x)))))", "redtest.malformed"),
        ("(red-test (acl (entry (subject (public-key k)) (tag))))", "redtest.malformed"),
        ("(red-test (acl (entry (subject (public-key k)) (tag (* bad)))))", "tag.unknown-form"),
        ("(red-test (acl (entry (subject (public-key k)) (valid x))))", "date.malformed"),
        ('(red-test (acl (entry (subject (k-of-n "2" "1" (public-key k))))))', "subject.threshold"),
        (f"(red-test (acl {ENTRY}) (sequence x))", "redtest.malformed"),
        (f"(red-test (acl {ENTRY}) (sequence (cert)))", "redtest.malformed"),
        (f"(red-test (acl {ENTRY}) (sequence (cert (issuer (public-key k1)))))", "redtest.malformed"),
        (f"(red-test (acl {ENTRY}) (subject))", "redtest.malformed"),
        (f"(red-test (acl {ENTRY}) (tag a b))", "redtest.malformed"),
        (f'(red-test (acl {ENTRY}) (valid (not-after "26")))', "date.malformed"),
        ('(red-test (acl (entry (subject (public-key k)) (not-after "1998-01-01"))))', "redtest.malformed"),
        ("(red-test (acl (entry (subject (public-key k)) (online crl x))))", "redtest.malformed"),
        ("(red-test (acl (entry (subject (name fred)))))", "redtest.malformed"),
        ("(red-test (acl) (sequence (cert (issuer (name fred)) (subject (public-key k2)))))", "redtest.malformed"),
    ],
)
def test_what_is_no_case(case: str, code: str) -> None:
    with refused(code):
        reduce_case(parse(case.encode()))


CERT = "(cert (issuer (public-key k1)) (subject {}) (tag (foo)) {})"


def reduced(sequence: str, entry: str = ENTRY) -> SExp:
    return reduce_case(parse(f"(red-test (acl {entry}) (sequence {sequence}))".encode()))


def acl(*entries: str) -> SExp:
    return parse(f"(acl {' '.join(entries)})".encode())


@pytest.mark.parametrize("field", ['(not-before "2030-01-01")', '(not-after "1998-01-01")', "(online crl x)", "x"])
def test_a_field_that_is_not_known_is_refused_as_it_might_restrict(field: str) -> None:
    with refused("redtest.malformed"):
        reduced(CERT.format("(public-key k2)", field))


def test_notes_restrict_nothing() -> None:
    notes = "(comment hello) (display (x y)) (issuer-loc (url a)) (subject-loc (url b))"
    assert reduced(CERT.format("(public-key k2)", notes)) == reduced(CERT.format("(public-key k2)", ""))


@pytest.mark.parametrize(
    ("older", "written"),
    [
        ('(* range numeric (g "1") (l "5"))', '(* range numeric g "1" l "5")'),
        ('(* range numeric (le "5") (ge "1"))', '(* range numeric ge "1" le "5")'),
        ('(* range time (ge "1998") (le "1999-06-01_10:00:00"))', '(* range date ge "1998" le "1999-06-01_10:00:00")'),
        ('(* range time (ge "10:00:00"))', '(* range time ge "10:00:00")'),
        ("(a (* set (* range alpha (g b)) c))", "(a (* set (* range alpha g b) c))"),
    ],
)
def test_limits_of_ranges_as_lists(older: str, written: str) -> None:
    entries = [f"(entry (subject (public-key k1)) (tag {tag}))" for tag in (older, written)]
    assert reduced("", entries[0]) == reduced("", entries[1])


@pytest.mark.parametrize(
    ("short", "whole"), [("1998", "1998-01-01"), ("1998-07", "1998-07-01"), ("1998-07-02", "1998-07-02")]
)
def test_dates_as_a_year_or_a_month_mean_their_first_day(short: str, whole: str) -> None:
    older = f'(entry (subject (public-key k1)) (tag (foo)) (valid (not-before "{short}")))'
    assert reduced("", older) == acl(older.replace(short, whole))


def test_binary_k_and_n() -> None:
    quorum = "(k-of-n {} {} (public-key k2) (public-key k3))"
    assert reduced(CERT.format(quorum.format("#02#", "#02#"), "")) == reduced(
        CERT.format(quorum.format('"2"', '"2"'), "")
    )


def test_relative_names_are_those_of_the_issuer_and_names_on_the_way_are_listed() -> None:
    meaning = "(cert (issuer (name (public-key k1) fred)) (subject (public-key k4)))"
    whole = CERT.format("(name (public-key k1) fred)", "") + meaning
    assert reduced(CERT.format("(name fred)", "") + meaning) == reduced(whole)
    assert reduced(whole) == acl(
        "(entry (subject (public-key k4)) (tag (foo)))",
        "(entry (subject (name (public-key k1) fred)) (tag (foo)))",
        ENTRY,
    )


def test_a_tag_may_speak_of_quorums() -> None:
    case = parse(b'(red-test (acl (entry (subject (public-key k1)) (tag (k-of-n ab cd (not-after "1998"))))))')
    assert isinstance(case, tuple)
    assert reduce_case(case) == case[1]


def quorum(k: int, *members: SExp) -> SExp:
    return (b"k-of-n", b"%d" % k, b"%d" % len(members), *members)


def by_hash(value: SExp) -> SExp:
    return (b"hash", b"sha256", digest(value))


def key(name: str) -> SExp:
    return (b"public-key", name.encode())


@pytest.mark.parametrize("inner_first", [False, True])
def test_quorums_by_hash_within_quorums(inner_first: bool) -> None:
    inner = quorum(1, key("a1"))
    outer = quorum(1, by_hash(inner))
    cert = (b"cert", (b"issuer", key("a1")), (b"subject", key("k1")), (b"tag", b"t"))
    entry = (b"entry", (b"subject", by_hash(outer)), (b"propagate",), (b"tag", b"t"))
    parts = (inner, outer) if inner_first else (outer, inner)
    result = reduce_case((b"red-test", (b"acl", entry), (b"sequence", *parts, cert)))
    assert isinstance(result, tuple)
    assert (b"entry", (b"subject", key("k1")), (b"tag", b"t")) in result
    assert (b"entry", (b"subject", inner), (b"propagate",), (b"tag", b"t")) in result


def passing(*members: str) -> tuple[SExp, ...]:
    return tuple((b"cert", (b"issuer", key(one)), (b"subject", key("k1")), (b"tag", b"t")) for one in members)


def quorum_case(k: int, *certs: SExp, narrowed: tuple[SExp, ...] = ()) -> list[SExp]:
    """Return the subjects of the result for a quorum of three."""
    entry = (b"entry", (b"subject", quorum(k, key("a"), key("b"), key("c"))), (b"propagate",), (b"tag", b"t"))
    result = reduce_case((b"red-test", (b"acl", entry), (b"sequence", *certs), *narrowed))
    assert isinstance(result, tuple)
    return [sexp_field(each, b"subject")[1] for each in result[1:]]  # type: ignore[index]  # each entry has a subject


def test_the_members_of_a_quorum_that_led_to_a_result_are_listed() -> None:
    """Alone they hold nothing: what they have, they have together, all of them that were needed."""
    whole = quorum(2, key("a"), key("b"), key("c"))
    both = quorum(2, key("a"), key("c"))
    assert quorum_case(2, *passing("a", "c")) == [key("k1"), both, whole]
    assert quorum_case(2, *passing("a")) == [whole]
    assert quorum_case(3, *passing("a", "b", "c")) == [key("k1"), quorum(3, key("a"), key("b"), key("c"))]


def test_one_member_that_is_enough_is_listed_itself() -> None:
    assert quorum(1, key("b")) not in quorum_case(1, *passing("b"))
    assert key("b") in quorum_case(1, *passing("b"))


def test_members_that_led_to_several_results_are_listed_once() -> None:
    other = [(b"cert", (b"issuer", key(one)), (b"subject", key("k2")), (b"tag", b"t")) for one in "ac"]
    assert quorum_case(2, *passing("a", "c"), *other).count(quorum(2, key("a"), key("c"))) == 1


def test_a_result_can_be_narrowed_to_the_members_that_led_to_it() -> None:
    both = quorum(2, key("a"), key("c"))
    assert quorum_case(2, *passing("a", "c"), narrowed=((b"subject", both),)) == [both]


def test_a_quorum_that_is_in_the_list_is_not_listed_again_for_another() -> None:
    whole, both = quorum(2, key("a"), key("b"), key("c")), quorum(2, key("a"), key("c"))
    entries = tuple((b"entry", (b"subject", each), (b"propagate",), (b"tag", b"t")) for each in (whole, both))
    result = reduce_case((b"red-test", (b"acl", *entries), (b"sequence", *passing("a", "c"))))
    assert isinstance(result, tuple)
    assert result[1:].count(entries[1]) == 1


def test_quorums_that_name_each_other_by_hash_cost_little() -> None:
    """Each level names the one below twice: written out that would be 2 ** 40 members."""
    levels = [quorum(1, key("a"))]
    for number in range(40):
        left, right = quorum(1, by_hash(levels[-1])), quorum(1, by_hash(levels[-1]), key(f"b{number}"))
        levels += [left, right, quorum(1, by_hash(left), by_hash(right))]
    entry = (b"entry", (b"subject", by_hash(levels[9])), (b"tag", b"t"))
    result = reduce_case((b"red-test", (b"acl", entry), (b"sequence", *levels)))
    assert isinstance(result, tuple)
    assert (b"entry", (b"subject", key("a")), (b"tag", b"t")) in result
    entry = (b"entry", (b"subject", by_hash(levels[-1])), (b"tag", b"t"))
    with refused("redtest.malformed"):
        reduce_case((b"red-test", (b"acl", entry), (b"sequence", *levels)))


def test_lists_are_bounded() -> None:
    certs = " ".join(f"(cert (issuer (public-key k1)) (subject (public-key p{i})) (tag (foo)))" for i in range(30))
    case = parse(f"(red-test (acl {ENTRY}) (sequence {certs}))".encode())
    found = reduce_case(case)
    assert isinstance(found, tuple)
    assert len(found) == 32
    with refused("chain.limit"):
        reduce_case(case, limits=TrustLimits(certificates=10))


BYTES = [canonical(read(path)) for path in CASES if path.stem in ("threshold-nested", "name-chain", "hashes", "sets")]
edits = st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 30), st.binary(max_size=4)), min_size=1, max_size=3)


@given(st.sampled_from(BYTES), edits)
@settings(deadline=None, max_examples=examples(200))
def test_mutated_cases(data: bytes, changes: list[tuple[int, int, bytes]]) -> None:
    for place, removed, added in changes:
        start = place % (len(data) + 1)
        data = data[:start] + added + data[start + removed :]
    with suppress(PenstockError):
        reduce_case(parse(data))

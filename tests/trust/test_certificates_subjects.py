"""Subjects: keys, hashes, names and thresholds, and the hash that a threshold is known by."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trust.kit import key, name, refused, who

from penstock.codec.sexp import SExp, canonical, parse
from penstock.model.principals import Principal
from penstock.trust.certificates import (
    QUORUM_DEPTH,
    Subject,
    Threshold,
    describe,
    read_principal,
    read_subject,
    subject_to_sexp,
    thresholds,
)
from penstock.trust.limits import THRESHOLD_MEMBERS

principals = st.integers(1, 6).map(who)
names = st.builds(
    lambda number, parts: name(number, *parts),
    st.integers(1, 6),
    st.lists(st.text("abc", min_size=1), min_size=1, max_size=3),
)
subjects: st.SearchStrategy[Subject] = st.recursive(
    principals | names,
    lambda inner: st.lists(inner, min_size=1, max_size=4, unique=True).flatmap(
        lambda members: st.integers(1, len(members)).map(lambda k: Threshold(k, tuple(members)))
    ),
    max_leaves=8,
)


def deep(levels: int) -> SExp:
    value: SExp = (b"hash", b"sha256", bytes(32))
    for _ in range(levels):
        value = (b"k-of-n", b"1", b"1", value)
    return value


@given(subjects)
@settings(deadline=None)
def test_a_subject_is_read_back(subject: Subject) -> None:
    again = read_subject(parse(canonical(subject_to_sexp(subject))))
    assert again == subject
    assert hash(again) == hash(subject)
    assert describe(again) == describe(subject)
    if isinstance(subject, Threshold) and isinstance(again, Threshold):
        assert (again.k, again.subjects, again.principal) == (subject.k, subject.subjects, subject.principal)


def test_a_key_and_its_hash_are_one_principal() -> None:
    assert read_subject(key(1).public.to_sexp()) == read_subject((b"hash", b"sha256", who(1).digest)) == who(1)


def test_a_threshold_of_keys_and_of_their_hashes_is_one_principal() -> None:
    by_key = read_subject((b"k-of-n", b"1", b"2", key(1).public.to_sexp(), key(2).public.to_sexp()))
    by_hash = Threshold(1, (who(1), who(2)))
    assert isinstance(by_key, Threshold)
    assert by_key.principal == by_hash.principal
    assert str(by_key.principal).startswith("threshold:")


def test_thresholds_differ_by_k_members_and_order() -> None:
    quorums = [
        Threshold(1, (who(1), who(2))),
        Threshold(2, (who(1), who(2))),
        Threshold(1, (who(2), who(1))),
        Threshold(1, (who(1), who(3))),
        Threshold(1, (who(1),)),
        Threshold(1, (Threshold(1, (who(1),)), who(2))),
    ]
    assert len({quorum.principal for quorum in quorums}) == len(set(quorums)) == len(quorums)


def test_thresholds_within_each_other() -> None:
    inner = Threshold(1, (who(1), who(2)))
    outer = Threshold(2, (inner, who(3), name(4, "a")))
    assert list(thresholds(outer)) == [outer, inner]
    assert list(thresholds(who(1))) == []


def test_nobody_counts_twice() -> None:
    inner = Threshold(1, (who(1), who(2)))
    for members in ((who(1), who(1)), (inner, inner), (inner, inner.principal), (name(1, "a"), name(1, "a"))):
        with refused("subject.threshold"):
            Threshold(2, members)


@pytest.mark.parametrize("k", [-1, 0, 3])
def test_k_lies_between_one_and_n(k: int) -> None:
    with refused("subject.threshold"):
        Threshold(k, (who(1), who(2)))


def test_thresholds_are_bounded() -> None:
    members = tuple(Principal(number.to_bytes(32, "big")) for number in range(THRESHOLD_MEMBERS + 1))
    assert Threshold(1, members[1:]).k == 1
    with refused("subject.limit"):
        Threshold(1, members)
    assert isinstance(read_subject(deep(QUORUM_DEPTH)), Threshold)
    for levels in (QUORUM_DEPTH + 1, 40):
        with refused("subject.limit"):
            read_subject(deep(levels))


HASH = "(hash sha256 |" + "A" * 43 + "=|)"


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ("key", "subject.malformed"),
        ("()", "subject.malformed"),
        ("(hash sha256 short)", "subject.malformed"),
        ("(hash sha256)", "subject.malformed"),
        (f"(hash sha256 {HASH})", "subject.malformed"),
        ("(hash md5 |ICy5YqxZB1uWSwcVLSNLcA==|)", "subject.weak-hash"),
        ("(hash sha1 |qZk+NkcGgWq6PiVxeFDCbJzQ2J0=|)", "subject.weak-hash"),
        ("(public-key rsa)", "key.malformed"),
        ("(name)", "subject.malformed"),
        (f"(name {HASH})", "subject.malformed"),
        ("(name alice bob)", "subject.malformed"),
        (f'(name {HASH} "")', "subject.malformed"),
        (f"(name {HASH} (a))", "subject.malformed"),
        (f"(name {HASH} [text]a)", "subject.malformed"),
        (f"(name {HASH} {'a ' * 17})", "subject.malformed"),
        (f"(name (name {HASH} a) b)", "subject.malformed"),
        ("(k-of-n)", "subject.malformed"),
        ('(k-of-n "1" "0")', "subject.threshold"),
        (f'(k-of-n "0" "1" {HASH})', "subject.threshold"),
        (f'(k-of-n "2" "1" {HASH})', "subject.threshold"),
        (f'(k-of-n "1" "2" {HASH})', "subject.threshold"),
        (f'(k-of-n "1" "2" {HASH} {HASH})', "subject.threshold"),
        (f'(k-of-n "01" "1" {HASH})', "subject.threshold"),
        (f'(k-of-n "-1" "1" {HASH})', "subject.threshold"),
        (f'(k-of-n "00001" "1" {HASH})', "subject.threshold"),
        ('(k-of-n "1" "1" who)', "subject.malformed"),
        ('(k-of-n "1" "1" (hash md5 x))', "subject.weak-hash"),
    ],
)
def test_what_is_no_subject(written: str, code: str) -> None:
    with refused(code):
        read_subject(parse(written.encode()))


def test_a_principal_is_neither_name_nor_threshold() -> None:
    for subject in (name(1, "a"), Threshold(1, (who(1),))):
        with refused("subject.malformed"):
            read_principal(subject_to_sexp(subject))


def test_texts_for_people() -> None:
    assert describe(who(1)) == who(1).short
    assert describe(name(1, "a", "b")).endswith("'a' 'b'")
    assert describe(Threshold(1, (who(1), who(2)))).startswith("1 of 2")

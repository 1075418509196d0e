"""Names: groups, chains of names, cycles, dates, and bags in which names would multiply without end."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.trust.kit import CURRENT, DAY, NOW, name, who

from penstock.trust.certificates import Name, Subject, Threshold
from penstock.trust.discovery import FourTuple, NameTable
from penstock.trust.limits import TrustLimits
from penstock.trust.validity import ALWAYS, Validity

FIRST_WEEK = Validity.between(NOW, NOW + 7 * DAY)
MONTH = Validity.between(NOW + 3 * DAY, NOW + 30 * DAY)


def four(issuer: int, local: str, subject: int | Subject, validity: Validity = ALWAYS, *because: str) -> FourTuple:
    meant = who(subject) if isinstance(subject, int) else subject
    return FourTuple(who(issuer), local.encode(), meant, validity, because or (f"{issuer} {local}",))


def members(names: NameTable, asked: Name) -> set[int]:
    numbers = {who(number): number for number in range(60)}
    return {numbers[found.member] for found in names.resolve(asked)}


def test_a_group_has_a_certificate_for_each_member() -> None:
    names = NameTable([four(1, "Met Brokers", number) for number in (2, 3, 4)] + [four(9, "Met Brokers", 5)])
    assert members(names, name(1, "Met Brokers")) == {2, 3, 4}
    assert members(names, name(1, "met brokers")) == set()
    assert members(names, name(2, "Met Brokers")) == set()


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_names_of_names_in_any_order(order: tuple[int, ...]) -> None:
    statements = [
        four(1, "a", name(2, "b"), ALWAYS, "one"),
        four(2, "b", name(3, "c"), ALWAYS, "two"),
        four(3, "c", 4, ALWAYS, "three"),
        four(3, "c", name(1, "a"), ALWAYS, "round"),
    ]
    names = NameTable([statements[place] for place in order])
    (found,) = names.resolve(name(1, "a"))
    assert found.member == who(4)
    assert found.because == ("one", "two", "three")


def test_chained_names_are_followed_from_left_to_right() -> None:
    names = NameTable([four(1, "friends", 2), four(1, "friends", 3), four(2, "dentist", 4), four(3, "dentist", 5)])
    assert members(names, name(1, "friends", "dentist")) == {4, 5}
    assert members(names, name(1, "dentist", "friends")) == set()
    assert members(names, name(1, "friends", "dentist", "dentist")) == set()


def test_a_chain_within_a_statement() -> None:
    names = NameTable([four(1, "x", name(2, "y", "z")), four(2, "y", 3), four(3, "z", 4)])
    assert members(names, name(1, "x")) == {4}


def test_cycles_end() -> None:
    names = NameTable([four(1, "a", name(2, "b")), four(2, "b", name(1, "a"))])
    assert members(names, name(1, "a")) == set()
    assert not names.truncated
    grows = NameTable([four(1, "a", name(1, "a", "a")), four(1, "a", 1), four(1, "a", 2)])
    assert members(grows, name(1, "a")) == {1, 2}


def test_a_name_lasts_as_long_as_all_that_it_rests_on() -> None:
    names = NameTable([four(1, "a", name(2, "b"), FIRST_WEEK), four(2, "b", 3, MONTH)])
    (found,) = names.resolve(name(1, "a"))
    assert (found.validity.starts, found.validity.ends) == (NOW + 3 * DAY, NOW + 7 * DAY)
    (chained,) = NameTable([four(1, "a", 2, FIRST_WEEK), four(2, "b", 3, MONTH)]).resolve(name(1, "a", "b"))
    assert chained.validity == found.validity
    apart = Validity.between(NOW + 8 * DAY)
    assert members(NameTable([four(1, "a", name(2, "b"), FIRST_WEEK), four(2, "b", 3, apart)]), name(1, "a")) == set()


def test_of_two_ways_the_one_that_lasts_is_kept_and_both_where_neither_outlasts() -> None:
    names = NameTable([four(1, "a", 2, FIRST_WEEK, "short"), four(1, "a", 2, ALWAYS, "long")])
    assert [found.because for found in names.resolve(name(1, "a"))] == [("long",)]
    names = NameTable([four(1, "a", 2, FIRST_WEEK, "first"), four(1, "a", 2, MONTH, "second")])
    assert {found.because for found in names.resolve(name(1, "a"))} == {("first",), ("second",)}


def test_a_quorum_is_a_member_by_its_hash_and_has_no_names() -> None:
    quorum = Threshold(1, (who(2), who(3)))
    names = NameTable([four(1, "board", quorum), four(2, "a", 4)])
    (found,) = names.resolve(name(1, "board"))
    assert found.member == quorum.principal
    assert list(names.resolve(name(1, "board", "a"))) == []


def test_ways_to_one_member_are_bounded() -> None:
    windows = [Validity.between(NOW + i * DAY, NOW + (100 + i) * DAY) for i in range(10)]
    names = NameTable([four(1, "a", 2, window) for window in windows], limits=TrustLimits(grants_per_principal=4))
    assert len(list(names.resolve(name(1, "a")))) == 4
    assert names.truncated


def test_a_way_is_no_longer_than_a_chain() -> None:
    statements = [four(i, "a", name(i + 1, "a"), ALWAYS, str(i)) for i in range(1, 10)] + [four(10, "a", 11)]
    assert members(NameTable(statements), name(1, "a")) == {11}
    names = NameTable(statements, limits=TrustLimits(chain_length=5))
    assert members(names, name(1, "a")) == set()
    assert names.truncated


def test_long_lines_of_names_in_the_worst_order() -> None:
    """Each statement is looked at again only when a name that it asked for changed."""
    line = [four(i, "a", name(i + 1, "a")) for i in range(1, 50)]
    names = NameTable([*line, four(50, "a", 51)], steps=200)
    assert members(names, name(1, "a")) == {51}
    assert not names.truncated


def test_names_that_multiply_at_each_step_do_not() -> None:
    """Twelve keys that all name each other: 12 ** 16 ways, and twelve members."""
    names = NameTable([four(i, "n", j) for i in range(1, 13) for j in range(1, 13)])
    assert members(names, name(1, *("n",) * 16)) == set(range(1, 13))
    assert not names.truncated


def test_dates_that_multiply_at_each_step_do_not() -> None:
    ways = [four(1, "n", 1, validity) for validity in (FIRST_WEEK, MONTH, CURRENT)]
    assert members(NameTable(ways), name(1, *("n",) * 16)) == {1}


def test_work_is_bounded() -> None:
    names = NameTable(
        [four(i, "n", name(j, *("n",) * 16)) for i in range(1, 13) for j in range(1, 13)]
        + [four(i, "n", j) for i in range(1, 13) for j in range(1, 13)],
        steps=5_000,
    )
    assert names.truncated
    assert members(names, name(1, "n")) <= set(range(1, 13))


people = st.integers(1, 4)
local = st.sampled_from("nm")
meanings = people | st.builds(name, people, local) | st.builds(name, people, local, local)


@given(st.lists(st.tuples(people, local, meanings), max_size=8))
@settings(deadline=None, max_examples=examples(200))
def test_members_against_sets_of_sets(statements: list[tuple[int, str, int | Name]]) -> None:
    known: dict[tuple[int, str], set[int]] = {}
    numbers = {who(number): number for number in range(1, 5)}

    def expand(subject: int | Name) -> set[int]:
        if isinstance(subject, int):
            return {subject}
        current = {numbers[subject.principal]}
        for part in subject.names:
            current = {member for one in current for member in known.get((one, part.decode()), set())}
        return current

    for _ in range(40):
        for issuer, label, subject in statements:
            known.setdefault((issuer, label), set()).update(expand(subject))
    names = NameTable([four(*statement) for statement in statements])
    for issuer, label in itertools.product(range(1, 5), "nm"):
        assert members(names, name(issuer, label)) == known.get((issuer, label), set())

"""The ordered map of summaries, against a dictionary."""

from dataclasses import dataclass
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.moderator.places import above, after
from penstock.moderator.summary_tree import SummaryTree


@dataclass(frozen=True)
class Least:
    """The least number of some."""

    number: int

    def merged(self, other: "Least") -> "Least":
        return self if self.number <= other.number else other


#: so many that there are branches of branches
STANDING = 1_500
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "replace", "drop"]),
        st.one_of(st.integers(0, 2_002), st.sampled_from([0, 1_900])),
        st.integers(0, 9),
    ),
    max_size=40,
)


@given(STEPS, st.integers(0, 2_002), st.integers(0, 2_002))
@settings(max_examples=examples(40), deadline=None)
def test_the_first_that_is_doubtful_is_found(steps: list[tuple[str, int, int]], start: int, end: int) -> None:
    found: SummaryTree[Least] = SummaryTree()
    model: dict[bytes, Least] = {}
    for what, number, value in [("add", n * 7 % 2_003, 9) for n in range(STANDING)] + steps:
        place = number.to_bytes(2, "big")
        if what == "add":
            model[place] = model[place].merged(Least(value)) if place in model else Least(value)
            found.add(place, Least(value))
        elif what == "replace" and place in model:
            model[place] = Least(value)
            found.replace(place, Least(value))
        elif what == "drop":
            # A hundred at once, so that nodes become empty.
            for gone in [near for near in model if place <= near < (number + 100).to_bytes(2, "big")]:
                del model[gone]
                found.replace(gone, None)
    some = (start.to_bytes(2, "big"), end.to_bytes(2, "big"))
    for (low, high), bound in product([some, (b"", b"\xff\xff")], range(1, 6)):
        expected = [place for place, least in sorted(model.items()) if low <= place < high and least.number < bound]
        assert walk(found, low, high, bound) == expected


def walk(found: SummaryTree[Least], low: bytes, high: bytes, bound: int) -> list[bytes]:
    seen: list[bytes] = []
    place = found.first(low, high, lambda least: least.number < bound)
    while place is not None:
        seen.append(place)
        place = found.first(place + b"\0", high, lambda least: least.number < bound)
    return seen


def test_an_empty_map_may_be_filled_again() -> None:
    found: SummaryTree[Least] = SummaryTree()
    found.replace(b"a", None)
    for _ in range(2):
        for number in range(200):
            found.add(bytes([number]), Least(number))
        for number in range(200):
            found.replace(bytes([number]), None)
        assert found.first(b"", b"\xff", lambda _: True) is None


def test_a_place_is_below_its_beginnings() -> None:
    place = b"\0\0\0\1\0\0\0\2\0\0\0\3"
    assert above(place) == [place[:8], place[:4]]
    assert place < place + b"\0\0\0\0" < after(place) < b"\0\0\0\1\0\0\0\2\0\0\0\4"


def test_one_among_many_is_found_from_wherever_one_looks() -> None:
    for wanted in range(0, 200, 7):
        found: SummaryTree[Least] = SummaryTree()
        for number in range(200):
            found.add(bytes([number]), Least(0 if number == wanted else 1))
        for start, end in product(range(0, wanted + 1, 5), (wanted + 1, min(wanted + 20, 255), 255)):
            assert found.first(bytes([start]), bytes([end]), lambda least: least.number < 1) == bytes([wanted])
        assert found.first(b"", bytes([wanted]), lambda least: least.number < 1) is None
        assert found.first(bytes([wanted, 0]), b"\xff", lambda least: least.number < 1) is None

"""The ordered map of summaries, against a dictionary."""

from dataclasses import dataclass
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.moderator.detection.detector import after
from penstock.moderator.detection.summaries import SummaryTree, Walk


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
        assert doubtful(found, low, high, bound) == expected
        assert doubtful(found, low, high, bound, skip=40) == passing_over(expected, 40)


def doubtful(found: SummaryTree[Least], low: bytes, high: bytes, bound: int, *, skip: int = 0) -> list[bytes]:
    """Walk from place to place, and pass over so many numbers after each."""
    walk = Walk[Least](low, high, lambda least: least.number < bound)
    seen: list[bytes] = []
    for place in found.walk(walk):
        seen.append(place)
        if skip:
            walk.start = (int.from_bytes(place, "big") + skip).to_bytes(2, "big")
    return seen


def passing_over(places: list[bytes], skip: int) -> list[bytes]:
    kept: list[bytes] = []
    for place in places:
        if not kept or int.from_bytes(place, "big") >= int.from_bytes(kept[-1], "big") + skip:
            kept.append(place)
    return kept


def test_an_empty_map_may_be_filled_again() -> None:
    found: SummaryTree[Least] = SummaryTree()
    found.replace(b"a", None)
    for _ in range(2):
        for number in range(200):
            found.add(bytes([number]), Least(number))
        for number in range(200):
            found.replace(bytes([number]), None)
        assert doubtful(found, b"", b"\xff", 1_000) == []


def test_a_place_is_before_the_end_of_its_beginnings() -> None:
    place = b"\0\0\0\1\0\0\0\2\0\0\0\3"
    assert place < place + b"\0\0\0\0" < after(place) < b"\0\0\0\1\0\0\0\2\0\0\0\4"


def test_one_among_many_is_found_from_wherever_one_looks() -> None:
    for wanted in range(0, 200, 7):
        found: SummaryTree[Least] = SummaryTree()
        for number in range(200):
            found.add(bytes([number]), Least(0 if number == wanted else 1))
        for start, end in product(range(0, wanted + 1, 5), (wanted + 1, min(wanted + 20, 255), 255)):
            assert doubtful(found, bytes([start]), bytes([end]), 1) == [bytes([wanted])]
        assert doubtful(found, b"", bytes([wanted]), 1) == []
        assert doubtful(found, bytes([wanted, 0]), b"\xff", 1) == []

"""The ordered map of summaries, against a dictionary."""

from dataclasses import dataclass

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


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "replace", "drop"]), st.integers(0, 400), st.integers(0, 9)),
    max_size=300,
)


@given(STEPS, st.integers(0, 400), st.integers(0, 400), st.integers(0, 9))
@settings(max_examples=examples(60), deadline=None)
def test_the_first_that_is_doubtful_is_found(
    steps: list[tuple[str, int, int]], start: int, end: int, bound: int
) -> None:
    found: SummaryTree[Least] = SummaryTree()
    model: dict[bytes, Least] = {}
    for what, number, value in [("add", n * 7 % 401, 5) for n in range(100)] + steps:
        place = number.to_bytes(2, "big")
        if what == "add":
            model[place] = model[place].merged(Least(value)) if place in model else Least(value)
            found.add(place, Least(value))
        elif place in model and what == "replace":
            model[place] = Least(value)
            found.replace(place, Least(value))
        elif place in model:
            del model[place]
            found.replace(place, None)
    low, high = start.to_bytes(2, "big"), end.to_bytes(2, "big")
    expected = [place for place, least in sorted(model.items()) if low <= place < high and least.number < bound]
    seen = []
    while (place := found.first(low, high, lambda least: least.number < bound)) is not None:  # type: ignore[assignment]
        seen.append(place)
        low = place + b"\0"
    assert seen == expected


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

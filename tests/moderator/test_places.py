"""Places: subtrees are intervals, and stay where they are when types are added."""

from hypothesis import given
from hypothesis import strategies as st
from tests.moderator.kit import event, tree

from penstock.moderator.places import Places, above, after


@given(st.lists(st.integers(0, 30), max_size=30))
def test_a_subtree_is_an_interval(choices: list[int]) -> None:
    parents: dict[str, str | None] = {"t0": None, "other": None}
    for number, choice in enumerate(choices, start=1):
        parents[f"t{number}"] = f"t{choice % number}"
    chosen = tree(parents)
    places = Places(chosen)
    at = {key: places.place(key) for key in reversed(list(chosen.parents))}
    assert len(set(at.values())) == len(at)
    for key, place in at.items():
        assert [at[over] for over in chosen.ancestors(key)] == above(place)
        assert {other for other in at if place <= at[other] < after(place)} == set(chosen.subtree(key))


def test_new_types_move_nobody() -> None:
    before = tree({"a": None, "b": "a", "c": "a"})
    places = Places(before)
    known = {key: places.place(key) for key in before.parents}
    after_it = tree({"a": None, "aa": "a", "b": "a", "bb": "b", "c": "a", "z": None})
    assert places.follow(after_it) == {}
    assert {key: places.place(key) for key in known} == known
    assert len({places.place(key) for key in after_it.parents}) == 6


def test_what_moves_takes_all_below_along() -> None:
    places = Places(tree({"a": None, "b": "a", "c": "b", "d": "a", "e": "a"}))
    known = {name: places.place(event(name)) for name in "abcde"}
    moved = places.follow(tree({"a": None, "d": "a", "b": "d", "c": "b"}))
    assert moved == {event(name): known[name] for name in "bce"}
    assert places.place(event("c"))[:8] == known["d"]

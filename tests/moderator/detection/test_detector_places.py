"""Places: subtrees are intervals, and stay where they are when types are added."""

from hypothesis import given
from hypothesis import strategies as st
from tests.moderator.kit import event, tree

from penstock.moderator.detection.detector import STEP, TypePlaces, after


@given(st.lists(st.integers(0, 30), max_size=30))
def test_a_subtree_is_an_interval(choices: list[int]) -> None:
    parents: dict[str, str | None] = {"t0": None, "other": None}
    for number, choice in enumerate(choices, start=1):
        parents[f"t{number}"] = f"t{choice % number}"
    chosen = tree(parents)
    places: TypePlaces[str] = TypePlaces(chosen)
    spots = {key: places.spot(key) for key in reversed(list(chosen.parents))}
    at = {key: spot.place for key, spot in spots.items()}
    assert len(set(at.values())) == len(at)
    for key, place in at.items():
        parent = chosen.parents[key]
        assert place[:-STEP] == (b"" if parent is None else at[parent])
        assert spots[key].above is (None if parent is None else spots[parent])
        assert {other for other in at if place <= at[other] < after(place)} == set(chosen.subtree(key))


def test_new_types_move_nobody() -> None:
    before = tree({"a": None, "b": "a", "c": "a"})
    places: TypePlaces[str] = TypePlaces(before)
    known = {key: places.spot(key) for key in before.parents}
    after_it = tree({"a": None, "aa": "a", "b": "a", "bb": "b", "c": "a", "z": None})
    assert places.follow(after_it) == []
    assert {key: places.spot(key) for key in known} == known
    assert len({places.spot(key).place for key in after_it.parents}) == 6


def test_what_moves_takes_all_below_along() -> None:
    places: TypePlaces[str] = TypePlaces(tree({"a": None, "b": "a", "c": "b", "d": "a", "e": "a"}))
    known = {name: places.spot(event(name)) for name in "abcde"}
    moved = places.follow(tree({"a": None, "d": "a", "b": "d", "c": "b"}))
    assert moved == [known[name] for name in "bce"]
    assert places.spot(event("c")).place[: 2 * STEP] == known["d"].place


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=40))
def test_it_is_known_whether_there_are_rules_below(changes: list[tuple[int, bool]]) -> None:
    chosen = tree({"t0": None} | {f"t{number}": f"t{(number - 1) // 2}" for number in range(1, 10)})
    places: TypePlaces[str] = TypePlaces(chosen)
    for number, stated in changes:
        spot = places.spot(event(f"t{number}"))
        if stated and not spot.stated:
            spot.begin()
            spot.stated["x"] = ["r"]
        elif not stated and spot.stated:
            spot.stated.clear()
            spot.end()
    for key in chosen.parents:
        below = [places.spot(child) for child in chosen.children[key]]
        assert places.spot(key).below == sum(bool(spot.stated or spot.below) for spot in below)

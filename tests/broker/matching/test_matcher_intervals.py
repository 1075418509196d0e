"""The tree of intervals against a list of them, whatever the order in which they come and go."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.broker.matching.matcher import IntervalTree

ENDS = st.integers(0, 12)
SPANS = st.tuples(ENDS, ENDS).filter(lambda span: span[0] < span[1])


@settings(max_examples=examples(200), deadline=None)
@given(steps=st.lists(st.tuples(st.booleans() | st.just(True), SPANS), max_size=120))
def test_against_a_dictionary(steps: list[tuple[bool, tuple[int, int]]]) -> None:
    tree = IntervalTree[str]()
    known: dict[tuple[int, int], str] = {}
    for number, (adding, (low, high)) in enumerate(steps):
        if adding:
            tree.put((low,), (high,), f"v{number}")
            known[low, high] = f"v{number}"
        else:
            tree.discard((low,), (high,))
            known.pop((low, high), None)
        assert tree.get((low,), (high,)) == known.get((low, high))
        assert len(tree) == len(known)
    for place in range(14):
        expected = sorted(value for (low, high), value in known.items() if low <= place < high)
        assert sorted(tree.holding((place,))) == expected


def test_an_ascending_order_does_not_make_it_deep() -> None:
    tree = IntervalTree[int]()
    for number in range(3_000):
        tree.put((number,), (number + 1,), number)
    assert _depth(tree) < 30
    for number in range(2_990):
        tree.discard((number,), (number + 1,))
    assert _depth(tree) <= 6
    assert tree.holding((2_995,)) == [2_995]


def _depth(tree: IntervalTree[int]) -> int:
    depth, level = 0, [tree._root]
    while level := [spot for spot in level if spot is not None]:
        depth += 1
        level = [child for spot in level for child in (spot.left, spot.right)]
    return depth

"""Merkle trees: the same as the recursive definition, and a way for each leaf."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st
from tests.crypto.seal_kit import code_of

from penstock.crypto.signed_blocks import climb, merkle_leaves, merkle_path, merkle_root, merkle_salts, merkle_tree
from penstock.errors import RefusedError


def naive(leaves: list[bytes]) -> bytes:
    """Return the root as RFC 6962 (2.1) defines it: the left part is the largest full tree that is not all."""
    if len(leaves) == 1:
        return leaves[0]
    left = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + naive(leaves[:left]) + naive(leaves[left:])).digest()


def leads_elsewhere(start: bytes, place: int, rows: int, way: list[bytes], top: bytes) -> bool:
    """Say whether a leaf at a place that is not its own gives another root, or none."""
    try:
        return climb(start, place, rows, way) != top
    except RefusedError:
        return True


@given(st.integers(1, 70), st.data())
def test_every_leaf_leads_to_the_root(rows: int, data: st.DataObject) -> None:
    found = merkle_leaves([bytes(16)] * rows, [b"%d" % row for row in range(rows)])
    levels = merkle_tree(found)
    assert merkle_root(levels) == naive(found)
    place = data.draw(st.integers(0, rows - 1))
    way = merkle_path(levels, place)
    assert len(way) <= rows.bit_length()
    assert climb(found[place], place, rows, way) == merkle_root(levels)
    for wrong in {*range(-1, rows + 1)} - {place}:
        if 0 <= wrong < rows:
            assert leads_elsewhere(found[place], wrong, rows, way, merkle_root(levels))
        else:
            assert code_of(climb, found[place], wrong, rows, way) == "seal.bad-proof"
    if rows > 1:
        assert code_of(climb, found[place], place, rows, way[1:]) == "seal.bad-proof"
        assert climb(found[place - 1], place, rows, way) != merkle_root(levels)
    assert code_of(climb, found[place], place, rows, [*way, bytes(32)]) == "seal.bad-proof"
    assert code_of(climb, found[place], place, rows, [*way[:-1], b"short"]) == "seal.bad-proof"


def test_a_node_is_no_leaf() -> None:
    one, two = merkle_leaves([bytes(16)] * 2, [b"a", b"b"])
    assert merkle_root(merkle_tree([one, two])) not in merkle_leaves([one[:16]], [one[16:] + two])


def test_salts_differ() -> None:
    found = [*merkle_salts(b"s" * 32, 1, 100), *merkle_salts(b"s" * 32, 2, 100), *merkle_salts(b"t" * 32, 1, 100)]
    assert len({*found}) == 300
    assert {len(salt) for salt in found} == {16}
    # Those of the first rows do not depend on how many there are.
    assert merkle_salts(b"s" * 32, 1, 7) == found[:7]

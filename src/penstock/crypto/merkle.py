"""Merkle trees over the columns of a block, and proofs of single events (paper 5, section 8.2).

Whoever reads events holds the keys that they were sealed under, and could seal others. Hence a broker may sign what it
publishes. A block has a tree for each column, and the signature covers the roots of all of them:

    leaf = SHA-256(0 ‖ salt ‖ value)        node = SHA-256(1 ‖ left ‖ right)        an odd node goes up as it is

The salts of a column follow from the key of its attribute, 16 bytes for each value. So a root tells nothing to who
does not hold that key: 32 bytes a column are all that he needs to check the columns that he does read. A proof of an
event has, for each attribute that is shown, the value, its salt, and the way to the root; the others are known by
their roots alone.
"""

import hashlib
from collections.abc import Sequence
from typing import Final, TypeAlias

from penstock.errors import RefusedError

SALT_BYTES: Final = 16
ROOT_BYTES: Final = 32

Tree: TypeAlias = list[list[bytes]]
"""The levels of a tree, leaves first."""


def salts(seed: bytes, number: int, rows: int) -> list[bytes]:
    """Return the salts of one column of one block. Knowing some of them tells nothing about others."""
    stream = hashlib.shake_256(seed + number.to_bytes(8, "big")).digest(SALT_BYTES * rows)
    return [stream[start : start + SALT_BYTES] for start in range(0, len(stream), SALT_BYTES)]


def leaves(salts: Sequence[bytes], values: Sequence[bytes]) -> list[bytes]:
    """Return the leaves of values."""
    sha256 = hashlib.sha256
    return [sha256(b"\0" + salt + value).digest() for salt, value in zip(salts, values, strict=True)]


def tree(leaves: Sequence[bytes]) -> Tree:
    """Return the tree over leaves, one at least."""
    sha256, level = hashlib.sha256, list(leaves)
    levels = [level]
    while len(level) > 1:
        above = [sha256(b"\1" + left + right).digest() for left, right in zip(level[::2], level[1::2], strict=False)]
        level = above + level[len(above) * 2 :]
        levels.append(level)
    return levels


def root(levels: Tree) -> bytes:
    """Return the root of a tree."""
    return levels[-1][0]


def path(levels: Tree, place: int) -> list[bytes]:
    """Return the neighbours of a leaf on its way to the root."""
    found = []
    for level in levels[:-1]:
        beside = place ^ 1
        if beside < len(level):
            found.append(level[beside])
        place >>= 1
    return found


def climb(start: bytes, place: int, rows: int, way: Sequence[bytes]) -> bytes:
    """Return the root that a leaf at a place among so many gives. Raises `RefusedError` (`seal.bad-proof`)."""
    if not 0 <= place < rows:
        raise bad_proof()
    node, steps = start, iter(way)
    while rows > 1:
        if place ^ 1 < rows:
            beside = next(steps, b"")
            if len(beside) != ROOT_BYTES:
                raise bad_proof()
            pair = beside + node if place & 1 else node + beside
            node = hashlib.sha256(b"\1" + pair).digest()
        place, rows = place >> 1, (rows + 1) >> 1
    if next(steps, None) is not None:
        raise bad_proof()
    return node


def bad_proof() -> RefusedError:
    """Return the one error for a proof that proves nothing."""
    return RefusedError(
        "seal.bad-proof", "the proof does not show this event", hint="it was changed, or made otherwise"
    )

"""Signed blocks prove who sealed them, so that readers cannot write (paper 5, section 8.2).

    signature section = public key (32) ‖ signature (64) ‖ a root for each column (32 each)
    signed            = label ‖ what every column is bound to ‖ the roots

The first root is that of ids and times. The others are those of the attributes, also at event level. Only opened
columns are checked. The roots of the others cannot be checked, but are needed to verify the signature. Plaintext that
travels beside the sealed block is checked in the same way. Whether the signer may publish such events is decided
elsewhere, by its capabilities.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hmac import compare_digest
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from penstock.codec.blocks import Block, BlockNames, Fixed, Parts, read_bound, read_names
from penstock.codec.columns import decode_bundle, decode_cell, encode_bundle, encode_cell, encode_cells, instant
from penstock.codec.sexp import SExp
from penstock.codec.wire import decode, encode
from penstock.crypto.keys import KEY_BYTES, SIGNATURE_BYTES, PublicKey, SigningKey
from penstock.crypto.seal_keys import Purpose, column_scope, derive
from penstock.crypto.wrapping import Secret
from penstock.errors import PenstockError, RefusedError
from penstock.model.events import TransitEvent
from penstock.model.principals import Principal

# ----------------------------------------------------------------------------------------------------------------------
# Merkle trees over the columns of a block, and proofs of single events (paper 5, section 8.2).
#
# Readers of events hold the keys that the events were sealed under, and could seal others. So a broker can sign the
# blocks that it publishes. A block has a tree for each column, and the signature covers the roots of all trees:
#
#     leaf = SHA-256(0 ‖ salt ‖ value)        node = SHA-256(1 ‖ left ‖ right)        an odd node goes up as it is
#
# The salts of a column are derived from the key of its attribute, 16 bytes for each value. So a root reveals nothing
# without that key, and a reader needs only 32 bytes for each column that it cannot read. A proof of an event has, for
# each attribute that it reveals, the value, its salt, and the path to the root. Of the others it has only the roots.

SALT_BYTES: Final = 16
ROOT_BYTES: Final = 32

Tree: TypeAlias = list[list[bytes]]
"""The levels of a tree, leaves first."""


def merkle_salts(seed: bytes, number: int, rows: int) -> list[bytes]:
    """Return the salts of one column of one block. Some of them reveal nothing about the others."""
    stream = hashlib.shake_256(seed + number.to_bytes(8, "big")).digest(SALT_BYTES * rows)
    return [stream[start : start + SALT_BYTES] for start in range(0, len(stream), SALT_BYTES)]


def merkle_leaves(salts: Sequence[bytes], values: Sequence[bytes]) -> list[bytes]:
    """Return the leaves of values."""
    sha256 = hashlib.sha256
    return [sha256(b"\0" + salt + value).digest() for salt, value in zip(salts, values, strict=True)]


def merkle_tree(leaves: Sequence[bytes]) -> Tree:
    """Return the tree over at least one leaf."""
    sha256, level = hashlib.sha256, list(leaves)
    levels = [level]
    while len(level) > 1:
        above = [sha256(b"\1" + left + right).digest() for left, right in zip(level[::2], level[1::2], strict=False)]
        level = above + level[len(above) * 2 :]
        levels.append(level)
    return levels


def merkle_root(levels: Tree) -> bytes:
    """Return the root of a tree."""
    return levels[-1][0]


def merkle_path(levels: Tree, place: int) -> list[bytes]:
    """Return the siblings on the path from a leaf to the root."""
    found = []
    for level in levels[:-1]:
        beside = place ^ 1
        if beside < len(level):
            found.append(level[beside])
        place >>= 1
    return found


def climb(start: bytes, place: int, rows: int, way: Sequence[bytes]) -> bytes:
    """Return the root that follows from a leaf, its place and its path. Raises `RefusedError` (`seal.bad-proof`)."""
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
    """Return the only error for an invalid proof."""
    return RefusedError(
        "seal.bad-proof", "the proof does not prove this event", hint="it was changed, or is not a proof of Penstock"
    )


# ----------------------------------------------------------------------------------------------------------------------
# Sign blocks, and prove single events.


_LABEL: Final = b"penstock-signed-block-1 "
_PROOF: Final = b"event-proof"


def seeds(keys: Sequence[Secret | None], fixed: Fixed, names: BlockNames) -> list[Secret | None]:
    """Return the seed of each tree's salts, derived from the key of its column or of the whole event."""
    if len(keys) == 1:
        keys = [*keys] * (1 + len(names.attributes))
    inner = (column_scope(names.type, attribute) for attribute in names.attributes)
    return [
        None if key is None else Secret(derive(key, fixed.sender, fixed.incarnation, scope, Purpose.SALT))
        for key, scope in zip(keys, (str(names.type), *inner), strict=True)
    ]


class BlockSigner:
    """Signs the blocks of one stream."""

    def __init__(self, key: SigningKey, seeds: Sequence[Secret | None]) -> None:
        self._key, self._seeds = key, seeds

    def sign(self, block: Block, number: int, bound: bytes) -> bytes:
        """Return the signature section of a block."""
        roots = b"".join(merkle_root(tree.levels) for tree in _trees(block, number, self._seeds) if tree)
        return self._key.public.raw + self._key.sign(_LABEL + bound + roots) + roots


class _Section(NamedTuple):
    public: PublicKey
    signature: bytes
    roots: bytes

    def root(self, column: int) -> bytes:
        return self.roots[column * ROOT_BYTES : (column + 1) * ROOT_BYTES]


class _Tree(NamedTuple):
    salts: list[bytes]
    cells: list[bytes]
    levels: Tree


@dataclass(frozen=True, slots=True)
class SignedBlock:
    """A block whose open columns were signed by the sender. Only `verify_signature` returns one."""

    block: Block
    sender: Principal
    _bound: bytes = field(repr=False)
    _section: bytes = field(repr=False)
    _trees: Sequence[_Tree | None] = field(repr=False)

    def prove(self, place: int, attributes: Collection[str]) -> "EventProof":
        """Return a proof of one event that reveals its id, its time and some attributes, and nothing of the others.

        Raises `RefusedError` (`seal.bad-proof`) for an event or an attribute that does not exist or is closed.
        """
        names = self.block.names
        if not 0 <= place < len(self.block.ids) or not {*attributes} <= {*names.attributes}:
            raise bad_proof()
        columns = [0, *(i for i, name in enumerate(names.attributes, 1) if name in attributes)]
        shown = tuple(_show(self._trees[column], column, place) for column in columns)
        return EventProof(self._bound, names.written, self._section, place, shown)


class Shown(NamedTuple):
    """One value of a proof, and its path to the root of its column."""

    column: int
    salt: bytes
    cell: bytes
    way: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class EventProof:
    """A proof that a broker has published an event. Anyone can check it with `verify_proof`."""

    #: fixed part and counts of the block's header
    bound: bytes = field(repr=False)
    names: bytes
    section: bytes = field(repr=False)
    place: int
    shown: tuple[Shown, ...] = field(repr=False)

    def to_bytes(self) -> bytes:
        """Return the proof as bytes."""
        return encode([self.bound, self.names, self.section, self.place, [list(value) for value in self.shown]])

    @classmethod
    def from_bytes(cls, data: bytes) -> "EventProof":
        """Read a proof from bytes. Raises `MalformedError`, `LimitError` and `RefusedError` (`seal.bad-proof`)."""
        match decode(data):
            case [bytes(bound), bytes(names), bytes(section), int(place), list(shown)]:
                return cls(bound, names, section, place, tuple(map(_read_shown, shown)))
        raise bad_proof()

    def to_sexp(self) -> SExp:
        """Return the form for files."""
        return (_PROOF, (b"version", b"1"), self.to_bytes())

    @classmethod
    def from_sexp(cls, value: SExp) -> "EventProof":
        """Read the form for files. Raises as `from_bytes`."""
        match value:
            case (head, (b"version", b"1"), bytes(data)) if head == _PROOF:
                return cls.from_bytes(data)
        raise bad_proof()


class ProvenEvent(NamedTuple):
    """The revealed part of an event that its sender has signed, and when its block was sealed."""

    sender: Principal
    sealed: datetime
    event: TransitEvent
    #: the revealed attributes; one that is not in the event is null
    attributes: tuple[str, ...]
    #: its other attributes, whose values are not known
    hidden: tuple[str, ...]


def verify_signature(parts: Parts, names: BlockNames, block: Block, seeds: Sequence[Secret | None]) -> SignedBlock:
    """Check the open columns whose seeds are known against the signed roots.

    Raises `RefusedError`: `seal.unsigned` if there is no signature, and `seal.bad-signature`.
    """
    if not parts.signature:
        raise RefusedError("seal.unsigned", "the block is not signed", hint="give the sealer a signing key")
    bound = parts.bound
    # (1) The signature is the sender's, over this header, these names, and these roots.
    section = _verify_section(parts.signature, bound, names)
    # (2) The opened columns give the signed roots. Columns that cannot be checked are not accepted.
    if block.names.written != names.written or len(block.ids) != parts.rows:
        raise _bad_signature()
    trees = _trees(block, parts.number, seeds)
    for column, (tree, values) in enumerate(zip(trees, (block.ids, *block.columns), strict=True)):
        if (tree is None) != (values is None):
            raise _bad_signature()
        if tree is not None and not compare_digest(merkle_root(tree.levels), section.root(column)):
            raise _bad_signature()
    return SignedBlock(block, section.public.principal, bound, parts.signature, trees)


def verify_proof(proof: EventProof) -> ProvenEvent:
    """Return the event that a proof reveals. Raises `RefusedError` (`seal.bad-proof`), whatever the reason."""
    try:
        return _verify_proof(proof)
    except (PenstockError, ValueError):
        raise bad_proof() from None


def _verify_proof(proof: EventProof) -> ProvenEvent:
    names = read_names(proof.names)
    header, _, sealed, rows = read_bound(proof.bound)
    # (1) The signature is valid.
    section = _verify_section(proof.section, proof.bound, names)
    # (2) Each value leads to the root of its column; ids and times are among them, and no column twice.
    columns = [value.column for value in proof.shown]
    if columns[:1] != [0] or columns != sorted({*columns}) or columns[-1] > len(names.attributes):
        raise bad_proof()
    for value in proof.shown:
        [start] = merkle_leaves([value.salt], [value.cell])
        if not compare_digest(climb(start, proof.place, rows, value.way), section.root(value.column)):
            raise bad_proof()
    # (3) Only now are the values read.
    id_, time = map(decode_cell, decode_bundle(proof.shown[0].cell, 2))
    if not isinstance(id_, str) or not isinstance(time, datetime | None):
        raise bad_proof()
    values = {names.attributes[v.column - 1]: decode_cell(v.cell) for v in proof.shown[1:]}
    present = MappingProxyType({name: value for name, value in values.items() if value is not None})
    event = TransitEvent(names.type, names.ancestors, present, id_, time)
    hidden = tuple(name for name in names.attributes if name not in values)
    return ProvenEvent(Principal(header.sender), instant(sealed), event, tuple(values), hidden)


def _verify_section(data: bytes, bound: bytes, names: BlockNames) -> _Section:
    body = KEY_BYTES + SIGNATURE_BYTES
    if len(data) != body + ROOT_BYTES * (1 + len(names.attributes)):
        raise _bad_signature()
    section = _Section(PublicKey(data[:KEY_BYTES]), data[KEY_BYTES:body], data[body:])
    if section.public.principal.digest != read_bound(bound)[0].sender:
        raise _bad_signature()
    try:
        section.public.verify(_LABEL + bound + names.digest + section.roots, section.signature)
    except RefusedError:
        raise _bad_signature() from None
    return section


def _trees(block: Block, number: int, seeds: Sequence[Secret | None]) -> list[_Tree | None]:
    common = [
        encode_bundle([encode_cell(id_), encode_cell(time)]) for id_, time in zip(block.ids, block.times, strict=True)
    ]
    cells = [common, *(None if column is None else encode_cells(column) for column in block.columns)]
    return [
        None if column is None or seed is None else _tree(column, seed, number)
        for column, seed in zip(cells, seeds, strict=True)
    ]


def _tree(cells: list[bytes], seed: Secret, number: int) -> _Tree:
    salts = merkle_salts(seed.expose(), number, len(cells))
    return _Tree(salts, cells, merkle_tree(merkle_leaves(salts, cells)))


def _show(tree: _Tree | None, column: int, place: int) -> Shown:
    if tree is None:
        raise bad_proof()
    return Shown(column, tree.salts[place], tree.cells[place], tuple(merkle_path(tree.levels, place)))


def _read_shown(value: object) -> Shown:
    match value:
        case [int(column), bytes(salt), bytes(cell), list(way)] if column >= 0 and len(salt) == SALT_BYTES:
            return Shown(column, salt, cell, tuple(step if isinstance(step, bytes) else b"" for step in way))
    raise bad_proof()


def _bad_signature() -> RefusedError:
    return RefusedError(
        "seal.bad-signature",
        "the block is not what its sender has signed",
        hint="a reader wrote it, or plaintext was changed on its way",
    )

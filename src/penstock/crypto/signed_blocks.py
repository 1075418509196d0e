"""Signed blocks: who has sealed them, so that those who may only read cannot write (paper 5, section 8.2).

    signature section = public key (32) ‖ signature (64) ‖ a root for each column (32 each)
    signed            = label ‖ what every column is bound to ‖ the roots

The first root is that of ids and times; the others are those of the attributes, at event level too. Only columns that
were opened are checked, and the roots of the others are the signer's word: they have to be there for the signature to
hold. The same check is that of plaintext which travels beside the sealed block. Whether the signer may publish such
events is not asked here: that is decided by its capabilities.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hmac import compare_digest
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock.codec.block_names import BlockNames, read_names
from penstock.codec.blocks import Block, Fixed, Parts, read_bound
from penstock.codec.cells import decode_cell, encode_cell, encode_cells, instant
from penstock.codec.columns import decode_bundle, encode_bundle
from penstock.codec.sexp import SExp
from penstock.codec.wire import decode, encode
from penstock.crypto import merkle
from penstock.crypto.keys import KEY_BYTES, SIGNATURE_BYTES, PublicKey, SigningKey
from penstock.crypto.merkle import ROOT_BYTES, SALT_BYTES, bad_proof
from penstock.crypto.seal_keys import Purpose, column_scope, derive
from penstock.crypto.wrapping import Secret
from penstock.errors import PenstockError, RefusedError
from penstock.model.events import TransitEvent
from penstock.model.principals import Principal

_LABEL: Final = b"penstock-signed-block-1 "
_PROOF: Final = b"event-proof"


def seeds(keys: Sequence[Secret | None], fixed: Fixed, names: BlockNames) -> list[Secret | None]:
    """Return what the salts of each tree come from: the key of its column, or that of the event as a whole."""
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
        roots = b"".join(merkle.root(tree.levels) for tree in _trees(block, number, self._seeds) if tree)
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
    levels: merkle.Tree


@dataclass(frozen=True, slots=True)
class SignedBlock:
    """A block whose open columns are those that the sender has signed. Only `verify_signature` makes one."""

    block: Block
    sender: Principal
    _bound: bytes = field(repr=False)
    _section: bytes = field(repr=False)
    _trees: Sequence[_Tree | None] = field(repr=False)

    def prove(self, place: int, attributes: Collection[str]) -> "EventProof":
        """Return a proof of one event that shows its id, its time and some attributes, and nothing of the others.

        Raises `RefusedError` (`seal.bad-proof`) for an event or an attribute that is not there, or is closed.
        """
        names = self.block.names
        if not 0 <= place < len(self.block.ids) or not {*attributes} <= {*names.attributes}:
            raise bad_proof()
        columns = [0, *(i for i, name in enumerate(names.attributes, 1) if name in attributes)]
        shown = tuple(_show(self._trees[column], column, place) for column in columns)
        return EventProof(self._bound, names.octets, self._section, place, shown)


class Shown(NamedTuple):
    """One value of a proof, and its way to the root of its column."""

    column: int
    salt: bytes
    cell: bytes
    way: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class EventProof:
    """That a broker has published an event. It can be shown to anybody; `verify_proof` looks into it."""

    #: fixed part and counts of the block's header
    bound: bytes = field(repr=False)
    names: bytes
    section: bytes = field(repr=False)
    place: int
    shown: tuple[Shown, ...] = field(repr=False)

    def to_octets(self) -> bytes:
        """Return the form in bytes."""
        return encode([self.bound, self.names, self.section, self.place, [list(value) for value in self.shown]])

    @classmethod
    def from_octets(cls, octets: bytes) -> "EventProof":
        """Read the form in bytes. Raises `MalformedError`, `LimitError` and `RefusedError` (`seal.bad-proof`)."""
        match decode(octets):
            case [bytes(bound), bytes(names), bytes(section), int(place), list(shown)]:
                return cls(bound, names, section, place, tuple(map(_read_shown, shown)))
        raise bad_proof()

    def to_sexp(self) -> SExp:
        """Return the form in which it is kept in a file, and handed on."""
        return (_PROOF, (b"version", b"1"), self.to_octets())

    @classmethod
    def from_sexp(cls, value: SExp) -> "EventProof":
        """Read that form. Raises what `from_octets` raises."""
        match value:
            case (head, (b"version", b"1"), bytes(octets)) if head == _PROOF:
                return cls.from_octets(octets)
        raise bad_proof()


class ProvenEvent(NamedTuple):
    """An event that its sender has signed, as far as it was shown, and when its block was sealed."""

    sender: Principal
    sealed: datetime
    event: TransitEvent
    #: those that were shown; the value of one that is shown and not in the event is null
    attributes: tuple[str, ...]
    #: those that it has besides, of whose values nothing is known
    hidden: tuple[str, ...]


def verify_signature(parts: Parts, names: BlockNames, block: Block, seeds: Sequence[Secret | None]) -> SignedBlock:
    """Check the columns that are open, and whose seeds are there, against the signed roots.

    Raises `RefusedError`: `seal.unsigned` where there is no signature, and `seal.bad-signature`.
    """
    if not parts.signature:
        raise RefusedError("seal.unsigned", "the block is not signed", hint="who has sealed it must say so with a key")
    bound = parts.bound
    # (1) The signature is the sender's, over this header, these names, and these roots.
    section = _verify_section(parts.signature, bound, names)
    # (2) What was opened gives the signed roots. Nothing is believed of what cannot be checked.
    if block.names.octets != names.octets or len(block.ids) != parts.rows:
        raise _bad_signature()
    trees = _trees(block, parts.number, seeds)
    for column, (tree, values) in enumerate(zip(trees, (block.ids, *block.columns), strict=True)):
        if (tree is None) != (values is None):
            raise _bad_signature()
        if tree is not None and not compare_digest(merkle.root(tree.levels), section.root(column)):
            raise _bad_signature()
    return SignedBlock(block, section.public.principal, bound, parts.signature, trees)


def verify_proof(proof: EventProof) -> ProvenEvent:
    """Return what a proof shows. Raises `RefusedError` (`seal.bad-proof`), whatever the reason."""
    try:
        return _verify_proof(proof)
    except (PenstockError, ValueError):
        raise bad_proof() from None


def _verify_proof(proof: EventProof) -> ProvenEvent:
    names = read_names(proof.names)
    header, _, sealed, rows = read_bound(proof.bound)
    # (1) The signature holds.
    section = _verify_section(proof.section, proof.bound, names)
    # (2) Each value leads to the root of its column; ids and times are among them, and no column twice.
    columns = [value.column for value in proof.shown]
    if columns[:1] != [0] or columns != sorted({*columns}) or columns[-1] > len(names.attributes):
        raise bad_proof()
    for value in proof.shown:
        [start] = merkle.leaves([value.salt], [value.cell])
        if not compare_digest(merkle.climb(start, proof.place, rows, value.way), section.root(value.column)):
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


def _verify_section(octets: bytes, bound: bytes, names: BlockNames) -> _Section:
    body = KEY_BYTES + SIGNATURE_BYTES
    if len(octets) != body + ROOT_BYTES * (1 + len(names.attributes)):
        raise _bad_signature()
    section = _Section(PublicKey(octets[:KEY_BYTES]), octets[KEY_BYTES:body], octets[body:])
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
    salts = merkle.salts(seed.expose(), number, len(cells))
    return _Tree(salts, cells, merkle.tree(merkle.leaves(salts, cells)))


def _show(tree: _Tree | None, column: int, place: int) -> Shown:
    if tree is None:
        raise bad_proof()
    return Shown(column, tree.salts[place], tree.cells[place], tuple(merkle.path(tree.levels, place)))


def _read_shown(value: object) -> Shown:
    match value:
        case [int(column), bytes(salt), bytes(cell), list(way)] if column >= 0 and len(salt) == SALT_BYTES:
            return Shown(column, salt, cell, tuple(step if isinstance(step, bytes) else b"" for step in way))
    raise bad_proof()


def _bad_signature() -> RefusedError:
    return RefusedError(
        "seal.bad-signature",
        "the block is not what its sender has signed",
        hint="somebody who may only read has written it, or plaintext was changed on its way",
    )

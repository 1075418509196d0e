"""Open blocks: all columns whose keys are held.

1. The header names sender, incarnation and epochs, from which the keys of the columns are derived.
2. The first column must open: every reader of a type holds the type's key. It is bound to the whole header, so that the
   header is not trusted before: a changed epoch cannot make a column look as if no key were held.
3. A column without a key stays closed. A column with a key must open, or the whole block is refused.

Replays are not detected here: use `Header.id`. `admits` checks that the epoch is still open, and raises if it is not.
Readers of logs do not need it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, NoReturn, TypeAlias

from cryptography.exceptions import InvalidTag

from penstock.codec.blocks import (
    Block,
    BlockNames,
    EncodedBlock,
    Fixed,
    Level,
    Parts,
    decode_block,
    decode_events,
    read_block,
    read_fixed,
    read_parts,
    read_route,
    unbundle,
    unpad,
)
from penstock.crypto.aead import NONCE_BYTES, CipherAlgorithm, cannot_open
from penstock.crypto.blinding import Directory
from penstock.crypto.limits import CRYPTO_LIMITS, CryptoLimits
from penstock.crypto.seal_keys import KeyRing, derive_cipher, held_keys, places, scopes, unknown_key
from penstock.crypto.signed_blocks import SignedBlock, seeds, verify_signature
from penstock.crypto.wrapping import Secret
from penstock.errors import LimitError, MalformedError
from penstock.model.events import EventRows, TransitEvent
from penstock.model.names import TypeKey
from penstock.model.types import Sealing

Admits: TypeAlias = Callable[[Fixed, BlockNames], None]
"""Raises if blocks with such a header must not be opened. Nothing in the header is verified yet."""


def _admit_all(_fixed: Fixed, _names: BlockNames) -> None:
    """Open blocks of all epochs, as readers of logs do."""


def check_level(chosen: Sealing | None, fixed: Fixed, of_type: TypeKey) -> None:
    """Check that a block is sealed at the level that the owner of its type has chosen.

    Every reader of a type holds the type's key. An event that must be sealed by attribute, but is sealed as a whole
    under that key, could come from a reader that may read very little of it. In the opposite case, a version of the
    type is not known here yet. Raises `RefusedError` (`seal.cannot-open`, `seal.unknown-key`).
    """
    if chosen is Sealing.ATTRIBUTE and fixed.level is Level.EVENT:
        raise cannot_open()
    if chosen is Sealing.EVENT and fixed.level is Level.ATTRIBUTE:
        raise unknown_key(of_type)


def at_levels(chosen: Mapping[TypeKey, Sealing]) -> Admits:
    """Return an `admits` that checks the sealing levels of some types, and accepts all epochs."""

    def admit(fixed: Fixed, names: BlockNames) -> None:
        check_level(chosen.get(names.type), fixed, names.type)

    return admit


class OpeningContext(NamedTuple):
    """The keys of all blocks of one sender with the same names."""

    fixed: Fixed
    names: BlockNames
    #: `None` if no key is held
    decrypt: Sequence[Callable[[bytes, bytes, bytes], bytes] | None]
    places: Sequence[bytes]
    #: the seeds of the salts of signed blocks, after the first use
    seeds: Sequence[Secret | None] | None = None


class Opener:
    """Opens blocks with the keys of a ring. A `directory` resolves blinded routes.

    `admits` is called once for all blocks of a stream, and again when the ring or the directory has changed.
    """

    def __init__(
        self,
        keys: KeyRing,
        directory: Directory | None = None,
        *,
        admits: Admits = _admit_all,
        limits: CryptoLimits = CRYPTO_LIMITS,
    ) -> None:
        self._keys, self._directory, self._limits = keys, directory or Directory(), limits
        self._admits = admits
        self._ways: dict[tuple[bytes, bytes], OpeningContext] = {}
        self._version = (-1, -1)

    def __repr__(self) -> str:
        return "Opener()"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an opener holds keys, and is neither pickled nor copied")

    def open(self, data: bytes, wanted: Collection[str] | None = None) -> Block:
        """Open a block: all columns with a key, or the wanted ones among them.

        Raises `RefusedError`: `seal.unknown-key` without the type's key, `seal.unknown-label`, and `seal.cannot-open`
        for data that cannot be opened; and `MalformedError` and `LimitError` for data that is not a block.
        """
        return self._values(read_block(data, limits=self._limits), wanted)

    def open_events(self, data: bytes) -> EventRows:
        """Return the events of a block, with all values for which there is a key. Raises as `open`."""
        encoded = self._open(read_block(data, limits=self._limits), None)
        try:
            return decode_events(encoded)
        except MalformedError:
            raise cannot_open() from None

    def open_parts(self, header: bytes, columns: Mapping[str, bytes], wanted: Collection[str] | None = None) -> Block:
        """Open a block from its parts. Only the first column and the wanted ones are needed."""
        return self._values(read_parts(header, columns, limits=self._limits), wanted)

    def open_encoded(
        self, header: bytes, columns: Mapping[str, bytes], wanted: Collection[str] | None = None
    ) -> EncodedBlock:
        """Open a block from its parts, and return its columns as bytes, which are not checked."""
        return self._open(read_parts(header, columns, limits=self._limits), wanted)

    def way(self, header: bytes) -> OpeningContext:
        """Return the keys of all blocks whose headers have this fixed part and this route, for opening many together.

        Raises as `open`, but opens nothing yet.
        """
        parts = read_parts(header, {}, limits=self._limits)
        return self._known(parts) or self._way(parts)

    def verify(self, data: bytes, block: Block) -> SignedBlock:
        """Verify the signature of an opened block, or of plaintext that came beside a sealed block.

        Raises `RefusedError`: `seal.unsigned`, `seal.bad-signature`, and `seal.unknown-key`.
        """
        return self._verify(read_block(data, limits=self._limits), block)

    def verify_parts(self, header: bytes, block: Block) -> SignedBlock:
        """Verify the signature of a block that was opened from its parts. Raises as `verify`."""
        return self._verify(read_parts(header, {}, limits=self._limits), block)

    def _verify(self, parts: Parts, block: Block) -> SignedBlock:
        known = self._known(parts)
        way = known or self._way(parts)
        if way.seeds is None:
            keys = held_keys(self._keys, way.fixed, way.names)
            way = way._replace(seeds=seeds(keys, way.fixed, way.names))
        signed = verify_signature(parts, way.names, block, way.seeds or ())
        if way is not known:
            self._remember(parts, way)
        return signed

    def verify_events(self, data: bytes, events: Sequence[TransitEvent]) -> SignedBlock:
        """Verify the signature of all events of a block, in their order. Raises as `verify`."""
        parts = read_block(data, limits=self._limits)
        way = self._known(parts) or self._way(parts)
        names, level = way.names.attributes, way.fixed.level
        held = way.decrypt[1:] if level is Level.ATTRIBUTE else [way.decrypt[0]] * len(names)
        columns = [
            None if key is None else [event.values.get(name) for event in events]
            for name, key in zip(names, held, strict=True)
        ]
        block = Block(way.names, [event.id for event in events], [event.time for event in events], columns)
        return self.verify(data, block)

    def _values(self, parts: Parts, wanted: Collection[str] | None) -> Block:
        encoded = self._open(parts, wanted)
        try:
            return decode_block(encoded)
        except MalformedError:
            raise cannot_open() from None

    def _open(self, parts: Parts, wanted: Collection[str] | None) -> EncodedBlock:
        known = self._known(parts)
        way = known or self._way(parts)
        if parts.rows * (len(way.names.attributes) + 1) > self._limits.block_cells:
            # Before it is opened: a column of nulls is a single byte.
            raise LimitError("block.limit", "a block with too many values", hint="seal fewer events per block")
        try:
            encoded = _open(parts, way, wanted)
        except (InvalidTag, MalformedError):
            raise cannot_open() from None
        if known is None:
            self._remember(parts, way)
        return encoded

    def _known(self, parts: Parts) -> OpeningContext | None:
        if (version := (self._keys.version, self._directory.version)) != self._version:
            self._version = version
            self._ways.clear()
        return self._ways.get((parts.fixed, parts.route))

    def _remember(self, parts: Parts, way: OpeningContext) -> None:
        """Keep the derived keys of a stream after one of its blocks has opened: forged ones must not evict them."""
        if len(self._ways) >= self._limits.seal_streams:
            self._ways.pop(next(iter(self._ways)))
        self._ways[parts.fixed, parts.route] = way

    def _way(self, parts: Parts) -> OpeningContext:
        fixed = read_fixed(parts.fixed)
        names = self._directory.resolve(read_route(parts.route))
        uses = scopes(names, fixed.level)
        if len(uses) != len(fixed.epochs) or fixed.algorithm not in CipherAlgorithm.__members__.values():
            raise MalformedError("block.malformed", "a block with an unknown algorithm, or with other columns")
        self._admits(fixed, names)
        keys = held_keys(self._keys, fixed, names)
        if keys[0] is None:
            raise unknown_key(names.type)
        decrypt = [
            None if key is None else derive_cipher(key, fixed, scope, purpose).decrypt
            for key, (scope, purpose) in zip(keys, uses, strict=True)
        ]
        return OpeningContext(fixed, names, decrypt, places(len(uses)))


def _open(parts: Parts, way: OpeningContext, wanted: Collection[str] | None) -> EncodedBlock:
    nonce, bound = parts.number.to_bytes(NONCE_BYTES, "big"), parts.bound + way.names.digest
    attributes, level, decrypt = way.names.attributes, way.fixed.level, way.decrypt
    if wanted is not None and level is Level.ATTRIBUTE:
        asked = [name in wanted for name in attributes]
        decrypt = [decrypt[0], *(key if ask else None for key, ask in zip(decrypt[1:], asked, strict=True))]
    # A wanted column that is missing cannot be opened: it has no bytes.
    plain = [
        None if key is None else key(nonce, column or b"", bound + place)
        for key, column, place in zip(decrypt, parts.columns, way.places, strict=True)
    ]
    if way.fixed.padding:
        plain = [None if column is None else unpad(way.fixed.padding, column) for column in plain]
    encoded = unbundle(way.names, parts.rows, level, plain)
    if wanted is None or level is Level.ATTRIBUTE:
        return encoded
    pairs = zip(attributes, encoded.columns, strict=True)
    return encoded._replace(columns=[column if name in wanted else None for name, column in pairs])


# ----------------------------------------------------------------------------------------------------------------------
# Open one column of many blocks in a loop, for jobs whose blocks hold one event each.


def open_column(
    way: OpeningContext, place: int, nonces: Sequence[bytes], sealed: Sequence[bytes], bound: Sequence[bytes]
) -> list[bytes]:
    """Open one column of many blocks, with their associated data.

    Raises `RefusedError`: `seal.cannot-open` if one of them cannot be opened, and `seal.unknown-key`.
    """
    decrypt = way.decrypt[place]
    if decrypt is None:
        raise unknown_key(way.names.type)
    try:
        return [*map(decrypt, nonces, sealed, bound)]
    except InvalidTag:
        raise cannot_open() from None

"""Seal blocks, with one call of the cipher for each column.

Every `Sealer` draws its own incarnation, 128 random bits, from which all of its keys are derived. Its blocks are
numbered from 0, and the number is the nonce of each column, whose keys differ. So no nonce is used twice with a key,
and nothing has to be stored when a process ends. Make one for each process and for each attempt at a Spark task, after
the process has been forked. A sealer can be neither pickled nor copied.

Each column is bound to the whole header except the route, to the names of the type and of all attributes, and to its
place:

    associated data = fixed part ‖ counts ‖ SHA-256 of the names ‖ place (2 bytes)

so that a moved column does not open, and a missing column is noticed.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import count
from typing import Final, NamedTuple, NoReturn

from penstock.codec.blocks import (
    INCARNATION_BYTES,
    Block,
    BlockNames,
    EncodedBlock,
    Fixed,
    Level,
    Padding,
    PlainNames,
    Route,
    bundle,
    decode_block,
    encode_block,
    encode_events,
    pad,
    write_block,
    write_bound,
    write_fixed,
    write_route,
)
from penstock.codec.columns import microseconds
from penstock.crypto.aead import NONCE_BYTES, CipherAlgorithm
from penstock.crypto.keys import RandomBytes, SigningKey
from penstock.crypto.limits import CRYPTO_LIMITS, CryptoLimits
from penstock.crypto.seal_keys import KeyRing, derive_cipher, held_keys, places, scopes, unknown_key
from penstock.crypto.signed_blocks import BlockSigner, seeds
from penstock.errors import LimitError, MalformedError, RefusedError
from penstock.model.events import TransitEvent
from penstock.model.principals import Principal


class SealerSettings(NamedTuple):
    """The algorithm of a sealer, and how it hides lengths."""

    algorithm: CipherAlgorithm = CipherAlgorithm.AES_GCM
    padding: Padding = Padding.NONE


ALGORITHMS: Final = {one.name.lower().replace("_", "-"): one for one in CipherAlgorithm}
PADDINGS: Final = {one.name.lower(): one for one in Padding}
"""The names for people."""


class _Way(NamedTuple):
    """The common parts of all blocks with the same names, at one level."""

    fixed: bytes
    names: BlockNames
    route: bytes
    encrypt: Sequence[Callable[[bytes, bytes, bytes], bytes]]
    places: Sequence[bytes]
    signing: BlockSigner | None


class Sealer:
    """Seals blocks under the current epoch keys of a ring.

    With a `signing` key, which must be the sender's, blocks are signed as well.
    """

    def __init__(  # noqa: PLR0913  # all but the first three have a default
        self,
        keys: KeyRing,
        sender: Principal,
        random: RandomBytes,
        *,
        settings: SealerSettings = SealerSettings(),  # noqa: B008  # it does not change
        signing: SigningKey | None = None,
        limits: CryptoLimits = CRYPTO_LIMITS,
    ) -> None:
        if signing is not None and signing.principal != sender:
            raise MalformedError("seal.signer", "the signing key must be the sender's", hint="use the sender's own key")
        self.incarnation: Final = random(INCARNATION_BYTES)
        if len(self.incarnation) != INCARNATION_BYTES:
            raise MalformedError("seal.random", f"an incarnation has {INCARNATION_BYTES} random bytes")
        self._keys, self._sender, self._settings = keys, sender, settings
        self._signing, self._limits = signing, limits
        self._numbers = count()
        self._byte_count = 0
        #: by the names, and whether events are sealed as a whole
        self._ways: dict[tuple[bytes, bool], _Way] = {}
        self._version = keys.version

    def __repr__(self) -> str:
        return f"Sealer({self._sender.short})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a sealer is neither pickled nor copied: it would repeat its nonces")

    def seal(self, block: Block, time: datetime, level: Level = Level.ATTRIBUTE, route: Route | None = None) -> bytes:
        """Return a sealed block. Its route contains the names unless another route is given.

        Raises `RefusedError`: `seal.unknown-key` if no key is held for the type or an attribute, and `seal.exhausted`
        if this incarnation has sealed enough; `LimitError` (`block.limit`) if readers would refuse the block; and
        `MalformedError` for invalid values (codes as `check_value`).
        """
        return self.seal_encoded(encode_block(block), time, level, route, block)

    def seal_events(self, events: Sequence[TransitEvent], time: datetime, level: Level = Level.ATTRIBUTE) -> bytes:
        """Return a sealed block of events of one type. Raises as `seal` and `Block.of`."""
        if self._signing is not None:
            return self.seal(Block.of(events), time, level)
        return self.seal_encoded(encode_events(events), time, level)

    def seal_encoded(
        self,
        encoded: EncodedBlock,
        time: datetime,
        level: Level = Level.ATTRIBUTE,
        route: Route | None = None,
        block: Block | None = None,
    ) -> bytes:
        """Return a sealed block, made of encoded columns. `block` has their values, if available.

        Raises as `seal`. The bytes must be as `encode_column` writes them, or readers will refuse them.
        """
        way, rows = self._way(encoded.names, level), encoded.rows
        plain = bundle(encoded, level)
        if self._settings.padding:
            plain = [pad(self._settings.padding, column) for column in plain]
        number = self._next(rows, len(encoded.columns) + 1, plain)
        header = write_bound(way.fixed, number, microseconds(time), rows)
        bound = header + way.names.digest
        nonce = number.to_bytes(NONCE_BYTES, "big")
        sealed = [
            encrypt(nonce, column, bound + place)
            for encrypt, column, place in zip(way.encrypt, plain, way.places, strict=True)
        ]
        signature = way.signing.sign(block or decode_block(encoded), number, bound) if way.signing else b""
        data = write_block(header, write_route(route) if route else way.route, signature, sealed)
        if len(data) > self._limits.block_bytes:
            raise _too_large()
        return data

    def _next(self, rows: int, columns: int, plain: Sequence[bytes]) -> int:
        """Return the number of the next block. A number is never used again, even if sealing fails."""
        limits, size = self._limits, sum(map(len, plain))
        if rows > limits.block_rows or rows * columns > limits.block_cells:
            raise _too_large()
        number = next(self._numbers)
        self._byte_count += size
        if number >= limits.seal_blocks or self._byte_count > limits.seal_bytes:
            raise RefusedError(
                "seal.exhausted",
                "this sealer has reached the limit of its keys",
                hint="make a new sealer, which has new keys",
            )
        return number

    def _way(self, names: BlockNames, level: Level) -> _Way:
        if self._version != self._keys.version:
            self._version = self._keys.version
            self._ways.clear()
        form = names.written, level is Level.EVENT
        way = self._ways.get(form)
        if way is None:
            if len(self._ways) >= self._limits.seal_streams:
                self._ways.pop(next(iter(self._ways)))
            way = self._ways[form] = self._new_way(names, level)
        return way

    def _new_way(self, names: BlockNames, level: Level) -> _Way:
        uses = scopes(names, level)
        found = [(self._keys.current(scope), scope, purpose) for scope, purpose in uses]
        epochs = tuple(epoch for epoch, _, _ in found if epoch is not None)
        if len(epochs) != len(found):
            missing = next(scope for epoch, scope, _ in found if epoch is None)
            raise unknown_key(names.type, "" if missing == str(names.type) else missing)
        fixed = Fixed(
            level,
            self._signing is not None,
            self._settings.algorithm,
            self._settings.padding,
            self._sender.digest,
            self.incarnation,
            epochs,
        )
        keys = held_keys(self._keys, fixed, names)
        encrypt = [
            derive_cipher(key, fixed, scope, purpose).encrypt
            for key, (scope, purpose) in zip(keys, uses, strict=True)
            if key is not None
        ]
        signing = BlockSigner(self._signing, seeds(keys, fixed, names)) if self._signing else None
        return _Way(write_fixed(fixed), names, write_route(PlainNames(names)), encrypt, places(len(uses)), signing)


def _too_large() -> LimitError:
    return LimitError("block.limit", "too many events for one block", hint="seal fewer per block")

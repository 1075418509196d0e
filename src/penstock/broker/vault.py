"""What a broker seals and opens with the keys that it holds."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeAlias

from penstock.codec.blocks import Block, Level
from penstock.crypto.keyfile import RandomBytes
from penstock.crypto.opener import Opener
from penstock.crypto.seal_keys import KeyRing
from penstock.crypto.sealer import Sealer
from penstock.crypto.sealer import Settings as SealSettings
from penstock.errors import RefusedError
from penstock.model.events import TransitEvent
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.types import Sealing

LevelOf: TypeAlias = Callable[[TypeKey], Sealing]
"""Says how the owner of a type wants its events sealed."""

ReadsAsMuch: TypeAlias = Callable[[Principal, TypeKey], bool]
"""Says whether a neighbour may read all of a type that this broker may."""


class KeyVault:
    """A `Vault` over a ring of keys. A sealer that has sealed enough is replaced by one with keys of its own."""

    def __init__(  # noqa: PLR0913  # what sealing rests on
        self,
        keys: KeyRing,
        sender: Principal,
        level_of: LevelOf,
        reads_as_much: ReadsAsMuch,
        *,
        clock: Callable[[], datetime],
        random: RandomBytes,
        settings: SealSettings | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.keys = keys
        self._sender = sender
        self._level_of = level_of
        self._reads_as_much = reads_as_much
        self._clock = clock
        self._random = random
        self._settings = settings or SealSettings()
        self._limits = limits
        self._sealer = self._new_sealer()
        self._opener = Opener(keys, limits=limits)

    def __repr__(self) -> str:
        return f"KeyVault({self.keys!r})"

    def seals(self, of_type: TypeKey, /) -> bool:
        """Say whether events of a type travel sealed."""
        return self._level_of(of_type) is not Sealing.NONE

    def seal(self, events: Sequence[TransitEvent], /) -> bytes:
        """Seal events of one type. Raises `RefusedError` (`seal.unknown-key`), `LimitError` (`block.limit`)."""
        block = Block.of(events)
        level = Level.EVENT if self._level_of(events[0].key) is Sealing.EVENT else Level.ATTRIBUTE
        try:
            return self._sealer.seal(block, self._clock(), level)
        except RefusedError as error:
            if error.code != "seal.exhausted":
                raise
        self._sealer = self._new_sealer()
        return self._sealer.seal(block, self._clock(), level)

    def open(self, octets: bytes, /) -> Sequence[TransitEvent]:
        """Return the events of a block, with the values that may be read here. Raises `RefusedError` (`seal.*`)."""
        return self._opener.open(octets).events()

    def reads_as_much(self, peer: Principal, of_type: TypeKey, /) -> bool:
        """Say whether a neighbour may read all of a type that is read here."""
        return self._reads_as_much(peer, of_type)

    def _new_sealer(self) -> Sealer:
        return Sealer(self.keys, self._sender, self._random, settings=self._settings, limits=self._limits)

"""What a broker seals and opens with the keys that it holds."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeAlias

from penstock.broker.evolution import NO_SKEW
from penstock.broker.replays import Replays, replayed, too_old
from penstock.broker.sealed_filters import KeyFilters
from penstock.codec.block_names import Names
from penstock.codec.blocks import Block, Fixed, Header, Level, pad
from penstock.codec.encoded_blocks import bundle, encode_block
from penstock.crypto.keyfile import RandomBytes
from penstock.crypto.keys import SigningKey
from penstock.crypto.live_keys import LiveKeys
from penstock.crypto.opener import Opener, check_level
from penstock.crypto.seal_keys import closed_epoch, column_scope, scopes, unknown_key
from penstock.crypto.sealer import Sealer
from penstock.crypto.sealer import Settings as SealSettings
from penstock.errors import LimitError, RefusedError
from penstock.model.events import TransitEvent
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.types import Protection, Sealing

#: attributes from which on an event may be too long for a block though clients may publish it; what a column takes
#: besides its content (tag, length, epoch, root); by how much content may grow; and what a fabric leaves of a block
_MANY: Final = 256
_COLUMN_BYTES: Final = 128
_GROWTH: Final = 4
_SAFE: Final = 0.75

ProtectionOf: TypeAlias = Callable[[TypeKey], Protection]
"""Says what is demanded for events of a type."""

MaySign: TypeAlias = Callable[[Principal, TypeKey, tuple[str, ...]], bool]
"""Says whether a broker may publish events of a type with these attributes."""

ReadsAsMuch: TypeAlias = Callable[[Principal, TypeKey], bool]
"""Says whether a neighbour may read all of a type that this broker may."""


class Signatures(NamedTuple):
    """What signed events rest on: the key of this broker, and who may sign what."""

    key: SigningKey
    may_sign: MaySign


class KeyVault:
    """A `Vault` over a ring of keys. A sealer that has sealed enough is replaced by one with keys of its own.

    `skew` is the most that any two clocks differ.
    """

    def __init__(  # noqa: PLR0913  # what sealing rests on
        self,
        keys: LiveKeys,
        sender: Principal,
        protection_of: ProtectionOf,
        reads_as_much: ReadsAsMuch,
        *,
        clock: Callable[[], datetime],
        random: RandomBytes,
        settings: SealSettings | None = None,
        signatures: Signatures | None = None,
        skew: timedelta = NO_SKEW,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.keys = keys
        self._sender = sender
        self._protection_of = protection_of
        #: whether a neighbour may read all of a type that is read here
        self.reads_as_much = reads_as_much
        self._clock = clock
        self._random = random
        self._settings = settings or SealSettings()
        self._limits = limits
        #: blocks that were sealed since somebody asked
        self.sealed: Counter[TypeKey] = Counter()
        self._signatures = signatures
        #: one that signs, and one that does not
        self._sealers = {signed: self._new_sealer(signed=signed) for signed in (False, signatures is not None)}
        self._opener = Opener(keys, admits=self._admit, limits=limits)
        #: attributes of events that can be sealed, by the version of the ring
        self._forms: set[tuple[TypeKey, tuple[str, ...]]] = set()
        self._version = -1
        self._skew = skew
        self._window = timedelta(milliseconds=limits.seal_window) + skew
        self._replays = Replays(clock() - skew, limits)
        self.filters = KeyFilters(keys, lambda of_type: protection_of(of_type).sealing, limits)

    def __repr__(self) -> str:
        return f"KeyVault({self.keys!r})"

    def seals(self, of_type: TypeKey, /) -> bool:
        """Say whether events of a type travel sealed."""
        return self._protection_of(of_type).sealing is not Sealing.NONE

    def seal(self, events: Sequence[TransitEvent], /) -> bytes:
        """Seal events of one type. Raises `RefusedError` (`seal.unknown-key`), `LimitError` (`block.limit`)."""
        of_type = events[0].key
        self.sealed[of_type] += 1
        sealing, demanded = self._protection_of(of_type)
        level, signed = _level(sealing), demanded and self._signatures is not None
        try:
            return self._sealers[signed].seal_events(events, self._clock(), level)
        except RefusedError as error:
            if error.code != "seal.exhausted":
                raise
        self._sealers[signed] = self._new_sealer(signed=signed)
        return self._sealers[signed].seal_events(events, self._clock(), level)

    def require(self, events: Sequence[TransitEvent], /) -> None:
        """Check that events of one type can be sealed now. Raises `RefusedError` (`seal.unknown-key`)."""
        of_type = events[0].key
        needed = {str(of_type)}
        if _level(self._protection_of(of_type).sealing) is Level.ATTRIBUTE:
            forms = {tuple(event.values) for event in events}
            needed |= {column_scope(of_type, attribute) for form in forms for attribute in form}
        if any(self.keys.current(scope) is None for scope in needed):
            raise unknown_key(of_type)

    def check(self, events: Sequence[TransitEvent], /) -> None:
        """Check that there are keys for events of one type, or that some are on their way, and that they can be signed.

        Raises `RefusedError` (`seal.unknown-key`, `seal.signer`), and `LimitError` (`route.event-size`) for an event
        that is too long when it is sealed: whoever has published it would hear nothing of that later.
        """
        if self._version != self.keys.version or len(self._forms) > self._limits.cache_entries:
            self._version = self.keys.version
            self._forms.clear()
        of_type, last, grows = events[0].key, None, False
        signed = self.demands(of_type)
        for event in events:
            attributes = tuple(event.values)
            # Mostly they are those of the event before.
            if attributes != last:
                last, form = attributes, (of_type, attributes)
                if form not in self._forms:
                    self._check_form(*form)
                    self._forms.add(form)
                if signed:
                    self._check_signer(self._sender, *form)
                grows = bool(self._settings.padding) or len(attributes) > _MANY
            if grows:
                self._check_size(event)

    def _check_form(self, of_type: TypeKey, attributes: tuple[str, ...]) -> None:
        whole = self._protection_of(of_type).sealing is Sealing.EVENT or not self.keys.is_expected(str(of_type))
        for attribute in () if whole else attributes:
            if not self.keys.is_expected(column_scope(of_type, attribute)):
                raise unknown_key(of_type, attribute)

    def _check_size(self, event: TransitEvent) -> None:
        most = int(self._limits.route_block_bytes * _SAFE)
        texts = sum([len(value) for value in event.values.values() if type(value) is str])
        if _GROWTH * (texts + _COLUMN_BYTES * len(event.values)) <= most:
            return
        encoded = encode_block(Block.of([event]))
        columns = [
            pad(self._settings.padding, column)
            for column in bundle(encoded, _level(self._protection_of(event.key).sealing))
        ]
        names = (event.key, *event.ancestors, *event.values)
        octets = sum(map(len, columns)) + sum(map(len, map(str, names))) + _COLUMN_BYTES * (1 + len(event.values))
        if octets > most:
            raise LimitError(
                "route.event-size", f"an event takes more than {most} octets when it is sealed", hint="publish less"
            )

    def open(self, octets: bytes, /) -> Sequence[TransitEvent]:
        """Return the events of a block, with the values that may be read here. Raises `RefusedError` (`seal.*`)."""
        return self._opener.open_events(octets)

    def demands(self, of_type: TypeKey, /) -> bool:
        """Say whether events of a type have to be signed."""
        return self._signatures is not None and self._protection_of(of_type).signed

    def verify(self, octets: bytes, events: Sequence[TransitEvent], /) -> None:
        """Check all events of a block against its signature. Raises `RefusedError` (`seal.*`), see `Vault`."""
        signed = self._opener.verify_events(octets, events)
        self._check_signer(signed.sender, signed.block.names.type, signed.block.names.attributes)

    def _check_signer(self, sender: Principal, of_type: TypeKey, attributes: tuple[str, ...]) -> None:
        if self._signatures is None or not self._signatures.may_sign(sender, of_type, attributes):
            raise RefusedError(
                "seal.signer",
                f"{sender.short} signs events of `{of_type.name}` that it may not publish",
                hint="grant that broker `publish` on the type and all attributes, without conditions",
            )

    def take(self, header: Header, of_type: TypeKey, rows: Sequence[int], arrived: datetime, /) -> Sequence[int]:
        """Take rows of a block that was opened, each once. Raises `RefusedError` (`seal.*`), see `Vault`."""
        if header.fixed.sender == self._sender.digest:
            # What was sealed here has been taken here.
            raise replayed()
        if header.time > arrived + self._skew:
            raise RefusedError(
                "seal.future", "a block is sealed in the future", hint="set the clocks, or allow for more skew"
            )
        if header.time < arrived - self._window:
            raise too_old()
        return self._replays.first(header, of_type, rows)

    def knows(self, header: Header, of_type: TypeKey, rows: Sequence[int], /) -> bool:
        """Say whether rows of a block have been taken, or were sealed here."""
        return header.fixed.sender == self._sender.digest or self._replays.knows(header, of_type, rows)

    def now(self) -> datetime:
        """Return the time."""
        return self._clock()

    def _admit(self, fixed: Fixed, names: Names) -> None:
        """Refuse epochs that are over; what is sealed in one of which the key is still to come waits."""
        check_level(self._protection_of(names.type).sealing, fixed, names.type)
        for (scope, _), epoch in zip(scopes(names, fixed.level), fixed.epochs, strict=True):
            if self.keys.is_over(scope, epoch):
                raise closed_epoch(names.type)
            if self.keys.awaits(scope, epoch):
                raise unknown_key(names.type)

    def _new_sealer(self, *, signed: bool) -> Sealer:
        signing = self._signatures.key if signed and self._signatures else None
        return Sealer(
            self.keys, self._sender, self._random, settings=self._settings, signing=signing, limits=self._limits
        )


def _level(sealing: Sealing) -> Level:
    return Level.EVENT if sealing is Sealing.EVENT else Level.ATTRIBUTE

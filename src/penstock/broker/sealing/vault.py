"""What a broker seals and opens with the keys that it holds."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple, Protocol, TypeAlias

from penstock.broker.evolution.policy_keeper import NO_SKEW
from penstock.broker.limits import BrokerLimits
from penstock.broker.sealing.filters import KeyFilters
from penstock.codec.blocks import Block, BlockHeader, BlockNames, Fixed, Level, bundle, encode_block, pad
from penstock.crypto.keys import RandomBytes, SigningKey
from penstock.crypto.limits import CryptoLimits
from penstock.crypto.opener import Opener, check_level
from penstock.crypto.seal_keys import LiveKeys, closed_epoch, column_scope, scopes, unknown_key
from penstock.crypto.sealer import Sealer
from penstock.crypto.sealer import SealerSettings as SealSettings
from penstock.errors import LimitError, RefusedError
from penstock.model.events import TransitEvent
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.types import Protection, Sealing

# ----------------------------------------------------------------------------------------------------------------------
# Telling sealed events that come for the first time from those that somebody sends again.
#
# Outside of a block stand numbers which every broker on the way can change; inside of it, bound to every column, stand
# sender, incarnation and number. A row of a block is taken once by these. What is not remembered any more is refused:
#
# 1. Of each sender's incarnation and type a window of numbers is remembered. What lies before it is taken for a copy.
# 2. So many numbers are remembered as `BrokerLimits.seal_replays` says. The stream that was silent for longest is
#    forgotten first, and nothing of any unknown stream is taken that was sealed before the last that came of one
#    forgotten; nor, when it is known again, is anything from before that.
# 3. The same holds for what was sealed before the memory began: a broker that starts again has not to remember.
#
# Only blocks that have opened are asked about, so that nobody without keys fills the memory.


_Name: TypeAlias = tuple[bytes, bytes, TypeKey]


@dataclass(slots=True)
class _Stream:
    """The blocks of one sender, incarnation and type that came lately: the rows taken of each, as bits."""

    #: what was sealed before may have been taken before the stream was forgotten, and came again
    since: datetime
    highest: int = -1
    last: datetime | None = None
    taken: dict[int, int] = field(default_factory=dict)


class Replays:
    """See the module. `since` is when the memory begins, as early as any clock may have it."""

    def __init__(self, since: datetime, limits: BrokerLimits) -> None:
        self._limits = limits
        self._since = since
        self._streams: OrderedDict[_Name, _Stream] = OrderedDict()
        self._numbers = 0
        #: the one that spoke last
        self._latest: _Stream | None = None

    def first(self, header: BlockHeader, of_type: TypeKey, rows: Sequence[int]) -> Sequence[int]:
        """Return the places, among rising rows of a block, of those that come for the first time; take all of them.

        Raises `RefusedError`: `seal.too-old` where it is not known whether they do, `seal.replayed` where none does.
        """
        name = header.fixed.sender, header.fixed.incarnation, of_type
        stream = self._streams.get(name)
        if stream is None:
            if header.time < self._since:
                raise too_old()
            stream = self._streams[name] = _Stream(self._since)
        number, before = header.number, stream.taken.get(header.number)
        if before is None:
            if header.time < stream.since:
                raise too_old()
            if number <= stream.highest - self._limits.route_window:
                raise replayed()
            before = 0
            self._numbers += 1
        fresh = range(len(rows)) if not before else [place for place, row in enumerate(rows) if not before >> row & 1]
        if not fresh:
            raise replayed()
        stream.taken[number] = before | _bits(rows)
        if stream.last is None or header.time > stream.last:
            stream.last = header.time
        stream.highest = max(stream.highest, number)
        if stream is not self._latest:
            self._latest = stream
            self._streams.move_to_end(name)
        self._make_room(stream)
        return fresh

    def knows(self, header: BlockHeader, of_type: TypeKey, rows: Sequence[int]) -> bool:
        """Say whether all of some rising rows have come before, or come so late that nobody can tell."""
        stream = self._streams.get((header.fixed.sender, header.fixed.incarnation, of_type))
        if stream is None:
            return False
        taken = stream.taken.get(header.number)
        if taken is None:
            return header.number <= stream.highest - self._limits.route_window
        return not _bits(rows) & ~taken

    def _make_room(self, stream: _Stream) -> None:
        window = self._limits.route_window
        if len(stream.taken) > 2 * window:
            kept = {number: rows for number, rows in stream.taken.items() if number > stream.highest - window}
            self._numbers -= len(stream.taken) - len(kept)
            stream.taken = kept
        while self._numbers > self._limits.seal_replays and len(self._streams) > 1:
            _, gone = self._streams.popitem(last=False)
            self._numbers -= len(gone.taken)
            self._since = self._since if gone.last is None else max(self._since, gone.last + datetime.resolution)


def _bits(rows: Sequence[int]) -> int:
    """Return rising rows as bits; mostly they are all that there are."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return (1 << len(rows)) - 1 << rows[0]
    return sum(1 << row for row in rows)


def replayed() -> RefusedError:
    """Return the error for what has come before."""
    return RefusedError(
        "seal.replayed",
        "a sealed block has come before, or comes so late that nobody can tell",
        hint="somebody on its way sends it again",
    )


def too_old() -> RefusedError:
    """Return the error for what was sealed too long ago."""
    return RefusedError(
        "seal.too-old",
        "a block was sealed too long ago to know whether it has come before",
        hint="set the clocks; or somebody sends it again",
    )


# ----------------------------------------------------------------------------------------------------------------------
# Where sealed blocks go that a broker does not take: kept as they came, sealed, with the reason.
#
# What does not open today may open tomorrow, for somebody with the right `history`; and what somebody has forged is
# evidence. Nothing of a block is looked into here, and no plaintext is ever kept.


class Quarantine(Protocol):
    """Keeps refused blocks, not more than so many."""

    def keep(self, when: datetime, code: str, peer: Principal | None, block: bytes, /) -> None:
        """Keep a block that a peer handed on. Raises `FailedError` when it cannot be kept."""

    def __len__(self) -> int:
        """Count what is kept."""


class Nowhere:
    """For brokers without a folder: keeps nothing."""

    def keep(self, when: datetime, code: str, peer: Principal | None, block: bytes, /) -> None:
        """Let a block go."""

    def __len__(self) -> int:
        """Count nothing."""
        return 0


# ----------------------------------------------------------------------------------------------------------------------
# What a broker seals and opens with the keys that it holds.


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
        limits: BrokerLimits,
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
        self._crypto = CryptoLimits(seal_streams=limits.seal_streams)
        #: blocks that were sealed since somebody asked
        self.sealed: Counter[TypeKey] = Counter()
        self._signatures = signatures
        #: one that signs, and one that does not
        self._sealers = {signed: self._new_sealer(signed=signed) for signed in (False, signatures is not None)}
        self._opener = Opener(keys, admits=self._admit, limits=self._crypto)
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
        size = sum(map(len, columns)) + sum(map(len, map(str, names))) + _COLUMN_BYTES * (1 + len(event.values))
        if size > most:
            raise LimitError(
                "route.event-size", f"an event takes more than {most} bytes when it is sealed", hint="publish less"
            )

    def open(self, data: bytes, /) -> Sequence[TransitEvent]:
        """Return the events of a block, with the values that may be read here. Raises `RefusedError` (`seal.*`)."""
        return self._opener.open_events(data)

    def demands(self, of_type: TypeKey, /) -> bool:
        """Say whether events of a type have to be signed."""
        return self._signatures is not None and self._protection_of(of_type).signed

    def verify(self, data: bytes, events: Sequence[TransitEvent], /) -> None:
        """Check all events of a block against its signature. Raises `RefusedError` (`seal.*`), see `Vault`."""
        signed = self._opener.verify_events(data, events)
        self._check_signer(signed.sender, signed.block.names.type, signed.block.names.attributes)

    def _check_signer(self, sender: Principal, of_type: TypeKey, attributes: tuple[str, ...]) -> None:
        if self._signatures is None or not self._signatures.may_sign(sender, of_type, attributes):
            raise RefusedError(
                "seal.signer",
                f"{sender.short} signs events of `{of_type.name}` that it may not publish",
                hint="grant that broker `publish` on the type and all attributes, without conditions",
            )

    def take(self, header: BlockHeader, of_type: TypeKey, rows: Sequence[int], arrived: datetime, /) -> Sequence[int]:
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

    def knows(self, header: BlockHeader, of_type: TypeKey, rows: Sequence[int], /) -> bool:
        """Say whether rows of a block have been taken, or were sealed here."""
        return header.fixed.sender == self._sender.digest or self._replays.knows(header, of_type, rows)

    def now(self) -> datetime:
        """Return the time."""
        return self._clock()

    def _admit(self, fixed: Fixed, names: BlockNames) -> None:
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
            self.keys, self._sender, self._random, settings=self._settings, signing=signing, limits=self._crypto
        )


def _level(sealing: Sealing) -> Level:
    return Level.EVENT if sealing is Sealing.EVENT else Level.ATTRIBUTE

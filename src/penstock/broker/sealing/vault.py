"""Seal and open events with the keys that a broker holds, and refuse replayed blocks."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
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
from penstock.model.events import EventRows, TransitEvent, typed
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.types import Protection, Sealing

# ----------------------------------------------------------------------------------------------------------------------
# Detecting replays of sealed events.
#
# Every broker on the way can change the numbers outside of a block. Inside of it, sender, incarnation and number are
# bound to every column. By these, each row of a block is accepted once. Beyond the memory's reach, it is refused:
#
# 1. For each sender, incarnation and type a window of numbers is remembered. An earlier number counts as a replay.
# 2. At most `BrokerLimits.seal_replays` numbers are remembered. The stream that was silent longest is forgotten first.
#    Then no block of an unknown stream is accepted that was sealed before the last block of a forgotten stream.
# 3. The same applies to blocks that were sealed before the memory started, so a broker needs no memory across restarts.
#    If the clock was wrong then, that time is corrected with it.
#
# Only opened blocks are remembered, so nobody without keys can fill the memory.


_Name: TypeAlias = tuple[bytes, bytes, TypeKey]
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class _Stream:
    """The recent blocks of one sender, incarnation and type: the accepted rows of each, as bits."""

    #: blocks that were sealed earlier may have been accepted before the stream was forgotten
    forgotten: datetime
    highest: int = -1
    last: datetime | None = None
    taken: dict[int, int] = field(default_factory=dict)


class Replays:
    """Remembers accepted rows of sealed blocks. `since` returns when the memory started, on the slowest clock."""

    def __init__(self, since: Callable[[], datetime], limits: BrokerLimits) -> None:
        self._limits = limits
        self._since = since
        #: blocks of unknown streams that were sealed earlier may have been accepted before
        self._forgotten = _NEVER
        self._streams: OrderedDict[_Name, _Stream] = OrderedDict()
        self._numbers = 0
        #: the stream of the last block
        self._latest: _Stream | None = None

    def first(self, header: BlockHeader, of_type: TypeKey, rows: Sequence[int]) -> Sequence[int]:
        """Return the places of the rows that arrive for the first time, and remember all rows.

        Raises `RefusedError`: `seal.too-old` if the memory does not reach back, `seal.replayed` if no row is new.
        """
        name = header.fixed.sender, header.fixed.incarnation, of_type
        stream = self._streams.get(name)
        number, before = header.number, None if stream is None else stream.taken.get(header.number)
        if stream is None or before is None:
            forgotten = self._forgotten if stream is None else stream.forgotten
            if header.time < self._since() or header.time < forgotten:
                raise too_old()
            if stream is None:
                stream = self._streams[name] = _Stream(forgotten)
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
        """Return whether all rows have arrived before, or so late that it is unknown."""
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
            if gone.last is not None:
                self._forgotten = max(self._forgotten, gone.last + datetime.resolution)


def _bits(rows: Sequence[int]) -> int:
    """Return rising rows as bits. Mostly they are consecutive."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return (1 << len(rows)) - 1 << rows[0]
    return sum(1 << row for row in rows)


def replayed() -> RefusedError:
    """Return the error for a replayed block."""
    return RefusedError(
        "seal.replayed",
        "a sealed block was replayed, or arrives too late to tell",
        hint="check the brokers on its way: one of them sends it again",
    )


def too_old() -> RefusedError:
    """Return the error for a block that was sealed too long ago."""
    return RefusedError(
        "seal.too-old",
        "a block was sealed too long ago to tell whether it is a replay",
        hint="set the clocks; if they are right, a broker on its way sends it again",
    )


# ----------------------------------------------------------------------------------------------------------------------
# Quarantine for refused blocks: they are kept sealed, with the reason.
#
# A block that does not open now may open later, for somebody with the right `history`. A forged block is evidence. The
# quarantine does not open blocks, and never keeps plaintext.


class Quarantine(Protocol):
    """Keeps a bounded number of refused blocks."""

    def keep(self, when: datetime, code: str, peer: Principal | None, block: bytes, /) -> None:
        """Keep a block that a peer forwarded. Raises `FailedError` if it cannot be kept."""

    def __len__(self) -> int:
        """Return the number of kept blocks."""


class Nowhere:
    """A quarantine that keeps nothing, for brokers without a folder."""

    def keep(self, when: datetime, code: str, peer: Principal | None, block: bytes, /) -> None:
        """Drop a block."""

    def __len__(self) -> int:
        """Return 0."""
        return 0


# ----------------------------------------------------------------------------------------------------------------------
# The vault.


#: the number of attributes above which a permitted event may be too long for a block; the size of a column besides its
#: content (tag, length, epoch, root); the factor by which content may grow; and the share that a fabric leaves
_MANY: Final = 256
_COLUMN_BYTES: Final = 128
_GROWTH: Final = 4
_SAFE: Final = 0.75

ProtectionOf: TypeAlias = Callable[[TypeKey], Protection]
"""Returns the protection that a type's owner demands."""

MaySign: TypeAlias = Callable[[Principal, TypeKey, tuple[str, ...]], bool]
"""Returns whether a broker may publish events of a type with these attributes."""

ReadsAsMuch: TypeAlias = Callable[[Principal, TypeKey], bool]
"""Returns whether a neighbour may read everything of a type that this broker may."""


class Signatures(NamedTuple):
    """What signing events needs: this broker's key, and who may sign what."""

    key: SigningKey
    may_sign: MaySign


class KeyVault:
    """A `Vault` over a key ring. A sealer that has sealed enough is replaced by a new one.

    `began` returns when this broker started, by its clock as it is now. `skew` bounds the difference between any two
    clocks.
    """

    def __init__(  # noqa: PLR0913  # what sealing rests on
        self,
        keys: LiveKeys,
        sender: Principal,
        protection_of: ProtectionOf,
        reads_as_much: ReadsAsMuch,
        *,
        clock: Callable[[], datetime],
        began: Callable[[], datetime],
        random: RandomBytes,
        settings: SealSettings | None = None,
        signatures: Signatures | None = None,
        skew: timedelta = NO_SKEW,
        limits: BrokerLimits,
    ) -> None:
        self.keys = keys
        self._sender = sender
        self._protection_of = protection_of
        #: whether a neighbour may read everything of a type that this broker may
        self.reads_as_much = reads_as_much
        self._clock = clock
        self._random = random
        self._settings = settings or SealSettings()
        self._limits = limits
        self._crypto = CryptoLimits(seal_streams=limits.seal_streams)
        #: sealed blocks since the counter was last taken
        self.sealed: Counter[TypeKey] = Counter()
        self._signatures = signatures
        #: the sealer that signs, and the one that does not
        self._sealers = {signed: self._new_sealer(signed=signed) for signed in (False, signatures is not None)}
        self._opener = Opener(keys, admits=self._admit, limits=self._crypto)
        #: forms of events that can be sealed with this version of the key ring
        self._forms: set[tuple[TypeKey, tuple[str, ...]]] = set()
        self._version = -1
        self._skew = skew
        self._window = timedelta(milliseconds=limits.seal_window) + skew
        self._replays = Replays(lambda: began() - skew, limits)
        self.filters = KeyFilters(keys, lambda of_type: protection_of(of_type).sealing, limits)

    def __repr__(self) -> str:
        return f"KeyVault({self.keys!r})"

    def seals(self, of_type: TypeKey, /) -> bool:
        """Return whether events of a type travel sealed."""
        return self._protection_of(of_type).sealing is not Sealing.NONE

    def seal(self, events: Sequence[TransitEvent], /) -> bytes:
        """Seal events of one type. Raises `RefusedError` (`seal.unknown-key`), `LimitError` (`block.limit`)."""
        of_type = typed(events).key
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
        """Raise `RefusedError` (`seal.unknown-key`) if events of one type cannot be sealed now."""
        of_type = typed(events).key
        needed = {str(of_type)}
        if _level(self._protection_of(of_type).sealing) is Level.ATTRIBUTE:
            forms = {tuple(event.values) for event in events}
            needed |= {column_scope(of_type, attribute) for form in forms for attribute in form}
        if any(self.keys.current(scope) is None for scope in needed):
            raise unknown_key(of_type)

    def check(self, events: Sequence[TransitEvent], /) -> None:
        """Check that events of one type can be sealed, now or when keys arrive, and that they can be signed.

        Raises `RefusedError` (`seal.unknown-key`, `seal.signer`), and `LimitError` (`route.event-size`) for an event
        that would be too long when sealed: its publisher could not learn that later.
        """
        if self._version != self.keys.version or len(self._forms) > self._limits.cache_entries:
            self._version = self.keys.version
            self._forms.clear()
        of_type, last, grows = typed(events).key, None, False
        signed = self.demands(of_type)
        if type(events) is EventRows and not signed and not self._settings.padding and len(events.layout) <= _MANY:
            # What all of them have together can be sealed, if and only if each of them can.
            form = of_type, events.attributes
            if form not in self._forms:
                self._check_form(*form)
                self._forms.add(form)
            return
        for event in events:
            attributes = tuple(event.values)
            # Mostly the same as in the event before.
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
                "route.event-size", f"an event takes more than {most} bytes when sealed", hint="publish shorter values"
            )

    def open(self, data: bytes, /) -> Sequence[TransitEvent]:
        """Return the events of a block, with the values that this broker may read. Raises `RefusedError` (`seal.*`)."""
        return self._opener.open_events(data)

    def demands(self, of_type: TypeKey, /) -> bool:
        """Return whether events of a type must be signed."""
        return self._signatures is not None and self._protection_of(of_type).signed

    def verify(self, data: bytes, events: Sequence[TransitEvent], /) -> None:
        """Verify the signature of all events of a block. Raises `RefusedError` (`seal.*`), see `Vault`."""
        signed = self._opener.verify_events(data, events)
        self._check_signer(signed.sender, signed.block.names.type, signed.block.names.attributes)

    def _check_signer(self, sender: Principal, of_type: TypeKey, attributes: tuple[str, ...]) -> None:
        if self._signatures is None or not self._signatures.may_sign(sender, of_type, attributes):
            raise RefusedError(
                "seal.signer",
                f"{sender.short} has signed events of `{of_type.name}` that it may not publish",
                hint="grant it `publish` on the type and all attributes, without conditions",
            )

    def take(self, header: BlockHeader, of_type: TypeKey, rows: Sequence[int], arrived: datetime, /) -> Sequence[int]:
        """Accept each row of an opened block once. Raises `RefusedError` (`seal.*`), see `Vault`."""
        if header.fixed.sender == self._sender.digest:
            # This broker has sealed it, and so delivered it already.
            raise replayed()
        if header.time > arrived + self._skew:
            raise RefusedError(
                "seal.future", "a block was sealed in the future", hint="set the clocks, or allow for more skew"
            )
        if header.time < arrived - self._window:
            raise too_old()
        return self._replays.first(header, of_type, rows)

    def knows(self, header: BlockHeader, of_type: TypeKey, rows: Sequence[int], /) -> bool:
        """Return whether rows of a block were accepted before, or sealed by this broker."""
        return header.fixed.sender == self._sender.digest or self._replays.knows(header, of_type, rows)

    def now(self) -> datetime:
        """Return the time."""
        return self._clock()

    def _admit(self, fixed: Fixed, names: BlockNames) -> None:
        """Refuse blocks of past epochs; raise `seal.unknown-key` if a key is still awaited."""
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

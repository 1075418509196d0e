"""Sealed events between brokers: blocks that carrying brokers need not read, and what a broker with keys reads.

A sealed block is forwarded unchanged. Beside it are the numbers of its events, and the rows that are wanted, if a
broker on the way could tell that others are not. The plaintext goes beside it only to a next broker that may read as
much (dissertation, section 7.4). Without plaintext and keys, a broker knows only the events' type and routes by it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, Protocol, TypeAlias, TypeVar

from penstock.broker.limits import BrokerLimits
from penstock.broker.matching.matcher import Matcher, Values
from penstock.broker.sealing.filters import Column, Filters, NoFilters, OpenedFilter
from penstock.broker.wire.entries import AnyFilter, SealedFilter
from penstock.broker.wire.plain_trees import Tree, malformed, principal_tree, read_principal, too_many
from penstock.broker.wire.publications import Publications, pick
from penstock.codec.blocks import (
    FIRST,
    Blinded,
    BlockHeader,
    BlockNames,
    Fixed,
    Level,
    PlainNames,
    Route,
    bundle,
    decode_events,
    encode_events,
    encode_events_as,
    read_block,
    read_fixed,
    read_header,
    read_route,
    unbundle,
    write_route,
    written_route,
)
from penstock.codec.limits import BLOCK_CELLS, FRAME_BYTES, ROUTE_BLOCK_BYTES, ROUTE_BLOCK_EVENTS
from penstock.crypto.blinding import blinded_key
from penstock.errors import LimitError, MalformedError, RefusedError
from penstock.model.events import EventRows, TransitEvent, typed
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.values import INTEGER_MAX, Scalar

# ----------------------------------------------------------------------------------------------------------------------
# Rising numbers on the wire, as runs: the first number of each run, and its length.
#
# Events that come together mostly have consecutive numbers, so those of a large block take no more room than one.


def write_runs(numbers: Sequence[int]) -> list[Tree]:
    """Return at least one rising number as runs."""
    first, count = numbers[0], len(numbers)
    if numbers[-1] - first + 1 == count:
        return [first, count]
    starts = [place for place in range(count) if not place or numbers[place] != numbers[place - 1] + 1]
    ends = [*starts[1:], count]
    return [*chain.from_iterable((numbers[start], end - start) for start, end in zip(starts, ends, strict=True))]


def read_runs(runs: list[Any], most: int) -> tuple[int, ...]:
    """Read runs of numbers from 0 to `most`, each as long as it can be. Raises `MalformedError`."""
    if len(runs) == 2 and type(runs[0]) is type(runs[1]) is int:  # as it mostly is
        first, count = runs
        if 0 <= first <= most + 1 - count and 0 < count <= ROUTE_BLOCK_EVENTS:
            return (first,) if count == 1 else tuple(range(first, first + count))
    if not runs or len(runs) % 2 or not {int}.issuperset(map(type, runs)):
        malformed("runs that are not pairs of numbers")
    end, total = -1, 0
    for first, count in zip(runs[::2], runs[1::2], strict=True):
        total += count
        if first <= end or count < 1 or total > ROUTE_BLOCK_EVENTS:
            malformed("numbers that do not rise, or too many")
        end = first + count
    if end > most + 1:
        malformed("numbers that are too high")
    return tuple(
        chain.from_iterable(range(first, first + count) for first, count in zip(runs[::2], runs[1::2], strict=True))
    )


# ----------------------------------------------------------------------------------------------------------------------
# Sealed blocks.


class Vault(Protocol):
    """Seals and opens a broker's events."""

    @property
    def filters(self) -> Filters:
        """Seals and opens filters."""

    def seals(self, of_type: TypeKey, /) -> bool:
        """Return whether events of a type travel sealed."""

    def seal(self, events: Sequence[TransitEvent], /) -> bytes:
        """Seal events of one type. Raises `RefusedError` (`seal.*`)."""

    def require(self, events: Sequence[TransitEvent], /) -> None:
        """Raise `RefusedError` (`seal.*`) if keys to seal events of one type are missing now."""

    def open(self, data: bytes, /) -> Sequence[TransitEvent]:
        """Return the events of a block, with the values that this broker may read.

        Raises `RefusedError` (`seal.unknown-key` if a key is missing, perhaps only for now, `seal.closed-epoch`,
        `seal.cannot-open`) and `MalformedError`.
        """

    def demands(self, of_type: TypeKey, /) -> bool:
        """Return whether events of a type are delivered only if signed by a broker that may publish them."""

    def verify(self, data: bytes, events: Sequence[TransitEvent], /) -> None:
        """Verify the signature of all events of a block, and that the signer may publish such events.

        Raises `RefusedError`: `seal.unsigned`, `seal.bad-signature`, `seal.signer`.
        """

    def take(self, header: BlockHeader, of_type: TypeKey, rows: Sequence[int], arrived: datetime, /) -> Sequence[int]:
        """Record rising rows of an opened block; return the places of those that arrive for the first time.

        Raises `RefusedError`: `seal.future`, `seal.too-old`, `seal.replayed`.
        """

    def knows(self, header: BlockHeader, of_type: TypeKey, rows: Sequence[int], /) -> bool:
        """Return whether rows of an unopened block have arrived before, if its header is true."""

    def now(self) -> datetime:
        """Return the time."""

    def reads_as_much(self, peer: Principal, of_type: TypeKey, /) -> bool:
        """Return whether a neighbour may read everything of a type that this broker may."""


class NoVault:
    """A vault without keys: such a broker seals nothing, and forwards sealed blocks unread."""

    filters = NoFilters()

    def seals(self, _of_type: TypeKey, /) -> bool:
        """Seal nothing."""
        return False

    def seal(self, _events: Sequence[TransitEvent], /) -> bytes:
        """Refuse: there are no keys."""
        raise RefusedError("seal.unknown-key", "this broker has no keys", hint="let it join the key group")

    def require(self, _events: Sequence[TransitEvent], /) -> None:
        """Refuse: there are no keys."""
        raise RefusedError("seal.unknown-key", "this broker has no keys", hint="let it join the key group")

    def open(self, _data: bytes, /) -> Sequence[TransitEvent]:
        """Refuse: there are no keys."""
        raise RefusedError("seal.unknown-key", "this broker has no keys", hint="let it join the key group")

    def demands(self, _of_type: TypeKey, /) -> bool:
        """Demand nothing."""
        return False

    def verify(self, _data: bytes, _events: Sequence[TransitEvent], /) -> None:
        """Check nothing."""

    def take(
        self, _header: BlockHeader, _of_type: TypeKey, rows: Sequence[int], _arrived: datetime, /
    ) -> Sequence[int]:
        """Take everything: nothing opens here."""
        return range(len(rows))

    def knows(self, _header: BlockHeader, _of_type: TypeKey, _rows: Sequence[int], /) -> bool:
        """Say that everything has come before: nothing opens here, so that nobody could tell."""
        return True

    def now(self) -> datetime:
        """Return a time: nothing depends on it."""
        return _NEVER

    def reads_as_much(self, _peer: Principal, _of_type: TypeKey, /) -> bool:
        """Trust nobody with what is not read here either."""
        return False


_NO_BLOCK: Final = b""
#: the values of events that are closed
_UNKNOWN: Final[Mapping[str, Scalar]] = MappingProxyType({})
#: of a frame, what numbers and rows may take, and all else that is neither a block nor plaintext
_REST: Final = 64 << 10
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class SealedPublications(Publications):
    """Events on their way in a sealed block. While it is `closed`, nothing but their type is known of them.

    `places` are the rows of the block that are meant, one for each event.
    """

    KIND: ClassVar = "sealed"
    block: bytes = field(default=_NO_BLOCK, repr=False)
    places: tuple[int, ...] = ()
    closed: bool = True
    #: whether the events go in plaintext beside the block; while it is closed nobody has looked at it
    beside: bool = False
    #: what the block says of itself, where it came from somebody else
    header: BlockHeader | None = field(default=None, repr=False, compare=False)

    @classmethod
    def sealing(cls, plain: Publications, vault: Vault) -> "SealedPublications":
        """Seal events that are published here.

        Raises what the vault raises, and `RefusedError` (`seal.retained`) for retained events: slot and state are
        outside of the seal, so any broker on the way could make an old event the current one.
        """
        if plain.retain:
            raise RefusedError("seal.retained", "events of a sealed type cannot be retained", hint="name no slot")
        block, places = vault.seal(plain.events), tuple(range(len(plain.numbers)))
        return cls(
            plain.origin,
            plain.incarnation,
            plain.numbers,
            plain.events,
            plain.hops,
            block=block,
            places=places,
            closed=False,
        )

    @classmethod
    def sealing_all(cls, plain: Publications, vault: Vault, limits: BrokerLimits) -> "list[SealedPublications]":
        """Seal events that are published here, in as many blocks as needed.

        Raises what `sealing` raises, and `LimitError` (`route.event-size`).
        """
        count = len(plain.numbers)
        if count <= limits.route_block_events:
            sealed = cls.sealing(plain, vault)
            if len(sealed.block) <= limits.route_block_bytes:
                return [sealed]
            if count == 1:
                raise _too_long(limits)
        halves = range(count // 2), range(count // 2, count)
        return [part for half in halves for part in cls.sealing_all(plain.pick(half), vault, limits)]

    @property
    def is_foreign(self) -> bool:
        """Whether another broker has sealed it."""
        return self.header is not None

    def hidden(self) -> "SealedPublications":
        """Return the same without the plaintext beside it, which is not trusted."""
        if self.closed and not self._columns:
            return self
        events = (TransitEvent(self.type, self.ancestors, _UNKNOWN),) * len(self.numbers)
        return self._with(self.numbers, events, self.places, closed=True)

    def believed(self) -> "SealedPublications":
        """Return the same with the events from the plaintext beside it. Raises `MalformedError` and `LimitError`."""
        if not self.closed or not self._columns:
            return self
        names, rows = self._names(), len(self.numbers)
        if rows * (len(names.attributes) + 1) > BLOCK_CELLS:
            # As in sealed columns, a column of nulls takes a single byte.
            too_many("values beside a sealed block", BLOCK_CELLS)
        events = decode_events(unbundle(names, rows, Level.EVENT, [self._columns]))
        return self._with(self.numbers, events, self.places, closed=False, beside=True, written=True)

    def _names(self) -> BlockNames:
        """Return the names of the block, which the plaintext beside it shares."""
        route = (self.header or read_header(self.block)).route
        return malformed("plaintext beside a blinded block") if isinstance(route, Blinded) else route.names

    def _write(self) -> bytes:
        """Return the plaintext to put beside the block: its columns before they were sealed."""
        if not self._columns:
            encoded = encode_events(self.events)
            if written_route(self.block) != write_route(PlainNames(encoded.names)):
                # The block has further events, so that these lack some of its attributes or have another order.
                encoded = encode_events_as(self._names(), self.events)
            (self._columns,) = bundle(encoded, Level.EVENT)
        return self._columns

    @property
    def is_whole(self) -> bool:
        """Whether all rows of the block are wanted."""
        return self.header is not None and len(self.places) == self.header.rows

    def opened(self, vault: Vault, *, verified: bool = False) -> "SealedPublications":
        """Return the same with the events that this broker can read; unchanged if a key is missing.

        With `verified`, the signature of what is read is verified, also of plaintext beside a whole block. Raises
        `RefusedError` (`seal.closed-epoch`, `seal.cannot-open`, and what `Vault.verify` raises) and `MalformedError`
        for a malformed block.
        """
        if not self.closed:
            if verified:
                vault.verify(self.block, self.events)
            return self
        try:
            rows = vault.open(self.block)
        except RefusedError as error:
            if error.code == "seal.unknown-key":
                return self
            raise
        if verified:
            vault.verify(self.block, rows)
        events = rows if len(rows) == len(self.places) else pick(rows, self.places)
        return self._with(self.numbers, events, self.places, closed=False)

    def pick(self, places: Sequence[int]) -> "SealedPublications":
        """Return the events at rising places."""
        if len(places) == len(self.numbers):
            return self
        numbers = tuple([self.numbers[place] for place in places])
        held = tuple([self.places[place] for place in places])
        return self._with(numbers, pick(self.events, places), held, closed=self.closed)

    def onward(self, *, beside: bool = False) -> "SealedPublications":
        """Return the same, one hop further, for a neighbour that gets the plaintext beside it or not."""
        beside = beside and (not self.closed or bool(self._columns))
        return self._with(self.numbers, self.events, self.places, closed=self.closed, further=1, beside=beside)

    def parts(self, limits: BrokerLimits) -> Iterator["SealedPublications"]:
        """Yield itself: a block travels whole. Raises `LimitError` (`route.event-size`)."""
        if len(self.block) > limits.route_block_bytes:
            raise _too_long(limits)
        yield self

    def _with(  # noqa: PLR0913  # the fields that a copy can change
        self,
        numbers: tuple[int, ...],
        events: Sequence[TransitEvent],
        places: tuple[int, ...],
        *,
        closed: bool,
        further: int = 0,
        beside: bool = False,
        written: bool = False,
    ) -> "SealedPublications":
        written = written or events is self.events
        return SealedPublications(
            self.origin,
            self.incarnation,
            numbers,
            events,
            self.hops + further,
            self.retain,
            self.state,
            None,
            self._columns if written else b"",
            self.block,
            places,
            closed,
            beside,
            self.header,
        )

    def to_tree(self) -> list[Tree]:
        """Return the body as a plain tree."""
        plain: list[Tree] = []
        if self.beside:
            columns = self._write()
            whole = len(self.block) + len(columns)
            # If it is too long, the block alone is enough.
            if len(columns) <= ROUTE_BLOCK_BYTES and whole <= FRAME_BYTES - _REST:
                plain = [columns]
        head: list[Tree] = [principal_tree(self.origin), self.incarnation, self.hops, self.retain, self.state]
        return [*head, write_runs(self.numbers), write_runs(self.places), self.block, plain]

    @classmethod
    def from_tree(cls, tree: object) -> "SealedPublications":
        """Read a body. Raises `MalformedError` and `LimitError` (`message.limit`, `block.limit`)."""
        if type(tree) is not list or tuple(map(type, tree)) != cls._SHAPE:
            malformed("sealed events")
        origin, incarnation, hops, retain, state, numbers, places, block, plain = tree
        if not (0 <= incarnation <= INTEGER_MAX and 0 <= hops <= INTEGER_MAX):
            malformed("the counts of sealed events")
        if retain or state:
            malformed("sealed events that are kept as state")
        if len(block) > ROUTE_BLOCK_BYTES:
            too_many("bytes of a sealed block", ROUTE_BLOCK_BYTES)
        header = read_header(block)
        if header.rows > ROUTE_BLOCK_EVENTS:
            # No broker seals such blocks: a few bytes of nulls would open to a million events.
            too_many("events in a sealed block", ROUTE_BLOCK_EVENTS)
        numbers, places = read_runs(numbers, INTEGER_MAX), read_runs(places, header.rows - 1)
        if len(numbers) != len(places):
            malformed("sealed events without numbers, or numbers without events")
        events = (_blank(header.route),) * len(numbers)
        columns = _read_beside(plain, header.route) if plain else b""
        return cls(
            read_principal(origin),
            incarnation,
            numbers,
            events,
            hops,
            retain,
            state,
            None,
            columns,
            block,
            places,
            beside=bool(plain),
            header=header,
        )

    _SHAPE: ClassVar = (bytes, int, int, str, bool, list, list, bytes, list)


def _read_beside(plain: list[object], route: Route) -> bytes:
    """Return the plaintext beside a block undecoded: a broker that only forwards it does not read it."""
    columns = plain[0] if len(plain) == 1 else None
    if type(columns) is not bytes or not columns or isinstance(route, Blinded):
        malformed("the plaintext beside a sealed block")
    if len(columns) > ROUTE_BLOCK_BYTES:
        too_many("bytes of events", ROUTE_BLOCK_BYTES)
    return columns


def _blank(route: Route) -> TransitEvent:
    """Return an event of an unopened block: it has only its type and ancestors, or a label."""
    return TransitEvent(blinded_key(route.type), (), _UNKNOWN) if isinstance(route, Blinded) else route.names.blank


def _too_long(limits: BrokerLimits) -> LimitError:
    return LimitError("route.event-size", f"a sealed block takes more than {limits.route_block_bytes} bytes")


def not_sealed(of_type: TypeKey) -> RefusedError:
    """Return the error for plaintext events of a sealed type."""
    return RefusedError(
        "seal.missing",
        f"events of `{of_type.name}` arrived unsealed, but the type's owner requires sealing",
        hint="check the sender: it does not use the owner's definition, or the events are forged",
    )


# ----------------------------------------------------------------------------------------------------------------------
# Which filters match which events of a sealed block, as far as a broker can tell.


K = TypeVar("K")
Match: TypeAlias = Callable[[Values], tuple[K, ...]]

_NOTHING_OPEN: Final = OpenedFilter((), ())
_REMEMBERED: Final = 1_024


class SealedIndex(Generic[K]):
    """Filters on a sealed type by key. An unsealed filter matches everything, because its sender may hold no keys.

    There is a matcher over the opened parts for each set of columns and epochs that blocks have: few at a time.
    """

    def __init__(self, of_type: TypeKey, filters: Filters, limits: BrokerLimits) -> None:
        self._type, self._filters, self._limits = of_type, filters, limits
        self._version = filters.version
        #: whether other parts are open than at the last `rekeyed`
        self._differs = False
        self._held: dict[K, AnyFilter] = {}
        self._opened: dict[K, OpenedFilter] = {}
        #: how many open parts are about each column
        self._asked: Counter[Column] = Counter()
        self._matchers: dict[frozenset[Column], Matcher[K]] = {}

    def add(self, key: K, filter_: AnyFilter) -> None:
        """Add a filter, or replace the one that the key had."""
        self.remove(key)
        self._held[key] = filter_
        self._open(key, filter_)

    def remove(self, key: K) -> None:
        """Remove a filter, if there is one."""
        if self._held.pop(key, None) is None:
            return
        self._asked -= Counter(clause.column for clause in self._opened.pop(key).clauses)
        for matcher in self._matchers.values():
            matcher.remove(key)

    def matcher(self, block: SealedPublications) -> Match[K] | None:
        """Return the matcher for the events of a block; None if all filters may match."""
        self._refresh()
        if block.closed or not self._asked:
            return None
        columns = frozenset(one for one in self._columns(block) if one in self._asked and _shows(block, one))
        return self._matcher(columns).match if columns else None

    @property
    def asks(self) -> bool:
        """Whether the content of a block matters to some filter."""
        self._refresh()
        return bool(self._asked)

    def rekeyed(self) -> bool:
        """Return whether new or lost keys have opened or closed parts since the last call."""
        self._refresh()
        differs, self._differs = self._differs, False
        return differs

    def _matcher(self, columns: frozenset[Column]) -> Matcher[K]:
        found = self._matchers.get(columns)
        if found is None:
            if len(self._matchers) >= self._limits.filter_indexes:
                self._matchers.pop(next(iter(self._matchers)))
            found = self._matchers[columns] = Matcher(self._limits)
            for key, opened in self._opened.items():
                found.add(key, opened.where(columns))
        return found

    def _columns(self, block: SealedPublications) -> Iterable[Column]:
        """Return the columns of a block, as far as this broker knows their names."""
        header = block.header
        fixed, route = _opening(block.block) if header is None else (header.fixed, header.route)
        if fixed.level is Level.EVENT:
            return ((FIRST, fixed.epochs[0]),)
        return zip(self._filters.attributes(route), fixed.epochs[1:], strict=False)

    def _open(self, key: K, filter_: AnyFilter) -> None:
        opened = self._filters.open(self._type, filter_) if isinstance(filter_, SealedFilter) else _NOTHING_OPEN
        self._opened[key] = opened
        self._asked.update(clause.column for clause in opened.clauses)
        for columns, matcher in self._matchers.items():
            matcher.add(key, opened.where(columns))

    def _refresh(self) -> None:
        """Open the filters again if the keys have changed."""
        if self._version == self._filters.version:
            return
        self._version = self._filters.version
        for key, filter_ in self._held.items():
            opened = self._opened[key]
            if isinstance(filter_, SealedFilter) and self._filters.open(self._type, filter_) != opened:
                self._asked -= Counter(clause.column for clause in opened.clauses)
                self._open(key, filter_)
                self._differs = True


def _opening(block: bytes) -> tuple[Fixed, Route]:
    """Read the part of a block that all blocks of a stream have in common."""
    parts = read_block(block)
    return _read_opening(parts.fixed, parts.route)


@lru_cache(maxsize=_REMEMBERED)
def _read_opening(fixed: bytes, route: bytes) -> tuple[Fixed, Route]:
    return read_fixed(fixed), read_route(route)


def _shows(block: SealedPublications, column: Column) -> bool:
    """Return whether a column is open: an attribute without any value may not have been opened so far."""
    attribute, _ = column
    return attribute == FIRST or any(attribute in event.values for event in block.events)


# ----------------------------------------------------------------------------------------------------------------------
# Events of sealed types before they are sealed: collected by type, until there are enough or the oldest has lingered.
#
# Clients' events of one type go into one block, in their order, because sealing costs by the block. The state machine
# reads no clock: `due` says when the driver must call `ready`.
#
# Events whose keys are missing wait here too, without a time limit. A client's events are accepted when they are here,
# like events that wait on a link: they have been checked before.


Holds: TypeAlias = Callable[[TypeKey], bool]
"""Returns whether events of a type must wait, because they cannot be sealed yet."""

#: the approximate size in a block of an event, and of a value that is not text
_EVENT_BYTES: Final = 64
_VALUE_BYTES: Final = 8
_LONGEST: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lingering:
    """How long an event waits for others to be sealed with it, and the most events of a block.

    Raises `MalformedError` (`seal.settings`).
    """

    linger: timedelta = timedelta()
    events: int = 128

    def __post_init__(self) -> None:
        if not timedelta() <= self.linger <= _LONGEST or not 0 < self.events <= ROUTE_BLOCK_EVENTS:
            raise MalformedError(
                "seal.settings",
                f"events must linger for 0 to 1 seconds, in blocks of 1 to {ROUTE_BLOCK_EVENTS} events",
            )


#: the default of a node
LINGERING: Final = Lingering(linger=timedelta(milliseconds=2))


@dataclass(slots=True)
class _Batch:
    due: datetime
    events: list[TransitEvent] = field(default_factory=list)
    size: int = 0
    #: it is due, but cannot be sealed
    held: bool = False
    #: how many of the first events were taken out and put back
    returned: int = 0


class BlockBuilder:
    """Collects clients' events of sealed types into blocks."""

    def __init__(self, lingering: Lingering, limits: BrokerLimits, holds: Holds) -> None:
        self._lingering, self._limits, self._holds = lingering, limits, holds
        #: how many events are a block without waiting for others
        self._full = self._lingering.events if self._lingering.linger else 1
        self._batches: dict[TypeKey, _Batch] = {}
        self._events = 0
        self._bytes = 0

    def __len__(self) -> int:
        return self._events

    def put(self, now: datetime, events: Sequence[TransitEvent]) -> list[Sequence[TransitEvent]]:
        """Add events of one type; return the events to seal now, block by block.

        Raises `RefusedError` (`seal.buffer-full`).
        """
        key = typed(events).key
        batch = self._batches.get(key)
        if batch is None and self._is_full(events) and not self._holds(key):
            return [events if type(events) in (tuple, EventRows) else tuple(events)]
        size = sum(map(_size_of, events))
        self._check_room(key, len(events), size)
        ready: list[Sequence[TransitEvent]] = []
        if batch is not None and not self._fits(batch, len(events), size):
            ready += self._take(key)
            batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = _Batch(now + self._lingering.linger)
        batch.events += events
        batch.size += size
        self._count(len(events), size)
        if now >= batch.due or not self._fits(batch, 1, 0):
            ready += self._take(key)
        return ready

    def keep(self, now: datetime, events: Sequence[TransitEvent]) -> None:
        """Put back events that could not be sealed after all, before later events of their type."""
        key = typed(events).key
        batch, size = self._batches.setdefault(key, _Batch(now)), sum(map(_size_of, events))
        # Several blocks of a type are put back in their order.
        batch.events[batch.returned : batch.returned] = events
        batch.held, batch.returned, batch.size = True, batch.returned + len(events), batch.size + size
        self._count(len(events), size)

    def waiting(self) -> Iterator[TransitEvent]:
        """Yield the oldest event of each type that waits."""
        return (batch.events[0] for batch in self._batches.values())

    def __contains__(self, key: TypeKey) -> bool:
        return key in self._batches

    @property
    def due(self) -> datetime | None:
        """When to call `ready` at the latest; None while nothing lingers."""
        return min((batch.due for batch in self._batches.values() if not batch.held), default=None)

    def ready(self, now: datetime) -> list[tuple[TransitEvent, ...]]:
        """Return the events that have lingered long enough."""
        over = [key for key, batch in self._batches.items() if not batch.held and now >= batch.due]
        return [events for key in over for events in self._take(key)]

    def all(self) -> list[tuple[TransitEvent, ...]]:
        """Return all events that can be sealed, without lingering."""
        return [events for key in list(self._batches) for events in self._take(key)]

    def _count(self, events: int, size: int) -> None:
        self._events += events
        self._bytes += size

    def _check_room(self, key: TypeKey, events: int, size: int) -> None:
        """Raise `RefusedError` (`seal.buffer-full`) if events must wait for keys and the buffer is full.

        Events that only linger are never refused.
        """
        limits = self._limits
        full = self._events + events > limits.seal_held or self._bytes + size > limits.seal_held_bytes
        if full and self._holds(key):
            raise RefusedError(
                "seal.buffer-full",
                "too many events wait for keys",
                hint="check that the key manager runs and is reachable, and try again later",
            )

    def _is_full(self, events: Sequence[TransitEvent]) -> bool:
        """Return whether events are a block by themselves: there are enough, or events do not linger."""
        return self._full <= len(events) <= self._limits.route_block_events

    def _fits(self, batch: _Batch, events: int, size: int) -> bool:
        fits = batch.size + size <= self._limits.seal_gather_bytes
        return fits and len(batch.events) + events <= self._lingering.events

    def _take(self, key: TypeKey) -> list[tuple[TransitEvent, ...]]:
        """Return the blocks of a type, unless they must wait for keys."""
        batch = self._batches[key]
        batch.held = self._holds(key)
        if batch.held:
            return []
        del self._batches[key]
        self._count(-len(batch.events), -batch.size)
        # Events that have waited for keys may be more than one block.
        size = self._limits.route_block_events
        return [tuple(batch.events[start : start + size]) for start in range(0, len(batch.events), size)]


def _size_of(event: TransitEvent) -> int:
    return _EVENT_BYTES + sum([len(one) if type(one) is str else _VALUE_BYTES for one in event.values.values()])

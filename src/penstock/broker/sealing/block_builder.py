"""Events of sealed types on their way into blocks: gathered by type, until there are enough or the oldest has lingered.

What clients publish of one type goes into one block, in the order in which it came; sealing costs by the block. The
state machine reads no clock: `due` says when something is to be done, and whoever drives it asks then.

Events that cannot be sealed yet, since keys are missing, wait in the same place, for as long as it takes. A client is
informed that its events were accepted when they are here, as for events that wait on a link: whatever could still be
wrong with them has been asked before.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from penstock.broker.limits import BrokerLimits
from penstock.codec.limits import ROUTE_BLOCK_EVENTS
from penstock.errors import MalformedError, RefusedError
from penstock.model.events import TransitEvent
from penstock.model.names import TypeKey

Holds: TypeAlias = Callable[[TypeKey], bool]
"""Says whether events of a type have to wait, because they cannot be sealed yet."""

#: about what an event, and a value that is not text, takes in a block
_EVENT_BYTES: Final = 64
_VALUE_BYTES: Final = 8
_LONGEST: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lingering:
    """How long an event waits for others to be sealed with, and how many go into a block at most.

    Raises `MalformedError` (`seal.settings`).
    """

    linger: timedelta = timedelta()
    events: int = 128

    def __post_init__(self) -> None:
        if not timedelta() <= self.linger <= _LONGEST or not 0 < self.events <= ROUTE_BLOCK_EVENTS:
            raise MalformedError(
                "seal.settings",
                f"events linger for 0 to 1 seconds, 1 to {ROUTE_BLOCK_EVENTS} of them",
            )


#: the default of a node
LINGERING: Final = Lingering(linger=timedelta(milliseconds=2))


@dataclass(slots=True)
class _Batch:
    due: datetime
    events: list[TransitEvent] = field(default_factory=list)
    octets: int = 0
    #: it would go, and cannot be sealed
    held: bool = False
    #: how many of the first events had been taken out, and were put back
    returned: int = 0


class BlockBuilder:
    """See the module."""

    def __init__(self, lingering: Lingering, limits: BrokerLimits, holds: Holds) -> None:
        self._lingering, self._limits, self._holds = lingering, limits, holds
        #: how many events need not wait for others
        self._full = self._lingering.events if self._lingering.linger else 1
        self._batches: dict[TypeKey, _Batch] = {}
        self._events = 0
        self._octets = 0

    def __len__(self) -> int:
        return self._events

    def put(self, now: datetime, events: Sequence[TransitEvent]) -> list[tuple[TransitEvent, ...]]:
        """Take events of one type; return the events to seal now, a block each, in order.

        Raises `RefusedError` (`seal.buffer-full`).
        """
        key = events[0].key
        batch = self._batches.get(key)
        if batch is None and self._is_full(events) and not self._holds(key):
            return [events if type(events) is tuple else tuple(events)]
        octets = sum(map(_octets, events))
        self._check_room(key, len(events), octets)
        ready: list[tuple[TransitEvent, ...]] = []
        if batch is not None and not self._fits(batch, len(events), octets):
            ready += self._take(key)
            batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = _Batch(now + self._lingering.linger)
        batch.events += events
        batch.octets += octets
        self._count(len(events), octets)
        if now >= batch.due or not self._fits(batch, 1, 0):
            ready += self._take(key)
        return ready

    def keep(self, now: datetime, events: Sequence[TransitEvent]) -> None:
        """Let events wait that could not be sealed after all, before those of the type that came later."""
        key = events[0].key
        batch, octets = self._batches.setdefault(key, _Batch(now)), sum(map(_octets, events))
        # Where several blocks of a type are put back, they come in their order.
        batch.events[batch.returned : batch.returned] = events
        batch.held, batch.returned, batch.octets = True, batch.returned + len(events), batch.octets + octets
        self._count(len(events), octets)

    def waiting(self) -> Iterator[TransitEvent]:
        """Yield the oldest event of each type of which something is here."""
        return (batch.events[0] for batch in self._batches.values())

    def __contains__(self, key: TypeKey) -> bool:
        return key in self._batches

    @property
    def due(self) -> datetime | None:
        """When `ready` is to be asked at the latest; None while nothing lingers."""
        return min((batch.due for batch in self._batches.values() if not batch.held), default=None)

    def ready(self, now: datetime) -> list[tuple[TransitEvent, ...]]:
        """Return what has lingered for long enough."""
        over = [key for key, batch in self._batches.items() if not batch.held and now >= batch.due]
        return [events for key in over for events in self._take(key)]

    def all(self) -> list[tuple[TransitEvent, ...]]:
        """Return everything that can be sealed: nothing is to linger any longer, or there are other keys."""
        return [events for key in list(self._batches) for events in self._take(key)]

    def _count(self, events: int, octets: int) -> None:
        self._events += events
        self._octets += octets

    def _check_room(self, key: TypeKey, events: int, octets: int) -> None:
        """Check that there is room for what has to wait; what only lingers goes, however much of other types waits."""
        limits = self._limits
        full = self._events + events > limits.seal_held or self._octets + octets > limits.seal_held_bytes
        if full and self._holds(key):
            raise RefusedError(
                "seal.buffer-full", "too many events wait for keys", hint="is the key manager there? try again later"
            )

    def _is_full(self, events: Sequence[TransitEvent]) -> bool:
        """Say whether events are a block by themselves: nothing lingers, or there are enough."""
        return self._full <= len(events) <= self._limits.route_block_events

    def _fits(self, batch: _Batch, events: int, octets: int) -> bool:
        fits = batch.octets + octets <= self._limits.seal_gather_bytes
        return fits and len(batch.events) + events <= self._lingering.events

    def _take(self, key: TypeKey) -> list[tuple[TransitEvent, ...]]:
        """Return the blocks of a type, unless they have to wait for keys."""
        batch = self._batches[key]
        batch.held = self._holds(key)
        if batch.held:
            return []
        del self._batches[key]
        self._count(-len(batch.events), -batch.octets)
        # What came together goes together; what has waited for keys may be more than one block.
        size = self._limits.route_block_events
        return [tuple(batch.events[start : start + size]) for start in range(0, len(batch.events), size)]


def _octets(event: TransitEvent) -> int:
    return _EVENT_BYTES + sum([len(one) if type(one) is str else _VALUE_BYTES for one in event.values.values()])

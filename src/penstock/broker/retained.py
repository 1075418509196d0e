"""Current state: the latest event of each slot, kept by the brokers that carry it.

A publisher may name the slot that an event belongs to, say the certificate whose validity it states. Of each type and
slot a broker keeps the latest event, by its time, then by its id and the count of its origin. Who subscribes is told
what is kept of what he wants; a broker that is told passes on what it did not have. So state is found at the nearest
broker that has it, and each broker passes on each event once.

What is kept is current only where a subscription brings what follows. What no subscription wants any more is therefore
let go, except at the brokers of those who published it, and where the way to these is cut off for now. The memory is
bounded. When it is full, the side from which most came loses its oldest: a neighbour pushes out nothing but its own.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeAlias

from penstock.broker.publications import Publications
from penstock.broker.trees import Side
from penstock.model.events import TransitEvent
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import TypeKey

_NEVER: Final = datetime.min.replace(tzinfo=UTC)
#: what an event takes besides its texts, and what an attribute does, roughly
_EVENT_BYTES: Final = 512
_VALUE_BYTES: Final = 128

_Slot: TypeAlias = tuple[TypeKey, str]


@dataclass(frozen=True, slots=True)
class Sample:
    """The latest event of a slot, as a block of one, and the side from which it came."""

    block: Publications
    source: Side

    @property
    def event(self) -> TransitEvent:
        """The event."""
        return self.block.events[0]

    @property
    def order(self) -> tuple[datetime, str, int, int, bytes]:
        """What says which of two is the later one."""
        block, event = self.block, self.event
        return event.time or _NEVER, event.id, block.incarnation, block.numbers[0], block.origin.digest

    @property
    def size(self) -> int:
        """About how many octets it takes."""
        event = self.event
        texts = sum(len(value) for value in (event.id, *event.values.values()) if isinstance(value, str))
        return _EVENT_BYTES + _VALUE_BYTES * len(event.values) + 4 * texts


class Retained:
    """The samples that one broker keeps."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._samples: OrderedDict[_Slot, Sample] = OrderedDict()
        self._slots: dict[TypeKey, OrderedDict[str, None]] = {}
        #: by side, the slots of one type, and under no type those of all; and the bytes that all take
        self._sides: dict[TypeKey | None, dict[Side, OrderedDict[_Slot, None]]] = {None: {}}
        self._side_bytes: dict[Side, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._samples)

    def __contains__(self, key: TypeKey) -> bool:
        return key in self._slots

    def keep(self, sample: Sample) -> bool:
        """Keep a sample, and say whether it is later than the one that was kept."""
        slot = sample.block.type, sample.block.retain
        held = self._samples.get(slot)
        if held is not None:
            if sample.order <= held.order:
                return False
            self._drop(slot)
        self._samples[slot] = sample
        self._slots.setdefault(slot[0], OrderedDict())[slot[1]] = None
        for key in (slot[0], None):
            self._sides.setdefault(key, {}).setdefault(sample.source, OrderedDict())[slot] = None
        self._side_bytes[sample.source] = self._side_bytes.get(sample.source, 0) + sample.size
        self._bytes += sample.size
        self._make_room(slot[0])
        return True

    def of_type(self, key: TypeKey) -> list[Sample]:
        """Return the samples of one type, in order of time."""
        return sorted((self._samples[key, slot] for slot in self._slots.get(key, ())), key=lambda s: s.order)

    def of_line(self, key: TypeKey) -> list[Sample]:
        """Return the samples of a type and its sub-types, in order of time."""
        return sorted(self._in_line(key), key=lambda sample: sample.order)

    def prune(self, key: TypeKey, wanted: Callable[[Sample], bool]) -> None:
        """Let go of those samples of one type that are not wanted."""
        for slot in list(self._slots.get(key, ())):
            if not wanted(self._samples[key, slot]):
                self._drop((key, slot))

    def _in_line(self, key: TypeKey) -> Iterator[Sample]:
        for of_type, slots in self._slots.items():
            for slot in slots:
                sample = self._samples[of_type, slot]
                if of_type == key or key in sample.event.ancestors:
                    yield sample

    def _make_room(self, key: TypeKey) -> None:
        if len(self._slots[key]) > self._limits.route_retained:
            fullest = max(self._sides[key].values(), key=len)
            self._drop(next(iter(fullest)))
        while len(self._samples) > self._limits.route_retained_all or self._bytes > self._limits.route_retained_bytes:
            most = max(self._side_bytes, key=self._side_bytes.__getitem__)
            self._drop(next(iter(self._sides[None][most])))

    def _drop(self, slot: _Slot) -> None:
        sample = self._samples.pop(slot)
        self._bytes -= sample.size
        self._side_bytes[sample.source] -= sample.size
        del self._slots[slot[0]][slot[1]]
        if not self._slots[slot[0]]:
            del self._slots[slot[0]]
        for key in (slot[0], None):
            sides = self._sides[key]
            del sides[sample.source][slot]
            if not sides[sample.source]:
                del sides[sample.source]
            if key is not None and not sides:
                del self._sides[key]
        if not self._side_bytes[sample.source]:
            del self._side_bytes[sample.source]

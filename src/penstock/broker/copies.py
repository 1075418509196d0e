"""Telling events from copies of them.

The origin of an event numbers it. While paths are being repaired an event may come twice, or late. Each broker takes
each number of an origin once; what comes so late that it cannot know is taken for a copy, and so are events of an
incarnation of their origin before the one that it knows. The memory is bounded: of each type and origin a window of
numbers, and so many of those as `Limits.route_streams` says, the least recent forgotten first.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.broker.publications import Publications
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import TypeKey
from penstock.model.principals import Principal

_Name: TypeAlias = tuple[Principal, TypeKey]


@dataclass(slots=True)
class _Stream:
    """The numbers of one origin and type that came lately."""

    incarnation: int
    highest: int = -1
    recent: set[int] = field(default_factory=set)

    def take(self, numbers: Sequence[int], window: int) -> Sequence[int]:
        """Take in rising numbers; return the places of those that are new."""
        if numbers[0] > self.highest:
            places: Sequence[int] = range(len(numbers))
            self.recent.update(numbers)
        else:
            places = [place for place, number in enumerate(numbers) if self._is_new(number, window)]
        self.highest = max(self.highest, numbers[-1])
        if len(self.recent) > 2 * window:
            self.recent = {seen for seen in self.recent if seen > self.highest - window}
        return places

    def knows(self, numbers: Sequence[int], window: int) -> bool:
        """Say whether all of some rising numbers have come before, or come too late."""
        if numbers[-1] > self.highest:
            return False
        return all(number in self.recent or number <= self.highest - window for number in numbers)

    def _is_new(self, number: int, window: int) -> bool:
        if number in self.recent or number <= self.highest - window:
            return False
        self.recent.add(number)
        self.highest = max(self.highest, number)
        return True


class Copies:
    """What one broker remembers about events that have passed."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._streams: OrderedDict[_Name, _Stream] = OrderedDict()

    def knows(self, block: Publications) -> bool:
        """Say whether all of some events are copies. Nothing is remembered of them."""
        stream = self._streams.get((block.origin, block.type))
        if stream is None or stream.incarnation < block.incarnation:
            return False
        return stream.incarnation > block.incarnation or stream.knows(block.numbers, self._limits.route_window)

    def first(self, block: Publications) -> Sequence[int]:
        """Return the places of the events that come for the first time, and remember all of them."""
        name = block.origin, block.type
        stream = self._streams.get(name)
        if stream is None or stream.incarnation < block.incarnation:
            stream = self._streams[name] = _Stream(block.incarnation)
        self._streams.move_to_end(name)
        if len(self._streams) > self._limits.route_streams:
            self._streams.popitem(last=False)
        if stream.incarnation > block.incarnation:
            return ()
        return stream.take(block.numbers, self._limits.route_window)

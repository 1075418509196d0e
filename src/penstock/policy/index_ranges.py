"""An index of children by the range that an attribute must lie in: those that a value may suit are found at once.

A target that wants an attribute to be at least one value and at most another does not match where its only value lies
outside. Ends are not told apart from what lies just inside: whatever is found is asked itself. Where an attribute has
several values, one may be above the lower end and another below the upper one: then all may apply.

Ends are numbered in their order, and the gaps between them as well. Each range is entered at the few nodes of a binary
tree over these numbers that make it up; a value is looked for from its leaf to the root.
"""

import operator
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from penstock.policy.datatypes import Value
from penstock.policy.expressions import Designator
from penstock.policy.policies import AllOf, AnyOf, Target
from penstock.policy.requests import Facts

#: fewer children than this are looked at one by one
_FEWEST: Final = 16


class Bags(Protocol):
    """Where the values of attributes are."""

    facts: Facts

    def bag(self, wanted: Designator, /) -> tuple[Value, ...]:
        """Return the bag of an attribute that is not among the facts. Raises `EvaluationError`."""


class Span(NamedTuple):
    """A lowest and a highest value; none where there is no end."""

    low: Value | None = None
    high: Value | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing lies in it."""
        return self.low is not None and self.high is not None and bool(self.low > self.high)

    def both(self, other: "Span") -> "Span":
        """Return what lies in both."""
        lows = [one for one in (self.low, other.low) if one is not None]
        highs = [one for one in (self.high, other.high) if one is not None]
        return Span(max(lows, default=None), min(highs, default=None))

    def either(self, other: "Span") -> "Span":
        """Return what lies in one, and between them."""
        low = None if self.low is None or other.low is None else min(self.low, other.low)
        high = None if self.high is None or other.high is None else max(self.high, other.high)
        return Span(low, high)


Spans: TypeAlias = Mapping[Designator, Span]
"""Ranges of which attributes must have a value, as long as they have one value."""


def spans(target: Target) -> Spans:
    """Return the ranges that a target cannot do without."""
    found: dict[Designator, Span] = {}
    for any_of in target:
        for attribute, span in _either(any_of).items():
            found[attribute] = found[attribute].both(span) if attribute in found else span
    return found


def _either(any_of: AnyOf) -> Spans:
    sides = [_every(all_of) for all_of in any_of]
    found: dict[Designator, Span] = dict(sides[0]) if sides else {}
    for side in sides[1:]:
        found = {attribute: span.either(side[attribute]) for attribute, span in found.items() if attribute in side}
    return {attribute: span for attribute, span in found.items() if span != Span()}


def _every(all_of: AllOf) -> Spans:
    found: dict[Designator, Span] = {}
    for match in all_of:
        attribute, value, call = match.attribute, match.value, match.function.call
        # What is no number lies nowhere.
        if not isinstance(attribute, Designator) or attribute.issuer is not None or value != value:  # noqa: PLR0124
            continue
        if call in (operator.le, operator.lt):
            span = Span(low=value)
        elif call in (operator.ge, operator.gt):
            span = Span(high=value)
        else:
            continue
        found[attribute] = found.get(attribute, Span()).both(span)
    return found


class Ranges:
    """Places of children, by ranges of one attribute."""

    __slots__ = ("_all", "_always", "_attribute", "_ends", "_key", "_leaves", "_nodes")

    def __init__(self, attribute: Designator, places: Sequence[int], known: Mapping[int, Span]) -> None:
        self._attribute = attribute
        self._key = attribute.key
        self._all = tuple(places)
        self._ends = sorted({end for span in known.values() for end in span if end is not None})
        # The gap before an end has twice the number of the end, and the end itself one more.
        self._leaves = 1 << (2 * len(self._ends) + 1).bit_length()
        self._nodes: dict[int, list[int]] = {}
        self._always: list[int] = []
        for place in places:
            span = known.get(place)
            if span is None or span.empty:
                self._always.append(place)
            else:
                self._enter(place, span)

    @classmethod
    def of(cls, places: Sequence[int], targets: Sequence[Target]) -> "Ranges | None":
        """Return an index of places of some children, or none where there is nothing to gain."""
        if len(places) < _FEWEST:
            return None
        found = {place: spans(targets[place]) for place in places}
        usual = Counter(attribute for one in found.values() for attribute in one)
        attribute, count = max(usual.items(), key=operator.itemgetter(1), default=(None, 0))
        if attribute is None or 2 * count < len(places):
            return None
        return cls(attribute, places, {place: one[attribute] for place, one in found.items() if attribute in one})

    def _enter(self, place: int, span: Span) -> None:
        first = 0 if span.low is None else self._number(span.low)
        last = self._leaves - 1 if span.high is None else self._number(span.high)
        left, right = first + self._leaves, last + self._leaves + 1
        while left < right:
            if left & 1:
                self._nodes.setdefault(left, []).append(place)
                left += 1
            if right & 1:
                right -= 1
                self._nodes.setdefault(right, []).append(place)
            left, right = left >> 1, right >> 1

    def _number(self, value: Value) -> int:
        """Return the number of a value: odd where it is an end, even where it lies between two, before or after all."""
        place = bisect_left(self._ends, value)
        return 2 * place + (place < len(self._ends) and self._ends[place] == value)

    def places(self, context: Bags) -> Sequence[int]:
        """Return where the children are that may apply, in their order. Raises `EvaluationError`."""
        bag = context.facts.get(self._key) or context.bag(self._attribute)
        if len(bag) != 1:
            # Without a value none of them matches; whether it must be there, each knows for itself.
            return self._all if bag or self._attribute.must_be_present else self._always
        value = bag[0]
        if value != value:  # noqa: PLR0124  # what is no number
            return self._all
        found = [*self._always]
        nodes, node = self._nodes, self._number(value) + self._leaves
        while node:
            if node in nodes:
                found += nodes[node]
            node >>= 1
        found.sort()
        return found

"""Neighbours whose links were lost: what they had asked for, and how much of it could not be passed on to them.

When a link breaks, what the neighbour entered counts no longer: other paths are found, if there are any. What it had
asked for is kept aside until it asks again, so that an operator can see what an outage has cost. Nothing is kept of a
neighbour that took leave, since it withdrew everything before. Selectors are put into an index by the first event of
their type that comes meanwhile.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from penstock.broker.entries import AnyFilter, Entry, Filter, Subscription
from penstock.broker.matching import Matcher
from penstock.broker.publications import Publications
from penstock.broker.sealed import SealedPublications
from penstock.model.limits import Limits
from penstock.model.names import TypeKey
from penstock.model.principals import Principal


@dataclass(slots=True)
class _Asked:
    """What one neighbour had asked for of one type: filters until there is an event, then an index of them."""

    filters: list[AnyFilter] = field(default_factory=list)
    index: Matcher[int] | None = None

    def count(self, block: Publications, limits: Limits) -> int:
        """Return how many events of a block the neighbour would have been sent."""
        every = len(block.events)
        if len(self.filters) > limits.route_filters or not all(isinstance(one, Filter) for one in self.filters):
            return every
        if isinstance(block, SealedPublications):
            return every
        if self.index is None:
            self.index = Matcher(limits)
            for number, one in enumerate(self.filters):
                if isinstance(one, Filter):
                    self.index.add(number, one.selector)
        return sum(bool(self.index.match(event.values)) for event in block.events)


class LostNeighbours:
    """See the module. Where nobody is lost, it is empty, and nothing is to be asked."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._asked: dict[Principal, dict[TypeKey, _Asked]] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def lose(self, peer: Principal, entered: Iterable[Entry]) -> None:
        """Keep aside what a neighbour had entered."""
        asked: dict[TypeKey, _Asked] = {}
        for entry in entered:
            if isinstance(entry, Subscription):
                asked.setdefault(entry.tree, _Asked()).filters.append(entry.filter)
        if asked:
            self._asked[peer] = asked

    def asks_again(self, peer: Principal, tree: TypeKey) -> None:
        """Forget what a neighbour had asked for of a type: it asks for it again."""
        asked = self._asked.get(peer)
        if asked is not None and asked.pop(tree, None) is not None and not asked:
            del self._asked[peer]

    def forget(self, peer: Principal) -> None:
        """Forget a neighbour: it has said everything again, or has been gone for long."""
        self._asked.pop(peer, None)

    def missing(self, block: Publications, came_from: Principal | None) -> Iterator[tuple[Principal, int]]:
        """Yield which lost neighbours would have been sent how many events of a block."""
        for peer, asked in self._asked.items():
            found = asked.get(block.type)
            if found is not None and peer not in (came_from, block.origin):
                number = found.count(block, self._limits)
                if number:
                    yield peer, number

"""Filters compared and applied: what a router needs to know about them, in one place.

Answers come from set algebra alone, never from the solver, whose cost a subscriber could choose. What is not proven
errs to the safe side: a filter is sent on that might be covered, and sent to where it might match.
"""

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeAlias, TypeVar

from penstock.broker.limits import FILTER_CACHE, FILTER_CACHE_LENGTH, BrokerLimits
from penstock.broker.matching.coverage import Coverage, CoverageChange
from penstock.broker.sealing.filters import Filters, NoFilters, interest
from penstock.broker.wire.entries import Advertisement, AnyFilter, Filter, SealedFilter
from penstock.errors import EvaluationError, RefusedError
from penstock.model.events import TransitEvent
from penstock.model.names import TypeKey
from penstock.model.values import Scalar
from penstock.selector import ALWAYS, Compiled, compile_selector
from penstock.selector.algebra import RowQuestion, TooHardError, search

if TYPE_CHECKING:
    from penstock.broker.matching.coverage import Interest


K = TypeVar("K", bound=Hashable)

EVERYTHING: Final = Filter()
"""Lets all events of a type through."""

Moves: TypeAlias = list[tuple[AnyFilter, bool]]
"""Filters that are to be sent on from now on (True), or no longer (False); of one that comes twice the last counts."""


def may_overlap(one: Filter, other: AnyFilter) -> bool:
    """Return whether some event may pass both; False only where that is certain."""
    if isinstance(other, SealedFilter):
        # What it lets through is not said to anybody, not even by where it is sent.
        return True
    if len(one.selector.text) + len(other.selector.text) > FILTER_CACHE_LENGTH:
        return _overlap(one, other)
    return _overlap_short(one, other)


def _overlap(one: Filter, other: Filter) -> bool:
    schema = {**one.schema, **other.schema}
    if any(schema[name] != spec for name, spec in one.schema.items()):
        # An attribute of two kinds: some UID was reused against the rules, and nothing can be said.
        return True
    try:
        return search(RowQuestion(schema, (one.selector, other.selector))) is not None
    except TooHardError:
        return True


_overlap_short = lru_cache(maxsize=FILTER_CACHE)(_overlap)


class Covering(Generic[K]):
    """Filters on one type under keys, and those that have to be sent on for all of them to be served.

    Those are `limits.route_filters` at most: where there would be more, one that lets everything through is sent in
    their place, until there are half as many. Whoever wants less than comes is still served exactly, by its own broker.
    """

    def __init__(self, of_type: TypeKey, filters: Filters, limits: BrokerLimits) -> None:
        self._type, self._filters, self._most = of_type, filters, limits.route_filters
        self._coverage: Coverage[K] = Coverage(limits)
        self._forwarded: dict[Interest, AnyFilter] = {}
        self._everything = False

    def __iter__(self) -> Iterator[AnyFilter]:
        return iter((EVERYTHING,)) if self._everything else iter(self._forwarded.values())

    def put(self, key: K, filter_: AnyFilter) -> Moves:
        """Add a filter, or put it in the place of the one that the key had."""
        return self._moves(self._coverage.add(key, interest(self._type, filter_, self._filters)))

    def remove(self, key: K) -> Moves:
        """Remove a filter; nothing changes if there is none."""
        return self._moves(self._coverage.remove(key))

    def _moves(self, change: CoverageChange) -> Moves:
        gone = [(self._forwarded.pop(removed), False) for removed in change.removed]
        for added in change.added:
            sealed = added.source if isinstance(added.source, SealedFilter) else None
            self._forwarded[added] = sealed or Filter.of(added.selector, added.schema)
        if self._everything and len(self._forwarded) <= self._most // 2:
            self._everything = False
            # That everything is wanted may be what somebody asks for now.
            return [(EVERYTHING, False), *((filter_, True) for filter_ in self._forwarded.values())]
        if self._everything:
            return []
        moves = [*((self._forwarded[added], True) for added in change.added), *gone]
        if len(self._forwarded) <= self._most:
            return moves
        self._everything = True
        # Those that are new were not sent; it does no harm to take back what was not.
        return [*gone, *((filter_, False) for filter_ in self._forwarded.values()), (EVERYTHING, True)]


def widest(of_type: TypeKey, filters: Iterable[Filter], limits: BrokerLimits) -> Iterator[Filter]:
    """Yield filters that say together what all of these say."""
    covering: Covering[int] = Covering(of_type, NoFilters(), limits)
    for number, filter_ in enumerate(filters):
        covering.put(number, filter_)
    return (filter_ for filter_ in covering if isinstance(filter_, Filter))


def passes(filter_: Filter) -> Compiled:
    """Return the function that says whether values pass a filter; what cannot be evaluated does not."""
    test = compile_selector(filter_.selector)

    def passing(values: Mapping[str, Scalar]) -> bool:
        try:
            return test(values) is True
        except EvaluationError:
            return False

    return passing


# ----------------------------------------------------------------------------------------------------------------------
# What the clients of a router may publish, by the keys under which they have advertised it.


class _Announced(NamedTuple):
    entries: tuple[Advertisement, ...]
    #: None if everything passes
    passes: Compiled | None


class Advertised:
    """See the module. `seals` says which types travel sealed."""

    def __init__(self, seals: Callable[[TypeKey], bool]) -> None:
        self._seals = seals
        self._by_key: dict[str, _Announced] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def put(
        self, key: str, of_type: TypeKey, ancestors: Iterable[TypeKey], filter_: Filter
    ) -> tuple[Advertisement, ...]:
        """Take in what a client advertises, and return its entries in the trees of the type and of its ancestors.

        Raises `RefusedError` (`route.key`) if the key is taken.
        """
        check_new(key, self._by_key)
        # What events may hold is nobody's business on the way where they are sealed.
        own = Advertisement(of_type, of_type, Filter() if self._seals(of_type) else filter_)
        entries = (own, *(Advertisement(a, of_type) for a in dict.fromkeys(ancestors) if a != of_type))
        self._by_key[key] = _Announced(entries, passing_of(filter_))
        return entries

    def pop(self, key: str) -> tuple[Advertisement, ...]:
        """Take it out, and return what was entered. Raises `RefusedError` (`route.unknown`)."""
        check_known(key, self._by_key)
        return self._by_key.pop(key).entries

    def trees(self, key: str) -> tuple[TypeKey, ...]:
        """Return the trees in which something is advertised under a key."""
        return tuple(entry.tree for entry in self._by_key[key].entries) if key in self._by_key else ()

    def passing(self, key: str) -> tuple[TypeKey, Compiled | None]:
        """Return of which type the events are that are advertised under a key, and what passes of it.

        Raises `RefusedError` (`route.unknown`).
        """
        check_known(key, self._by_key)
        entries, passing = self._by_key[key]
        return entries[0].type, passing

    def check(self, key: str, events: Sequence[TransitEvent]) -> None:
        """Check that events are what is advertised under a key.

        Raises `RefusedError`: `route.unknown`, `route.outside`.
        """
        check_passing(*self.passing(key), events)


def passing_of(filter_: Filter) -> Compiled | None:
    """Return what passes a filter, and None if everything does."""
    return None if filter_.selector == ALWAYS else passes(filter_)


def check_passing(of_type: TypeKey, passing: Compiled | None, events: Sequence[TransitEvent]) -> None:
    """Check that events are of a type, and pass a filter, if there is one. Raises `RefusedError` (`route.outside`)."""
    for event in events:
        if event.key != of_type or (passing is not None and not passing(event.values)):
            raise outside()


def outside() -> RefusedError:
    """Return the refusal of an event that no advertisement announces."""
    return RefusedError("route.outside", "the event is not what was advertised", hint="advertise what you publish")


def check_new(key: str, taken: Container[str]) -> None:
    """Check that a key is free. Raises `RefusedError` (`route.key`)."""
    if key in taken:
        raise RefusedError("route.key", f"`{key[:80]}` is in use already", hint="take another key")


def check_known(key: str, taken: Container[str]) -> None:
    """Check that there is something under a key. Raises `RefusedError` (`route.unknown`)."""
    if key not in taken:
        raise RefusedError("route.unknown", f"there is nothing under `{key[:80]}`")

"""Compare and apply filters for the router.

Comparisons use set algebra alone, never the solver, because a subscriber could choose its cost. If nothing is proven,
the safe side is taken: a filter is forwarded although it may be covered, and sent to where it may match.
"""

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeAlias, TypeVar

from penstock.broker.limits import FILTER_CACHE, FILTER_CACHE_LENGTH, BrokerLimits
from penstock.broker.matching.coverage import Coverage, CoverageChange
from penstock.broker.sealing.filters import Filters, NoFilters, interest
from penstock.broker.wire.entries import Advertisement, AnyFilter, Filter, SealedFilter
from penstock.errors import EvaluationError, RefusedError
from penstock.model.events import EventRows, TransitEvent
from penstock.model.names import TypeKey
from penstock.model.values import Scalar
from penstock.selector import ALWAYS, Compiled, compile_selector
from penstock.selector.algebra import RowQuestion, TooHardError, search

if TYPE_CHECKING:
    from penstock.broker.matching.coverage import Interest


K = TypeVar("K", bound=Hashable)

EVERYTHING: Final = Filter()
"""Admits all events of a type."""

Moves: TypeAlias = list[tuple[AnyFilter, bool]]
"""Filters to forward from now on (True) or no longer (False). If a filter is listed twice, the last one counts."""


def may_overlap(one: Filter, other: AnyFilter) -> bool:
    """Return whether some event may pass both filters; False only if certainly none does."""
    if isinstance(other, SealedFilter):
        # What a sealed filter admits must not be revealed, not even by where it is sent.
        return True
    if len(one.selector.text) + len(other.selector.text) > FILTER_CACHE_LENGTH:
        return _overlap(one, other)
    return _overlap_short(one, other)


def _overlap(one: Filter, other: Filter) -> bool:
    schema = {**one.schema, **other.schema}
    if any(schema[name] != spec for name, spec in one.schema.items()):
        # An attribute of two kinds: a UID was reused against the rules, so nothing is certain.
        return True
    try:
        return search(RowQuestion(schema, (one.selector, other.selector))) is not None
    except TooHardError:
        return True


_overlap_short = lru_cache(maxsize=FILTER_CACHE)(_overlap)


class Covering(Generic[K]):
    """Filters on one type by key, and the filters that must be forwarded so that all of them are served.

    At most `limits.route_filters` are forwarded. If there would be more, one that admits everything is forwarded
    instead, until there are half as many. Subscribers still get exactly what they want, from their own broker.
    """

    def __init__(self, of_type: TypeKey, filters: Filters, limits: BrokerLimits) -> None:
        self._type, self._filters, self._most = of_type, filters, limits.route_filters
        self._coverage: Coverage[K] = Coverage(limits)
        self._forwarded: dict[Interest, AnyFilter] = {}
        self._everything = False

    def __iter__(self) -> Iterator[AnyFilter]:
        return iter((EVERYTHING,)) if self._everything else iter(self._forwarded.values())

    def put(self, key: K, filter_: AnyFilter) -> Moves:
        """Add a filter, or replace the one that the key had."""
        return self._moves(self._coverage.add(key, interest(self._type, filter_, self._filters)))

    def remove(self, key: K) -> Moves:
        """Remove a filter, if there is one."""
        return self._moves(self._coverage.remove(key))

    def _moves(self, change: CoverageChange) -> Moves:
        gone = [(self._forwarded.pop(removed), False) for removed in change.removed]
        for added in change.added:
            sealed = added.source if isinstance(added.source, SealedFilter) else None
            self._forwarded[added] = sealed or Filter.of(added.selector, added.schema)
        if self._everything and len(self._forwarded) <= self._most // 2:
            self._everything = False
            # One of the filters may itself admit everything.
            return [(EVERYTHING, False), *((filter_, True) for filter_ in self._forwarded.values())]
        if self._everything:
            return []
        moves = [*((self._forwarded[added], True) for added in change.added), *gone]
        if len(self._forwarded) <= self._most:
            return moves
        self._everything = True
        # New ones were not forwarded yet, but withdrawing them does no harm.
        return [*gone, *((filter_, False) for filter_ in self._forwarded.values()), (EVERYTHING, True)]


def widest(of_type: TypeKey, filters: Iterable[Filter], limits: BrokerLimits) -> Iterator[Filter]:
    """Yield filters that together admit what all of these admit."""
    covering: Covering[int] = Covering(of_type, NoFilters(), limits)
    for number, filter_ in enumerate(filters):
        covering.put(number, filter_)
    return (filter_ for filter_ in covering if isinstance(filter_, Filter))


def passes(filter_: Filter) -> Compiled:
    """Return a function that tests whether values pass a filter. If it cannot be evaluated, they do not."""
    test = compile_selector(filter_.selector)

    def passing(values: Mapping[str, Scalar]) -> bool:
        try:
            return test(values) is True
        except EvaluationError:
            return False

    return passing


# ----------------------------------------------------------------------------------------------------------------------
# Advertisements of clients, by key.


class _Announced(NamedTuple):
    entries: tuple[Advertisement, ...]
    #: None if everything passes
    passes: Compiled | None


class Advertised:
    """The advertisements of a router's clients. `seals` returns whether a type travels sealed."""

    def __init__(self, seals: Callable[[TypeKey], bool]) -> None:
        self._seals = seals
        self._by_key: dict[str, _Announced] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def put(
        self, key: str, of_type: TypeKey, ancestors: Iterable[TypeKey], filter_: Filter
    ) -> tuple[Advertisement, ...]:
        """Add an advertisement, and return its entries in the trees of the type and of its ancestors.

        Raises `RefusedError` (`route.key`) if the key is taken.
        """
        check_new(key, self._by_key)
        # The filter of a sealed type must not be revealed to other brokers.
        own = Advertisement(of_type, of_type, Filter() if self._seals(of_type) else filter_)
        entries = (own, *(Advertisement(a, of_type) for a in dict.fromkeys(ancestors) if a != of_type))
        self._by_key[key] = _Announced(entries, passing_of(filter_))
        return entries

    def pop(self, key: str) -> tuple[Advertisement, ...]:
        """Remove an advertisement, and return its entries. Raises `RefusedError` (`route.unknown`)."""
        check_known(key, self._by_key)
        return self._by_key.pop(key).entries

    def trees(self, key: str) -> tuple[TypeKey, ...]:
        """Return the trees that have entries of an advertisement."""
        return tuple(entry.tree for entry in self._by_key[key].entries) if key in self._by_key else ()

    def passing(self, key: str) -> tuple[TypeKey, Compiled | None]:
        """Return the type of an advertisement, and the test of its filter.

        Raises `RefusedError` (`route.unknown`).
        """
        check_known(key, self._by_key)
        entries, passing = self._by_key[key]
        return entries[0].type, passing

    def check(self, key: str, events: Sequence[TransitEvent]) -> None:
        """Check events against an advertisement.

        Raises `RefusedError`: `route.unknown`, `route.outside`.
        """
        check_passing(*self.passing(key), events)


def passing_of(filter_: Filter) -> Compiled | None:
    """Return the test of a filter; None if everything passes."""
    return None if filter_.selector == ALWAYS else passes(filter_)


def check_passing(of_type: TypeKey, passing: Compiled | None, events: Sequence[TransitEvent]) -> None:
    """Raise `RefusedError` (`route.outside`) if an event is of another type, or does not pass the test."""
    if passing is None and type(events) is EventRows and events.key == of_type:
        return
    for event in events:
        if event.key != of_type or (passing is not None and not passing(event.values)):
            raise outside()


def outside() -> RefusedError:
    """Return the error for an event that does not match its advertisement."""
    return RefusedError(
        "route.outside", "the event does not match the advertisement", hint="advertise what you publish"
    )


def check_new(key: str, taken: Container[str]) -> None:
    """Raise `RefusedError` (`route.key`) if a key is in use."""
    if key in taken:
        raise RefusedError("route.key", f"`{key[:80]}` is in use already", hint="choose another key")


def check_known(key: str, taken: Container[str]) -> None:
    """Raise `RefusedError` (`route.unknown`) if a key is not in use."""
    if key not in taken:
        raise RefusedError("route.unknown", f"there is no subscription or advertisement `{key[:80]}`")

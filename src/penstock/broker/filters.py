"""Filters compared and applied: what a router needs to know about them, in one place.

Answers come from set algebra alone, never from the solver, whose cost a subscriber could choose. What is not proven
errs to the safe side: a filter is sent on that might be covered, and sent to where it might match.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Generic, TypeAlias, TypeVar

from penstock.broker.coverage import Change, Coverage, Interest
from penstock.broker.entries import Filter
from penstock.errors import EvaluationError
from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.names import TypeKey
from penstock.model.values import Scalar
from penstock.selector import Compiled, compile_selector
from penstock.selector.algebra import TooHardError, search
from penstock.selector.question import Question

K = TypeVar("K", bound=Hashable)

Moves: TypeAlias = list[tuple[Filter, bool]]
"""Filters that are to be sent on from now on (True), or no longer (False)."""


@lru_cache(maxsize=DEFAULT_LIMITS.cache_entries)
def may_overlap(one: Filter, other: Filter) -> bool:
    """Say whether some event may pass both; False only where that is certain."""
    schema = {**one.schema, **other.schema}
    if any(schema[name] != spec for name, spec in one.schema.items()):
        # An attribute of two kinds: some UID was reused against the rules, and nothing can be said.
        return True
    try:
        return search(Question(schema, (one.selector, other.selector))) is not None
    except TooHardError:
        return True


class Covering(Generic[K]):
    """Filters on one type under keys, and those that have to be sent on for all of them to be served."""

    def __init__(self, of_type: TypeKey) -> None:
        self._type = of_type
        self._coverage: Coverage[K] = Coverage()
        self._forwarded: dict[Interest, Filter] = {}

    def __iter__(self) -> Iterator[Filter]:
        return iter(self._forwarded.values())

    def put(self, key: K, filter_: Filter) -> Moves:
        """Add a filter under a new key."""
        return self._moves(self._coverage.add(key, Interest(self._type, filter_.selector, schema=filter_.schema)))

    def remove(self, key: K) -> Moves:
        """Remove a filter; nothing changes where there is none."""
        return self._moves(self._coverage.remove(key))

    def _moves(self, change: Change) -> Moves:
        gone = [(self._forwarded.pop(interest), False) for interest in change.removed]
        for interest in change.added:
            self._forwarded[interest] = Filter.of(interest.selector, interest.schema)
        return [*((self._forwarded[interest], True) for interest in change.added), *gone]


def widest(of_type: TypeKey, filters: Iterable[Filter]) -> Iterator[Filter]:
    """Yield filters that say together what all of these say."""
    covering: Covering[int] = Covering(of_type)
    for number, filter_ in enumerate(filters):
        covering.put(number, filter_)
    return iter(covering)


def passes(filter_: Filter) -> Compiled:
    """Return the function that says whether values pass a filter; what cannot be evaluated does not."""
    test = compile_selector(filter_.selector)

    def passing(values: Mapping[str, Scalar]) -> bool:
        try:
            return test(values) is True
        except EvaluationError:
            return False

    return passing

"""Filters compared and applied: what a router needs to know about them, in one place."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final, Generic, TypeVar

from penstock.broker.messages import Filter
from penstock.errors import EvaluationError
from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.values import Scalar, Schema
from penstock.selector import ALWAYS, Compiled, Verdict, compile_selector, covers, overlaps

#: a broker that routes has better things to do than to prove what is hard; unproved means: send it on
_LIMITS: Final = replace(DEFAULT_LIMITS, solver_time=50, solver_effort=500_000)

K = TypeVar("K", bound=Hashable)


def _common_schema(one: Filter, other: Filter) -> Schema | None:
    schema = {**one.schema, **other.schema}
    # An attribute of two kinds: some UID was reused against the rules, and nothing can be said.
    return None if any(schema[name] != spec for name, spec in one.schema.items()) else schema


@lru_cache(maxsize=DEFAULT_LIMITS.cache_entries)
def filter_covers(wide: Filter, narrow: Filter) -> bool:
    """Say whether it is certain that every event that passes `narrow` passes `wide`."""
    if wide.selector == ALWAYS or wide == narrow:
        return True
    schema = _common_schema(wide, narrow)
    return schema is not None and covers(wide.selector, narrow.selector, schema, limits=_LIMITS).verdict is Verdict.YES


@lru_cache(maxsize=DEFAULT_LIMITS.cache_entries)
def may_overlap(one: Filter, other: Filter) -> bool:
    """Say whether some event may pass both; False only where that is certain."""
    schema = _common_schema(one, other)
    if schema is None:
        return True
    return overlaps(one.selector, other.selector, schema, limits=_LIMITS).verdict is not Verdict.NO


def widest(filters: Iterable[Filter]) -> list[Filter]:
    """Return those filters that no other of them covers; of equivalent ones, the first."""
    kept: list[Filter] = []
    for candidate in dict.fromkeys(filters):
        if not any(filter_covers(other, candidate) for other in kept):
            kept = [other for other in kept if not filter_covers(candidate, other)]
            kept.append(candidate)
    return kept


class Covering(Generic[K]):
    """Filters under keys, and those of them that have to be sent on."""

    def __init__(self) -> None:
        self._filters: dict[K, Filter] = {}
        self._widest: list[Filter] | None = []

    def __len__(self) -> int:
        return len(self._filters)

    def put(self, key: K, filter_: Filter) -> None:
        """Add a filter under a new key."""
        self._filters[key] = filter_
        if self._widest is not None:
            self._widest = widest([*self._widest, filter_])

    def remove(self, key: K) -> None:
        """Remove a filter, if it is there."""
        gone = self._filters.pop(key, None)
        if gone is not None and (self._widest is None or gone in self._widest):
            self._widest = None

    def forwarded(self) -> list[Filter]:
        """Return the filters that cover all of them."""
        if self._widest is None:
            self._widest = widest(self._filters.values())
        return self._widest


def passes(filter_: Filter) -> Compiled:
    """Return the function that says whether values pass a filter; what cannot be evaluated does not."""
    test = compile_selector(filter_.selector)

    def passing(values: Mapping[str, Scalar]) -> bool:
        try:
            return test(values) is True
        except EvaluationError:
            return False

    return passing

"""Which of some filters want which events of a sealed block, as far as a broker can tell that."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, Generic, TypeAlias, TypeVar

from penstock.broker.entries import AnyFilter, SealedFilter
from penstock.broker.matching import Matcher, Values
from penstock.broker.sealed import SealedPublications
from penstock.broker.sealed_filters import Column, Filters, OpenedFilter
from penstock.codec.block_names import Route, read_route
from penstock.codec.blocks import FIRST, Fixed, Level, read_block, read_fixed
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import TypeKey

K = TypeVar("K")
Match: TypeAlias = Callable[[Values], tuple[K, ...]]

_NOTHING_OPEN: Final = OpenedFilter((), ())
_REMEMBERED: Final = 1_024


class SealedIndex(Generic[K]):
    """Filters on a sealed type by key. A filter that came as it is says nothing: whoever sent it need hold no keys.

    For each set of epochs that blocks have there is a matcher over what is open and about them; few at a time.
    """

    def __init__(self, of_type: TypeKey, filters: Filters, limits: Limits = DEFAULT_LIMITS) -> None:
        self._type, self._filters, self._limits = of_type, filters, limits
        self._version = filters.version
        #: whether something else is open than when `rekeyed` was asked last
        self._differs = False
        self._held: dict[K, AnyFilter] = {}
        self._opened: dict[K, OpenedFilter] = {}
        #: the columns that some open part is about, and how many are
        self._asked: Counter[Column] = Counter()
        self._matchers: dict[frozenset[Column], Matcher[K]] = {}

    def add(self, key: K, filter_: AnyFilter) -> None:
        """Add a filter, or put it in the place of the one that the key had."""
        self.remove(key)
        self._held[key] = filter_
        self._open(key, filter_)

    def remove(self, key: K) -> None:
        """Remove a filter, if it is there."""
        if self._held.pop(key, None) is None:
            return
        self._asked -= Counter(clause.column for clause in self._opened.pop(key).clauses)
        for matcher in self._matchers.values():
            matcher.remove(key)

    def matcher(self, block: SealedPublications) -> Match[K] | None:
        """Return what says who wants an event of a block; None where nothing says that anybody does not."""
        self._refresh()
        if block.closed or not self._asked:
            return None
        columns = frozenset(one for one in self._columns(block) if one in self._asked and _shows(block, one))
        return self._matcher(columns).match if columns else None

    @property
    def asks(self) -> bool:
        """Whether it matters to some filter what a block holds."""
        self._refresh()
        return bool(self._asked)

    def rekeyed(self) -> bool:
        """Say whether keys that came or went since the last time have opened or closed something."""
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
        """Return the columns of a block, as far as their names are known here."""
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
        """Open anew what other keys may have opened or closed."""
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
    """Read a block that was sealed here, as far as all blocks of a stream have it in common."""
    parts = read_block(block)
    return _read_opening(parts.fixed, parts.route)


@lru_cache(maxsize=_REMEMBERED)
def _read_opening(fixed: bytes, route: bytes) -> tuple[Fixed, Route]:
    return read_fixed(fixed), read_route(route)


def _shows(block: SealedPublications, column: Column) -> bool:
    """Say whether a column is open: an attribute without any value may be one that nobody could open so far."""
    attribute, _ = column
    return attribute == FIRST or any(attribute in event.values for event in block.events)

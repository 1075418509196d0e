"""Filters on sealed types: conditions on an attribute are sealed under its key (dissertation, 7.3 and 7.3.1).

A filter is treated as a conjunction. The conditions on a single attribute become one part, sealed under that
attribute's key. The other conditions stay at the subscriber's broker, which evaluates the whole filter in the end.
Conditions that a missing value meets stay there too: a broker on the way may read more than the subscriber's, which
must not make a difference. If events are sealed as a whole, so are filters.

A part applies only to columns of its own epoch, so nobody can filter on values that they could not read. A part that
cannot be opened, or does not apply to a block, counts as met.

One filter covers another if each of its parts either is a part of the other, or is open and admits whatever some part
of the other admits on the same column in the same epoch. A broker that can open one of these can open both. So the
first covers the second at every broker, whatever keys it holds. That is why closed parts do not count as met *here*.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from penstock.broker.limits import BrokerLimits
from penstock.broker.matching.coverage import Interest
from penstock.broker.wire.entries import AnyFilter, Filter, SealedFilter
from penstock.codec.blocks import FIRST, Padding, PlainNames, Route, pad, unpad
from penstock.codec.wire import decode, encode
from penstock.crypto.filters import HINT_BYTES, NAME_BYTES, FilterKey, filter_key, open_part, seal_filter
from penstock.crypto.seal_keys import KeyRing, column_of, column_scope, type_of
from penstock.crypto.wrapping import Secret
from penstock.errors import EvaluationError, PenstockError
from penstock.model.names import TypeKey
from penstock.model.types import Sealing
from penstock.model.values import AttributeSpec, Kind
from penstock.selector import ALWAYS, Selector, conjunction, conjuncts, equals, evaluate

_Q = TypeVar("_Q", bound=Hashable)
_A = TypeVar("_A")

Column: TypeAlias = tuple[str, int]
"""A column of a block, by its attribute, and its epoch. That of events that are sealed as a whole is `FIRST`."""

LevelOf: TypeAlias = Callable[[TypeKey], Sealing]
"""Returns how a type's owner wants its events sealed."""


class SealedClause(NamedTuple):
    """An open part of a sealed filter: the column that it applies to, and its conditions."""

    column: Column
    filter: Filter


class OpenedFilter(NamedTuple):
    """A sealed filter: the parts that this broker can read, and the names of the others."""

    clauses: tuple[SealedClause, ...]
    closed: tuple[bytes, ...]

    def where(self, columns: Collection[Column]) -> Selector:
        """Return the known conditions on events with these columns."""
        try:
            return conjunction(*(clause.filter.selector for clause in self.clauses if clause.column in columns))
        except PenstockError:
            # Too long as a whole: admit everything here.
            return ALWAYS


class Filters(Protocol):
    """Seals and opens filters."""

    @property
    def version(self) -> int:
        """Changes when the keys change."""

    def seal(self, of_type: TypeKey, filter_: Filter, /) -> AnyFilter:
        """Return a filter for neighbours: unchanged, or for a sealed type the parts that can be sealed."""

    def open(self, of_type: TypeKey, sealed: SealedFilter, /) -> OpenedFilter:
        """Open the parts for which there are keys."""

    def attributes(self, route: Route, /) -> Sequence[str]:
        """Return the attributes of a block, in their order; none if this broker cannot read them in its route."""


class NoFilters:
    """Filters of a broker without keys."""

    version = 0

    def seal(self, _of_type: TypeKey, filter_: Filter, /) -> AnyFilter:
        """Seal nothing."""
        return filter_

    def open(self, _of_type: TypeKey, sealed: SealedFilter, /) -> OpenedFilter:
        """Open nothing."""
        return OpenedFilter((), tuple(part[:NAME_BYTES] for part in sealed.parts))

    def attributes(self, route: Route, /) -> Sequence[str]:
        """Return the attributes of a block, if its route names them."""
        return route.names.attributes if isinstance(route, PlainNames) else ()


class _Key(NamedTuple):
    """A key for filters, and the column that they apply to."""

    column: Column
    key: FilterKey


class _TypeKeys(NamedTuple):
    """The keys for filters on one type, and the keys that they were derived from."""

    held: Sequence[tuple[str, int, Secret]]
    by_hint: Mapping[bytes, _Key]
    by_column: Mapping[Column, FilterKey]


class _FilterKeys:
    """The keys for filters that are derived from a key ring. They are forgotten with the ring's keys."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring
        self._version = -1
        self._held: dict[str, list[tuple[str, int, Secret]]] = {}
        self._types: dict[TypeKey, _TypeKeys] = {}

    def of_type(self, of_type: TypeKey) -> _TypeKeys:
        """Return the keys for filters on a type."""
        if self._version != self._ring.version:
            self._refresh()
        found = self._types.get(of_type)
        if found is None:
            held = self._held.get(str(of_type), [])
            keys = [
                _Key((column_of(of_type, scope) or FIRST, epoch), filter_key(secret, scope))
                for scope, epoch, secret in held
            ]
            by_hint = {each.key.hint: each for each in keys}
            found = self._types[of_type] = _TypeKeys(held, by_hint, {each.column: each.key for each in keys})
        return found

    def column(self, of_type: TypeKey, attribute: str) -> Column | None:
        """Return the column of an attribute in its current epoch, if there is one."""
        epoch = self._ring.current(column_scope(of_type, attribute) if attribute else str(of_type))
        return None if epoch is None else (attribute, epoch)

    def _refresh(self) -> None:
        self._version = self._ring.version
        self._held = {}
        for held in self._ring.items():
            self._held.setdefault(type_of(held[0]), []).append(held)
        self._types = {one: keys for one, keys in self._types.items() if keys.held == self._held.get(str(one))}


class KeyFilters:
    """`Filters` over a key ring. Sealed and opened filters are remembered until their keys change."""

    def __init__(self, keys: KeyRing, level_of: LevelOf, limits: BrokerLimits) -> None:
        self._ring = keys
        self._keys = _FilterKeys(keys)
        self._level_of = level_of
        self._limits = limits
        #: parts that did not open although their key is held, or are malformed
        self.unopened = 0
        self._parts: dict[tuple[Sealing, Filter], dict[str, bytes]] = {}
        #: by the plaintext of the part, which is the same in each epoch
        self._read: dict[bytes, Filter] = {}
        self._sealed: dict[tuple[TypeKey, Sealing, Filter], tuple[list[Column | None], AnyFilter]] = {}
        self._opened: dict[tuple[TypeKey, SealedFilter], tuple[list[bytes], OpenedFilter]] = {}

    def __repr__(self) -> str:
        return f"KeyFilters({self._ring!r})"

    @property
    def version(self) -> int:
        """The version of the key ring."""
        return self._ring.version

    def seal(self, of_type: TypeKey, filter_: Filter, /) -> AnyFilter:
        """Return a filter for neighbours: unchanged, or for a sealed type the parts that can be sealed."""
        level = self._level_of(of_type)
        if level is Sealing.NONE or filter_.selector == ALWAYS:
            return filter_
        parts = self._parts.get((level, filter_))
        if parts is None:
            parts = _remember(self._parts, (level, filter_), dict(self._contents(level, filter_)), self._limits)
        columns = [self._keys.column(of_type, attribute) for attribute in parts]
        known = self._sealed.get((of_type, level, filter_))
        if known is None or known[0] != columns:
            sealed = self._seal(of_type, columns, parts)
            known = _remember(self._sealed, (of_type, level, filter_), (columns, sealed), self._limits)
        return known[1]

    def open(self, of_type: TypeKey, sealed: SealedFilter, /) -> OpenedFilter:
        """Open the parts for which there are keys. A part that does not open counts as closed, in `unopened`."""
        keys = self._keys.of_type(of_type).by_hint
        hints = [part[:HINT_BYTES] for part in sealed.parts if part[:HINT_BYTES] in keys]
        known = self._opened.get((of_type, sealed))
        if known is None or known[0] != hints:
            known = _remember(self._opened, (of_type, sealed), (hints, self._open(keys, sealed)), self._limits)
        return known[1]

    def attributes(self, route: Route, /) -> Sequence[str]:
        """Return the attributes of a block, if its route names them."""
        return route.names.attributes if isinstance(route, PlainNames) else ()

    def _contents(self, level: Sealing, filter_: Filter) -> Iterator[tuple[str, bytes]]:
        """Yield the parts of a filter to seal, by attribute, within the limits of other brokers."""
        parts = _parts(filter_) if level is Sealing.ATTRIBUTE else iter([(FIRST, filter_)])
        found = ((attribute, pad(Padding.SIZES, encode(part.to_tree()))) for attribute, part in parts)
        return islice((one for one in found if len(one[1]) <= self._limits.filter_bytes), self._limits.filter_parts)

    def _seal(self, of_type: TypeKey, columns: Sequence[Column | None], parts: Mapping[str, bytes]) -> AnyFilter:
        keys = self._keys.of_type(of_type).by_column
        held = [(keys.get(column), content) for column, content in zip(columns, parts.values(), strict=True) if column]
        found = seal_filter((key, content) for key, content in held if key is not None)
        return SealedFilter(found) if found else Filter()

    def _open(self, keys: Mapping[bytes, _Key], sealed: SealedFilter) -> OpenedFilter:
        clauses, closed = list[SealedClause](), list[bytes]()
        for part in sealed.parts:
            held = keys.get(part[:HINT_BYTES])
            content = None if held is None else self._content(held, part, sealed)
            if held is None or content is None:
                self.unopened += held is not None
                closed.append(part[:NAME_BYTES])
            else:
                clauses.append(SealedClause(held.column, content))
        return OpenedFilter(tuple(clauses), tuple(closed))

    def _content(self, held: _Key, part: bytes, sealed: SealedFilter) -> Filter | None:
        """Return the conditions of a part, or None if it does not open or is malformed."""
        try:
            content = open_part(held.key, part, sealed.parts)
            found = self._read.get(content)
            if found is None:
                read = Filter.from_tree(decode(unpad(Padding.SIZES, content)))
                found = _remember(self._read, content, read, self._limits)
        except PenstockError:
            return None
        attribute, _ = held.column
        # A holder of one attribute's key must not filter on another attribute.
        return found if attribute == FIRST or found.selector.attributes == {attribute} else None


def _remember(known: dict[_Q, _A], asked: _Q, answer: _A, limits: BrokerLimits) -> _A:
    if len(known) >= limits.filter_cache:
        known.clear()
    known[asked] = answer
    return answer


def _parts(filter_: Filter) -> Iterator[tuple[str, Filter]]:
    """Yield the conditions of a filter on single attributes, by attribute."""
    by_attribute: dict[str, list[Selector]] = {}
    for asked in conjuncts(filter_.selector):
        if len(asked.attributes) == 1 and not _holds_for_none(asked):
            by_attribute.setdefault(next(iter(asked.attributes)), []).append(asked)
    for attribute, selectors in sorted(by_attribute.items()):
        yield attribute, Filter.of(conjunction(*selectors), filter_.schema)


def _holds_for_none(selector: Selector) -> bool:
    try:
        return evaluate(selector, {}) is True
    except EvaluationError:
        return False


def interest(of_type: TypeKey, filter_: AnyFilter, filters: Filters) -> Interest:
    """Return a filter for comparison: an attribute is a different one in each epoch, and so is each closed part."""
    if isinstance(filter_, Filter):
        return Interest(of_type, filter_.selector, schema=filter_.schema)
    opened = filters.open(of_type, filter_)
    selectors: list[Selector] = []
    schema: dict[str, AttributeSpec] = {}
    try:
        for (attribute, epoch), content in opened.clauses:
            names = {name: f"{epoch} {attribute} {name}" for name in content.selector.attributes}
            selectors.append(content.selector.rename(names))
            schema |= {names[name]: content.schema[name] for name in names}
        selectors += _closed(opened.closed, schema)
        return Interest(of_type, conjunction(*selectors), schema=schema, source=filter_)
    except PenstockError:
        # Too long to compare when it is open.
        schema = {}
        parts = _closed((part[:NAME_BYTES] for part in filter_.parts), schema)
        return Interest(of_type, conjunction(*parts), schema=schema, source=filter_)


def _closed(names: Iterable[bytes], schema: dict[str, AttributeSpec]) -> list[Selector]:
    found = [name.hex() for name in names]
    schema |= dict.fromkeys(found, AttributeSpec(Kind.BOOLEAN))
    return [equals(name, value=True) for name in found]

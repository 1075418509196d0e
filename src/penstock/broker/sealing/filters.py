"""Filters on sealed types: what is asked of an attribute is sealed under its key (dissertation, 7.3 and 7.3.1).

A filter is taken for a conjunction. Of what it asks of a single attribute one part is made, sealed under the key of
that attribute; the rest stays with the subscriber's broker, which asks everything in the end. What a missing value
fulfils stays there too: a broker on the way may read more than the subscriber's, which must not make a difference.
Where events are sealed as a whole, so are filters.

A part says something about columns of its own epoch alone, so that nobody can ask about an event who could not read
what he asks about. What cannot be opened, or is not about a block, is taken to be fulfilled.

One filter covers another where each of its parts is a part of the other, or is opened, and lets through what some part
of the other, on the same column in the same epoch, does. Whoever can open one of these can open both. So the one covers
the other at every broker, whatever keys it holds; that is why closed parts are not taken for fulfilled *here*.
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
"""Says how the owner of a type wants its events sealed."""


class SealedClause(NamedTuple):
    """A part of a sealed filter that is open: which columns it is about, and what it asks of them."""

    column: Column
    filter: Filter


class OpenedFilter(NamedTuple):
    """A sealed filter: the parts that can be read here, and the names of those that cannot."""

    clauses: tuple[SealedClause, ...]
    closed: tuple[bytes, ...]

    def where(self, columns: Collection[Column]) -> Selector:
        """Return what it asks of events with these columns, as far as that is known."""
        try:
            return conjunction(*(clause.filter.selector for clause in self.clauses if clause.column in columns))
        except PenstockError:
            # Too long as a whole: nothing is asked here then.
            return ALWAYS


class Filters(Protocol):
    """What a broker can seal and open of filters. `version` changes when something else can be."""

    @property
    def version(self) -> int:
        """Changes when something else can be sealed or opened than before."""

    def seal(self, of_type: TypeKey, filter_: Filter, /) -> AnyFilter:
        """Return a filter as neighbours may see it: as it is, or what of it can be sealed if the type is."""

    def open(self, of_type: TypeKey, sealed: SealedFilter, /) -> OpenedFilter:
        """Open what can be opened."""

    def attributes(self, route: Route, /) -> Sequence[str]:
        """Return the attributes of a block, in their order; none where its route does not tell them here."""


class NoFilters:
    """For brokers without keys, in networks in which nothing is sealed."""

    version = 0

    def seal(self, _of_type: TypeKey, filter_: Filter, /) -> AnyFilter:
        """Seal nothing."""
        return filter_

    def open(self, _of_type: TypeKey, sealed: SealedFilter, /) -> OpenedFilter:
        """Open nothing."""
        return OpenedFilter((), tuple(part[:NAME_BYTES] for part in sealed.parts))

    def attributes(self, route: Route, /) -> Sequence[str]:
        """Return the attributes of a block, if its route says them."""
        return route.names.attributes if isinstance(route, PlainNames) else ()


class _Key(NamedTuple):
    """A key for filters, and the columns that they are about."""

    column: Column
    key: FilterKey


class _TypeKeys(NamedTuple):
    """The keys for filters on one type, and what they were derived from."""

    held: Sequence[tuple[str, int, Secret]]
    by_hint: Mapping[bytes, _Key]
    by_column: Mapping[Column, FilterKey]


class _FilterKeys:
    """The keys for filters that follow from a ring of keys. They are derived once, and forgotten with the ring's."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring
        self._version = -1
        self._held: dict[str, list[tuple[str, int, Secret]]] = {}
        self._types: dict[TypeKey, _TypeKeys] = {}

    def of_type(self, of_type: TypeKey) -> _TypeKeys:
        """Return those for a type."""
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
        """Return the column of an attribute in the epoch that is sealed under, if there is one."""
        epoch = self._ring.current(column_scope(of_type, attribute) if attribute else str(of_type))
        return None if epoch is None else (attribute, epoch)

    def _refresh(self) -> None:
        self._version = self._ring.version
        self._held = {}
        for held in self._ring.items():
            self._held.setdefault(type_of(held[0]), []).append(held)
        self._types = {one: keys for one, keys in self._types.items() if keys.held == self._held.get(str(one))}


class KeyFilters:
    """`Filters` over a ring of keys. What was sealed or opened is remembered while the same keys are for it."""

    def __init__(self, keys: KeyRing, level_of: LevelOf, limits: BrokerLimits) -> None:
        self._ring = keys
        self._keys = _FilterKeys(keys)
        self._level_of = level_of
        self._limits = limits
        #: parts that did not open though their key is held, or are not what they should be
        self.unopened = 0
        self._parts: dict[tuple[Sealing, Filter], dict[str, bytes]] = {}
        #: by what is sealed of it: the same in each epoch
        self._read: dict[bytes, Filter] = {}
        self._sealed: dict[tuple[TypeKey, Sealing, Filter], tuple[list[Column | None], AnyFilter]] = {}
        self._opened: dict[tuple[TypeKey, SealedFilter], tuple[list[bytes], OpenedFilter]] = {}

    def __repr__(self) -> str:
        return f"KeyFilters({self._ring!r})"

    @property
    def version(self) -> int:
        """That of the keys."""
        return self._ring.version

    def seal(self, of_type: TypeKey, filter_: Filter, /) -> AnyFilter:
        """Return a filter as neighbours may see it: as it is, or what of it can be sealed if the type is."""
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
        """Open what there are keys for. What does not open though there is one is as good as closed, and counted."""
        keys = self._keys.of_type(of_type).by_hint
        hints = [part[:HINT_BYTES] for part in sealed.parts if part[:HINT_BYTES] in keys]
        known = self._opened.get((of_type, sealed))
        if known is None or known[0] != hints:
            known = _remember(self._opened, (of_type, sealed), (hints, self._open(keys, sealed)), self._limits)
        return known[1]

    def attributes(self, route: Route, /) -> Sequence[str]:
        """Return the attributes of a block, if its route says them."""
        return route.names.attributes if isinstance(route, PlainNames) else ()

    def _contents(self, level: Sealing, filter_: Filter) -> Iterator[tuple[str, bytes]]:
        """Yield the parts of a filter to seal, for each attribute: as much as others would read."""
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
        """Return what a part asks, or None where it is not what it should be."""
        try:
            content = open_part(held.key, part, sealed.parts)
            found = self._read.get(content)
            if found is None:
                read = Filter.from_tree(decode(unpad(Padding.SIZES, content)))
                found = _remember(self._read, content, read, self._limits)
        except PenstockError:
            return None
        attribute, _ = held.column
        # Who holds the key of one attribute must not ask about another one.
        return found if attribute == FIRST or found.selector.attributes == {attribute} else None


def _remember(known: dict[_Q, _A], asked: _Q, answer: _A, limits: BrokerLimits) -> _A:
    if len(known) >= limits.filter_cache:
        known.clear()
    known[asked] = answer
    return answer


def _parts(filter_: Filter) -> Iterator[tuple[str, Filter]]:
    """Yield what a filter asks of single attributes, for each of them."""
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
    """Return a filter as it is compared: an attribute is another one in each epoch, and so is each closed part."""
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
        # Too long to be compared when it is open.
        schema = {}
        parts = _closed((part[:NAME_BYTES] for part in filter_.parts), schema)
        return Interest(of_type, conjunction(*parts), schema=schema, source=filter_)


def _closed(names: Iterable[bytes], schema: dict[str, AttributeSpec]) -> list[Selector]:
    found = [name.hex() for name in names]
    schema |= dict.fromkeys(found, AttributeSpec(Kind.BOOLEAN))
    return [equals(name, value=True) for name in found]

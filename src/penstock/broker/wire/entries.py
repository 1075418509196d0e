"""The routing entries that brokers exchange: interests, advertisements, subscriptions, and their filters."""

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import ClassVar, Final, TypeAlias

from penstock.broker.limits import FILTER_BYTES, FILTER_CACHE, FILTER_CACHE_LENGTH, FILTER_PARTS
from penstock.broker.wire.plain_trees import Fields, Tree, key_tree, malformed, read_attribute, read_key, too_many
from penstock.crypto.filters import HINT_BYTES, LEAST_BYTES
from penstock.model.limits import TYPE_ATTRIBUTES
from penstock.model.names import TypeKey
from penstock.model.values import AttributeSpec, Kind, Schema
from penstock.selector import ALWAYS, Selector, parse


def _read_selector(text: str) -> Selector:
    selector = parse(text)
    if selector.text != text:
        malformed("a selector in another form than the canonical one")
    return selector


_read_short = lru_cache(maxsize=FILTER_CACHE)(_read_selector)


def _selector(text: str) -> Selector:
    """Read a selector. Short ones are cached: every neighbour sends them again."""
    return _read_short(text) if len(text) <= FILTER_CACHE_LENGTH else _read_selector(text)


@dataclass(frozen=True, slots=True)
class Filter:
    """A selector over attribute ids, and the kinds of the attributes that it reads.

    The kinds are all that a broker needs to compare filters of types that it has never seen. They leave out declared
    domains, which errs to the safe side: fewer filters cover others, and more of them overlap.
    """

    selector: Selector = ALWAYS
    kinds: tuple[tuple[str, Kind], ...] = ()
    schema: Schema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        schema = {name: AttributeSpec(kind) for name, kind in self.kinds}
        if schema.keys() != self.selector.attributes or list(self.kinds) != sorted(self.kinds):
            malformed("the kinds of a filter are not those of its attributes")
        self.selector.check(schema)
        object.__setattr__(self, "schema", MappingProxyType(schema))

    @classmethod
    def of(cls, selector: Selector, schema: Schema) -> "Filter":
        """Return the filter of a selector that was written against a schema of attribute ids.

        Raises `SelectorError` (`selector.unknown-attribute`, `selector.type`).
        """
        selector.check(schema)
        return cls(selector, tuple((name, schema[name].kind) for name in sorted(selector.attributes)))

    def to_tree(self) -> dict[str, Tree]:
        """Return the filter as a plain tree."""
        return {"where": self.selector.text, "kinds": {name: str(kind) for name, kind in self.kinds}}

    @classmethod
    def from_tree(cls, tree: object) -> "Filter":
        """Read a filter. Raises `MalformedError` and what parsing and checking a selector raises."""
        fields = Fields(tree, "a filter")
        selector = _selector(fields.take("where", str))
        kinds = fields.take("kinds", dict)
        fields.end()
        if len(kinds) > TYPE_ATTRIBUTES:
            too_many("`kinds`", TYPE_ATTRIBUTES)
        return cls(selector, tuple(sorted((read_attribute(name), _kind(kind)) for name, kind in kinds.items())))


@dataclass(frozen=True, slots=True)
class SealedFilter:
    """A filter of which each part is sealed under the key of an attribute, or of a type (`sealing.filters`).

    A broker applies the parts that it can open. A broker that can open none of them matches the type alone.
    """

    parts: tuple[bytes, ...] = field(repr=False)

    def __post_init__(self) -> None:
        hints = [part[:HINT_BYTES] for part in self.parts]
        if not hints or any(one >= other for one, other in pairwise(hints)):
            malformed("the parts of a sealed filter are not sorted, or there are none, or two for one attribute")

    def to_tree(self) -> dict[str, Tree]:
        """Return the filter as a plain tree."""
        return {"sealed": [*self.parts]}

    @classmethod
    def from_tree(cls, tree: object) -> "SealedFilter":
        """Read a filter. Raises `MalformedError` (`message.malformed`) and `LimitError` (`message.limit`)."""
        fields = Fields(tree, "a sealed filter")
        parts = fields.many("sealed", FILTER_PARTS, _part)
        fields.end()
        return cls(parts)


def _part(data: object) -> bytes:
    if type(data) is not bytes or len(data) < LEAST_BYTES:
        malformed("a part of a sealed filter")
    if len(data) - LEAST_BYTES > FILTER_BYTES:
        too_many("bytes of a part of a filter", FILTER_BYTES)
    return data


AnyFilter: TypeAlias = Filter | SealedFilter
"""The filter of a subscription."""


def _read_filter(tree: object) -> AnyFilter:
    if isinstance(tree, dict) and "sealed" in tree:
        return SealedFilter.from_tree(tree)
    return Filter.from_tree(tree)


def _kind(text: object) -> Kind:
    try:
        return Kind(text) if type(text) is str else malformed("the kind of an attribute")
    except ValueError:
        malformed("the kind of an attribute")


@dataclass(frozen=True, slots=True)
class InterestEntry:
    """A client in this direction wants events of a type, and so needs to receive its advertisements."""

    KIND: ClassVar = "interest"
    tree: TypeKey

    def to_tree(self) -> dict[str, Tree]:
        """Return the entry as a plain tree."""
        return {"kind": self.KIND, "tree": key_tree(self.tree)}

    @classmethod
    def _read(cls, fields: Fields) -> "InterestEntry":
        return cls(read_key(fields.any("tree")))


@dataclass(frozen=True, slots=True)
class Advertisement:
    """A client in this direction publishes events of `type` that pass the filter.

    In the tree of its own type it leads subscriptions to the publisher. In the tree of an ancestor it tells those who
    want that ancestor which sub-type there is.
    """

    KIND: ClassVar = "advertisement"
    tree: TypeKey
    type: TypeKey
    filter: Filter = Filter()

    def to_tree(self) -> dict[str, Tree]:
        """Return the entry as a plain tree."""
        tree: dict[str, Tree] = {"kind": self.KIND, "tree": key_tree(self.tree), "type": key_tree(self.type)}
        return {**tree, "filter": self.filter.to_tree()}

    @classmethod
    def _read(cls, fields: Fields) -> "Advertisement":
        tree, of_type = read_key(fields.any("tree")), read_key(fields.any("type"))
        return cls(tree, of_type, Filter.from_tree(fields.any("filter")))


@dataclass(frozen=True, slots=True)
class SubscriptionEntry:
    """A client in this direction wants the events of a type that pass the filter."""

    KIND: ClassVar = "subscription"
    tree: TypeKey
    filter: AnyFilter = Filter()

    def to_tree(self) -> dict[str, Tree]:
        """Return the entry as a plain tree."""
        return {"kind": self.KIND, "tree": key_tree(self.tree), "filter": self.filter.to_tree()}

    @classmethod
    def _read(cls, fields: Fields) -> "SubscriptionEntry":
        return cls(read_key(fields.any("tree")), _read_filter(fields.any("filter")))


Entry: TypeAlias = InterestEntry | Advertisement | SubscriptionEntry
_ENTRIES: Final = {kind.KIND: kind for kind in (InterestEntry, Advertisement, SubscriptionEntry)}


def read_entry(tree: object) -> Entry:
    """Read an entry. Raises `MalformedError` and what reading a filter raises."""
    fields = Fields(tree, "an entry")
    kind = _ENTRIES.get(fields.take("kind", str))
    if kind is None:
        malformed("an entry of unknown kind")
    entry = kind._read(fields)  # noqa: SLF001  # one reader in several classes
    fields.end()
    return entry

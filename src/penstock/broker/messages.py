"""What brokers say to each other, as values and as plain trees for the wire.

Everything between two neighbours travels in a `Hop`, which names the sender's session and counts:

| body           | says                                                                        | counted |
|----------------|-----------------------------------------------------------------------------|---------|
| `Greeting`     | a session begins: forget what I told you before                             | no      |
| `Pulse`        | I am here, and have counted so far                                          | no      |
| `Again`        | begin a session later than this one, I have lost count                      | no      |
| `Announcement` | a broker's links, numbered by that broker; it is passed on to everyone      | yes     |
| `Enter`        | an `Interest`, `Advertisement` or `Subscription` holds, under this handle   | yes     |
| `Withdraw`     | what was entered under this handle holds no longer                          | yes     |
| `Publication`  | an event                                                                    | yes     |

`to_tree` gives None, bool, int, float, str, bytes, datetime, and lists and string-keyed dicts of them. `from_tree`
reads exactly what `to_tree` writes, within `Limits`; whatever else the tree is, it raises `MalformedError`
(`message.malformed`), `LimitError` (`message.limit`) or what the parts of a message raise, and nothing else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import ClassVar, Final, NoReturn, TypeAlias, TypeVar

from penstock.errors import LimitError, MalformedError
from penstock.model.events import TransitEvent
from penstock.model.instants import in_utc
from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import DIGEST_BYTES, KEY, THRESHOLD, Principal
from penstock.model.values import INTEGER_MAX, AttributeSpec, Kind, Scalar, Schema, check_value, kind_of
from penstock.selector import ALWAYS, Selector, parse

Tree: TypeAlias = bool | int | float | str | bytes | datetime | list["Tree"] | dict[str, "Tree"] | None
"""What a wire codec writes and reads."""

_T = TypeVar("_T")


def _malformed(what: str) -> NoReturn:
    raise MalformedError("message.malformed", f"not a message between brokers: {what}", hint="cut the link")


def _too_many(what: str, most: int) -> NoReturn:
    raise LimitError("message.limit", f"a message has more than {most} {what}", hint="cut the link")


class _Fields:
    """The fields of one tree; each is asked for once, and `end` finds those that nobody asked for."""

    def __init__(self, tree: object, what: str) -> None:
        if not isinstance(tree, dict):
            _malformed(f"{what} is no map")
        self._tree, self._what, self._asked = tree, what, 0

    def take(self, name: str, kind: type[_T]) -> _T:
        value = self._tree.get(name)
        # A bool is an int to Python, and a subclass is not what a codec makes.
        if type(value) is not kind:
            _malformed(f"`{name}` of {self._what}")
        self._asked += 1
        return value

    def count(self, name: str) -> int:
        value = self.take(name, int)
        if not 0 <= value <= INTEGER_MAX:
            _malformed(f"`{name}` of {self._what}")
        return value

    def any(self, name: str) -> object:
        if name not in self._tree:
            _malformed(f"`{name}` of {self._what}")
        self._asked += 1
        return self._tree[name]

    def many(self, name: str, most: int, read: Callable[[object], _T]) -> tuple[_T, ...]:
        items = self.take(name, list)
        if len(items) > most:
            _too_many(f"`{name}`", most)
        return tuple(read(item) for item in items)

    def end(self) -> None:
        if self._asked != len(self._tree):
            _malformed(f"unknown fields in {self._what}")


# Principals, type keys and attribute ids come again with every event; reading one of them twice is the same.


@lru_cache(maxsize=DEFAULT_LIMITS.cache_entries)
def _write_principal(principal: Principal, scheme: str) -> bytes:
    return (b"\x00" if scheme == KEY else b"\x01") + principal.digest


@lru_cache(maxsize=DEFAULT_LIMITS.cache_entries)
def _principal(octets: bytes) -> Principal:
    if len(octets) != DIGEST_BYTES + 1 or octets[0] > 1:
        _malformed("a principal")
    return Principal(octets[1:], THRESHOLD if octets[0] else KEY)


def _read_principal(value: object) -> Principal:
    return _principal(value) if type(value) is bytes else _malformed("a principal")


def _tree_of(principal: Principal) -> bytes:
    return _write_principal(principal, principal.scheme)


@lru_cache(maxsize=DEFAULT_LIMITS.cache_entries)
def _type_key(owner: bytes, name: str) -> TypeKey:
    return TypeKey(_principal(owner), name)


def _read_key(value: object) -> TypeKey:
    match value:
        case [bytes(owner), str(name)] if type(value) is list:
            return _type_key(owner, name)
    _malformed("the name of a type")


def _key_tree(key: TypeKey) -> list[Tree]:
    return [_tree_of(key.owner), key.name]


@lru_cache(maxsize=DEFAULT_LIMITS.cache_entries)
def _check_attribute(text: str) -> str:
    return str(AttributeId.parse(text))


@lru_cache(maxsize=DEFAULT_LIMITS.cache_entries)
def _selector(text: str) -> Selector:
    selector = parse(text)
    if selector.text != text:
        _malformed("a selector in another form than the canonical one")
    return selector


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
            _malformed("the kinds of a filter are not those of its attributes")
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
        fields = _Fields(tree, "a filter")
        selector = _selector(fields.take("where", str))
        kinds = fields.take("kinds", dict)
        fields.end()
        if len(kinds) > DEFAULT_LIMITS.type_attributes:
            _too_many("`kinds`", DEFAULT_LIMITS.type_attributes)
        return cls(selector, tuple(sorted((_attribute(name), _kind(kind)) for name, kind in kinds.items())))


def _attribute(name: object) -> str:
    return _check_attribute(name) if type(name) is str else _malformed("the id of an attribute")


def _kind(text: object) -> Kind:
    try:
        return Kind(text) if type(text) is str else _malformed("the kind of an attribute")
    except ValueError:
        _malformed("the kind of an attribute")


@dataclass(frozen=True, slots=True)
class Interest:
    """Somebody this way wants events of a type, and so wants to hear of advertisements."""

    KIND: ClassVar = "interest"
    tree: TypeKey

    def to_tree(self) -> dict[str, Tree]:
        """Return the entry as a plain tree."""
        return {"kind": self.KIND, "tree": _key_tree(self.tree)}

    @classmethod
    def _read(cls, fields: _Fields) -> "Interest":
        return cls(_read_key(fields.any("tree")))


@dataclass(frozen=True, slots=True)
class Advertisement:
    """Somebody this way publishes events of `type` that pass the filter.

    In the tree of its own type it leads subscriptions to the publisher. In the tree of an ancestor it tells those who
    want that ancestor which sub-type there is.
    """

    KIND: ClassVar = "advertisement"
    tree: TypeKey
    type: TypeKey
    filter: Filter = Filter()

    def to_tree(self) -> dict[str, Tree]:
        """Return the entry as a plain tree."""
        tree: dict[str, Tree] = {"kind": self.KIND, "tree": _key_tree(self.tree), "type": _key_tree(self.type)}
        return {**tree, "filter": self.filter.to_tree()}

    @classmethod
    def _read(cls, fields: _Fields) -> "Advertisement":
        tree, of_type = _read_key(fields.any("tree")), _read_key(fields.any("type"))
        return cls(tree, of_type, Filter.from_tree(fields.any("filter")))


@dataclass(frozen=True, slots=True)
class Subscription:
    """Somebody this way wants the events of a type that pass the filter."""

    KIND: ClassVar = "subscription"
    tree: TypeKey
    filter: Filter = Filter()

    def to_tree(self) -> dict[str, Tree]:
        """Return the entry as a plain tree."""
        return {"kind": self.KIND, "tree": _key_tree(self.tree), "filter": self.filter.to_tree()}

    @classmethod
    def _read(cls, fields: _Fields) -> "Subscription":
        return cls(_read_key(fields.any("tree")), Filter.from_tree(fields.any("filter")))


Entry: TypeAlias = Interest | Advertisement | Subscription
_ENTRIES: Final = {kind.KIND: kind for kind in (Interest, Advertisement, Subscription)}


def _read_entry(tree: object) -> Entry:
    fields = _Fields(tree, "an entry")
    kind = _ENTRIES.get(fields.take("kind", str))
    if kind is None:
        _malformed("an entry of unknown kind")
    entry = kind._read(fields)  # noqa: SLF001  # one reader in several classes
    fields.end()
    return entry


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first word of a session."""

    KIND: ClassVar = "greeting"
    COUNTED: ClassVar = False

    def to_tree(self) -> dict[str, Tree]:
        """Return the body as a plain tree."""
        return {"kind": self.KIND}

    @classmethod
    def _read(cls, _fields: _Fields) -> "Greeting":
        return cls()


@dataclass(frozen=True, slots=True)
class Pulse:
    """A sign of life. Its hop says how far the sender has counted."""

    KIND: ClassVar = "pulse"
    COUNTED: ClassVar = False

    def to_tree(self) -> dict[str, Tree]:
        """Return the body as a plain tree."""
        return {"kind": self.KIND}

    @classmethod
    def _read(cls, _fields: _Fields) -> "Pulse":
        return cls()


@dataclass(frozen=True, slots=True, order=True)
class Stamp:
    """A session of one broker with one neighbour: later ones are greater, whatever happened in between."""

    incarnation: int
    session: int


@dataclass(frozen=True, slots=True)
class Again:
    """Begin a session after `after`: words were lost, or the addressee's clock went backwards."""

    KIND: ClassVar = "again"
    COUNTED: ClassVar = False
    after: Stamp

    def to_tree(self) -> dict[str, Tree]:
        """Return the body as a plain tree."""
        return {"kind": self.KIND, "incarnation": self.after.incarnation, "session": self.after.session}

    @classmethod
    def _read(cls, fields: _Fields) -> "Again":
        return cls(Stamp(fields.count("incarnation"), fields.count("session")))


@dataclass(frozen=True, slots=True)
class Announcement:
    """The links of one broker, as it says itself. Later numbers of a later incarnation win.

    `proof` is what the network demands to believe that the words are that broker's (see `Membership`).
    """

    KIND: ClassVar = "announcement"
    COUNTED: ClassVar = True
    broker: Principal
    incarnation: int
    number: int
    links: tuple[Principal, ...] = ()
    proof: bytes = b""

    @property
    def order(self) -> tuple[int, int]:
        """What says which of two announcements of a broker is the later one."""
        return self.incarnation, self.number

    def to_tree(self) -> dict[str, Tree]:
        """Return the body as a plain tree."""
        return {
            "kind": self.KIND,
            "broker": _tree_of(self.broker),
            "incarnation": self.incarnation,
            "number": self.number,
            "links": [_tree_of(link) for link in self.links],
            "proof": self.proof,
        }

    @classmethod
    def _read(cls, fields: _Fields) -> "Announcement":
        broker = _read_principal(fields.any("broker"))
        order = fields.count("incarnation"), fields.count("number")
        links = fields.many("links", DEFAULT_LIMITS.network_links, _read_principal)
        if any(one >= other for one, other in pairwise(links)) or broker in links:
            _malformed("the links of an announcement are not a sorted set of others")
        proof = fields.take("proof", bytes)
        if len(proof) > DEFAULT_LIMITS.network_proof:
            _too_many("bytes of proof", DEFAULT_LIMITS.network_proof)
        return cls(broker, *order, links, proof)


@dataclass(frozen=True, slots=True)
class Enter:
    """An entry holds from now on, under a handle of the sender's choice that is new in the session."""

    KIND: ClassVar = "enter"
    COUNTED: ClassVar = True
    handle: int
    entry: Entry

    def to_tree(self) -> dict[str, Tree]:
        """Return the body as a plain tree."""
        return {"kind": self.KIND, "handle": self.handle, "entry": self.entry.to_tree()}

    @classmethod
    def _read(cls, fields: _Fields) -> "Enter":
        return cls(fields.count("handle"), _read_entry(fields.any("entry")))


@dataclass(frozen=True, slots=True)
class Withdraw:
    """An entry of this session holds no longer."""

    KIND: ClassVar = "withdraw"
    COUNTED: ClassVar = True
    handle: int

    def to_tree(self) -> dict[str, Tree]:
        """Return the body as a plain tree."""
        return {"kind": self.KIND, "handle": self.handle}

    @classmethod
    def _read(cls, fields: _Fields) -> "Withdraw":
        return cls(fields.count("handle"))


@dataclass(frozen=True, slots=True)
class Publication:
    """An event on its way. Its origin counts per type and incarnation, which tells copies from events."""

    KIND: ClassVar = "publication"
    COUNTED: ClassVar = True
    origin: Principal
    incarnation: int
    number: int
    hops: int
    event: TransitEvent

    def to_tree(self) -> dict[str, Tree]:
        """Return the body as a plain tree."""
        event = self.event
        return {
            "kind": self.KIND,
            "origin": _tree_of(self.origin),
            "incarnation": self.incarnation,
            "number": self.number,
            "hops": self.hops,
            "type": _key_tree(event.key),
            "ancestors": [_key_tree(key) for key in event.ancestors],
            "values": {str(name): value for name, value in event.values.items()},
            "id": event.id,
            "time": event.time,
        }

    @classmethod
    def _read(cls, fields: _Fields) -> "Publication":
        origin = _read_principal(fields.any("origin"))
        counts = fields.count("incarnation"), fields.count("number"), fields.count("hops")
        key = _read_key(fields.any("type"))
        ancestors = fields.many("ancestors", DEFAULT_LIMITS.type_depth, _read_key)
        if len({key, *ancestors}) != len(ancestors) + 1:
            _malformed("a type stands twice among its ancestors")
        values = _read_values(fields.take("values", dict))
        name = fields.take("id", str)
        check_value(Kind.STRING, name)
        return cls(origin, *counts, TransitEvent(key, ancestors, values, name, _read_time(fields.any("time"))))


def _read_values(tree: dict[object, object]) -> Mapping[str, Scalar]:
    if len(tree) > DEFAULT_LIMITS.type_attributes:
        _too_many("`values`", DEFAULT_LIMITS.type_attributes)
    return MappingProxyType({_attribute(name): _read_value(value) for name, value in tree.items()})


def _read_value(value: object) -> Scalar:
    # Nulls are left out of an event, and subclasses of the kinds do not come from a codec. Plain cases come first,
    # because every value of every event comes by here.
    if type(value) is bool or type(value) is float or (type(value) is str and value.isascii()):
        return value
    if type(value) is int or type(value) is str:
        check_value(kind_of(value), value)
        return value
    return in_utc(value) if type(value) is datetime else _malformed("the value of an attribute")


def _read_time(value: object) -> datetime | None:
    if value is None:
        return None
    return in_utc(value) if type(value) is datetime else _malformed("the time of an event")


Body: TypeAlias = Greeting | Pulse | Again | Announcement | Enter | Withdraw | Publication
_BODIES: Final = {kind.KIND: kind for kind in (Greeting, Pulse, Again, Announcement, Enter, Withdraw, Publication)}


@dataclass(frozen=True, slots=True)
class Hop:
    """One word to a neighbour: in which session of the sender, the how-manieth counted one, and what."""

    stamp: Stamp
    number: int
    body: Body

    def to_tree(self) -> dict[str, Tree]:
        """Return the hop as a plain tree."""
        return {
            "incarnation": self.stamp.incarnation,
            "session": self.stamp.session,
            "number": self.number,
            "body": self.body.to_tree(),
        }

    @classmethod
    def from_tree(cls, tree: object) -> "Hop":
        """Read a hop.

        Raises `MalformedError`: `message.malformed`, and what names, principals, values and selectors raise; and
        `LimitError` (`message.limit`, `selector.limit`).
        """
        fields = _Fields(tree, "a hop")
        stamp = Stamp(fields.count("incarnation"), fields.count("session"))
        number = fields.count("number")
        inner = _Fields(fields.any("body"), "a body")
        fields.end()
        kind = _BODIES.get(inner.take("kind", str))
        if kind is None:
            _malformed("a body of unknown kind")
        body = kind._read(inner)  # noqa: SLF001  # one reader in several classes
        inner.end()
        return cls(stamp, number, body)

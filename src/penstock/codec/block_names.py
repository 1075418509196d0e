"""The names of a block's type and attributes, and how a block says them on its way: as they are, or as labels.

    names    type, ancestors, attributes, with blanks between; `#uid` for an attribute that the type itself defines
    labels   how many ancestors (1 byte), then 16 bytes for the type, for each ancestor, and for each attribute

Names have one written form, whose digest is what the columns of a block are bound to.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from penstock.errors import LimitError, MalformedError
from penstock.model.events import TransitEvent
from penstock.model.limits import TYPE_ATTRIBUTES, TYPE_DEPTH
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Principal

LABEL_BYTES: Final = 16
ROUTE_HEAD: Final = Struct(">BI")
"""Kind and length of a route."""
_DIGEST: Final = b"penstock-names-1 "
#: names beyond this are read again each time, or remembering them would take much
_SHORT: Final = 4_096
_REMEMBERED: Final = 1_024


@dataclass(frozen=True, slots=True)
class BlockNames:
    """The names shared by the events of a block: the type, its ancestors, and attributes. Build it with `names`."""

    type: TypeKey
    ancestors: tuple[TypeKey, ...]
    attributes: tuple[str, ...]
    #: the written form, and its digest
    octets: bytes = field(repr=False, compare=False)
    digest: bytes = field(repr=False, compare=False)
    #: what an event is while nothing but its type is known
    blank: TransitEvent = field(repr=False, compare=False)


@lru_cache(maxsize=_REMEMBERED)
def names(event_type: TypeKey, ancestors: tuple[TypeKey, ...], attributes: tuple[str, ...]) -> BlockNames:
    """Return the names of a block, written down. Attributes are given by their ids.

    Raises `LimitError` (`block.limit`), and `MalformedError`: `block.malformed` where one stands twice, and what
    `AttributeId.parse` raises.
    """
    _check_names(ancestors, attributes)
    for attribute in attributes:
        # A text that is not an id could be read as two ids, or as one of another type.
        AttributeId.parse(attribute)
    own = str(event_type)
    written = [
        attribute.removeprefix(own) if attribute.startswith(f"{own}#") else attribute for attribute in attributes
    ]
    octets = " ".join([own, *map(str, ancestors), *written]).encode()
    if len({event_type, *ancestors}) != 1 + len(ancestors) or len({*attributes}) != len(attributes):
        raise malformed("a name stands twice in a block")
    blank = TransitEvent(event_type, ancestors, MappingProxyType({}))
    return BlockNames(event_type, ancestors, attributes, octets, hashlib.sha256(_DIGEST + octets).digest(), blank)


def read_names(octets: bytes) -> BlockNames:
    """Read written names. Raises `MalformedError` and `LimitError`, codes as `names`, and those of names."""
    return _read_short(octets) if len(octets) <= _SHORT else _read_names(octets)


def _read_names(octets: bytes) -> BlockNames:
    try:
        own, *others = octets.decode("ascii").split(" ")
    except UnicodeDecodeError:
        raise malformed("names that are not ASCII") from None
    line = [other for other in others if "#" not in other]
    written = others[len(line) :]
    _check_names(line, written)
    attributes = tuple(str(AttributeId.parse(own + name if name.startswith("#") else name)) for name in written)
    found = names(_type_key(own), tuple(map(_type_key, line)), attributes)
    # One written form: an id is short where it can be, and ancestors come before attributes.
    if found.octets != octets:
        raise malformed("names that are not written in their one form")
    return found


_read_short = lru_cache(maxsize=_REMEMBERED)(_read_names)


def _type_key(text: str) -> TypeKey:
    owner, slash, name = text.partition("/")
    if not slash:
        raise malformed("the name of a type without its owner")
    return TypeKey(Principal.parse(owner), name)


def _check_names(ancestors: Sequence[object], attributes: Sequence[object]) -> None:
    if len(ancestors) > TYPE_DEPTH or len(attributes) > TYPE_ATTRIBUTES:
        raise LimitError("block.limit", "a block has too many attributes, or its type too many ancestors")


class PlainNames(NamedTuple):
    """A route that says the names."""

    names: BlockNames


class Blinded(NamedTuple):
    """A route that says labels: of the type, of its ancestors, and of the attributes."""

    type: bytes
    ancestors: tuple[bytes, ...]
    attributes: tuple[bytes, ...]


Route: TypeAlias = PlainNames | Blinded


def write_route(route: Route) -> bytes:
    """Return a route as it is written in a block."""
    if isinstance(route, PlainNames):
        return ROUTE_HEAD.pack(0, len(route.names.octets)) + route.names.octets
    labels = b"".join((route.type, *route.ancestors, *route.attributes))
    return ROUTE_HEAD.pack(1, 1 + len(labels)) + bytes((len(route.ancestors),)) + labels


def read_route(octets: bytes) -> Route:
    """Read a route. Raises `MalformedError` (`block.malformed` and codes of names) and `LimitError` (`block.limit`)."""
    return _read_short_route(octets) if len(octets) <= _SHORT else _read_route(octets)


def _read_route(octets: bytes) -> Route:
    kind, length = ROUTE_HEAD.unpack_from(octets)
    content = octets[ROUTE_HEAD.size : ROUTE_HEAD.size + length]
    if kind == 0:
        return PlainNames(read_names(content))
    above = 1 + content[0] if content else 0
    labels = tuple(content[start : start + LABEL_BYTES] for start in range(1, length, LABEL_BYTES))
    if kind != 1 or not 1 <= above <= len(labels) or length % LABEL_BYTES != 1:
        raise malformed("a route that says neither names nor labels")
    _check_names(labels[1:above], labels[above:])
    return Blinded(labels[0], labels[1:above], labels[above:])


_read_short_route = lru_cache(maxsize=_REMEMBERED)(_read_route)


def malformed(message: str) -> MalformedError:
    """Return the error for bytes that are not a block."""
    return MalformedError("block.malformed", message)

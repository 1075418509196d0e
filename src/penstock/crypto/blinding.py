"""Blinded names: labels for types and attributes that only holders of a key can compute (paper 5, section 8.2).

    label = the first 16 bytes of HMAC-SHA256(key, "penstock-label-1 " ‖ name)

Names of types are few and public, so a plain hash of them could be found by trying. The label key is not an epoch key:
it stays the same when keys are refreshed, and so do routes. While it changes, a `Directory` knows both labels.

Brokers represent a blinded type by a name like any other, whose owner is `NOBODY`: no key has that digest, so no one
can define such types or grant rights on them.
"""

import base64
import hashlib
import hmac
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from penstock.codec.blocks import LABEL_BYTES, Blinded, BlockNames, PlainNames, Route, names
from penstock.crypto.seal_keys import KeyRing, label_scope
from penstock.crypto.wrapping import Secret
from penstock.errors import RefusedError
from penstock.model.limits import CACHE_ENTRIES
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.types import EventType

_LABEL: Final = b"penstock-label-1 "
NOBODY: Final = Principal(hashlib.sha256(b"penstock: the owner of all labels").digest())
"""The owner of the names that are made of labels."""


@lru_cache(maxsize=CACHE_ENTRIES)
def blinded_key(of_label: bytes) -> TypeKey:
    """Return the name by which brokers represent the type with this label."""
    return TypeKey(NOBODY, f"l{base64.b32encode(of_label).decode().rstrip('=').lower()}")


def is_blinded(key: TypeKey) -> bool:
    """Return whether a name was made of a label."""
    return key.owner.digest == NOBODY.digest


def label(key: Secret, name: str) -> bytes:
    """Return the label of a type or an attribute."""
    return hmac.digest(key.expose(), _LABEL + name.encode(), "sha256")[:LABEL_BYTES]


def blind(key: Secret, found: BlockNames) -> Blinded:
    """Return the route with labels instead of names."""
    types = [label(key, str(name)) for name in (found.type, *found.ancestors)]
    return Blinded(types[0], tuple(types[1:]), tuple(label(key, name) for name in found.attributes))


def blind_newest(ring: KeyRing, found: BlockNames) -> Blinded:
    """Return the route with labels of a ring's newest key. Raises `RefusedError` (`seal.unknown-label`)."""
    scope = label_scope(found.type)
    epoch = ring.newest(scope)
    key = None if epoch is None else ring.key(scope, epoch)
    if key is None:
        raise unknown_label()
    return blind(key, found)


class Directory:
    """The names of known labels. It can contain labels of an old and a new key.

    `version` changes with every change.
    """

    def __init__(self) -> None:
        self._types: dict[bytes, TypeKey] = {}
        self._attributes: dict[bytes, str] = {}
        self.version = 0

    @classmethod
    def of(cls, ring: KeyRing, types: Iterable[EventType]) -> "Directory":
        """Return the directory of all labels that a ring's keys give to some types."""
        found = cls()
        versions = [(label_scope(one.key), one) for one in types]
        for scope, _, key in ring.items():
            for one in (one for own, one in versions if own == scope):
                found.add(key, (one.key, *one.ancestors), (str(attribute.id) for attribute in one.attributes))
        return found

    def add(self, key: Secret, types: Iterable[TypeKey], attributes: Iterable[str]) -> None:
        """Add the labels of names under a key."""
        self.version += 1
        self._types |= {label(key, str(name)): name for name in types}
        self._attributes |= {label(key, name): str(name) for name in attributes}

    def remove(self, key: Secret, types: Iterable[TypeKey], attributes: Iterable[str]) -> None:
        """Remove the labels of names under a key."""
        self.version += 1
        for name in types:
            self._types.pop(label(key, str(name)), None)
        for attribute in attributes:
            self._attributes.pop(label(key, attribute), None)

    def resolve(self, route: Route) -> BlockNames:
        """Return the names of a route. Raises `RefusedError` (`seal.unknown-label`)."""
        if isinstance(route, PlainNames):
            return route.names
        try:
            types = [self._types[known] for known in (route.type, *route.ancestors)]
            attributes = tuple(self._attributes[known] for known in route.attributes)
        except KeyError:
            raise unknown_label() from None
        return names(types[0], tuple(types[1:]), attributes)


def unknown_label() -> RefusedError:
    """Return the error for labels whose key is not held."""
    return RefusedError(
        "seal.unknown-label",
        "the label of a type is not known here",
        hint="get the label key; to open files, give the type too",
    )

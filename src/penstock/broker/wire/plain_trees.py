"""Plain trees, and strict readers of their fields. Whatever does not fit raises `MalformedError`."""

from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import NoReturn, TypeAlias, TypeVar

from penstock.errors import LimitError, MalformedError
from penstock.model.limits import CACHE_ENTRIES
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import DIGEST_BYTES, KEY, THRESHOLD, Principal
from penstock.model.values import INTEGER_MAX

Tree: TypeAlias = bool | int | float | str | bytes | datetime | list["Tree"] | dict[str, "Tree"] | None
"""A value that a wire codec can write and read."""

_T = TypeVar("_T")


def malformed(what: str) -> NoReturn:
    """Raise `MalformedError` (`message.malformed`)."""
    raise MalformedError("message.malformed", f"not a message between brokers: {what}", hint="cut the link")


def too_many(what: str, most: int) -> NoReturn:
    """Raise `LimitError` (`message.limit`)."""
    raise LimitError("message.limit", f"a message has more than {most} {what}", hint="cut the link")


class Fields:
    """The fields of one tree. Take each field once; `end` refuses fields that were not taken."""

    def __init__(self, tree: object, what: str) -> None:
        if not isinstance(tree, dict):
            malformed(f"{what} is not a map")
        self._tree, self._what, self._asked = tree, what, 0

    def take(self, name: str, kind: type[_T]) -> _T:
        """Return a field of one kind."""
        value = self._tree.get(name)
        # A bool is an int to Python, and a subclass is not what a codec makes.
        if type(value) is not kind:
            malformed(f"`{name}` of {self._what}")
        self._asked += 1
        return value

    def count(self, name: str) -> int:
        """Return a number that is not negative."""
        value = self.take(name, int)
        if not 0 <= value <= INTEGER_MAX:
            malformed(f"`{name}` of {self._what}")
        return value

    def any(self, name: str) -> object:
        """Return a field of any kind."""
        if name not in self._tree:
            malformed(f"`{name}` of {self._what}")
        self._asked += 1
        return self._tree[name]

    def many(self, name: str, most: int, read: Callable[[object], _T]) -> tuple[_T, ...]:
        """Return a list of at most so many items, each read."""
        items = self.take(name, list)
        if len(items) > most:
            too_many(f"`{name}`", most)
        return tuple(read(item) for item in items)

    def end(self) -> None:
        """Raise `MalformedError` if there are fields that were not taken."""
        if self._asked != len(self._tree):
            malformed(f"unknown fields in {self._what}")


# Principals, type keys and attribute ids recur with every event, so that reading them is cached.


@lru_cache(maxsize=CACHE_ENTRIES)
def _write_principal(principal: Principal, scheme: str) -> bytes:
    return (b"\x00" if scheme == KEY else b"\x01") + principal.digest


@lru_cache(maxsize=CACHE_ENTRIES)
def _principal(raw: bytes) -> Principal:
    if len(raw) != DIGEST_BYTES + 1 or raw[0] > 1:
        malformed("a principal")
    return Principal(raw[1:], THRESHOLD if raw[0] else KEY)


def read_principal(value: object) -> Principal:
    """Read what `principal_tree` writes."""
    return _principal(value) if type(value) is bytes else malformed("a principal")


def principal_tree(principal: Principal) -> bytes:
    """Return a principal as bytes, its scheme before its digest."""
    return _write_principal(principal, principal.scheme)


@lru_cache(maxsize=CACHE_ENTRIES)
def _type_key(owner: bytes, name: str) -> TypeKey:
    return TypeKey(_principal(owner), name)


def read_key(value: object) -> TypeKey:
    """Read what `key_tree` writes."""
    match value:
        case [bytes(owner), str(name)] if type(value) is list:
            return _type_key(owner, name)
    malformed("the name of a type")


def key_tree(key: TypeKey) -> list[Tree]:
    """Return the name of a type as a plain tree."""
    return [principal_tree(key.owner), key.name]


@lru_cache(maxsize=CACHE_ENTRIES)
def _check_attribute(text: str) -> str:
    return str(AttributeId.parse(text))


def read_attribute(name: object) -> str:
    """Read the id of an attribute."""
    return _check_attribute(name) if type(name) is str else malformed("the id of an attribute")

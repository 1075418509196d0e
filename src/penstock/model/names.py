"""Names that cannot be forged, because each begins with the principal that owns it (paper 5, sections 4.2 and 5).

| name          | tuple                         | written                                   |
|---------------|-------------------------------|-------------------------------------------|
| network       | [owner, name]                 | `ed25519:…/UK Police Network`             |
| event type    | [owner, name, version]        | `ed25519:…/uk.gov.pito.Numberplate@0`     |
| type, any version | [owner, name]             | `ed25519:…/uk.gov.pito.Numberplate`       |
| attribute     | [owner, defining type, UID]   | `ed25519:…/uk.gov.pito.Numberplate#3265`  |
"""

import re
from dataclasses import dataclass
from typing import Final

from penstock.errors import MalformedError
from penstock.model.limits import TYPE_NAME_LENGTH
from penstock.model.principals import Principal

# ASCII only: two names that look alike must not be different types.
_TYPE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z_][A-Za-z0-9_-]*)*", re.ASCII)
_ATTRIBUTE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_TOKEN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}", re.ASCII)
_NETWORK: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_. -]*[A-Za-z0-9_.-])?", re.ASCII)


def _check(pattern: re.Pattern[str], what: str, text: str, allowed: str) -> None:
    if len(text) > TYPE_NAME_LENGTH or not pattern.fullmatch(text):
        raise MalformedError(
            "name.malformed", f"`{text[:80]}` is not a valid {what}", hint=f"allowed: {allowed}", text=text[:80]
        )


def _are_same(one: Principal, other: Principal) -> bool:
    """Return whether owners are the same as they are written, and not by their digests alone.

    Tags, scopes of keys and ids of attributes contain the written form. If two names with different written forms were
    equal, a cache could return the wrong one for the right one.
    """
    return one.digest == other.digest and one.scheme == other.scheme


def check_attribute_name(name: str) -> None:
    """Check the name of an attribute. Raises `MalformedError` (`name.malformed`)."""
    _check(
        _ATTRIBUTE,
        "attribute name",
        name,
        "ASCII letters, digits, `_` and `-`, not beginning with a digit or `-`",
    )


def check_token(text: str, what: str) -> None:
    """Check a version or a UID. Raises `MalformedError` (`name.malformed`)."""
    _check(_TOKEN, what, text, "1 to 64 ASCII letters, digits and `-`")


@dataclass(frozen=True, slots=True, order=True)
class TypeKey:
    """An event type in all its versions, which routing and grants mostly use."""

    owner: Principal
    name: str

    def __post_init__(self) -> None:
        _check(_TYPE, "event type name", self.name, "dotted ASCII words such as `uk.gov.pito.Numberplate`")

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not TypeKey:
            return NotImplemented
        return self.name == other.name and _are_same(self.owner, other.owner)

    def __hash__(self) -> int:
        # Written out, because every event is looked up by it.
        return hash((self.owner.digest, self.name))

    def __str__(self) -> str:
        return f"{self.owner}/{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class TypeName:
    """The name tuple of one version of an event type: [owner, name, version]."""

    owner: Principal
    name: str
    version: str = "0"

    def __post_init__(self) -> None:
        _check(_TYPE, "event type name", self.name, "dotted ASCII words such as `uk.gov.pito.Numberplate`")
        check_token(self.version, "version")

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not TypeName:
            return NotImplemented
        return (self.name, self.version) == (other.name, other.version) and _are_same(self.owner, other.owner)

    def __hash__(self) -> int:
        return hash((self.owner.digest, self.name, self.version))

    def __str__(self) -> str:
        return f"{self.owner}/{self.name}@{self.version}"

    @property
    def key(self) -> TypeKey:
        """The type without its version."""
        return TypeKey(self.owner, self.name)

    @classmethod
    def parse(cls, text: str) -> "TypeName":
        """Read `owner/name@version`; without `@` the version is 0.

        Raises `MalformedError` (`name.malformed`, `principal.malformed`).
        """
        owner, slash, rest = text.partition("/")
        if not slash:
            raise MalformedError(
                "name.malformed", f"`{text[:80]}` is not a type name", hint="write `owner/name@version`"
            )
        name, at_sign, version = rest.partition("@")
        return cls(Principal.parse(owner), name, version if at_sign else "0")


class AttributeId(str):
    """An attribute across all versions and sub-types: [owner, name of the defining type, UID].

    It is its own written form, so that rows keyed by attribute ids are rows that a selector can read as they are.
    """

    __slots__ = ("_owner", "_type_name", "_uid")

    _owner: Principal
    _type_name: str
    _uid: str

    def __new__(cls, owner: Principal, type_name: str, uid: str) -> "AttributeId":
        """Write the id down. Raises `MalformedError` (`name.malformed`)."""
        _check(_TYPE, "event type name", type_name, "dotted ASCII words such as `uk.gov.pito.Numberplate`")
        check_token(uid, "attribute UID")
        self = super().__new__(cls, f"{owner}/{type_name}#{uid}")
        self._owner, self._type_name, self._uid = owner, type_name, uid
        return self

    @property
    def owner(self) -> Principal:
        """The owner of the defining type."""
        return self._owner

    @property
    def type_name(self) -> str:
        """The name of the defining type."""
        return self._type_name

    @property
    def uid(self) -> str:
        """The identifier of the attribute within the defining type, in all its versions."""
        return self._uid

    def __getnewargs__(self) -> tuple[Principal, str, str]:  # type: ignore[override]  # what __new__ above takes
        return (self.owner, self.type_name, self.uid)

    def __repr__(self) -> str:
        return f"AttributeId({str(self)!r})"

    @classmethod
    def parse(cls, text: str) -> "AttributeId":
        """Read `owner/type#uid`. Raises `MalformedError` (`name.malformed`, `principal.malformed`)."""
        owner, slash, rest = text.partition("/")
        type_name, hash_sign, uid = rest.partition("#")
        if not slash or not hash_sign:
            raise MalformedError(
                "name.malformed", f"`{text[:80]}` is not an attribute id", hint="write `owner/type#uid`"
            )
        return cls(Principal.parse(owner), type_name, uid)


@dataclass(frozen=True, slots=True, order=True)
class NetworkName:
    """A publish/subscribe network: [coordinating principal, name]."""

    owner: Principal
    name: str

    def __post_init__(self) -> None:
        _check(_NETWORK, "network name", self.name, "ASCII words with spaces, `.`, `_` and `-` between them")

    def __str__(self) -> str:
        return f"{self.owner}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> "NetworkName":
        """Read `owner/name`. Raises `MalformedError` (`name.malformed`, `principal.malformed`)."""
        owner, slash, name = text.partition("/")
        if not slash:
            raise MalformedError("name.malformed", f"`{text[:80]}` is not a network name", hint="write `owner/name`")
        return cls(Principal.parse(owner), name)

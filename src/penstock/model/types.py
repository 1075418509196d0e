"""Event types: the owner's signed definition (`TypeDefinition`), and the resolved type that others use (`EventType`).

A definition lists only its own attributes and names its parent, if any, by the full name tuple. An `EventType` is a
definition with its ancestors resolved: the inherited attributes come first and keep the ids under which they were
defined (paper 5, sections 4.1 to 4.3).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, Self

from penstock.errors import LimitError, MalformedError, did_you_mean
from penstock.model.limits import TYPE_ATTRIBUTES, TYPE_DEPTH
from penstock.model.names import AttributeId, TypeKey, TypeName, check_attribute_name, check_token
from penstock.model.values import AttributeSpec, Schema


class Sealing(StrEnum):
    """Sealing of events between brokers, chosen by the type's owner (paper 5, section 7.1).

    Not at all; each event as a whole, for readers of all attributes; or each attribute separately.
    """

    NONE = "none"
    EVENT = "event"
    ATTRIBUTE = "attribute"


class Protection(NamedTuple):
    """Protection that a type's owner requires between brokers: how events are sealed, and whether signed."""

    sealing: Sealing = Sealing.NONE
    signed: bool = False


@dataclass(frozen=True, slots=True)
class AttributeDefinition:
    """One attribute as its type defines it: [name, UID, kind and domain]."""

    name: str
    uid: str
    spec: AttributeSpec

    def __post_init__(self) -> None:
        check_attribute_name(self.name)
        check_token(self.uid, "attribute UID")


def _no_duplicates(what: str, values: list[str], type_name: TypeName) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise MalformedError(
                "type.duplicate-attribute",
                f"{what} `{value}` occurs twice in `{type_name.name}`",
                type=type_name,
            )
        seen.add(value)


@dataclass(frozen=True, slots=True)
class TypeDefinition:
    """One version of an event type as its manager writes it.

    `previous` names the version that this one was made from. Raises `MalformedError` (`type.duplicate-attribute`,
    `type.blinded`, `type.signed`) and `LimitError` (`type.limit`).
    """

    name: TypeName
    attributes: tuple[AttributeDefinition, ...]
    extends: TypeName | None = None
    previous: str | None = None
    sealing: Sealing = Sealing.NONE
    #: whether brokers without its keys are not even told which type it is (paper 5, section 8.2)
    blinded: bool = False
    #: whether the publishing broker signs, so that readers cannot write (paper 5, section 8.2)
    signed: bool = False

    def __repr__(self) -> str:
        return f"TypeDefinition({str(self.name)!r}, {len(self.attributes)} attributes)"

    def __post_init__(self) -> None:
        if self.signed and self.sealing is Sealing.NONE:
            raise MalformedError(
                "type.signed",
                f"events of `{self.name.name}` are signed and not sealed: only sealed blocks can be signed",
                hint="seal it by `event` or by `attribute`",
            )
        if self.blinded and self.sealing is Sealing.NONE:
            raise MalformedError(
                "type.blinded",
                f"`{self.name.name}` is blinded and not sealed, so that its events would say its name",
                hint="seal it by `event` or by `attribute`",
            )
        if len(self.attributes) > TYPE_ATTRIBUTES:
            raise LimitError("type.limit", f"an event type has more than {TYPE_ATTRIBUTES} attributes")
        if self.extends is not None and self.extends.key == self.name.key:
            raise MalformedError("type.cycle", f"`{self.name.name}` extends itself", type=self.name)
        if self.previous is not None:
            check_token(self.previous, "version")
            if self.previous == self.name.version:
                raise MalformedError("type.cycle", "a version cannot be its own predecessor", type=self.name)
        _no_duplicates("attribute", [attribute.name for attribute in self.attributes], self.name)
        _no_duplicates("UID", [attribute.uid for attribute in self.attributes], self.name)

    @property
    def protection(self) -> tuple[Sealing, bool, bool]:
        """Return the protection of events on their way: `sealing`, `blinded` and `signed`."""
        return self.sealing, self.blinded, self.signed

    def attribute(self, name: str) -> AttributeDefinition:
        """Return an own attribute by name. Raises `MalformedError` (`type.unknown-attribute`)."""
        for attribute in self.attributes:
            if attribute.name == name:
                return attribute
        known = [attribute.name for attribute in self.attributes]
        raise MalformedError(
            "type.unknown-attribute",
            f"`{self.name.name}` defines no attribute `{name}`",
            hint=did_you_mean(name, known, f"it defines: {', '.join(known) or 'none'}"),
        )

    # The four management operations (section 4.3). Each gives the next version; its number is the caller's choice,
    # since with several managers it must be collision-resistant.

    def add(self, name: str, uid: str, spec: AttributeSpec, *, version: str) -> Self:
        """Add an attribute."""
        return self._next((*self.attributes, AttributeDefinition(name, uid, spec)), version)

    def remove(self, name: str, *, version: str) -> Self:
        """Remove an attribute."""
        gone = self.attribute(name)
        return self._next(tuple(a for a in self.attributes if a is not gone), version)

    def rename(self, name: str, new_name: str, *, version: str) -> Self:
        """Rename an attribute; the UID keeps the link between the names."""
        old = self.attribute(name)
        return self._next(tuple(replace(a, name=new_name) if a is old else a for a in self.attributes), version)

    def retype(self, name: str, uid: str, spec: AttributeSpec, *, version: str) -> Self:
        """Change an attribute's kind or domain. It is a new attribute under the old name, hence the new UID."""
        old = self.attribute(name)
        new = AttributeDefinition(name, uid, spec)
        if uid == old.uid:
            raise MalformedError("type.uid-reused", f"a retyped attribute needs a new UID, `{uid}` is the old one")
        return self._next(tuple(new if a is old else a for a in self.attributes), version)

    def _next(self, attributes: tuple[AttributeDefinition, ...], version: str) -> Self:
        name = replace(self.name, version=version)
        return replace(self, name=name, attributes=attributes, previous=self.name.version)


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of an event type with the id that is the same in all versions and sub-types."""

    name: str
    id: AttributeId
    spec: AttributeSpec


@dataclass(frozen=True, slots=True)
class EventType:
    """An event type as brokers and clients use it. Build it with `EventType.of`.

    `ancestors` runs from the parent to the root. `sealing`, `blinded` and `signed` are those of the whole tree.
    """

    name: TypeName
    attributes: tuple[Attribute, ...]
    ancestors: tuple[TypeKey, ...] = ()
    sealing: Sealing = Sealing.NONE
    blinded: bool = False
    signed: bool = False
    #: the type without its version
    key: TypeKey = field(init=False, repr=False, compare=False)
    by_name: Mapping[str, Attribute] = field(init=False, repr=False, compare=False)
    by_id: Mapping[AttributeId, Attribute] = field(init=False, repr=False, compare=False)
    schema: Schema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _no_duplicates("attribute", [attribute.name for attribute in self.attributes], self.name)
        # A frozen dataclass fills its derived fields through object.__setattr__.
        by_name = MappingProxyType({attribute.name: attribute for attribute in self.attributes})
        object.__setattr__(self, "key", self.name.key)
        object.__setattr__(self, "by_name", by_name)
        object.__setattr__(self, "by_id", MappingProxyType({a.id: a for a in self.attributes}))
        object.__setattr__(self, "schema", MappingProxyType({a.name: a.spec for a in self.attributes}))

    def __repr__(self) -> str:
        return f"EventType({str(self.name)!r}, {len(self.attributes)} attributes)"

    @classmethod
    def of(cls, definition: TypeDefinition, parent: "EventType | None" = None) -> "EventType":
        """Resolve a definition against its parent.

        Raises `MalformedError`: `type.parent` when `parent` is not what the definition extends,
        `type.duplicate-attribute` when an own attribute takes an inherited name, `type.cycle`, `type.sealing` when it
        is sealed otherwise than its parent, whose readers receive it too; and `LimitError`
        (`type.limit`) when the tree is too deep or the type has too many attributes with the inherited ones.
        """
        if (parent.name if parent else None) != definition.extends:
            raise MalformedError(
                "type.parent",
                f"`{definition.name.name}` extends `{definition.extends}`, which was not given",
                hint="give the verified definition of the parent",
                extends=definition.extends,
            )
        inherited = parent.attributes if parent else ()
        ancestors = (parent.name.key, *parent.ancestors) if parent else ()
        if definition.name.key in ancestors:
            raise MalformedError("type.cycle", f"`{definition.name.name}` is its own ancestor", type=definition.name)
        if len(ancestors) > TYPE_DEPTH:
            raise LimitError("type.limit", f"a type tree is deeper than {TYPE_DEPTH}")
        if parent is not None and parent.protection != definition.protection:
            flags = f"{', blinded' if parent.blinded else ''}{', signed' if parent.signed else ''}"
            raise MalformedError(
                "type.sealing",
                f"`{definition.name.name}` is sealed otherwise than `{parent.name.name}`, which it extends",
                hint=f"write `{parent.sealing}`{flags} as well",
            )
        own = tuple(
            Attribute(a.name, AttributeId(definition.name.owner, definition.name.name, a.uid), a.spec)
            for a in definition.attributes
        )
        if len(inherited) + len(own) > TYPE_ATTRIBUTES:
            raise LimitError("type.limit", f"an event type has more than {TYPE_ATTRIBUTES} attributes")
        return cls(definition.name, inherited + own, ancestors, *definition.protection)

    def __reduce__(self) -> tuple[type["EventType"], tuple[object, ...]]:
        # The derived mappings are read-only views, which cannot be pickled; they are made again.
        return type(self), (self.name, self.attributes, self.ancestors, *self.protection)

    @property
    def protection(self) -> tuple[Sealing, bool, bool]:
        """Return the protection of events on their way: `sealing`, `blinded` and `signed`."""
        return self.sealing, self.blinded, self.signed

    def attribute(self, name: str) -> Attribute:
        """Return an attribute by name. Raises `MalformedError` (`type.unknown-attribute`)."""
        try:
            return self.by_name[name]
        except KeyError:
            raise MalformedError(
                "type.unknown-attribute",
                f"`{self.name.name}` has no attribute `{name}`",
                hint=did_you_mean(name, self.by_name, f"it has: {', '.join(self.by_name) or 'none'}"),
            ) from None


# ----------------------------------------------------------------------------------------------------------------------
# Compute the changes between two versions of a type, as the four management operations (paper 5, section 4.3).
#
# A verifier compares the two versions itself, and does not trust the manager.


class Operation(StrEnum):
    """A management operation."""

    ADD = "add"
    REMOVE = "remove"
    RENAME = "rename"
    RETYPE = "retype"


@dataclass(frozen=True, slots=True, order=True)
class AttributeChange:
    """One operation on one attribute; `name` is the attribute's name before, or the new one for an addition."""

    operation: Operation
    name: str
    uid: str
    new_name: str | None = None


def changes(previous: TypeDefinition, current: TypeDefinition) -> tuple[AttributeChange, ...]:
    """Return the operations that lead from `previous` to `current`.

    An attribute removed and another added under the same name is one RETYPE. Raises `MalformedError`:
    `type.not-successor` when the two are not versions of one type or `current` names another predecessor,
    `type.uid-reused` when a UID changed its kind or domain, `type.extends-changed` when the parent differs.
    """
    if previous.name.key != current.name.key or current.previous != previous.name.version:
        raise MalformedError(
            "type.not-successor",
            f"`{current.name}` was not made from `{previous.name}`",
            hint="give the version that the definition names as its predecessor",
        )
    if previous.extends != current.extends:
        raise MalformedError(
            "type.extends-changed",
            f"`{current.name.name}` has another parent",
            hint="define a new type instead",
        )
    before = {attribute.uid: attribute for attribute in previous.attributes}
    after = {attribute.uid: attribute for attribute in current.attributes}
    found: list[AttributeChange] = []
    for uid in before.keys() & after.keys():
        old, new = before[uid], after[uid]
        if old.spec != new.spec:
            raise MalformedError(
                "type.uid-reused",
                f"attribute `{old.name}` changed its type under the same UID",
                hint="a retyped attribute gets a new UID",
                uid=uid,
            )
        if old.name != new.name:
            found.append(AttributeChange(Operation.RENAME, old.name, uid, new.name))
    removed = {before[uid].name: uid for uid in before.keys() - after.keys()}
    added = {after[uid].name: uid for uid in after.keys() - before.keys()}
    found += [AttributeChange(Operation.RETYPE, name, removed[name]) for name in removed.keys() & added.keys()]
    found += [AttributeChange(Operation.REMOVE, name, uid) for name, uid in removed.items() if name not in added]
    found += [AttributeChange(Operation.ADD, name, uid) for name, uid in added.items() if name not in removed]
    return tuple(sorted(found, key=lambda change: (change.operation, change.name, change.uid)))

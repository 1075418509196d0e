"""Event classes: a program's own classes whose fields are the attributes of an event type.

    @penstock.event("grid/org.grid.Reading")
    @dataclass
    class Reading:
        power: float
        meter: str | None = None

A class is a dataclass, a `msgspec.Struct` or a pydantic model. A field is `str`, `int`, `float`, `bool`, `datetime`, a
`Literal` or an `Enum` of such values, each with `| None` or without. A subscriber gets `None` for every attribute that
it may not see, whatever the annotation says: policy decides this while the program runs, and it can change between two
events. So write `| None` for what may be hidden from you, and the type checker reminds you.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from penstock.errors import MalformedError
from penstock.model.names import TypeName
from penstock.model.principals import Principal
from penstock.model.types import AttributeDefinition, EventType, TypeDefinition
from penstock.model.values import AttributeSpec, Enumerated, Kind, Ranged, Scalar, Value

T = TypeVar("T")

_HOME: Final = "__penstock_event__"
_KINDS: Final[Mapping[object, Kind]] = {
    str: Kind.STRING,
    int: Kind.INTEGER,
    float: Kind.FLOAT,
    bool: Kind.BOOLEAN,
    datetime: Kind.TIMESTAMP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventField:
    """Describe an attribute beyond its annotation: `speed: Annotated[int, EventField(low=0, high=200)]`.

    `name` is the attribute's name if it is not the field's (`license-plate`), `uid` its id within the type (default:
    the field's position), `low` and `high` bound its values.
    """

    name: str | None = None
    uid: str | None = None
    low: int | float | datetime | None = None
    high: int | float | datetime | None = None


@dataclass(frozen=True, slots=True)
class ClassAttribute:
    """A field of an event class as an attribute."""

    field: str
    definition: AttributeDefinition
    #: the `Enum` that the values are members of
    members: type[Enum] | None = None

    def write(self, value: object) -> Scalar:
        """Return a field's value as an attribute's. Values that do not fit are left to the type's own check."""
        if isinstance(value, Enum):
            value = value.value
        # Type checkers let an integer stand where a float is declared.
        if self.definition.spec.kind is Kind.FLOAT and type(value) is int:
            return float(value)
        return cast("Scalar", value)

    def read(self, value: Scalar) -> object:
        """Return an attribute's value as the field's. Raises `MalformedError` (`event.class-value`)."""
        if value is None or self.members is None:
            return value
        try:
            return self.members(value)
        except ValueError:
            raise MalformedError(
                "event.class-value",
                f"attribute `{self.definition.name}` has a value that `{self.members.__name__}` does not list",
                hint="add it to the class",
            ) from None


@dataclass(frozen=True, slots=True)
class EventClass(Generic[T]):
    """The description of an event class. `event_class_of` returns it."""

    cls: type[T]
    #: `owner/name@version`, as it is written in the program; the owner and the version can be left out
    written: str
    attributes: tuple[ClassAttribute, ...]
    parent: "EventClass[Any] | None"
    _make: Callable[..., T]
    #: the type that it was compared with last
    _known: list[EventType] = field(default_factory=list)

    @property
    def owner(self) -> str:
        """The owner's principal or petname; empty if the program does not write it."""
        return self.written.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The type's name."""
        return self.written.rpartition("/")[2].partition("@")[0]

    @property
    def version(self) -> str:
        """The type's version; empty if the program does not write it."""
        return self.written.partition("@")[2]

    def definition(self, owner: Principal, extends: TypeName | None = None) -> TypeDefinition:
        """Return the definition of the type, for its owner to sign.

        The attributes of a base that is an event class are those of `extends`. Raises `MalformedError`
        (`event.class` if `extends` is not that base's type, `name.malformed`, `type.*`, `value.*`).
        """
        expected = None if self.parent is None else self.parent.name
        if self.parent is not None and (extends is None or extends.name != expected):
            raise MalformedError(
                "event.class",
                f"`{self.cls.__name__}` extends the event class of `{expected}`, whose type was not given",
                hint=f"define `{expected}` first, and give its signed type",
            )
        inherited = {one.field for one in self.parent.attributes} if self.parent else set()
        own = tuple(one.definition for one in self.attributes if one.field not in inherited)
        return TypeDefinition(TypeName(owner, self.name, self.version or "0"), own, extends)

    def check(self, event_type: EventType) -> None:
        """Raise `MalformedError` (`event.class-differs`) if a field is not an attribute of the type."""
        if self._known and self._known[0] is event_type:
            return
        for one in self.attributes:
            wanted, found = one.definition, event_type.by_name.get(one.definition.name)
            if found is not None and found.spec.kind is wanted.spec.kind:
                continue
            is_ = "no such attribute" if found is None else f"{found.spec.kind} there"
            raise MalformedError(
                "event.class-differs",
                f"`{self.cls.__name__}.{one.field}` is {wanted.spec.kind}, and `{event_type.name.name}` version "
                f"{event_type.name.version} has {is_}",
                hint="compare the class with `penstock type show`",
            )
        self._known[:] = [event_type]

    def read(self, event_type: EventType, values: Mapping[str, Scalar]) -> T:
        """Return an object with the values of an event. Raises as `check` and `ClassAttribute.read`."""
        self.check(event_type)
        return self._make(**{one.field: one.read(values[one.definition.name]) for one in self.attributes})

    def write(self, event_type: EventType, event: T) -> dict[str, Scalar]:
        """Return the attributes of an object. Raises as `check`."""
        self.check(event_type)
        return {one.definition.name: one.write(getattr(event, one.field)) for one in self.attributes}


def event_class_of(cls: type[T]) -> EventClass[T]:
    """Return the description of an event class. Raises `MalformedError` (`event.class`) for any other class."""
    found: EventClass[T] | None = vars(cls).get(_HOME)
    if found is None:
        raise MalformedError(
            "event.class",
            f"`{cls.__name__}` is not an event class",
            hint="decorate it with `@penstock.event`, or give a mapping or an `Event`",
        )
    return found


@overload
def event(cls: type[T], /) -> type[T]: ...


@overload
def event(name: str, /) -> Callable[[type[T]], type[T]]: ...


def event(of: type[T] | str, /) -> type[T] | Callable[[type[T]], type[T]]:
    """Make a class the event class of a type: `@event("owner/name@version")`, or `@event` for the class's own name.

    The owner is a principal or a petname. If the owner or the version is left out, the type is looked for among those
    that the program gave to `connect`, and otherwise the version is `0`. Raises `MalformedError` (`event.class` if a
    field cannot be an attribute, `name.malformed`, `value.domain`).
    """
    if isinstance(of, str):
        return lambda cls: _made(cls, of)
    return _made(of, of.__name__)


def _made(cls: type[T], written: str) -> type[T]:
    names, make = _fields(cls)
    hints = get_type_hints(cls, include_extras=True)
    found = tuple(_attribute(cls, name, hints[name], number) for number, name in enumerate(names))
    parent = next((vars(base)[_HOME] for base in cls.__mro__[1:] if _HOME in vars(base)), None)
    made = EventClass(cls, written, found, parent, make)
    # Check the name, the version and duplicate attributes now, with a placeholder as the owner.
    made.definition(Principal(bytes(32)), None if parent is None else TypeName(Principal(bytes(32)), parent.name))
    setattr(cls, _HOME, made)
    return cls


def _fields(cls: type[T]) -> tuple[list[str], Callable[..., T]]:
    """Return the names of a class's fields, and a function that makes an object of them."""
    if is_dataclass(cls):
        return [one.name for one in fields(cls) if one.init], cls
    # msgspec and pydantic need not be installed. A model checks its fields, and would refuse the None of a hidden one.
    structure: Any = cls
    if hasattr(cls, "__struct_fields__"):
        return list(structure.__struct_fields__), cls
    if hasattr(cls, "model_fields") and hasattr(cls, "model_construct"):
        return list(structure.model_fields), structure.model_construct
    raise MalformedError(
        "event.class",
        f"`{cls.__name__}` is not a dataclass, a msgspec structure or a pydantic model",
        hint="write `@penstock.event` above `@dataclass`",
    )


def _unwrapped(hint: object) -> tuple[object, EventField]:
    """Return an annotation without `Annotated` and `| None`, and its metadata."""
    notes = EventField()
    while True:
        if get_origin(hint) is Annotated:
            hint, *more = get_args(hint)
            notes = next((one for one in more if isinstance(one, EventField)), notes)
        elif get_origin(hint) in (Union, types.UnionType):
            some = [one for one in get_args(hint) if one is not type(None)]
            if len(some) > 1:
                return hint, notes
            hint = some[0]
        else:
            return hint, notes


def _attribute(cls: type, name: str, hint: object, number: int) -> ClassAttribute:
    hint, notes = _unwrapped(hint)
    members = hint if isinstance(hint, type) and issubclass(hint, Enum) else None
    kind, listed = _KINDS.get(hint), None
    if members is not None or get_origin(hint) is Literal:
        values: list[Value] = [one.value for one in members] if members else list(get_args(hint))
        kinds = {_KINDS.get(type(one)) for one in values}
        kind, listed = (kinds.pop() if len(kinds) == 1 else None), frozenset(values)
    if kind is None:
        raise MalformedError(
            "event.class",
            f"`{cls.__name__}.{name}` cannot be an attribute: its annotation is `{getattr(hint, '__name__', hint)}`",
            hint="use str, int, float, bool, datetime, or a Literal or an Enum of them, each with or without `| None`",
        )
    domain: Enumerated | Ranged | None = None if listed is None else Enumerated(listed)
    if notes.low is not None and notes.high is not None:
        domain = Ranged(notes.low, notes.high)
    elif (notes.low, notes.high) != (None, None):
        raise MalformedError("event.class", f"`{cls.__name__}.{name}` needs both `low` and `high`")
    uid = str(number) if notes.uid is None else notes.uid
    return ClassAttribute(name, AttributeDefinition(notes.name or name, uid, AttributeSpec(kind, domain)), members)

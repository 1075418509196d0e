"""Events, and their form in transit.

A publisher writes an `Event` of its version of a type. Between brokers it travels as a `TransitEvent`, whose values
stand under attribute ids instead of names and which has no version, so that every subscriber can read it in its own
version: what that version lacks is left out, what the event lacks is null (paper 5, section 4.3.2).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar, overload

from penstock.errors import MalformedError, did_you_mean
from penstock.model.event_classes import event_class_of
from penstock.model.instants import in_utc
from penstock.model.names import TypeKey
from penstock.model.types import Attribute, EventType
from penstock.model.values import Kind, Scalar, check_value, checked_value

T = TypeVar("T")
#: within `Event`, `type` is the event's own
_Class: TypeAlias = type[T]

#: attributes, and characters of a value, that the `repr` of an event shows
_SHOWN: Final = 10
_SHOWN_TEXT: Final = 40


def _shortened(value: object, write: Callable[[object], str] = repr) -> str:
    text = value.isoformat() if isinstance(value, datetime) else write(value)
    return text if len(text) <= _SHOWN_TEXT else f"{text[: _SHOWN_TEXT - 1]}…"


@dataclass(frozen=True, slots=True)
class Event:
    """An event of one version of a type. All attributes are present; those without a value are None.

    Timestamps are in UTC, so that Python compares them as instants. Build it with `Event.of`, which checks the values.
    """

    type: EventType
    values: Mapping[str, Scalar]
    id: str = ""
    time: datetime | None = None

    @classmethod
    def of(
        cls,
        event_type: EventType,
        values: Mapping[str, Scalar],
        *,
        id: str = "",  # noqa: A002  # CloudEvents calls it so
        time: datetime | None = None,
    ) -> "Event":
        """Type-check values against a type.

        Raises `MalformedError`: `event.unknown-attribute`, and what `AttributeSpec.check` raises for a value, the
        id or the time.
        """
        check_value(Kind.STRING, id)
        if time is not None:
            time = in_utc(time)
        unknown = values.keys() - event_type.by_name.keys()
        if unknown:
            name = min(unknown)
            raise MalformedError(
                "event.unknown-attribute",
                f"`{event_type.name.name}` version {event_type.name.version} has no attribute `{name[:80]}`",
                hint=did_you_mean(name, event_type.by_name, f"it has: {', '.join(event_type.by_name) or 'none'}"),
            )
        checked = {a.name: checked_value(a.name, a.spec, values.get(a.name)) for a in event_type.attributes}
        return cls(event_type, MappingProxyType(checked), id, time)

    @classmethod
    def from_object(
        cls,
        event_type: EventType,
        event: object,
        *,
        id: str = "",  # noqa: A002  # CloudEvents calls it so
        time: datetime | None = None,
    ) -> "Event":
        """Type-check an object of an event class, and give it an id and a time.

        Raises `MalformedError`: `event.class`, `event.class-differs`, and as `of`.
        """
        return cls.of(event_type, event_class_of(event.__class__).write(event_type, event), id=id, time=time)

    def to_object(self, of: _Class[T]) -> T:
        """Return the event as an object of an event class. Hidden attributes are None.

        Raises `MalformedError`: `event.class`, `event.class-differs`, `event.class-value`.
        """
        return event_class_of(of).read(self.type, self.values)

    def __getitem__(self, name: str) -> Scalar:
        return self.values[name]

    def __repr__(self) -> str:
        """Return a line that people can read: the type, the id, and the beginning of the values."""
        shown = [f"{name}={_shortened(value)}" for name, value in islice(self.values.items(), _SHOWN)]
        more = [f"… {len(self.values) - _SHOWN} more"] if len(self.values) > _SHOWN else []
        id_ = [f"id={_shortened(self.id)}"] if self.id else []
        return f"Event({', '.join([_shortened(self.type.name.name, str), *id_, *shown, *more])})"

    def __reduce__(self) -> tuple[Callable[..., "Event"], tuple[object, ...]]:
        return Event, (self.type, dict(self.values), self.id, self.time)

    def to_transit(self) -> "TransitEvent":
        """Return the event as it travels."""
        by_name = self.type.by_name
        values: dict[str, Scalar] = {
            by_name[name].id: value for name, value in self.values.items() if value is not None
        }
        return TransitEvent(self.type.key, self.type.ancestors, MappingProxyType(values), self.id, self.time)


def _fitting(value: Scalar, attribute: Attribute) -> Scalar:
    try:
        return checked_value(attribute.name, attribute.spec, value)
    except MalformedError:
        return None


@dataclass(frozen=True, slots=True)
class TransitEvent:
    """An event between brokers: values under attribute ids, no version. Nulls are left out."""

    key: TypeKey
    ancestors: tuple[TypeKey, ...]
    #: under attribute ids, which are their own written form
    values: Mapping[str, Scalar] = field(repr=False)
    id: str = ""
    time: datetime | None = None

    def __reduce__(self) -> tuple[Callable[..., "TransitEvent"], tuple[object, ...]]:
        return TransitEvent, (self.key, self.ancestors, dict(self.values), self.id, self.time)

    def to_event(self, event_type: EventType) -> Event:
        """Return the event in a subscriber's version of the type, or of one of its ancestors.

        A value that does not fit that version (its UID was reused against the rules) becomes null. Raises
        `MalformedError` (`event.type`) when the event is of another type.
        """
        if event_type.key != self.key and event_type.key not in self.ancestors:
            raise MalformedError("event.type", f"an event of `{self.key.name}` is not a `{event_type.name.name}`")
        values = {a.name: _fitting(self.values.get(a.id), a) for a in event_type.attributes}
        return Event(event_type, MappingProxyType(values), self.id, self.time)


class EventRows(Sequence[TransitEvent]):
    """Events of one type as rows. They become `TransitEvent`s where somebody asks for one.

    A row has the id, the time, and the values of the attributes in `layout`, in their order, with None for a value that
    the event does not have. Nobody changes rows.
    """

    __slots__ = ("_events", "ancestors", "key", "layout", "rows")

    def __init__(
        self, key: TypeKey, ancestors: tuple[TypeKey, ...], layout: tuple[str, ...], rows: list[list[Any]]
    ) -> None:
        self.key = key
        self.ancestors = ancestors
        self.layout = layout
        self.rows = rows
        self._events: tuple[TransitEvent, ...] | None = None

    @property
    def attributes(self) -> tuple[str, ...]:
        """The attributes of which at least one event has a value, in their order."""
        if None not in self.rows[0]:
            return self.layout
        places = enumerate(self.layout, 2)
        held = tuple(name for place, name in places if any(row[place] is not None for row in self.rows))
        return self.layout if len(held) == len(self.layout) else held

    def pick(self, places: Sequence[int]) -> "EventRows":
        """Return the events at these places."""
        rows = self.rows
        return EventRows(self.key, self.ancestors, self.layout, [rows[place] for place in places])

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> TransitEvent: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[TransitEvent, ...]: ...

    def __getitem__(self, place: int | slice) -> TransitEvent | tuple[TransitEvent, ...]:
        return self._all()[place]

    def __iter__(self) -> Iterator[TransitEvent]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # rows are lists

    def __repr__(self) -> str:
        return f"EventRows({self.key.name}, {len(self)})"

    def _all(self) -> tuple[TransitEvent, ...]:
        if self._events is None:
            key, ancestors, layout = self.key, self.ancestors, self.layout
            each = ((row, dict(zip(layout, row[2:], strict=True))) for row in self.rows)
            self._events = tuple(
                TransitEvent(
                    key,
                    ancestors,
                    MappingProxyType({name: value for name, value in values.items() if value is not None}),
                    row[0],
                    row[1],
                )
                for row, values in each
            )
        return self._events


Typed: TypeAlias = EventType | TransitEvent | EventRows
"""What says the type of events, and its ancestors."""


def typed(events: Sequence[TransitEvent]) -> TransitEvent | EventRows:
    """Return what says the type of events that are all of one type: their rows, or else the first of them."""
    return events if type(events) is EventRows else events[0]

"""Event classes: what a class says about its type, and objects to events and back."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest

from penstock.errors import MalformedError
from penstock.model import Event, EventType, Principal, TypeName
from penstock.model.event_classes import EventField, event, event_class_of
from penstock.model.values import AttributeSpec, Enumerated, Kind, Ranged, Scalar

OWNER = Principal(bytes(32))
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


class Region(StrEnum):
    NORTH = "north"
    SOUTH = "south"


@event("grid/org.grid.Reading")
@dataclass
class Reading:
    id: str
    time: datetime
    power: float
    region: Region | None = None
    phase: Literal[1, 2, 3] | None = None
    main: bool = True
    plate: Annotated[str | None, EventField(name="license-plate", uid="3265")] = None
    speed: Annotated[int, EventField(low=0, high=200)] | None = None
    cached: list[int] = field(init=False, default_factory=list)


@event("org.grid.Small@7")
class Small(msgspec.Struct):
    power: float | None
    meter: str = "M"


@event("org.grid.Detail")
@dataclass
class Detail(Reading):
    note: str | None = None


READING = event_class_of(Reading).definition(OWNER)
TYPE = EventType.of(READING)


def refused(code: str, act: Callable[[], object]) -> str:
    with pytest.raises(MalformedError) as caught:
        act()
    assert caught.value.code == code, caught.value
    return caught.value.message


def test_a_class_gives_the_definition_of_its_type() -> None:
    assert READING.name == TypeName(OWNER, "org.grid.Reading", "0")
    assert {one.name: (one.uid, one.spec) for one in READING.attributes} == {
        "id": ("0", AttributeSpec(Kind.STRING)),
        "time": ("1", AttributeSpec(Kind.TIMESTAMP)),
        "power": ("2", AttributeSpec(Kind.FLOAT)),
        "region": ("3", AttributeSpec(Kind.STRING, Enumerated(frozenset(["north", "south"])))),
        "phase": ("4", AttributeSpec(Kind.INTEGER, Enumerated(frozenset([1, 2, 3])))),
        "main": ("5", AttributeSpec(Kind.BOOLEAN)),
        "license-plate": ("3265", AttributeSpec(Kind.STRING)),
        "speed": ("7", AttributeSpec(Kind.INTEGER, Ranged(0, 200))),
    }
    small = event_class_of(Small)
    assert (small.owner, small.name, small.version) == ("", "org.grid.Small", "7")
    assert [one.name for one in small.definition(OWNER).attributes] == ["power", "meter"]


def test_a_class_that_extends_another_defines_only_what_is_its_own() -> None:
    made = event_class_of(Detail).definition(OWNER, READING.name)
    assert (made.extends, [one.name for one in made.attributes]) == (READING.name, ["note"])
    detail = EventType.of(made, TYPE)
    given = Detail("a", NOON, 1.0, note="n")
    assert Event.from_object(detail, given).to_object(Detail) == given
    refused("event.class", lambda: event_class_of(Detail).definition(OWNER))
    refused("event.class", lambda: event_class_of(Detail).definition(OWNER, TypeName(OWNER, "org.grid.Other")))


def test_objects_become_events_and_come_back() -> None:
    given = Reading("a", NOON, 1, Region.NORTH, 2, False, "ABC", 7)
    made = Event.from_object(TYPE, given, id="meta", time=NOON)
    assert dict(made.values) == {
        "id": "a",
        "time": NOON,
        "power": 1.0,
        "region": "north",
        "phase": 2,
        "main": False,
        "license-plate": "ABC",
        "speed": 7,
    }
    # A `StrEnum` would pass for a text; what travels is one.
    assert (type(made["region"]), type(made["power"])) == (str, float)
    assert (made.id, made.time) == ("meta", NOON)
    assert made.to_object(Reading) == given


def test_what_is_hidden_is_none_whatever_the_annotation_says() -> None:
    seen = Event.of(TYPE, {"power": 1.5}).to_object(Reading)
    found: tuple[object, ...] = (seen.id, seen.time, seen.power, seen.region, seen.main)
    assert found == (None, None, 1.5, None, None)
    small = EventType.of(event_class_of(Small).definition(OWNER))
    assert Event.of(small, {}).to_object(Small) == Small(None, None)  # type: ignore[arg-type]  # hidden


def test_a_class_needs_not_have_all_attributes() -> None:
    @event
    @dataclass
    class Power:
        power: float

    assert event_class_of(Power).written == "Power"
    assert Event.of(TYPE, {"id": "a", "power": 1.5}).to_object(Power) == Power(1.5)
    assert Event.from_object(TYPE, Power(2)).values["id"] is None


def test_a_class_that_differs_from_its_type_is_refused() -> None:
    def type_with(kind: Kind) -> EventType:
        before = event_class_of(Small).definition(OWNER)
        return EventType.of(before.retype("power", "9", AttributeSpec(kind), version="8"))

    other = type_with(Kind.STRING)
    message = refused("event.class-differs", lambda: Event.from_object(other, Small(1.0)))
    assert "`Small.power` is float" in message
    assert "string there" in message
    message = refused("event.class-differs", lambda: Event.of(TYPE, {}).to_object(Small))
    assert "no such attribute" in message
    assert Event.from_object(type_with(Kind.FLOAT), Small(1.0))["power"] == 1.0


def test_a_value_that_an_enumeration_does_not_list_is_an_error() -> None:
    @event
    @dataclass
    class Only:
        id: Region | None

    assert Event.of(TYPE, {"id": "north"}).to_object(Only) == Only(Region.NORTH)
    assert Event.of(TYPE, {}).to_object(Only) == Only(None)
    assert "north" not in refused("event.class-value", lambda: Event.of(TYPE, {"id": "west"}).to_object(Only))


def test_values_are_checked_by_the_type() -> None:
    def publish(**more: Any) -> Event:
        return Event.from_object(TYPE, Reading(**{"id": "a", "time": NOON, "power": 1.0, **more}))

    refused("value.domain", lambda: publish(speed=201))
    refused("value.kind", lambda: publish(power="1"))
    refused("value.kind", lambda: publish(power=True))
    refused("value.zone", lambda: publish(time=NOON.replace(tzinfo=None)))


def test_classes_that_cannot_be_event_classes() -> None:
    class Plain:
        power: float

    @dataclass
    class Odd:
        parts: list[int]

    @dataclass
    class Mixed:
        either: Literal[1, "one"]

    @dataclass
    class Several:
        either: int | str

    @dataclass
    class Half:
        speed: Annotated[int, EventField(low=1)]

    for cls in (Plain, Odd, Mixed, Several, Half):
        refused("event.class", lambda cls=cls: event(cls))  # type: ignore[misc]  # bound immediately
    refused("name.malformed", lambda: event("owner/two words")(dataclass(type("Fine", (), {}))))
    refused("event.class", lambda: event_class_of(Plain))
    # A sub-class is one of its own: its fields may be others.
    refused("event.class", lambda: event_class_of(type("Child", (Reading,), {})))


def test_pydantic_models() -> None:
    model: Any = type("Model", (pydantic.BaseModel,), {"__annotations__": {"power": float, "id": str}})
    event("grid/org.grid.Reading")(model)
    assert Event.from_object(TYPE, model(power=1, id="a"))["power"] == 1.0
    seen = Event.of(TYPE, {"power": 1.5}).to_object(model)
    assert (type(seen), seen.power, seen.id) == (model, 1.5, None)


def test_events_of_a_type_with_equal_attributes_do_not_need_the_same_type_object() -> None:
    values: dict[str, Scalar] = {"power": 1.5}
    for made in (TYPE, EventType.of(READING)):
        assert Event.of(made, values).to_object(Reading).power == 1.5

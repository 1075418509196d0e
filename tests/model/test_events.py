"""Events in transit: every version of a type, and every ancestor, reads the same event its own way."""

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import MalformedError
from penstock.model.events import Event, EventRows, TransitEvent, typed
from penstock.model.names import AttributeId, TypeName
from penstock.model.principals import Principal
from penstock.model.types import AttributeDefinition, EventType, TypeDefinition
from penstock.model.values import AttributeSpec, Kind, Ranged, Scalar

PITO = Principal(b"\1" * 32)
NAME = "uk.gov.pito.Numberplate"
STRING, INTEGER, TIMESTAMP = AttributeSpec(Kind.STRING), AttributeSpec(Kind.INTEGER), AttributeSpec(Kind.TIMESTAMP)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)

V4799 = TypeDefinition(
    TypeName(PITO, NAME, "4799"),
    (
        AttributeDefinition("license-plate", "9525", STRING),
        AttributeDefinition("timestamp", "9058", TIMESTAMP),
        AttributeDefinition("location", "3467", STRING),
    ),
)
V8516 = V4799.rename("license-plate", "numberplate", version="8516")
VALUES: dict[str, Scalar] = {"license-plate": "AE05 XYZ", "timestamp": NOON, "location": "M11 J11"}


def attribute_id(uid: str) -> AttributeId:
    return AttributeId(PITO, NAME, uid)


def test_the_transit_event_has_uids_and_no_version() -> None:
    transit = Event.of(EventType.of(V4799), VALUES, id="e1", time=NOON).to_transit()
    assert transit.key == V4799.name.key
    assert transit.values == {
        attribute_id("9525"): "AE05 XYZ",
        attribute_id("9058"): NOON,
        attribute_id("3467"): "M11 J11",
    }
    assert (transit.id, transit.time) == ("e1", NOON)
    assert "4799" not in repr(transit)
    assert "AE05" not in repr(transit), "values are kept out of logs"


def test_figure_4_3() -> None:
    transit = Event.of(EventType.of(V4799), VALUES, id="e1", time=NOON).to_transit()
    delivered = transit.to_event(EventType.of(V8516))
    assert delivered.values == {"numberplate": "AE05 XYZ", "timestamp": NOON, "location": "M11 J11"}
    assert (delivered.id, delivered.time) == ("e1", NOON)
    assert delivered["numberplate"] == "AE05 XYZ"


def test_a_reintroduced_name_is_another_attribute() -> None:
    newer = EventType.of(V8516.add("license-plate", "3879", STRING, version="8517"))
    old = Event.of(EventType.of(V4799), VALUES).to_transit().to_event(newer)
    assert (old["numberplate"], old["license-plate"]) == ("AE05 XYZ", None)
    new = Event.of(newer, {"license-plate": "NEW 1", "numberplate": "OLD 1"}).to_transit().to_event(EventType.of(V4799))
    assert new["license-plate"] == "OLD 1"
    derived = V4799.remove("license-plate", version="1").add("license-plate", "3879", STRING, version="2")
    assert Event.of(EventType.of(V4799), VALUES).to_transit().to_event(EventType.of(derived))["license-plate"] is None


def test_figure_4_2() -> None:
    publisher = EventType.of(V4799.add("colour", "1", STRING, version="1"))
    subscriber = EventType.of(V4799.add("speed", "2", INTEGER, version="2"))
    transit = Event.of(publisher, {**VALUES, "colour": "red"}).to_transit()
    delivered = transit.to_event(subscriber)
    assert delivered.values == {**VALUES, "speed": None}, "`colour` is left out, `speed` is null"


def test_a_retyped_attribute_is_null_to_the_other_version() -> None:
    retyped = EventType.of(V4799.retype("location", "77", INTEGER, version="1"))
    assert Event.of(EventType.of(V4799), VALUES).to_transit().to_event(retyped)["location"] is None
    assert Event.of(retyped, {"location": 5}).to_transit().to_event(EventType.of(V4799))["location"] is None


@pytest.mark.parametrize("spec", [INTEGER, AttributeSpec(Kind.INTEGER, Ranged(0, 9))])
def test_a_uid_reused_against_the_rules_gives_null(spec: AttributeSpec) -> None:
    broken = EventType.of(TypeDefinition(V4799.name, (AttributeDefinition("location", "3467", spec),)))
    assert Event.of(EventType.of(V4799), VALUES).to_transit().to_event(broken).values == {"location": None}


def test_a_value_outside_the_readers_domain_gives_null() -> None:
    def version(number: str, spec: AttributeSpec) -> EventType:
        return EventType.of(TypeDefinition(TypeName(PITO, "T", number), (AttributeDefinition("n", "0", spec),)))

    wide, narrow = version("0", INTEGER), version("1", AttributeSpec(Kind.INTEGER, Ranged(0, 9)))
    assert Event.of(wide, {"n": 9}).to_transit().to_event(narrow)["n"] == 9
    assert Event.of(wide, {"n": 10}).to_transit().to_event(narrow)["n"] is None


def test_all_attributes_are_present() -> None:
    event = Event.of(EventType.of(V4799), {"location": "M11 J11"})
    assert event.values == {"license-plate": None, "timestamp": None, "location": "M11 J11"}
    assert event == Event.of(EventType.of(V4799), {"location": "M11 J11", "timestamp": None})
    assert list(event.to_transit().values) == [attribute_id("3467")], "nulls do not travel"
    with pytest.raises(KeyError):
        event["colour"]


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"colour": "red"}, "event.unknown-attribute"),
        ({"colour": None}, "event.unknown-attribute"),
        ({"numberplate": "AE05 XYZ"}, "event.unknown-attribute"),
        ({"x" * 10_000: "a"}, "event.unknown-attribute"),
        ({"location": 5}, "value.kind"),
        ({"location": True}, "value.kind"),
        ({"location": "\ud800"}, "value.text"),
        ({"timestamp": "2026-01-31"}, "value.kind"),
        ({"timestamp": NOON.replace(tzinfo=None)}, "value.zone"),
        ({"timestamp": datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))}, "value.range"),
    ],
)
def test_publications_are_type_checked(values: dict[str, Scalar], code: str) -> None:
    with pytest.raises(MalformedError) as error:
        Event.of(EventType.of(V4799), values)
    assert error.value.code == code
    assert len(error.value.message) < 200


def test_an_error_does_not_carry_the_value() -> None:
    narrow = EventType.of(
        TypeDefinition(
            TypeName(PITO, "Salary"), (AttributeDefinition("pay", "0", AttributeSpec(Kind.INTEGER, Ranged(0, 9))),)
        )
    )
    with pytest.raises(MalformedError) as error:
        Event.of(narrow, {"pay": 95_000})
    assert error.value.code == "value.domain"
    assert "`pay`" in error.value.message
    assert "95" not in repr(error.value.as_dict())


def test_the_time_and_the_id_are_checked_too() -> None:
    plate = EventType.of(V4799)
    with pytest.raises(MalformedError) as error:
        Event.of(plate, {}, time=NOON.replace(tzinfo=None))
    assert error.value.code == "value.zone"
    with pytest.raises(MalformedError) as error:
        Event.of(plate, {}, id="\ud800")
    assert error.value.code == "value.text"


def test_timestamps_become_utc() -> None:
    plate = EventType.of(V4799)
    first = datetime(2026, 10, 25, 1, 30, tzinfo=ZoneInfo("Europe/London"))
    one = Event.of(plate, {"timestamp": first}, time=first)
    two = Event.of(plate, {"timestamp": first.replace(fold=1)}, time=first.replace(fold=1))
    assert one["timestamp"] == one.time == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert two["timestamp"] == two.time == datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    assert one != two, "the hour that occurs twice is two hours"
    there: dict[str, Scalar] = {attribute_id("9058"): NOON.astimezone(timezone(timedelta(hours=5)))}
    read = TransitEvent(plate.key, (), there).to_event(plate)["timestamp"]
    assert isinstance(read, datetime)
    assert read.tzinfo is UTC


def test_an_event_cannot_be_changed() -> None:
    given_values = dict(VALUES)
    event = Event.of(EventType.of(V4799), given_values)
    given_values["location"] = "elsewhere"
    assert event["location"] == "M11 J11"
    with pytest.raises(TypeError):
        event.values["location"] = "elsewhere"  # type: ignore[index]  # the mistake under test
    with pytest.raises(TypeError):
        event.to_transit().values[attribute_id("3467")] = "x"  # type: ignore[index]  # the mistake under test


def derived(name: str, parent: EventType, *attributes: str, owner: Principal = PITO) -> EventType:
    own = tuple(AttributeDefinition(attribute, str(uid), STRING) for uid, attribute in enumerate(attributes))
    return EventType.of(TypeDefinition(TypeName(owner, name), own, parent.name), parent)


def test_an_event_of_a_sub_type_can_be_read_as_its_parents() -> None:
    plate = EventType.of(V4799)
    stolen = derived("Stolen", plate, "officer", owner=Principal(b"\2" * 32))
    reported = derived("Stolen.Reported", stolen, "reference")
    event = Event.of(reported, {**VALUES, "officer": "Dixon", "reference": "42"})
    transit = event.to_transit()
    assert transit.to_event(reported) == event
    assert transit.to_event(stolen).values == {**VALUES, "officer": "Dixon"}
    assert transit.to_event(plate).values == VALUES
    renamed = transit.to_event(EventType.of(V8516))
    assert renamed["numberplate"] == "AE05 XYZ", "and as another version of an ancestor"


def test_an_event_is_not_read_as_anything_else() -> None:
    plate = EventType.of(V4799)
    stolen, other = derived("Stolen", plate, "officer"), derived("Other", plate)
    forged = EventType.of(TypeDefinition(TypeName(Principal(b"\2" * 32), NAME, "4799"), V4799.attributes))
    for event_type, reader in [(plate, stolen), (stolen, other), (plate, forged), (forged, plate)]:
        with pytest.raises(MalformedError) as error:
            Event.of(event_type, {}).to_transit().to_event(reader)
        assert error.value.code == "event.type"


scalars: dict[str, st.SearchStrategy[Scalar]] = {
    "license-plate": st.none() | st.text(),
    "timestamp": st.none() | st.datetimes(timezones=st.just(UTC)),
    "location": st.none() | st.text(),
}


@given(st.fixed_dictionaries({}, optional=scalars))
@settings(deadline=None)
def test_transit_and_back_in_the_same_version(values: dict[str, Scalar]) -> None:
    plate = EventType.of(V4799)
    event = Event.of(plate, values, id="e", time=NOON)
    assert event.to_transit().to_event(plate) == event
    assert event.to_transit().to_event(EventType.of(V8516)).to_transit() == event.to_transit()


def test_an_event_is_printed_short_however_large_it_is() -> None:
    event = Event.of(EventType.of(V4799), VALUES, id="e1")
    assert repr(event) == (
        "Event(uk.gov.pito.Numberplate, id='e1', license-plate='AE05 XYZ', timestamp=2026-01-31T12:00:00+00:00, "
        "location='M11 J11')"
    )
    many = tuple(AttributeDefinition(f"a{number}", f"{number}", STRING) for number in range(100))
    large = EventType.of(TypeDefinition(TypeName(PITO, NAME, "1"), many))
    assert len(repr(Event.of(large, dict.fromkeys(large.by_name, "x" * 10_000), id="y" * 10_000))) < 600
    assert len(repr(large)) < 200
    assert len(repr(TypeDefinition(TypeName(PITO, NAME, "1"), many))) < 200


def test_rows_are_the_events_that_they_stand_for() -> None:
    event_type = EventType.of(V4799)
    layout = tuple(str(attribute.id) for attribute in event_type.attributes)
    stated: list[dict[str, Scalar]] = [VALUES, {"location": "M11"}, {"location": "M25", "timestamp": NOON}]
    events = [Event.of(event_type, values, id=str(place), time=NOON) for place, values in enumerate(stated)]
    rows = EventRows(
        event_type.key, event_type.ancestors, layout, [[one.id, one.time, *one.values.values()] for one in events]
    )
    expected = [event.to_transit() for event in events]
    assert rows == expected
    assert (*rows,) == (rows[0], *rows[1:]) == tuple(expected)
    assert len(rows) == 3
    assert rows.attributes == layout
    assert rows.pick([1, 2]) == expected[1:] != rows
    assert rows.pick([1, 2]).attributes == layout[1:]
    assert rows.pick([1]).attributes == layout[2:]
    assert typed(rows) is rows
    assert typed(expected) is expected[0]
    assert "M11" not in repr(rows), "values are kept out of logs"


def test_attributes_of_rows_without_a_time_are_those_with_a_value() -> None:
    rows = EventRows(V4799.name.key, (), ("a", "b"), [["1", None, "x", None], ["2", None, "x", 1]])
    assert rows.attributes == ("a", "b")
    assert rows.pick([0]).attributes == ("a",)

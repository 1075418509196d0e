"""Publishing: what of an event may go out, and under which right."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType

import pytest
from tests.guard.london import LOCATION, MALLORY, NEW, NOW, PLATE, TIMESTAMP, TYPE, V4799, sighting

from penstock.errors import MalformedError, RefusedError
from penstock.guard import NOTHING, Branch, Publication, Restriction, Rules, When, environment
from penstock.model import AttributeId, AttributeSpec, Event, EventType, Kind, Scalar, TypeKey
from penstock.selector import Selector, parse
from penstock.trust.capabilities import Right
from penstock.trust.validity import OnlineTest, Validity

HERE = environment(NOW)
ALL = Branch(action=Right.PUBLISH, because=("cert:1",))
VICTORIA = replace(ALL, forced=((LOCATION, "Victoria"),))
SOHO = replace(ALL, forced=((LOCATION, "Soho"),))
NAMES = {attribute.id: attribute.name for attribute in TYPE.attributes}


def only(*attributes: AttributeId, where: str = "TRUE") -> Branch:
    bound: Selector = parse(where).rename({name: attribute for attribute, name in NAMES.items()})
    return replace(ALL, attributes=frozenset(attributes), where=bound)


def send(
    *branches: Branch, event: Event | None = None, env: Mapping[str, Scalar] = HERE, rules: Rules | None = None
) -> dict[str, Scalar]:
    sent = Publication(Restriction.of(branches), TYPE, rules)(event or sighting(), env)
    return {NAMES[AttributeId.parse(attribute)]: value for attribute, value in sent.values.items()}


def refusal(*branches: Branch, event: Event | None = None, rules: Rules | None = None) -> str:
    with pytest.raises(RefusedError) as caught:
        send(*branches, event=event, rules=rules)
    return caught.value.code


def test_no_branch_publishes_nothing() -> None:
    assert refusal() == "guard.not-permitted"
    assert refusal(replace(ALL, action=Right.SUBSCRIBE)) == "guard.not-permitted"
    with pytest.raises(RefusedError):
        Publication(NOTHING, TYPE)(sighting(), HERE)


def test_what_may_not_be_set_becomes_null() -> None:
    assert send(only(PLATE)) == {"numberplate": "AE05 XYZ"}
    assert send(ALL) == {"numberplate": "AE05 XYZ", "timestamp": NOW, "location": "Victoria"}


def test_the_event_travels_under_our_type_with_its_id_and_time() -> None:
    sent = Publication(Restriction.of([ALL]), TYPE)(sighting(), HERE)
    assert (sent.key, sent.ancestors, sent.id, sent.time) == (TYPE.key, (), "e1", NOW)


def test_forced_values_substitute() -> None:
    assert send(VICTORIA, event=sighting(location="Soho"))["location"] == "Victoria"
    assert send(VICTORIA, event=sighting(location=None))["location"] == "Victoria"


def test_a_branch_is_judged_on_what_it_would_publish() -> None:
    # The publisher may not set the location, so that what it says there does not help it.
    assert refusal(only(PLATE, where="location = 'Victoria'")) == "guard.not-permitted"
    assert send(only(PLATE, LOCATION, where="location = 'Victoria'")) == {
        "numberplate": "AE05 XYZ",
        "location": "Victoria",
    }
    elsewhere = replace(VICTORIA, where=only(where="location = 'Soho'").where)
    assert refusal(elsewhere, event=sighting(location="Soho")) == "guard.not-permitted"


def test_an_attribute_is_not_published_under_one_right_with_the_freedom_of_another() -> None:
    # Plates only without a location; locations at will. Both together are neither of the two.
    anonymous, places = only(PLATE, where="location IS NULL"), only(LOCATION)
    assert send(anonymous, places) == {"location": "Victoria"}
    assert send(anonymous, places, event=sighting(location=None)) == {"numberplate": "AE05 XYZ"}
    assert send(only(PLATE), places) == {"numberplate": "AE05 XYZ", "location": "Victoria"}


def test_rights_that_exclude_each_other_publish_nothing() -> None:
    one, other = only(PLATE, where="location IS NULL"), only(LOCATION, where="numberplate IS NULL")
    assert refusal(one, other) == "guard.not-permitted"
    assert send(one, other, event=sighting(location=None)) == {"numberplate": "AE05 XYZ"}


def test_guards_are_asked_about_what_goes_out() -> None:
    seen: list[dict[str, Scalar]] = []

    def lone(values: Mapping[str, Scalar], _env: Mapping[str, Scalar]) -> bool:
        seen.append(dict(values))
        return LOCATION not in values

    guarded = replace(only(PLATE), guards=frozenset({"lone"}))
    rules = Rules({"lone": lone})
    assert send(guarded, rules=rules) == {"numberplate": "AE05 XYZ"}
    assert seen == [{PLATE: "AE05 XYZ"}]
    assert send(guarded, only(LOCATION), rules=rules) == {"location": "Victoria"}


def test_a_guard_cannot_change_what_goes_out() -> None:
    def meddle(values: Mapping[str, Scalar], _env: Mapping[str, Scalar]) -> bool:
        values[LOCATION] = "Soho"  # type: ignore[index]  # the fault
        return True

    assert refusal(replace(VICTORIA, guards=frozenset({"m"})), rules=Rules({"m": meddle})) == "guard.not-permitted"


def test_an_event_goes_through_the_rights_that_it_does_not_contradict() -> None:
    assert send(VICTORIA, SOHO, event=sighting(location="Soho"))["location"] == "Soho"
    assert send(VICTORIA, SOHO, event=sighting(location="Victoria"))["location"] == "Victoria"
    assert send(VICTORIA, only(LOCATION), event=sighting(location="Soho")) == {"location": "Soho"}
    assert send(VICTORIA, only(PLATE), event=sighting(location=None)) == {
        "numberplate": "AE05 XYZ",
        "timestamp": NOW,
        "location": "Victoria",
    }


@pytest.mark.parametrize("said", ["Heathrow", None])
def test_which_of_several_rights_is_meant_is_not_guessed(said: str | None) -> None:
    assert refusal(VICTORIA, SOHO, event=sighting(location=said)) == "guard.ambiguous-forced"


def test_several_rights_that_force_the_same_are_one() -> None:
    both = (replace(VICTORIA, attributes=frozenset({LOCATION, PLATE})), VICTORIA)
    assert send(*both, event=sighting(location="Heathrow"))["location"] == "Victoria"


def test_what_a_right_forces_it_must_list() -> None:
    codes: list[str] = []
    rules = Rules(on_problem=lambda code, _because: codes.append(code))
    forced = replace(only(PLATE), forced=((LOCATION, "Heathrow"),))
    assert refusal(forced, rules=rules) == "guard.not-permitted"
    assert codes == ["guard.forced-unlisted"]
    assert send(forced, only(TIMESTAMP), rules=rules) == {"timestamp": NOW}
    # It comes about by intersection: one side forces what the other does not grant.
    both = Restriction.of([VICTORIA]) & Restriction.of([only(PLATE)])
    with pytest.raises(RefusedError):
        Publication(both, TYPE)(sighting(), HERE)


def test_a_value_forced_on_what_the_version_lacks_is_passed_over() -> None:
    bare = EventType.of(NEW.remove("location", version="9"))
    event = Event.of(bare, {"numberplate": "X"})
    assert dict(Publication(Restriction.of([VICTORIA]), bare)(event, HERE).values) == {PLATE: "X"}
    listed = replace(VICTORIA, attributes=frozenset({PLATE}))
    assert dict(Publication(Restriction.of([listed]), bare)(event, HERE).values) == {PLATE: "X"}


@pytest.mark.parametrize("value", [3, True, NOW])
def test_a_forced_value_must_fit(value: int | datetime) -> None:
    with pytest.raises(MalformedError) as caught:
        Publication(Restriction.of([replace(ALL, forced=((LOCATION, value),))]), TYPE)
    assert caught.value.code == "guard.forced"


def test_an_event_of_another_version_is_refused() -> None:
    with pytest.raises(MalformedError) as caught:
        Publication(Restriction.of([ALL]), TYPE)(Event.of(V4799.event_type, {}), HERE)
    assert caught.value.code == "event.type"


def test_an_event_of_a_type_that_only_has_the_same_name_is_refused() -> None:
    # The publisher's idea of the type chooses neither attributes nor ancestors, that is, nor receivers.
    extra = EventType.of(NEW.add("speed", "1", AttributeSpec(Kind.INTEGER), version="8516b"))
    forged = (
        EventType(TYPE.name, extra.attributes),
        EventType(TYPE.name, TYPE.attributes, (TypeKey(MALLORY.principal, "org.example.Anything"),)),
        EventType(TYPE.name, ()),
    )
    publish = Publication(Restriction.of([ALL]), TYPE)
    for type_ in forged:
        with pytest.raises(MalformedError) as caught:
            publish(Event.of(type_, {}), HERE)
        assert caught.value.code == "event.type"
    same = EventType(TYPE.name, TYPE.attributes)
    assert publish(Event.of(same, {"numberplate": "X"}), HERE).values == {PLATE: "X"}


@pytest.mark.parametrize("value", [3, True, "\ud800", ["x"], 1.5])
def test_values_that_nobody_checked_are_checked(value: object) -> None:
    made = Event(TYPE, MappingProxyType({"numberplate": value}))  # type: ignore[dict-item]  # the fault
    with pytest.raises(MalformedError):
        Publication(Restriction.of([ALL]), TYPE)(made, HERE)


def test_names_that_the_type_does_not_have_go_nowhere() -> None:
    made = Event(TYPE, {"numberplate": "X", "speed": 3, LOCATION: "Soho"})
    assert dict(Publication(Restriction.of([ALL]), TYPE)(made, HERE).values) == {PLATE: "X"}


def test_dates_and_conditions_are_asked_at_each_event() -> None:
    until = replace(ALL, when=When(Validity.between(None, NOW), parse("hour BETWEEN 9 AND 16")))
    assert send(until)
    for env in (environment(NOW + timedelta(seconds=1)), environment(NOW.replace(hour=8)), {}, {"hour": 12}):
        with pytest.raises(RefusedError):
            send(until, env=env)
    assert send(until, only(PLATE), env={}) == {"numberplate": "AE05 XYZ"}


def test_a_restriction_that_cannot_be_enforced_is_refused_as_a_whole() -> None:
    online = replace(ALL, when=When(Validity(online=(OnlineTest("crl", (b"online", b"crl")),))))
    with pytest.raises(RefusedError) as caught:
        Publication(Restriction.of([ALL, online]), TYPE)
    assert caught.value.code == "guard.online-test"


def test_a_selector_without_a_value_refuses_and_is_reported() -> None:
    found: list[tuple[str, tuple[str, ...]]] = []
    rules = Rules(on_problem=lambda code, because: found.append((code, because)))
    assert refusal(only(PLATE, where="1 / 0 = 1"), rules=rules) == "guard.not-permitted"
    assert found == [("selector.division", ("cert:1",))]

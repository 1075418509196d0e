"""Delivery: who sees what of an event, in which version, and what a filter may find out."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any

import pytest
from tests.guard.london import LOCATION, MALLORY, NOW, OLD, PITO, PLATE, TIMESTAMP, TYPE, V4799, transit

from penstock.errors import MalformedError, RefusedError, SelectorError
from penstock.guard import NOTHING, Branch, Delivery, Restriction, Rules, TypeScope, When, environment
from penstock.model import (
    AttributeDefinition,
    AttributeId,
    AttributeSpec,
    Enumerated,
    Event,
    EventType,
    Kind,
    Ranged,
    Scalar,
    TransitEvent,
    TypeDefinition,
    TypeName,
)
from penstock.model.events import EventRows
from penstock.selector import Selector, parse
from penstock.trust.capabilities import Right
from penstock.trust.validity import OnlineTest, Validity

HERE = environment(NOW)
ALL = Branch(action=Right.SUBSCRIBE, because=("cert:1",))
PLATES = replace(ALL, attributes=frozenset({PLATE}))


class Problems:
    """Keeps what enforcement reports."""

    def __init__(self) -> None:
        self.found: list[tuple[str, tuple[str, ...]]] = []

    def __call__(self, code: str, because: tuple[str, ...]) -> None:
        self.found.append((code, because))


def where(text: str) -> Selector:
    """Parse a selector over the names of Numberplate and bind it to the ids."""
    return parse(text).rename({attribute.name: attribute.id for attribute in TYPE.attributes})


def see(
    *branches: Branch,
    event: TransitEvent | None = None,
    filter_: str = "TRUE",
    env: Mapping[str, Scalar] = HERE,
    rules: Rules | None = None,
) -> dict[str, Scalar] | None:
    seen = Delivery(Restriction.of(branches), TYPE, parse(filter_), rules)(event or transit(), env)
    return None if seen is None else {name: value for name, value in seen.values.items() if value is not None}


def test_no_branch_delivers_nothing() -> None:
    assert see() is None
    assert Delivery(NOTHING, TYPE)(transit(), HERE) is None
    assert see(replace(ALL, action=Right.PUBLISH)) is None
    assert see(replace(ALL, types=TypeScope((b"ed25519:someone",)))) is None


def test_attributes_add_up_over_the_branches_that_hold() -> None:
    plates = replace(PLATES, where=where("location = 'Victoria'"))
    places = replace(ALL, attributes=frozenset({LOCATION}), where=where("numberplate = 'AE05 XYZ'"))
    assert see(plates, places) == {"numberplate": "AE05 XYZ", "location": "Victoria"}
    assert see(plates, places, event=transit("OTHER 1")) == {"numberplate": "OTHER 1"}
    assert see(plates, places, event=transit(location="Soho")) == {"location": "Soho"}
    assert see(plates, places, event=transit("OTHER 1", "Soho")) is None


def test_the_policy_sees_the_whole_event_and_the_filter_only_the_masked_one() -> None:
    hidden = replace(PLATES, where=where("location = 'Victoria'"))
    assert see(hidden) == {"numberplate": "AE05 XYZ"}
    assert see(hidden, filter_="location = 'Victoria'") is None
    assert see(hidden, filter_="location <> 'Victoria'") is None
    assert see(hidden, filter_="location IS NULL") == {"numberplate": "AE05 XYZ"}


@pytest.mark.parametrize(
    "question",
    ["location = 'Victoria'", "NOT location = 'Victoria'", "location LIKE 'V%'", "location IS NULL", "location > 'M'"],
)
def test_a_filter_over_a_hidden_attribute_tells_nothing(question: str) -> None:
    answers = {
        str(see(PLATES, event=transit(location=location), filter_=question)) for location in ("Victoria", "Soho", None)
    }
    assert len(answers) == 1


def test_what_is_shown_differs_per_event_and_so_does_what_the_filter_sees() -> None:
    suspects = replace(ALL, where=where("numberplate LIKE 'AE%'"))
    restriction = (PLATES, suspects)
    assert see(*restriction, filter_="location = 'Victoria'") is not None
    assert see(*restriction, event=transit("OTHER 1"), filter_="location = 'Victoria'") is None


def test_a_filter_must_fit_the_subscribers_version() -> None:
    with pytest.raises(SelectorError) as caught:
        Delivery(Restriction.of([ALL]), TYPE, parse("speed > 3"))
    assert caught.value.code == "selector.unknown-attribute"
    with pytest.raises(SelectorError) as caught:
        Delivery(Restriction.of([ALL]), TYPE, parse("numberplate > 3"))
    assert caught.value.code == "selector.type"


def test_each_subscriber_reads_its_own_version() -> None:
    seen = Delivery(Restriction.of([PLATES]), V4799.event_type)(transit(), HERE)
    assert seen is not None
    assert dict(seen.values) == {"license-plate": "AE05 XYZ", "timestamp": None, "location": None}
    assert (seen.type, seen.id, seen.time) == (V4799.event_type, "e1", NOW)


def test_an_event_of_another_type_is_refused() -> None:
    other = EventType.of(TypeDefinition(TypeName(PITO.principal, "uk.gov.pito.Arrest"), OLD.attributes))
    with pytest.raises(MalformedError) as caught:
        Delivery(Restriction.of([ALL]), other)(transit(), HERE)
    assert caught.value.code == "event.type"
    # Also one of the same name by someone else.
    forged = EventType.of(TypeDefinition(TypeName(MALLORY.principal, OLD.name.name), OLD.attributes))
    with pytest.raises(MalformedError):
        Delivery(Restriction.of([ALL]), TYPE)(Event.of(forged, {}).to_transit(), HERE)


def test_readers_of_a_type_get_its_sub_types_without_what_those_add() -> None:
    sub = TypeDefinition(
        TypeName(MALLORY.principal, "org.example.Sighting"),
        (AttributeDefinition("speed", "9525", AttributeSpec(Kind.INTEGER)),),
        extends=TYPE.name,
    )
    child = EventType.of(sub, TYPE)
    event = Event.of(child, {"numberplate": "X", "location": "Soho", "speed": 30}).to_transit()
    # The sub-type of another owner reuses a UID; the ids differ all the same.
    assert see(ALL, event=event) == {"numberplate": "X", "location": "Soho"}
    assert see(PLATES, event=event) == {"numberplate": "X"}
    mine = Delivery(Restriction.of([PLATES]), child)(event, HERE)
    assert mine is not None
    assert mine["speed"] is None


@pytest.mark.parametrize("answer", [False, None, 1, "yes", [True], object()])
def test_a_guard_that_says_anything_but_true_refuses(answer: object) -> None:
    asked = replace(ALL, guards=frozenset({"court-order"}))
    says: dict[str, Any] = {"court-order": lambda _values, _env: answer}
    assert see(asked, rules=Rules(says)) is None
    assert see(asked, rules=Rules({"court-order": lambda _values, _env: True})) is not None


def test_a_guard_sees_the_whole_event_and_changes_nothing() -> None:
    def meddle(values: Mapping[str, Scalar], env: Mapping[str, Scalar]) -> bool:
        assert values[LOCATION] == "Victoria"
        assert env["hour"] == 12
        values[PLATE] = "FORGED"  # type: ignore[index]  # the fault
        return True

    problems = Problems()
    event = replace(transit(), values=dict(transit().values))
    guarded = replace(PLATES, guards=frozenset({"meddle"}))
    assert see(guarded, event=event, rules=Rules({"meddle": meddle}, on_problem=problems)) is None
    assert problems.found == [("guard.failed", ("cert:1",))]
    assert event.values[PLATE] == "AE05 XYZ"


def test_a_guard_that_raises_or_is_not_known_refuses_and_is_reported() -> None:
    def broken(_values: Mapping[str, Scalar], _env: Mapping[str, Scalar]) -> bool:
        raise ZeroDivisionError

    problems = Problems()
    rules = Rules({"broken": broken, "yes": lambda _values, _env: True}, on_problem=problems)
    assert see(replace(ALL, guards=frozenset({"broken"})), rules=rules) is None
    assert see(replace(ALL, guards=frozenset({"unheard-of"})), rules=rules) is None
    assert see(replace(ALL, guards=frozenset({"yes", "unheard-of"})), rules=rules) is None
    assert see(replace(ALL, guards=frozenset({"unheard-of"})), PLATES, rules=rules) == {"numberplate": "AE05 XYZ"}
    assert [code for code, _ in problems.found] == ["guard.failed", *["guard.unknown"] * 3]


NUMBERS = EventType.of(
    TypeDefinition(
        TypeName(PITO.principal, "org.example.Numbers"),
        (
            AttributeDefinition("i", "0", AttributeSpec(Kind.INTEGER)),
            AttributeDefinition("f", "1", AttributeSpec(Kind.FLOAT)),
            AttributeDefinition("t", "2", AttributeSpec(Kind.TIMESTAMP, Ranged(NOW, NOW + timedelta(days=1)))),
            AttributeDefinition("e", "3", AttributeSpec(Kind.STRING, Enumerated(frozenset({"a", "é"})))),
            AttributeDefinition("b", "4", AttributeSpec(Kind.BOOLEAN)),
        ),
    )
)
IDS = {name: attribute.id for name, attribute in NUMBERS.by_name.items()}


def numbers(values: dict[str, object]) -> TransitEvent:
    hostile: dict[str, Scalar] = {IDS[name]: value for name, value in values.items()}  # type: ignore[misc]  # the fault
    return TransitEvent(NUMBERS.key, (), MappingProxyType(hostile))


@pytest.mark.parametrize(
    ("condition", "values", "code"),
    [
        ("1 / i > 0", {"i": 0}, "selector.division"),
        ("i + 1 > 0", {"i": 2**63 - 1}, "selector.overflow"),
        ("f = f", {"f": float("nan")}, "selector.nan"),
        ("NOT f > 1.0", {"f": float("nan")}, "selector.nan"),
        ("i > 0", {"i": "3"}, "selector.operands"),
        ("i > 0", {"i": 2**63}, "selector.operands"),
        ("i > 0", {"i": [1]}, "selector.operands"),
    ],
)
def test_a_selector_without_a_value_refuses(condition: str, values: dict[str, object], code: str) -> None:
    problems = Problems()
    rules = Rules(on_problem=problems)
    policy = Restriction.of([replace(ALL, where=parse(condition).rename(IDS))])
    assert Delivery(policy, NUMBERS, rules=rules)(numbers(values), HERE) is None
    assert problems.found == [(code, ("cert:1",))]


def test_a_filter_without_a_value_refuses_and_is_reported_without_credentials() -> None:
    problems = Problems()
    deliver = Delivery(Restriction.of([ALL]), NUMBERS, parse("1 / i > 0"), Rules(on_problem=problems))
    assert deliver(numbers({"i": 0}), HERE) is None
    assert problems.found == [("selector.division", ())]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("i", "3"),
        ("i", True),
        ("i", 1.0),
        ("i", 2**63),
        ("i", -(2**63) - 1),
        ("f", 1),
        ("t", NOW - timedelta(seconds=1)),
        ("t", datetime(2026, 5, 1, 12)),  # noqa: DTZ001  # the fault
        ("e", "b"),
        ("e", "\ud800"),
        ("e", ["a"]),
        ("b", 1),
        ("b", "true"),
    ],
)
def test_a_value_that_does_not_fit_the_readers_version_is_null(name: str, value: object) -> None:
    deliver = Delivery(Restriction.of([ALL]), NUMBERS)
    seen = deliver(numbers({name: value}), HERE)
    assert seen is not None
    assert seen[name] is None
    assert seen == numbers({name: value}).to_event(NUMBERS)


def test_a_value_is_shown_in_its_canonical_form() -> None:
    moment = (NOW + timedelta(hours=1)).astimezone(timezone(timedelta(hours=5, minutes=30)))
    seen = Delivery(Restriction.of([ALL]), NUMBERS)(numbers({"t": moment, "e": "é", "f": float("inf")}), HERE)
    assert seen is not None
    assert isinstance(seen["t"], datetime)
    assert (seen["t"], seen["t"].tzinfo, seen["e"], seen["f"]) == (moment, UTC, "é", float("inf"))


def test_ids_that_the_version_does_not_know_are_left_out() -> None:
    foreign = AttributeId(MALLORY.principal, OLD.name.name, "9525")
    event = replace(transit(), values={**transit().values, foreign: "x", "numberplate": "forged"})
    assert see(ALL, event=event) == see(ALL)


DAY = Validity.between(NOW, NOW + timedelta(days=1))


@pytest.mark.parametrize(
    ("moment", "holds"),
    [
        (NOW - timedelta(microseconds=1), False),
        (NOW, True),
        (NOW + timedelta(days=1), True),
        (NOW + timedelta(days=1, microseconds=1), False),
        ((NOW + timedelta(hours=1)).astimezone(timezone(timedelta(hours=-11))), True),
        (datetime(2026, 5, 1, 13), False),  # noqa: DTZ001  # the fault
        (None, False),
        ("2026-05-01", False),
    ],
)
def test_a_validity_needs_a_time_and_holds_within_it(moment: Scalar, holds: bool) -> None:
    problems = Problems()
    dated = replace(ALL, when=When(DAY))
    seen = see(dated, env={"time": moment}, rules=Rules(on_problem=problems))
    assert (seen is not None) is holds
    assert [code for code, _ in problems.found] == ([] if holds else ["guard.not-valid-now"])


def test_an_environment_that_knows_nothing_satisfies_nothing() -> None:
    for branch in (replace(ALL, when=When(DAY)), replace(ALL, when=When(condition=parse("hour < 24")))):
        assert see(branch, env={}) is None
    assert see(replace(ALL, when=When(condition=parse("hour < 24"))), env={"hour": "noon"}) is None
    assert see(ALL, env={}) is not None


def test_a_restriction_that_cannot_be_enforced_is_refused_as_a_whole() -> None:
    online = replace(ALL, when=When(Validity(online=(OnlineTest("crl", (b"online", b"crl")),))))
    with pytest.raises(RefusedError) as refused:
        Delivery(Restriction.of([PLATES, online]), TYPE)
    assert refused.value.code == "guard.online-test"
    for branch in (
        replace(ALL, when=When(condition=parse("on_duty"))),
        replace(ALL, where=where("numberplate > 3")),
        replace(ALL, forced=((PLATE, 3),)),
    ):
        with pytest.raises(MalformedError):
            Delivery(Restriction.of([branch]), TYPE)


def test_forced_values_filter() -> None:
    forced = replace(ALL, attributes=frozenset({TIMESTAMP}), forced=((PLATE, "AE05 XYZ"),))
    assert see(forced) == {"timestamp": NOW}
    assert see(forced, event=transit("OTHER 1")) is None
    infinite = Restriction.of([replace(ALL, forced=((IDS["f"], float("inf")),))])
    assert Delivery(infinite, NUMBERS)(numbers({"f": float("inf")}), HERE) is not None
    for value in (float("-inf"), 1e308, float("nan"), None):
        assert Delivery(infinite, NUMBERS)(numbers({"f": value}), HERE) is None


def test_arrived_rows_are_shown_as_they_are_except_for_values_that_do_not_fit() -> None:
    delivery = Delivery(Restriction((ALL,)), TYPE)
    layout = tuple(str(attribute.id) for attribute in TYPE.attributes)
    good, bad = ["1", NOW, *("x" if a.spec.kind is Kind.STRING else NOW for a in TYPE.attributes)], ["2", NOW]
    bad += [5] * len(layout)
    found = delivery.for_arrivals(EventRows(TYPE.key, (), layout, []))([good, bad], HERE)
    assert found[0] is good
    assert found[1] == ["2", NOW, *[None] * len(layout)]
    with pytest.raises(MalformedError) as caught:
        delivery.for_arrivals(EventRows(replace(TYPE.key, name="Other"), (), layout, []))
    assert caught.value.code == "event.type"


def test_a_loop_for_arrived_rows_is_generated_once_and_few_are_kept() -> None:
    delivery = Delivery(Restriction((ALL,)), TYPE)
    names = tuple(str(attribute.id) for attribute in TYPE.attributes)
    layouts = [(*names, *(f"{TYPE.key}#other{place}" for place in range(number))) for number in range(200)]
    for layout in layouts:
        events = EventRows(TYPE.key, (), layout, [])
        assert delivery.for_arrivals(events) is delivery.for_arrivals(events)
    assert len(delivery._arrival_loops) <= 64

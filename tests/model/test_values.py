"""Attribute values: the five kinds at their edges, and the domains that narrow them."""

import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import cast
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import MalformedError
from penstock.model.values import (
    INTEGER_MAX,
    INTEGER_MIN,
    AttributeSpec,
    Enumerated,
    Kind,
    Ranged,
    Scalar,
    Value,
    ValueDomain,
    canonical,
    check_value,
    checked_value,
    kind_of,
)

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
LONDON = ZoneInfo("Europe/London")

EXAMPLES: dict[Kind, Value] = {
    Kind.STRING: "AB51 CDE",
    Kind.INTEGER: 1,
    Kind.FLOAT: 1.0,
    Kind.BOOLEAN: True,
    Kind.TIMESTAMP: NOON,
}

values: st.SearchStrategy[Value] = (
    st.booleans()
    | st.integers(INTEGER_MIN, INTEGER_MAX)
    | st.floats()
    | st.text()
    | st.datetimes(min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1), timezones=st.timezones())  # noqa: DTZ001  # the zone is drawn
)


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("found", Kind)
def test_kinds_never_mix(kind: Kind, found: Kind) -> None:
    value = EXAMPLES[found]
    if kind is found:
        check_value(kind, value)
        return
    with pytest.raises(MalformedError) as error:
        check_value(kind, value)
    assert error.value.code == "value.kind"
    assert error.value.fields == {"expected": kind, "found": found}


@pytest.mark.parametrize("kind", Kind)
def test_null_belongs_to_every_kind(kind: Kind) -> None:
    check_value(kind, None)
    AttributeSpec(kind).check(None)
    AttributeSpec(kind, Enumerated(frozenset({EXAMPLES[kind]}))).check(None)


@given(values)
@settings(deadline=None)
def test_every_value_is_of_its_own_kind_and_of_no_other(value: Value) -> None:
    kind = kind_of(value)
    check_value(kind, value)
    for other in set(Kind) - {kind}:
        with pytest.raises(MalformedError) as error:
            check_value(other, value)
        assert error.value.code == "value.kind"


@pytest.mark.parametrize("thing", [b"bytes", Decimal(1), 1j, (), [], {}, object(), NOON.date(), None])
def test_other_things_are_no_values(thing: object) -> None:
    with pytest.raises(MalformedError) as error:
        kind_of(cast("Value", thing))
    assert error.value.code == "value.kind"


@pytest.mark.parametrize("number", [INTEGER_MIN, -1, 0, 1, INTEGER_MAX])
def test_integers_of_64_bits(number: int) -> None:
    check_value(Kind.INTEGER, number)


@pytest.mark.parametrize("number", [INTEGER_MIN - 1, INTEGER_MAX + 1, 1 << 64, -(10**400)])
def test_integers_beyond_64_bits(number: int) -> None:
    with pytest.raises(MalformedError) as error:
        check_value(Kind.INTEGER, number)
    assert error.value.code == "value.range"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -0.0, 5e-324])
def test_an_event_may_hold_any_float(number: float) -> None:
    AttributeSpec(Kind.FLOAT).check(number)


@pytest.mark.parametrize("text", ["", "\0", "\n", "\ufeff", "\U0010ffff", "ı", "a" * 100_000])
def test_strings_are_unicode(text: str) -> None:
    check_value(Kind.STRING, text)


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\udc80" * 3, "\udc00\ud800"])
def test_lone_surrogates_are_no_unicode(text: str) -> None:
    with pytest.raises(MalformedError) as error:
        check_value(Kind.STRING, text)
    assert error.value.code == "value.text"


def test_a_timestamp_needs_a_time_zone() -> None:
    with pytest.raises(MalformedError) as error:
        check_value(Kind.TIMESTAMP, NOON.replace(tzinfo=None))
    assert error.value.code == "value.zone"


@pytest.mark.parametrize(
    "moment",
    [
        datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
        datetime.max.replace(tzinfo=timezone(-timedelta(minutes=1))),
    ],
)
def test_a_timestamp_must_exist_in_utc(moment: datetime) -> None:
    with pytest.raises(MalformedError) as error:
        check_value(Kind.TIMESTAMP, moment)
    assert error.value.code == "value.range"


def test_true_is_no_member_of_an_integer_domain() -> None:
    spec = AttributeSpec(Kind.INTEGER, Enumerated(frozenset({1, 2})))
    spec.check(1)
    with pytest.raises(MalformedError) as error:
        spec.check(True)
    assert error.value.code == "value.kind"


@pytest.mark.parametrize(
    ("kind", "domain"),
    [
        (Kind.STRING, Enumerated(frozenset())),
        (Kind.FLOAT, Enumerated(frozenset({math.nan}))),
        (Kind.FLOAT, Enumerated(frozenset({1.0, math.nan}))),
        (Kind.FLOAT, Ranged(math.nan, 1.0)),
        (Kind.FLOAT, Ranged(1.0, math.nan)),
        (Kind.FLOAT, Ranged(math.nan, math.nan)),
        (Kind.INTEGER, Ranged(1, 0)),
        (Kind.TIMESTAMP, Ranged(NOON, NOON - timedelta(microseconds=1))),
        (Kind.STRING, Ranged(1, 2)),
        (Kind.BOOLEAN, Ranged(False, True)),
    ],
)
def test_a_domain_that_nothing_lies_in(kind: Kind, domain: ValueDomain) -> None:
    with pytest.raises(MalformedError) as error:
        AttributeSpec(kind, domain)
    assert error.value.code == "value.domain"


@pytest.mark.parametrize(
    ("kind", "domain", "code"),
    [
        (Kind.STRING, Enumerated(frozenset({"a", 1})), "value.kind"),
        (Kind.INTEGER, Enumerated(frozenset({True})), "value.kind"),
        (Kind.INTEGER, Ranged(False, True), "value.kind"),
        (Kind.INTEGER, Ranged(0, 1.0), "value.kind"),
        (Kind.FLOAT, Ranged(0, 1), "value.kind"),
        (Kind.INTEGER, Ranged(0, INTEGER_MAX + 1), "value.range"),
        (Kind.STRING, Enumerated(frozenset({"\ud800"})), "value.text"),
    ],
)
def test_members_of_a_domain_are_values_of_the_kind(kind: Kind, domain: ValueDomain, code: str) -> None:
    with pytest.raises(MalformedError) as error:
        AttributeSpec(kind, domain)
    assert error.value.code == code


def test_the_members_of_a_domain_need_a_time_zone() -> None:
    with pytest.raises(MalformedError) as error:
        Ranged(NOON.replace(tzinfo=None), NOON)
    assert error.value.code == "value.zone"
    with pytest.raises(MalformedError) as error:
        Enumerated(frozenset({NOON.replace(tzinfo=None)}))
    assert error.value.code == "value.zone"


@pytest.mark.parametrize(
    ("spec", "inside", "outside"),
    [
        (AttributeSpec(Kind.STRING, Enumerated(frozenset({"a", "b"}))), ["a", "b"], ["", "A", "a\n"]),
        (AttributeSpec(Kind.BOOLEAN, Enumerated(frozenset({True}))), [True], [False]),
        (AttributeSpec(Kind.INTEGER, Ranged(0, 0)), [0], [-1, 1]),
        (AttributeSpec(Kind.INTEGER, Ranged(INTEGER_MIN, -1)), [INTEGER_MIN, -1], [0, INTEGER_MAX]),
        (AttributeSpec(Kind.FLOAT, Ranged(0.0, 1.0)), [-0.0, 0.5, 1.0], [-5e-324, 1.0000000000000002, math.nan]),
        (AttributeSpec(Kind.FLOAT, Ranged(-math.inf, math.inf)), [-math.inf, 0.0, math.inf], [math.nan]),
        (AttributeSpec(Kind.FLOAT, Enumerated(frozenset({0.0, math.inf}))), [-0.0, math.inf], [math.nan, -math.inf]),
        (
            AttributeSpec(Kind.TIMESTAMP, Ranged(NOON, NOON + timedelta(hours=1))),
            [NOON, NOON.astimezone(timezone(timedelta(hours=14))), NOON + timedelta(hours=1)],
            [NOON - timedelta(microseconds=1), NOON.replace(tzinfo=timezone(timedelta(hours=1)))],
        ),
    ],
)
def test_both_ends_of_a_domain_are_inside(spec: AttributeSpec, inside: list[Scalar], outside: list[Scalar]) -> None:
    for value in inside:
        spec.check(value)
    for value in outside:
        with pytest.raises(MalformedError) as error:
            spec.check(value)
        assert error.value.code == "value.domain"


def test_a_range_holds_no_string() -> None:
    assert not Ranged(0, 1).contains("0")


def test_timestamps_are_compared_as_instants_in_the_hour_that_occurs_twice() -> None:
    first = datetime(2026, 10, 25, 1, 30, tzinfo=LONDON)
    second = first.replace(fold=1)
    assert first == second, "Python compares wall clocks within one zone"
    only_first = AttributeSpec(Kind.TIMESTAMP, Enumerated(frozenset({first})))
    only_first.check(first)
    until_first = AttributeSpec(Kind.TIMESTAMP, Ranged(first - timedelta(minutes=20), first + timedelta(minutes=20)))
    until_first.check(first)
    for spec in (only_first, until_first):
        with pytest.raises(MalformedError) as error:
            spec.check(second)
        assert error.value.code == "value.domain"
    # A range over the change of clocks is one hour long although its wall clocks run backwards.
    AttributeSpec(Kind.TIMESTAMP, Ranged(first, second.replace(minute=0))).check(second.replace(minute=0))


def test_domains_of_the_same_instants_are_equal() -> None:
    there = NOON.astimezone(timezone(timedelta(hours=-5)))
    assert Ranged(NOON, NOON) == Ranged(there, there)
    assert Enumerated(frozenset({NOON})) == Enumerated(frozenset({there}))


@given(values)
@settings(deadline=None)
def test_the_canonical_form_is_the_same_value(value: Value) -> None:
    found = canonical(value)
    assert canonical(found) is found
    if isinstance(value, datetime):
        assert isinstance(found, datetime)
        assert found.tzinfo is UTC
        assert found.timestamp() == value.timestamp()
    else:
        assert found is value


def test_an_error_names_the_attribute_and_keeps_the_value_to_itself() -> None:
    spec = AttributeSpec(Kind.STRING, Enumerated(frozenset({"public"})))
    with pytest.raises(MalformedError) as error:
        checked_value("salary", spec, "secret-95000")
    assert error.value.code == "value.domain"
    assert "`salary`" in error.value.message
    assert "95000" not in repr(error.value.as_dict())


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=2).map(sorted), st.integers(-60, 60))
@settings(deadline=None)
def test_a_range_is_the_enumeration_of_its_integers(ends: list[int], value: int) -> None:
    low, high = ends
    listed = Enumerated(frozenset(range(low, high + 1)))
    assert Ranged(low, high).contains(value) == listed.contains(value)

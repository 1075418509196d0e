"""Profiles: alphabetic attributes of declared values, numeric ones of a range (paper 1, section II)."""

import math
from datetime import UTC, datetime
from typing import cast
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import MalformedError
from penstock.model.profiles import ProfileSchema, alphabetic, numeric
from penstock.model.values import INTEGER_MAX, INTEGER_MIN, AttributeSpec, Enumerated, Kind, Ranged, Value

ROLES = alphabetic("engineer", "worker")
SCHEMA = ProfileSchema(
    {"role": ROLES, "company": alphabetic("A", "B"), "age": numeric(0, 150), "load": numeric(0, 1.5)}
)


def test_alphabetic_attributes_take_declared_values() -> None:
    assert alphabetic("engineer", "worker") == AttributeSpec(Kind.STRING, Enumerated(frozenset({"engineer", "worker"})))
    assert alphabetic("a", "a", "b") == alphabetic("b", "a")


def test_numeric_attributes_take_a_range() -> None:
    assert numeric(0, 150) == AttributeSpec(Kind.INTEGER, Ranged(0, 150))
    for spec in (numeric(0.0, 150), numeric(0, 150.0), numeric(0.0, 150.0)):
        assert spec == AttributeSpec(Kind.FLOAT, Ranged(0.0, 150.0))
        assert isinstance(spec.domain, Ranged)
        assert isinstance(spec.domain.low, float)
        assert isinstance(spec.domain.high, float)
    assert numeric(-math.inf, math.inf).kind is Kind.FLOAT
    assert numeric(INTEGER_MIN, INTEGER_MAX).kind is Kind.INTEGER


def test_an_alphabetic_attribute_needs_values() -> None:
    with pytest.raises(MalformedError) as error:
        alphabetic()
    assert error.value.code == "value.domain"
    with pytest.raises(MalformedError) as error:
        alphabetic("\ud800")
    assert error.value.code == "value.text"


@pytest.mark.parametrize(
    ("low", "high", "code"),
    [
        (1, 0, "value.domain"),
        (0.5, 0, "value.domain"),
        (math.nan, 1, "value.domain"),
        (0, math.nan, "value.domain"),
        (False, True, "value.kind"),
        (0, INTEGER_MAX + 1, "value.range"),
        (10**400, 10**401, "value.range"),
        (0.5, 10**400, "value.range"),
        (-(10**400), 0.5, "value.range"),
    ],
)
def test_no_ranges(low: float, high: float, code: str) -> None:
    with pytest.raises(MalformedError) as error:
        numeric(low, high)
    assert error.value.code == code


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"role": "engineer"},
        {"role": "worker", "company": "A", "age": 0, "load": 1.5},
        {"age": 150, "load": 0.0},
    ],
)
def test_a_profile_gives_values_to_some_attributes(values: dict[str, Value]) -> None:
    profile = SCHEMA.profile(values)
    assert profile.values == values
    assert profile == SCHEMA.profile(dict(reversed(values.items())))


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"colour": "red"}, "profile.unknown-attribute"),
        ({"role\n": "engineer"}, "profile.unknown-attribute"),
        ({"x" * 10_000: 1}, "profile.unknown-attribute"),
        ({"role": "manager"}, "value.domain"),
        ({"role": "Engineer"}, "value.domain"),
        ({"role": 1}, "value.kind"),
        ({"age": -1}, "value.domain"),
        ({"age": 151}, "value.domain"),
        ({"age": 1.0}, "value.kind"),
        ({"age": True}, "value.kind"),
        ({"age": 1 << 63}, "value.range"),
        ({"load": 1}, "value.kind"),
        ({"load": math.nan}, "value.domain"),
        ({"load": math.inf}, "value.domain"),
        ({"role": "engineer", "age": "42"}, "value.kind"),
    ],
)
def test_no_profiles(values: dict[str, Value], code: str) -> None:
    with pytest.raises(MalformedError) as error:
        SCHEMA.profile(values)
    assert error.value.code == code
    assert len(error.value.message) < 200


def test_an_error_names_the_attribute() -> None:
    with pytest.raises(MalformedError) as error:
        SCHEMA.profile({"role": "engineer", "age": 151})
    assert "`age`" in error.value.message
    assert "151" not in error.value.message


@pytest.mark.parametrize("name", ["", "a b", "r\u043ele", "role\n", "a" * 10_000, "1a"])
def test_names_of_profile_attributes(name: str) -> None:
    with pytest.raises(MalformedError) as error:
        ProfileSchema({name: ROLES})
    assert error.value.code == "name.malformed"


def test_profiles_and_their_schemas_are_frozen() -> None:
    attributes = {"role": ROLES}
    schema = ProfileSchema(attributes)
    attributes["age"] = numeric(0, 1)
    assert schema.attributes == {"role": ROLES}
    values: dict[str, Value] = {"role": "worker"}
    profile = schema.profile(values)
    values["role"] = "engineer"
    assert profile.values == {"role": "worker"}
    for frozen in (schema.attributes, profile.values):
        with pytest.raises(TypeError):
            cast("dict[str, object]", frozen)["role"] = None


def test_timestamps_become_utc() -> None:
    schema = ProfileSchema({"since": AttributeSpec(Kind.TIMESTAMP)})
    second = datetime(2026, 10, 25, 1, 30, tzinfo=ZoneInfo("Europe/London"), fold=1)
    assert schema.profile({"since": second}).values == {"since": datetime(2026, 10, 25, 1, 30, tzinfo=UTC)}


@given(st.integers(-200, 200), st.integers(-200, 200), st.integers(-300, 300))
@settings(deadline=None)
def test_a_value_is_accepted_exactly_within_the_range(one: int, other: int, value: int) -> None:
    low, high = min(one, other), max(one, other)
    schema = ProfileSchema({"n": numeric(low, high)})
    if low <= value <= high:
        assert schema.profile({"n": value}).values == {"n": value}
        return
    with pytest.raises(MalformedError) as error:
        schema.profile({"n": value})
    assert error.value.code == "value.domain"

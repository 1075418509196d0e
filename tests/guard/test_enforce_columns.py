"""Generated code for attributes, against asking `checked_value` about each."""

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MalformedError
from penstock.guard.enforce import shower, stater
from penstock.model import AttributeDefinition, AttributeSpec, Kind, Principal, TypeDefinition, TypeName
from penstock.model.types import EventType
from penstock.model.values import Ranged, Scalar, checked_value

SPECS = {
    **{kind.value: AttributeSpec(kind) for kind in Kind},
    "percent": AttributeSpec(Kind.INTEGER, Ranged(0, 100)),
}
TYPE = EventType.of(
    TypeDefinition(
        TypeName(Principal(bytes(32)), "T"), tuple(AttributeDefinition(n, n, spec) for n, spec in SPECS.items())
    )
)
SCALARS: st.SearchStrategy[Scalar] = st.one_of(
    st.none(),
    st.text(max_size=3),
    st.just("\ud800"),
    st.integers(),
    st.integers(-1, 101),
    st.floats(),
    st.booleans(),
    st.datetimes(timezones=st.just(UTC)),
    st.datetimes(timezones=st.timezones()),
    st.just(datetime(2026, 1, 1)),  # noqa: DTZ001  # without a zone, as a careless client has it
)
VALUES = st.fixed_dictionaries(dict.fromkeys(SPECS, SCALARS))


def naive(values: Mapping[str, Scalar]) -> tuple[dict[str, Scalar], str]:
    """Return the values, and the code of what is wrong with the first that does not fit."""
    try:
        return {name: checked_value(name, spec, values[name]) for name, spec in SPECS.items()}, ""
    except MalformedError as error:
        return {}, error.code


@given(VALUES)
def test_what_a_publisher_states_is_checked(values: Mapping[str, Scalar]) -> None:
    shown = {TYPE.by_name[name].id for name in ("string", "percent")}
    expected, code = naive(values)
    if code:
        for passed in (lambda _attribute: True, lambda attribute: attribute.id in shown):
            with pytest.raises(MalformedError) as raised:
                stater(TYPE.attributes, passed)(values)
            assert raised.value.code == code
        return
    by_id = {TYPE.by_name[name].id: value for name, value in expected.items() if value is not None}
    assert repr(stater(TYPE.attributes)(values)) == repr(by_id)
    some = stater(TYPE.attributes, lambda attribute: attribute.id in shown)(values)
    assert repr(some) == repr({id_: value for id_, value in by_id.items() if id_ in shown})


@given(VALUES)
def test_what_does_not_fit_is_shown_as_null(values: Mapping[str, Scalar]) -> None:
    expected: dict[str, Scalar] = {}
    for name, spec in SPECS.items():
        try:
            expected[name] = checked_value(name, spec, values[name])
        except MalformedError:
            expected[name] = None
    shown: dict[str, Scalar] = dict.fromkeys(SPECS)
    shower(TYPE.attributes)({str(TYPE.by_name[name].id): value for name, value in values.items()}, shown)
    assert repr(shown) == repr(expected)

"""Events as rows, and their values as columns."""

from datetime import UTC, datetime
from types import MappingProxyType

import pytest

from penstock.codec.blocks import columns_of, events_of, lay_out
from penstock.errors import MalformedError
from penstock.model.events import TransitEvent
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Principal
from penstock.model.values import Scalar

OWNER = Principal(b"\1" * 32)
ONE, TWO, THREE = (str(AttributeId(OWNER, "Car", uid)) for uid in "123")
NOW = datetime(2026, 5, 1, tzinfo=UTC)


def event(values: dict[str, Scalar], name: str = "Car", *ancestors: TypeKey) -> TransitEvent:
    # A key of its own: equal to the others, and not the same.
    return TransitEvent(TypeKey(OWNER, name), ancestors, MappingProxyType(values), f"{len(values)}", NOW)


def test_events_are_laid_out_whatever_order_their_attributes_are_in() -> None:
    found, columns = lay_out([event({ONE: 1, TWO: "a"}), event({TWO: "b", ONE: 2}), event({THREE: True})])
    assert found.attributes == (ONE, TWO, THREE)
    assert columns == [[1, 2, None], ["a", "b", None], [None, None, True]]
    assert lay_out([event({ONE: 1, TWO: 2})] * 2)[1] == [[1, 1], [2, 2]]
    assert lay_out([event({}), event({})])[1] == []


@pytest.mark.parametrize("more", [{}, {THREE: 0}])
def test_as_many_attributes_need_not_be_the_same(more: dict[str, Scalar]) -> None:
    found, columns = lay_out([event({ONE: 1, **more}), event({ONE: 2, **more})])
    assert (found.attributes, columns[0]) == ((ONE, *more), [1, 2])
    found, columns = lay_out([event({ONE: 1, **more}), event({TWO: 2, **more})])
    assert dict(zip(found.attributes, columns, strict=True))[TWO] == [None, 2]
    assert columns_of([event({ONE: 1, **more}), event({TWO: 2, **more})], (ONE, *more))[0] == [1, None]


def test_later_events_may_have_more_attributes() -> None:
    found, columns = lay_out([event({ONE: 1, TWO: 2}), event({ONE: 3, TWO: 4, THREE: 5})])
    assert (found.attributes, columns) == ((ONE, TWO, THREE), [[1, 3], [2, 4], [None, 5]])


def test_events_are_of_one_type() -> None:
    parent = TypeKey(OWNER, "Thing")
    for others in ([], [event({}), event({}, "Lorry")], [event({}), event({}, "Car", parent)]):
        with pytest.raises(MalformedError) as caught:
            lay_out(others)
        assert caught.value.code == "block.malformed"


def test_columns_are_those_that_are_asked_for() -> None:
    events = [event({ONE: 1, TWO: 2}), event({ONE: 3, TWO: 4})]
    assert columns_of(events, (ONE, TWO)) == [[1, 3], [2, 4]]
    assert columns_of(events, (TWO, ONE)) == [[2, 4], [1, 3]]
    assert columns_of(events, (TWO, THREE)) == [[2, 4], [None, None]]
    assert columns_of([events[0], event({TWO: 4, ONE: 3})], (ONE, TWO)) == [[1, 3], [2, 4]]


def test_events_have_the_values_of_open_columns() -> None:
    found, columns = lay_out([event({ONE: 1, TWO: "a"}), event({ONE: 2, THREE: True})])
    ids, times = ["x", "y"], [NOW, None]
    made = events_of(found, ids, times, columns, nulls=True)
    assert [dict(one.values) for one in made] == [{ONE: 1, TWO: "a"}, {ONE: 2, THREE: True}]
    assert [(one.id, one.time, one.key) for one in made] == [("x", NOW, found.type), ("y", None, found.type)]
    assert made[0] == TransitEvent(found.type, (), {ONE: 1, TWO: "a"}, "x", NOW)
    made = events_of(found, ids, times, [columns[0], None, None], nulls=False)
    assert [dict(one.values) for one in made] == [{ONE: 1}, {ONE: 2}]
    assert [dict(one.values) for one in events_of(found, ids, times, [None] * 3, nulls=False)] == [{}, {}]

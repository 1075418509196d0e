"""Columns of events: each attribute once, and no two that Spark would take for one."""

from collections.abc import Callable

import pytest
from tests.trust.kit import who

from penstock.errors import MalformedError
from penstock.model import AttributeDefinition, AttributeSpec, EventType, Kind, TypeDefinition, TypeName
from penstock.pipeline.frames import attributes_of, transit_schema, transit_sources, typed_schema


def made(name: str, *attributes: tuple[str, str]) -> EventType:
    definitions = tuple(AttributeDefinition(name, uid, AttributeSpec(Kind.STRING)) for name, uid in attributes)
    return EventType.of(TypeDefinition(TypeName(who(1), name), definitions))


def test_each_attribute_comes_once_whatever_versions_call_it() -> None:
    one, other = made("T", ("a", "0"), ("b", "1")), made("T", ("A", "0"), ("c", "2"))
    assert [a.name for a in attributes_of([one, other, one])] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "types",
    [
        [made("T", ("a", "0"), ("A", "1"))],
        [made("T", ("a", "x"), ("b", "X"))],
        [made("T", ("a", "x")), made("T", ("b", "X"))],
        [made("T", ("a", "0")), made("t", ("b", "0"))],
    ],
)
@pytest.mark.parametrize("schema", [transit_schema, transit_sources])
def test_what_differs_in_case_alone_is_refused(types: list[EventType], schema: Callable[..., object]) -> None:
    with pytest.raises(MalformedError) as caught:
        schema(types)
    assert caught.value.code == "pipeline.case"
    assert caught.value.hint


def test_so_are_names_of_typed_events() -> None:
    with pytest.raises(MalformedError) as caught:
        typed_schema(made("T", ("a", "0"), ("A", "1")))
    assert caught.value.code == "pipeline.case"

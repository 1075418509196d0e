"""Event types: definitions and their four operations, inheritance, and what is refused."""

import copy
from dataclasses import replace
from typing import Any

import pytest

from penstock.errors import LimitError, MalformedError
from penstock.model.limits import TYPE_ATTRIBUTES, TYPE_DEPTH
from penstock.model.names import AttributeId, TypeKey, TypeName
from penstock.model.principals import Principal
from penstock.model.types import AttributeDefinition, EventType, Sealing, TypeDefinition
from penstock.model.values import AttributeSpec, Kind

PITO = Principal(b"\1" * 32)
POLICE = Principal(b"\2" * 32)
STRING, INTEGER, TIMESTAMP = AttributeSpec(Kind.STRING), AttributeSpec(Kind.INTEGER), AttributeSpec(Kind.TIMESTAMP)

# Table 4.3 of the dissertation.
NUMBERPLATE = TypeDefinition(
    TypeName(PITO, "uk.gov.pito.Numberplate", "8516"),
    (
        AttributeDefinition("numberplate", "3265", STRING),
        AttributeDefinition("timestamp", "9058", TIMESTAMP),
        AttributeDefinition("location", "3467", STRING),
    ),
)


def define(
    name: str, *attributes: str, extends: TypeDefinition | None = None, owner: Principal = PITO
) -> TypeDefinition:
    """Return a type whose attributes are strings with their place as UID."""
    own = tuple(AttributeDefinition(attribute, str(uid), STRING) for uid, attribute in enumerate(attributes))
    return TypeDefinition(TypeName(owner, name), own, extends.name if extends else None)


def test_table_4_3() -> None:
    plate = EventType.of(NUMBERPLATE)
    assert str(plate.name) == f"{PITO}/uk.gov.pito.Numberplate@8516"
    assert plate.key == TypeKey(PITO, "uk.gov.pito.Numberplate")
    assert plate.ancestors == ()
    assert list(plate.by_name) == ["numberplate", "timestamp", "location"]
    assert plate.attribute("location").id == AttributeId(PITO, "uk.gov.pito.Numberplate", "3467")
    assert plate.by_id[AttributeId(PITO, "uk.gov.pito.Numberplate", "9058")].name == "timestamp"
    assert plate.schema == {"numberplate": STRING, "timestamp": TIMESTAMP, "location": STRING}


def test_a_type_may_have_no_attributes() -> None:
    assert EventType.of(define("Tick")).attributes == ()


@pytest.mark.parametrize("view", ["by_name", "by_id", "schema"])
def test_a_type_cannot_be_changed(view: str) -> None:
    plate = EventType.of(NUMBERPLATE)
    with pytest.raises(TypeError):
        getattr(plate, view)["colour"] = None
    with pytest.raises(AttributeError):
        setattr(plate, view, {})


def test_types_are_equal_by_what_they_say() -> None:
    assert EventType.of(NUMBERPLATE) == EventType.of(NUMBERPLATE)
    assert hash(EventType.of(NUMBERPLATE)) == hash(EventType.of(NUMBERPLATE))
    assert EventType.of(NUMBERPLATE) != EventType.of(NUMBERPLATE.remove("location", version="9"))


def test_names_and_uids_occur_once() -> None:
    with pytest.raises(MalformedError) as error:
        define("Numberplate", "a", "b", "a")
    assert error.value.code == "type.duplicate-attribute"
    with pytest.raises(MalformedError) as error:
        TypeDefinition(
            TypeName(PITO, "Numberplate"),
            (AttributeDefinition("a", "1", STRING), AttributeDefinition("b", "1", STRING)),
        )
    assert error.value.code == "type.duplicate-attribute"


@pytest.mark.parametrize(("name", "uid"), [("", "1"), ("a b", "1"), ("a\n", "1"), ("a", ""), ("a", "1\n"), ("a", "_")])
def test_an_attribute_has_a_name_and_a_uid(name: str, uid: str) -> None:
    with pytest.raises(MalformedError) as error:
        AttributeDefinition(name, uid, STRING)
    assert error.value.code == "name.malformed"


def test_the_four_operations() -> None:
    added = NUMBERPLATE.add("speed", "1111", INTEGER, version="1")
    assert added.attribute("speed") == AttributeDefinition("speed", "1111", INTEGER)
    removed = added.remove("speed", version="2")
    assert removed.attributes == NUMBERPLATE.attributes
    renamed = removed.rename("numberplate", "licence", version="3")
    assert renamed.attribute("licence") == AttributeDefinition("licence", "3265", STRING)
    retyped = renamed.retype("timestamp", "2222", INTEGER, version="4")
    assert retyped.attribute("timestamp") == AttributeDefinition("timestamp", "2222", INTEGER)

    versions = [NUMBERPLATE, added, removed, renamed, retyped]
    assert [version.name.version for version in versions] == ["8516", "1", "2", "3", "4"]
    assert [version.previous for version in versions] == [None, "8516", "1", "2", "3"]
    assert {version.name.key for version in versions} == {NUMBERPLATE.name.key}
    assert [a.name for a in retyped.attributes] == ["licence", "timestamp", "location"], "places are kept"


def test_a_retyped_attribute_is_a_new_one() -> None:
    with pytest.raises(MalformedError) as error:
        NUMBERPLATE.retype("timestamp", "9058", INTEGER, version="1")
    assert error.value.code == "type.uid-reused"
    with pytest.raises(MalformedError) as error:
        NUMBERPLATE.retype("timestamp", "3467", INTEGER, version="1")
    assert error.value.code == "type.duplicate-attribute", "the UID of another attribute"
    before = EventType.of(NUMBERPLATE).attribute("timestamp").id
    after = EventType.of(NUMBERPLATE.retype("timestamp", "1", INTEGER, version="1")).attribute("timestamp").id
    assert before != after


def test_operations_that_collide() -> None:
    with pytest.raises(MalformedError) as error:
        NUMBERPLATE.add("location", "1", STRING, version="1")
    assert error.value.code == "type.duplicate-attribute"
    with pytest.raises(MalformedError) as error:
        NUMBERPLATE.add("speed", "3467", STRING, version="1")
    assert error.value.code == "type.duplicate-attribute"
    with pytest.raises(MalformedError) as error:
        NUMBERPLATE.rename("location", "timestamp", version="1")
    assert error.value.code == "type.duplicate-attribute"


def test_operations_on_unknown_attributes() -> None:
    with pytest.raises(MalformedError) as error:
        NUMBERPLATE.remove("colour", version="1")
    assert error.value.code == "type.unknown-attribute"
    assert "numberplate" in error.value.hint
    with pytest.raises(MalformedError) as error:
        NUMBERPLATE.rename("colour", "color", version="1")
    assert error.value.code == "type.unknown-attribute"
    with pytest.raises(MalformedError) as error:
        NUMBERPLATE.retype("colour", "1", STRING, version="1")
    assert error.value.code == "type.unknown-attribute"
    with pytest.raises(MalformedError) as error:
        EventType.of(NUMBERPLATE).attribute("colour")
    assert error.value.code == "type.unknown-attribute"


def test_a_new_version_needs_a_new_number() -> None:
    with pytest.raises(MalformedError) as error:
        NUMBERPLATE.remove("location", version="8516")
    assert error.value.code == "type.cycle"
    with pytest.raises(MalformedError) as error:
        NUMBERPLATE.remove("location", version="")
    assert error.value.code == "name.malformed"
    with pytest.raises(MalformedError) as error:
        TypeDefinition(NUMBERPLATE.name, (), previous="8515\n")
    assert error.value.code == "name.malformed"


def test_sub_types_inherit_ids() -> None:
    base = define("Traffic", "place", "time")
    middle = define("Traffic.Vehicle", "plate", extends=base)
    leaf = define("Lorry", "weight", extends=middle, owner=POLICE)
    lorry = EventType.of(leaf, EventType.of(middle, EventType.of(base)))
    assert lorry.ancestors == (middle.name.key, base.name.key)
    assert [(a.name, a.id) for a in lorry.attributes] == [
        ("place", AttributeId(PITO, "Traffic", "0")),
        ("time", AttributeId(PITO, "Traffic", "1")),
        ("plate", AttributeId(PITO, "Traffic.Vehicle", "0")),
        ("weight", AttributeId(POLICE, "Lorry", "0")),
    ]


def test_a_sub_type_does_not_hide_what_it_inherits() -> None:
    base = define("Traffic", "place")
    with pytest.raises(MalformedError) as error:
        EventType.of(define("Vehicle", "place", extends=base), EventType.of(base))
    assert error.value.code == "type.duplicate-attribute"


def test_the_parent_is_named_in_full() -> None:
    base = define("Traffic", "place")
    child = define("Vehicle", extends=base)
    newer = base.add("time", "9", STRING, version="1")
    forged = define("Traffic", "place", owner=POLICE)
    for parent in (None, EventType.of(newer), EventType.of(forged), EventType.of(NUMBERPLATE)):
        with pytest.raises(MalformedError) as error:
            EventType.of(child, parent)
        assert error.value.code == "type.parent"
    with pytest.raises(MalformedError) as error:
        EventType.of(base, EventType.of(NUMBERPLATE))
    assert error.value.code == "type.parent", "it extends nothing"


def test_no_type_is_its_own_ancestor() -> None:
    with pytest.raises(MalformedError) as error:
        TypeDefinition(TypeName(PITO, "A", "1"), (), extends=TypeName(PITO, "A", "0"))
    assert error.value.code == "type.cycle"
    # Another version of A extends B, which extends A.
    first = define("A")
    second = define("B", extends=first)
    third = TypeDefinition(TypeName(PITO, "A", "1"), (), extends=second.name)
    with pytest.raises(MalformedError) as error:
        EventType.of(third, EventType.of(second, EventType.of(first)))
    assert error.value.code == "type.cycle"


def test_the_depth_of_types_is_bounded() -> None:
    current, resolved = define("T0"), EventType.of(define("T0"))
    for level in range(1, TYPE_DEPTH + 1):
        current = define(f"T{level}", extends=current)
        resolved = EventType.of(current, resolved)
    assert len(resolved.ancestors) == TYPE_DEPTH
    with pytest.raises(LimitError) as error:
        EventType.of(define("Deeper", extends=current), resolved)
    assert error.value.code == "type.limit"


def test_the_number_of_attributes_is_bounded() -> None:
    names = [f"a{number}" for number in range(TYPE_ATTRIBUTES)]
    full = define("Full", *names)
    assert len(EventType.of(full).attributes) == TYPE_ATTRIBUTES
    with pytest.raises(LimitError) as error:
        define("Fuller", *names, "b")
    assert error.value.code == "type.limit"
    with pytest.raises(LimitError) as error:
        EventType.of(define("Child", "b", extends=full), EventType.of(full))
    assert error.value.code == "type.limit", "inherited attributes count"


def test_a_sub_type_is_sealed_as_its_parent_is() -> None:
    above = replace(define("Above", "a"), sealing=Sealing.ATTRIBUTE)
    below = define("Below", "b", extends=above)
    parent = EventType.of(above)
    assert parent.sealing is Sealing.ATTRIBUTE
    assert EventType.of(replace(below, sealing=Sealing.ATTRIBUTE), parent).sealing is Sealing.ATTRIBUTE
    for other in (Sealing.NONE, Sealing.EVENT):
        with pytest.raises(MalformedError) as caught:
            EventType.of(replace(below, sealing=other), parent)
        assert caught.value.code == "type.sealing"
    assert copy.copy(parent) == parent


@pytest.mark.parametrize("flag", ["blinded", "signed"])
def test_what_is_blinded_or_signed_is_sealed_and_so_is_what_extends_it(flag: str) -> None:
    chosen: Any = {flag: True}
    with pytest.raises(MalformedError) as caught:
        replace(define("Above", "a"), **chosen)
    assert caught.value.code == f"type.{flag}"
    above = replace(define("Above", "a"), sealing=Sealing.EVENT, **chosen)
    parent = EventType.of(above)
    assert getattr(parent, flag)
    assert copy.copy(parent) == parent
    below = replace(define("Below", "b", extends=above), sealing=Sealing.EVENT)
    assert getattr(EventType.of(replace(below, **chosen), parent), flag)
    with pytest.raises(MalformedError) as caught:
        EventType.of(below, parent)
    assert caught.value.code == "type.sealing"

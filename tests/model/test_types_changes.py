"""Changes: what a verifier finds between two versions is what the manager did, whatever the manager says."""

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.errors import MalformedError
from penstock.model.names import TypeName
from penstock.model.principals import Principal
from penstock.model.types import AttributeChange, AttributeDefinition, Operation, TypeDefinition, changes
from penstock.model.values import AttributeSpec, Enumerated, Kind, Ranged

PITO = Principal(b"\1" * 32)
STRING, INTEGER = AttributeSpec(Kind.STRING), AttributeSpec(Kind.INTEGER)
SPECS = [*map(AttributeSpec, Kind), AttributeSpec(Kind.INTEGER, Ranged(0, 9))]
SPECS.append(AttributeSpec(Kind.STRING, Enumerated(frozenset({"a", "b"}))))

PLATE = TypeDefinition(
    TypeName(PITO, "uk.gov.pito.Numberplate", "4799"),
    (AttributeDefinition("license-plate", "9525", STRING), AttributeDefinition("location", "3467", STRING)),
)


def one_step(draw: st.DrawFn, current: TypeDefinition, number: int) -> tuple[TypeDefinition, AttributeChange]:
    """Apply one random operation and return the next version with the change that it is."""
    version, uid = f"v{number}", f"u{number}"
    fresh = draw(st.sampled_from(["a", "b", "c", "d", "e", "f"]).filter(lambda n: n not in names_of(current)))
    operation = draw(st.sampled_from(Operation)) if current.attributes else Operation.ADD
    if operation is Operation.ADD:
        return current.add(fresh, uid, draw(st.sampled_from(SPECS)), version=version), AttributeChange(
            operation, fresh, uid
        )
    old = draw(st.sampled_from(current.attributes))
    if operation is Operation.REMOVE:
        return current.remove(old.name, version=version), AttributeChange(operation, old.name, old.uid)
    if operation is Operation.RENAME:
        return current.rename(old.name, fresh, version=version), AttributeChange(operation, old.name, old.uid, fresh)
    spec = draw(st.sampled_from(SPECS))
    return current.retype(old.name, uid, spec, version=version), AttributeChange(operation, old.name, old.uid)


def names_of(definition: TypeDefinition) -> set[str]:
    return {attribute.name for attribute in definition.attributes}


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[TypeDefinition, AttributeChange | None]]:
    history: list[tuple[TypeDefinition, AttributeChange | None]] = [(TypeDefinition(TypeName(PITO, "T"), ()), None)]
    for number in range(draw(st.integers(1, 12))):
        current = history[-1][0]
        if len(current.attributes) > 4:
            gone = current.attributes[0]
            following = current.remove(gone.name, version=f"v{number}")
            history.append((following, AttributeChange(Operation.REMOVE, gone.name, gone.uid)))
        else:
            history.append(one_step(draw, current, number))
    return history


@given(histories())
@settings(deadline=None, max_examples=examples(200))
def test_each_step_yields_exactly_its_change(history: list[tuple[TypeDefinition, AttributeChange | None]]) -> None:
    for (before, _), (after, change) in pairwise(history):
        assert changes(before, after) == (change,)


def apply(
    found: tuple[AttributeChange, ...], before: TypeDefinition, after: TypeDefinition
) -> set[AttributeDefinition]:
    """Apply changes to the attributes of `before`; what an addition or a retyping brings in is looked up in `after`."""
    attributes = {attribute.uid: attribute for attribute in before.attributes}
    for change in found:
        if change.operation is Operation.RENAME:
            assert change.new_name is not None
            attributes[change.uid] = dataclasses.replace(attributes[change.uid], name=change.new_name)
        elif change.operation is Operation.ADD:
            attributes[change.uid] = after.attribute(change.name)
        else:
            assert attributes.pop(change.uid).name == change.name
        if change.operation is Operation.RETYPE:
            new = after.attribute(change.name)
            attributes[new.uid] = new
    return set(attributes.values())


@given(histories())
@settings(deadline=None, max_examples=examples(200))
def test_many_steps_at_once_lead_to_the_same_attributes(
    history: list[tuple[TypeDefinition, AttributeChange | None]],
) -> None:
    first, last = history[0][0], history[-1][0]
    middle = history[len(history) // 2][0]
    for before in (first, middle):
        if before is last:
            continue
        jump = dataclasses.replace(last, previous=before.name.version)
        found = changes(before, jump)
        assert apply(found, before, jump) == set(last.attributes)
        assert len({(change.operation, change.uid) for change in found}) == len(found)
        assert list(found) == sorted(found, key=lambda change: (change.operation, change.name, change.uid))


def test_no_change() -> None:
    same = dataclasses.replace(PLATE, name=TypeName(PITO, PLATE.name.name, "1"), previous="4799")
    assert changes(PLATE, same) == ()
    turned = dataclasses.replace(same, attributes=PLATE.attributes[::-1])
    assert changes(PLATE, turned) == (), "attributes are a set"


def test_figure_4_3_is_a_renaming() -> None:
    renamed = PLATE.rename("license-plate", "numberplate", version="8516")
    assert changes(PLATE, renamed) == (AttributeChange(Operation.RENAME, "license-plate", "9525", "numberplate"),)
    # The old name comes back for another attribute: an addition, not a renaming.
    again = renamed.add("license-plate", "3879", STRING, version="8517")
    assert changes(renamed, again) == (AttributeChange(Operation.ADD, "license-plate", "3879"),)


def test_a_renaming_and_a_new_attribute_under_the_old_name() -> None:
    jump = PLATE.rename("license-plate", "numberplate", version="1").add("license-plate", "3879", STRING, version="2")
    assert changes(PLATE, dataclasses.replace(jump, previous="4799")) == (
        AttributeChange(Operation.ADD, "license-plate", "3879"),
        AttributeChange(Operation.RENAME, "license-plate", "9525", "numberplate"),
    )


def test_two_attributes_that_swap_names() -> None:
    swapped = (
        PLATE.rename("license-plate", "x", version="1")
        .rename("location", "license-plate", version="2")
        .rename("x", "location", version="3")
    )
    assert changes(PLATE, dataclasses.replace(swapped, previous="4799")) == (
        AttributeChange(Operation.RENAME, "license-plate", "9525", "location"),
        AttributeChange(Operation.RENAME, "location", "3467", "license-plate"),
    )


def test_a_retyping_is_a_removal_and_an_addition_under_one_name() -> None:
    retyped = PLATE.retype("location", "1", INTEGER, version="2")
    by_hand = PLATE.remove("location", version="1").add("location", "1", INTEGER, version="2")
    by_hand = dataclasses.replace(by_hand, previous="4799")
    assert (
        changes(PLATE, retyped) == changes(PLATE, by_hand) == (AttributeChange(Operation.RETYPE, "location", "3467"),)
    )


@pytest.mark.parametrize("spec", [INTEGER, AttributeSpec(Kind.STRING, Enumerated(frozenset({"London"})))])
def test_a_uid_does_not_change_its_kind_or_domain(spec: AttributeSpec) -> None:
    reused = dataclasses.replace(
        PLATE,
        name=TypeName(PITO, PLATE.name.name, "1"),
        attributes=(PLATE.attributes[0], AttributeDefinition("location", "3467", spec)),
        previous="4799",
    )
    with pytest.raises(MalformedError) as error:
        changes(PLATE, reused)
    assert error.value.code == "type.uid-reused"
    assert error.value.fields == {"uid": "3467"}


def test_only_the_named_predecessor_is_compared() -> None:
    following = PLATE.remove("location", version="1")
    others = [
        (following, PLATE),  # backwards
        (PLATE, PLATE),
        (PLATE, dataclasses.replace(following, previous=None)),
        (PLATE, following.add("a", "1", STRING, version="2")),  # a version was left out
        (PLATE, dataclasses.replace(following, name=TypeName(PITO, "Other", "1"))),
        (PLATE, dataclasses.replace(following, name=TypeName(Principal(b"\2" * 32), PLATE.name.name, "1"))),
    ]
    for before, after in others:
        with pytest.raises(MalformedError) as error:
            changes(before, after)
        assert error.value.code == "type.not-successor"


def test_the_parent_of_a_type_is_not_a_matter_of_management() -> None:
    parents = [None, TypeName(PITO, "Traffic", "0"), TypeName(PITO, "Traffic", "1"), TypeName(PITO, "Other", "0")]
    for one in parents:
        before = dataclasses.replace(PLATE, extends=one)
        for other in parents:
            after = dataclasses.replace(before.remove("location", version="1"), extends=other)
            if one == other:
                assert [change.operation for change in changes(before, after)] == [Operation.REMOVE]
                continue
            with pytest.raises(MalformedError) as error:
                changes(before, after)
            assert error.value.code == "type.extends-changed"

"""Histories and parents of event types: what is followed, how far, and who has to sign a parent."""

import pytest
from tests.trust.kit import CURRENT, DAY, NOW, grant, refused, who
from tests.trust.types_kit import CLERK, MANAGER, NETWORK, OTHER, PITO, PLATE, TEXT, Registry, define, may

from penstock.model.names import TypeName
from penstock.model.types import TypeDefinition
from penstock.trust.capabilities import Right, network_tag
from penstock.trust.event_types import UnverifiedType, verify_type
from penstock.trust.limits import TrustLimits
from penstock.trust.validity import ALWAYS, Validity


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_a_history_of_clerks(registry: Registry) -> None:
    current, signed = PLATE, registry.sign(PLATE)
    until = Validity.between(NOW - DAY, NOW + 2 * DAY)
    for version in range(1, 5):
        current = current.add(f"extra{version}", f"x{version}", TEXT, version=str(version))
        validity = until if version == 2 else ALWAYS
        signed = registry.sign(current, CLERK + version, may(CLERK + version, Right.MANAGE_ADD, validity=validity))
    verified = registry.verify(signed)
    assert verified.validity == until
    assert len(verified.because) == 4
    with refused("type.over-reach"):
        registry.verify(signed, NOW + 3 * DAY)


def test_histories_are_bounded(registry: Registry) -> None:
    current, signed = PLATE, registry.sign(PLATE)
    for version in range(1, 8):
        current = current.rename(current.attributes[0].name, f"n{version}", version=str(version))
        signed = registry.sign(current, CLERK, may(CLERK, Right.MANAGE_RENAME))
    verify_type(signed, NOW, types=registry.get, limits=TrustLimits(type_history=7))
    with refused("type.limit"):
        verify_type(signed, NOW, types=registry.get, limits=TrustLimits(type_history=6))


def test_histories_in_a_ring_are_refused(registry: Registry) -> None:
    first = TypeDefinition(TypeName(who(PITO), PLATE.name.name, "1"), PLATE.attributes, previous="2")
    second = TypeDefinition(TypeName(who(PITO), PLATE.name.name, "2"), PLATE.attributes, previous="1")
    registry.sign(second, CLERK, may(CLERK, Right.MANAGE_ADD))
    with refused("type.cycle"):
        registry.verify(registry.sign(first, CLERK, may(CLERK, Right.MANAGE_ADD)))


def test_histories_of_parents_with_histories_cost_little(registry: Registry) -> None:
    """Five generations of eight versions each: followed one by one that would be 8 ** 5 definitions."""
    parent: TypeName | None = None
    asked = []
    for generation in range(5):
        current = TypeDefinition(TypeName(who(PITO), f"t.T{generation}"), (), parent)
        registry.sign(current)
        for version in range(1, 8):
            current = current.add(f"a{generation}-{version}", str(version), TEXT, version=str(version))
            registry.sign(current, CLERK, may(CLERK, Right.MANAGE_ADD))
        parent = current.name

    def lookup(wanted: TypeName) -> UnverifiedType | None:
        asked.append(wanted)
        return registry.get(wanted)

    assert parent is not None
    verified = verify_type(registry[parent], NOW, types=lookup)
    assert len(verified.event_type.attributes) == 5 * 7
    assert len(asked) < 200


SPEEDING = "uk.gov.pito.Speeding"


def test_a_type_has_the_attributes_of_its_parent(registry: Registry) -> None:
    registry.sign(PLATE)
    verified = registry.verify(registry.sign(define(called=SPEEDING, extends=PLATE.name)))
    assert [attribute.name for attribute in verified.event_type.attributes] == [
        "numberplate",
        "lane",
        "colour",
        "wheels",
    ]
    assert verified.event_type.ancestors == (PLATE.name.key,)
    assert verified.event_type.attributes[0].id.type_name == PLATE.name.name


def test_the_parent_must_be_there_and_be_true(registry: Registry) -> None:
    child = registry.sign(define(called=SPEEDING, extends=PLATE.name))
    with refused("type.unknown-parent"):
        registry.verify(child)
    registry.sign(PLATE, OTHER)
    with refused("type.forged"):
        registry.verify(child)
    registry[PLATE.name] = registry.sign(define(called="uk.gov.pito.Other"))
    with refused("type.forged"):
        registry.verify(child)


def test_extending_a_foreign_type_needs_its_owners_word(registry: Registry) -> None:
    registry.sign(PLATE)
    child = define(OTHER, "a.Speeding", PLATE.name)
    for certificates in (
        [],
        [may(OTHER, Right.SUBSCRIBE, Right.PUBLISH)],
        [may(OTHER, Right.MANAGE_RENAME)],
        [may(OTHER, Right.MANAGE_ADD, called="uk.gov.pito.Other")],
        [may(OTHER, Right.MANAGE_ADD, owner=OTHER)],
    ):
        with refused("type.extends-foreign"):
            registry.verify(registry.sign(child, OTHER, *certificates))
    right = may(OTHER, Right.MANAGE_ADD, validity=CURRENT)
    verified = registry.verify(registry.sign(child, OTHER, right))
    assert verified.because == (right.id,)
    assert verified.validity == CURRENT
    registry.verify(registry.sign(child, OTHER, may(OTHER, Right.MANAGE)))


def test_a_manager_of_one_type_cannot_hang_it_under_another(registry: Registry) -> None:
    """Whoever reads the parent's events reads the child's: that is for those who manage the parent."""
    registry.sign(PLATE)
    child = define(called=SPEEDING, extends=PLATE.name)
    own = may(MANAGER, Right.MANAGE, called=SPEEDING)
    with refused("type.extends-foreign"):
        registry.verify(registry.sign(child, MANAGER, own))
    registry.verify(registry.sign(child, MANAGER, own, may(MANAGER, Right.MANAGE_ADD, called=PLATE.name.name)))
    registry.verify(registry.sign(child, MANAGER, may(MANAGER, Right.MANAGE, called="uk.gov.pito.*")))


def test_keeping_a_parent_needs_no_new_right(registry: Registry) -> None:
    registry.sign(PLATE)
    child = define(called=SPEEDING, extends=PLATE.name)
    registry.sign(child)
    changed = child.add("speed", "9", TEXT, version="1")
    for rights in ([Right.MANAGE], [Right.MANAGE_ADD]):
        registry.verify(registry.sign(changed, MANAGER, may(MANAGER, *rights, called=SPEEDING)))
    # Without the previous version nobody can tell, and a new parent is a new matter.
    del registry[child.name]
    with refused("type.extends-foreign"):
        registry.verify(registry.sign(changed, MANAGER, may(MANAGER, Right.MANAGE, called=SPEEDING)))
    registry.sign(define(called="uk.gov.pito.Base"))
    registry.sign(define(called=SPEEDING, extends=TypeName(who(PITO), "uk.gov.pito.Base")))
    with refused("type.extends-changed"):
        registry.verify(registry.sign(changed, MANAGER, may(MANAGER, Right.MANAGE, called=SPEEDING)))


def test_a_foreign_parent_is_kept_by_a_manager(registry: Registry) -> None:
    registry.sign(PLATE)
    child = define(OTHER, "a.Speeding", PLATE.name)
    registry.sign(child, OTHER, may(OTHER, Right.MANAGE_ADD, validity=CURRENT))
    signed = registry.sign(child.remove("wheels", version="1"), CLERK, may(CLERK, Right.MANAGE_REMOVE, owner=OTHER))
    assert registry.verify(signed).validity == CURRENT
    with refused("type.extends-foreign"):
        registry.verify(signed, NOW + 40 * DAY)


def test_parents_in_a_ring_are_refused(registry: Registry) -> None:
    one, other = TypeName(who(PITO), "a.One"), TypeName(who(PITO), "a.Other")
    first = registry.sign(TypeDefinition(one, (), other))
    registry.sign(TypeDefinition(other, (), one))
    with refused("type.cycle"):
        registry.verify(first)
    # Round through another version of itself.
    newer = TypeName(who(PITO), "a.One", "2")
    registry.sign(TypeDefinition(other, (), newer))
    registry.sign(TypeDefinition(newer, ()))
    with refused("type.cycle"):
        registry.verify(first)


def test_trees_are_bounded(registry: Registry) -> None:
    signed = registry.sign(TypeDefinition(TypeName(who(PITO), "t.T"), ()))
    for depth in range(35):
        signed = registry.sign(TypeDefinition(TypeName(who(PITO), f"t.T{depth}"), (), signed.definition.name))
    with refused("type.limit"):
        registry.verify(signed)


def test_attributes_of_parents_are_not_taken_again(registry: Registry) -> None:
    registry.sign(PLATE)
    clash = TypeDefinition(TypeName(who(PITO), SPEEDING), PLATE.attributes[:1], PLATE.name)
    with refused("type.duplicate-attribute"):
        registry.verify(registry.sign(clash))


def test_a_parent_is_installed_too(registry: Registry) -> None:
    install = network_tag(who(PITO), NETWORK.name, [Right.INSTALL])
    parent = define(OTHER, "a.Base")
    registry.sign(parent, OTHER)
    child = registry.sign(define(OTHER, "a.Child", parent.name), OTHER, grant(PITO, OTHER, install))
    with refused("type.not-installable"):
        registry.verify(child, network=NETWORK)
    registry.sign(parent, OTHER, grant(PITO, OTHER, install))
    registry.verify(child, network=NETWORK)


def test_a_type_ends_with_its_parent(registry: Registry) -> None:
    until = Validity.between(NOW - DAY, NOW + DAY)
    registry.sign(PLATE, MANAGER, may(MANAGER, Right.MANAGE, validity=until))
    child = registry.sign(define(called=SPEEDING, extends=PLATE.name))
    assert registry.verify(child).validity == until
    with refused("type.forged"):
        registry.verify(child, NOW + 2 * DAY)

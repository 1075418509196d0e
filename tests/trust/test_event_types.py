"""Secure event types: who may define, change and install them, and how long that holds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.trust.kit import CURRENT, DAY, FUTURE, NOW, PAST, grant, key, name, naming, passing, refused, who
from tests.trust.types_kit import CLERK, MANAGER, NETWORK, NUMBER, OTHER, PITO, PLATE, TEXT, Registry, define, may

from penstock.codec.sexp import SExp, canonical
from penstock.model.names import TypeName
from penstock.model.principals import Principal
from penstock.model.types import AttributeDefinition, Sealing, TypeDefinition
from penstock.trust.capabilities import Right, event_tag, network_tag
from penstock.trust.certificates import Certificate, Threshold
from penstock.trust.event_types import read_type, read_type_parts, sign_type, verify_type
from penstock.trust.validity import ALWAYS, OnlineTest, Validity


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_the_owner_defines(registry: Registry) -> None:
    verified = registry.verify(registry.sign(PLATE))
    assert verified.definition == PLATE
    assert verified.signer == who(PITO)
    assert [attribute.name for attribute in verified.event_type.attributes] == ["numberplate", "lane"]
    assert (verified.validity, verified.because) == (ALWAYS, ())
    assert verified.id.startswith("type:")


def test_names_cannot_be_forged(registry: Registry) -> None:
    """Section 4.2: the owner in the name is who must have signed, whatever the signature says of itself."""
    with refused("type.forged"):
        registry.verify(registry.sign(PLATE, OTHER))
    with refused("type.forged"):
        registry.verify(registry.sign(PLATE, OTHER, grant(OTHER, OTHER), passing(OTHER, PITO)))
    signed = registry.sign(PLATE)
    with refused("key.bad-signature"):
        registry.verify(read_type_parts(signed.body, key(OTHER).public, signed.signature))
    other = define(called="uk.gov.pito.Other")
    with refused("key.bad-signature"):
        registry.verify(read_type_parts(registry.sign(other).body, signed.key, signed.signature))
    with refused("key.bad-signature"):
        registry.verify(read_type_parts(signed.body, signed.key, b""))


def test_the_kind_of_owner_is_the_true_one(registry: Registry) -> None:
    """Principals are compared by digest alone, but ids are texts: one owner must not have two."""
    as_quorum = Principal(who(PITO).digest, "threshold")
    with refused("type.forged"):
        registry.verify(registry.sign(define(as_quorum)))
    with refused("type.forged"):
        registry.verify(registry.sign(define(as_quorum), MANAGER, grant(PITO, MANAGER)))
    quorum = Threshold(1, (who(PITO), who(OTHER)))
    as_key = Principal(quorum.principal.digest)
    with refused("type.forged"):
        registry.verify(registry.sign(define(as_key), PITO, quorums=(quorum,)))


def test_a_manager_defines_and_changes(registry: Registry) -> None:
    right = may(MANAGER, Right.MANAGE)
    verified = registry.verify(registry.sign(PLATE, MANAGER, right))
    assert verified.signer == who(MANAGER)
    assert verified.because == (right.id,)
    # A manager of the whole type needs no previous version.
    registry.clear()
    registry.verify(registry.sign(PLATE.remove("lane", version="1"), MANAGER, right))


def test_a_manager_with_a_chain_and_a_group(registry: Registry) -> None:
    tag = event_tag(who(PITO), "uk.gov.pito.*", None, [Right.MANAGE])
    chain = [passing(PITO, OTHER, tag, CURRENT), grant(OTHER, name(OTHER, "team")), naming(OTHER, "team", MANAGER)]
    verified = registry.verify(registry.sign(PLATE, MANAGER, *chain))
    assert set(verified.because) == {certificate.id for certificate in chain}
    assert verified.validity == CURRENT
    for missing in chain:
        with refused("type.forged"):
            registry.verify(registry.sign(PLATE, MANAGER, *(c for c in chain if c is not missing)))


@pytest.mark.parametrize(
    "certificate",
    [
        may(MANAGER, Right.PUBLISH, Right.SUBSCRIBE),
        may(MANAGER, Right.MANAGE, called="uk.gov.pito.Other"),
        may(CLERK, Right.MANAGE),
        may(MANAGER, Right.MANAGE, owner=OTHER),
        may(MANAGER, Right.MANAGE_ADD, Right.MANAGE_REMOVE, Right.MANAGE_RENAME, Right.MANAGE_RETYPE),
        may(MANAGER, Right.MANAGE, validity=PAST),
        may(MANAGER, Right.MANAGE, validity=FUTURE),
        may(MANAGER, Right.MANAGE, validity=Validity(online=(OnlineTest("crl", (b"online", b"crl")),))),
        grant(PITO, MANAGER, event_tag(who(PITO), None, None, [Right.MANAGE], attributes=[])),
        grant(PITO, MANAGER, event_tag(who(PITO), None, None, [Right.MANAGE], when=["hour > 9"])),
    ],
    ids=[
        "right",
        "type",
        "subject",
        "owner",
        "operations",
        "expired",
        "future",
        "online",
        "no attributes",
        "condition",
    ],
)
def test_who_may_not_define(registry: Registry, certificate: Certificate) -> None:
    with refused("type.forged"):
        registry.verify(registry.sign(PLATE, MANAGER, certificate))


def test_an_online_test_is_honoured(registry: Registry) -> None:
    right = may(MANAGER, Right.MANAGE, validity=Validity(online=(OnlineTest("crl", (b"online", b"crl")),)))
    signed = registry.sign(PLATE, MANAGER, right)
    hour = Validity.between(NOW, NOW + DAY)
    assert verify_type(signed, NOW, online=lambda *_: hour).validity == hour


def test_a_type_lasts_as_long_as_what_it_rests_on(registry: Registry) -> None:
    signed = registry.sign(PLATE, MANAGER, may(MANAGER, Right.MANAGE, validity=CURRENT))
    assert registry.verify(signed).validity == CURRENT
    registry.verify(signed, NOW + 30 * DAY)
    for moment in (NOW + 31 * DAY, NOW - 31 * DAY):
        with refused("type.forged"):
            registry.verify(signed, moment)


OPERATIONS: dict[Right, Callable[[TypeDefinition], TypeDefinition]] = {
    Right.MANAGE_ADD: lambda old: old.add("speed", "9", NUMBER, version="1"),
    Right.MANAGE_REMOVE: lambda old: old.remove("lane", version="1"),
    Right.MANAGE_RENAME: lambda old: old.rename("lane", "track", version="1"),
    Right.MANAGE_RETYPE: lambda old: old.retype("lane", "9", TEXT, version="1"),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("right", OPERATIONS)
def test_single_operations(registry: Registry, operation: Right, right: Right) -> None:
    registry.sign(PLATE)
    signed = registry.sign(OPERATIONS[operation](PLATE), CLERK, may(CLERK, right))
    if operation is right:
        assert registry.verify(signed).signer == who(CLERK)
    else:
        with refused("type.over-reach"):
            registry.verify(signed)


def test_each_operation_of_several_is_needed(registry: Registry) -> None:
    registry.sign(PLATE)
    both = PLATE.add("speed", "9", NUMBER, version="x").remove("lane", version="1")
    changed = TypeDefinition(both.name, both.attributes, previous="0")
    for rights in ([Right.MANAGE_ADD], [Right.MANAGE_REMOVE], [Right.MANAGE_RETYPE]):
        with refused("type.over-reach"):
            registry.verify(registry.sign(changed, CLERK, may(CLERK, *rights)))
    add, remove = may(CLERK, Right.MANAGE_ADD, validity=CURRENT), may(CLERK, Right.MANAGE_REMOVE)
    verified = registry.verify(registry.sign(changed, CLERK, add, remove))
    assert set(verified.because) == {add.id, remove.id}
    assert verified.validity == CURRENT


def test_a_type_is_changed_by_removing_and_adding(registry: Registry) -> None:
    """Section 4.3: to change an attribute's type is to remove one and to add another."""
    registry.sign(PLATE)
    changed = OPERATIONS[Right.MANAGE_RETYPE](PLATE)
    registry.verify(registry.sign(changed, CLERK, may(CLERK, Right.MANAGE_ADD, Right.MANAGE_REMOVE)))
    with refused("type.over-reach"):
        registry.verify(registry.sign(changed, CLERK, may(CLERK, Right.MANAGE_RENAME)))


def test_a_uid_is_never_given_another_meaning(registry: Registry) -> None:
    registry.sign(PLATE)
    attributes = (PLATE.attributes[0], AttributeDefinition("lane", "1", TEXT))
    changed = TypeDefinition(TypeName(who(PITO), PLATE.name.name, "1"), attributes, previous="0")
    with refused("type.uid-reused"):
        registry.verify(registry.sign(changed, CLERK, may(CLERK, *OPERATIONS)))


def test_an_unchanged_version_needs_some_right(registry: Registry) -> None:
    registry.sign(PLATE)
    same = TypeDefinition(TypeName(who(PITO), PLATE.name.name, "1"), PLATE.attributes, previous="0")
    registry.verify(registry.sign(same, CLERK, may(CLERK, Right.MANAGE_RENAME)))
    with refused("type.forged"):
        registry.verify(registry.sign(same, CLERK, may(CLERK, Right.SUBSCRIBE)))


def test_a_right_for_one_version_is_for_changing_that_version(registry: Registry) -> None:
    registry.sign(PLATE)
    registry.sign(PLATE.add("speed", "9", NUMBER, version="1"))
    only = grant(PITO, CLERK, event_tag(who(PITO), None, "1", [Right.MANAGE_RENAME]))
    good = registry[TypeName(who(PITO), PLATE.name.name, "1")].definition.rename("lane", "track", version="2")
    registry.verify(registry.sign(good, CLERK, only))
    with refused("type.over-reach"):
        registry.verify(registry.sign(PLATE.rename("lane", "track", version="3"), CLERK, only))


def test_the_previous_version_must_be_there_and_be_true(registry: Registry) -> None:
    changed = OPERATIONS[Right.MANAGE_ADD](PLATE)
    signed = registry.sign(changed, CLERK, may(CLERK, Right.MANAGE_ADD))
    with refused("type.unknown-previous"):
        registry.verify(signed)
    registry.sign(PLATE, OTHER)
    with refused("type.forged"):
        registry.verify(signed)
    registry[PLATE.name] = sign_type(define(called="uk.gov.pito.Other"), key(PITO))
    with refused("type.forged"):
        registry.verify(signed)
    registry.sign(PLATE)
    registry.verify(signed)


def test_nobody_reaches_further_through_a_forged_predecessor(registry: Registry) -> None:
    """A clerk who may only add signs a predecessor without `lane`, so that its removal does not show."""
    registry.sign(TypeDefinition(PLATE.name, PLATE.attributes[:1]), CLERK, may(CLERK, Right.MANAGE_ADD))
    target = TypeDefinition(TypeName(who(PITO), PLATE.name.name, "1"), PLATE.attributes[:1], previous="0")
    with refused("type.forged"):
        registry.verify(registry.sign(target, CLERK, may(CLERK, Right.MANAGE_ADD)))


def test_installing(registry: Registry) -> None:
    """Section 5.2.1: the right to install is the coordinating principal's to give."""
    install = network_tag(who(PITO), NETWORK.name, [Right.INSTALL])
    foreign = define(OTHER, "a.Foreign")
    with refused("type.not-installable"):
        registry.verify(registry.sign(foreign, OTHER), network=NETWORK)
    with refused("type.not-installable"):
        connect = grant(PITO, OTHER, network_tag(who(PITO), NETWORK.name, [Right.CONNECT]))
        registry.verify(registry.sign(foreign, OTHER, connect), network=NETWORK)
    with refused("type.not-installable"):
        registry.verify(registry.sign(foreign, OTHER, grant(OTHER, OTHER, install)), network=NETWORK)
    right = grant(PITO, OTHER, install, validity=CURRENT)
    verified = registry.verify(registry.sign(foreign, OTHER, right), network=NETWORK)
    assert (verified.network, verified.because, verified.validity) == (NETWORK, (right.id,), CURRENT)
    # The coordinating principal needs nothing, and who may install may not define.
    registry.verify(registry.sign(PLATE), network=NETWORK)
    with refused("type.forged"):
        registry.verify(registry.sign(PLATE, OTHER, right), network=NETWORK)


QUORUM = Threshold(2, (who(1), who(2), who(3)))


def test_a_quorum_owns_a_type(registry: Registry) -> None:
    owned = define(QUORUM.principal, "shared.Sighting")
    votes = [grant(member, 9, event_tag(QUORUM.principal, None, None, [Right.MANAGE])) for member in (1, 2, 3)]
    verified = registry.verify(registry.sign(owned, 9, *votes[:2], quorums=(QUORUM,)))
    assert verified.signer == who(9)
    assert set(verified.because) == {vote.id for vote in votes[:2]}
    # A member signs with the word of one other.
    pass_on = grant(2, 1, event_tag(QUORUM.principal, None, None, [Right.MANAGE]))
    registry.verify(registry.sign(owned, 1, pass_on, quorums=(QUORUM,)))
    for certificates, quorums in ((votes[:1], (QUORUM,)), (votes, ()), ([], (QUORUM,))):
        with refused("type.forged"):
            registry.verify(registry.sign(owned, 9, *certificates, quorums=quorums))
    with refused("type.forged"):
        registry.verify(registry.sign(owned, 1, quorums=(QUORUM,)))


def test_how_a_type_is_sealed_is_signed_and_read_back(registry: Registry) -> None:
    for number, sealing in enumerate(Sealing):
        signed = registry.sign(replace(define(called=f"uk.gov.pito.T{number}"), sealing=sealing))
        assert registry.verify(read_type(signed.to_bytes())).event_type.sealing is sealing


@pytest.mark.parametrize("seal", [(b"seal",), (b"seal", b"none"), (b"seal", b"all"), (b"seal", b"event", b"event")])
def test_a_sealing_that_nobody_knows_is_refused(registry: Registry, seal: SExp) -> None:
    body = registry.sign(replace(PLATE, sealing=Sealing.EVENT)).body
    assert isinstance(body, tuple)
    changed = tuple(seal if isinstance(part, tuple) and part[0] == b"seal" else part for part in body)
    with refused("type.malformed"):
        read_type_parts(changed, key(PITO).public, key(PITO).sign(canonical(changed)))


@pytest.mark.parametrize("flag", ["blinded", "signed"])
def test_what_else_is_said_of_sealing_is_signed_and_read_back(registry: Registry, flag: str) -> None:
    chosen: Any = {flag: True}
    signed = registry.sign(replace(PLATE, sealing=Sealing.EVENT, **chosen))
    assert getattr(registry.verify(read_type(signed.to_bytes())).event_type, flag)
    assert isinstance(signed.body, tuple)
    word = flag.encode()
    changed: SExp = tuple((word, b"no") if part == (word,) else part for part in signed.body)
    with refused("type.malformed"):
        read_type_parts(changed, key(PITO).public, key(PITO).sign(canonical(changed)))


def test_only_who_manages_all_of_a_type_seals_it_otherwise(registry: Registry) -> None:
    registry.sign(PLATE)
    sealed = replace(PLATE.add("colour", "9", TEXT, version="1"), sealing=Sealing.ATTRIBUTE)
    with refused("type.over-reach"):
        registry.verify(registry.sign(sealed, MANAGER, may(MANAGER, Right.MANAGE_ADD)))
    registry.verify(registry.sign(sealed, MANAGER, may(MANAGER, Right.MANAGE)))
    blinded = replace(sealed.add("size", "10", TEXT, version="2"), blinded=True)
    with refused("type.over-reach"):
        registry.verify(registry.sign(blinded, MANAGER, may(MANAGER, Right.MANAGE_ADD)))
    registry.verify(registry.sign(blinded, MANAGER, may(MANAGER, Right.MANAGE)))

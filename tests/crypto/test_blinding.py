"""Blinded names: labels that only a key gives, and two generations of them at a time."""

import hmac

from tests.crypto.seal_kit import PARENT, TYPE, attributes, code_of, fresh

from penstock.codec.blocks import PlainNames, names
from penstock.crypto.blinding import NOBODY, Directory, blind, blind_newest, blinded_key, is_blinded, label
from penstock.crypto.seal_keys import KeyRing, label_scope
from penstock.crypto.wrapping import Secret
from penstock.model import AttributeDefinition, AttributeSpec, EventType, Kind, TypeDefinition, TypeName

TEXT = AttributeSpec(Kind.STRING)
NAMES = names(TYPE, (PARENT,), attributes(3))
LINE = (TYPE, PARENT)
CAR = EventType.of(TypeDefinition(TypeName(TYPE.owner, "Car"), (AttributeDefinition("plate", "0", TEXT),)))
LORRY = EventType.of(
    TypeDefinition(TypeName(TYPE.owner, "Lorry"), (AttributeDefinition("axles", "1", TEXT),), CAR.name), CAR
)
SMALL, BIG = (names(one.key, one.ancestors, tuple(str(a.id) for a in one.attributes)) for one in (CAR, LORRY))


def test_labels_are_those_that_everybody_with_the_key_computes() -> None:
    key = Secret(bytes(range(32)))
    assert label(key, "name") == hmac.digest(bytes(range(32)), b"penstock-label-1 name", "sha256")[:16]
    other = Secret(fresh(32))
    assert label(other, "name") != label(key, "name") != label(key, "other")


def test_a_directory_knows_both_generations() -> None:
    old, new = Secret(fresh(32)), Secret(fresh(32))
    directory = Directory()
    assert directory.resolve(PlainNames(NAMES)) == NAMES
    assert code_of(directory.resolve, blind(old, NAMES)) == "seal.unknown-label"
    directory.add(old, LINE, NAMES.attributes)
    directory.add(new, LINE, NAMES.attributes)
    assert directory.resolve(blind(old, NAMES)) == directory.resolve(blind(new, NAMES)) == NAMES
    directory.remove(old, LINE, NAMES.attributes)
    assert code_of(directory.resolve, blind(old, NAMES)) == "seal.unknown-label"
    assert directory.resolve(blind(new, NAMES)) == NAMES
    # One attribute that is not known is enough.
    directory.remove(new, (), NAMES.attributes[2:])
    assert code_of(directory.resolve, blind(new, NAMES)) == "seal.unknown-label"


def test_a_ring_has_labels_of_its_types_and_of_no_others() -> None:
    old, new = Secret(fresh(32)), Secret(fresh(32))
    ring = KeyRing()
    assert code_of(blind_newest, ring, SMALL) == "seal.unknown-label"
    for epoch, key in ((1, old), (2, new)):
        ring.put(label_scope(CAR.key), epoch, key)
    assert blind_newest(ring, SMALL) == blind(new, SMALL)
    directory = Directory.of(ring, [LORRY, CAR])
    assert directory.resolve(blind(old, SMALL)) == directory.resolve(blind(new, SMALL)) == SMALL
    # Lorries have labels of their own, and who does not know a type does not know its labels.
    assert code_of(directory.resolve, blind(new, BIG)) == "seal.unknown-label"
    assert code_of(Directory.of(ring, [LORRY]).resolve, blind(new, SMALL)) == "seal.unknown-label"
    ring.put(label_scope(LORRY.key), 1, old)
    assert Directory.of(ring, [LORRY]).resolve(blind(old, BIG)) == BIG


def test_a_label_makes_a_name_that_nobody_owns() -> None:
    key = Secret(fresh(32))
    name = blinded_key(label(key, str(TYPE)))
    assert is_blinded(name)
    assert not is_blinded(TYPE)
    assert name.owner == NOBODY
    assert name != blinded_key(label(key, str(PARENT)))
    assert str(TYPE.owner) not in str(name)
    assert TYPE.name not in str(name)

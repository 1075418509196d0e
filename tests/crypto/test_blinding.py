"""Blinded names: labels that only a key gives, and two generations of them at a time."""

import hmac

from tests.crypto.seal_kit import PARENT, TYPE, attributes, code_of, fresh

from penstock.codec.block_names import Plain, names
from penstock.crypto.blinding import NOBODY, Directory, blind, blinded_key, is_blinded, label
from penstock.crypto.wrapping import Secret

NAMES = names(TYPE, (PARENT,), attributes(3))
LINE = (TYPE, PARENT)


def test_labels_are_those_that_everybody_with_the_key_computes() -> None:
    key = Secret(bytes(range(32)))
    assert label(key, "name") == hmac.digest(bytes(range(32)), b"penstock-label-1 name", "sha256")[:16]
    other = Secret(fresh(32))
    assert label(other, "name") != label(key, "name") != label(key, "other")


def test_a_directory_knows_both_generations() -> None:
    old, new = Secret(fresh(32)), Secret(fresh(32))
    directory = Directory()
    assert directory.resolve(Plain(NAMES)) == NAMES
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


def test_a_label_makes_a_name_that_nobody_owns() -> None:
    key = Secret(fresh(32))
    name = blinded_key(label(key, str(TYPE)))
    assert is_blinded(name)
    assert not is_blinded(TYPE)
    assert name.owner == NOBODY
    assert name != blinded_key(label(key, str(PARENT)))
    assert str(TYPE.owner) not in str(name)
    assert TYPE.name not in str(name)

"""Rings of keys: the newest epoch counts, and every change is noticed."""

from tests.crypto.seal_kit import TYPE, attributes, ring, secret

from penstock.crypto.seal_keys import KeyRing, column_of, column_scope
from penstock.model.names import TypeKey

ONE, TWO = attributes(2)


def test_a_ring_holds_epochs() -> None:
    keys = KeyRing()
    assert keys.newest(ONE) is None
    assert keys.key(ONE, 1) is None
    keys.put(ONE, 2, secret(ONE, 2))
    keys.put(ONE, 1, secret(ONE, 1))
    assert keys.newest(ONE) == 2
    assert keys.key(ONE, 1) == secret(ONE, 1)
    assert keys.key(TWO, 1) is None
    keys.drop(ONE, 2)
    assert keys.newest(ONE) == 1
    keys.drop(ONE, 1)
    assert keys.newest(ONE) is None


def test_every_change_has_a_version() -> None:
    keys = ring([ONE])
    versions = [keys.version]
    for epoch in (1, 2):
        keys.put(TWO, 1, secret(TWO, epoch))
        versions.append(keys.version)
    keys.drop(TWO, 1)
    versions.append(keys.version)
    assert len({*versions}) == len(versions)
    keys.drop(TWO, 1)
    assert keys.version == versions[-1]
    assert repr(keys) == "KeyRing(2 scopes)"


def test_a_scope_says_which_column_it_is_about() -> None:
    for attribute in attributes(2):
        assert column_of(TYPE, column_scope(TYPE, attribute)) == attribute
    assert column_of(TYPE, str(TYPE)) == ""
    longer = TypeKey(TYPE.owner, f"{TYPE.name}s")
    assert column_of(TYPE, str(longer)) is None
    assert column_of(TYPE, column_scope(longer, attributes(1)[0])) is None

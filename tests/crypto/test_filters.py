"""Sealed filters as bytes: equal ones are equal, parts stay together, and nothing else opens."""

import pytest
from tests.crypto.seal_kit import TYPE, attributes, code_of, secret

from penstock.crypto.filters import (
    HINT_BYTES,
    IDENTITY_BYTES,
    LEAST_BYTES,
    NAME_BYTES,
    FilterKey,
    filter_key,
    open_part,
    seal_filter,
)
from penstock.crypto.seal_keys import column_scope
from penstock.errors import RefusedError

PLATE, SPEED = (column_scope(TYPE, one) for one in attributes(2))
CONTENTS = {PLATE: b"plate = 'AE05 XYZ'", SPEED: b"speed > 70"}


def key_of(scope: str, epoch: int = 1) -> FilterKey:
    return filter_key(secret(scope, epoch), scope)


def sealed(*scopes: str, epoch: int = 1) -> tuple[bytes, ...]:
    return seal_filter((key_of(scope, epoch), CONTENTS[scope]) for scope in scopes)


def opened(scope: str, parts: tuple[bytes, ...], epoch: int = 1) -> bytes:
    key = key_of(scope, epoch)
    (part,) = (part for part in parts if part.startswith(key.hint))
    return open_part(key, part, parts)


def test_a_part_opens_with_the_key_of_its_attribute() -> None:
    parts = sealed(PLATE, SPEED)
    assert {scope: opened(scope, parts) for scope in (PLATE, SPEED)} == CONTENTS
    for part in parts:
        assert not any(content in part for content in CONTENTS.values())
        assert len(part) >= LEAST_BYTES


def test_equal_filters_are_equal_octets_in_one_epoch_and_in_no_other() -> None:
    assert sealed(PLATE, SPEED) == sealed(SPEED, PLATE)
    first, second = (sealed(PLATE, epoch=epoch)[0] for epoch in (1, 2))
    assert first[:HINT_BYTES] != second[:HINT_BYTES]
    assert first[HINT_BYTES:NAME_BYTES] != second[HINT_BYTES:NAME_BYTES]


def test_the_same_content_for_another_attribute_has_nothing_in_common() -> None:
    one, other = (seal_filter([(key_of(scope), b"the same")])[0] for scope in (PLATE, SPEED))
    assert one[:HINT_BYTES] != other[:HINT_BYTES]
    assert one[HINT_BYTES:NAME_BYTES] != other[HINT_BYTES:NAME_BYTES]
    assert one[NAME_BYTES:] != other[NAME_BYTES:]


def test_whatever_is_changed_does_not_open() -> None:
    parts = sealed(PLATE, SPEED)
    hint = key_of(PLATE).hint
    mine = next(place for place, part in enumerate(parts) if part.startswith(hint))
    for place, part in enumerate(parts):
        # Of the other part, the name is what this one is bound to.
        for index in range(len(part) if place == mine else NAME_BYTES):
            octets = bytearray(part)
            octets[index] ^= 1
            changed = (*parts[:place], bytes(octets), *parts[place + 1 :])
            assert code_of(open_part, key_of(PLATE), changed[mine], changed) == "seal.cannot-open"


def test_parts_are_neither_left_out_nor_put_together_anew() -> None:
    both, alone = sealed(PLATE, SPEED), sealed(PLATE)
    mine = next(part for part in both if part.startswith(key_of(PLATE).hint))
    assert code_of(open_part, key_of(PLATE), mine, (mine,)) == "seal.cannot-open"
    mixed = tuple(sorted((*alone, *sealed(SPEED))))
    assert code_of(opened, PLATE, mixed) == "seal.cannot-open"
    # Which content it is shows all the same: this is what those without keys use.
    assert mine[:NAME_BYTES] == alone[0][:NAME_BYTES]


def test_a_content_under_the_name_of_another_does_not_open() -> None:
    key = key_of(PLATE)
    name = sealed(PLATE)[0][HINT_BYTES:NAME_BYTES]
    forged = key._replace(identity=lambda _content: name)
    parts = seal_filter([(forged, b"FALSE")])
    assert len(name) == IDENTITY_BYTES
    assert parts[0][:NAME_BYTES] == sealed(PLATE)[0][:NAME_BYTES]
    assert code_of(open_part, key, parts[0], parts) == "seal.cannot-open"


@pytest.mark.parametrize(("scope", "epoch"), [(SPEED, 1), (PLATE, 2)])
def test_another_key_does_not_open(scope: str, epoch: int) -> None:
    parts = sealed(PLATE)
    with pytest.raises(RefusedError):
        open_part(key_of(scope, epoch), parts[0], parts)


def test_keys_are_not_shown() -> None:
    assert repr(key_of(PLATE)) == "FilterKey(…)"

"""Secrets: what they show of themselves, and what opens."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trust.kit import refused

from penstock.crypto.wrapping import SALT_BYTES, SECRET_BYTES, Secret, unwrap, wrap

SALT = bytes(SALT_BYTES)
ONE, OTHER = Secret(b"a" * SECRET_BYTES), Secret(b"b" * SECRET_BYTES)


def test_a_secret_does_not_show_itself() -> None:
    assert repr(ONE) == str(ONE) == f"{ONE}" == "Secret(…)"
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            attempt(ONE)


def test_secrets_are_equal_by_their_octets() -> None:
    assert Secret(b"a" * SECRET_BYTES) == ONE
    assert ONE != OTHER
    assert ONE != b"a" * SECRET_BYTES
    assert len({ONE, OTHER, Secret(ONE.expose())}) == 2


def test_a_secret_has_one_length() -> None:
    for octets in (b"", b"a" * 31, b"a" * 33):
        with refused("keys.malformed"):
            Secret(octets)


def test_each_purpose_and_context_has_a_secret_of_its_own() -> None:
    contexts: list[tuple[bytes, ...]] = [(b"x",), (b"x", b""), (b"", b"x"), (b"xy", b"z"), (b"x", b"yz"), (b"x", b"y")]
    derived = {ONE.derive(*context) for context in contexts} | {OTHER.derive(b"x"), ONE, OTHER}
    assert len(derived) == len(contexts) + 3


def test_what_is_wrapped_opens_in_its_context_alone() -> None:
    box = wrap(ONE, b"content", SALT, b"group", b"1")
    assert unwrap(ONE, box, SALT, b"group", b"1") == b"content"
    for under, salt, context in (
        (OTHER, SALT, (b"group", b"1")),
        (ONE, b"1" * SALT_BYTES, (b"group", b"1")),
        (ONE, SALT, (b"group", b"2")),
        (ONE, SALT, (b"group1",)),
        (ONE, SALT, ()),
    ):
        with refused("keys.unopened"):
            unwrap(under, box, salt, *context)


@given(st.integers(0, 8 * (7 + 16) - 1))
def test_a_box_with_one_bit_changed_does_not_open(bit: int) -> None:
    box = bytearray(wrap(ONE, b"content", SALT))
    box[bit // 8] ^= 1 << bit % 8
    with refused("keys.unopened"):
        unwrap(ONE, bytes(box), SALT)


def test_what_is_too_short_does_not_open() -> None:
    for length in range(16):
        with refused("keys.unopened"):
            unwrap(ONE, bytes(length), SALT)

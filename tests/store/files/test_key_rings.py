"""Key rings in files: read back with the key-encryption key, and refused when a bit of them is another."""

from contextlib import suppress
from pathlib import Path
from secrets import token_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.crypto.seal_keys import KeyRing
from penstock.crypto.wrapping import Secret, wrap
from penstock.errors import FailedError, LimitError, MalformedError, PenstockError, RefusedError
from penstock.store.files.key_rings import decode_key_ring, encode_key_ring, read_key_ring, write_key_ring
from penstock.store.limits import StoreLimits

KEK = Secret(bytes(range(32)))
SCOPES = st.dictionaries(
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.dictionaries(st.integers(0, 2**64 - 1), st.binary(min_size=32, max_size=32), min_size=1, max_size=4),
    max_size=4,
)


def ring_of(held: dict[str, dict[int, bytes]]) -> KeyRing:
    ring = KeyRing()
    for scope, keys in held.items():
        for epoch, key in keys.items():
            ring.put(scope, epoch, Secret(key))
    return ring


RING = ring_of({"a/Plate": {0: b"1" * 32, 7: b"2" * 32}, "a/Plate#plate": {7: b"3" * 32}})
WHOLE = encode_key_ring(RING, KEK, bytes)


def keys_of(ring: KeyRing) -> list[tuple[str, int, bytes]]:
    return sorted((scope, epoch, key.expose()) for scope, epoch, key in ring.items())


@given(SCOPES)
def test_what_is_written_is_read_back(held: dict[str, dict[int, bytes]]) -> None:
    ring = ring_of(held)
    assert keys_of(decode_key_ring(encode_key_ring(ring, KEK, token_bytes), KEK)) == keys_of(ring)


def test_a_file_is_replaced_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "plates.ring"
    write_key_ring(path, KeyRing(), KEK, token_bytes)
    first = path.read_bytes()
    write_key_ring(path, RING, KEK, token_bytes)
    assert keys_of(read_key_ring(path, KEK)) == keys_of(RING)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["plates.ring"]
    write_key_ring(path, KeyRing(), KEK, token_bytes)
    assert path.read_bytes() != first, "the same content lies under another salt"


def test_neither_keys_nor_scopes_are_in_the_clear() -> None:
    assert b"Plate" not in WHOLE
    assert b"1111" not in WHOLE


@given(st.integers(0, 8 * len(WHOLE) - 1))
def test_no_changed_bit_is_read(bit: int) -> None:
    changed = bytearray(WHOLE)
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(PenstockError) as caught:
        decode_key_ring(bytes(changed), KEK)
    assert caught.value.code in ("keys.ring", "keys.wrong-kek", "keys.unopened")


@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=3))
def test_nothing_that_was_cut_or_continued_is_read(length: int, tail: bytes) -> None:
    for changed in (WHOLE[:length], WHOLE + b"\0" + tail):
        with pytest.raises(PenstockError) as caught:
            decode_key_ring(changed, KEK)
        assert caught.value.code in ("keys.ring", "keys.unopened", "keys.wrong-kek")


@given(st.binary(max_size=200))
def test_no_octets_break_the_reader(octets: bytes) -> None:
    """Also those that whoever holds the key-encryption key has wrapped."""
    for data in (octets, WHOLE[:28] + octets, WHOLE[:44] + wrap(KEK, octets, bytes(16), b"ring", WHOLE[:28])):
        with suppress(MalformedError, RefusedError):
            decode_key_ring(data, KEK)


def test_errors_say_what_is_wrong_and_with_which_file(tmp_path: Path) -> None:
    path = tmp_path / "plates.ring"
    write_key_ring(path, RING, KEK, token_bytes)
    with pytest.raises(RefusedError) as wrong:
        read_key_ring(path, Secret(bytes(32)))
    assert wrong.value.code == "keys.wrong-kek"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RefusedError) as cut:
        read_key_ring(path, KEK)
    assert cut.value.code == "keys.unopened"
    assert all("plates.ring" in caught.value.message for caught in (wrong, cut))
    with pytest.raises(LimitError):
        read_key_ring(path, KEK, limits=StoreLimits(key_ring_bytes=100))
    with pytest.raises(FailedError):
        read_key_ring(tmp_path / "absent", KEK)

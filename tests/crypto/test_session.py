"""Sealed sessions: what one end writes the other reads, in order and once, and nobody else reads or writes anything."""

import hashlib
import hmac
from itertools import count

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.crypto import session
from penstock.crypto.session import OVERHEAD_BYTES, KeyExchange, Opening, RecordSealer
from penstock.errors import PenstockError

_SEEDS = count(1)


def fresh(size: int) -> bytes:
    # Not the number itself: some bits of a private key do not count.
    return hashlib.sha256(b"%d" % next(_SEEDS)).digest()[:size]


def ends(context: bytes = b"signed", other: bytes = b"signed") -> tuple[RecordSealer, Opening, RecordSealer, Opening]:
    """Return what the end that connects writes and reads, and what the other does."""
    one, two = KeyExchange(fresh), KeyExchange(fresh)
    return *one.agree(two.public, context, connects=True), *two.agree(one.public, other, connects=False)


def tampered(opening: Opening, record: bytes) -> None:
    with pytest.raises(PenstockError) as caught:
        opening.open(record)
    assert caught.value.code == "session.tampered"


def test_what_one_end_writes_the_other_reads() -> None:
    forth, hears_back, back, hears_forth = ends()
    for number in range(5):
        record = forth.seal(number, b"x" * number)
        assert len(record) == number + OVERHEAD_BYTES
        assert hears_forth.open(record) == (number, b"x" * number)
        assert hears_back.open(back.seal(7, b"back")) == (7, b"back")


def test_keys_are_those_that_everybody_would_derive() -> None:
    # Written out from the standards (RFC 7748, RFC 5869, SP 800-38D), with the library's own parts.
    one, two = KeyExchange(lambda size: b"\x01" * size), KeyExchange(lambda size: b"\x02" * size)
    shared = X25519PrivateKey.from_private_bytes(b"\x01" * 32).exchange(X25519PublicKey.from_public_bytes(two.public))
    extracted = hmac.digest(bytes(32), shared, "sha256")
    key = hmac.digest(extracted, b"penstock-session-1 signed" + b"\x01", "sha256")
    forth, _ = one.agree(two.public, b"signed", connects=True)
    forth.seal(1, b"first")
    head = b"\x05" + (1).to_bytes(8, "big")
    assert forth.seal(5, b"second") == head + AESGCM(key).encrypt((1).to_bytes(12, "big"), b"second", head)


def test_nobody_else_reads_or_writes() -> None:
    forth, hears_back, _, hears_forth = ends()
    stranger, *_ = ends()
    record = forth.seal(1, b"a secret")
    assert b"secret" not in record
    assert hears_forth.open(stranger.seal(1, b"a secret")) is None
    # Thrown back at its writer: each direction has its own key.
    assert hears_back.open(record) is None
    # What was not written by the peer does no harm.
    assert hears_forth.open(record) == (1, b"a secret")


def test_ends_that_have_not_signed_the_same_do_not_understand_each_other() -> None:
    forth, _, _, hears_forth = ends(b"one", b"other")
    assert hears_forth.open(forth.seal(1, b"x")) is None


def test_copies_of_records_that_have_been_disturb_nobody() -> None:
    forth, _, _, hears = ends()
    records = [forth.seal(1, bytes((number,))) for number in range(4)]
    for number, record in enumerate(records):
        assert hears.open(record) == (1, bytes((number,)))
        assert [hears.open(copy) for copy in records[: number + 1]] == [None] * (number + 1)


@pytest.mark.parametrize(("taken", "last"), [(0, 1), (1, 2), (0, 3)])
def test_a_record_that_comes_too_early_ends_the_session(taken: int, last: int) -> None:
    forth, _, _, hears = ends()
    records = [forth.seal(1, bytes((number,))) for number in range(4)]
    for number in range(taken):
        assert hears.open(records[number]) == (1, bytes((number,)))
    tampered(hears, records[last])
    # Nothing opens after that, not even what would have come next.
    assert [hears.open(record) for record in records] == [None] * 4


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=40), st.integers(0, 10_000), st.integers(1, 255))
def test_no_changed_octet_opens(content: bytes, place: int, change: int) -> None:
    forth, _, _, hears = ends()
    record = forth.seal(1, content)
    at = place % len(record)
    assert hears.open(record[:at] + bytes((record[at] ^ change,)) + record[at + 1 :]) is None
    assert hears.open(record[:at]) is None
    assert hears.open(record + b"\0") is None
    assert hears.open(record) == (1, content)


@pytest.fixture
def short_keys(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let a key seal four records only."""
    monkeypatch.setattr(session, "_RECORDS_SHIFT", 2)
    return 4


def test_keys_change_and_nobody_notices(short_keys: int) -> None:
    forth, _, _, hears = ends()
    first = forth._keys._now
    for number in range(5 * short_keys):
        assert hears.open(forth.seal(1, bytes((number,)))) == (1, bytes((number,)))
    assert forth._keys._now is not first


def test_what_is_missing_where_keys_change_is_found_out(short_keys: int) -> None:
    for missing in range(1, 3 * short_keys):
        forth, _, _, hears = ends()
        records = [forth.seal(1, b"x") for _ in range(missing + 2)]
        for record in records[:missing]:
            assert hears.open(record) is not None
        tampered(hears, records[missing + 1])


def test_a_key_that_was_left_opens_nothing(short_keys: int) -> None:
    forth, _, _, hears = ends()
    records = [forth.seal(1, b"x") for _ in range(3 * short_keys)]
    for record in records:
        assert hears.open(record) is not None
    assert hears.open(records[0]) is None


@pytest.mark.parametrize(
    "point",
    # The points of small order on Curve25519, and those that are the same without their highest bit.
    [
        bytes(32),
        b"\x01" + bytes(31),
        bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
        bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
        b"\xec" + b"\xff" * 30 + b"\x7f",
        b"\xed" + b"\xff" * 30 + b"\x7f",
        b"\xee" + b"\xff" * 30 + b"\x7f",
    ],
)
def test_keys_that_leave_no_secret_are_refused(point: bytes) -> None:
    with pytest.raises(PenstockError) as caught:
        KeyExchange(fresh).agree(point, b"", connects=True)
    assert caught.value.code == "session.weak-key"
    assert caught.value.__cause__ is None


def test_a_key_is_used_once() -> None:
    exchange = KeyExchange(fresh)
    exchange.agree(KeyExchange(fresh).public, b"", connects=True)
    with pytest.raises(PenstockError) as caught:
        exchange.agree(KeyExchange(fresh).public, b"", connects=True)
    assert caught.value.code == "session.used"


def test_keys_do_not_show() -> None:
    seed = bytes(range(32))
    exchange = KeyExchange(lambda _: seed)
    key = bytes(range(100, 132))
    for shown in (exchange, RecordSealer(key), Opening(key), RecordSealer(key)._keys):
        for secret in (seed, key, RecordSealer(key)._keys._following):
            assert secret.hex() not in repr(shown)
            assert repr(secret)[2:-1] not in repr(shown)

"""Key files: what is written is read back, hostile ones are refused cheaply, and secrets stay inside."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.sexp import SExp, advanced, canonical, parse
from penstock.crypto import PublicKey, SigningKey
from penstock.crypto.keys import ProtectedKey, new_key, private_key_to_sexp, protect, read_key
from penstock.crypto.passphrases import MAX_MEMORY, MAX_PASSES, Cost
from penstock.errors import LimitError, MalformedError, PenstockError, RefusedError

CHEAP = Cost(1, 8 << 10)
SEED = bytes(range(32))
KEY = SigningKey(SEED)


def counting(size: int) -> bytes:
    return bytes(range(size))


def protected(passphrase: bytes = b"sesame") -> ProtectedKey:
    return protect(KEY, passphrase, counting, CHEAP)


def test_a_new_key_is_made_of_the_randomness_given() -> None:
    assert new_key(counting) == KEY


@pytest.mark.parametrize("value", [KEY.public.to_sexp(), private_key_to_sexp(KEY), protected().to_sexp()])
def test_every_form_is_read_back(value: SExp) -> None:
    stored = read_key(parse(advanced(value).encode()))
    if isinstance(stored, SigningKey):
        assert stored.seed == SEED
        assert private_key_to_sexp(stored) == value
    else:
        assert stored.to_sexp() == value
    assert (stored if isinstance(stored, PublicKey) else stored.public) == KEY.public


def test_the_passphrase_opens_it() -> None:
    assert protected().open(b"sesame") == KEY


@pytest.mark.parametrize("passphrase", [b"", b"sesam", b"sesame ", b"\x00"])
def test_another_passphrase_does_not(passphrase: bytes) -> None:
    with pytest.raises(RefusedError) as caught:
        protected().open(passphrase)
    assert caught.value.code == "key.passphrase"


def test_a_changed_file_is_answered_as_a_wrong_passphrase_is() -> None:
    whole = protected()
    other = SigningKey(bytes(32)).public
    for changed in (
        replace(whole, public=other),
        replace(whole, box=replace(whole.box, cost=Cost(2, 8 << 10))),
        replace(whole, box=replace(whole.box, salt=bytes(16))),
        replace(whole, box=replace(whole.box, nonce=bytes(24))),
        replace(whole, box=replace(whole.box, box=bytes(48))),
    ):
        with pytest.raises(RefusedError) as wrong:
            whole.open(b"another")
        with pytest.raises(RefusedError) as damaged:
            changed.open(b"sesame")
        assert str(damaged.value) == str(wrong.value)


def test_an_empty_passphrase_is_refused() -> None:
    with pytest.raises(MalformedError) as caught:
        protect(KEY, b"", counting, CHEAP)
    assert caught.value.code == "key.empty-passphrase"


@pytest.mark.parametrize(
    ("passes", "memory"),
    [(0, 1 << 20), (MAX_PASSES + 1, 1 << 20), (1, MAX_MEMORY + 1), (1, 8191), (1, 999_999_999_999)],
)
def test_a_hostile_cost_is_refused_before_it_is_paid(passes: int, memory: int) -> None:
    head, public, argon, box = _parts(protected().to_sexp())
    name, salt, *_ = _parts(argon)
    hostile: SExp = (
        head,
        public,
        (name, salt, (b"passes", str(passes).encode()), (b"memory", str(memory).encode())),
        box,
    )
    with pytest.raises(LimitError) as caught:
        read_key(hostile)
    assert caught.value.code == "key.cost"


@pytest.mark.parametrize(
    "value",
    [
        b"atom",
        (),
        (b"public-key", (b"ed25519", (b"q", b"short"))),
        (b"public-key", (b"rsa", (b"e", b"3"))),
        (b"private-key", (b"ed25519", (b"q", bytes(32)), (b"d", SEED))),
        (b"private-key", (b"ed25519", (b"q", KEY.public.raw), (b"d", SEED[:31]))),
        (b"private-key", (b"ed25519", (b"d", SEED))),
        (b"protected-key",),
    ],
)
def test_what_is_no_key_is_malformed_and_not_repeated(value: SExp) -> None:
    with pytest.raises(MalformedError) as caught:
        read_key(value)
    assert caught.value.code == "key.malformed"
    assert SEED[:8].hex() not in repr(caught.value.as_dict())


@pytest.mark.parametrize("written", [b"01", b"-1", b"1e3", b"", b"\xb2", b"9" * 13])
def test_numbers_have_one_written_form(written: bytes) -> None:
    head, public, argon, box = _parts(protected().to_sexp())
    name, salt, _passes, memory = _parts(argon)
    with pytest.raises(MalformedError) as caught:
        read_key((head, public, (name, salt, (b"passes", written), memory), box))
    assert caught.value.code == "key.malformed"


@given(st.binary(max_size=40), st.integers(0, 400))
def test_damage_never_gives_another_key(damage: bytes, position: int) -> None:
    whole = canonical(private_key_to_sexp(KEY))
    position %= len(whole)
    try:
        found = read_key(parse(whole[:position] + damage + whole[position + len(damage) :]))
    except PenstockError:
        return
    assert isinstance(found, SigningKey)
    assert found == KEY or found.public != KEY.public


def test_secrets_are_in_no_repr() -> None:
    for value in (KEY, protected()):
        assert repr(SEED)[2:-1] not in repr(value)
        assert SEED.hex() not in repr(value)
    assert "box" not in repr(protected())


def _parts(value: SExp) -> tuple[SExp, ...]:
    assert isinstance(value, tuple)
    return value

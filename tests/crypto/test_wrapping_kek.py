"""Key-encryption keys: what is written is read back, what was changed is refused, and secrets stay inside."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.sexp import SExp, advanced, canonical, parse
from penstock.crypto.passphrases import Cost
from penstock.crypto.wrapping import ProtectedKek, Secret, kek_id, kek_to_sexp, new_kek, parse_kek, protect_kek
from penstock.errors import MalformedError, PenstockError, RefusedError

KEK = Secret(bytes(range(32)))
CHEAP = Cost(1, 8 << 10)


def counting(size: int) -> bytes:
    return bytes(range(size))


def protected() -> ProtectedKek:
    return protect_kek(KEK, b"sesame", counting, CHEAP)


def read_back(value: SExp) -> Secret | ProtectedKek:
    return parse_kek(parse(advanced(value).encode()))


def test_both_forms_are_read_back() -> None:
    assert new_kek(counting) == KEK
    assert read_back(kek_to_sexp(KEK)) == KEK
    found = read_back(protected().to_sexp())
    assert isinstance(found, ProtectedKek)
    assert found == protected()
    assert found.open(b"sesame") == KEK


def test_another_passphrase_or_another_id_is_one_answer() -> None:
    for box, passphrase in ((protected(), b"sesam"), (replace(protected(), id=bytes(8)), b"sesame")):
        with pytest.raises(RefusedError) as caught:
            box.open(passphrase)
        assert caught.value.code == "key.passphrase"


@pytest.mark.parametrize(
    "value",
    [
        b"kek",
        (b"kek",),
        (b"kek", (b"id", kek_id(KEK)), (b"k", bytes(31))),
        (b"kek", (b"id", kek_id(KEK)), (b"k", bytes(32))),
        (b"kek", (b"id", kek_id(KEK)[:7]), (b"k", KEK.expose())),
        (b"protected-kek", (b"id", kek_id(KEK))),
    ],
)
def test_what_is_no_key_is_refused(value: SExp) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_kek(value)
    assert caught.value.code == "keys.kek"


@given(st.integers(0, 8 * len(canonical(kek_to_sexp(KEK))) - 1))
def test_no_changed_bit_gives_another_key(bit: int) -> None:
    whole = bytearray(canonical(kek_to_sexp(KEK)))
    whole[bit // 8] ^= 1 << bit % 8
    with pytest.raises(PenstockError):
        parse_kek(parse(bytes(whole)))


def test_nothing_of_it_is_shown() -> None:
    assert KEK.expose().hex() not in repr(protected())
    assert kek_id(KEK) not in KEK.expose()
    assert len({kek_id(Secret(bytes([n]) * 32)) for n in range(16)}) == 16

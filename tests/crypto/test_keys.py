"""Keys: the vectors of RFC 8032, what no verifier may accept, Wycheproof's cases, and that secrets stay inside."""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.codec.sexp import Hinted, SExp
from penstock.crypto import PublicKey, SigningKey, digest
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.model.principals import Principal

#: RFC 8032, section 7.1: secret, public, message, signature
RFC_8032 = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        (
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
            "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
        ),
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        (
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
        ),
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        (
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
            "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
        ),
    ),
]

#: the order of the group: adding it to the second half of a signature gives another that lax verifiers accept
ORDER = 2**252 + 27742317777372353535851937790883648493
#: points whose order divides 8: with them as a key, one signature would fit many messages
SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
]


@pytest.mark.parametrize(("secret", "public", "message", "signature"), RFC_8032)
def test_rfc_8032(secret: str, public: str, message: str, signature: str) -> None:
    key = SigningKey(bytes.fromhex(secret))
    assert key.public.raw.hex() == public
    assert key.sign(bytes.fromhex(message)).hex() == signature
    PublicKey(bytes.fromhex(public)).verify(bytes.fromhex(message), bytes.fromhex(signature))


@pytest.mark.parametrize(("_", "public", "message", "signature"), RFC_8032)
def test_a_signature_has_one_form(_: str, public: str, message: str, signature: str) -> None:
    half, scalar = bytes.fromhex(signature[:64]), int.from_bytes(bytes.fromhex(signature[64:]), "little")
    other = half + (scalar + ORDER).to_bytes(32, "little")
    with pytest.raises(RefusedError) as caught:
        PublicKey(bytes.fromhex(public)).verify(bytes.fromhex(message), other)
    assert caught.value.code == "key.bad-signature"


@pytest.mark.parametrize("point", SMALL_ORDER)
def test_keys_of_small_order_sign_nothing(point: str) -> None:
    key = PublicKey(bytes.fromhex(point))
    for first in SMALL_ORDER:
        with pytest.raises(RefusedError):
            key.verify(b"anything", bytes.fromhex(first) + bytes(32))


@given(st.binary(max_size=64), st.integers(0, 511), st.integers(0, 7))
@settings(deadline=None, max_examples=examples(100))
def test_any_flipped_bit_is_refused(message: bytes, place: int, bit: int) -> None:
    key = SigningKey(bytes(range(32)))
    signature = bytearray(key.sign(message))
    changed = bytearray(message)
    target = changed if message and place % 2 else signature
    target[place % len(target)] ^= 1 << bit
    with pytest.raises(RefusedError) as caught:
        key.public.verify(bytes(changed), bytes(signature))
    assert caught.value.code == "key.bad-signature"


@pytest.mark.parametrize("length", [0, 1, 63, 65, 128])
def test_a_signature_of_another_length_is_refused(length: int) -> None:
    key = SigningKey(bytes(32))
    with pytest.raises(RefusedError) as caught:
        key.public.verify(b"", (key.sign(b"") * 2)[:length])
    assert caught.value.code == "key.bad-signature"


def test_another_key_is_refused() -> None:
    with pytest.raises(RefusedError):
        SigningKey(bytes(32)).public.verify(b"m", SigningKey(b"\x01" * 32).sign(b"m"))


def test_wycheproof(suites: Path) -> None:
    cases = json.loads((suites / "wycheproof" / "ed25519_test.json").read_text())
    wrong, seen = [], 0
    for group in cases["testGroups"]:
        key = PublicKey(bytes.fromhex(group["publicKey"]["pk"]))
        for case in group["tests"]:
            seen += 1
            try:
                key.verify(bytes.fromhex(case["msg"]), bytes.fromhex(case["sig"]))
                answer = "valid"
            except RefusedError:
                answer = "invalid"
            if answer != case["result"]:
                wrong.append(case["tcId"])
    assert not wrong
    assert seen == cases["numberOfTests"]


def test_a_public_key_is_read_back() -> None:
    public = SigningKey(bytes(32)).public
    assert PublicKey.from_sexp(public.to_sexp()) == public
    assert public.principal == Principal(digest(public.to_sexp()))
    assert str(public.principal).startswith("ed25519:")


RAW = bytes(32)


@pytest.mark.parametrize(
    "value",
    [
        b"public-key",
        (),
        (b"public-key",),
        (b"public-key", RAW),
        (b"public-key", (b"ed25519", (b"q", RAW), (b"q", RAW))),
        (b"public-key", (b"ed25519", (b"q", RAW)), b"more"),
        (b"public-key", (b"ed25519", (b"q", RAW[:31]))),
        (b"public-key", (b"ed25519", (b"q", RAW + b"x"))),
        (b"public-key", (b"ed25519", (b"q", Hinted(b"text", RAW)))),
        (b"public-key", (b"ed25519", (b"q", (RAW,)))),
        (b"public-key", (b"ed448", (b"q", RAW))),
        (b"private-key", (b"ed25519", (b"q", RAW))),
    ],
)
def test_what_is_no_public_key(value: SExp) -> None:
    with pytest.raises(MalformedError) as caught:
        PublicKey.from_sexp(value)
    assert caught.value.code == "key.malformed"


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_keys_have_32_octets(length: int) -> None:
    for make in (PublicKey, SigningKey):
        with pytest.raises(MalformedError) as caught:
            make(bytes(length))
        assert caught.value.code == "key.malformed"


def test_no_text_of_a_private_key_holds_its_seed() -> None:
    seed = bytes.fromhex("c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7")
    key = SigningKey(seed)
    errors: list[PenstockError] = []
    for act in (lambda: SigningKey(seed + seed), lambda: key.public.verify(seed, seed + seed)):
        with pytest.raises(PenstockError) as caught:
            act()
        errors.append(caught.value)
    texts = [repr(key), str(key), f"{key}", repr([key]), repr({"k": key})]
    texts += [f"{error!r} {error} {error.as_dict()} {error.hint}" for error in errors]
    for text in texts:
        for shown in (seed.hex(), repr(seed)[2:-1], repr(seed)[2:12]):
            assert shown not in text


def test_equal_seeds_are_equal_keys() -> None:
    assert SigningKey(bytes(32)) == SigningKey(bytes(32)) != SigningKey(b"\x01" * 32)
    assert copy.copy(SigningKey(bytes(32)).public) == SigningKey(bytes(32)).public

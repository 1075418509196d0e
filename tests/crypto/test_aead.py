"""The ciphers: Wycheproof's cases, the vectors of EAX's authors and of RFC 8452, and that nothing changed opens."""

import json
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidTag
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.crypto.aead import NONCE_BYTES, TAG_BYTES, AesEax, CipherAlgorithm, cannot_open

#: Bellare, Rogaway, Wagner, *The EAX mode of operation*, appendix G: message, key, nonce, header, ciphertext and tag
EAX = [
    (
        "",
        "233952DEE4D5ED5F9B9C6D6FF80FF478",
        "62EC67F9C3A4A407FCB2A8C49031A8B3",
        "6BFB914FD07EAE6B",
        "E037830E8389F27B025A2D6527E79D01",
    ),
    (
        "F7FB",
        "91945D3F4DCBEE0BF45EF52255F095A4",
        "BECAF043B0A23D843194BA972C66DEBD",
        "FA3BFD4806EB53FA",
        "19DD5C4C9331049D0BDAB0277408F67967E5",
    ),
    (
        "CA40D7446E545FFAED3BD12A740A659FFBBB3CEAB7",
        "8395FCF1E95BEBD697BD010BC766AAC3",
        "22E7ADD93CFC6393C57EC0B3C17D6B44",
        "126735FCC320D25A",
        "CB8920F87A6C75CFF39627B56E3ED197C552D295A7CFC46AFC253B4652B1AF3795B124AB6E",
    ),
]


@pytest.mark.parametrize(("message", "key", "nonce", "header", "sealed"), EAX)
def test_vectors_of_eax(message: str, key: str, nonce: str, header: str, sealed: str) -> None:
    cipher = AesEax(bytes.fromhex(key))
    found = cipher.encrypt(bytes.fromhex(nonce), bytes.fromhex(message), bytes.fromhex(header))
    assert found == bytes.fromhex(sealed)
    assert cipher.decrypt(bytes.fromhex(nonce), found, bytes.fromhex(header)) == bytes.fromhex(message)


def test_a_vector_of_gcm_siv() -> None:
    # RFC 8452, appendix C.2: the first one with a plaintext.
    cipher = CipherAlgorithm.AES_GCM_SIV.cipher(bytes.fromhex("01" + "00" * 31))
    sealed = cipher.encrypt(bytes.fromhex("03" + "00" * 11), bytes.fromhex("0100000000000000"), b"")
    assert sealed.hex() == "c2ef328e5c71c83b843122130f7364b761e0b97427e3df28"


@pytest.mark.parametrize(
    ("name", "algorithm", "nonce_bits", "count"),
    [("aes_eax", CipherAlgorithm.AES_EAX, None, 240), ("aes_gcm", CipherAlgorithm.AES_GCM, 8 * NONCE_BYTES, 197)],
)
def test_wycheproof(suites: Path, name: str, algorithm: CipherAlgorithm, nonce_bits: int | None, count: int) -> None:
    cases = json.loads((suites / "wycheproof" / f"{name}_test.json").read_text())
    wrong, seen = [], 0
    for group in cases["testGroups"]:
        if nonce_bits not in (None, group["ivSize"]):
            continue
        for case in group["tests"]:
            seen += 1
            parts = {part: bytes.fromhex(case[part]) for part in ("key", "iv", "aad", "msg", "ct", "tag")}
            if _answer(algorithm, parts) != case["result"]:
                wrong.append(case["tcId"])
    assert not wrong
    assert seen == count


def _answer(algorithm: CipherAlgorithm, parts: dict[str, bytes]) -> str:
    cipher, sealed = algorithm.cipher(parts["key"]), parts["ct"] + parts["tag"]
    try:
        opened = cipher.decrypt(parts["iv"], sealed, parts["aad"])
    except InvalidTag:
        return "invalid"
    assert opened == parts["msg"]
    assert cipher.encrypt(parts["iv"], parts["msg"], parts["aad"]) == sealed
    return "valid"


@settings(max_examples=examples(100), deadline=None)
@given(
    st.sampled_from(CipherAlgorithm), st.binary(max_size=70), st.binary(max_size=40), st.integers(0, 10_000), st.data()
)
def test_nothing_changed_opens(
    algorithm: CipherAlgorithm, content: bytes, bound: bytes, place: int, data: st.DataObject
) -> None:
    cipher, nonce = algorithm.cipher(bytes(32)), bytes(NONCE_BYTES)
    content += b"."  # OpenSSL has no GCM-SIV of nothing; a column has an byte at least
    sealed = cipher.encrypt(nonce, content, bound)
    assert len(sealed) == len(content) + TAG_BYTES
    assert cipher.decrypt(nonce, memoryview(sealed), bound) == content
    changed = bytearray(sealed)
    changed[place % len(sealed)] ^= data.draw(st.integers(1, 255))
    for nonce_, sealed_, bound_ in [
        (nonce, bytes(changed), bound),
        (nonce, sealed[: place % len(sealed)], bound),
        (nonce, sealed + b"\0", bound),
        (nonce, sealed, bound + b"\0"),
        (b"\1" + nonce[1:], sealed, bound),
    ]:
        with pytest.raises(InvalidTag):
            cipher.decrypt(nonce_, sealed_, bound_)


def test_there_is_one_error() -> None:
    assert cannot_open().code == "seal.cannot-open"
    assert str(cannot_open()) == str(cannot_open())
    assert not cannot_open().fields

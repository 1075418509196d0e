"""HKDF: Wycheproof's cases, a vector of RFC 5869, and its bounds."""

import json
from pathlib import Path

import pytest

from penstock.crypto.wrapping import MAX_BYTES, hkdf
from penstock.errors import LimitError


def test_a_vector_of_rfc_5869() -> None:
    # Appendix A.3: neither salt nor info.
    assert hkdf(b"\x0b" * 22, b"", 42).hex() == (
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    )


def test_wycheproof(suites: Path) -> None:
    cases = json.loads((suites / "wycheproof" / "hkdf_sha256_test.json").read_text())
    wrong, seen = [], 0
    for group in cases["testGroups"]:
        for case in group["tests"]:
            seen += 1
            secret, salt, info = (bytes.fromhex(case[part]) for part in ("ikm", "salt", "info"))
            try:
                fits = hkdf(secret, info, case["size"], salt=salt).hex() == case["okm"]
            except LimitError:
                fits = False
            if fits != (case["result"] == "valid"):
                wrong.append(case["tcId"])
    assert not wrong
    assert seen == cases["numberOfTests"] == 86


@pytest.mark.parametrize("size", [-1, 0, MAX_BYTES + 1])
def test_a_key_has_a_size(size: int) -> None:
    with pytest.raises(LimitError) as caught:
        hkdf(bytes(32), b"", size)
    assert caught.value.code == "key.derivation"

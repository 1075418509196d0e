"""Files of key-encryption keys."""

from pathlib import Path

import pytest

from penstock.crypto.passphrases import Cost
from penstock.crypto.wrapping import Secret, protect_kek
from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.store.files.key_rings import create_kek, read_kek

KEK = Secret(bytes(range(32)))


def test_a_key_is_read_back_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    create_kek(tmp_path / "ring.kek", KEK)
    assert read_kek(tmp_path / "ring.kek") == KEK
    assert (tmp_path / "ring.kek").stat().st_mode & 0o777 == 0o600


def test_a_key_under_a_passphrase_needs_it(tmp_path: Path) -> None:
    path = tmp_path / "ring.kek"
    create_kek(path, protect_kek(KEK, b"sesame", bytes, Cost(1, 8 << 10)))
    assert read_kek(path, b"sesame") == KEK
    for passphrase, code in ((None, "keys.kek-passphrase"), (b"sesam", "key.passphrase")):
        with pytest.raises(RefusedError) as caught:
            read_kek(path, passphrase)
        assert caught.value.code == code
        assert "ring.kek" in caught.value.message


def test_a_key_is_never_replaced(tmp_path: Path) -> None:
    create_kek(tmp_path / "ring.kek", KEK)
    with pytest.raises(RefusedError) as caught:
        create_kek(tmp_path / "ring.kek", Secret(bytes(32)))
    assert caught.value.code == "file.exists"
    assert read_kek(tmp_path / "ring.kek") == KEK


def test_what_cannot_be_read_or_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(FailedError) as caught:
        create_kek(tmp_path / "absent" / "ring.kek", KEK)
    assert caught.value.code == "file.unwritable"
    with pytest.raises(FailedError) as missing:
        read_kek(tmp_path / "ring.kek")
    assert missing.value.code == "file.missing"
    (tmp_path / "ring.kek").write_text("(kek)")
    with pytest.raises(MalformedError) as malformed:
        read_kek(tmp_path / "ring.kek")
    assert malformed.value.code == "keys.kek"

"""Snapshots of owners' policies as files."""

from pathlib import Path

import pytest

from penstock.errors import FailedError
from penstock.model import Principal
from penstock.store.files.policy_files import PolicyFolder

ONE, OTHER = Principal(bytes(32)), Principal(bytes([1]) * 32)


def test_the_last_snapshot_of_each_owner_is_kept(tmp_path: Path) -> None:
    folder = PolicyFolder(tmp_path)
    folder.save(ONE, b"first")
    folder.save(OTHER, b"other")
    folder.save(ONE, b"second")
    assert sorted(folder.load()) == [b"other", b"second"]
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_what_cannot_be_kept_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FailedError) as caught:
        PolicyFolder(tmp_path / "absent").save(ONE, b"first")
    assert caught.value.code == "file.unwritable"


def test_a_write_that_was_cut_off_leaves_what_was_there(tmp_path: Path) -> None:
    folder = PolicyFolder(tmp_path)
    folder.save(ONE, b"first")
    kept = next(tmp_path.iterdir())
    kept.with_name(f".{kept.name}.0123456789abcdef").write_bytes(b"sec")
    assert list(folder.load()) == [b"first"]


def test_the_brokers_that_were_seen(tmp_path: Path) -> None:
    folder = PolicyFolder(tmp_path)
    assert folder.load_brokers() == b""
    folder.save_brokers(b"first")
    folder.save_brokers(b"second")
    assert folder.load_brokers() == b"second"
    # They are not taken for a snapshot of an owner.
    assert list(folder.load()) == []
    (tmp_path / "brokers.seen").unlink()
    (tmp_path / "brokers.seen").mkdir()
    with pytest.raises(FailedError, match=r"brokers\.seen"):
        folder.load_brokers()

"""Files: made exclusively and never through a link, replaced as a whole, and secrets that are secret."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.crypto import new_key, private_key_to_sexp
from penstock.crypto.wrapping import Secret
from penstock.errors import FailedError, RefusedError
from penstock.store.files.files import check_secret, create_file, new_file, replace_file, replace_file_by, replacing
from penstock.store.files.key_files import create_kek, read_kek


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """With which flags files were opened to be written, by name."""
    found: dict[str, int] = {}
    really: Callable[..., int] = os.open

    def watched(path: Path, flags: int, *rest: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            found[Path(path).name] = flags
        return really(path, flags, *rest)

    monkeypatch.setattr(os, "open", watched)
    return found


def test_a_file_is_replaced_as_a_whole_and_by_a_new_one(tmp_path: Path, flags: dict[str, int]) -> None:
    file = tmp_path / "file"
    replace_file(file, b"first")
    replace_file(file, b"second")
    assert file.read_bytes() == b"second"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    # Each time under a name that nobody could know before.
    assert len(flags) == 2
    assert all(found & os.O_EXCL and found & os.O_NOFOLLOW for found in flags.values())


def test_what_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    file = tmp_path / "file"
    replace_file(file, b"first")

    def parts() -> Iterator[bytes]:
        yield b"second"
        raise FailedError("file.unwritable", "no more")

    with pytest.raises(FailedError):
        replace_file_by(file, parts())
    with pytest.raises(RuntimeError), replacing(file, check=_refuse) as stream:
        stream.write(b"third")
    assert file.read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def _refuse() -> None:
    raise RuntimeError


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"of somebody else")
    link.symlink_to(target)
    replace_file(link, b"ours")
    assert target.read_bytes() == b"of somebody else"
    assert not link.is_symlink()
    assert link.read_bytes() == b"ours"


@pytest.mark.parametrize("dangling", [False, True])
def test_a_new_file_is_not_made_through_a_link(tmp_path: Path, dangling: bool) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    if not dangling:
        target.write_bytes(b"of somebody else")
    link.symlink_to(target)
    with pytest.raises(FileExistsError), new_file(link) as stream:
        stream.write(b"x")
    with pytest.raises(RefusedError) as caught:
        create_file(link, b"x")
    assert caught.value.code == "file.exists"
    assert target.exists() != dangling
    assert link.is_symlink()


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620, 0o660, 0o601])
def test_a_secret_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "ring.kek"
    create_kek(file, Secret(bytes(32)))
    assert read_kek(file) == Secret(bytes(32))
    file.chmod(mode)
    with pytest.raises(RefusedError) as caught:
        read_kek(file)
    assert caught.value.code == "file.exposed"
    assert f"chmod 600 {file}" in (caught.value.hint or "")
    file.chmod(0o400)
    assert read_kek(file) == Secret(bytes(32))


def test_what_is_not_there_is_reported_by_whoever_reads_it(tmp_path: Path) -> None:
    check_secret(tmp_path / "absent")
    check_secret(tmp_path)


def test_the_owner_of_a_machine_may_share_a_secret_with_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.key"
    create_file(file, repr(private_key_to_sexp(new_key(os.urandom))).encode())
    file.chmod(0o640)
    really = Path.stat

    def owned_by(uid: int) -> None:
        def found(self: Path, **more: bool) -> os.stat_result:
            values = list(really(self, **more))
            values[stat.ST_UID] = uid
            return os.stat_result(values)

        monkeypatch.setattr(Path, "stat", found)

    owned_by(0)
    check_secret(file)
    owned_by(1_000)
    with pytest.raises(RefusedError):
        check_secret(file)

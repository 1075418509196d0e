"""Lines appended to a log: whole, private, and in a new file after the old one was moved away."""

import stat
from pathlib import Path

import pytest

from penstock.errors import FailedError
from penstock.store.files.appended_lines import AppendedLines


def test_lines_are_appended_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old\n")
    path.chmod(0o600)
    lines = AppendedLines(path)
    lines.write(b"one\n")
    lines.write(b"two\nthree\n")
    assert path.read_bytes() == b"old\none\ntwo\nthree\n"
    lines.close()
    other = AppendedLines(tmp_path / "new")
    other.write(b"x\n")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600
    other.close()


def test_a_file_that_was_moved_away_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = AppendedLines(path)
    lines.sync()
    lines.write(b"one\n")
    path.rename(tmp_path / "old")
    lines.sync()
    lines.write(b"two\n")
    lines.close()
    assert ((tmp_path / "old").read_bytes(), path.read_bytes()) == (b"one\n", b"two\n")


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    lines = AppendedLines(tmp_path)
    with pytest.raises(FailedError) as caught:
        lines.write(b"one\n")
    assert caught.value.code == "log.write"
    full = AppendedLines(Path("/dev/full"))
    with pytest.raises(FailedError):
        full.write(b"one\n")

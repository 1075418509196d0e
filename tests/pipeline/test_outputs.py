"""Where jobs write."""

from pathlib import Path

import pytest
from tests.trust.kit import refused

from penstock.pipeline.outputs import check_apart


@pytest.mark.parametrize(
    ("out", "files"),
    [
        ("log", "log/sealed"),
        ("./log/", "log/events"),
        ("log", "log"),
        ("file:{here}/log", "{here}/log/sealed"),
        ("again", "log/sealed"),
        ("hdfs://plant/log/", "hdfs://plant/log/sealed"),
    ],
)
def test_what_is_read_is_not_written_over(
    out: str, files: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log").mkdir()
    Path("again").symlink_to("log")
    with refused("pipeline.own-input"):
        check_apart(out.format(here=tmp_path), files.format(here=tmp_path))


@pytest.mark.parametrize("files", [None, "log/sealed", "login/out2/events", "hdfs://plant/out"])
def test_what_stands_elsewhere_is(files: str | None) -> None:
    check_apart("login/out", files)

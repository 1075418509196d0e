"""The archive of Spark's classes: what is done where Java makes none, and who uses one."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests import java
from tests.scripts import load_script


@pytest.fixture(scope="module")
def spark_archive() -> ModuleType:
    return load_script("tools/spark_archive.py")


@pytest.mark.parametrize("case", [(0, b"classes", True), (0, b"", False), (1, b"some", False)])
def test_an_archive_that_is_not_whole_is_told_and_no_fault(
    spark_archive: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: tuple[int, bytes, bool],
) -> None:
    status, content, whole = case
    archive, part = tmp_path / "spark.jsa", tmp_path / "spark.part"
    archive.write_bytes(b"an old one")
    part.write_bytes(b"of a run that was stopped")

    def submit(command: list[str], env: Mapping[str, str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        assert f"-XX:ArchiveClassesAtExit={part}" in env["SPARK_SUBMIT_OPTS"]
        assert "SPARK_CONF_DIR" not in env
        assert not part.exists(), "Java replaces none"
        assert archive.read_bytes() == b"an old one"
        if content:
            part.write_bytes(content)
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setenv("SPARK_CONF_DIR", "somewhere")
    monkeypatch.setattr(subprocess, "run", submit)
    spark_archive.make(archive)
    assert archive.read_bytes() == content
    assert (capsys.readouterr().err == "") is whole


def test_only_an_archive_that_was_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "spark.jsa"
    monkeypatch.setattr(java, "ARCHIVE", archive)
    for content, named in ((None, False), (b"", False), (b"classes", True)):
        if content is not None:
            archive.write_bytes(content)
        assert (f"-XX:SharedArchiveFile={archive}" in java.options().split()) is named
    assert "-Dspark.a=b" in java.options({"spark.a": "b"}).split()

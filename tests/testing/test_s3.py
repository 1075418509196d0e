"""The S3 server of tests: what it says where it cannot start. `tests/pipeline/test_object_store.py` uses it."""

from pathlib import Path

import pytest

from penstock.errors import FailedError
from penstock.testing.s3 import S3Server


def test_a_server_that_does_not_get_ready_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho no such class; exit 3\n")
    program.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(FailedError) as failed, S3Server(tmp_path / "jars"):
        pass
    assert failed.value.code == "testing.s3-not-ready"
    assert "no such class" in str(failed.value.hint)


def test_a_server_needs_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(FailedError) as failed, S3Server(tmp_path / "jars"):
        pass
    assert failed.value.code == "testing.no-java"

"""The jars of the Kafka server: pinned, checked, and fetched by Maven or by Ivy."""

import hashlib
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.kafka_server import jars_module

ONE = ("org.example", "one", "1.2")
CONTENT = b"a jar"
JARS = {ONE: hashlib.sha256(CONTENT).hexdigest()}


@pytest.fixture(scope="module")
def kafka_jars() -> ModuleType:
    return jars_module()


def resolver(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, content: bytes, *, maven: bool, status: int = 0
) -> list[list[str]]:
    """Let a program fetch this content, and return its commands."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        target = next(
            word for word in command if "/jars" in word and ("outputDirectory" in word or "[artifact]" in word)
        )
        folder = Path(target.split("=")[-1].replace("/[artifact]-[revision].[ext]", ""))
        folder.mkdir()
        (folder / "one-1.2.jar").write_bytes(content)
        return subprocess.CompletedProcess(command, status, "", "no such host")

    monkeypatch.setattr(module.subprocess, "run", run)
    monkeypatch.setattr(module.shutil, "which", lambda name, **_: f"/bin/{name}" if maven or name == "java" else None)
    return commands


@pytest.mark.parametrize("maven", [True, False])
def test_jars_come_from_maven_or_from_ivy_and_are_checked(
    kafka_jars: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maven: bool
) -> None:
    commands = resolver(monkeypatch, kafka_jars, CONTENT, maven=maven)
    found = kafka_jars.resolve(JARS, tmp_path)
    assert [path.name for path in found.iterdir()] == ["one-1.2.jar"]
    assert len(commands) == 1
    assert ("mvn" in commands[0][0]) is maven
    written = (tmp_path / ("pom.xml" if maven else "ivy.xml")).read_text()
    assert "org.example" in written
    assert ("<artifactId>*</artifactId>" if maven else 'transitive="false"') in written


def test_other_content_and_other_jars_are_refused(
    kafka_jars: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver(monkeypatch, kafka_jars, b"another", maven=True)
    with pytest.raises(kafka_jars.UnavailableError, match=r"one-1\.2\.jar"):
        kafka_jars.resolve(JARS, tmp_path)
    (tmp_path / "jars" / "one-1.2.jar").write_bytes(CONTENT)
    kafka_jars.check(JARS, tmp_path / "jars")
    (tmp_path / "jars" / "two-1.jar").write_bytes(CONTENT)
    with pytest.raises(kafka_jars.UnavailableError, match=r"two-1\.jar"):
        kafka_jars.check(JARS, tmp_path / "jars")


def test_a_repository_that_cannot_be_reached_is_the_reason(
    kafka_jars: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver(monkeypatch, kafka_jars, CONTENT, maven=False, status=1)
    with pytest.raises(kafka_jars.UnavailableError, match="no such host"):
        kafka_jars.resolve(JARS, tmp_path)


def test_the_list_pins_every_jar_once(kafka_jars: ModuleType) -> None:
    text = kafka_jars.LIST.read_text()
    jars = kafka_jars.wanted(text)
    assert len(jars) == len([line for line in text.splitlines() if line and line[0] != "#"])
    assert len({artifact for _, artifact, _ in jars}) == len(jars)
    assert {len(digest) for digest in jars.values()} == {64}
    assert ("org.apache.kafka", "kafka_2.13", "4.3.0") in jars

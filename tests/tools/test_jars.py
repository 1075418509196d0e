"""The jars of servers and of Spark: pinned, checked, and fetched by Maven or by Ivy."""

import hashlib
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pyspark
import pytest
from tests.scripts import load_script

ONE = ("org.example", "one", "1.2")
CONTENT = b"a jar"
JARS = {ONE: hashlib.sha256(CONTENT).hexdigest()}


@pytest.fixture(scope="module")
def jars_tool() -> ModuleType:
    return load_script("tools/jars.py")


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
    jars_tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maven: bool
) -> None:
    commands = resolver(monkeypatch, jars_tool, CONTENT, maven=maven)
    found = jars_tool.resolve(JARS, tmp_path)
    assert [path.name for path in found.iterdir()] == ["one-1.2.jar"]
    assert len(commands) == 1
    assert ("mvn" in commands[0][0]) is maven
    # Guava's type, say, which Maven does not ask for.
    assert ("bundle" in commands[0]) is not maven
    written = (tmp_path / ("pom.xml" if maven else "ivy.xml")).read_text()
    assert "org.example" in written
    assert ("<artifactId>*</artifactId>" if maven else 'transitive="false"') in written


def test_other_content_and_other_jars_are_refused(
    jars_tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver(monkeypatch, jars_tool, b"another", maven=True)
    with pytest.raises(jars_tool.UnavailableError, match=r"one-1\.2\.jar"):
        jars_tool.resolve(JARS, tmp_path)
    (tmp_path / "jars" / "one-1.2.jar").write_bytes(CONTENT)
    jars_tool.check(JARS, tmp_path / "jars")
    (tmp_path / "jars" / "two-1.jar").write_bytes(CONTENT)
    with pytest.raises(jars_tool.UnavailableError, match=r"two-1\.jar"):
        jars_tool.check(JARS, tmp_path / "jars")


def test_a_repository_that_cannot_be_reached_is_the_reason(
    jars_tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver(monkeypatch, jars_tool, CONTENT, maven=False, status=1)
    with pytest.raises(jars_tool.UnavailableError, match="no such host"):
        jars_tool.resolve(JARS, tmp_path)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("kafka", ("org.apache.kafka", "kafka_2.13", "4.3.0")),
        ("s3a", ("org.apache.hadoop", "hadoop-aws", "3.5.0")),
        ("s3proxy", ("org.gaul", "s3proxy", "4.1.0")),
    ],
)
def test_a_list_pins_every_jar_once(jars_tool: ModuleType, name: str, first: tuple[str, str, str]) -> None:
    text = (jars_tool.LISTS / f"{name}.txt").read_text()
    jars = jars_tool.wanted(text)
    assert len(jars) == len([line for line in text.splitlines() if line and line[0] != "#"])
    assert len({artifact for _, artifact, _ in jars}) == len(jars)
    assert {len(digest) for digest in jars.values()} == {64}
    assert first in jars


def test_the_connector_is_that_of_the_hadoop_in_pyspark(jars_tool: ModuleType) -> None:
    jars = jars_tool.wanted((jars_tool.LISTS / "s3a.txt").read_text())
    (connector,) = (version for _, artifact, version in jars if artifact == "hadoop-aws")
    assert (Path(pyspark.__file__).parent / "jars" / f"hadoop-client-api-{connector}.jar").exists()


def test_jars_are_fetched_once_and_again_for_another_list(
    jars_tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars_tool, "LISTS", tmp_path)
    monkeypatch.setattr(jars_tool, "FOLDER", tmp_path / "fetched")
    commands = resolver(monkeypatch, jars_tool, CONTENT, maven=True)
    line = f"{JARS[ONE]}  {':'.join(ONE)}\n"
    (tmp_path / "some.txt").write_text(line)
    found = jars_tool.fetch("some")
    assert [path.name for path in found.iterdir()] == ["one-1.2.jar"]
    assert jars_tool.fetch("some") == found
    (tmp_path / "some.txt").write_text(f"# changed\n{line}")
    assert jars_tool.fetch("some") != found
    assert len(commands) == 2

"""Setting up: which Java is taken, and what the locks promise."""

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from tests.scripts import load_script

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bootstrap() -> ModuleType:
    return load_script("tools/bootstrap.py")


def fake_java(folder: Path, words: str, status: int = 0) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!{sys.executable}\nimport sys\nprint({words!r}, file=sys.stderr)\nsys.exit({status})\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("words", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_202"', 8),
        ("no version here", None),
    ],
)
def test_reads_the_version_of_a_java(bootstrap: ModuleType, tmp_path: Path, words: str, version: int | None) -> None:
    assert bootstrap.java_version(str(fake_java(tmp_path, words))) == version


def test_a_java_that_does_not_run_has_no_version(bootstrap: ModuleType, tmp_path: Path) -> None:
    assert bootstrap.java_version(str(tmp_path / "nowhere")) is None
    assert bootstrap.java_version(str(fake_java(tmp_path, 'openjdk version "21"', status=1))) is None


def test_takes_the_machines_java_when_it_is_new_enough(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    fake_java(old, 'openjdk version "11.0.2"')
    fake_java(new, 'openjdk version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(new / "bin"))
    assert bootstrap.machine_java() == new
    monkeypatch.setenv("PATH", str(old / "bin"))
    assert bootstrap.machine_java() is None


def test_the_shim_drops_the_module_that_the_wheel_lacks(bootstrap: ModuleType, tmp_path: Path) -> None:
    said = tmp_path / "said"
    real = tmp_path / "real-java"
    real.write_text(f'#!/bin/sh\nfor a in "$@"; do echo "$a" >> {said}; done\n')
    real.chmod(0o755)
    shim = tmp_path / "java"
    shim.write_text(bootstrap.SHIM.format(java=real))
    shim.chmod(0o755)
    bootstrap.subprocess.run([shim, "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", ""], check=True)
    assert said.read_text() == "-Xmx1g\na b\n\n"


def test_an_environment_of_this_python_is_left_in_place(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    assert not bootstrap.usable()
    python = bootstrap.venv_python()
    python.parent.mkdir()
    for said, usable in ((sys.version, True), ("3.10.0", False)):
        python.write_text(f"#!{sys.executable}\nprint({said!r})\n")
        python.chmod(0o755)
        assert bootstrap.usable() is usable


def test_the_parts_of_the_lock_are_the_whole(bootstrap: ModuleType) -> None:
    lock = bootstrap.LOCK.read_text()
    parts = bootstrap.parts(lock)
    assert [part.startswith("pyspark==") for part in parts] == [True, False, False]
    assert all(part.count("--hash") >= part.count("==") > 0 for part in parts)
    assert sorted(line for part in parts for line in part.splitlines()) == sorted(lock.splitlines())


@pytest.mark.parametrize("lock", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda path: path.name)
def test_locks_are_pinned_hashed_and_name_no_host(lock: Path) -> None:
    text = lock.read_text()
    pins = [line for line in text.splitlines() if re.match(r"[a-z0-9]", line)]
    assert pins
    assert all("==" in pin for pin in pins)
    assert text.count("--hash=sha256:") >= len(pins)
    assert "://" not in text
    assert "index" not in text


def test_every_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    wanted = [*project["project"]["dependencies"], *(name for extra in extras for name in extra)]
    wanted += [name for group in project["dependency-groups"].values() for name in group]
    locks = [path.read_text().splitlines() for path in (ROOT / "requirements").glob("*.txt")]
    locked = {line.split("==")[0] for lock in locks for line in lock}
    assert {re.split(r"[<>=~! \[]", name)[0].lower() for name in wanted} <= locked


def test_set_up_says_why_there_is_no_dds(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "VENV", tmp_path / "venv")
    monkeypatch.setattr(bootstrap, "TOOLS", tmp_path / "tools")
    python = bootstrap.venv_python()
    tools = tmp_path / "bin"
    for program, status in ((python, 0), (tools / "apt-get", 100), (tools / "dpkg-deb", 0), (tools / "cc", 0)):
        program.parent.mkdir(exist_ok=True, parents=True)
        program.write_text(f"#!/bin/sh\necho no such package >&2\nexit {status}\n")
        program.chmod(0o755)
    bootstrap.provide_dds()
    assert capsys.readouterr().err == ""  # the package is there
    python.write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    bootstrap.provide_dds()
    assert "skipped: there is no apt-get and no dpkg-deb and no cc\n" in capsys.readouterr().err
    monkeypatch.setenv("PATH", f"{tools}:/bin:/usr/bin")
    bootstrap.provide_dds()
    assert "skipped: no such package\n" in capsys.readouterr().err

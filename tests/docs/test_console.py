"""Commands in the documentation run, with the exit status and the output that the page promises."""

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from tests import copies, java
from tests.docs import ask, kafka_topics
from tests.docs.pages import Session
from tests.jars import fetched_jars

from penstock.pipeline.jobs.session_settings import INTERPRETED
from penstock.testing.server_process import free_ports

ROOT = Path(__file__).resolve().parents[2]
CONSOLE = re.compile(r"^```console[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
#: ports on pages; they may be taken where the pages are tested
PORT = re.compile(r"\b27\d{3}\b")
PAGES = [
    page
    for folder in ("tutorial", "how-to", "reference")
    for page in sorted((ROOT / "docs" / folder).glob("*.md"))
    if CONSOLE.search(page.read_text(encoding="utf-8"))
]


def with_free_ports(text: str) -> str:
    """Return a page with other ports, which are free, so that it can be tested several times in parallel."""
    named = set(PORT.findall(text))
    free = dict(zip(named, map(str, free_ports(len(named))), strict=True))
    return PORT.sub(lambda found: free[found.group()], text)


def test_pages_are_tested_on_ports_that_are_free() -> None:
    first, again, other = with_free_ports("27600 27600 27601").split()
    assert first == again
    assert len({first, other, "27600", "27601"}) == 4
    addresses = re.compile(r"127\.0\.0\.1:(\d+)")
    for page in PAGES:
        blocks = "".join(CONSOLE.findall(page.read_text(encoding="utf-8")))
        assert [port for port in addresses.findall(blocks) if not PORT.fullmatch(port)] == [], page.name


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a `penstock` that starts immediately."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "penstock"
    asking = shlex.join([sys.executable, "-I", "-S", ask.__file__, str(copies.server())])
    program.write_text(f'#!/bin/sh\nexec {asking} "$@"\n', encoding="utf-8")
    program.chmod(0o700)
    return folder


def add_kafka(programs: Path) -> None:
    """Add the programs of Kafka that pages use; skip where its jars cannot be fetched."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else "java"
    start = f"exec {java} -Xmx256m -cp '{fetched_jars('kafka')}/*'"
    topics = shlex.join([sys.executable, kafka_topics.__file__])
    for name, command in (
        ("kafka-storage.sh", f"{start} kafka.tools.StorageTool"),
        ("kafka-server-start.sh", f"{start} kafka.Kafka"),
        ("kafka-topics.sh", f"exec {topics}"),
    ):
        (programs / name).write_text(f'#!/bin/sh\n{command} "$@"\n', encoding="utf-8")
        (programs / name).chmod(0o700)


def cases() -> Iterator[ParameterSet]:
    """Yield the pages; those that start a Spark for each command take long."""
    for page in PAGES:
        long = any("penstock pipeline" in block for block in CONSOLE.findall(page.read_text(encoding="utf-8")))
        yield pytest.param(page, id=str(page.relative_to(ROOT)), marks=[pytest.mark.long] if long else [])


@pytest.mark.parametrize("page", [*cases()])
def test_commands_run_as_shown(page: Path, tmp_path: Path, programs: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    text = page.read_text(encoding="utf-8")
    if "$ kafka-" in text:
        add_kafka(programs)
    if "LONG" not in os.environ:
        text = text.partition("<!-- test: long -->")[0]
    Session(tmp_path, environment(programs, tmp_path)).follow(with_free_ports(text))


def test_the_readme_shows_what_happens(tmp_path: Path, programs: Path) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8").replace("$ pip install .", "$ penstock --version\n…")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    Session(tmp_path, environment(programs, tmp_path), whole=True).follow(page)


def environment(programs: Path, home: Path) -> dict[str, str]:
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    made = {**os.environ, "PATH": path, "HOME": str(home), "COLUMNS": "120", "PYTHONIOENCODING": "utf-8"}
    made["XDG_CONFIG_HOME"] = str(home / ".config")
    made["SPARK_SUBMIT_OPTS"] = java.options(INTERPRETED)
    return made

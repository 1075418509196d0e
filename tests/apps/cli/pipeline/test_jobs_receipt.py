"""The worked example over a real log: its files are what it makes of them, and its commands run as README shows."""

import os
import re
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession
from tests.apps.conftest import Shell
from tests.pipeline.jobs_plant import interpreted
from tests.scripts import load_script

ROOT = Path(__file__).resolve().parents[4]
EXAMPLE = ROOT / "examples" / "receipt"
#: events of the whole log, and of the part of it that is tried here
WHOLE, SOME = "8,577", 120
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)


def example() -> ModuleType:
    return load_script("examples/receipt/receipt.py")


def test_the_signed_files_are_those_that_the_example_makes(tmp_path: Path) -> None:
    example().sign(tmp_path)
    made = {file.relative_to(tmp_path): file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert {str(name) for name in made} > {"receipt.type", "names.toml", "certs/group-1.cert"}
    assert {name: (EXAMPLE / name).read_bytes() for name in made} == made
    assert len(list((EXAMPLE / "certs").iterdir())) == sum(name.parts[0] == "certs" for name in made)


def commands() -> Iterator[tuple[list[str], list[str]]]:
    """Yield the commands that README shows, each with the lines that it promises."""
    for block in CONSOLE.findall((EXAMPLE / "README.md").read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
            command, *lines = part.splitlines()
            yield shlex.split(command), lines


@pytest.mark.long
def test_its_commands_run_as_shown(spark: SparkSession, penstock: Shell) -> None:
    log = Path(os.environ.get("PENSTOCK_SUITES", "")) / "events" / "receipt.csv"
    if not log.is_file():
        pytest.skip("the log is not here")
    with log.open(encoding="utf-8") as file:
        Path("receipt.csv").write_text("".join(islice(file, SOME + 1)), encoding="utf-8")
    Path("examples").symlink_to(ROOT / "examples")
    ran = 0
    with interpreted(spark):
        for (program, *arguments), lines in commands():
            if program != "penstock":
                continue
            out = penstock.ok(*arguments).out.splitlines()
            for line in (line.replace(WHOLE, str(SOME)) for line in lines):
                assert any(found.startswith(line.rstrip("…")) for found in out), (arguments, line, out)
            ran += 1
    assert ran > 9

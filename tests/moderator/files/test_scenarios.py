"""The examples of paper 1 come out as the paper says, step by step, through the library and the command line."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.apps.cli.moderator.commands import moderator
from penstock.codec.yaml_text import read_yaml
from penstock.moderator.files.scenarios import FACTS, REQUESTS, read_scenario, run

FILES = sorted((Path(__file__).parents[2] / "scenarios" / "moderator").glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_scenario_comes_out_as_it_expects(file: Path) -> None:
    told = [*run(read_scenario(read_yaml(file.read_text(encoding="utf-8"))))]
    assert told
    assert [(each.number, each.differences) for each in told if each.differences] == []
    # What is in force and in the log at the end is said somewhere, so that a scenario cannot expect nothing.
    assert "expect:" in file.read_text(encoding="utf-8").rpartition("\n  - ")[2]


def test_the_scenario_in_the_reference_comes_out_as_it_expects() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "moderator-scenario.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    told = [*run(read_scenario(read_yaml(text)))]
    assert [(each.number, each.differences) for each in told] == [(1, ()), (2, ()), (3, ()), (4, ())]


def test_every_request_and_fact_is_in_the_reference() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "moderator-scenario.md").read_text(encoding="utf-8")
    assert [name for name in FACTS if f"`{name}`" not in page] == []
    assert [name for name in REQUESTS if f"`{name}: " not in page] == []


def test_the_command_line_tells_the_same() -> None:
    file = FILES[0]
    answer = CliRunner().invoke(moderator, ["test", str(file), "-o", "json"])
    assert answer.exit_code == 0
    told = [*run(read_scenario(read_yaml(file.read_text(encoding="utf-8"))))]
    assert json.loads(answer.stdout)["steps"] == [
        {"number": each.number, **each.facts, "differences": []} for each in told
    ]

"""The examples of paper 1 come out as the paper says, step by step, through the library and the command line."""

import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.apps.cli.main import cli
from penstock.apps.cli.moderator.commands import moderator
from penstock.codec.yaml_text import read_yaml
from penstock.errors import MalformedError, PenstockError
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


SMALL = """
title: small
now: 2026-01-01T00:00:00Z
scope: upward
types: {A1: }
subscribers: {attributes: {role: [engineer, worker], age: {min: 0, max: 120}}}
steps:
  - add: {id: r1, event: A1, by: P1, fnc_s: {role: engineer, age: {min: 18}}}
    expect: {outcome: accepted}
"""


def test_a_function_is_a_list_or_a_selector() -> None:
    (told,) = run(read_scenario(read_yaml(SMALL)))
    assert told.facts["rules"] == ["rule(A1, [P1], {(age, min, 18), (role, engineer)})"]
    text = SMALL.replace("{role: engineer, age: {min: 18}}", "\"role = 'engineer' OR age > 60\"")
    (told,) = run(read_scenario(read_yaml(text)))
    assert told.facts["rules"] == ["rule(A1, [P1], role = 'engineer' OR age > 60)"]


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("title: small", "titel: small", "moderator.scenario"),
        ("scope: upward", "scope: sideways", "moderator.scenario"),
        ("scope: upward", "scope: upward\nmode: none", "moderator.scenario"),
        ("scope: upward", "scope: upward\ncustoms: {heuristic: luck}", "moderator.scenario"),
        ("scope: upward", "scope: upward\nextra: 1", "moderator.scenario"),
        ("2026-01-01T00:00:00Z", "yesterday", "date.malformed"),
        ("{A1: }", "[A1]", "moderator.scenario"),
        ("{A1: }", "{A1: A1}", "type.cycle"),
        ("{A1: }", "{A1: A0}", "tree.parent"),
        ("[engineer, worker]", "[]", "value.domain"),
        ("[engineer, worker]", "colour", "moderator.scenario"),
        ("{min: 18}", "{least: 18}", "moderator.scenario"),
        ("{min: 18}", "[18]", "moderator.scenario"),
        ("{role: engineer, age: {min: 18}}", "{}", "moderator.empty-list"),
        ("{role: engineer, age: {min: 18}}", "3", "moderator.scenario"),
        ("by: P1, ", "", "moderator.scenario"),
        ("by: P1", "by: [P1]", "moderator.scenario"),
        ("id: r1", "id: r1, colour: red", "moderator.scenario"),
        ("  - add:", "  - addd:", "moderator.scenario"),
        ("outcome: accepted", "result: accepted", "moderator.scenario"),
    ],
)
def test_what_is_refused(old: str, new: str, code: str) -> None:
    assert old in SMALL
    with pytest.raises(PenstockError) as raised:
        read_scenario(read_yaml(SMALL.replace(old, new)))
    assert raised.value.code == code


def test_the_command_says_what_did_not_come_out(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL.replace("outcome: accepted", "outcome: rejected, log: []"), encoding="utf-8")
    answer = CliRunner().invoke(cli, ["moderator", "test", str(file)])
    assert answer.exit_code == 1
    assert 'outcome: expected "rejected"' in answer.output
    assert "0 of 1 steps as expected" in answer.output
    assert "[moderator.unexpected]" in answer.output
    file.write_bytes(b"\xff")
    assert CliRunner().invoke(cli, ["moderator", "test", str(file)]).exit_code == 2


STORY = (
    SMALL
    + """
  - subscribe: {id: s1, event: A1, by: Ada, until: 2027-01-01}
  - resolve: {rule: r1, strategy: follow, consents: [P1]}
    who: P1
  - move-type: {event: A1, parent: , strategy: add-attributes}
    at: 2026-02-01
  - undo: {step: 1, replay: true}
    why: nothing
"""
)


@given(
    st.integers(0, len(STORY) - 1),
    st.integers(0, 10),
    st.text("{}[]:-,'\"# \nra1.", max_size=4) | st.sampled_from(["null", "true", "[]", "{}", "step", "\0", "é"]),
)
@settings(max_examples=examples(100), deadline=None)
def test_any_scenario_is_read_or_refused(start: int, length: int, instead: str) -> None:
    with suppress(MalformedError):
        read_scenario(read_yaml(STORY[:start] + instead + STORY[start + length :]))


def test_a_scenario_may_begin_with_rules() -> None:
    stated = "rules: [{id: r0, event: A1, by: P0, fnc_s: {role: worker}}]\nsteps:"
    told = [*run(read_scenario(read_yaml(SMALL.replace("steps:", stated))))]
    assert [each.facts["outcome"] for each in told] == ["accepted", "rejected"]
    assert [each.number for each in told if each.differences] == [2]

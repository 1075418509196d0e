"""The scenarios of examples/roles give the expected results, and differences are found."""

from pathlib import Path

import pytest

from penstock.codec.yaml_text import read_yaml
from penstock.errors import MalformedError
from penstock.roles.language import format_policy, read_policy
from penstock.roles.scenarios import read_role_scenario, run_roles

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "roles"
FOLDERS = sorted(path.parent for path in EXAMPLES.rglob("scenario.yaml"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_examples_give_the_expected_results(folder: Path) -> None:
    scenario = read_role_scenario(
        read_yaml((folder / "scenario.yaml").read_text()), lambda name: (folder / name).read_text()
    )
    results = [*run_roles(scenario)]
    assert len(results) > 20
    assert [(one.number, one.differences) for one in results if one.differences] == []


@pytest.mark.parametrize("file", sorted(EXAMPLES.rglob("*.roles")), ids=lambda file: file.name)
def test_the_examples_are_formatted(file: Path) -> None:
    assert format_policy(read_policy(file.read_text())) == file.read_text()


SMALL = """
start: 2026-03-02T09:00Z
domains: {d: policy}
people: [ann]
steps:
  - {open: s, who: ann}
  - {activate: a, session: s, STEP}
"""
POLICY = "role a; fact f: boolean;\nactivate a if where f *;"


@pytest.mark.parametrize(
    ("step", "differences"),
    [
        ("expect: {refused: role.denied}", ()),
        ("expect: {refused: role.session}", (("refused", "role.session", "role.denied"),)),
        ("expect: {roles: {}}", (("refused", None, "role.denied"),)),
        ("expect: {refused: role.denied, roles: {ann: [a]}}", (("roles", {"ann": ["a"]}, {}),)),
    ],
)
def test_differences(step: str, differences: tuple[object, ...]) -> None:
    scenario = read_role_scenario(read_yaml(SMALL.replace("STEP", step)), lambda _: POLICY)
    assert [*run_roles(scenario)][1].differences == differences


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{start: 2026-03-02T09:00Z, domains: {}, steps: []}",
        "{start: 2026-03-02T09:00Z, domains: {d: p}, steps: [{}]}",
        "{start: 2026-03-02T09:00Z, domains: {d: p}, steps: [{open: s, end: s}]}",
        "{start: 2026-03-02T09:00Z, domains: {d: p}, steps: [{open: s, extra: s}]}",
        "{start: 2026-03-02T09:00Z, domains: {d: p}, steps: [{in: e, open: s}]}",
        "{start: 2026-03-02T09:00Z, domains: {d: p}, steps: [{open: s, expect: {more: 1}}]}",
        "{start: 2026-03-02T09:00Z, domains: {d: p}, steps: [{open: s, who: nobody}]}",
        "{start: 2026-03-02T09:00Z, domains: {d: p}, steps: [{withdraw: unnamed}]}",
        "{start: 2026-03-02T09:00Z, domains: {d: p}, steps: [{activate: a, session: s, arguments: 1}]}",
    ],
)
def test_what_is_malformed_is_refused(text: str) -> None:
    with pytest.raises(MalformedError) as caught:
        [*run_roles(read_role_scenario(read_yaml(text), lambda _: POLICY))]
    assert caught.value.code == "role.scenario"

"""Old spellings do what the new ones do, with a warning, and appear in no help text and no completion."""

import json
from collections.abc import Iterator
from typing import Any

import click
import pytest
from tests.apps.cli.test_reference import COMMANDS as EXISTING
from tests.apps.cli.test_reference import parent
from tests.apps.conftest import Shell

from penstock.apps.cli.main import cli
from penstock.apps.cli.shared.renames import COMMANDS, OPTIONS, REMOVED_IN, RenamedOption, current_command

#: a value that each option understands
VALUES = {"--overwrite": (), "--set": ("a=1",), "--connect-timeout": ("3",), "--subscriber-timeout": ("3",)}
VALUES |= {"--limit": ("3",), "--ring": ("a",), "--type-file": ("a",), "--credential": ("a",)}


def rows() -> Iterator[tuple[RenamedOption, str]]:
    for row in OPTIONS:
        for name, command in EXISTING.items():
            if row.applies(name) and any(row.new in one.opts for one in command.params):
                yield row, name


ROWS = list(rows())


def parsed(name: str, *arguments: str) -> dict[str, Any]:
    return EXISTING[name].make_context(name, [*arguments], parent=parent(), resilient_parsing=True).params


@pytest.mark.parametrize("old", COMMANDS)
def test_an_old_command_is_the_new_one(penstock: Shell, old: str) -> None:
    new = COMMANDS[old]
    before, after = penstock.ok(*old.split(), "--help"), penstock.ok(*new.split(), "--help")
    assert before.out == after.out
    assert before.out.startswith(f"Usage: penstock {new} ")
    assert (before.err, after.err) == (
        f"warning: `penstock {old}` is now `penstock {new}`; the old spelling goes with {REMOVED_IN} [cli.renamed]\n",
        "",
    )
    assert old not in EXISTING


def test_every_verb_of_a_renamed_noun_is_found() -> None:
    for verb in ("join", "rotate", "evict", "forget", "fetch"):
        assert f"sealing {verb}" in EXISTING
        assert current_command(["keys", verb, "x"])[0] == ["sealing", verb, "x"]
    assert current_command(["keys"])[0] == ["sealing"]
    assert current_command(["name", "add", "keys"]) == (["name", "add", "keys"], "")


def test_every_row_is_about_an_option_that_exists() -> None:
    assert {row for row, _ in ROWS} == {*OPTIONS}
    for row in OPTIONS:
        assert {*row.commands} <= {name for other, name in ROWS if other is row}


@pytest.mark.parametrize(("row", "name"), ROWS)
def test_an_old_option_is_the_new_one(row: RenamedOption, name: str) -> None:
    given = parsed(name, row.new, *VALUES[row.new])
    assert parsed(name, row.old, *VALUES[row.new]) == given != parsed(name)
    if VALUES[row.new]:
        assert parsed(name, f"{row.old}={VALUES[row.new][0]}") == given


@pytest.mark.parametrize(("row", "name"), ROWS)
def test_no_help_text_and_no_completion_has_it(row: RenamedOption, name: str) -> None:
    context = click.Context(EXISTING[name], info_name=name, parent=parent())
    words = EXISTING[name].get_help(context).replace(",", " ").split()
    assert row.old not in words
    assert row.new in words
    assert row.old not in [one.value for one in EXISTING[name].shell_complete(context, row.old)]


def test_old_nouns_and_verbs_are_not_completed() -> None:
    nouns = [one.value for one in cli.shell_complete(parent(), "")]
    assert "sealing" in nouns
    assert "keys" not in nouns


def test_old_and_new_together_are_one_option(penstock: Shell) -> None:
    penstock.ok("key", "new", "a.key", "--name", "a")
    penstock.ok("type", "define", "a.B", "--key", "a.key", "--attribute", "x:integer", "--out", "b.type")
    issue = ("cert", "issue", "--key", "a.key", "--to", "a", "--type-file", "b.type", "--right", "publish")
    assert penstock(*issue, "--force", "x=1", "--set", "x=2").code == "cli.twice"
    old, new = (penstock.ok(*issue, option, "x=1", "-o", "json").json for option in ("--force", "--set"))
    assert old["grants"] == new["grants"]
    assert "--force" in penstock.ok(*issue, "--comment", "--force").out, "it is a value here"


def test_programs_read_the_same(penstock: Shell) -> None:
    """Standard output is the same, and an error is still one object."""
    line = ("a > 1", "--attribute", "a:integer", "-o", "json")
    old, new = (
        penstock("selector", "eval", *line, "--value", "a=2"),
        penstock("selector", "evaluate", *line, "--set", "a=2"),
    )
    assert (old.out, old.status) == (new.out, new.status) == ('{\n  "value": true\n}\n', 0)
    assert [line.rpartition(" ")[2] for line in old.err.splitlines()] == ["[cli.renamed]"] * 2
    old, new = (
        penstock("selector", "eval", *line, "--value", "a=x"),
        penstock("selector", "evaluate", *line, "--set", "a=x"),
    )
    assert (old.out, old.status) == (new.out, new.status) == ("", 2)
    said = json.loads(old.err)
    assert [one["code"] for one in said["warnings"]] == ["cli.renamed"] * 2
    assert said["error"] == json.loads(new.err)["error"]
    assert "warnings" not in json.loads(new.err)


def test_an_old_variable_is_read_with_a_warning(penstock: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    line = ("open", "a.sealed", "--type-file", "a.type", "--kek", "a.kek")
    for names, warned in ((("KEYS",), True), (("KEYS", "RING"), False), (("RING",), False)):
        for name in ("KEYS", "RING"):
            monkeypatch.setenv(f"PENSTOCK_{name}", "a.ring" if name in names else "")
        ran = penstock(*line)
        assert ran.code == "file.missing"
        assert ("`$PENSTOCK_KEYS` is now `$PENSTOCK_RING`" in ran.err) is warned

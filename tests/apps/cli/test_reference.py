"""docs/reference/cli/ says what `--help` says; every command teaches with an example that is valid."""

import inspect
import itertools
import re
import shlex
from collections.abc import Iterator
from types import ModuleType

import click
import pytest
from tests.scripts import load_script

from penstock.apps.cli.main import GROUPS, cli


def tool() -> ModuleType:
    return load_script("tools/cli_reference.py")


def commands() -> Iterator[tuple[str, click.Command]]:
    for name, noun in cli.nouns.items():
        yield from verbs(name, noun.load())


def verbs(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for verb in command.list_commands(context):
        found = command.get_command(context, verb)
        assert found is not None
        yield from verbs(f"{name} {verb}", found)


COMMANDS = dict(commands())


def parent() -> click.Context:
    """Return the context of `penstock`; commands remember the names of the first help option that they were given."""
    return click.Context(cli, info_name="penstock", help_option_names=["-h", "--help"])


def test_the_reference_is_what_the_tool_writes() -> None:
    made = tool()
    written = {page: page.read_text(encoding="utf-8") for page in made.FOLDER.glob("*.md")}
    assert written == made.pages(), "run tools/cli_reference.py"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_that_its_options_understand(name: str) -> None:
    help_text = COMMANDS[name].help or ""
    examples = re.sub(r"\\\n\s+", "", help_text.partition("Example:\n")[2])
    lines = [line.strip() for line in examples.splitlines() if line.strip().startswith("penstock ")]
    assert lines
    for line in lines:
        words = list(itertools.takewhile(lambda word: word not in ("<", ">", "|", "&&", "#"), shlex.split(line)))
        parts = name.split()
        assert words[1 : 1 + len(parts)] == parts
        COMMANDS[name].make_context(
            name, words[1 + len(parts) :], parent=click.Context(cli, help_option_names=["-h", "--help"])
        )


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_the_same_whether_or_not_python_dedents_docstrings(name: str) -> None:
    words = (COMMANDS[name].help or "").partition("\b")[0]
    assert words == inspect.cleandoc(words) + words[len(words.rstrip()) :]
    assert "  " not in words


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_help_text(name: str) -> None:
    for parameter in COMMANDS[name].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


def test_the_list_of_nouns_says_what_the_nouns_say() -> None:
    for name, noun in cli.nouns.items():
        command = noun.load()
        if isinstance(command, click.Group):
            assert (command.help or "").splitlines()[0] == noun.help, name


def test_the_index_is_what_the_tool_writes() -> None:
    made = tool()
    text = made.INDEX.read_text(encoding="utf-8")
    assert text == made.index(text), "run tools/cli_reference.py"


def test_every_command_is_in_one_group() -> None:
    listed = [name for group in GROUPS.values() for name in group]
    assert sorted(listed) == sorted({*listed})
    assert list(GROUPS) == ["Start here", "Rights", "Run", "Data", "Moderator", "Low level"]
    help_text = cli.get_help(parent())
    found = re.findall(r"^  (?! )(\S+)  +\S", help_text.partition("Start here:")[2], re.MULTILINE)
    assert found == listed
    assert [line[:-1] for line in help_text.splitlines() if line[:-1] in GROUPS] == list(GROUPS)


#: words that have another one in docs/reference/cli.md
OTHER_VERBS = {"create", "define", "make", "delete", "eval", "info", "status"}
OTHER_OPTIONS = {"--force", "--credentials", "--output-file", "--patience", "--replace"}
OTHER_METAVARS = {"DAYS", "PERIOD", "SECONDS"}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_use_the_words_that_others_use(name: str) -> None:
    assert not OTHER_VERBS & {*name.split()}
    for option in COMMANDS[name].params:
        assert not OTHER_OPTIONS & {*option.opts}
        assert option.metavar not in OTHER_METAVARS
        assert not {"-o", "--output"} & {*option.opts} or option.name == "output"

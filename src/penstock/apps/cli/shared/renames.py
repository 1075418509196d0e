"""Old spellings of commands and options. They work until the next minor version, with a warning that names the new one.

A row here is all that a rename needs. Old spellings are in no help text and in no completion.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

import click
from click.core import ParameterSource

#: the version that no longer has the old spellings
REMOVED_IN: Final = "0.3.0"

#: commands by their old spelling, without `penstock`; a noun stands for all its verbs that have no row of their own
COMMANDS: Final[Mapping[str, str]] = {
    "cert name": "cert issue-name",
    "key new-kek": "sealing new-kek",
    "key new-ring": "sealing new-ring",
    "key quorum": "key new-quorum",
    "keys": "sealing",
    "keys status": "sealing show",
    "moderator polls": "moderator show-polls",
    "net forget": "net remove-profile",
    "proof check": "proof verify",
    "proof make": "proof new",
    "selector eval": "selector evaluate",
    "type define": "type new",
}


@dataclass(frozen=True, slots=True)
class RenamedOption:
    """An option by its old and its new spelling, in some commands, or in all that have the new one."""

    old: str
    new: str
    commands: tuple[str, ...] = ()

    def applies(self, command: str) -> bool:
        """Return whether this command had the old spelling."""
        return not self.commands or command in self.commands


OPTIONS: Final = (
    RenamedOption("--credentials", "--credential"),
    RenamedOption("--force", "--overwrite", ("key new",)),
    RenamedOption("--force", "--set", ("cert issue",)),
    RenamedOption("--keys", "--ring"),
    RenamedOption("--patience", "--connect-timeout"),
    RenamedOption("--top", "--limit", ("pipeline audit", "pipeline conflicts")),
    RenamedOption(
        "--type",
        "--type-file",
        ("moderator certify", "open", "proof new", "proof verify", "seal", "sealing new-ring"),
    ),
    RenamedOption("--value", "--set", ("selector evaluate",)),
    RenamedOption("--wait", "--subscriber-timeout", ("pub",)),
)


def rename_message(old: str, new: str) -> str:
    """Return the warning about an old spelling."""
    return f"`{old}` is now `{new}`; the old spelling goes with {REMOVED_IN}"


def current_command(arguments: Sequence[str]) -> tuple[list[str], str]:
    """Return a command line with the command's current spelling, and a warning about an old one, or nothing.

    >>> current_command(["key", "quorum", "--threshold", "2"])[0]
    ['key', 'new-quorum', '--threshold', '2']
    """
    for length in (2, 1):
        old = " ".join(arguments[:length])
        if len(arguments) >= length and old in COMMANDS:
            new = COMMANDS[old]
            return [*new.split(), *arguments[length:]], rename_message(f"penstock {old}", f"penstock {new}")
    return [*arguments], ""


def renamed_options(context: click.Context) -> Iterator[tuple[RenamedOption, click.Option]]:
    """Yield the options of a command that had another spelling."""
    path, at = [], context
    while at.parent is not None:
        path.append(at.info_name or "")
        at = at.parent
    command = " ".join(reversed(path))
    options = {name: one for one in context.command.params if isinstance(one, click.Option) for name in one.opts}
    for row in OPTIONS:
        if row.applies(command) and row.new in options:
            yield row, options[row.new]


def old_options(context: click.Context, arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the old spellings of options on a command line, with the new ones."""
    words = {word.partition("=")[0] for word in takewhile(lambda one: one != "--", arguments)}
    yield from ((row.old, row.new) for row, _ in renamed_options(context) if row.old in words)


def old_variables(context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the old names of environment variables that options were read from, with the new ones."""
    for option in context.command.params:
        found = context.get_parameter_source(option.name or "")
        if found is ParameterSource.ENVIRONMENT and isinstance(option.envvar, list):
            new, old = option.envvar
            if not os.environ.get(new):
                yield f"${old}", f"${new}"

"""Write the part of docs/reference/cli.md that follows from the help texts: `python tools/cli_reference.py`."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from penstock.apps.cli.main import cli

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"
BEGIN = "<!-- from here on written by tools/cli_reference.py -->"
WIDTH = 100


def reference() -> str:
    """Return the help of every command, in the order in which the commands are listed."""
    parts = [f"{'#' * (2 + depth)} `{path}`\n\n```text\n{text}\n```\n" for depth, path, text in _pages(cli, None, 0)]
    return "\n".join(parts)


def _pages(command: click.Command, parent: click.Context | None, depth: int) -> Iterator[tuple[int, str, str]]:
    name = "penstock" if parent is None else command.name
    context = click.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=["-h", "--help"],
    )
    yield depth, context.command_path, command.get_help(context).rstrip()
    if isinstance(command, click.Group):
        for verb in command.list_commands(context):
            found = command.get_command(context, verb)
            if found is not None:
                yield from _pages(found, context, depth + 1)


def page_with(text: str) -> str:
    """Return the page: what people wrote above the mark, and the reference below it."""
    above, mark, _ = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    if not mark:
        sys.exit(f"{PAGE} has no line {BEGIN}")
    return f"{above}{BEGIN}\n\n{text}"


if __name__ == "__main__":
    PAGE.write_text(page_with(reference()), encoding="utf-8")

"""Write docs/reference/cli/, a page for each noun, and the tables of docs/reference/cli.md."""

from collections.abc import Iterator
from pathlib import Path

import click

from penstock.apps.cli.main import GROUPS, cli
from penstock.apps.cli.shared.renames import COMMANDS, OPTIONS

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli"
INDEX = FOLDER.with_suffix(".md")
WIDTH = 100


def pages() -> dict[Path, str]:
    """Return the text of each page: the help of a noun and of its verbs, in the order in which they are listed."""
    context = _context(cli, None)
    found = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return {
        FOLDER / f"{name}.md": "\n".join(_parts(noun, context, 0)) for name, noun in found.items() if noun is not None
    }


def index(text: str) -> str:
    """Return the text of the index with its tables: the commands by group, and the old spellings."""
    for name, lines in (("commands", _commands()), ("renames", _renames())):
        table = "\n".join(lines)
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{table}\n{end}{rest.partition(end)[2]}"
    return text


def _commands() -> Iterator[str]:
    yield "| group | command | |"
    yield "|---|---|---|"
    for group, nouns in GROUPS.items():
        for place, (name, noun) in enumerate(nouns.items()):
            yield f"| {'' if place else group} | [`{name}`](cli/{name}.md) | {noun.help} |"


def _renames() -> Iterator[str]:
    yield "| old | new |"
    yield "|---|---|"
    for old, new in COMMANDS.items():
        yield f"| `{old}` | `{new}` |"
    for row in OPTIONS:
        where = ", ".join(f"`{command}`" for command in row.commands)
        yield f"| `{row.old}`{f' of {where}' if where else ''} | `{row.new}` |"


def _parts(command: click.Command, parent: click.Context, depth: int) -> Iterator[str]:
    context = _context(command, parent)
    yield f"{'#' * (1 + depth)} `{context.command_path}`\n\n```text\n{command.get_help(context).rstrip()}\n```\n"
    if isinstance(command, click.Group):
        for verb in command.list_commands(context):
            found = command.get_command(context, verb)
            if found is not None:
                yield from _parts(found, context, depth + 1)


def _context(command: click.Command, parent: click.Context | None) -> click.Context:
    return click.Context(
        command,
        info_name="penstock" if parent is None else command.name,
        parent=parent,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=["-h", "--help"],
    )


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    made = pages()
    for page in set(FOLDER.glob("*.md")) - set(made):
        page.unlink()
    made[INDEX] = index(INDEX.read_text(encoding="utf-8"))
    for page, text in made.items():
        page.write_text(text, encoding="utf-8")

"""Tables, trees and ticks on a terminal. `rich` is imported here alone, for answers to people."""

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import click
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from penstock.errors import printable

# ----------------------------------------------------------------------------------------------------------------------
# Progress of publishing on a terminal: how many events were accepted and refused, and how many in a second.


class _Words:
    """Asks for the words whenever they are drawn."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self._text())


@contextmanager
def showing(text: Callable[[], str]) -> Iterator[None]:
    """Show words on standard error and keep them up to date, where that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    with Live(_Words(text), console=Console(file=sys.stderr), refresh_per_second=4, transient=True):
        yield


# ----------------------------------------------------------------------------------------------------------------------
# Tables, trees and ticks on a terminal. `rich` is imported here alone, for answers to people.


_STYLES = {"✓": "green", "✗": "red"}


@dataclass(slots=True)
class TreeLine:
    """A line of a tree and what hangs below it."""

    text: str
    children: list["TreeLine"] = field(default_factory=list)


def facts(rows: Iterable[tuple[str, str]], indent: int = 0) -> None:
    """Show headings and their values, aligned."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for heading, value in rows:
        table.add_row(Text(" " * indent + printable(heading), style="bold"), _text(value))
    _print(table)


def grid(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Show a table with headings."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(_text(cell) for cell in row))
    _print(table)


def line(text: str = "") -> None:
    """Show one line."""
    _print(_text(text), soft_wrap=True)


def diff(lines: Iterable[str]) -> None:
    """Show lines of which those that begin with `+` come and those that begin with `-` go."""
    for text in lines:
        sign = text.lstrip()[:1]
        _print(Text(printable(text), style={"+": "green", "-": "red"}.get(sign, "")), soft_wrap=True)


def tree(roots: Iterable[TreeLine]) -> None:
    """Show trees."""
    for root in roots:
        shown = Tree(_text(root.text))
        _grow(shown, root)
        _print(shown)


def _grow(shown: Tree, node: TreeLine) -> None:
    # An explicit stack: a chain of delegations may be long.
    pending = [(shown, node)]
    while pending:
        branch, current = pending.pop()
        pending += [(branch.add(_text(child.text)), child) for child in current.children]


def _text(value: str) -> Text:
    text = Text(printable(value))
    for mark, style in _STYLES.items():
        text.highlight_words([mark], style)
    return text


def _print(shown: RenderableType, *, soft_wrap: bool = False) -> None:
    # Text is never taken for markup, and a pipe gets lines that a program can cut where it wants.
    wide = None if sys.stdout.isatty() else max(160, shutil.get_terminal_size().columns)
    console = Console(file=sys.stdout, width=wide, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(shown, soft_wrap=soft_wrap)
    # rich fills cells up with spaces, also the last one of a line.
    for text in captured.get().rstrip("\n").split("\n"):
        click.echo(text.rstrip())

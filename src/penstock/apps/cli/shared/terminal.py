"""Tables, trees and progress on a terminal. Only this module imports `rich`."""

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import click
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from penstock.errors import printable

# ----------------------------------------------------------------------------------------------------------------------
# Progress.


class _Words:
    """Text that is computed whenever it is drawn."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self._text())


@contextmanager
def showing(text: Callable[[], str]) -> Iterator[None]:
    """Show a text on standard error and keep it up to date, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    with Live(_Words(text), console=Console(file=sys.stderr), refresh_per_second=4, transient=True):
        yield


LivePart: TypeAlias = str | Table
"""A part of what is kept up to date: a line or a table."""


class _Parts:
    """Asks for the parts whenever they are drawn."""

    def __init__(self, parts: Callable[[], Iterable[LivePart]]) -> None:
        self._parts = parts

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in self._parts():
            yield _text(part) if isinstance(part, str) else part


@contextmanager
def live(parts: Callable[[], Iterable[LivePart]]) -> Iterator[None]:
    """Show lines and tables on standard output, which is a terminal, and keep them up to date. The last stay."""
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    with Live(_Parts(parts), console=console, refresh_per_second=8):
        yield


# ----------------------------------------------------------------------------------------------------------------------
# Tables and trees.


_STYLES = {"✓": "green", "✗": "red"}

Shown: TypeAlias = str | bytes | Text | Table | Tree
"""A part of an answer for people: a line, bytes that are written unchanged, or something that `rich` draws."""


@dataclass(slots=True)
class TreeLine:
    """A line of a tree and the lines below it."""

    text: str
    children: list["TreeLine"] = field(default_factory=list)


def fact_table(rows: Iterable[tuple[str, str]], indent: int = 0) -> Table:
    """Return headings and their values, aligned."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for heading, value in rows:
        table.add_row(Text(" " * indent + printable(heading), style="bold"), _text(value))
    return table


def grid_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table with headings."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(_text(cell) for cell in row))
    return table


def diff_lines(lines: Iterable[str]) -> Iterator[Text]:
    """Yield lines in colour: green if they begin with `+`, red if they begin with `-`."""
    for text in lines:
        yield Text(printable(text), style={"+": "green", "-": "red"}.get(text.lstrip()[:1], ""))


def trees(roots: Iterable[TreeLine]) -> Iterator[Tree]:
    """Yield trees."""
    for root in roots:
        shown = Tree(_text(root.text))
        _grow(shown, root)
        yield shown


def show(parts: Iterable[Shown]) -> None:
    """Print lines, tables and trees for people."""
    for part in parts:
        if isinstance(part, bytes):
            click.echo(part, nl=False)
        elif not isinstance(part, str):
            _print(part, soft_wrap=isinstance(part, Text))
        elif _STYLES.keys() & set(part):
            _print(_text(part), soft_wrap=True)
        else:
            click.echo(printable(part))


def _grow(shown: Tree, node: TreeLine) -> None:
    # An explicit stack, because a chain of delegations can be long.
    pending = [(shown, node)]
    while pending:
        branch, current = pending.pop()
        pending += [(branch.add(_text(child.text)), child) for child in current.children]


def _text(value: str) -> Text:
    text = Text(printable(value))
    for mark, style in _STYLES.items():
        text.highlight_words([mark], style)
    return text


def _print(shown: Text | Table | Tree, *, soft_wrap: bool = False) -> None:
    # Text is never interpreted as markup, and lines for a pipe are not wrapped.
    wide = None if sys.stdout.isatty() else max(160, shutil.get_terminal_size().columns)
    console = Console(file=sys.stdout, width=wide, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(shown, soft_wrap=soft_wrap)
    # rich pads cells with spaces, also the last one of a line.
    for text in captured.get().rstrip("\n").split("\n"):
        click.echo(text.rstrip())

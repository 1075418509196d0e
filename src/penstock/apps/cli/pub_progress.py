"""Progress of publishing on a terminal: how many events were accepted and refused, and how many in a second."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text


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

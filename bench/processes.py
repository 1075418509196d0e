"""Processes that take turns at carrying events: each is a program of this folder, told what to do line by line."""

import sys
from contextlib import ExitStack
from pathlib import Path

from penstock.simulate.experiments import processes

HERE = Path(__file__).resolve().parent


class Part(processes.ProcessPart):
    """A process that runs a program of this folder."""

    def __init__(self, stack: ExitStack, program: str, *words: object, python: str = sys.executable) -> None:
        super().__init__(stack, [python, str(HERE / program), *map(str, words)])


class Way(processes.EventWay):
    """A way from a publisher to a subscriber, and what was measured on it."""

    def __init__(self, publisher: Part, subscriber: Part) -> None:
        super().__init__(publisher, subscriber)
        self.rates: list[float] = []

"""Processes that take turns at carrying events: each is a program of this folder, told what to do line by line."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).resolve().parent


class Part:
    """A process."""

    def __init__(self, stack: ExitStack, program: str, *words: object, python: str = sys.executable) -> None:
        self._process = stack.enter_context(
            subprocess.Popen(  # noqa: S603  # our own program
                [python, str(HERE / program), *map(str, words)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
        )
        stack.callback(self._end)

    def _end(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.terminate()

    @property
    def pid(self) -> int:
        return self._process.pid

    def say(self, *words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError("a process of the benchmark has ended")
        return line


class Way:
    """A way from a publisher to a subscriber."""

    def __init__(self, publisher: Part, subscriber: Part) -> None:
        self._publisher, self._subscriber = publisher, subscriber
        publisher.hear()
        subscriber.hear()
        self.rates: list[float] = []

    def carry(self, events: int, *words: object) -> float:
        """Return events per second."""
        self._subscriber.say(events, *words)
        self._publisher.say(events, *words)
        return (events - 1) / float(self._subscriber.hear())
